"""Each wrong spec beside this file says exactly what is expected of it.

`NAME.yaml` is loaded with the overrides in its comments (`# --set KEY=VALUE`), and the message must be `NAME.txt`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import SpecError
from orchestrator.spec.loading import load_job

WRONG = Path(__file__).parent / "wrong"
SPECS = sorted(path.stem for path in WRONG.glob("*.yaml"))


def message_of(name: str) -> str:
    text = Path(f"{name}.yaml").read_text(encoding="utf-8")
    overrides = [line.removeprefix("# --set ") for line in text.splitlines() if line.startswith("# --set ")]
    with pytest.raises(SpecError) as caught:
        load_job([Path(f"{name}.yaml")], overrides)
    return f"{caught.value}\n"


def test_there_are_many() -> None:
    assert len(SPECS) >= 40


@pytest.mark.parametrize("name", SPECS)
def test_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(WRONG)
    assert message_of(name) == Path(f"{name}.txt").read_text(encoding="utf-8")
