"""Checkpoints in Megatron-LM's older format beside the same network in transformers: FOLDER.

For each case it writes the files of ranks, imports them as FOLDER/CASE/run, and keeps what transformers' network says
in FOLDER/CASE/logits.pt. The plain weights become transformers' as its converters of the published models put them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.conversion.megatron.arguments import to_model
from orchestrator.conversion.megatron.checkpoints import describe, import_megatron
from orchestrator.models.registry import BERT, GPT
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved
from support.rank_files import PARTS, Network, Tensors, write

VOCAB = 101

CASES: dict[str, dict[str, Any]] = {
    "gpt": {"bert": False, "version": 0, "tp": 2, "pp": 2},
    "gpt-fused": {"bert": False, "version": 1.0, "tp": 2, "pp": 1, "bias_gelu_fusion": True},
    "gpt-openai": {"bert": False, "version": 3.0, "tp": 1, "pp": 1, "openai_gelu": True},
    "bert": {"bert": True, "version": 3.0, "tp": 2, "pp": 1},
    "bert-first": {"bert": True, "version": 0, "tp": 1, "pp": 2},
}


def main() -> None:
    folder = Path(sys.argv[1])
    for name, case in CASES.items():
        network = Network.random(rows=128, bert=case["bert"])
        layout = {axis: case[axis] for axis in ("tp", "pp")}
        more = {key: value for key, value in case.items() if key not in ("bert", "version", *layout)}
        source = folder / name / "theirs"
        arguments = network.arguments(**layout, **more)
        write(source, network, version=case["version"], arguments=arguments, **layout)
        is_fused = bool(more)
        torch.save(
            logits(bert_of(network) if network.bert else gpt2_of(network, is_fused)), folder / name / "logits.pt"
        )
        model = to_model(describe(source)["arguments"], BERT if network.bert else GPT)
        job = JobSpec.model_validate(
            {
                **{"name": name, "model": {**model, "vocab_size": VOCAB}, "data": {"random_tokens": True}},
                **{"batch": {"global_batch_size": 2}, "optimizer": {"lr": 1e-5}, "schedule": {"train_iters": 1}},
                **{"precision": {"dtype": "fp32"}, "runtime": {"device": "cpu"}},
            }
        )
        run = RunDir(folder / name / "run")
        run.path.mkdir()
        run.path.joinpath("resolved.json").write_text(dump_resolved(job))
        import_megatron(source, job, run.checkpoint(0), with_optimizer=False)


def logits(model: Any) -> torch.Tensor:
    """Of the tokens that `layout_program` takes: [2, 16, v], or all heads' in a row."""
    tokens = torch.arange(32).reshape(2, 16) * 7 % VOCAB
    with torch.no_grad():
        if model.config.model_type == "gpt2":
            found: torch.Tensor = model(tokens).logits
            return found
        said = model(tokens, attention_mask=torch.ones_like(tokens), token_type_ids=tokens % 2)
    return torch.cat([said.prediction_logits.flatten(), said.seq_relationship_logits.flatten()])


def gpt2_of(network: Network, is_fused: bool) -> Any:
    """A layer's matrices lie transposed there, and queries, keys and values are one after the other."""
    weights = network.weights
    state: Tensors = {
        "transformer.wte.weight": weights["words"][:VOCAB],
        "transformer.wpe.weight": weights["positions"],
    }
    names = {"norm1": "ln_1", "norm2": "ln_2", "projection": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
    for layer in range(network.layers):
        for kind in ("weight", "bias"):
            own = {name: weights[f"layers.{layer}.{name}.{kind}"] for name in (*names, *PARTS)}
            into = {theirs: own[name] for name, theirs in names.items()}
            into["attn.c_attn"] = torch.cat([own[part] for part in PARTS])
            state |= {
                f"transformer.h.{layer}.{name}.{kind}": tensor.t() if tensor.dim() == 2 else tensor
                for name, tensor in into.items()
            }
    state |= {f"transformer.ln_f.{kind}": weights[f"norm.{kind}"] for kind in ("weight", "bias")}
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=network.positions,
        n_embd=network.hidden,
        n_layer=network.layers,
        n_head=network.heads,
        n_inner=network.ffn,
        activation_function="gelu_new" if is_fused else "gelu",
    )
    return _filled(transformers.GPT2LMHeadModel(config), {**state, "lm_head.weight": weights["words"][:VOCAB]})


def bert_of(network: Network) -> Any:
    weights = network.weights
    tables = {"words": "word_embeddings", "positions": "position_embeddings", "types": "token_type_embeddings"}
    state: Tensors = {f"bert.embeddings.{theirs}.weight": weights[name] for name, theirs in tables.items()}
    state["bert.embeddings.word_embeddings.weight"] = weights["words"][:VOCAB]
    names = {
        **{"norm1": "attention.ln", "norm2": "ln", "projection": "attention.output.dense", "up": "intermediate.dense"},
        **{"down": "output.dense", **{part: f"attention.self.{part}" for part in PARTS}},
    }
    tops = {
        **{"norm": "bert.encoder.ln", "pooler": "bert.pooler.dense", "transform": "cls.predictions.transform.dense"},
        **{"transform_norm": "cls.predictions.transform.LayerNorm", "order": "cls.seq_relationship"},
    }
    for kind in ("weight", "bias"):
        for layer in range(network.layers):
            state |= {
                f"bert.encoder.layer.{layer}.{theirs}.{kind}": weights[f"layers.{layer}.{name}.{kind}"]
                for name, theirs in names.items()
            }
        state |= {f"{theirs}.{kind}": weights[f"{name}.{kind}"] for name, theirs in tops.items()}
    bias = weights["words_bias"][:VOCAB]
    state |= {
        "cls.predictions.bias": bias,
        "cls.predictions.decoder.bias": bias,
        "cls.predictions.decoder.weight": weights["words"][:VOCAB],
    }
    config = transformers.MegatronBertConfig(
        vocab_size=VOCAB,
        hidden_size=network.hidden,
        num_hidden_layers=network.layers,
        num_attention_heads=network.heads,
        intermediate_size=network.ffn,
        max_position_embeddings=network.positions,
        layer_norm_eps=1e-5,
    )
    return _filled(transformers.MegatronBertForPreTraining(config), state)


def _filled(model: Any, state: Tensors) -> Any:
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=True)
    return model.eval()


if __name__ == "__main__":
    main()
