"""What fields are called in `--set` and in sweeps: in full, by their last word where that says it all, or in short."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.spec.shape import leaf_paths, meant_by_name, sections, shape_at
from orchestrator.spec.suggestions import closest, suggest
from orchestrator.spec.yaml_reader import resolve_scalar

SHORT = {
    "tp": "parallelism.tensor_model_parallel_size",
    "pp": "parallelism.pipeline_model_parallel_size",
    "vp": "parallelism.virtual_pipeline_model_parallel_size",
    "sp": "parallelism.sequence_parallel",
    "cp": "parallelism.context_parallel_size",
    "ep": "parallelism.expert_model_parallel_size",
    "dp": "parallelism.data_parallel_size",
    "mbs": "batch.micro_batch_size",
    "gbs": "batch.global_batch_size",
    "iters": "schedule.train_iters",
    "layers": "model.num_layers",
    "hidden": "model.hidden_size",
    "heads": "model.num_attention_heads",
    "seq": "model.seq_length",
}

_SHORTER = {path: short for short, path in SHORT.items() if short not in ("iters", "layers", "hidden", "heads", "seq")}


def resolve(name: str, values: Sequence[object] = ()) -> str | None:
    """The dotted path of the field that a name means; None when it means none, or several. A short name that is
    another field's own means that one where it alone takes all of `values`, and none where neither takes their words.
    """
    if name in SHORT:
        own = _by_last_word().get(name, [])
        if not own or all(value is None or isinstance(value, int | float) for value in values):
            return SHORT[name]
        return next((path for path in (SHORT[name], *own) if all(_takes(path, value) for value in values)), None)
    if shape_at(tuple(name.split("."))) is not None:
        return name
    paths = _by_last_word().get(name, [])
    return paths[0] if len(paths) == 1 else None


def overridden(override: str) -> str:
    """The dotted path of the field that `KEY=VALUE` is about; the key itself where that means no field, or several."""
    written, _, text = override.partition("=")
    key = ".".join(part.strip() for part in written.split("."))
    return resolve(key, [resolve_scalar(text.strip().strip("\"'"))]) or key


def hint(name: str) -> str | None:
    """What may have been meant by a name that means no field, or several."""
    paths = [*([SHORT[name]] if name in SHORT else []), *_by_last_word().get(name, [])]
    if len(paths) > 1:
        return f"{name} could be {' or '.join(paths)}"
    *place, key = name.split(".")
    legal = [path.rpartition(".")[2] for path in _all_paths() if path.split(".")[:-1] == place]
    said, _ = suggest(key, tuple(place), [*legal, *(SHORT if not place else ())])
    if said is None and place:
        near = closest(".".join(place), {path.rpartition(".")[0] for path in _all_paths()} - {""})
        said = f"did you mean {' or '.join(f'{section}.{key}' for section in near)}?" if near else None
    return said


def _takes(path: str, value: object) -> bool:
    """Whether a field takes a value, as far as its own type says."""
    *place, name = path.split(".")
    field = sections()[tuple(place)].model_fields[name]
    annotation: Any = Annotated[field.annotation, field]
    try:
        TypeAdapter[Any](annotation).validate_python(value)
    except ValidationError:
        return False
    return True


@cache
def short_name(path: str) -> str:
    """What a field is called in the name of a cell: the shortest that means this field."""
    if path in _SHORTER:
        return _SHORTER[path]
    last = path.rpartition(".")[2]
    return last if resolve(last) == path else path


@cache
def _by_last_word() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in _all_paths():
        found.setdefault(path.rpartition(".")[2], []).append(path)
    return {word: meant_by_name(paths) for word, paths in found.items()}


@cache
def _all_paths() -> tuple[str, ...]:
    return (*leaf_paths(), *(".".join(path) for path in sections() if path))
