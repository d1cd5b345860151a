"""Nothing is skipped for speed: on text ours has the losses of megatron-core itself, from the same weights and samples.

At size both train 100 steps in bf16 or FP8 (benchmarks/plain_loop.py is the peer). A small model is trained in fp32 as
well: ours in bf16 is as near to that as the peer in bf16 is. What is measured is kept in $MEASURED:

    MEASURED=runs/measured python -m pytest tests/gpu/test_same_losses.py -s
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from support.faults import Ranks
from support.flash import needs_flash
from support.measured import Measured, Meter, needs_gpus, needs_memory
from support.peer import ROWS, peer_meter
from support.shipped import SHIPPED
from support.training import four_layer_job

from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

STEPS, LAST = 100, 10
FIRST_APART, LAST_APART = {"1.7b-fp8": 5e-3}, {"1.7b-fp8": 0.01}
_FIRST, _LAST = 5e-4, 0.005
"""How far ours may be from the peer, relatively: in the first step, which the weights alone decide, and the means of
the last ten steps; the rows that may be farther, by their names. One training at two layouts was up to 0.13 % from
itself (docs/benchmarks/results.md), FP8 up to 0.9 % from bf16.
"""
_BEGINNING = 8
"""Steps: in bf16 losses were at most 2.2e-5 and norms 9e-5 apart in them."""
_CALM_RATE = {"gpt-1.7b": 5e-5, "gpt-7.1b": 1.5e-5}
"""At which rounding does not grow: at 2e-4, warmed up in ten steps, the peer's own two runs of 1.7B ended 1.9 % apart,
and here ours and the peer's 0.005 % (docs/benchmarks/results.md). Twice the width takes half the rate, and
half the sequences in a step less: at 5e-5 two runs of ours of 7.1B ended 0.9 % apart, one of them after a loss of 4.0
in place of 2.9 (docs/benchmarks/results.md).
"""
COMPARED = ("1.7b", "1.7b-fp8", "1.7b-dp2", "1.7b-pp2-vp2", "7.1b-tp2", "7.1b-tp2-1x4", "7.1b-tp2-dp2")
VARIANTS = {
    "flash": ["runtime.attention_backend=flash"],
    "captured": ["runtime.attention_backend=fused", "runtime.cuda_graphs=true"],
    "flash-captured": ["runtime.attention_backend=flash", "runtime.cuda_graphs=true"],
}
"""How else ours trains the row of one GPU."""
SMALL = {
    **{"hidden_size": 512, "num_attention_heads": 8, "seq_length": 512, "vocab_size": 8192},
    **{"position_embedding_type": "rope", "add_bias_linear": False, "untie_embeddings_and_output_weights": True},
}
FARTHER, SMALL_LAST = 1.5, 0.005
"""How many times as far from fp32 as the peer ours may be, by root mean squares over the steps, and how far the means
of the last ten steps. While the learning rate warms up, steps are smaller than what bf16 rounds weights by: then the
loss falls fast, and any bf16 is up to 6 % from fp32, torch's on a CPU as well.
"""


def row_job(name: str, text: str, variant: str | None = None) -> JobSpec:
    """A row as a job; `text` is the prefix of a data set."""
    row = ROWS[name]
    own = ["runtime.attention_backend=fused"] if variant is None else VARIANTS[variant]
    rate = _CALM_RATE[row.job]
    calm = [f"optimizer.lr={rate}", f"optimizer.min_lr={rate / 10}"]
    calm += ["schedule.lr_warmup_iters=30", "model.init_method_std=0.01"]
    job = row.at_size("-".join(filter(None, ("same", name, variant))), STEPS, [*calm, *own])
    return job.model_copy(update={"data": data_of(row.job, text)})


def data_of(job: str, text: str) -> object:
    """The section of a job that is to train on text."""
    return load_job([SHIPPED[job]], ["data.random_tokens=false", f"data.blend=[{text}]"]).job.data


def small_job(text: str, dtype: str, layers: str) -> JobSpec:
    """The small model; `text` is the prefix of a data set."""
    job = four_layer_job(
        f"small-{dtype}",
        model=SMALL,
        precision={"dtype": dtype},
        runtime={"layers": layers},
        optimizer={"lr": 3e-4},  # at 1e-3 a loss jumped by a quarter: too restless to be compared
        schedule={"train_iters": STEPS, "lr_warmup_iters": 10},
    )
    return job.model_copy(update={"data": data_of("gpt-1.7b", text)})


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file; `text` is the prefix of a data set."""
    small = [small_job(text, "fp32", "torch"), small_job(text, "bf16", "transformer_engine")]
    varied = [row_job("1.7b", text, variant) for variant in VARIANTS]
    return [*(row_job(name, text) for name in COMPARED), *varied, *small]


