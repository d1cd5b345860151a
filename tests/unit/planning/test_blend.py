"""What a training takes from each source, from index headers written by hand."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from orchestrator.planning.blend import plan_blend
from orchestrator.planning.plan import make_plan
from orchestrator.spec.data import DataSpec


def write_indexed(prefix: Path, sequences: int, length: int) -> str:
    """An indexed data set of `sequences` documents of `length` two-byte tokens each."""
    offsets = [number * length * 2 for number in range(sequences)]
    prefix.with_name(prefix.name + ".bin").write_bytes(bytes(sequences * length * 2))
    prefix.with_name(prefix.name + ".idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, sequences, sequences + 1)
        + struct.pack(f"<{sequences}i", *[length] * sequences)
        + struct.pack(f"<{sequences}q", *offsets)
        + struct.pack(f"<{sequences + 1}q", *range(sequences + 1))
    )
    return str(prefix)


def test_shares_tokens_and_epochs(tmp_path: Path) -> None:
    books = write_indexed(tmp_path / "books", sequences=100, length=50)
    web = write_indexed(tmp_path / "web", sequences=1000, length=50)
    data = DataSpec.model_validate({"blend": [3, books, 1, web], "split": "90,10,0"})
    first, second = plan_blend(data, train_tokens=18_000)
    assert (first.share, first.tokens_used, first.tokens_held) == (0.75, 13_500, 4_500)
    assert first.epochs == pytest.approx(3.0)
    assert first.sequences == (90, 10, 0)
    assert second.epochs == pytest.approx(0.1)


def test_own_validation_data_leaves_the_blend_whole(tmp_path: Path) -> None:
    books = write_indexed(tmp_path / "books", sequences=100, length=50)
    data = DataSpec.model_validate({"blend": [books], "validation": [books], "split": "90,10,0"})
    [source] = plan_blend(data, train_tokens=5_000)
    assert source.sequences == (100, 0, 0)
    assert source.epochs == 1.0


def test_data_that_is_elsewhere_or_torn_is_a_note(tmp_path: Path) -> None:
    torn = write_indexed(tmp_path / "torn", sequences=10, length=50)
    (tmp_path / "torn.bin").write_bytes(b"short")
    away = str(tmp_path / "away")
    first, second = plan_blend(DataSpec.model_validate({"blend": [away, torn]}), 1000)
    assert (first.epochs, second.epochs) == (None, None)
    assert "no indexed data set" in str(first.note)
    assert "do not belong together" in str(second.note)


def test_too_few_documents_for_the_split(tmp_path: Path, make_job: Any) -> None:
    single = write_indexed(tmp_path / "single", sequences=1, length=500)
    data = {"random_tokens": False, "blend": [single], "split": "4,6,0"}
    assert any("leave none for training" in note for note in make_plan(make_job(data=data)).notes)
    data = {**data, "split": "8,2,0"}
    notes = make_plan(make_job(data=data, evaluation={"eval_interval": 10})).notes
    assert any("validation split" in note and "empty" in note for note in notes)
    assert not any("empty" in note for note in make_plan(make_job(data=data)).notes)
