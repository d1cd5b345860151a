"""A rank that does with checkpoints what Megatron-LM's training does: LOAD SAVE JOB OURS OUT.

Loads the latest checkpoint in LOAD with its optimizer, writes its logits to OUT, beside those of our own network with
the checkpoint OURS, and saves into SAVE. What it loads and how
follows `load_checkpoint`, `generate_state_dict` and `save_checkpoint` of Megatron-LM's training/checkpointing.py; the
network is built of megatron-core's own GPTModel, from the arguments in the checkpoint alone. JOB has the flags that a
user would give to the second program: layout and optimizer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

import torch  # isort: skip
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.transformer_config import TransformerConfig
from support.megatron_saving import save_as_training

from orchestrator.planning.vocabulary import vocabulary
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.checkpointing import checkpoint_reader
from orchestrator.runtime.network.model import build_chunks, transformer_config, wrap_data_parallel
from orchestrator.runtime.optimizer_step import build_optimizer
from orchestrator.runtime.processes.device import select_device
from orchestrator.runtime.processes.process_groups import seed_everything, start_process_groups, stop_process_groups
from orchestrator.spec.loading import load_resolved


def build(args: argparse.Namespace, tp: int) -> Any:
    """As `gpt_builder` does, of what the arguments say."""
    config = TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups,
        kv_channels=args.kv_channels,
        hidden_dropout=args.hidden_dropout,
        attention_dropout=args.attention_dropout,
        layernorm_epsilon=args.norm_epsilon,
        normalization=args.normalization,
        add_bias_linear=args.add_bias_linear,
        gated_linear_unit=args.swiglu,
        activation_func=torch.nn.functional.silu if args.swiglu else torch.nn.functional.gelu,
        tensor_model_parallel_size=tp,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(normalization=args.normalization),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        parallel_output=False,
    )


def main() -> int:
    load, save, resolved, ours, out = map(Path, sys.argv[1:])
    job = load_resolved(resolved)
    device = select_device("cpu", threads=1)
    megatron_compat.apply(device)
    ranks, _ = start_process_groups(job, device, 60.0)
    seed_everything(1, ranks)

    iteration = int((load / "latest_checkpointed_iteration.txt").read_text())
    checkpoint = str(load / f"iter_{iteration:07d}")
    common = dist_checkpointing.load_common_state_dict(checkpoint)
    args = common["args"]
    assert common["checkpoint_version"] == 3.0
    assert args.no_save_rng, "else it would ask for rng_state at the same TP and PP"
    module = build(args, job.parallelism.tensor_model_parallel_size)
    chunks = wrap_data_parallel(job, module.config, [module])
    optimizer = build_optimizer(job, chunks)
    scheduler = OptimizerParamScheduler(
        optimizer, **{"init_lr": 0.0, "max_lr": 0.0, "min_lr": 0.0, "lr_warmup_steps": 0, "lr_decay_steps": 1},
        lr_decay_style="linear", start_wd=0.0, end_wd=0.0, wd_incr_steps=0, wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=True,
    )  # fmt: skip
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    metadata = {**dist_checkpointing.load_content_metadata(preloaded_state_dict=common), "dp_cp_group": group}
    model_state = module.sharded_state_dict(metadata=metadata)
    wanted = {
        "model": model_state,
        "optimizer": optimizer.sharded_state_dict({"model": model_state}, is_loading=True, metadata=metadata),
    }
    loaded = dist_checkpointing.load(wanted, checkpoint)
    module.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    scheduler.load_state_dict(loaded["opt_param_scheduler"])
    assert loaded["iteration"] == iteration

    module.eval()
    tokens = torch.arange(32).reshape(2, 16) * 7 % 101
    with torch.no_grad():
        later = torch.ones(1, 1, 16, 16).triu(1).bool()  # megatron-core would make it on a GPU
        logits = module(tokens, torch.arange(16).expand_as(tokens), later)
    own_config = transformer_config(job, device, "torch")
    [network] = build_chunks(job, own_config, device, "torch", vocabulary(job), ranks)
    network.load_state_dict(checkpoint_reader.load({"model": network.sharded_state_dict()}, ours)["model"])
    with torch.no_grad():
        own = network.eval()(tokens, torch.arange(16).expand_as(tokens), None, runtime_gather_output=True)
    if ranks.is_first:
        torch.save({"logits": logits, "ours": own, "scheduler": scheduler.state_dict(), "args": vars(args)}, out)

    metadata |= {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    model_state = module.sharded_state_dict(metadata=metadata)
    states = ShardedObject("rng_state", [{"torch_rng_state": torch.get_rng_state()}], (1, ranks.tp_size), (0, ranks.tp))
    state = {
        "args": args,
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "model": model_state,
        "optimizer": optimizer.sharded_state_dict({"model": model_state}, metadata=metadata),
        "opt_param_scheduler": scheduler.state_dict(),
        "rng_state": states,
        "num_floating_point_operations_so_far": 0,
    }
    save_as_training(state, save, metadata)
    stop_process_groups()
    return 0


if __name__ == "__main__":
    sys.exit(main())
