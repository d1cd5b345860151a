"""Seconds of the layers of a hybrid, by kind. The figures of state space layers have not been measured."""

from __future__ import annotations

from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.planning.flops.hybrid import SCAN
from orchestrator.planning.time.kernels.elementwise import branch_seconds, layer_seconds
from orchestrator.planning.time.kernels.gemm import Linear, peak
from orchestrator.planning.time.passes import Parts, Pass, add, layer_pass, linear_passes, mlp_pass
from orchestrator.planning.time.setting import Setting
from orchestrator.spec.hybrid import ATTENTION, MLP, STATE_SPACE, convolved_width, projected_width, state_space_width


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
    model, tp = setting.model, setting.tp
    width = state_space_width(model)
    linears = [
        Linear(model.hidden_size, projected_width(model) / tp, True),
        Linear(width / tp, model.hidden_size, False),
    ]
    products, branch, scan = linear_passes(setting, linears, setting.products), branch_seconds(setting), _scan(setting)
    return Pass(
        add(products.forward, {"memory_bound": branch.forward + scan.forward}),
        add(products.backward, {"memory_bound": branch.backward + scan.backward}),
    )


def _scan(setting: Setting) -> ForwardBackward:
    """Convolution, scan and norm: the slower of moving and computing."""
    model, fitted = setting.model, setting.device.fitted.hybrid
    own = setting.tokens / setting.tp
    width = state_space_width(model)
    widths = (
        (fitted.projected, projected_width(model)),
        (fitted.convolved, convolved_width(model)),
        (fitted.inner, width),
    )
    moved = ForwardBackward(
        sum(accesses.forward * each for accesses, each in widths),
        sum(accesses.backward * each for accesses, each in widths),
    )
    computed = SCAN * width * model.mamba_state_dim * own / (fitted.scan_rate * peak(setting.device, setting.dtype))
    return ForwardBackward(
        max(setting.streaming(moved.forward * own * setting.size), computed),
        max(setting.streaming(moved.backward * own * setting.size), fitted.scan_backward * computed),
    )
