"""State space layers: flags that no field has."""

from orchestrator.models.blocks.flags import BlockFlags, FlagPattern, all_but
from orchestrator.models.blocks.state_space.fields import StateSpaceSpec

_OTHER_KIND = "this kind of model is not in this version"
_FLAGS = tuple(name.replace("_", "-") for name in StateSpaceSpec.model_fields)
FLAGS = BlockFlags(
    patterns=(FlagPattern(f"{all_but('mamba-', _FLAGS)}|.*-mamba-.*", _OTHER_KIND, "training"),),
    not_imported=dict.fromkeys(("hybrid_override_pattern", "hybrid_layer_pattern"), "state space layers"),
)
