"""The activation of the MLP, and which GeLU it is."""

from __future__ import annotations

from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import MEGATRON, GivenFlags
from orchestrator.models.blocks.flags import FlagGroup

ACTIVATION = "model.activation"
_UNFUSED, _APPROXIMATE, _BY_ENGINE = "no-bias-gelu-fusion", "openai-gelu", "use-te-activation-func"
_FLAGS = {"swiglu": "swiglu", "squared-relu": "squared_relu", "quick-geglu": "quick_geglu"}
_OWN_LAYERS = ("use-legacy-models", "deepspeed")
"""Flags of those whose layers are not megatron-core's."""


def read_activation(given: GivenFlags) -> None:
    """megatron-core's GeLU is exact, but for its kernel that adds a bias; no flag of it asks for the approximation."""
    for flag, activation in _FLAGS.items():
        if given.has(flag) and given.get(ACTIVATION) in ("gelu", activation):
            given.carry(flag, ACTIVATION, activation)
        elif given.has(flag):
            given.not_supported(flag, f"Megatron-LM refuses it beside --{given.get(ACTIVATION)}", ACTIVATION)
    has_experts = given.has("num-experts") and given.number("num-experts") != 0
    fuses = given.get("model.add_bias_linear") is not False and not has_experts
    if given.get(ACTIVATION) != "gelu":
        given.no_effect(_UNFUSED, "there is no GeLU with a fused bias")
        given.no_effect((_APPROXIMATE, _BY_ENGINE), "it is for GeLU")
    elif given.has(_APPROXIMATE) and any(given.has(flag) for flag in _OWN_LAYERS):
        given.carry(_APPROXIMATE, ACTIVATION, "gelu_tanh")
        given.no_effect(_UNFUSED, f"--{_APPROXIMATE} says which GeLU it is")
    elif not fuses:
        given.no_effect(_UNFUSED, "there is no GeLU with a fused bias")
    elif given.has(_UNFUSED):
        given.settle(_UNFUSED, "default", ACTIVATION, "gelu", "the exact function")
    else:
        given.default(ACTIVATION, "gelu_tanh", f"{MEGATRON}: with a bias GeLU is its approximation")
    if given.get(ACTIVATION) == "gelu_tanh":
        given.no_effect((_APPROXIMATE, _BY_ENGINE), "GeLU is this approximation without it")
        return
    if given.has(_APPROXIMATE) and _APPROXIMATE not in given.settled:
        given.no_effect(_APPROXIMATE, "megatron-core ignores it")
        given.migration.notes.append(
            f"--{_APPROXIMATE} changes nothing in megatron-core, whose GeLU is exact here; where the script is for "
            "layers of Megatron-LM's own (until core_v0.7.0 without --use-mcore-models), write model.activation: "
            "gelu_tanh"
        )
    if given.has(_BY_ENGINE) and _BY_ENGINE not in given.settled:
        reason = "Transformer Engine's GeLU is the approximation: write gelu_tanh if your release builds it"
        given.refuse_value(_BY_ENGINE, ACTIVATION, reason)


def write_activation(writer: FlagWriter) -> None:
    model = writer.job.model
    activation, has_bias = model.activation, model.add_bias_linear
    fuses = has_bias and not model.has_experts
    flag = next((flag for flag, meant in _FLAGS.items() if meant == activation), None)
    if activation == "gelu" and has_bias:
        writer.add("MODEL", _UNFUSED)
        approximated = "in one kernel with a bias it would be an approximation"
        reason = approximated if fuses else "Megatron-LM refuses to add a bias of experts in the kernel of a GeLU"
        writer.say_otherwise(ACTIVATION, f"--{_UNFUSED}: {reason}")
    elif activation == "gelu_tanh" and fuses:
        return  # Megatron-LM's default
    elif activation == "gelu_tanh":
        where = "in experts" if has_bias else "without biases"
        reason = f"{where} megatron-core has the exact function alone, with --{_APPROXIMATE} too"
        writer.unsaid_value(ACTIVATION, reason)
    elif flag is not None:
        writer.add("MODEL", flag)
        if activation == "squared_relu" and has_bias:
            writer.add("MODEL", _UNFUSED)  # megatron-core refuses to add a bias in the kernel of another function
    else:
        writer.leave(ACTIVATION, "Megatron-LM has no flag for it")
    if flag is None and activation != "gelu" and has_bias and not fuses:
        writer.add("MODEL", _UNFUSED)  # megatron-core refuses to add a bias of experts in the kernel of a GeLU


ACTIVATIONS = (
    FlagGroup(
        dict.fromkeys((*_FLAGS, _UNFUSED, _APPROXIMATE, _BY_ENGINE), 0),
        read_activation,
        write_activation,
        (ACTIVATION,),
    ),
)
