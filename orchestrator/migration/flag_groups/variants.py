"""Variants of the decoder: its activation, scaled rotary positions, and attention windows."""

from __future__ import annotations

from orchestrator.fields.flag_values import FREQUENCY
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import MEGATRON, GivenFlags
from orchestrator.migration.megatron_flags.programs import PROGRAMS
from orchestrator.migration.report import WRITE_IT
from orchestrator.models.blocks.flags import FlagGroup

ACTIVATION, SCALING = "model.activation", "model.rope_scaling"
_MAMBA_LAYERS = ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"]
_HYBRID_LAYERS = (_MAMBA_LAYERS, ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"])
"""Megatron-LM's own layers of hybrids, under both names."""
PATTERN, NUM_LAYERS = "model.hybrid_override_pattern", "model.num_layers"
LAYERS = "runtime.layers"
NO_ROPE = "model.no_rope_freq"
WINDOW, SKIP = "model.sliding_window", "model.window_attn_skip_freq"
_UNFUSED, _APPROXIMATE, _BY_ENGINE = "no-bias-gelu-fusion", "openai-gelu", "use-te-activation-func"
_FLAGS = {"swiglu": "swiglu", "squared-relu": "squared_relu", "quick-geglu": "quick_geglu"}
_OWN_LAYERS = ("use-legacy-models", "deepspeed")
"""Flags of those whose layers are not megatron-core's."""
LLAMA_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Megatron-LM's --use-rope-scaling has these figures of Llama 3.1."""


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
    flag = next((flag for flag, meant in _FLAGS.items() if meant == activation), None)
    if activation == "gelu" and has_bias:
        writer.add("MODEL", _UNFUSED)
        writer.say_otherwise(ACTIVATION, f"--{_UNFUSED}: in one kernel with a bias it would be an approximation")
    elif activation == "gelu_tanh" and has_bias:
        return  # Megatron-LM's default
    elif activation == "gelu_tanh":
        reason = f"without biases megatron-core has the exact function alone, with --{_APPROXIMATE} too"
        writer.unsaid_value(ACTIVATION, reason)
    elif flag is not None:
        writer.add("MODEL", flag)
        if activation == "squared_relu" and has_bias:
            writer.add("MODEL", _UNFUSED)  # megatron-core refuses to add a bias in the kernel of another function
    else:
        writer.leave(ACTIVATION, "Megatron-LM has no flag for it")


def read_scaling(given: GivenFlags) -> None:
    llama, factor, linear = "use-rope-scaling", "rope-scaling-factor", "rotary-seq-len-interpolation-factor"
    if given.get("model.position_embedding_type") not in ("rope", WRITE_IT):
        given.no_effect((llama, factor, linear), "it is for rotary positions")
        return
    if not given.family.scales_positions:
        given.no_effect((llama, factor, linear), f"Megatron-LM's {given.family.name} scales no positions")
        return
    if given.family.trains.is_hybrid:
        given.no_effect((llama, factor), "Megatron-LM's hybrids have no scaling of Llama's kind")
    if not given.has(llama) or llama in given.settled:
        given.no_effect(factor, "Megatron-LM takes it with --use-rope-scaling only")
        if given.has(linear) and given.number(linear) == 1:
            given.settle(linear, "default", SCALING, None, "a factor of 1 is none")
        elif given.has(linear):
            _carry_scaling(given, linear, linear, "linear")
        return
    if given.has(linear):
        given.not_supported(linear, "one kind of scaling holds, and --use-rope-scaling is another", SCALING)
    _carry_scaling(given, llama, factor, "llama3")
    if given.has(factor) and factor not in given.settled:
        given.settle(factor, "carried", f"{SCALING}.factor", given.text(factor))


def _carry_scaling(given: GivenFlags, flag: str, factor: str, kind: str) -> None:
    """The section of a kind of scaling, whose factor another flag may say."""
    text = given.text(factor) if given.has(factor) else "8.0"
    try:
        value = float(text or "")
    except ValueError:
        value = 0.0
    if 1.0 <= value < float("inf"):
        figures = LLAMA_SCALING if kind == "llama3" else {}
        given.carry(flag, SCALING, {"type": kind, "factor": value, **figures})
    else:
        given.write_it(flag, SCALING, f"--{factor} is no number from 1")
        if factor != flag:
            given.settle(factor, "not_known", SCALING)


def write_scaling(writer: FlagWriter) -> None:
    scaling, own_flags = writer.job.model.rope_scaling, writer.job.model.attention.flags.translated
    if scaling is None or any(SCALING in each.paths for each in own_flags):
        return
    if not PROGRAMS.of(writer.job.model.family).scales_positions:
        writer.unsaid_value(SCALING, f"Megatron-LM's {PROGRAMS.of(writer.job.model.family).name} scales no positions")
    elif scaling.type == "linear" and scaling.factor.is_integer():
        writer.add("MODEL", "rotary-seq-len-interpolation-factor", int(scaling.factor))
    elif scaling.type == "llama3" and all(getattr(scaling, name) == value for name, value in LLAMA_SCALING.items()):
        writer.add("MODEL", "use-rope-scaling")
        writer.add("MODEL", "rope-scaling-factor", scaling.factor)
    else:
        writer.unsaid_value(SCALING, "Megatron-LM has whole linear factors, and llama3 with Llama 3.1's own figures")


def read_layer_spec(given: GivenFlags) -> None:
    """Which layers a program builds: of a Mamba Megatron-LM's own ones, which it asks for by name."""
    if not given.has("spec"):
        return
    if given.family.trains.is_hybrid and given.words("spec") in _HYBRID_LAYERS:
        given.no_effect("spec", "architecture: mamba has these layers")
    elif given.family.trains.is_masked_lm and given.words("spec") == ["local"]:
        given.carry("spec", LAYERS, "torch")
    elif given.family.trains.is_encoder_decoder:
        given.no_effect("spec", "Megatron-LM's T5 has the layers that --transformer-impl names")
    else:
        given.another_training("spec", "custom layers are not in this version")


def write_layer_spec(writer: FlagWriter) -> None:
    model = writer.job.model
    if model.family.is_hybrid:
        writer.add("MODEL", "spec", *_MAMBA_LAYERS)
    elif model.family.is_masked_lm and writer.job.runtime.layers == "torch":
        writer.add("MODEL", "spec", "local")  # the trainer of BERT does not read --transformer-impl


def read_pattern(given: GivenFlags) -> None:
    """A letter for each layer: they say how many there are. Newer releases also cut the pipeline, at each `|`."""
    name = "hybrid-override-pattern"
    if not given.has(name):
        return
    text = given.text(name)
    if not given.family.trains.is_hybrid:
        _read_pattern_of_another(given, name, text)
        return
    if text is None:
        given.write_it(name, PATTERN)
        return
    if "/" in text:
        given.refuse_value(name, PATTERN, "multi-token prediction, after the /, is not in this version")
        return
    pattern = text.replace("|", "")
    if pattern != text:
        given.migration.notes.append(f"{given.flags[name].shown}: layers are distributed evenly, not split at each |")
    given.carry(name, PATTERN, pattern)
    if given.get(NUM_LAYERS) != len(pattern):
        if given.has("num-layers"):
            given.overrule("num-layers", f"{given.flags[name].shown} says how many")
        given.put(NUM_LAYERS, len(pattern), f"{given.flags[name].shown} names so many")


def _read_pattern_of_another(given: GivenFlags, name: str, text: str | None) -> None:
    """core_v0.16.1's GPT takes no notice of it; releases with its newer name count the layers by it all the same."""
    shown = given.flags[name].shown
    layers = (text or "").partition("/")[0].replace("|", "")
    if layers and shown.startswith("--hybrid-layer-pattern") and given.get(NUM_LAYERS) != len(layers):
        if given.has("num-layers"):
            given.overrule("num-layers", f"{shown} says how many")
        given.carry(name, NUM_LAYERS, len(layers))
    else:
        given.no_effect(name, f"Megatron-LM's {given.family.name} has no such pattern")
    given.migration.notes.append(
        f"{shown}: its program trains a {given.family.name}, and no hybrid; for a hybrid, model.architecture=mamba and "
        f"{PATTERN}={layers or 'PATTERN'} (--set)"
    )


def write_pattern(writer: FlagWriter) -> None:
    pattern = writer.job.model.hybrid_override_pattern
    if pattern is not None:
        writer.add("MODEL", "hybrid-override-pattern", pattern)


def read_window(given: GivenFlags) -> None:
    name, skip = "window-size", "window-attn-skip-freq"
    if not given.has(name):
        given.no_effect(skip, "Megatron-LM takes it with --window-size only")
        return
    sizes = (given.text(name) or "").strip("()[] ").replace(" ", "").split(",")
    if len(sizes) == 2 and sizes[0] == "-1":
        given.settle(name, "default", WINDOW)
        given.no_effect(skip, "there is no window")
        return
    if given.family.trains.is_masked_lm and len(set(sizes)) > 1:
        given.refuse_value(name, WINDOW, "a BERT's window has as many tokens before as after")
    elif len(sizes) == 2 and all(size.isascii() and size.isdigit() and len(size) < 10 for size in sizes):
        given.carry(name, WINDOW, int(sizes[0]) + 1)
    else:
        given.write_it(name, WINDOW, "two whole numbers are expected: tokens before and after")
    if not given.has(skip):
        return
    try:
        layers = FREQUENCY.read(given.text(skip) or "")
    except ValueError as error:
        given.write_it(skip, SKIP, str(error))
    else:
        given.carry(skip, SKIP, layers)


def read_unrotated(given: GivenFlags) -> None:
    name = "no-rope-freq"
    if not given.has(name):
        return
    if given.get("model.position_embedding_type") not in ("rope", WRITE_IT):
        given.no_effect(name, "it is for rotary positions")
    elif (layers := given.number(name)) is None:
        given.refuse_value(name, NO_ROPE, "a list of layers is not in this version: write a number")
    else:
        given.carry(name, NO_ROPE, layers)


def write_unrotated(writer: FlagWriter) -> None:
    model = writer.job.model
    if model.no_rope_freq is None:
        return
    if model.num_layers % model.no_rope_freq:
        writer.unsaid_value(NO_ROPE, "Megatron-LM wants as many layers as make up whole rounds")
    else:
        writer.add("MODEL", "no-rope-freq", model.no_rope_freq)


def write_window(writer: FlagWriter) -> None:
    model = writer.job.model
    if model.window_size is not None:
        before, after = model.window_size
        writer.add("MODEL", "window-size", f"{before},{after}")
        if model.window_attn_skip_freq is not None:
            writer.add("MODEL", "window-attn-skip-freq", FREQUENCY.write(model.window_attn_skip_freq))


VARIANTS = (
    FlagGroup(
        dict.fromkeys((*_FLAGS, _UNFUSED, _APPROXIMATE, _BY_ENGINE), 0),
        read_activation,
        write_activation,
        (ACTIVATION,),
    ),
    FlagGroup(
        {"use-rope-scaling": 0, "rope-scaling-factor": 1, "rotary-seq-len-interpolation-factor": 1},
        read_scaling,
        write_scaling,
        (SCALING,),
    ),
    FlagGroup({"window-size": 1, "window-attn-skip-freq": 1}, read_window, write_window, (WINDOW, SKIP)),
    FlagGroup({"no-rope-freq": 1}, read_unrotated, write_unrotated, (NO_ROPE,)),
    FlagGroup({"spec": None}, read_layer_spec, write_layer_spec, ()),
    FlagGroup({"hybrid-override-pattern": 1}, read_pattern, write_pattern, (PATTERN,)),
)
