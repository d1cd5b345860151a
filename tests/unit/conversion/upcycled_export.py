"""A run whose experts started from a dense model, exported: its logits in transformers beside those of that model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from orchestrator.conversion.hugging_face.hf_export import export
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_resolved
from tests.unit.conversion.families import logits, transformers_alone


def _model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


@transformers_alone()
def compared(theirs: Path, run: RunDir) -> dict[str, Any]:
    """The largest difference of the logits, the spread of the dense model's, and the type of the export."""
    job, target = load_resolved(run.resolved()), run.path / "exported"
    export(committed(run)[-1].path, job, target, most_bytes=10**8, dtype=None, tokenizer="no", threads=1)
    dense, ours = _model(theirs), _model(target)
    expected = logits(dense).float()
    apart = (logits(ours).float() - expected).abs().max().item()
    return {"apart": apart, "spread": expected.std().item(), "type": ours.config.model_type}
