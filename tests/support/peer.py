"""Who ours is held against, and the rows: a loop over megatron-core, torchtitan's trainer, Megatron-LM's trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job
from support.measured import WARM_UP, Meter
from support.ranks import RankStarter
from support.shipped import SHIPPED

_BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PLAIN_LOOP, TITAN_LOOP = _BENCHMARKS / "plain_loop.py", _BENCHMARKS / "titan_loop.py"
TRAINER = _BENCHMARKS / "megatron_trainer.py"


def peer_meter(
    starter: RankStarter,
    scratch: Path,
    kept: Path | None = None,
    warm_up: int = WARM_UP,
    program: Path = PLAIN_LOOP,
) -> Meter:
    """Measures it, as a `Meter` measures ours; it needs a folder of its own for what is kept."""
    return Meter(starter, scratch, kept, program=program, warm_up=warm_up)


@dataclass(frozen=True)
class Row:
    """What is written over a job of `jobs/benchmarks`."""

    job: str
    gpus: int
    micro_batch: int
    global_batch: int
    changes: Sequence[str] = ()

    def at_size(self, name: str, steps: int, changes: Sequence[str] = ()) -> JobSpec:
        """The row as a job of so many steps."""
        of_row = [
            f"name={name.replace('.', '-')}",
            f"launch.gpus_per_node={self.gpus}",
            f"batch.micro_batch_size={self.micro_batch}",
            f"batch.global_batch_size={self.global_batch}",
            f"schedule.train_iters={steps}",
            "tracking.mlflow=false",
        ]
        return load_job([SHIPPED[self.job]], [*of_row, *changes, *self.changes]).job


_TP1 = ("parallelism.tensor_model_parallel_size=1", "parallelism.sequence_parallel=false")
_TP2 = ("parallelism.tensor_model_parallel_size=2", "parallelism.sequence_parallel=true")
_TP4 = ("parallelism.tensor_model_parallel_size=4", "parallelism.sequence_parallel=true")
_PP2 = ("parallelism.pipeline_model_parallel_size=2",)
_LAST_14 = ("parallelism.num_layers_in_last_pipeline_stage=14",)
_PP2_VP2 = (*_PP2, "parallelism.virtual_pipeline_model_parallel_size=2")
_FP8 = ("precision.fp8={}",)
_16B = ("model.preset=gpt-16b",)
ROWS = {
    "1.7b": Row("gpt-1.7b", 1, 4, 4),
    "1.7b-fp8": Row("gpt-1.7b", 1, 4, 4, _FP8),
    "1.7b-dp2": Row("gpt-1.7b", 2, 4, 8),
    "1.7b-pp2-vp2": Row("gpt-1.7b", 2, 2, 16, _PP2_VP2),
    "7.1b-tp2": Row("gpt-7.1b", 2, 4, 4, _TP2),
    "7.1b-tp2-1x4": Row("gpt-7.1b", 2, 1, 4, _TP2),
    "7.1b-tp2-fp8": Row("gpt-7.1b", 2, 4, 4, (*_TP2, *_FP8)),
    "1.7b-dp4": Row("gpt-1.7b", 4, 4, 16),
    "7.1b-tp2-dp2": Row("gpt-7.1b", 4, 4, 8, _TP2),
    "7.1b-tp2-dp2-fp8": Row("gpt-7.1b", 4, 4, 8, (*_TP2, *_FP8)),
    "7.1b-dp4": Row("gpt-7.1b", 4, 2, 8, _TP1),
    "7.1b-tp2-pp2": Row("gpt-7.1b", 4, 1, 16, (*_TP2, *_PP2, *_LAST_14)),
    "16b-tp4": Row("gpt-7.1b", 4, 4, 4, (*_16B, *_TP4)),
}
"""The rows of the bars, and of two GPUs one of each kind of parallelism. 7.1b-dp4 is the tuner's layout: the same batch
as 7.1b-tp2-dp2; 7.1b-tp2-1x4 is what two GPUs of 80 GB have room for; 7.1b-tp2-pp2 has its 30 layers as `plan` advises.
Ours overlaps tensor parallelism; the loop beside it waits for it, as it does by default.
"""
_LLAMA = ("model.activation=swiglu", "model.normalization=RMSNorm")
_LLAMA_1_7B, _LLAMA_7_1B = (*_LLAMA, "model.ffn_hidden_size=5632"), (*_LLAMA, "model.ffn_hidden_size=11008")
TITAN_ROWS = {
    "llama-1.7b": Row("gpt-1.7b", 1, 2, 4, _LLAMA_1_7B),
    "llama-1.7b-dp2": Row("gpt-1.7b", 2, 2, 8, _LLAMA_1_7B),
    "llama-7.1b-tp2": Row("gpt-7.1b", 2, 1, 4, (*_TP2, *_LLAMA_7_1B)),
}
"""Of the Llama that torchtitan has, in micro-batches that GPUs of 80 GB have room for with either."""


def _experts(preset: str, layers: int, ep: int, *more: str) -> tuple[str, ...]:
    """Some layers of a preset with experts."""
    model = (f"model.preset={preset}", f"model.num_layers={layers}", "model.seq_length=4096")
    return (*model, f"parallelism.expert_model_parallel_size={ep}", *more)


def _qwen3(layers: int, ep: int, *more: str) -> tuple[str, ...]:
    return _experts("qwen3-30b-a3b", layers, ep, *more)


def _v2_lite(layers: int, ep: int) -> tuple[str, ...]:
    return _experts("deepseek-v2-lite", layers, ep, f"model.moe_layer_freq={[0] + [1] * (layers - 1)}")


def _gpt_oss(layers: int, ep: int) -> tuple[str, ...]:
    """The trainer has no positions with a factor of 32 and none that are not rounded: neither has any."""
    return _experts("gpt-oss-20b", layers, ep, "model.rope_scaling=null")


TRAINER_ROWS = {
    "qwen3-24-ep4": Row("gpt-1.7b", 4, 2, 32, _qwen3(24, 4)),
    "qwen3-24-ep4-4x2": Row("gpt-1.7b", 4, 4, 32, _qwen3(24, 4)),
    "qwen3-24-ep4-fp8": Row("gpt-1.7b", 4, 4, 32, _qwen3(24, 4, *_FP8)),
    "mixtral-8-ep4": Row("gpt-1.7b", 4, 4, 32, _experts("mixtral-8x7b", 8, 4)),
    "v2-lite-27-ep4": Row("gpt-1.7b", 4, 2, 32, _v2_lite(27, 4)),
    "gpt-oss-24-ep4": Row("gpt-1.7b", 4, 2, 32, _gpt_oss(24, 4)),
    "qwen3-12-ep4": Row("gpt-1.7b", 4, 2, 32, _qwen3(12, 4)),
    "mixtral-4-ep2": Row("gpt-1.7b", 2, 4, 16, _experts("mixtral-8x7b", 4, 2)),
    "v2-lite-14-ep2": Row("gpt-1.7b", 2, 4, 16, _v2_lite(14, 2)),
    "gpt-oss-12-ep2": Row("gpt-1.7b", 2, 2, 16, _gpt_oss(12, 2)),
    "qwen3-12-ep2-4x2": Row("gpt-1.7b", 2, 4, 16, _qwen3(12, 2)),
    "qwen3-12-ep2-fp8": Row("gpt-1.7b", 2, 4, 16, _qwen3(12, 2, *_FP8)),
    "qwen3-8-ep2": Row("gpt-1.7b", 2, 2, 16, _qwen3(8, 2)),
}
"""With experts, beside Megatron-LM's trainer: rows of four GPUs of 141 GB, what four of 80 GB have room for, and half
of each for two GPUs.
"""
