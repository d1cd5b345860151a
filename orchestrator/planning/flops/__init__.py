"""Model FLOPs of a step and the peak of a device, from which MFU is computed.

Only the model's own arithmetic counts: forward and backward (twice the forward), full attention, not halved for
causality unless `throughput.flops` is causal, no recomputation, only the experts that a token is routed to, no
gradients of frozen weights. For multi-head attention and a 4h GeLU MLP it is T · (72·L·h² + 12·L·h·s + 6·V·h) (T
tokens, L layers, h hidden size, s sequence length, V padded vocabulary).
"""

from __future__ import annotations

from orchestrator.models.layers import layers as layers_of
from orchestrator.models.layers import prediction_layers
from orchestrator.planning.flops.layers import attended, layers_flops
from orchestrator.planning.flops.lora import lora_flops, lora_formula
from orchestrator.planning.flops.t5 import T5_FORMULA, t5_flops
from orchestrator.planning.flops.vision import vision_flops, vision_formula
from orchestrator.planning.hardware.devices import shipped
from orchestrator.spec.job import JobSpec

_EXPERTS = (
    "in a layer with experts m*f is m*(chosen experts * their width * c + shared width) + experts; "
    "c the capacity factor where it is below 1, and else 1"
)
_CAUSAL_EXPERTS = "in a layer with experts m*f is m*(chosen experts * their width + shared width)"
FORMULA = (
    "T * (6*L*(h*(q+2*k) + q*h + m*h*f) + 12*L*q*s + 6*V*h); T tokens, L layers, h hidden, q query width, "
    "k key width, m MLP matrices (2, gated 3), f ffn width, s sequence, V padded vocabulary; "
    "in a layer with a window of w tokens s is w*(2 - w/s); "
    f"{_EXPERTS}"
)
"""The formula as it is stored beside a number."""
CAUSAL_FORMULA = (
    "T * (6*L*(h*(q+2*k) + q*h + q*s + m*h*f) + 6*V*h); as Megatron-LM counts, half of attention's scores; T tokens, "
    "L layers, h hidden, q query width, k key width, m MLP matrices (2, gated 3), f ffn width, s sequence, V padded "
    f"vocabulary; {_CAUSAL_EXPERTS}"
)
"""Neither windows nor routers nor dropped tokens are counted, nor what is bidirectional in full."""
HYBRID_FORMULA = (
    "T * (3*M*(2*h*p + 7*w*n + 2*w*h) + A*(6*(h*(q+2*k) + q*h) + 12*q*s) + 6*F*m*h*f + 6*V*h); T tokens, "
    "M, A and F layers of state space, attention and MLP or experts, h hidden, w width of a state space layer, "
    "n its state, p = 2*w + 2*groups*n + heads, q query width, k key width, s sequence, m MLP matrices (2, "
    f"gated 3), f ffn width, V padded vocabulary; {_EXPERTS}"
)
"""Megatron-LM counts the scan as 7*w*n as well."""
_NORMS_OF_PREDICTION = 3
_MASKED_LM_HEAD = " + 6*h*h"
"""Its dense layer."""


def formula(job: JobSpec) -> str:
    """The formula of a job's model, as it is stored beside a number."""
    model, causal = job.model, counts_causal(job)
    if model.family.is_encoder_decoder:
        return T5_FORMULA.replace("12*D*q*Sd*(Sd + Se)", "6*D*q*Sd*(Sd + 2*Se)") if causal else T5_FORMULA
    if model.family.is_hybrid or model.has_adapters:
        own = lora_formula(model) if model.has_adapters else HYBRID_FORMULA
        return own.replace("12*q*s", "6*q*s").replace(_EXPERTS, _CAUSAL_EXPERTS) if causal else own
    of_layers = CAUSAL_FORMULA if causal else FORMULA
    if job.has_task:
        return of_layers.replace(" + 6*V*h)", ")")  # its head is no work beside the layers
    if model.has_vision:
        return f"{of_layers}; plus {vision_formula(model.image_encoder)}"
    added = {block.name: block.formula for layer in (*layers_of(model), *prediction_layers(model)) for block in layer}
    of_layers = "; ".join([of_layers, *filter(None, added.values())])
    if causal and prediction_layers(model):
        of_layers += ", and 18*h for its norms"
    has_head = model.family.is_masked_lm and not causal
    return of_layers.replace(" + 6*V*h)", f" + 6*V*h{_MASKED_LM_HEAD})") if has_head else of_layers


def counts_causal(job: JobSpec) -> bool:
    """Whether a job's FLOPs are counted as Megatron-LM counts them."""
    return job.throughput.flops == "causal"


def model_flops(job: JobSpec, tokens: int, padded_vocab: int) -> float:
    """Floating-point operations of forward and backward over `tokens` tokens, by the count that the job asks for."""
    return _flops(job, tokens, padded_vocab, causal=counts_causal(job))


def full_flops(job: JobSpec, tokens: int, padded_vocab: int) -> float | None:
    """With all of attention's scores, to stand beside `model_flops` of a job that asks for Megatron-LM's count; None
    for one whose `model_flops` these are.
    """
    return _flops(job, tokens, padded_vocab, causal=False) if counts_causal(job) else None


def _flops(job: JobSpec, tokens: int, padded_vocab: int, *, causal: bool) -> float:
    model = job.model
    if model.family.is_encoder_decoder:
        return t5_flops(model, tokens, padded_vocab, causal)
    if model.has_adapters:
        return tokens * lora_flops(model, model.seq_length / 2 if causal else attended(model), padded_vocab)
    layers = layers_flops(model, causal=causal)
    if job.has_task:
        return float(tokens * layers)
    h = model.hidden_size
    head = h if model.family.is_masked_lm and not causal else 0
    further = len(prediction_layers(model))
    outputs = (1 + further) * padded_vocab
    norms = _NORMS_OF_PREDICTION * further if causal else 0
    flops = float(tokens * (layers + 6 * (outputs + head + norms) * h))
    return flops + tokens / model.seq_length * vision_flops(model)


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Datasheet peak in FLOP/s, dense, of a device as CUDA names it ("NVIDIA H100 80GB HBM3"); None when unknown.

    `dtype` is bf16, fp16 or fp32. The CPU has no datasheet peak.
    """
    device = shipped(device_name)
    return None if device is None or device.is_cpu else device.peak_flops.get(dtype)
