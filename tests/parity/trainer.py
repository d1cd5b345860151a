"""One rank of Megatron-LM's own trainer on the CPU: CHECKOUT PROGRAM FOUND JOB FLAG…

Runs `training.pretrain` with what PROGRAM (`pretrain_gpt`, …) of the checkout hands it, and the flags as they are.
What stands in for a GPU is ours: the CPU shim, the Adam that keeps its step in the group, norms in place of Transformer
Engine's; and the initial weights are those that the job JOB begins with, so that both train the same. The last rank
writes every step's losses and gradient norm into the file FOUND.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

import torch  # isort: skip

from megatron.core import parallel_state
from megatron.core.dist_checkpointing import ShardedTensor

from orchestrator.conversion.megatron.bert_and_t5 import is_copy
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.runtime.network.initialization import Stream, initialize_weights
from orchestrator.runtime.processes.device import select_device
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.spec.model import ModelSpec

_HANDED = {
    "pretrain_gpt": {"get_embedding_ranks": "get_embedding_ranks"},
    "pretrain_bert": {},
    "pretrain_t5": {
        "get_embedding_ranks": "t5_embedding_ranks",
        "get_position_embedding_ranks": "t5_position_embedding_ranks",
    },
}
"""What a program hands the trainer beside data, model and step: its names."""


class _Nothing:
    """A stream, or an event, of a GPU."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: None


def stand_in_for_a_gpu() -> None:
    """What the trainer asks of CUDA beside what megatron-core does (`cpu_shim`)."""
    cuda: Any = torch.cuda
    cuda.Stream = cuda.Event = _Nothing
    cuda.current_stream = _Nothing
    cuda.stream = lambda stream: contextlib.nullcontext()
    for name in ("synchronize", "empty_cache", "set_rng_state", "reset_peak_memory_stats", "set_device"):
        setattr(cuda, name, lambda *arguments, **options: None)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, lambda *arguments, **options: 0)
    cuda.device_count = lambda: 1
    cuda.get_device_properties = lambda *arguments: types.SimpleNamespace(major=9, minor=0)
    cuda.memory_stats = lambda *arguments, **options: {"allocation.all.current": 0, "allocated_bytes.all.current": 0}
    torch_: Any = torch
    from orchestrator.runtime.processes import cpu_shim

    for name in ("empty", "ones", "rand", "full", "arange", "randn"):
        setattr(torch_, name, cpu_shim._on_cpu(getattr(torch_, name)))


def stand_in_for_triton() -> None:
    """megatron-core imports it for kernels that nothing here calls."""
    modules: dict[str, Any] = sys.modules
    triton, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    vars(triton).update(language=language, jit=lambda function=None, **options: function or (lambda each: each))
    vars(language).update(tensor=Any, constexpr=Any, dtype=Any)
    modules.update({"triton": triton, "triton.language": language})


def stand_in_for_fla() -> None:
    """Kernels of linear attention: in torch's operations, by which megatron-core is deterministic."""
    modules: dict[str, Any] = sys.modules
    for name in ("fla", "fla.modules", "fla.modules.l2norm", "fla.ops", "fla.ops.gated_delta_rule"):
        modules[name] = types.ModuleType(name)
    vars(modules["fla.modules.l2norm"])["l2norm"] = lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
    vars(modules["fla.ops.gated_delta_rule"])["chunk_gated_delta_rule"] = None
    from megatron.core.ssm import gated_delta_net

    vars(gated_delta_net)["chunk_gated_delta_rule"] = gated_delta_net.torch_chunk_gated_delta_rule


