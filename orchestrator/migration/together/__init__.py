"""What several flags of Megatron-LM say together, each in both directions: read into a job, written from one."""

from orchestrator.migration.together.base import Together
from orchestrator.migration.together.data import DATA
from orchestrator.migration.together.experts import EXPERTS_TOGETHER
from orchestrator.migration.together.fp8 import FP8_TOGETHER
from orchestrator.migration.together.initial_weights import INITIAL_WEIGHTS
from orchestrator.migration.together.kernels import KERNELS_TOGETHER
from orchestrator.migration.together.losses import LOSSES
from orchestrator.migration.together.model import MODEL
from orchestrator.migration.together.task import TASK
from orchestrator.migration.together.tracking import TRACKING
from orchestrator.migration.together.training import TRAINING
from orchestrator.migration.together.variants import VARIANTS

TOGETHER: tuple[Together, ...] = (
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
