"""Flags of Megatron-LM that are translated together, in both directions: read into a job, written from one."""

from orchestrator.migration.flag_groups.activation import ACTIVATIONS
from orchestrator.migration.flag_groups.attention_window import ATTENTION_WINDOW
from orchestrator.migration.flag_groups.data import DATA
from orchestrator.migration.flag_groups.fully_sharded import FULLY_SHARDED
from orchestrator.migration.flag_groups.initial_weights import INITIAL_WEIGHTS
from orchestrator.migration.flag_groups.kernels import KERNELS
from orchestrator.migration.flag_groups.layer_pattern import LAYER_PATTERN
from orchestrator.migration.flag_groups.losses import LOSSES
from orchestrator.migration.flag_groups.model import MODEL
from orchestrator.migration.flag_groups.optimizer import OPTIMIZER
from orchestrator.migration.flag_groups.quantization import QUANTIZATION
from orchestrator.migration.flag_groups.rotary_positions import SCALED_POSITIONS, UNROTATED_LAYERS
from orchestrator.migration.flag_groups.task import TASK
from orchestrator.migration.flag_groups.tracking import TRACKING
from orchestrator.migration.flag_groups.training import TRAINING
from orchestrator.models.blocks.flags import FlagGroup
from orchestrator.models.blocks.registry import block_flags

FLAG_GROUPS: tuple[FlagGroup, ...] = (
    *ACTIVATIONS,
    *SCALED_POSITIONS,
    *ATTENTION_WINDOW,
    *UNROTATED_LAYERS,
    *LAYER_PATTERN,
    *MODEL,
    *(group for flags in block_flags() for group in flags.translated),
    *DATA,
    *TASK,
    *TRAINING,
    *OPTIMIZER,
    FULLY_SHARDED,
    *INITIAL_WEIGHTS,
    *LOSSES,
    *TRACKING,
    *QUANTIZATION,
    *KERNELS,
)
