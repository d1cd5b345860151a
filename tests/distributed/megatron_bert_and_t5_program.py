"""A rank that does with checkpoints of a BERT or a T5 what Megatron-LM's training does: LOAD SAVE JOB OURS OUT.

As `megatron_program.py`, with the networks that pretrain_bert.py and pretrain_t5.py build of megatron-core's classes.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

import torch  # isort: skip
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from support.megatron_saving import save_as_training

from orchestrator.planning.vocabulary import vocabulary
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.checkpointing import checkpoint_reader
from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.runtime.network.model import build_chunks, transformer_config, wrap_data_parallel
from orchestrator.runtime.optimizer_step import build_optimizer
from orchestrator.runtime.processes.device import select_device
from orchestrator.runtime.processes.process_groups import seed_everything, start_process_groups, stop_process_groups
from orchestrator.spec.loading import load_resolved


def build(args: argparse.Namespace, is_t5: bool, tp: int) -> Any:
    """As the two programs' `model_provider` does, with the layers of --spec local."""
    config = TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        kv_channels=args.kv_channels,
        hidden_dropout=args.hidden_dropout,
        attention_dropout=args.attention_dropout,
        layernorm_epsilon=args.norm_epsilon,
        add_bias_linear=args.add_bias_linear,
        activation_func=torch.nn.functional.gelu,
        tensor_model_parallel_size=tp,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
    )
    shared: dict[str, Any] = {
        "vocab_size": args.padded_vocab_size,
        "max_sequence_length": args.max_position_embeddings,
        "share_embeddings_and_output_weights": not args.untie_embeddings_and_output_weights,
        "position_embedding_type": args.position_embedding_type,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that apex is not installed
        from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
        from megatron.core.models.bert.bert_model import BertModel
        from megatron.core.models.T5 import T5Model, t5_spec
    if not is_t5:
        types = 2 if args.bert_binary_head else 0
        return BertModel(config, types, bert_layer_local_spec, add_binary_head=args.bert_binary_head, **shared)
    encoder_config = deepcopy(config)
    encoder_config.num_layers = args.encoder_num_layers
    # `get_t5_encoder_with_local_block_spec` has a norm of Transformer Engine's behind the last layer.
    encoder = TransformerBlockSubmodules([t5_spec.encoder_model_with_local_spec()] * encoder_config.num_layers, Norm)
    decoder = TransformerBlockSubmodules([t5_spec.decoder_model_with_local_spec()] * config.num_layers, Norm)
    return T5Model(config, encoder_config, encoder, decoder, **shared)


def losses_of(module: Any, network: Any, is_t5: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses of some tokens in both networks."""
    tokens = torch.arange(48).reshape(2, 24) * 7 % 101 + 1
    labels, there = (tokens * 3 + 1) % 101, torch.ones_like(tokens)
    there[1, 20:] = tokens[1, 20:] = 0  # what megatron-core takes for padding of its T5's local layers
    with torch.no_grad():
        if not is_t5:
            types = (torch.arange(24) > 9).long().expand_as(tokens)
            theirs, order = module(tokens, there, tokentype_ids=types, lm_labels=labels)
            ours, own_order = network(tokens, there, tokentype_ids=types, lm_labels=labels)
            counts = there > 0  # what padding attends to is another matter
            return torch.cat([theirs[counts], order.flatten()]), torch.cat([ours[counts], own_order.flatten()])
        decoded, wanted = tokens[:, :16] + 3, labels[:, :16]
        hidden = there < 0.5
        enc_mask, dec_mask, both = T5MaskedWordPieceDataset.config_attention_mask(
            tokens, decoded, hidden, torch.zeros_like(decoded) > 0, True
        )
        theirs = module(tokens, decoded, enc_mask, dec_mask, both, lm_labels=wanted)
        return theirs, network(tokens, decoded, hidden[:, None, None, :], wanted)


def main() -> int:
    load, save, resolved, ours, out = map(Path, sys.argv[1:])
    job = load_resolved(resolved)
    is_t5 = job.model.architecture == "t5"
    device = select_device("cpu", threads=1)
    megatron_compat.apply(device)
    ranks, _ = start_process_groups(job, device, 60.0)
    seed_everything(1, ranks)

    iteration = int((load / "latest_checkpointed_iteration.txt").read_text())
    checkpoint = str(load / f"iter_{iteration:07d}")
    common = dist_checkpointing.load_common_state_dict(checkpoint)
    module = build(common["args"], is_t5, job.parallelism.tensor_model_parallel_size)
    optimizer = build_optimizer(job, wrap_data_parallel(job, module.config, [module]))
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

    own_config = transformer_config(job, device, "torch")
    [network] = build_chunks(job, own_config, device, "torch", vocabulary(job), ranks)
    network.load_state_dict(checkpoint_reader.load({"model": network.sharded_state_dict()}, ours)["model"])
    theirs, own = losses_of(module.eval(), network.eval(), is_t5)
    if ranks.is_first:
        torch.save({"theirs": theirs, "ours": own, "args": vars(common["args"])}, out)

    metadata |= {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    model_state = module.sharded_state_dict(metadata=metadata)
    state = {
        **{name: common[name] for name in ("args", "checkpoint_version", "iteration", "opt_param_scheduler")},
        "model": model_state,
        "optimizer": optimizer.sharded_state_dict({"model": model_state}, metadata=metadata),
        "num_floating_point_operations_so_far": 0,
    }
    save_as_training(state, save, metadata)
    stop_process_groups()
    return 0


if __name__ == "__main__":
    sys.exit(main())
