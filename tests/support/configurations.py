"""What predictions are held against: jobs of the published table's models, with so few steps that they take seconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text
from orchestrator.spec.sections.runtime import Layers

STEPS = 8


@dataclass(frozen=True)
class Configuration:
    """A model, a layout and a batch."""

    preset: str
    gpus: int
    micro_batch: int
    micro_batches: int
    layers: Layers = "torch"
    tp: int = 1
    pp: int = 1
    more: tuple[str, ...] = ()
    """Further overrides; the first tells it apart."""

    @property
    def name(self) -> str:
        """For a test's id and a table's row."""
        dp = self.gpus // (self.tp * self.pp)
        layout = f"TP{self.tp}-PP{self.pp}-DP{dp}-{self.micro_batch}x{self.micro_batches}"
        return "-".join([self.preset, layout, self.layers, *(word.rpartition(".")[2] for word in self.more[:1])])

    @cached_property
    def job(self) -> JobSpec:
        """It as a job."""
        text = f"""
name: {self.preset}
model: {{preset: {self.preset}}}
parallelism:
  tensor_model_parallel_size: {self.tp}
  pipeline_model_parallel_size: {self.pp}
  sequence_parallel: {str(self.tp > 1).lower()}
batch: {{micro_batch_size: {self.micro_batch}, num_micro_batches: {self.micro_batches}}}
data: {{random_tokens: true}}
optimizer: {{lr: 1.0e-4}}
schedule: {{train_iters: {STEPS}}}
tracking: {{mlflow: false}}
runtime: {{layers: {self.layers}, attention_backend: fused}}
launch: {{gpus_per_node: {self.gpus}}}
"""
        return load_text(text, overrides=self.more).job


_TE: Layers = "transformer_engine"
_FULL = ("runtime.recompute_method=uniform", "runtime.recompute_num_layers=1", "runtime.recompute_granularity=full")
_HALF = ("runtime.recompute_method=block", "runtime.recompute_num_layers=12", "runtime.recompute_granularity=full")
_SELECTIVE = ("runtime.recompute_granularity=selective",)
_EP2, _EP4 = ("parallelism.expert_model_parallel_size=2", "parallelism.expert_model_parallel_size=4")


def _of(layers: int, *more: str) -> tuple[str, ...]:
    """Some of a preset's layers, of sequences of 4,096 tokens, with the attention that the runtime chooses."""
    return (f"model.num_layers={layers}", "model.seq_length=4096", "runtime.attention_backend=auto", *more)


def _first_dense(layers: int) -> str:
    return f"model.moe_layer_freq={[0] + [1] * (layers - 1)}"


CONFIGURATIONS = (
    Configuration("gpt-1.7b", 1, 1, 4),
    Configuration("gpt-1.7b", 1, 4, 4),
    Configuration("gpt-1.7b", 1, 4, 4, _TE),
    Configuration("gpt-1.7b", 1, 4, 2, _TE, more=_SELECTIVE),
    Configuration("gpt-1.7b", 1, 4, 2, more=_FULL),
    Configuration("gpt-1.7b", 1, 8, 1, more=_HALF),
    Configuration("gpt-1.7b", 2, 4, 2),
    Configuration("gpt-1.7b", 2, 4, 2, tp=2, more=("parallelism.sequence_parallel=false",)),
    Configuration("gpt-7.1b", 2, 2, 2, tp=2),
    Configuration("gpt-7.1b", 2, 1, 8, _TE, pp=2),
    Configuration("gpt-7.1b", 4, 4, 1, tp=2),
    Configuration("gpt-7.1b", 4, 4, 1, _TE, tp=2),
    Configuration("gpt-7.1b", 4, 1, 16, tp=2, pp=2),
    Configuration("gpt-7.1b", 4, 1, 8, pp=2, more=("parallelism.virtual_pipeline_model_parallel_size=3",)),
    Configuration("gpt-7.1b", 4, 4, 2, _TE, tp=4),
    Configuration("gpt-7.1b", 4, 2, 2, more=_FULL),
    Configuration("deepseek-v2-lite", 2, 2, 2, _TE, more=_of(8, _EP2, _first_dense(8))),
    Configuration("deepseek-v2-lite", 4, 2, 2, _TE, more=_of(14, _EP4, _first_dense(14))),
    Configuration("gpt-oss-20b", 2, 2, 2, _TE, more=_of(8, _EP2)),
    Configuration("gpt-oss-20b", 4, 2, 2, _TE, tp=2, more=_of(12, _EP4, "parallelism.expert_tensor_parallel_size=1")),
    Configuration("qwen3-next-80b-a3b", 2, 1, 4, _TE, more=_of(4, _EP2)),
    Configuration("qwen3-next-80b-a3b", 4, 1, 4, _TE, more=_of(8, _EP4)),
    Configuration("gemma3-1b", 1, 2, 4, _TE, more=_of(26)),
    Configuration("gemma3-1b", 1, 8, 1, _TE, more=_of(26, *_FULL)),
    Configuration("gemma3-4b-vision", 1, 1, 4, _TE, more=_of(12, "runtime.cuda_graphs=true")),
    Configuration("gemma3-4b-vision", 1, 2, 2, _TE, more=_of(12, "runtime.cuda_graphs=true", *_FULL)),
    Configuration("qwen2.5-vl-3b", 1, 1, 4, _TE, more=_of(16)),
    Configuration("qwen2.5-vl-3b", 1, 2, 2, _TE, more=_of(16, *_FULL)),
    Configuration("gemma3-4b", 2, 2, 4, _TE, tp=2, more=_of(34)),
)
