"""What a profile of a step is made of: intervals, names of kernels, and traces."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime import triton_kernels
from orchestrator.runtime.bench.intervals import IDLE, Span, cut, innermost, partition, union
from orchestrator.runtime.bench.kernels import kind_of_communication, part_of_kernel, part_of_operation
from orchestrator.runtime.bench.measurement import PROFILED, Benchmark
from orchestrator.runtime.bench.trace import ANNOTATION, END, PASSES, UPDATE, breakdown, read_trace

STARTED = re.compile(r"^ +(_\w+)\[", re.MULTILINE)
"""Kernels, as the functions of a module start them on a grid of programs."""
TIMES = st.integers(0, 40)
SPANS = st.lists(st.builds(Span, st.sampled_from("abc"), TIMES, TIMES), max_size=12)


def rank(label: str) -> int:
    return "abc".index(label)


def at(spans: list[Span], moment: float) -> set[str]:
    """Labels that go on at a moment."""
    return {each.label for each in spans if each.start <= moment < each.end}


@given(SPANS, TIMES, TIMES)
def test_shares_add_up_and_each_moment_goes_to_the_first_in_rank(spans: list[Span], one: int, other: int) -> None:
    start, end = sorted((one, other))
    shares = partition(spans, start, end, rank)
    assert sum(shares.values()) == end - start
    expected = dict.fromkeys(shares, 0.0)
    for moment in range(start, end):  # edges are whole numbers, so nothing changes in between
        expected[min(at(spans, moment), default=IDLE)] += 1
    assert shares == expected


@given(SPANS, TIMES, TIMES)
def test_union_is_what_is_not_idle(spans: list[Span], one: int, other: int) -> None:
    start, end = sorted((one, other))
    inside = cut(spans, start, end)
    assert union(inside) == (end - start) - partition(spans, start, end, rank)[IDLE]
    assert all(start <= each.start < each.end <= end for each in inside)


@st.composite
def calls(draw: st.DrawFn, start: int = 0, end: int = 60, depth: int = 0) -> list[Span]:
    """Operations of one thread: any two lie apart, or one inside the other."""
    found: list[Span] = []
    edges = sorted(draw(st.lists(st.integers(start, end), max_size=6)))
    for first, last in zip(edges[::2], edges[1::2], strict=False):
        if first < last:
            found.append(Span(draw(st.sampled_from("abc")), first, last))
            found += draw(calls(first, last, depth + 1)) if depth < 2 else []
    return found


@given(calls())
def test_time_goes_to_the_operation_that_was_called_last(nested: list[Span]) -> None:
    flat = innermost(nested, lambda name, outer: name)
    assert sum(each.length for each in flat) == union(nested), "what is covered stays covered, once"
    for moment in range(60):
        open_ones = [each for each in nested if each.start <= moment < each.end]
        shortest = min((each.length for each in open_ones), default=0)
        last = {each.label for each in open_ones if each.length == shortest}
        now = at(flat, moment)
        assert len(now) <= 1
        assert now <= last
        assert bool(now) == bool(open_ones)


KERNELS = {
    "gemm": [
        "nvjet_tst_192x192_64x4_2x1_v_bz_TNT",
        "nvjet_qqtst_128x256_128x4_2x1_v_bz_TNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>>>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true>",
        "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
        "triton_tem_fused_addmm_0",
        "_multiply",
        "_add_products",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>",
    ],
    "attention": [
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1_kernel0_0",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_bf16_knob_7_128x64x128_4x1x1_kernel0_0",
        "void cudnn::fusion::compute_dot_do_o_specialized<true, true, __nv_bfloat16, 128, 128>",
        "void cudnn::fusion::convert_dq_to_16bits<__nv_bfloat16, 128>",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 64, 64, 4>>",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
        "void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128, 64, 128, 8>>",
        "triton_tem_fused_flex_attention_0",
        "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10, false, false>",
    ],
    "memory_bound": [
        *("_norm", "_norm_gradient", "_sum_of_norm", "_gated", "_gated_gradient"),
        "void cublasLt::epilogue::impl::globalKernelBgradAB_v2<8, 128, __nv_bfloat16, float, float>(int, int)",
        "triton_poi_fused_mul_silu_split_0",
        "triton_poi_fused__to_copy_cat_exp_mul_sigmoid_sub_1",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2",
        "triton_poi_fused_add_0",
        "triton_poi_fused_add_mul_pow_tanh_0",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<transformer_engine::Kernel_traits>",
        "void transformer_engine::(anonymous namespace)::dgated_act_kernel<float, __nv_bfloat16>",
        "void fused_rope_forward_kernel<__nv_bfloat16>(__nv_bfloat16 const*, float const*, __nv_bfloat16*)",
        "void transformer_engine::detail::cast_transpose_fused_kernel<false, false, float>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4>",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2>",
        "void at::native::embedding_backward_feature_kernel<c10::BFloat16, float, long>",
        "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float>>>",
        "triton_poi_fused_embedding_dense_backward_index_put_0",
        "Memset (Device)",
        "Memcpy DtoD (Device -> Device)",
        "_rotate",
        "_gelu",
        "_gelu_gradient",
        "_permute_kernel",
        "_row_id_map_pass_2_kernel",
        "_sort_chunks_by_map_kernel",
        "_weighted_gate_gradient",
        "_add_bias_gradients",
        "_add_share_gradients",
        "_chunk_scan_fwd_kernel",
        "_add_branch",
        "_branch_gradient",
        "_sum_of_bias",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, "
        "at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>",
    ],
    "loss": [
        "triton_red_fused__to_copy_max_0",
        "triton_red_fused_bitwise_or_cat_exp_ge_index_index_put_lift_fresh_lt_sub_sum_1",
        "triton_poi_fused_div_log_sub_2",
        "triton_poi_fused__to_copy_index_put_mul_sub_3",
        "online_softmax_cross_entropy_kernel_logits",
        "cross_entropy_kernel",
        "_cross_entropy_statistics",
        "_cross_entropy_gradient",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, "
        "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>",
    ],
    "optimizer": [
        "_adam_update",
        "void transformer_engine::multi_tensor_apply_kernel<transformer_engine::AdamFunctorMaster<__nv_bfloat16>>",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, "
        "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>>",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor<T>>",
    ],
    "communication": [
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_float",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop",
        "Memcpy PtoP (Device -> Device)",
    ],
    "host_copies": ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"],
    "other": ["void somebody_elses::unheard_of<float>"],
}


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, names in KERNELS.items() for name in names])
def test_kernels_are_known_by_name(part: str, name: str) -> None:
    assert part_of_kernel(name) == part


def test_no_kernel_of_ours_is_unknown() -> None:
    started = [
        name for module in Path(triton_kernels.__path__[0]).glob("*.py") for name in STARTED.findall(module.read_text())
    ]
    assert len(started) >= 10
    assert not [name for name in started if part_of_kernel(name) == "other"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "ReduceScatter"),
        ("ncclDevKernel_AllGather_RING_LL(x)", "AllGather"),
        ("ncclDevKernel_SendRecv(x)", "SendRecv"),
        ("gloo:all_reduce", "AllReduce"),
        ("gloo:recv", "SendRecv"),
        ("c10d::recv_", "SendRecv"),
        ("Memcpy PtoP (Device -> Device)", "other"),
    ],
)
def test_kinds_of_communication(name: str, kind: str) -> None:
    assert kind_of_communication(name) == kind


def test_operations_take_after_what_calls_them() -> None:
    assert part_of_operation("aten::mul", None) == "memory_bound"
    assert part_of_operation("aten::mul", "loss") == "loss"
    assert part_of_operation("aten::mm", "memory_bound") == "gemm"
    assert part_of_operation("c10d::allreduce_", "loss") == "communication"
    assert part_of_operation("autograd::engine::evaluate_function: AddmmBackward0", None) is None


def kernel(name: str, start: float, length: float, stream: int = 7) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length}


GEMM, NORM, ADAM = KERNELS["gemm"][0], KERNELS["memory_bound"][2], KERNELS["optimizer"][0]
LOSS = KERNELS["loss"][0]
ODD, GATHER = "void somebody_elses::unheard_of<float>", KERNELS["communication"][1]


def test_a_step_by_part(tmp_path: Path) -> None:
    """Two steps of which the second counts, from 100 to 200 µs; a collective has its end alone."""
    mark = "at::cuda::(anonymous namespace)::spin_kernel(long)"
    events = [
        kernel(mark, 0, 1),
        kernel(mark, 10, 1),
        kernel(mark, 90, 1),
        kernel(mark, 99, 1),  # ends at 100
        kernel("Memset (Device)", 100, 4) | {"cat": "gpu_memset"},
        kernel(mark, 104, 1),  # the passes begin at 105
        kernel(NORM, 105, 15),
        kernel(GEMM, 120, 30),
        kernel(LOSS, 150, 2),
        kernel("triton_poi_fused__to_copy_mul_unsqueeze_3", 152, 3),
        kernel(GEMM, 155, 5),
        kernel(GATHER, 115, 65, stream=20),
        kernel(ODD, 180, 2),
        kernel(mark, 183, 1),  # the update begins at 184
        kernel(NORM, 184, 1),
        kernel(ADAM, 185, 10),
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 100, "dur": 90},
        kernel(mark, 199, 1),
        kernel(GEMM, 201, 50),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    marks = [END, PASSES, UPDATE, END, PASSES, UPDATE, END]
    found = breakdown(read_trace(path, on_gpu=True), marks, on_gpu=True)
    parts = {part: round(seconds * 1e6, 6) for part, seconds in found["parts"].items() if seconds}
    assert parts == {
        "gemm": 35,
        "memory_bound": 15,
        "loss": 5,
        "optimizer": 4 + 1 + 10,
        "other": 2,
        "communication": 20,
    }
    assert found["seconds"] == pytest.approx(100e-6)
    assert sum(found["parts"].values()) + found["idle"] == pytest.approx(found["seconds"])
    assert found["communication"]["AllGather"]["seconds"] == pytest.approx(65e-6)
    assert found["communication"]["AllGather"]["exposed"] == pytest.approx(20e-6)
    assert found["classified"] == pytest.approx(1 - 2 / 72)
    assert [each["name"] for each in found["unclassified"]] == [ODD]
    largest = found["largest"][0]
    assert (largest["name"], largest["part"], largest["count"]) == (GATHER, "communication", 1)
    early = breakdown(read_trace(path, on_gpu=True)[1:], marks, on_gpu=True)
    assert early["parts"] == found["parts"], "the first moment may lie before the trace"
    with pytest.raises(ValueError, match="holds 7 of 4 marked moments"):
        breakdown(read_trace(path, on_gpu=True), marks[:4], on_gpu=True)


def test_a_step_on_the_cpu_by_part(tmp_path: Path) -> None:
    """Operations call each other, and what autograd and a loss do beside torch's operations is the host's time."""

    def operation(name: str, start: float, length: float, thread: int = 1, cat: str = "cpu_op") -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length}

    moments = [(END, 0), (PASSES, 1), (UPDATE, 8), (END, 10), (PASSES, 20), (UPDATE, 80), (END, 100)]
    events = [operation(ANNOTATION + name, when, 0.0, cat="user_annotation") for name, when in moments]
    events += [
        operation("aten::linear", 20, 20),
        operation("aten::addmm", 22, 16),
        operation("_VocabParallelCrossEntropy", 40, 20),
        operation("aten::exp", 42, 8),
        operation("gloo:all_reduce", 45, 12, thread=2, cat="user_annotation"),
        operation("aten::_fused_adamw_", 85, 5),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = breakdown(read_trace(path, on_gpu=False), [], on_gpu=False)
    parts = {part: round(seconds * 1e6, 6) for part, seconds in found["parts"].items() if seconds}
    assert parts == {"gemm": 20, "loss": 8, "communication": 7, "optimizer": 5}
    assert found["idle"] == pytest.approx((90 - 40) * 1e-6)
    alone = breakdown(read_trace(path, on_gpu=False), [], on_gpu=False, is_alone=True)
    assert alone["parts"]["communication"] == 0, "what a process sends to itself is a copy"
    assert alone["parts"]["memory_bound"] > 0
    assert alone["communication"] == {}
    assert sum(alone["parts"].values()) + alone["idle"] == pytest.approx(alone["seconds"])


class Counted(Benchmark):
    """What it does after which step."""

    def __init__(self, run: RunDir, *, keep_trace: bool) -> None:
        super().__init__(run, 2, 3, keep_trace=keep_trace)
        self.done: list[tuple[int, str, int]] = []

    def _profile(self, session: Any, number: int) -> None:
        self.done.append((self._count, "profile", number))

    def _trace(self, session: Any, number: int) -> None:
        self.done.append((self._count, "trace", number))

    def _write(self, session: Any) -> None:
        self.done.append((self._count, "write", 0))


@pytest.mark.parametrize("is_captured", [False, True])
def test_a_profile_is_prepared_where_a_graph_will_be_captured(
    is_captured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[None] = []
    monkeypatch.setattr("orchestrator.runtime.bench.measurement._prepare_for_graphs", lambda: prepared.append(None))
    session: Any = SimpleNamespace(
        network=SimpleNamespace(captured=object() if is_captured else None),
        processes=SimpleNamespace(ranks=SimpleNamespace(is_first=True), control=SimpleNamespace(barrier=lambda: None)),
    )
    Benchmark(RunDir(tmp_path), 2, 3, keep_trace=False).on_start(session)
    assert len(prepared) == is_captured


@pytest.mark.parametrize("keep_trace", [False, True])
def test_one_profile_after_the_timed_steps_and_a_trace_after_that(
    keep_trace: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time end a process."""
    monkeypatch.setattr("orchestrator.runtime.bench.measurement._moment", lambda *, on_gpu: 0.0)
    monkeypatch.setattr("orchestrator.runtime.bench.measurement._memory", lambda device: {})
    measuring = Counted(RunDir(tmp_path), keep_trace=keep_trace)
    monkeypatch.setattr(measuring, "_step_seconds", lambda session: [])
    session: Any = SimpleNamespace(processes=SimpleNamespace(device=SimpleNamespace(is_cuda=True)))
    for _ in range(2 + 3 + 2 * PROFILED):
        measuring.on_step(session)
    # What is measured is written at once: before the profile, and before the trace.
    profiled = [(5, "write", 0), *((5 + number, "profile", number) for number in range(PROFILED + 1))]
    profiled.append((5 + PROFILED, "write", 0))
    traced = [(5 + PROFILED + number, "trace", number) for number in range(PROFILED + 1)]
    assert measuring.done == profiled + (traced if keep_trace else [])
