"""What a checkpoint says of the optimizer beside its tensors, Megatron-LM's and ours: it is for the groups that each
makes of the parameters, and of the groups' values only the number of steps outlives a start.

Ours tells apart by `is_decoupled_lr` what has a learning rate of its own, Megatron-LM by `max_lr`. Ours always keeps
the experts in an optimizer of their own, Megatron-LM only where they are spread (EP > 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.spec.job import JobSpec


def is_resumable(shared: Any) -> bool:
    """Whether it is what a distributed optimizer says, and says its steps: training can go on from it."""
    if not isinstance(shared, dict) or not shared:
        return False
    parts = [part.get("optimizer") if isinstance(part, dict) else None for part in _parts(shared)]
    groups = [part.get("param_groups") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(each, list) and all(isinstance(group, dict) for group in each) for each in groups):
        return False
    return any("step" in group for group in _groups_of(shared))


def taken_state(shared: dict[Any, Any], job: JobSpec) -> dict[Any, Any]:
    """That of ours, of a resumable one of Megatron-LM's."""
    parts = _parts(shared)
    group = next(group for group in _groups_of(shared) if "step" in group)
    taken = []
    for experts in (False, True) if job.model.has_experts else (False,):
        part = parts[-1] if experts else parts[0]
        groups = [
            {**group, "is_expert_parallel": experts, "wd_mult": decay, "lr_mult": 1.0, "is_decoupled_lr": decoupled}
            for decay, decoupled in _kinds(job, experts=experts)
        ]
        taken.append({**part, "optimizer": {**part["optimizer"], "param_groups": groups}})
    return taken[0] if len(taken) == 1 else dict(enumerate(taken))


def plain_state(ours: dict[Any, Any], job: JobSpec) -> dict[Any, Any]:
    """That of a plain optimizer, of that of a distributed one: in fp32 it has no more than its groups."""
    if job.precision.dtype == "fp32":
        return dict(ours["optimizer"])
    return {name: value for name, value in ours.items() if name != "param_state_sharding_type"}


def _kinds(job: JobSpec, *, experts: bool) -> Iterator[tuple[float, bool]]:
    """`wd_mult` and `is_decoupled_lr` of the groups that ours may make."""
    yield 1.0, False
    if not experts or job.model.add_bias_linear:
        yield 0.0, False
    if not experts and job.optimizer.decoupled_lr is not None:
        yield 1.0, True
        if not job.optimizer.decay_embeddings:
            yield 0.0, True


def given_state(ours: dict[Any, Any], job: JobSpec) -> dict[Any, Any]:
    """That of Megatron-LM, of ours."""
    parts = _parts(ours)
    if len(parts) > 1 and job.parallelism.expert_model_parallel_size == 1:
        parts = [_joined(parts)]
    given = [
        {**part, "optimizer": {**part["optimizer"], "param_groups": _groups(part["optimizer"]["param_groups"], job)}}
        for part in parts
    ]
    return given[0] if len(given) == 1 else dict(enumerate(given))


def _parts(state: dict[Any, Any]) -> list[Any]:
    """The optimizers that a state is of."""
    return [state] if "optimizer" in state else [state[key] for key in sorted(state, key=str)]


def _groups_of(state: dict[Any, Any]) -> list[dict[str, Any]]:
    return [group for part in _parts(state) for group in part["optimizer"]["param_groups"]]


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The optimizers of dense weights and of experts as one."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for group in _groups_of(dict(enumerate(parts))):
        groups.setdefault((group["wd_mult"], group["is_decoupled_lr"]), {**group, "is_expert_parallel": False})
    first = parts[0]
    return {**first, "optimizer": {**first["optimizer"], "param_groups": list(groups.values())}}


def _groups(ours: list[dict[str, Any]], job: JobSpec) -> list[dict[str, Any]]:
    rate, least = job.optimizer.decoupled_lr, job.optimizer.decoupled_min_lr
    own = {"max_lr": rate, "default_config": False, "is_decoupled_lr": False}
    own |= {} if least is None else {"min_lr": least}
    return [{**group, **own} if group["is_decoupled_lr"] else group for group in ours]