def main() -> int:
    checkout, name, found, resolved = sys.argv[1:5]
    device = select_device("cpu", threads=1)
    megatron_compat.apply(device)
    stand_in_for_a_gpu()
    stand_in_for_triton()
    stand_in_for_fla()
    sys.path.append(checkout)
    job = load_resolved(Path(resolved))
    from megatron.core.datasets import utils
    from megatron.training import initialize, training

    vars(utils)["compile_helpers"] = lambda: None  # the wheel has them compiled, and no makefile
    vars(initialize.fused_kernels)["load"] = lambda arguments: None
    training.initialize_megatron = functools.partial(training.initialize_megatron, allow_no_cuda=True)
    torch.distributed.init_process_group("gloo")
    use_our_norms()
    use_our_delta_nets()
    program: Any = importlib.import_module(name)
    steps: list[dict[str, float]] = []
    original = training.train_step

    @functools.wraps(original)
    def train_step(*arguments: Any, **options: Any) -> Any:
        answer = original(*arguments, **options)
        losses = {name: float(loss) for name, loss in answer[0].items()}
        parts = losses if len(losses) > 1 else {}
        steps.append({"loss": sum(losses.values()), "grad_norm": float(answer[5]), **parts})
        return answer

    training.train_step = train_step
    sys.argv = [f"{name}.py", *sys.argv[5:]]
    program.train_valid_test_datasets_provider.is_distributed = True
    training.pretrain(
        program.train_valid_test_datasets_provider,
        functools.partial(filled, job, program),
        program.ModelType.encoder_or_decoder,
        program.forward_step,
        **{option: getattr(program, its) for option, its in _HANDED[name].items()},
    )
    if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
        Path(found).write_text(json.dumps(steps))
    return 0


def filled(job: JobSpec, program: Any, *arguments: Any, **options: Any) -> Any:
    """A model chunk with the weights that the job begins with."""
    builder = [program.gpt_builder] if hasattr(program, "gpt_builder") else []
    model = program.model_provider(*builder, *arguments, **options)
    # What a T5 has under two keys is drawn under ours.
    weights = {key: weight for key, weight in model.sharded_state_dict().items() if not is_copy(key)}
    split = {key: weights[key].data for key in weights if key.endswith(_SPLIT)}
    share = (0, parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size())
    weights |= {key: ShardedTensor.from_rank_offsets(key, weight, share) for key, weight in split.items()}
    initialize_weights(
        [types.SimpleNamespace(sharded_state_dict=lambda: weights)],
        seed=job.runtime.seed,
        std=job.model.init_method_std,
        vocab_size=vocabulary(job).size,
        stream_of=lambda weight: Stream(
            2 * job.model.num_layers, norm_weight=0.0 if job.model.apply_layernorm_1p else 1.0
        ),
    )
    for key, weight in split.items():
        put_in_parts(weight, job.model, job.model.linear_num_key_heads // share[-1], with_gates="in_proj" in key)
    for key, weight in weights.items():
        if key.endswith("self_attention.out_norm.weight") and job.model.apply_layernorm_1p:
            torch.nn.init.zeros_(weight.data)  # there it is zero-centred as all norms are
    return model


_SPLIT = ("self_attention.in_proj.weight", "self_attention.conv1d.weight")
"""Weights whose rows lie key head by key head with us: the parts of each are together there."""


@torch.no_grad()
def put_in_parts(weight: torch.Tensor, model: ModelSpec, heads: int, *, with_gates: bool) -> None:
    """Put rows of a rank's key heads that lie as ours do where Megatron-LM has them."""
    shared = model.linear_num_value_heads // model.linear_num_key_heads
    sizes = [model.linear_key_head_dim, model.linear_key_head_dim, shared * model.linear_value_head_dim]
    sizes += [shared * model.linear_value_head_dim, shared, shared] if with_gates else []
    of_heads = weight.view(heads, sum(sizes), *weight.shape[1:])
    weight.copy_(torch.cat([part.flatten(0, 1) for part in torch.split(of_heads, sizes, dim=1)]))


class LatentCore(torch.nn.Module):
    """Causal attention with values narrower than keys, which megatron-core has with Transformer Engine only."""

    def __init__(self, *arguments: Any, softmax_scale: float, **options: Any) -> None:
        super().__init__()
        self.scale = softmax_scale

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *unused: Any, **options: Any
    ) -> torch.Tensor:
        """[s, b, heads * v] of query and key [s, b, heads, d] and value [s, b, heads, v]."""
        scores = torch.einsum("sbhd,tbhd->bhst", query, key) * self.scale
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return torch.einsum("bhst,tbhv->sbhv", weights, value).flatten(2)


