"""Seconds of the layers of a hybrid, by kind. The figures of state space layers have not been measured."""

from __future__ import annotations

from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.models.blocks.state_space import matrices as state_space
from orchestrator.models.blocks.state_space.time import moved
from orchestrator.planning.time.kernels.elementwise import branch_seconds, layer_seconds
from orchestrator.planning.time.kernels.gemm import peak
from orchestrator.planning.time.passes import Parts, Pass, add, layer_pass, linear_passes, mlp_pass, split
from orchestrator.planning.time.setting import Setting
from orchestrator.spec.hybrid import ATTENTION, MLP, STATE_SPACE


def layer_passes(setting: Setting) -> dict[str, Pass]:
    """One layer of each kind: those of a transformer layer taken apart, and a state space layer."""
    whole, mlp = layer_pass(setting), _mlp(setting)
    attention = Pass(*(_without(one, other) for one, other in zip(whole, mlp, strict=True)))
    return {ATTENTION: attention, MLP: mlp, STATE_SPACE: _state_space(setting)}


def _without(whole: Parts, part: Parts) -> Parts:
    return {name: seconds - part.get(name, 0.0) for name, seconds in whole.items()}


def _mlp(setting: Setting) -> Pass:
    products = mlp_pass(setting, setting.model.ffn_size)
    branch = branch_seconds(setting)
    inner = layer_seconds(setting, setting.tokens * setting.model.ffn_size / setting.tp)
    without = layer_seconds(setting, 0.0)
    return Pass(
        add(products.forward, {"memory_bound": inner.forward - without.forward + branch.forward}),
        add(products.backward, {"memory_bound": inner.backward - without.backward + branch.backward}),
    )


def _state_space(setting: Setting) -> Pass:
    linears = split(state_space.matrices(setting.model), setting.tp)
    products, branch, scan = linear_passes(setting, linears, setting.products), branch_seconds(setting), _scan(setting)
    return Pass(
        add(products.forward, {"memory_bound": branch.forward + scan.forward}),
        add(products.backward, {"memory_bound": branch.backward + scan.backward}),
    )


def _scan(setting: Setting) -> ForwardBackward:
    """Convolution, scan and norm: the slower of moving and computing."""
    fitted = setting.device.fitted.hybrid
    own = setting.tokens / setting.tp
    each = moved(setting.model, fitted.projected, fitted.convolved, fitted.inner)
    computed = state_space.scan_flops(setting.model) * own / (fitted.scan_rate * peak(setting.device, setting.dtype))
    return ForwardBackward(
        max(setting.streaming(each.forward * own * setting.size), computed),
        max(setting.streaming(each.backward * own * setting.size), fitted.scan_backward * computed),
    )
