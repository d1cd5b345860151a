"""Layouts in words."""

from __future__ import annotations

from orchestrator.tuning.layout import Layout, Split


def layout_words(layout: Layout) -> str:
    """`TP 2, PP 2, VP 3, micro 4, recompute none`."""
    degrees = [("TP", layout.tp), ("PP", layout.pp), ("VP", layout.vp), ("CP", layout.cp), ("EP", layout.ep)]
    parts = [f"{name} {size}" for name, size in degrees if name in ("TP", "PP") or size > 1]
    parts += [f"micro {layout.micro_batch_size}", f"recompute {layout.recompute.describe()}"]
    return ", ".join([*parts, *filter(None, [out_of_the_ordinary(layout)])])


def out_of_the_ordinary(layout: Layout) -> str:
    """What is out of the ordinary."""
    words = [
        _split(layout.split),
        "FSDP" if layout.fsdp == "full" else f"FSDP over {layout.fsdp}" if layout.fsdp else "",
        "joined loss" if layout.joins_loss else "",
        "no SP" if layout.tp > 1 and not layout.sequence_parallel else "",
        "optimizer not sharded" if not layout.use_distributed_optimizer else "",
        "gradients not overlapped" if not layout.overlap_grad_reduce else "",
        "parameters not overlapped" if layout.overlap_param_gather is False else "",
        "tensor parallelism not overlapped" if layout.tp > 1 and layout.tp_comm_overlap is False else "",
    ]
    return ", ".join(filter(None, words))


def _split(split: Split) -> str:
    """`14 layers on the last stage`, or megatron-core's letters."""
    if split.letters is not None:
        return split.letters
    lengths = {"first": split.first, "last": split.last}
    counted = [name for name in ("embedding", "loss") if getattr(split, name)]
    parts = [f"{layers} layers on the {which} stage" for which, layers in lengths.items() if layers is not None]
    return ", ".join([*parts, *(f"the {name} counts as a layer" for name in counted)])
