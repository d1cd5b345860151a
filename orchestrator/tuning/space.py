"""The layouts that a job could have on its machines, and which of them the rules of the spec allow.

Nothing here repeats a rule: a degree is tried, and `spec.rules` says what is wrong with it. What the rules come to
allow (context and expert parallelism, say) is searched from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import Literal, NamedTuple

from orchestrator.errors import Problem
from orchestrator.fields.refusals import divisors
from orchestrator.spec.documents.partial_validation import without_fields
from orchestrator.spec.encoder_decoder import HALVES, layers_of_stage
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.parallelism import ParallelismSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.rules import refusals, undecided
from orchestrator.spec.rules.base import Rule
from orchestrator.tuning.layout import KEYS, NO_RECOMPUTE, Layout, Recompute, layout_of, settings_of, with_layout

DEGREES = ("tp", "pp", "cp", "ep")
_KEY_OF = {field: key for key, field in KEYS.items() if field != "recompute"}
_KEY_OF_RECOMPUTE = "runtime.recompute_granularity"
_WHOLE_SIZES = (1, 2)
"""How many layers are recomputed together where all are."""


class Forms(NamedTuple):
    """A layout with more and more recomputation. Each is made when it is asked for, as most never are."""

    layout: Layout
    recomputes: list[Recompute]
    """Each is slower than the one before (`Space.recomputes`)."""

    def form(self, number: int) -> Layout:
        """With one of them."""
        return self.layout._replace(recompute=self.recomputes[number])

    @property
    def partial(self) -> int:
        """How many come before those that recompute every layer."""
        last = self.recomputes[-len(_WHOLE_SIZES) :]
        return len(self.recomputes) - sum(each.method == "uniform" for each in last)


@dataclass(frozen=True)
class Space:
    """What may be chosen for a job."""

    job: JobSpec
    """On its machines (`on_machines`), with the layout that it has now."""
    kept: frozenset[str] = frozenset()
    """Fields of a Layout that stay as they are."""
    linked_machines: int = 1
    """Machines whose GPUs are linked as those of one are."""

    @property
    def own(self) -> Layout:
        """The layout that the job has now."""
        own = layout_of(self.job)
        if own.tp_comm_overlap and "tp_comm_overlap" not in self.kept:
            # It overlaps without being told to, and a layout that cannot is not to be ruled out.
            return own._replace(tp_comm_overlap=None)
        return own

    def problem(self, layout: Layout) -> Problem | None:
        """Why a layout is not legal; None when it is."""
        return next(refusals(with_layout(self.job, layout), self._rules_of_layouts), None)

    def degrees(self) -> tuple[list[Layout], list[Layout], list[tuple[Layout, Problem]]]:
        """(inside machines, across machines, refused): each combination of TP, PP, CP and EP that the world allows.

        Each is the most permissive layout of its degrees: if that is not legal, none with these degrees is. Across
        machines are those whose tensor-parallel groups span several.
        """
        values, never = self._values_of_degrees()
        inside, across, refused = [], [], []
        for tp, pp, cp, ep in product(*(values[name] for name in DEGREES)):
            if self.job.world_size % (tp * pp * cp):
                continue
            layout, problem = self._permissive(tp, pp, cp, ep)
            if problem is not None:
                refused.append((layout, problem))
            elif self.job.processes_per_node * self.linked_machines % tp:
                across.append(layout)
            else:
                inside.append(layout)
        return inside, across, [*refused, *never]

    def chunks(self, degrees: Layout) -> list[int]:
        """Model chunks per stage that can be tried."""
        if "vp" in self.kept:
            return [self.own.vp]
        return divisors(self.job.model.num_layers // degrees.pp) if degrees.pp > 1 else [1]

    def micro_batches(self, degrees: Layout) -> list[int]:
        """Micro-batches that a replica's part of the global batch divides into, smallest first."""
        if "micro_batch_size" in self.kept:
            return [self.own.micro_batch_size]
        return divisors(self.job.global_batch_size // self.replicas(degrees))

    def recomputes(self, degrees: Layout, vp: int) -> list[Recompute]:
        """What can be recomputed, each slower than the one before: nothing, a layer of each chunk, two, …, then all of
        them one by one (uniform 1) or in pairs (uniform 2). Each layer more is leaner; of the last two, either can be.
        """
        if "recompute" in self.kept:
            return [self.own.recompute]
        if not self._may_recompute:
            return [NO_RECOMPUTE]
        split = settings_of(degrees._replace(vp=vp))["parallelism"]
        lengths = _lengths(self.job.model, self.job.parallelism.model_copy(update=split))
        # Each chunk recomputes so many of its own; of a T5 no more than its shorter half has.
        most = min(lengths) if self.job.model.family.is_encoder_decoder else max(lengths)
        whole = [
            Recompute("full", "uniform", size) for size in _WHOLE_SIZES if not any(each % size for each in lengths)
        ]
        return [*_in_parts(most), *whole]

    def replicas(self, layout: Layout) -> int:
        """DP."""
        return self.job.world_size // layout.model_parallel_size

    def without_sequence_parallel(self, layout: Layout) -> Layout | None:
        """The same with whole activations between tensor-parallel regions; None where there are no others, or no rule
        or wish allows it.
        """
        if not layout.sequence_parallel or "sequence_parallel" in self.kept:
            return None
        plain = layout._replace(sequence_parallel=False)
        return plain if self.problem(plain) is None else None

    def fully_sharded(self, layout: Layout) -> list[Layout]:
        """The same with weights and gradients shared out too, by all replicas and by those of a machine; none where
        there are no replicas, or no rule or wish allows it.
        """
        replicas = self.job.world_size // (layout.tp * layout.pp)
        if layout.fsdp or "fsdp" in self.kept or replicas == 1:
            return []
        together = self.job.processes_per_node * self.linked_machines // layout.tp
        sizes: list[Literal["full"] | int] = ["full", *([together] if 1 < together < replicas else [])]
        return [each for size in sizes if self.problem(each := layout._replace(fsdp=size)) is None]

    def forms(self, degrees: Layout) -> list[Layout]:
        """The same, and without sequence parallelism, and fully sharded, where that is legal."""
        plain = self.without_sequence_parallel(degrees)
        return [degrees, *([] if plain is None else [plain]), *self.fully_sharded(degrees)]

    @cached_property
    def _rules_of_layouts(self) -> tuple[Rule, ...]:
        """Those to which it matters which layout the job has."""
        return undecided(without_fields(self.job, settings_of(layout_of(self.job))))

    @cached_property
    def may_join_loss(self) -> bool:
        """Whether no rule refuses it by itself, as for an encoder, and it is not to stay as it is."""
        if "joins_loss" in self.kept:
            return False
        layout = self.own._replace(joins_loss=True)
        return not any(_KEY_OF["joins_loss"] in each.paths for each in refusals(with_layout(self.job, layout)))

    @cached_property
    def _may_recompute(self) -> bool:
        """Whether no rule refuses it by itself, as for CUDA graphs."""
        layout = self.own._replace(recompute=Recompute("full", "uniform", 1))
        return not any(_KEY_OF_RECOMPUTE in each.paths for each in refusals(with_layout(self.job, layout)))

    def _values_of_degrees(self) -> tuple[dict[str, list[int]], list[tuple[Layout, Problem]]]:
        """The values of each degree that no rule refuses by itself. What is left out here is out in any combination."""
        values: dict[str, list[int]] = {}
        refused: list[tuple[Layout, Problem]] = []
        alone = {name: getattr(self.own, name) if name in self.kept else 1 for name in DEGREES}
        for name in DEGREES:
            values[name] = []
            for value in [alone[name]] if name in self.kept else divisors(self.job.world_size):
                degrees = {**alone, name: value}
                layout = self._layout(**degrees, sequence_parallel=degrees["tp"] > 1)
                found = refusals(with_layout(self.job, layout))
                problem = next((each for each in found if each.paths[:1] == (_KEY_OF[name],)), None)
                if problem is None:
                    values[name].append(value)
                else:
                    refused.append((layout, problem))
        return values, refused

    def _permissive(self, tp: int, pp: int, cp: int, ep: int) -> tuple[Layout, Problem | None]:
        """The layout of these degrees that meets the fewest rules, and what is wrong with even that.

        Sequence parallelism is on with TP > 1: it moves no more bytes (a reduce-scatter and an all-gather are an
        all-reduce) and leaves each rank 1/TP of what lies between the tensor-parallel regions. It is off where the
        sequence does not divide.
        """
        layout = self._layout(tp, pp, cp, ep, sequence_parallel=tp > 1)
        problem = self.problem(layout)
        plain = None if problem is None else self.without_sequence_parallel(layout)
        return (layout, problem) if plain is None else (plain, None)

    def _layout(self, tp: int, pp: int, cp: int, ep: int, *, sequence_parallel: bool) -> Layout:
        own = self.own
        has_replicas = self.job.world_size > tp * pp  # of the weights: ranks that share a sequence have the same
        wanted = Layout(
            tp=tp,
            pp=pp,
            vp=1,
            cp=cp,
            ep=ep,
            micro_batch_size=1,
            sequence_parallel=sequence_parallel,
            # Sharding moves no more bytes than an all-reduce does, and saves memory and time of the update; what
            # overlaps is never slower. Without replicas they change nothing and stay as they are.
            use_distributed_optimizer=has_replicas or own.use_distributed_optimizer,
            overlap_grad_reduce=has_replicas or own.overlap_grad_reduce,
            overlap_param_gather=None if has_replicas else own.overlap_param_gather,
            recompute=NO_RECOMPUTE,
            tp_comm_overlap=own.tp_comm_overlap,
        )
        return wanted._replace(**{name: getattr(own, name) for name in self.kept})


@cache  # a search asks thousands of times
def _in_parts(most: int) -> tuple[Recompute, ...]:
    """Nothing, one layer of a chunk, two, …, all but one of `most`."""
    return (NO_RECOMPUTE, *(Recompute("full", "block", count) for count in range(1, most)))


def _lengths(model: ModelSpec, degrees: ParallelismSpec) -> set[int]:
    """How many layers the chunks hold, or the halves of a T5 on its stages."""
    if not model.family.is_encoder_decoder:
        return {held for stage in layers_of_chunks(model.num_layers, degrees) for held in stage}
    stages = range(degrees.pipeline_model_parallel_size)
    return {held for half in HALVES for stage in stages if (held := layers_of_stage(half, stage, model, degrees))}
