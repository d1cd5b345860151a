"""Flags of Megatron-LM that are translated together, in both directions: read into a job, written from one."""

from orchestrator.migration.combined_flags.data import DATA
from orchestrator.migration.combined_flags.initial_weights import INITIAL_WEIGHTS
from orchestrator.migration.combined_flags.kernels import KERNELS_TOGETHER
from orchestrator.migration.combined_flags.losses import LOSSES
from orchestrator.migration.combined_flags.model import MODEL
from orchestrator.migration.combined_flags.optimizer import OPTIMIZER
from orchestrator.migration.combined_flags.quantization import QUANTIZATION
from orchestrator.migration.combined_flags.task import TASK
from orchestrator.migration.combined_flags.tracking import TRACKING
from orchestrator.migration.combined_flags.training import TRAINING
from orchestrator.migration.combined_flags.variants import VARIANTS
from orchestrator.models.blocks.flags import FlagGroup
from orchestrator.models.blocks.registry import block_flags

TOGETHER: tuple[FlagGroup, ...] = (
    *VARIANTS,
    *MODEL,
    *(group for flags in block_flags() for group in flags.translated),
    *DATA,
    *TASK,
    *TRAINING,
    *OPTIMIZER,
    *INITIAL_WEIGHTS,
    *LOSSES,
    *TRACKING,
    *QUANTIZATION,
    *KERNELS_TOGETHER,
)
