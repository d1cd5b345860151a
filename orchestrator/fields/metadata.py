"""What is known of a field beside its type, default and docstring, written in its declaration: `Annotated[int, …]`.

Tables over all fields are made from it by `shape.declared`; what a change means for a run that goes on is in resume.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import PydanticUndefined

OURS: Any = object()
"""The default of Megatron-LM is the spec's own."""
REQUIRED: Any = PydanticUndefined
"""Stands for the default of a field or flag that has none."""


class Metadata:
    """pydantic keeps it with the field, whose validation and JSON schema it does not change."""

    __slots__ = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(source)  # spares pydantic the search for what it may mean


class HashedIfChanged(Metadata):
    """Stored specs may lack the field: at its default it is left out of the config hash, so that they keep theirs.
    Every field that is added to the spec has it, or the first section around it does.
    """

    __slots__ = ()


class HashedAs(Metadata):
    """The field's default was another value once, which meant the same for every spec of that time: the default of now
    is hashed as that value, so that stored specs keep their hashes. `could_be`: whether a stored spec can be of that
    time; in others the two values may mean different things.
    """

    __slots__ = ("could_be", "earlier")

    def __init__(self, earlier: Any, could_be: Callable[[Mapping[str, Any]], bool]) -> None:
        self.earlier, self.could_be = earlier, could_be


class AlsoCalled(Metadata):
    """What other tools call a field: Megatron-LM's flags, DeepSpeed, Accelerate, Hugging Face transformers, NeMo,
    torchtitan, llm-foundry, nanoGPT. In lower case with underscores; several fields may have a name in common.

    `names` have the values of the field. A keyword is a name with others: what to write here, or a note in parentheses.
    """

    __slots__ = ("names",)

    def __init__(self, names: str = "", **written: str) -> None:
        said = {name: f" {text}" if text.startswith("(") else f": {text}" for name, text in written.items()}
        self.names = {**dict.fromkeys(names.split(), ""), **said}
        """Name -> what stands behind the field's path."""


class ShortName(Metadata):
    """What a field is called in `--set` and in sweeps, in short."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class MegatronFlag(Metadata):
    """The flag of Megatron-LM that is the field and has its values; a flag without a value turns a bool over.

    Facts about the flags (names, defaults) are those of Megatron-LM's argument parser, releases core_r0.5.0 to
    core_r0.16.0, with spellings of earlier ones. Flags with other values than ours are in
    migration/megatron_flags/table.py.

    `name`: without dashes in front; that of the field by default. `default`: what Megatron-LM does without the flag,
    where the spec's default is another; REQUIRED where it refuses. `only`: (path, value, or several), what it is for;
    elsewhere it has no effect. `old_names`: in other releases and forks, with the same values. `is_whole`: it takes
    whole numbers alone, and the field others too.
    """

    __slots__ = ("default", "is_whole", "name", "old_names", "only")

    def __init__(
        self,
        name: str | None = None,
        default: Any = OURS,
        only: tuple[str, Any] | None = None,
        old_names: tuple[str, ...] = (),
        is_whole: bool = False,
    ) -> None:
        self.name, self.default, self.only, self.old_names = name, default, only, old_names
        self.is_whole = is_whole


class ListedAfter(Metadata):
    """Where a section lists a field that it inherits, in stored specs, the JSON schema and the reference pages: after
    another of its fields. What is declared below it follows. Without it inherited fields come last.
    """

    __slots__ = ("field",)

    def __init__(self, field: str) -> None:
        self.field = field


class NotOfNetwork(Metadata):
    """Of a field of `model` that does not say which network it is: most often how one is trained. A job that goes on
    from a checkpoint of Megatron-LM's may differ in it. What acts at the start alone (resume.py) needs no mark.
    """

    __slots__ = ()


class NoMegatronFlag(Metadata):
    """Why Megatron-LM has no flag for a field, or for any of a section."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason
