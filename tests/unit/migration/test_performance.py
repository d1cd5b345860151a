"""The table of what makes a training faster or smaller: complete, and what `migrate` and `render` do with it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import TransformerConfig
from support.training import tiny_job
from unit.migration.conftest import Flags, recorded_choices

from orchestrator.migration.flag_groups import FLAG_GROUPS
from orchestrator.migration.from_megatron import migrate_words
from orchestrator.migration.megatron_flags.performance import ANSWERS, GROUPS
from orchestrator.migration.megatron_flags.programs import family_of_flag
from orchestrator.migration.megatron_flags.table import IMPLIED, OLD_NAMES, ROWS
from orchestrator.migration.megatron_flags.unsupported_flags import unsupported_flag
from orchestrator.migration.to_megatron import to_megatron
from orchestrator.spec.job import JobSpec

HERE = Path(__file__).parent
SCRIPT = Path(__file__).parents[3] / "scripts" / "megatron_flags.py"
CONFIGURATIONS = (TransformerConfig, ModelParallelConfig, DistributedDataParallelConfig, OptimizerConfig)
SPEED = {flag: group for group in GROUPS for flag in group.flags}
EFFECTS = {"on": "none", "refused": "aside", "training": "training"}
VERSIONS = {"0.16": ("16", "both"), "0.19": ("19", "both")}
MIXTURE = {"num_experts": 4, "moe_router_topk": 2, "activation": "swiglu", "add_bias_linear": False}
EVERYONES = ("--moe-permute-fusion", "--moe-router-fusion", "--cross-entropy-loss-fusion", "--manual-gc")


def recorded() -> list[tuple[str, str, str]]:
    """(flag, versions, kind) of every flag of Megatron-LM's parsers."""
    lines = (HERE / "parser_flags.txt").read_text().splitlines()
    found = [tuple(line.split()[:3]) for line in lines if not line.startswith("#")]
    return [(flag, versions, kind) for flag, versions, kind in found]


def other_fields() -> set[str]:
    lines = (HERE / "other_fields.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


def test_every_flag_has_one_answer() -> None:
    counts = Counter(flag for group in GROUPS for flag in group.flags)
    assert [flag for flag, count in counts.items() if count > 1] == []
    assert {group.answer for group in GROUPS} == set(ANSWERS)


def test_every_flag_of_the_parsers_that_is_about_speed_or_memory_is_in_the_table() -> None:
    flags = recorded()
    assert len(flags) == len({flag for flag, _, _ in flags}) > 800
    assert {flag for flag, _, kind in flags if kind == "speed"} == set(SPEED)
    assert {kind for _, _, kind in flags} == {"speed", "other"}


def test_every_flag_of_the_parsers_is_known() -> None:
    known = {row.flag for row in ROWS} | {flag for group in FLAG_GROUPS for flag in group.flags}
    known |= {*IMPLIED, *OLD_NAMES}
    flags = {flag for flag, _, _ in recorded()} - known
    assert {flag for flag in flags if unsupported_flag(flag) is None and family_of_flag(flag) is None} == set()


def test_recorded_flags_are_those_of_a_checkout() -> None:
    """Of the one that $MEGATRON_LM names; without, the record stands for it."""
    if "MEGATRON_LM" not in os.environ:
        pytest.skip("MEGATRON_LM names no checkout of Megatron-LM")
    checkout = os.environ["MEGATRON_LM"]
    numbers = (Path(checkout) / "megatron" / "core" / "package_info.py").read_text().splitlines()
    major, minor = (line.split("=")[1].strip() for line in numbers if line.startswith(("MAJOR", "MINOR")))
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), checkout],
        env={**os.environ, "PYTHONPATH": checkout, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(line.split("=") for line in ran.stdout.splitlines() if " " not in line)
    assert set(found) == {flag for flag, versions, _ in recorded() if versions in VERSIONS[f"{major}.{minor}"]}
    choices = dict(recorded_choices())
    for flag, values in found.items():
        assert set(values.split(",")) <= {*choices.get(flag, ()), ""}, flag


def test_every_field_of_megatron_cores_configurations_is_in_the_table_or_about_something_else() -> None:
    """Of the version that is installed: a new field has to be looked at."""
    fields = {field.name for configuration in CONFIGURATIONS for field in dataclasses.fields(configuration)}
    answered = {flag.replace("-", "_") for flag in SPEED} | {name for group in GROUPS for name in group.fields}
    assert answered & other_fields() == set()
    assert fields - answered - other_fields() == set()


def test_what_is_a_key_is_read_into_one() -> None:
    read = {row.flag for row in ROWS} | {flag for group in FLAG_GROUPS for flag in group.flags}
    read |= {*IMPLIED, *OLD_NAMES}
    assert {flag for flag, group in SPEED.items() if group.answer == "key"} - read == set()
    assert {flag for flag, group in SPEED.items() if group.answer != "key"} & read == set()


def test_what_is_none_says_so() -> None:
    for flag, group in SPEED.items():
        if group.answer != "key":
            found = unsupported_flag(flag)
            assert found is not None, flag
            assert (found.reason, found.effect) == (group.where, EFFECTS[group.answer]), flag


@pytest.mark.parametrize("flag", ["--moe-permute-fusion", "--moe-router-fusion", "--manual-gc", "--no-rope-fusion"])
def test_what_is_on_changes_nothing(flag: str, flags: Flags) -> None:
    assert flags(flag).outcome(flag) == "no_effect"


@pytest.mark.parametrize("flag", ["--moe-shared-expert-overlap", "--delay-wgrad-compute", "--use-nccl-ub"])
def test_what_is_not_there_is_said_aloud(flag: str, flags: Flags) -> None:
    assert flags(flag).outcome(flag) == "not_supported"


def mixture(runtime: dict[str, Any] | None = None, **model: Any) -> JobSpec:
    return tiny_job("mixture", model={**MIXTURE, **model}, runtime={"device": "auto", **(runtime or {})})


def test_everyones_flags_are_written() -> None:
    job = mixture()
    words = to_megatron(job).words
    assert set(EVERYONES) <= set(words)
    assert "--moe-grouped-gemm" in words
    assert words[words.index("--cross-entropy-fusion-impl") + 1] == "te"
    again = migrate_words(words, "here")
    assert [each.flag for each in again.accounts if each.outcome in ("not_supported", "no_counterpart")] == []
    assert again.values["model.moe_grouped_gemm"] is True


@pytest.mark.parametrize(
    ("job", "absent"),
    [
        (mixture({"layers": "torch"}), {*EVERYONES[:2], "--moe-grouped-gemm", "--cross-entropy-fusion-impl"}),
        (mixture({"device": "cpu"}), {*EVERYONES, "--moe-grouped-gemm"}),
        (mixture({"deterministic": True}), set(EVERYONES[:3])),
        (mixture(moe_router_dtype="fp64"), {"--moe-router-fusion"}),
        (mixture(moe_router_load_balancing_type="sinkhorn"), {"--moe-router-fusion"}),
        (mixture(moe_grouped_gemm=False), {"--moe-grouped-gemm"}),
        (tiny_job("dense", runtime={"device": "auto"}), {*EVERYONES[:2], "--moe-grouped-gemm"}),
    ],
    ids=["torch", "cpu", "deterministic", "fp64", "sinkhorn", "one-by-one", "dense"],
)
def test_what_ours_does_without_is_not_written(job: JobSpec, absent: set[str]) -> None:
    words = set(to_megatron(job).words)
    assert words & absent == set()
    assert {*EVERYONES, "--moe-grouped-gemm"} & words == {*EVERYONES, "--moe-grouped-gemm"} - absent
