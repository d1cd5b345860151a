"""Attention rotates what its projection left, by one kernel; here torch's operations stand in for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.engine_layers import have_layers

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from tests.unit.runtime.conftest import PutKernels

# isort: split
import pytest
import torch
from megatron.core.transformer.attention import SelfAttention
from support.engine_layers import transformer_engine_layers
from support.rotated import rotated_by_operations
from support.training import tiny_job

from orchestrator.runtime.layers import torch_layers
from orchestrator.runtime.layers.attention.multimodal_rotation import MultimodalRotation
from orchestrator.runtime.layers.attention.rotation import RotatedAttention, rotated, thirds_of_one
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device

S, B, GROUPS, D = 5, 2, 3, 8
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
FREQUENCIES, OWN_FREQUENCIES = (
    torch.cat((torch.rand(S, sequences, 1, D // 2, generator=torch.Generator().manual_seed(1)) * 50,) * 2, -1)
    for sequences in (1, B)
)


class Operations:
    """`kernels.rotation` by torch's operations; it counts its calls."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def rotate(self, joined: torch.Tensor, frequencies: torch.Tensor, *, back: bool = False) -> None:
        assert joined.is_contiguous()
        self.called.append("back" if back else "rotate")
        query, key, _ = rotated_by_operations(joined.detach().clone(), -frequencies if back else frequencies)
        joined.detach()[..., :-2, :] = query.view_as(joined[..., :-2, :])
        joined.detach()[..., -2, :] = key

    def split(self, joined: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.called.append("split")
        return tuple(each.detach().clone() for each in rotated_by_operations(joined, frequencies))

    def join(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, frequencies: torch.Tensor
    ) -> torch.Tensor:
        assert all(each.is_contiguous() for each in (query, key, value))
        self.called.append("join")
        joined = torch.cat((query.unflatten(2, (key.size(2), -1)), key.unsqueeze(-2), value.unsqueeze(-2)), -2)
        back = rotated_by_operations(joined, -frequencies)
        return torch.cat((back[0].view_as(joined[..., :-2, :]), back[1].unsqueeze(-2), value.unsqueeze(-2)), -2)


@pytest.fixture
def operations(put_kernels: PutKernels) -> Operations:
    found = Operations()
    put_kernels("rotation", found)
    return found


def projection(members: int = 3) -> torch.Tensor:
    return torch.randn(S, B, GROUPS, members, D, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("frequencies", [FREQUENCIES, OWN_FREQUENCIES], ids=["of all", "of each sequence"])
@pytest.mark.parametrize(
    ("members", "apart", "joined", "called"),
    [
        (3, False, True, ["rotate", "back"]),
        (3, False, False, ["rotate", "join"]),
        (3, True, False, ["split", "join"]),
        (6, True, False, ["split", "join"]),
    ],
)
def test_values_and_gradients(
    members: int, apart: bool, joined: bool, called: list[str], frequencies: torch.Tensor, operations: Operations
) -> None:
    """`joined`: the attention returns gradients that are thirds of one tensor."""
    results = []
    for rotate in (lambda x: rotated_by_operations(x, frequencies), lambda x: rotated(x, frequencies, apart=apart)):
        source = projection(members).requires_grad_()
        found = rotate(source * 1)
        gradients = [torch.randn(each.shape, generator=torch.Generator().manual_seed(3)) for each in found]
        if joined:
            gradients = list(torch.stack(gradients, -2).unbind(-2))
        torch.autograd.backward(found, gradients)
        assert source.grad is not None
        results.append([*(each.detach().clone() for each in found), source.grad])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert operations.called == called


def test_in_place_nothing_is_copied_and_autograd_knows(operations: Operations) -> None:
    source = projection().requires_grad_()
    inner = source * 1
    squared = inner * inner  # keeps what is about to be rotated
    query, key, value = rotated(inner, FREQUENCIES, apart=False)
    for place, each in enumerate((query, key, value)):
        assert each.data_ptr() == inner.data_ptr() + place * D * inner.element_size()
        assert each.shape == (S, B, GROUPS, D)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


def test_what_are_not_thirds_of_one_tensor() -> None:
    joined = projection()
    query, key, value = joined.unbind(-2)
    found = thirds_of_one(query, key, value)
    assert found is not None
    assert found.data_ptr() == joined.data_ptr()
    assert torch.equal(found, joined)
    assert thirds_of_one(key, query, value) is None
    assert thirds_of_one(query, key, value.clone()) is None
    assert thirds_of_one(*(each.contiguous() for each in (query, key, value))) is None
    assert thirds_of_one(query[:, :1], key[:, :1], value[:, :1]) is None


class Projecting:
    """What megatron-core's attention does around the rotation."""

    def forward(self: Any, hidden_states: torch.Tensor, attention_mask: None, **options: Any) -> Any:
        self.rotates_itself = options["rotary_pos_emb"] is not None
        return self.get_query_key_value_tensors(hidden_states, None, output_gate=False, split_qkv=True), None

    def get_query_key_value_tensors(
        self: Any, hidden_states: torch.Tensor, key_value_states: None, output_gate: bool, split_qkv: bool
    ) -> Any:
        joined = hidden_states.view(S, B, GROUPS, -1)
        return joined.split(D, -1) if split_qkv else (joined, [D, D, D])


def attention(monkeypatch: pytest.MonkeyPatch, **config: Any) -> Any:
    for name in ("forward", "get_query_key_value_tensors"):
        monkeypatch.setattr(SelfAttention, name, vars(Projecting)[name])
    made: Any = RotatedAttention.__new__(RotatedAttention)
    torch.nn.Module.__init__(made)
    made.hidden_size_per_attention_head = D
    made.config = SimpleNamespace(**{"context_parallel_size": 1, "cpu_offloading": False, **config})
    return made


@pytest.mark.parametrize(
    ("members", "config", "called"),
    [
        (3, {}, "rotate"),
        (6, {}, "split"),
        (3, {"context_parallel_size": 2}, "split"),
        (3, {"cpu_offloading": True}, "split"),
    ],
)
def test_the_layer_rotates_in_place_where_it_can(
    members: int, config: dict[str, Any], called: str, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = attention(monkeypatch, **config)
    joined = projection(members)
    want = rotated_by_operations(joined, FREQUENCIES)
    found, _ = layer.forward(joined.flatten(2), None, rotary_pos_emb=FREQUENCIES)
    assert not layer.rotates_itself
    assert operations.called == [called]
    for ours, theirs in zip(found, want, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("given", ["inference_context", "packed_seq_params"])
def test_with_a_cache_megatron_core_rotates(
    given: str, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = attention(monkeypatch)
    layer.forward(projection().flatten(2), None, rotary_pos_emb=FREQUENCIES)
    layer.forward(projection().flatten(2), None, rotary_pos_emb=FREQUENCIES, **{given: object()})
    assert layer.rotates_itself
    assert operations.called == ["rotate"]


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")  # megatron-core's, of its own default
@pytest.mark.parametrize("layers", ["torch", "transformer_engine"])
@pytest.mark.parametrize(
    ("model", "rotates"),
    [
        ({}, True),
        ({"architecture": "bert", "bert_binary_head": False}, True),
        ({"qk_layernorm": True}, False),
        ({"rotary_percent": 0.5}, True),
        ({"rotary_percent": 0.5, "rope_scaling": YARN}, False),
        ({"rope_scaling": YARN}, True),
    ],
)
def test_layers_have_it(model: dict[str, Any], rotates: bool, layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = transformer_engine_layers(monkeypatch) if layers == "transformer_engine" else torch_layers
    have_layers(monkeypatch, module, [False])
    job = tiny_job("rotated", model={"position_embedding_type": "rope", **model}, runtime={"device": "auto"})
    plain = transformer_config(job, Device("cpu", torch.device("cpu"), "gloo", "cpu"), "torch")
    assert not plain.rotates_projection, "the CPU has no such kernel"
    config = transformer_config(job, Device("cuda", torch.device("cpu"), "nccl", "a GPU in name only"), "torch")
    assert config.rotates_projection == rotates
    [layer] = module.block_spec(config, None).layer_specs
    assert (layer.submodules.self_attention.module is RotatedAttention) == rotates


def test_angles_of_one_sequence_have_the_strides_of_a_tensor_laid_out_anew() -> None:
    """What is rotated takes them on, and Transformer Engine's attention refuses keys that have others than values."""
    angles = MultimodalRotation(torch.ones(4))(torch.zeros(3, 1, 5, dtype=torch.int64), [2, 1, 1])
    assert angles.shape == (5, 1, 1, 8)
    assert angles.stride() == (8, 8, 8, 1)
