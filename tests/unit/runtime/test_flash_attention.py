"""FlashAttention 4 as the core of attention, with torch's operations in its place: what it is given and gives, which
layers have it, and who decides. That its kernels compute this is for GPUs to show.
"""

from __future__ import annotations

import errno

from support.cuda import show_gpus
from support.engine_layers import have_layers
from support.refusals import refuse
from support.refused import refused

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from megatron.core import tensor_parallel
from megatron.core.transformer.enums import AttnMaskType
from support.engine_layers import transformer_engine_layers
from support.fake_flash import FakeFlash
from support.training import layout, tiny_job
from torch.nn import functional

from orchestrator.runtime.layers import torch_layers
from orchestrator.runtime.layers.attention import flash as flash_module
from orchestrator.runtime.layers.attention import flash_availability
from orchestrator.runtime.layers.attention.flash import FlashAttention, FlashAttentionApart
from orchestrator.runtime.layers.attention.flash_availability import choose_attention, keep_compiled
from orchestrator.runtime.layers.attention.rotation import thirds_of_one
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.spec.job import JobSpec

# megatron-core's, of its own default
pytestmark = pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")
GPU = Device("cuda", torch.device("cpu"), "nccl", "NVIDIA H200")
S, B, HEADS, D = 7, 2, 4, 64
SCALE = 0.2


def job(**sections: Any) -> JobSpec:
    return tiny_job("flash", **{"model": {"hidden_size": 256}, "precision": {"dtype": "bf16"}, **sections})


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFlash]:
    fake = FakeFlash()
    module: Any = ModuleType("flash_attn.cute.interface")
    module._flash_attn_fwd, module._flash_attn_bwd = fake._flash_attn_fwd, fake._flash_attn_bwd
    for name in ("flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    flash_module.interface.cache_clear()
    yield fake
    flash_module.interface.cache_clear()


def core(kind: type[FlashAttention] = FlashAttention) -> FlashAttention:
    config = transformer_config(job(model={"hidden_size": 256, "softmax_scale": SCALE}), CPU, "torch")
    return kind(config, 1, AttnMaskType.causal, "self", softmax_scale=SCALE)


def inputs(groups: int) -> list[torch.Tensor]:
    """Queries, keys and values: thirds of one tensor where heads are as many."""
    torch.manual_seed(1)
    if groups == HEADS:
        return list(torch.randn(S, B, HEADS, 3, D).unbind(3))
    return [torch.randn(S, B, heads, D) for heads in (HEADS, groups, groups)]


def expected(given: list[torch.Tensor], upstream: torch.Tensor) -> list[torch.Tensor]:
    """The output [s, b, heads * d] and the gradients, by torch's attention."""
    leaves = [each.clone().requires_grad_() for each in given]
    q, k, v = (each.permute(1, 2, 0, 3) for each in leaves)
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE, enable_gqa=True)
    out = out.permute(2, 0, 1, 3).flatten(2)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


@pytest.mark.parametrize("kind", [FlashAttention, FlashAttentionApart])
@pytest.mark.parametrize("groups", [HEADS, 2, 1])
def test_values_and_gradients_without_a_copy(groups: int, kind: type[FlashAttention], flash: FakeFlash) -> None:
    given = [each.requires_grad_() for each in inputs(groups)]
    out = core(kind)(*given, None, attn_mask_type=AttnMaskType.causal)
    upstream = torch.randn(S, B, HEADS * D)
    gradients = torch.autograd.grad(out, given, upstream)
    for got, wanted in zip((out, *gradients), expected(given, upstream), strict=True):
        torch.testing.assert_close(got, wanted)
    there, back = flash.calls
    for calls in (there, back):
        assert [calls[name].data_ptr() for name in "qkv"] == [each.data_ptr() for each in given]
        assert calls["out"].data_ptr() == out.data_ptr()
    assert back["dout"].data_ptr() == upstream.data_ptr()
    assert [back[name].data_ptr() for name in ("dq", "dk", "dv")] == [each.data_ptr() for each in gradients]
    if groups == HEADS and kind is FlashAttention:
        assert thirds_of_one(*gradients) is not None, "what rotates them back finds them where they belong"
    else:
        assert all(each.is_contiguous() for each in gradients)


