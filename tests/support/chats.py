"""Conversations made up for tests, and the loss of each of them."""

from __future__ import annotations

import json
import random
from pathlib import Path

from orchestrator.data.__main__ import run
from orchestrator.data.request import TokenizeRequest


def conversations(folder: Path, answers: dict[str, str]) -> str:
    """Prefix of 72 short conversations of bytes: what begins with a letter gets that letter's answer."""
    write_conversations(folder / "chats.jsonl", answers)
    request = TokenizeRequest(inputs=(folder / "chats.jsonl",), output_prefix=folder / "chats", chat=True, workers=1)
    assert run("tokenize", request, as_json=True) == 0
    return str(folder / "chats")


def write_conversations(path: Path, answers: dict[str, str]) -> None:
    """The file that these are made from."""
    draw = random.Random(5)
    with open(path, "w") as file:
        for number in range(72):
            turns = []
            for _ in range(1 + number % 2):
                letter = draw.choice(list(answers))
                asked = letter + "?" * draw.randint(0, 12)
                turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": answers[letter]}]
            file.write(json.dumps({"messages": turns}) + "\n")


MEASURED = """
import torch
import orchestrator.runtime.__main__ as program
from orchestrator.run_directory.events.types import Unknown
from orchestrator.runtime.processes.exits import Outcome

def train(session, callbacks):
    model, found, data = session.network.chunks[0].eval(), [], session.data.train
    for number in range(data.sequences):
        fields = {name: torch.as_tensor(field)[None] for name, field in data[number].items()}
        device = session.processes.device.torch_device
        batch = session.network.step.get_batch({name: field.to(device) for name, field in fields.items()})
        mask, segments = batch["loss_mask"][0], batch["segment_ids"][0]
        with torch.no_grad():
            losses = session.network.step.forward(model, batch)[0] * mask
        for segment in segments.unique():
            where = segments == segment
            if mask[where].any():
                found.append([batch["tokens"][0][where].tolist(), losses[where].sum().item()])
    session.event(Unknown(stored_name="measured", other={"losses": found, "sequences": data.sequences}))
    return Outcome("completed")

program.train = train
"""
"""To be injected: instead of training the event `measured`, with the number of sequences of an epoch, and the tokens
and the loss of each conversation."""
