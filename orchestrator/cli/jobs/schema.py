"""`orchestrator schema`: the JSON schema of a job spec, and the model presets."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from orchestrator.cli.common import AsJson, print_json
from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.quantities import short_count
from orchestrator.spec.loading import load_text
from orchestrator.spec.presets import has_vocabulary, preset_names
from orchestrator.spec.schema.json_schema import job_schema


def command(
    presets: Annotated[bool, typer.Option("--presets", help="List the model presets instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the JSON schema of a job spec, for editors and other programs, or list the model presets.

    \b
    Example:
      orchestrator schema > job.schema.json
      orchestrator schema --presets
    """
    if not presets:
        print_json(job_schema())
        return
    rows = [_preset(name) for name in preset_names()]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        shape = f"{row['num_layers']} layers, hidden {row['hidden_size']}, sequence {row['seq_length']}"
        typer.echo(f"{row['name']:<14} {short_count(row['parameters']):>8} parameters, {shape}")


def _preset(name: str) -> dict[str, Any]:
    data = "random_tokens: true" if has_vocabulary(name) else "blend: [none]"
    job = load_text(
        f"name: preset\nmodel: {{preset: {name}}}\nbatch: {{}}\ndata: {{{data}}}\n"
        "optimizer: {lr: 1e-3}\nschedule: {train_iters: 1}\n"
    ).job
    model = job.model
    return {
        "name": name,
        "parameters": parameters(job, vocabulary(job).padded_size).total,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "seq_length": model.seq_length,
        "vocab_size": model.vocab_size,
    }
