"""Training speeds of models with experts that others published, as jobs, and how their software computed them.

Rows of docs/benchmarks/data/published_experts.csv; docs/benchmarks/accuracy.md shows them beside what is planned, and
docs/benchmarks/method.md says what the columns are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.planning.hardware import Device, shipped
from orchestrator.planning.time.kernels.accesses import OVERLAPPING, TRANSFORMER_ENGINE, Kernels, TokenExchange
from orchestrator.planning.time.step import estimate_with
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text
from orchestrator.spec.sections.quantization import Fp8Spec
from support.benchmark_data import Record, degrees, records
from support.reference_times import PLAIN_TRANSFORMER_ENGINE

FUSED_PERMUTATION = ForwardBackward(6.25, 6.25)
"""Accesses of [tokens * chosen experts, h] counted, not measured, of one kernel each to sort a rank's tokens by expert
and put them back: it reads a token once and writes it for each of eight experts, or the other way round; and of one
each that sorts what came from other ranks, or sorts it back, which reads and writes all of it."""
FUSED_WITH_EXCHANGE = ForwardBackward(3.3, 3.3)
"""The same where each token comes once to a rank (0.65 of the copies, for eight experts on eight ranks), and is read
there and written for each of its experts."""


HELD_OUT = "26.06"
"""The release whose rows were first looked at when the model of time had its present form."""


@dataclass(frozen=True, eq=False)
class PublishedStep:
    """A row."""

    record: Record
    job: JobSpec
    kernels: Kernels
    device: Device

    @property
    def label(self) -> str:
        return " ".join(self.record[name] for name in ("model", "gpu", "precision", "gpus", "layout", "release"))

    @property
    def group(self) -> tuple[str, str]:
        """GPU and precision: rows of one are compared with each other."""
        return self.record["gpu"], self.record["precision"]

    @property
    def published(self) -> float:
        """Tokens per second and GPU."""
        return float(self.record["published"])

    @property
    def was_planned(self) -> bool:
        """Whether it was a row of 2026-11-25 already."""
        return bool(self.record["planned_2026_11_25"])

    def planned(self) -> float:
        """Tokens per second and GPU that the plan says today."""
        padded = vocabulary(self.job).padded_size
        return estimate_with(self.job, padded, self.kernels, self.device).tokens_per_second_per_gpu


def published_steps() -> list[PublishedStep]:
    """All rows."""
    found = []
    for row in records("published_experts"):
        device = shipped(row["gpu"])
        assert device is not None
        found.append(PublishedStep(row, _job(row, device), _kernels(row["software"].split()), device))
    return found


def newest(steps: Sequence[PublishedStep]) -> list[PublishedStep]:
    """Those that no later one replaces: of each model, GPU and width of numbers the newest."""
    latest = {_software_aside(step): step for step in sorted(steps, key=lambda step: step.record["release"])}
    return [step for step in steps if latest[_software_aside(step)] is step]


def pairs_in_order(steps: Sequence[PublishedStep], planned: Mapping[PublishedStep, float]) -> tuple[int, int]:
    """Of the pairs of one GPU and precision whose published speeds differ, how many the plan has in that order; and
    all of them.
    """
    kept = pairs = 0
    for one, other in combinations(steps, 2):
        if one.group == other.group and one.published != other.published:
            pairs += 1
            kept += (one.published > other.published) == (planned[one] > planned[other])
    return kept, pairs


def _software_aside(step: PublishedStep) -> tuple[str, str, bool]:
    row = step.record
    # Release tests of one model differ in their layouts, and none replaces another.
    layout = row["layout"] if row["source"].endswith("release tests") else ""
    return f"{row['model']} {layout}", row["gpu"], row["precision"] == "bf16"


def _job(row: Record, device: Device) -> JobSpec:
    degree, gpus = degrees(row["layout"]), int(row["gpus"])
    settings = row["settings"].split("; ") if row["settings"] else []
    settings += [
        f"parallelism.context_parallel_size={degree['CP']}",
        # NVIDIA's recipes reduce gradients in bf16; Megatron-LM's own default is fp32.
        f"precision.grad_reduce_in_fp32={str(row['source'].endswith('release tests')).lower()}",
    ]
    if degree["VP"] > 1:
        settings.append(f"parallelism.virtual_pipeline_model_parallel_size={degree['VP']}")
    if not any("expert_tensor_parallel_size" in each for each in settings):
        settings.append("parallelism.expert_tensor_parallel_size=1")
    job = load_text(
        f"""\
name: row
model: {{preset: {row["preset"]}}}
parallelism:
  tensor_model_parallel_size: {degree["TP"]}
  sequence_parallel: {str(degree["TP"] > 1).lower()}
  pipeline_model_parallel_size: {degree["PP"]}
  expert_model_parallel_size: {degree["EP"]}
batch: {{micro_batch_size: {row["micro_batch"]}, global_batch_size: {row["global_batch"]}}}
data: {{random_tokens: true}}
optimizer: {{lr: 1e-4}}
schedule: {{train_iters: 10}}
launch: {{nodes: {gpus // device.gpus_per_node}, gpus_per_node: {device.gpus_per_node}}}
""",
        overrides=settings,
    ).job
    for each in row["refused"].split("; ") if row["refused"] else []:
        job = _against_rules(job, *each.split("="))
    return job


def _against_rules(job: JobSpec, name: str, value: str) -> JobSpec:
    """The job with a setting that this project's runtime does not take beside the others."""
    if name == "model.mtp_num_layers":
        return job.model_copy(update={"model": job.model.model_copy(update={"mtp_num_layers": int(value)})})
    assert name == "precision.fp8.recipe", name
    narrow = Fp8Spec.model_validate({"recipe": value})
    return job.model_copy(update={"precision": job.precision.model_copy(update={"fp8": narrow})})


def _kernels(software: list[str]) -> Kernels:
    """What ran, by the words of the column `software`."""
    kernels = OVERLAPPING if "tp-overlap" in software else TRANSFORMER_ENGINE
    if "unfused" in software:
        kernels = replace(PLAIN_TRANSFORMER_ENGINE, accumulation=TRANSFORMER_ENGINE.accumulation)
    once = "deepep" in software or "hybridep" in software
    moved = (FUSED_WITH_EXCHANGE if once else FUSED_PERMUTATION) if "fused" in software else None
    exchange = TokenExchange(
        once,
        "overlapped" in software,
        moved,
        fuses_permutation=False,
        fuses_router=False,
        waits_for_counts=int("padded" not in software),
    )
    replayed: Literal["nothing", "attention", "layers"] = "nothing"
    if "graphs" in software:
        replayed = "layers"
    elif "attention-graphs" in software:
        replayed = "attention"
    if "unfused" not in software:  # NVIDIA's recipes have cuDNN compute norms, of any width (NVTE_NORM_FWD_USE_CUDNN)
        kernels = replace(kernels, norm_of_any_width=None)
    # Megatron-LM's kernel joins the parts of latent attention as it rotates them: they are read and written once.
    kernels = replace(kernels, latent_copies=ForwardBackward(2, 2))
    return replace(kernels, token_exchange=exchange, replayed=replayed, own_experts=False)