@pytest.fixture(scope="module")
def both(ranks: Ranks, kept: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Meter, Meter]:
    """What trains ours, and what trains the peer."""
    scratch = tmp_path_factory.mktemp("same")
    ours = Meter(ranks.starter, scratch / "ours", kept / "ours")
    return ours, peer_meter(ranks.starter, scratch / "plain", kept / "plain")


def apart(one: Measured, other: Measured) -> list[float]:
    """The relative difference of the losses of each step."""
    return [a / b - 1 for a, b in zip(one.losses, other.losses, strict=True)]


def compared(what: str, one: Measured, other: Measured) -> tuple[float, float]:
    """Say how far two trainings are apart. Returns that of the first step and of the means of the last."""
    for each in (one, other):
        assert each.outcome == "measured", each.message
        assert len(each.losses) == STEPS
    steps = [abs(difference) for difference in apart(one, other)]
    ends = [statistics.mean(each.losses[-LAST:]) for each in (one, other)]
    last = ends[0] / ends[1] - 1
    print(
        f"\nRESULT {what}: losses {one.losses[0]:.4f} and {other.losses[0]:.4f} to {ends[0]:.4f} and {ends[1]:.4f} "
        f"(mean of the last {LAST}: {last:+.3%}); first step {steps[0]:.1e}, largest of steps 1 to 10 "
        f"{max(steps[:10]):.1e}, of all {max(steps):.1e} at step {steps.index(max(steps)) + 1}, median "
        f"{statistics.median(steps):.1e}"
    )
    return steps[0], abs(last)


def begins_the_same(one: Measured, other: Measured) -> None:
    """Before rounding has grown, which it does about twofold each step: losses, and norms of gradients and so of what
    updates have done.
    """
    for ours, theirs in ((one.losses, other.losses), (one.grad_norms, other.grad_norms)):
        differences = [abs(a / b - 1) for a, b in zip(ours[:_BEGINNING], theirs[:_BEGINNING], strict=True)]
        assert max(differences) < _FIRST, differences


@pytest.mark.parametrize("name", COMPARED)
def test_ours_learns_what_the_peer_learns(name: str, both: tuple[Meter, Meter], text: str) -> None:
    job = row_job(name, text)
    needs_gpus(job.world_size, "transformer_engine")
    needs_memory(job, "transformer_engine")
    ours, plain = (meter.measure(job) for meter in both)
    first, last = compared(f"{name}, ours and plain", ours, plain)
    assert ours.losses[0] - ours.losses[-1] > 4, "it learned"
    assert first < FIRST_APART.get(name, _FIRST)
    if name not in FIRST_APART:
        begins_the_same(ours, plain)
    assert last < LAST_APART.get(name, _LAST)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_learns_what_the_peer_learns(variant: str, both: tuple[Meter, Meter], text: str) -> None:
    job = row_job("1.7b", text, variant)
    needs_gpus(1, "transformer_engine")
    if job.runtime.attention_backend == "flash":
        needs_flash()
    ours, plain = both
    first, last = compared(f"1.7b {variant}, ours and plain", ours.measure(job), plain.measure(row_job("1.7b", text)))
    assert first < _FIRST
    begins_the_same(ours.measure(job), plain.measure(row_job("1.7b", text)))
    assert last < _LAST


def test_the_peer_is_as_far_from_itself(
    ranks: Ranks, both: tuple[Meter, Meter], text: str, kept: Path, tmp_path: Path
) -> None:
    """What Transformer Engine's kernels alone make of it, which add in an order of their own each time."""
    needs_gpus(1, "transformer_engine")
    job = row_job("1.7b", text)
    again = peer_meter(ranks.starter, tmp_path, kept / "again").measure(job)
    first, last = compared("1.7b, plain and plain again", again, both[1].measure(job))
    assert first < _FIRST
    assert last < _LAST


def test_ours_is_as_near_to_fp32_as_the_peer(both: tuple[Meter, Meter], text: str) -> None:
    needs_gpus(1, "transformer_engine")
    ours, plain = both
    exact = ours.measure(small_job(text, "fp32", "torch"))
    job = small_job(text, "bf16", "transformer_engine")
    far = []
    for what, meter in (("ours", ours), ("plain", plain)):
        measured = meter.measure(job)
        _, last = compared(f"small model, {what} in bf16 and fp32", measured, exact)
        assert last < SMALL_LAST
        far.append(statistics.mean(step**2 for step in apart(measured, exact)) ** 0.5)
    print(f"\nRESULT small model in bf16 from fp32, root mean square: ours {far[0]:.1e}, plain {far[1]:.1e}")
    assert far[0] < FARTHER * far[1]
