"""What docs/how-to/models.md has for a CPU: a model that learns to tell colours, and tells them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.faults import CommandLine

pytestmark = [pytest.mark.distributed, pytest.mark.slow("a training on images, and a generation")]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "models.md"


def test_a_model_learns_to_see(orchestrator: CommandLine) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [spec] = re.findall(r"```yaml\n(# seeing.yaml\n.*?)```", PAGE.read_text(), re.DOTALL)
    subprocess.run([sys.executable, "-c", program], cwd=orchestrator.folder, check=True, timeout=60)
    (orchestrator.folder / "seeing.yaml").write_text(spec + "tracking: {mlflow: false}\n")
    ran = orchestrator("run", "seeing.yaml")
    assert ran.code == 0, ran.err
    lines = (orchestrator.folder / "talks" / "train.jsonl").read_text()
    asked = "User:\n<image>\nWhich colour?\n\nAssistant:\n"
    images = [f"talks/{number}.png" for number in range(4)]
    assert all(f'"{number}.png"' not in lines for number in range(4))
    prompts = "".join(json.dumps({"prompt": asked, "images": [image]}) + "\n" for image in images)
    (orchestrator.folder / "prompts.jsonl").write_text(prompts)
    told = orchestrator(
        *("generate", "seeing", "--file", "prompts.jsonl", "--temperature", "0"), *("--max-new-tokens", "8")
    )
    assert told.code == 0, told.err
    names = [colour(orchestrator.folder / image) for image in images]
    assert len(set(names)) > 1
    assert [json.loads(line)["text"] for line in told.out.splitlines()] == names


def colour(path: Path) -> str:
    with Image.open(path) as image:
        middle = np.asarray(image)[12, 12].tolist()
    return {220: "red", 30: "green", 40: "blue", 230: "yellow"}[middle[0]]
