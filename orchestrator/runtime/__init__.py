"""The training program: `python -m orchestrator.runtime RUN_DIR`, started once per rank by torchrun."""

import warnings

# megatron-core and torch warn at import and in every step of things that no user of this program can act on: that
# Transformer Engine and apex are absent, that a collective will get another name.
for _module in ("megatron", "torch.distributed"):
    warnings.filterwarnings("ignore", module=_module)
