"""Runs with adapters as `orchestrator.inference` has them, beside their exports (exported_adapters.py).

FOLDER/FAMILY/LAYOUT/run is each a run. Prints JSON, of each run what `generated` finds.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from support import mamba_stub

from orchestrator.inference import load
from orchestrator.run_directory.rundir import RunDir

OUR_PROJECTIONS = ("self_attention.linear_proj", "self_attention.out_proj", "mixer.out_proj")
PROJECTIONS = tuple(
    f"{end}.weight" for end in ("self_attn.o_proj", "attn.out_proj", "attn.c_proj", "r.o_proj", "r.out_proj")
)
"""Ends of the names of matrices that lie there as they do here, but for GPT-2's, which are transposed."""


def generated(run: RunDir) -> dict[str, Any]:
    """How far our logits are from those of the export, whether our greedy text is its, and which of its matrices are
    the merged ones, bitwise.
    """
    weights = {
        key: value for file in (run.path / "merged").glob("*.safetensors") for key, value in load_file(file).items()
    }
    tokens = torch.arange(32).reshape(2, 16) * 7 % 101  # those of `families.logits`
    logits, written = torch.load(run.path / "theirs.pt")
    with load(run.path) as model:
        apart = (model.logits(tokens.tolist()).float() - logits).abs().max().item()
        greedy = {"max_new_tokens": len(written[0]), "temperature": 0}
        continued = [each.tokens for each in model.generate(tokens.tolist(), greedy, ends=[])]
        modules = model.network.module.named_modules()
        ours = [module.weight for name, module in modules if name.endswith(OUR_PROJECTIONS)]
        flips = model.job.model.position_embedding_type == "learned_absolute"
        theirs = [weights[name] for name in sorted(weights) if name.endswith(PROJECTIONS)]
        pairs = zip(ours, theirs, strict=True)
        same = [torch.equal(one, other.t() if flips else other) for one, other in pairs]
        return {"logits": apart, "written": continued == written, "same": same}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    mamba_stub.install()
    folder = Path(sys.argv[1])
    runs = {str(path.parent.relative_to(folder)): RunDir(path) for path in sorted(folder.glob("*/*/run"))}
    print(json.dumps({name: generated(run) for name, run in runs.items()}))


if __name__ == "__main__":
    main()
