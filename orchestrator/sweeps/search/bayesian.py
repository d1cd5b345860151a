"""Drawing the next trial from what earlier ones have shown, with Optuna's TPE sampler.

Optuna keeps nothing: before each draw its study is made again of the ledger, and the sampler's seed follows from the
number of the draw. The same history gives the same draw, in whichever process.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from orchestrator.spec.sweep import DistributionSpec, RandomSpec

_LEAST_AT_RANDOM, _MOST_AT_RANDOM = 3, 10
"""Of the first trials, which are drawn independently."""
_STATES = {"done": TrialState.COMPLETE, "worst": TrialState.PRUNED, "open": TrialState.RUNNING}


@dataclass(frozen=True)
class Seen:
    """An earlier trial. `worst`: it failed, or no run can be made of it."""

    draws: dict[str, float]
    state: Literal["done", "worst", "open"]
    value: float | None = None


def draw(random: RandomSpec, goal: str, seen: Sequence[Seen], number: int) -> dict[str, float]:
    """The values of the next trial, by field; of a choice, its place."""
    space = {name: _distribution(each) for name, each in random.fields.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        logging.getLogger("optuna").setLevel(logging.WARNING)
        sampler = optuna.samplers.TPESampler(
            seed=int.from_bytes(hashlib.sha256(f"{random.seed}/{number}".encode()).digest()[:4]),
            n_startup_trials=min(_MOST_AT_RANDOM, max(_LEAST_AT_RANDOM, random.count // 4)),
            multivariate=True,
            constant_liar=True,  # of trials that are still open nothing good is expected where they are
        )
        study = optuna.create_study(direction="maximize" if goal == "max" else "minimize", sampler=sampler)
        for each in seen:
            study.add_trial(
                create_trial(
                    state=_STATES[each.state],
                    value=each.value,
                    params={name: _stored(each.draws[name], random.fields[name]) for name in space},
                    distributions=space,
                )
            )
        drawn = study.ask(space).params
    return {name: _rounded(drawn[name], random.fields[name]) for name in space}


def _distribution(spec: DistributionSpec) -> BaseDistribution:
    if spec.choice is not None:
        return CategoricalDistribution(range(len(spec.choice)))
    if spec.integers is not None:
        low, high = spec.integers
        return IntDistribution(low, high)
    ends = spec.loguniform or spec.uniform
    assert ends is not None
    return FloatDistribution(ends[0], ends[1], log=spec.loguniform is not None)


def _stored(value: float, spec: DistributionSpec) -> float:
    return int(value) if spec.choice is not None or spec.integers is not None else value


def _rounded(value: float, spec: DistributionSpec) -> float:
    """As the cell has it: four digits."""
    ends = spec.loguniform or spec.uniform
    return value if ends is None else min(max(float(f"{value:.4g}"), ends[0]), ends[1])
