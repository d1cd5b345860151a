"""Jobs of any layout and size, and how long their steps are planned to take."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from orchestrator.planning.hardware import Device, shipped
from orchestrator.planning.time import estimate_time

LAYOUTS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "pp": st.sampled_from([1, 2, 4]),
        "dp": st.sampled_from([1, 2, 16]),
        "vp": st.sampled_from([None, 2]),
        "micro": st.sampled_from([1, 3]),
        "micro_batches": st.sampled_from([1, 4, 16]),
        "sp": st.booleans(),
        "sharded": st.booleans(),
        "dtype": st.sampled_from(["bf16", "fp16", "fp32"]),
        "recompute": st.sampled_from([None, "selective", "full"]),
        "activation": st.sampled_from(["gelu", "swiglu"]),
        "bias": st.booleans(),
        "dropout": st.sampled_from([0.0, 0.1]),
        "tied": st.booleans(),
    }
)


def device(name: str = "H100") -> Device:
    found = shipped(name)
    assert found is not None
    return found


def job(make_job: Any, **a: Any) -> Any:
    a = {"tp": 1, "pp": 1, "dp": 1, "vp": None, "micro": 1, "micro_batches": 4, "sp": False, "sharded": True,
         "dtype": "bf16", "recompute": None, "activation": "gelu", "bias": True, "dropout": 0.0, "tied": True,
         "layers": 16, "hidden": 2048, "seq": 2048, "nodes": 1, "launch": {}, "runtime": {},
         "precision": {}, **a}  # fmt: skip
    recompute = {"recompute_granularity": a["recompute"]}
    if a["recompute"] == "full":
        recompute |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    return make_job(
        model={
            "num_layers": a["layers"],
            "hidden_size": a["hidden"],
            "num_attention_heads": 16,
            "seq_length": a["seq"],
            "activation": a["activation"],
            "add_bias_linear": a["bias"],
            "hidden_dropout": a["dropout"],
            "untie_embeddings_and_output_weights": not a["tied"],
        },
        parallelism={
            "tensor_model_parallel_size": a["tp"],
            "pipeline_model_parallel_size": a["pp"],
            "virtual_pipeline_model_parallel_size": a["vp"] if a["pp"] > 1 else None,
            "sequence_parallel": a["sp"] and a["tp"] > 1,
            "use_distributed_optimizer": a["sharded"],
        },
        batch={"micro_batch_size": a["micro"], "global_batch_size": a["micro"] * a["micro_batches"] * a["dp"]},
        precision={"dtype": a["dtype"], **a["precision"]},
        launch={"nodes": a["nodes"], "gpus_per_node": a["tp"] * a["pp"] * a["dp"] // a["nodes"], **a["launch"]},
        runtime={**recompute, **a["runtime"]},
    )


def seconds(found: Any, on: Device | None = None) -> float:
    return estimate_time(found, 51200, "transformer_engine", on or device()).step_seconds


LARGE = {"hidden": 8192, "seq": 8192}
"""So much for each kernel that the GPU takes longer than the host, in every layout here."""
