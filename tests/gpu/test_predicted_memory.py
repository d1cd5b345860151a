"""On real GPUs: every stage's peak memory is what was predicted, within 5 %."""

from __future__ import annotations

import pytest
from support.configurations import CONFIGURATIONS, Configuration
from support.measured import Measured, padded_vocab

from orchestrator.planning.memory import estimate_memory

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

GIB = 2**30


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda each: each.name)
def test_peak_memory_is_predicted(configuration: Configuration, measured: Measured) -> None:
    assert measured.layers == configuration.layers
    predicted = estimate_memory(configuration.job, padded_vocab(configuration.job), configuration.layers)
    errors = []
    for stage, peak, reserved, used in zip(
        predicted.stages, measured.peak_bytes, measured.reserved_bytes, measured.used_bytes, strict=True
    ):
        error = stage.peak_bytes / peak - 1
        errors.append(error)
        print(
            f"\nRESULT {configuration.name} stage {stage.pp} ({stage.moment}): predicted {stage.peak_bytes / GIB:.2f} "
            f"measured {peak / GIB:.2f} GiB, error {error:+.2%}; on the device predicted "
            f"{stage.device_bytes / GIB:.2f} used {used / GIB:.2f} (reserved {reserved / GIB:.2f})"
        )
    assert max(map(abs, errors)) < 0.05
