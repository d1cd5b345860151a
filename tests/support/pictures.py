"""Image files, and conversations about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZE, PATCH_SIZE, PATCHES = 8, 4, 4
SIZES = {"image_size": SIZE, "patch_size": PATCH_SIZE}
OF_PARTS = (  # as LLaVA's: it reads content in parts alone, and writes the images of a turn before its text
    "{% for turn in messages %}{% if turn.role != 'system' %}{{ turn.role | upper }}: {% endif %}"
    "{% for part in turn.content if part.type == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in turn.content if part.type == 'text' %}{% if turn.role == 'assistant' %}"
    "{% generation %}{{ part.text }} {% endgeneration %}{% else %}{{ part.text }} {% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def make_album(folder: Path) -> Path:
    """Six real image files, in two folders."""
    (folder / "more").mkdir()
    for number, name in enumerate(("a.jpg", "b.png", "c.jpg", "d.png", "more/e.jpg", "more/f.png")):
        draw = np.random.RandomState(number)
        Image.fromarray(draw.randint(0, 256, (10 + number, 17, 3), dtype=np.uint8)).save(folder / name)
    return folder


def written(folder: Path, *lines: dict[str, Any], name: str = "chats.jsonl") -> Path:
    """A file of these lines."""
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def talk(asked: Any, answer: str = "It is.", **fields: Any) -> dict[str, Any]:
    """A line with a question and an answer."""
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}], **fields}
