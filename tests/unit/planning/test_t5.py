"""What is planned for a T5: its parameters, its FLOPs, its stages, and that both halves cost what they should."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.planning.flops import model_flops
from orchestrator.planning.hardware import shipped
from orchestrator.planning.layout.topology import topology
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.parameters import parameters
from orchestrator.planning.time import estimate_time
from orchestrator.spec.job import JobSpec

VOCAB = 512
MODEL = {
    **{"architecture": "t5", "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 200},
    **{"seq_length": 48, "decoder_seq_length": 16},
}


def t5(make_job: Any, parallelism: dict[str, Any] | None = None, **model: Any) -> JobSpec:
    given: JobSpec = make_job(
        model={**MODEL, **model}, parallelism=parallelism or {}, data={"tokenizer": {"vocab_extra_ids": 100}}
    )
    return given


def test_flops_are_those_of_every_product(make_job: Any) -> None:
    h, ffn, encoded, decoded, encoder, decoder = 64, 200, 48, 16, 3, 5
    job = t5(make_job, encoder_num_layers=encoder, decoder_num_layers=decoder)
    products = encoder * encoded * (4 * h * h + 2 * h * ffn)  # self-attention and MLP
    products += encoder * 2 * encoded * encoded * h  # scores and what they weigh
    products += decoder * decoded * (6 * h * h + 2 * h * ffn)  # the same, and queries and output across
    products += decoder * encoded * 2 * h * h  # keys and values across
    products += decoder * 2 * decoded * (decoded + encoded) * h
    products += decoded * VOCAB * h
    assert model_flops(job, 10 * (encoded + decoded), VOCAB) == 10 * 6 * products


@pytest.mark.parametrize(("tp", "pp", "split"), [(1, 1, None), (2, 2, None), (4, 4, 3), (1, 5, 1)])
@pytest.mark.parametrize("positions", ["relative", "learned_absolute", "rope"])
def test_ranks_hold_all_parameters_and_their_copies(
    make_job: Any, tp: int, pp: int, split: int | None, positions: str
) -> None:
    degrees = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "pipeline_model_parallel_split_rank": split,
    }
    layers = {"encoder_num_layers": 3, "decoder_num_layers": 4}
    if pp != 4:
        layers["encoder_num_layers"] = 4
    job = t5(make_job, degrees, position_embedding_type=positions, **layers)
    counted = parameters(job, VOCAB)
    h, heads, ffn = 64, 4, 200
    norm, attention, mlp = 2 * h, 4 * h * h + 4 * h, 2 * h * ffn + ffn + h
    encoder = attention + mlp + 2 * norm
    bias = 32 * heads if positions == "relative" else 0
    table = VOCAB * h + (48 * h if positions == "learned_absolute" else 0)
    total = table + layers["encoder_num_layers"] * encoder + 4 * (encoder + attention + norm) + 2 * (norm + bias)
    assert counted.total == total
    copies = VOCAB * h if pp > 1 else 0
    stages = {"encoder": (split or pp // 2) if pp > 1 else 1, "decoder": pp - (split or pp // 2) if pp > 1 else 1}
    copies += sum(count - 1 for count in stages.values()) * bias
    replicated = table - VOCAB * h  # positions, and per layer norms and biases of what is written to the stream
    replicated += layers["encoder_num_layers"] * (2 * norm + 2 * h) + 4 * (3 * norm + 3 * h) + 2 * norm
    assert sum(rank.parameters for rank in counted.per_rank) == total + copies + (tp - 1) * replicated


def test_the_stages_say_which_half_they_are(make_job: Any) -> None:
    degrees = {"pipeline_model_parallel_size": 3, "pipeline_model_parallel_split_rank": 1}
    stages = topology(t5(make_job, degrees, encoder_num_layers=2)).to_dict()["stages"]
    assert [stage["chunks"] for stage in stages] == [
        [{"first": 0, "last": 1, "half": "encoder"}],
        [{"first": 0, "last": 1, "half": "decoder"}],
        [{"first": 2, "last": 3, "half": "decoder"}],
    ]
    [both] = topology(t5(make_job)).stages
    assert [str(chunk) for chunk in both] == ["encoder 0-3", "decoder 0-3"]


def test_what_makes_it_slower_and_larger(make_job: Any) -> None:
    """Each change costs time and memory, and recomputation gives some of the memory back for time."""
    device = shipped("H100")
    assert device is not None
    large = {"hidden_size": 1024, "num_attention_heads": 16, "seq_length": 512, "position_embedding_type": "none"}

    def cost(runtime: dict[str, Any] | None = None, **model: Any) -> tuple[float, int]:
        job = make_job(
            model={**MODEL, **large, "decoder_seq_length": 128, "num_layers": 12, **model},
            runtime=runtime or {},
            batch={"micro_batch_size": 128, "global_batch_size": 128},  # the GPU takes longer than the host
            data={"tokenizer": {"vocab_extra_ids": 100}},
        )
        return estimate_time(job, 32000, "torch", device).step_seconds, estimate_memory(job, 32000, "torch").peak_bytes

    plain = cost()
    for more in (
        {"encoder_num_layers": 16},
        {"decoder_num_layers": 16},
        {"seq_length": 1024},
        {"decoder_seq_length": 256},
        {"position_embedding_type": "relative"},
    ):
        changed = cost(**more)
        assert changed[0] > plain[0], more
        assert changed[1] > plain[1], more
    lean = cost({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1})
    assert lean[0] > plain[0]
    assert lean[1] < plain[1]


def test_both_halves_of_a_small_one_are_recomputed_in_the_hosts_time(make_job: Any) -> None:
    """A layer of the decoder starts half as many kernels again as one of the encoder."""
    device = shipped("H100")
    assert device is not None

    def host(encoder: int, decoder: int, *, again: bool) -> float:
        full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        model = {**MODEL, "encoder_num_layers": encoder, "decoder_num_layers": decoder}
        job = make_job(model=model, runtime=full if again else {}, data={"tokenizer": {"vocab_extra_ids": 100}})
        found = estimate_time(job, VOCAB, "torch", device)
        assert found.parts["host"] > 0.5 * found.step_seconds
        return found.step_seconds

    more = [host(*layers, again=True) - host(*layers, again=False) for layers in ((8, 4), (4, 4), (4, 8))]
    assert more[2] - more[1] == pytest.approx(1.5 * (more[0] - more[1]))
    assert more[1] == pytest.approx(more[0] - more[1] + more[2] - more[1])
