"""Hybrids of state space layers, attention and MLPs: layouts agree, and the runtime builds what `plan` counts.

mamba-ssm's kernels need a GPU: its scan is done here by one in plain torch (tests/support/mamba_stub.py).
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from support import mamba_stub
from support.faults import WEIGHTS_ALONE, Ranks
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
sys.path.insert(0, {str(Path(mamba_stub.__file__).parent)!r})
import mamba_stub
mamba_stub.install()

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
LAYOUTS: dict[str, dict[str, Any]] = {**{name: OF_MATRIX[name] for name in CELLS}, "tp2-pp2": layout(tp=2, pp=2)}


def hybrid(name: str, parallelism: dict[str, Any], **sections: Any) -> JobSpec:
    return tiny_job(
        name,
        model={**FAMILIES["hybrid"], **sections.pop("model", {})},
        parallelism=parallelism,
        batch={"micro_batch_size": 4 // (parallelism.get("data_parallel_size") or 1)},
        **{"schedule": {"train_iters": STEPS, "lr_warmup_iters": 1}, **sections},
    )


ADAPTERS = {"lora": {"rank": 3, "alpha": 6.0}}
ADAPTED = {name: hybrid(name, LAYOUTS.get(name, {}), model=ADAPTERS) for name in ("alone", "tp2-sp", "tp2-pp2")}
IN_BF16 = hybrid("bf16", OF_MATRIX["tp2-sp"], precision={"dtype": "bf16"})


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stubs") / "stubs.py"
    path.write_text(f"import sys\n{STUBS}")
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


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_agree(name: str, trained: TrainedTogether[str], reference: RunDir) -> None:
    job, run = hybrid(name, LAYOUTS[name]), trained[name]
    for key in ("train/loss", "train/grad_norm"):
        assert largest_difference(values(reference, key), values(run, key)) < 2e-5
    assert weights_apart(reference, run) == {}
    assert losses(run)[STEPS] < losses(run)[1]
    counted = parameters(job, vocabulary(job).padded_size).per_rank
    tp = job.parallelism.tensor_model_parallel_size
    built = [int((run.path / f"parameters-{rank}").read_text()) for rank in range(job.world_size)]
    assert [each.parameters for each in counted] == [built[each.pp * tp + each.tp] for each in counted]


def test_bf16(trained: TrainedTogether[str], reference: RunDir) -> None:
    """Matrices in 16 bits, decays and steps of time in fp32: within the digits of bf16."""
    run = trained["bf16"]
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


def test_a_checkpoint_goes_on_at_another_layout(ranks: Ranks, stubs: Path, reference: RunDir, tmp_path: Path) -> None:
    schedule = {"train_iters": STEPS // 2, "lr_warmup_iters": 1, "lr_decay_iters": STEPS}
    first = hybrid("job", layout(tp=2), schedule=schedule)
    run = ranks.must_train(make_run(tmp_path, first), first, inject=stubs)
    second = hybrid("job", layout(pp=2))
    ranks.must_train(make_run(tmp_path, second), second, inject=stubs, launch_id="second")
    assert [event["iteration"] for event in events(run, "resumed")] == [STEPS // 2]
    assert largest_difference(losses(reference), losses(run)) < 2e-5
    assert weights_apart(reference, run) == {}
