"""Each wrong spec in wrong/ has the problems that wrong_codes.yaml lists, and what is said of these, of other wrong
jobs, of sweeps and of cluster profiles is what tests/golden/problems.txt says under each code.

That file is the one place for words; every other test asks for codes and fields. After a wanted change write it anew,
and read the difference:

    PYTHONPATH=tests python -m tests.unit.spec.test_wrong_specs
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from unittest import mock

import yaml
from support.problems import codes, problems_of

from orchestrator.cluster_profiles import load_profile
from orchestrator.data.tasks.checks import task_problems
from orchestrator.errors import Problem, render_problem
from orchestrator.planning.checks.partition_limits import what_is_refused
from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import make_plan
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.planning.warnings import judge
from orchestrator.spec.documents.composition import MAX_EXTENDS
from orchestrator.spec.loading import load_job, load_text
from orchestrator.spec.rules import check
from orchestrator.spec.rules.kernels.cuda_graphs import GRAPHS
from orchestrator.spec.rules.kernels.flash_attention import ATTENTION
from orchestrator.spec.rules.parallelism.tensor_overlap import OVERLAP
from orchestrator.spec.sections.task import TaskSpec
from orchestrator.spec.yaml.reader import read_text
from orchestrator.sweeps.loading import load_sweep
from tests.unit import test_cluster_profiles as test_profiles
from tests.unit.planning import test_adapters, test_hyperparameters, test_partition_limits, test_plan
from tests.unit.planning.conftest import build_job
from tests.unit.spec import (
    test_attention_backend,
    test_cuda_graphs,
    test_files,
    test_fp8,
    test_fully_sharded,
    test_microscaling,
    test_paths,
    test_rules,
    test_tensor_overlap,
    test_variants,
)
from tests.unit.spec.conftest import SMALL
from tests.unit.sweeps import test_expansion
from tests.unit.sweeps.conftest import JOB

WRONG = Path(__file__).parent / "wrong"
GOLDEN = Path(__file__).parents[2] / "golden" / "problems.txt"
ENVIRONMENT = {"HOME": "/homes/me", "FAST": "/fast"}
SMALL_JOBS: list[tuple[str, ...]] = [
    *test_rules.BESIDE_ANOTHER,
    *test_rules.NOT_WHOLE,
    *test_fp8.REFUSED,
    *test_microscaling.REFUSED,
    *test_variants.REFUSED,
    *((setting,) for setting in test_paths.REPLACED_BY_A_SHELL),
    *((*overrides, f"{GRAPHS}=true") for overrides, _ in test_cuda_graphs.OBSTACLES),
    *((*test_attention_backend.PLAIN, *each, f"{ATTENTION}=flash") for each, _ in test_attention_backend.OBSTACLES),
    *((*test_fully_sharded.PLAIN, *each) for each, _ in test_fully_sharded.OBSTACLES),
    *((*test_tensor_overlap.PLAIN, *each, f"{OVERLAP}=true") for each, _ in test_tensor_overlap.OBSTACLES),
    ("parallelism.fsdp=0",),
    ("parallelism.fsdp=Full",),
    ("launch.gpus_per_node=4", "parallelism.fsdp=1"),
    ("launch.gpus_per_node=4", "parallelism.fsdp=3"),
    ("launch.gpus_per_node=4", "parallelism.fsdp=2", test_fully_sharded.EXPERTS, test_fully_sharded.SPREAD),
    ("layers=foo",),
    ("seed=3",),
    ("lrr=3",),
    ("optimizer.min_lr=1",),
    ("optimizer.name=dist_muon",),
    ("optimizer.muon_momentum=0.9",),
    ("optimizer.name=muon", "optimizer.sgd_momentum=0.5"),
    ("optimizer.name=muon", "optimizer.muon_num_ns_steps=3"),
    ("optimizer.name=muon", "model.lora={rank: 4}"),
    ("optimizer.name=AdamW",),
    ("optimizer.exp_avg_dtype=fp8",),
    ("optimizer.offload_fraction=1.5",),
    ("optimizer.offload_fraction=1", "parallelism.use_distributed_optimizer=false"),
    ("runtime.train_step_arguments={a: 1}",),
    ("tracking.system_metrics_seconds=0.01",),
]
"""Overrides of the small job."""


@cache
def wrong_specs() -> dict[str, list[Problem]]:
    """The problems of each job in wrong/, loaded with the overrides in its comments (`# --set KEY=VALUE`)."""
    found = {}
    with contextlib.chdir(WRONG):
        for path in sorted(Path().glob("*.yaml")):
            lines = path.read_text(encoding="utf-8").splitlines()
            overrides = [line.removeprefix("# --set ") for line in lines if line.startswith("# --set ")]
            found[path.stem] = problems_of(partial(load_job, [path], overrides))
    return found


def wording() -> str:
    """Every problem of the cases as a person reads it, by its code."""
    told: dict[str, dict[str, None]] = defaultdict(dict)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), mock.patch.dict(os.environ, ENVIRONMENT):
        os.environ.pop("GONE", None)
        for problem in chain(*wrong_specs().values(), small_jobs(), planned_jobs(), other_files()):
            told[problem.code or ""][render_problem(problem).replace("\0", "␀").replace(folder, "/here")] = None
    return "\n\n".join("\n\n".join((f"# {code}", *told[code])) for code in sorted(told)) + "\n"


def small_jobs() -> Iterator[Problem]:
    """Of the small job under overrides, and on a cluster."""
    for overrides in SMALL_JOBS:
        yield from problems_of(partial(load_text, SMALL, overrides=overrides))
    for launch, profile, _ in test_partition_limits.REFUSED:
        yield from what_is_refused(test_partition_limits.job(**launch), test_partition_limits.cluster(**profile))
    for schedule, _ in test_hyperparameters.UNDER_A_RAMP:
        yield from check(test_hyperparameters.under_a_ramp(schedule))
    for sections, _ in (*test_hyperparameters.WRONG, *test_adapters.REFUSED):
        yield from check(build_job(**sections))


def planned_jobs() -> Iterator[Problem]:
    """Of jobs that keep the rules, and of what they need."""
    for gpu, recipe in (("A100", "delayed"), ("L40S", "blockwise"), ("H100", "mxfp8")):
        plan = make_plan(build_job(precision={"fp8": {"recipe": recipe}}, launch={"gpu": gpu}))
        yield from judge(plan, forecast(plan), None).stops
    yield from make_plan(build_job(data=test_plan.AWAY)).warnings
    Path("vocab.txt").write_text("[UNK]\n[PAD]\n")
    data = {"random_tokens": False, "blend": ["a"], "tokenizer": {"type": "wordpiece", "path": "vocab.txt"}}
    lost = {**data, "tokenizer": {"type": "wordpiece", "path": "nowhere.txt"}}
    for sections in (
        {"model": {"architecture": "bert"}, "data": data},
        {"model": {"vocab_size": 1}, "data": data},
        {"model": {"vocab_size": None}, "data": lost},
    ):
        yield from problems_of(partial(vocabulary, build_job(**sections)))
    for files in (["nowhere"], ["."]):
        yield from task_problems(TaskSpec(name="mnli", train=files))


def other_files() -> Iterator[Problem]:
    """Of files that are no jobs, of sweeps and of profiles."""
    for content in test_files.NO_SPECS:
        test_files.SPEC.write_bytes(content)
        yield from problems_of(lambda: load_job([test_files.SPEC]))
        script = read_text(test_files.SPEC, "script")
        yield from [script] if isinstance(script, Problem) else []
    for name in test_files.NO_FILES:
        yield from problems_of(partial(load_job, [Path(name)]))
    for batch in test_files.SLIPS:
        yield from test_files.problems_of_slip(batch)
    job, sweep, profile = Path("job.yaml"), Path("sweep.yaml"), Path("clusters/wrong.yaml")
    for number in range(MAX_EXTENDS + 1):
        Path(f"{number}.yaml").write_text(f"extends: {number + 1}.yaml\n")
    yield from problems_of(lambda: load_job([Path("0.yaml")]))
    job.write_text(f"{JOB}sweep:\n  grid: {{lr: [1, 2]}}\n")
    yield from problems_of(lambda: load_job([job]))
    job.write_text(JOB)
    yield from problems_of(lambda: load_sweep([job]))
    for text in test_expansion.WRONG:
        sweep.write_text(f"base: job.yaml\n{text}")
        yield from problems_of(lambda: load_sweep([sweep]))
    Path("clusters/folder.yaml").mkdir(parents=True)
    yield from problems_of(lambda: load_profile("folder"))
    for text in test_profiles.WRONG:
        profile.write_text(text)
        yield from problems_of(lambda: load_profile("wrong"))


def test_problems_are_those_that_are_listed() -> None:
    listed = yaml.safe_load(WRONG.with_name("wrong_codes.yaml").read_text(encoding="utf-8"))
    assert {name: codes(problems) for name, problems in wrong_specs().items()} == listed


def test_what_is_said_is_what_the_snapshot_says() -> None:
    assert wording() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(wording(), encoding="utf-8")
