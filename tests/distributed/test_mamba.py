"""Hybrids of state space layers, attention and MLPs: layouts agree, and the runtime builds what `plan` counts.

mamba-ssm's kernels need a GPU: its scan is done here by one in plain torch (tests/support/mamba_stub.py).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faults import WEIGHTS_ALONE, Ranks
from support.mamba_stub import INSTALL
from support.matrix import FAMILIES, IN_TESTS, TOLERANCE
from support.matrix import LAYOUTS as OF_MATRIX
from support.trained_together import TrainedTogether, selected
from support.trained_weights import weights_apart
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.models.blocks.state_space.weights import PROJECTED
from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("trains on real ranks")]

STUBS = f"""
{INSTALL}
import os
from orchestrator.runtime import startup
_build = startup.build_chunks
def build_chunks(*arguments):
    chunks = _build(*arguments)
    count = sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters())
    with open(f"{{sys.argv[1]}}/parameters-{{os.environ['RANK']}}", "w") as file:
        file.write(str(count))
    return chunks
startup.build_chunks = build_chunks
"""
STEPS = 4
CELLS = IN_TESTS["tests/distributed/test_mamba.py::test_layouts_agree"]
CELLS_OF_EXPERTS = IN_TESTS["tests/distributed/test_mamba.py::test_layouts_agree_with_experts"]
LAYOUTS: dict[str, dict[str, Any]] = {
    **{name: OF_MATRIX[name] for name in CELLS},
    "tp2-pp2": layout(tp=2, pp=2),
    "tp2-cp2": layout(tp=2, context_parallel_size=2),  # two ranks have heads of each group
}


def hybrid(name: str, parallelism: dict[str, Any], family: str = "hybrid", **sections: Any) -> JobSpec:
    return tiny_job(
        name,
        model={**FAMILIES[family], **sections.pop("model", {})},
        parallelism=parallelism,
        **{
            "batch": {"micro_batch_size": 4 // (parallelism.get("data_parallel_size") or 1)},
            "schedule": {"train_iters": STEPS, "lr_warmup_iters": 1},
            **sections,
        },
    )


ADAPTERS = {"lora": {"rank": 3, "alpha": 6.0}}
ADAPTED = {name: hybrid(name, LAYOUTS.get(name, {}), model=ADAPTERS) for name in ("alone", "tp2-sp", "tp2-pp2")}


def with_experts(name: str, parallelism: dict[str, Any], **sections: Any) -> JobSpec:
    return hybrid(name, parallelism, "hybrid-experts", optimizer={"adam_eps": 1e-6}, **sections)


IN_BF16 = hybrid("bf16", OF_MATRIX["tp2-sp"], precision={"dtype": "bf16"})
EXPERTS = {
    "one": with_experts("one", {}),
    "one of two": with_experts("one", {}, batch={"micro_batch_size": 2}),
    "bf16": with_experts("bf16", OF_MATRIX["tp2-sp"], precision={"dtype": "bf16"}),
    **{name: with_experts(name, OF_MATRIX[name]) for name in CELLS_OF_EXPERTS},
}
"""Experts are balanced within a micro-batch: of those of two sequences one process is beside two replicas."""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stubs") / "stubs.py"
    path.write_text(STUBS)
    return path


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, stubs: Path, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[str]:
    """The jobs at their layouts."""
    jobs = {"one": hybrid("one", {}), "bf16": IN_BF16}
    jobs |= {name: hybrid(name, LAYOUTS[name]) for name in selected(request, "name")}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("layouts"), jobs, stubs, WEIGHTS_ALONE)


@pytest.fixture(scope="module")
def reference(trained: TrainedTogether[str]) -> RunDir:
    return trained["one"]


@pytest.fixture(scope="module")
def trained_with_experts(ranks: Ranks, stubs: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedTogether[str]:
    return TrainedTogether(ranks, tmp_path_factory.mktemp("experts"), EXPERTS, stubs, WEIGHTS_ALONE)


def assert_same(job: JobSpec, run: RunDir, reference: RunDir) -> None:
    """Losses, gradient norms and weights are those of one process, and each rank holds what the plan counts."""
    for key in ("train/loss", "train/grad_norm"):
        assert largest_difference(values(reference, key), values(run, key)) < 2e-5
    assert weights_apart(reference, run) == {}
    counted = parameters(job, vocabulary(job).padded_size).per_rank
    tp = job.parallelism.tensor_model_parallel_size
    built = [int((run.path / f"parameters-{rank}").read_text()) for rank in range(job.world_size)]
    assert [each.parameters for each in counted] == [built[each.pp * tp + each.tp] for each in counted]


def assert_close_in_bf16(run: RunDir, reference: RunDir) -> None:
    assert largest_difference(losses(reference), losses(run)) < TOLERANCE["bf16"]
    key = "train/grad_norm"
    assert largest_difference(values(reference, key), values(run, key)) < 10 * TOLERANCE["bf16"]


def test_adapters_learn_the_same_at_layouts(ranks: Ranks, stubs: Path, tmp_path: Path) -> None:
    """Beside both matrices of a state space layer: rows of the first are stored by what they give, whichever rank has
    them.
    """
    trained = TrainedTogether(ranks, tmp_path, ADAPTED, stubs)
    alone = trained["alone"]
    for name, job in ADAPTED.items():
        run = trained[name]
        for key in ("train/loss", "train/grad_norm"):
            assert largest_difference(values(alone, key), values(run, key)) < 2e-5, name
        assert weights_apart(alone, run) == {}
        counted = parameters(job, vocabulary(job).padded_size).per_rank
        tp = job.parallelism.tensor_model_parallel_size
        built = [int((run.path / f"parameters-{rank}").read_text()) for rank in range(job.world_size)]
        assert [each.parameters for each in counted] == [built[each.pp * tp + each.tp] for each in counted]
    stored = StoredWeights(committed(alone)[-1].path).keys()
    rows = [key for key in stored if key.startswith("decoder.") and "in_proj.lora.b" in key]
    assert len(rows) == 2 * len(PROJECTED)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_agree(name: str, trained: TrainedTogether[str], reference: RunDir) -> None:
    assert_same(hybrid(name, LAYOUTS[name]), trained[name], reference)
    assert losses(trained[name])[STEPS] < losses(trained[name])[1]


def test_bf16(trained: TrainedTogether[str], reference: RunDir) -> None:
    """Matrices in 16 bits, decays and steps of time in fp32: within the digits of bf16."""
    assert_close_in_bf16(trained["bf16"], reference)


@pytest.mark.parametrize("cell", CELLS_OF_EXPERTS)
def test_layouts_agree_with_experts(cell: str, trained_with_experts: TrainedTogether[str]) -> None:
    run, same = trained_with_experts[cell], "one of two" if cell == "ep2" else "one"
    assert_same(EXPERTS[cell], run, trained_with_experts[same])
    key = "train/moe/load_balancing_loss"
    assert 0.99 < values(run, key)[1] < 1.5
    assert largest_difference(values(trained_with_experts[same], key), values(run, key)) < 2e-5


def test_experts_in_bf16(trained_with_experts: TrainedTogether[str]) -> None:
    assert_close_in_bf16(trained_with_experts["bf16"], trained_with_experts["one"])


@pytest.mark.skipif(
    importlib.util.find_spec("mamba_ssm") is not None,
    reason="mamba-ssm is installed, and this is what is said without it",
)
def test_ratios_and_kernels_that_are_not_there(ranks: Ranks, tmp_path: Path) -> None:
    """Without the stubs the run ends with what to install, and not with a traceback."""
    job = hybrid("none", {}, model={"hybrid_override_pattern": None, "hybrid_attention_ratio": 0.25})
    run = make_run(tmp_path, job)
    assert ranks.start(run, job).wait() == 1
    [record] = (json.loads(path.read_text()) for path in run.path.glob("exits/test/*.json"))
    assert record["cause"] == "user_error"
    assert "need mamba-ssm and causal-conv1d and einops, which this Python lacks: pip install" in record["message"]
    assert "Traceback" not in run.rank_log(0).read_text()


@pytest.mark.parametrize(("make", "of"), [(hybrid, "trained"), (with_experts, "trained_with_experts")])
def test_a_checkpoint_goes_on_at_another_layout(
    request: pytest.FixtureRequest, ranks: Ranks, stubs: Path, tmp_path: Path, make: Callable[..., JobSpec], of: str
) -> None:
    reference = request.getfixturevalue(of)["one"]
    schedule = {"train_iters": STEPS // 2, "lr_warmup_iters": 1, "lr_decay_iters": STEPS}
    first = make("job", layout(tp=2, sequence_parallel=make is with_experts), schedule=schedule)
    run = ranks.must_train(make_run(tmp_path, first), first, inject=stubs)
    second = make("job", layout(pp=2))
    ranks.must_train(make_run(tmp_path, second), second, inject=stubs, launch_id="second")
    assert [event["iteration"] for event in events(run, "resumed")] == [STEPS // 2]
    assert largest_difference(losses(reference), losses(run)) < 2e-5
    assert weights_apart(reference, run) == {}
