"""What the tests on GPUs share: ranks that start fast, and what was measured of jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.configurations import Configuration
from support.faults import Ranks
from support.fixtures import real_text, standard_library
from support.measured import Measured, Meter, fits_here, gpu_count, has_layers, needs_gpus, needs_memory
from support.ranks import RankStarter

__all__ = ["real_text"]


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where later sessions find what this one made: $MEASURED, where it is set."""
    return Path(os.environ.get("MEASURED") or tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="session")
def text(kept: Path) -> str:
    """Prefix of a data set."""
    return standard_library(kept / "library")


@pytest.fixture(scope="session")
def meter(kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meter]:
    """$MEASURED names a folder in which measurements are kept; without it they last as long as this session."""
    scratch = tmp_path_factory.mktemp("measured")
    starter = RankStarter(scratch)
    yield Meter(starter, scratch, kept)
    starter.close()


@pytest.fixture(scope="session")
def trainer(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Meter:
    """For jobs that are to be trained now, many by the same ranks: nothing is kept."""
    return Meter(ranks.starter, tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="session")
def all_measured(request: pytest.FixtureRequest, meter: Meter) -> None:
    """Every configuration that a test of this session asks for and this machine can run, side by side."""
    asked = {}
    for item in request.session.items:
        parameters = getattr(item, "callspec", None)
        configuration = parameters.params.get("configuration") if parameters else None
        if not isinstance(configuration, Configuration) or configuration.gpus > gpu_count():
            continue
        if has_layers(configuration.layers) and fits_here(configuration.job, configuration.layers):
            asked[configuration] = configuration.job
    meter.measure_all(asked.values())


@pytest.fixture
def measured(configuration: Configuration, meter: Meter, request: pytest.FixtureRequest) -> Measured:
    """What the test's configuration needed."""
    needs_gpus(configuration.gpus, configuration.layers)
    needs_memory(configuration.job, configuration.layers)
    request.getfixturevalue("all_measured")
    measured = meter.measure(configuration.job)
    assert measured.outcome == "measured", f"{configuration.name}: {measured.outcome}: {measured.message}"
    return measured
