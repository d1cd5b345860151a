"""A run whose experts started from a dense model, exported: its logits in transformers beside those of that model.

THEIRS is the dense model's folder, RUN the run. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from families_program import logits

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from orchestrator.conversion.hugging_face.hf_export import export
    from orchestrator.run_directory.checkpoints.commit_markers import committed
    from orchestrator.run_directory.rundir import RunDir
    from orchestrator.spec.loading import load_resolved


def _model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    theirs, run = Path(sys.argv[1]), RunDir(Path(sys.argv[2]))
    job, target = load_resolved(run.resolved()), run.path / "exported"
    export(committed(run)[-1].path, job, target, most_bytes=10**8, dtype=None, tokenizer="no", threads=1)
    dense, ours = _model(theirs), _model(target)
    expected = logits(dense).float()
    apart = (logits(ours).float() - expected).abs().max().item()
    print(json.dumps({"apart": apart, "spread": expected.std().item(), "type": ours.config.model_type}))


if __name__ == "__main__":
    main()