def use_our_norms() -> None:
    """In place of the norms, and of Transformer Engine's layers, which save their weights under other names only for
    experts' norms.
    """
    from megatron.core.models.bert import bert_layer_specs, bert_lm_head
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.T5 import t5_spec
    from megatron.core.transformer import multi_latent_attention, transformer_block
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.multi_latent_attention import MLASelfAttentionSubmodules

    local = gpt_layer_specs.get_gpt_layer_local_spec

    def layer(*arguments: Any, **options: Any) -> Any:
        spec = local(*arguments, **options)
        spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
        attention = spec.submodules.self_attention.submodules
        if isinstance(attention, MLASelfAttentionSubmodules):
            attention.core_attention = LatentCore
        for name in ("q_layernorm", "k_layernorm", "kv_layernorm"):
            if getattr(attention, name, IdentityOp) is not IdentityOp:
                vars(attention)[name] = Norm
        return spec

    def engine_layer(
        num_experts: int | None = None, moe_grouped_gemm: bool = False, *arguments: Any, **options: Any
    ) -> Any:
        options.pop("use_te_activation_func", None)
        spec = layer(num_experts, False, *arguments, **options)
        names = spec.submodules.sharded_state_dict_keys_map
        if isinstance(spec.submodules.self_attention.submodules, MLASelfAttentionSubmodules):
            names |= {
                f"self_attention.{latent}_layernorm.": f"self_attention.linear_{latent}_up_proj.layer_norm_"
                for latent in ("q", "kv")
            }
            names |= {} if num_experts else {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
        elif num_experts:
            del names["pre_mlp_layernorm."]
        return spec

    further = gpt_layer_specs.get_gpt_mtp_block_spec

    def further_tokens(config: Any, spec: Any, use_transformer_engine: bool, **options: Any) -> Any:
        found = further(config, spec, use_transformer_engine=False, **options)
        for each in found.layer_specs:
            each.submodules.enorm = each.submodules.hnorm = each.submodules.layer_norm = Norm
        return found

    vars(gpt_layer_specs).update(
        get_gpt_layer_local_spec=layer,
        get_gpt_layer_with_transformer_engine_spec=engine_layer,
        get_gpt_mtp_block_spec=further_tokens,
        TENorm=Norm,
        LNImpl=Norm,
    )
    of_bert = bert_layer_specs.bert_layer_local_spec
    of_bert.submodules.input_layernorm = of_bert.submodules.pre_mlp_layernorm = Norm
    vars(bert_layer_specs)["get_bert_layer_with_transformer_engine_spec"] = lambda: of_bert
    # Asked of a layer without Transformer Engine, where the name means nothing.
    vars(multi_latent_attention)["TELinear"] = type("TELinear", (torch.nn.Module,), {})
    vars(t5_spec).update(TENorm=Norm, LNImpl=Norm)
    vars(bert_lm_head)["LNImpl"] = vars(transformer_block)["LayerNormImpl"] = Norm


def use_our_delta_nets() -> None:
    """The same of layers of which some have linear attention, which it has with Transformer Engine only."""
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants
    from megatron.core.transformer.mlp import MLP

    class Backend(LocalSpecProvider):
        def column_parallel_layer_norm_linear(self) -> Any:
            return self.column_parallel_linear()

        def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> Any:
            return Norm

    delta = variants.get_gated_delta_net_module_spec
    of_variants = variants.get_transformer_block_with_experimental_attention_variant_spec

    def delta_net(*arguments: Any, **options: Any) -> Any:
        spec = delta(*arguments, **options)
        spec.metainfo["fuse_input_layernorm"] = False
        return spec

    def layers_of_variants(*arguments: Any, **options: Any) -> Any:
        found = of_variants(*arguments, **options)
        for each in found.layer_specs:
            parts = each.submodules
            first = "linear_qkv" if hasattr(parts.self_attention.submodules, "linear_qkv") else "in_proj"
            parts.sharded_state_dict_keys_map = {"input_layernorm.": f"self_attention.{first}.layer_norm_"}
            if parts.mlp.module is MLP:
                parts.sharded_state_dict_keys_map["pre_mlp_layernorm."] = "mlp.linear_fc1.layer_norm_"
        return found

    vars(variants).update(
        get_gated_delta_net_module_spec=delta_net,
        get_transformer_block_with_experimental_attention_variant_spec=layers_of_variants,
        _get_backend_spec_provider=lambda config: Backend(),
    )


if __name__ == "__main__":
    sys.exit(main())
