"""Parameters of low-rank adapters."""

from __future__ import annotations

from orchestrator.spec.model import ModelSpec


def adapter_parameters(model: ModelSpec, tp: int) -> int:
    """Parameters of one layer's adapters that each of `tp` ranks holds; 0 where there are none.

    Beside a matrix [out, in], an adapter has [rank, in] and [out, rank]. Whichever of the two axes is split over ranks
    for the matrix is split for the adapter.
    """
    if not model.has_adapters:
        return 0
    h, query = model.hidden_size, model.num_attention_heads * model.head_dim
    widths = {
        "linear_qkv": h + (query + 2 * model.query_groups * model.head_dim) // tp,
        "linear_proj": query // tp + h,
        "linear_fc1": h + model.ffn_size * (2 if model.is_gated else 1) // tp,
        "linear_fc2": model.ffn_size // tp + h,
    }
    return model.adapters.rank * sum(widths[module] for module in model.adapters.target_modules)
