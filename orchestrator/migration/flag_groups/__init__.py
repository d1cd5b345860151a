"""What several flags of Megatron-LM say together, each in both directions: read into a job, written from one."""

from orchestrator.migration.flag_groups.base import FlagGroup
from orchestrator.migration.flag_groups.data import DATA
from orchestrator.migration.flag_groups.experts import EXPERTS_TOGETHER
from orchestrator.migration.flag_groups.fp8 import FP8_TOGETHER
from orchestrator.migration.flag_groups.initial_weights import INITIAL_WEIGHTS
from orchestrator.migration.flag_groups.kernels import KERNELS_TOGETHER
from orchestrator.migration.flag_groups.losses import LOSSES
from orchestrator.migration.flag_groups.model import MODEL
from orchestrator.migration.flag_groups.task import TASK
from orchestrator.migration.flag_groups.tracking import TRACKING
from orchestrator.migration.flag_groups.training import TRAINING
from orchestrator.migration.flag_groups.variants import VARIANTS

TOGETHER: tuple[FlagGroup, ...] = (
    *VARIANTS,
    *MODEL,
    *EXPERTS_TOGETHER,
    *DATA,
    *TASK,
    *TRAINING,
    *INITIAL_WEIGHTS,
    *LOSSES,
    *TRACKING,
    *FP8_TOGETHER,
    *KERNELS_TOGETHER,
)