def test_recomputation(flash: FakeFlash, monkeypatch: pytest.MonkeyPatch) -> None:
    """As megatron-core's selective recomputation runs it, from inputs that are detached."""
    for name in ("_get_all_rng_states", "_set_all_rng_states"):
        monkeypatch.setattr(f"megatron.core.tensor_parallel.random.{name}", lambda *states: ())
    attention = core()
    given = [each.requires_grad_() for each in inputs(HEADS)]
    out = tensor_parallel.checkpoint(lambda *three: attention(*three, None), False, *given)
    assert len(flash.calls) == 1
    upstream = torch.randn(S, B, HEADS * D)
    out.backward(upstream)
    assert len(flash.calls) == 3, "forward, forward again, backward"
    for got, wanted in zip((out, *(each.grad for each in given)), expected(given, upstream), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(
    ("layers", "rotates", "wanted"),
    [
        ("torch", False, FlashAttentionApart),
        ("torch", True, FlashAttention),
        ("transformer_engine", False, FlashAttention),
        ("transformer_engine", True, FlashAttention),
    ],
)
def test_layers_have_it_where_the_configuration_says_so(
    layers: str, rotates: bool, wanted: type[FlashAttention], monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = transformer_engine_layers(monkeypatch) if layers == "transformer_engine" else torch_layers
    have_layers(monkeypatch, module, [False])
    config = transformer_config(job(runtime={"attention_backend": "flash"}), CPU, "torch")
    assert not config.flash_attention, "as generation builds a model, with a cache of keys and values"
    config.rotates_projection = rotates
    for chosen in (False, True):
        config.flash_attention = chosen
        [layer] = module.block_spec(config, None).layer_specs
        found = layer.submodules.self_attention.submodules.core_attention
        assert (found is wanted) == chosen


class Alone:
    """What the ranks agree on where there are two: another one that says what it is told to."""

    def __init__(self, other: str | None = None) -> None:
        self._other = other

    def gather_to_first(self, value: Any) -> list[Any]:
        return [value, self._other]

    def from_first(self, value: Any) -> Any:
        return value


@pytest.fixture
def installed(flash: FakeFlash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package, on a Hopper GPU."""
    folder = tmp_path / "flash_attn_4-4.0.0b36.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: flash-attn-4\nVersion: 4.0.0b36\n")
    monkeypatch.syspath_prepend(tmp_path)
    show_gpus(monkeypatch, get_device_capability=(9, 0))
    for name in ("ENABLED", "DIR"):
        monkeypatch.delenv(f"FLASH_ATTENTION_CUTE_DSL_CACHE_{name}", raising=False)
    return folder


def choose(job: JobSpec, device: Device = GPU, other: str | None = None, *, is_first: bool = True) -> bool:
    control: Any = Alone(other)
    ranks = Ranks(
        rank=0 if is_first else 1, world_size=2, tp=0, tp_size=1, pp=0, pp_size=1, dp=0, dp_size=2, num_chunks=1
    )
    return choose_attention(job, device, ranks, control)


def demanding(name: str) -> JobSpec:
    return job(runtime={"attention_backend": name})


@pytest.mark.parametrize(("groups", "tp", "queries"), [(4, 1, 1), (4, 2, 1), (2, 1, 2), (1, 1, 4), (1, 2, 2)], ids=str)
def test_heads_like_a_rank_s_are_tried(groups: int, tp: int, queries: int, installed: Path, flash: FakeFlash) -> None:
    model = {"hidden_size": 256, "num_attention_heads": 4, "num_query_groups": groups, "seq_length": 1024}
    assert choose(job(model=model, parallelism=layout(tp=tp)))
    there, back = flash.calls
    assert there["q"].shape == back["dq"].shape == (1, 512, queries, 64)
    assert there["k"].shape == back["dk"].shape == (1, 512, 1, 64)
    assert there["q"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: uncorrectable ECC error")],
    ids=str,
)
def test_what_the_gpu_fails_at_is_no_fault_of_the_package(
    error: Exception, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*tensors: Any) -> Any:
        raise error

    monkeypatch.setattr(flash_availability, "attend", fails)
    with pytest.raises(type(error), match="CUDA"):
        choose(demanding("auto"))


def test_a_machine_that_has_it(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert choose(demanding("auto"))
    assert choose(demanding("flash"))
    assert not choose(demanding("fused"))
    assert not choose(job(model={"attention_dropout": 0.1, "hidden_size": 256}, runtime={"attention_backend": "auto"}))
    assert not capsys.readouterr().out


OBSTACLES = {
    "a CPU": "it was measured on Hopper GPUs, and this is cpu",
    "an older GPU": "it was measured on Hopper GPUs, and this is NVIDIA H200",
    "broken": "flash-attn-4 4.0.0b36 cannot be imported: no cutlass",
    "another": "flash-attn-4 4.0.0b36 has other functions than 4.0.0b36",
    "without": "flash-attn-4 4.0.0b36 has other functions than 4.0.0b36",
    "no compiler": "flash-attn-4 4.0.0b36 fails here: ValueError: no such instruction",
    "no way back": "flash-attn-4 4.0.0b36 fails here: ValueError: no such instruction",
}


@pytest.mark.parametrize("why", OBSTACLES)
def test_a_machine_that_has_no_way(
    why: str, installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who demands it is told; any other job trains without, and its log says why."""
    module: Any = sys.modules["flash_attn.cute.interface"]
    if why == "an older GPU":
        show_gpus(monkeypatch, get_device_capability=(8, 0))
    if why == "broken":

        def fails() -> Any:
            raise ImportError("no cutlass\nat all")

        monkeypatch.setattr(flash_availability, "interface", fails)
    if why == "another":
        module._flash_attn_bwd = lambda q, k, v: None
    if why == "without":
        del module._flash_attn_fwd
    if why in ("no compiler", "no way back"):

        def compiled(*tensors: Any, **options: Any) -> Any:
            raise ValueError("no such instruction\nat all")

        name = "_flash_attn_fwd" if why == "no compiler" else "_flash_attn_bwd"
        monkeypatch.setattr(module, name, functools.wraps(getattr(module, name))(compiled))
    device = CPU if why == "a CPU" else GPU
    assert not choose(demanding("auto"), device)
    told = f"attention is the layers' own, not FlashAttention 4: {OBSTACLES[why]} (rank 0)\n"
    assert capsys.readouterr().out == told
    with refused("unavailable_flash_attention", OBSTACLES[why]):
        choose(demanding("flash"), device)
    assert not choose(demanding("auto"), device, is_first=False)
    assert not capsys.readouterr().out


def test_ranks_agree(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not choose(demanding("auto"), other="flash-attn-4 is not installed")
    assert capsys.readouterr().out.endswith("flash-attn-4 is not installed (rank 1)\n")
    with refused("unavailable_flash_attention", "rank 1"):
        choose(demanding("flash"), other="flash-attn-4 is not installed")


def test_where_it_is_not_installed_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert not choose(demanding("auto"))
    assert not capsys.readouterr().out
    with refused("unavailable_flash_attention", "flash-attn-4"):
        choose(demanding("flash"))


def test_what_it_compiles_is_kept_where_it_can_be(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enabled, place = (f"FLASH_ATTENTION_CUTE_DSL_CACHE_{name}" for name in ("ENABLED", "DIR"))
    assert choose(demanding("auto"))
    assert os.environ[enabled] == "1"
    assert Path(os.environ[place]).parent.parent == Path(os.environ["XDG_CACHE_HOME"])
    assert Path(os.environ[place]).is_dir()
    monkeypatch.setenv(enabled, "0")
    monkeypatch.delenv(place)
    keep_compiled()
    assert (os.environ[enabled], os.environ.get(place)) == ("0", None), "the user's word"


def test_where_nothing_can_be_locked_nothing_is_kept(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "fcntl.flock", errno.ENOLCK)
    assert choose(demanding("auto"))
    assert "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED" not in os.environ
