"""Files of text that another package writes, before data sets are made from them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from orchestrator import plugins
from orchestrator.errors import JobError, OrchestratorError, file_refusal
from orchestrator.spec.sections.data import BlendEntry, DataSourceSpec


class DataSource(Protocol):
    """What an entry point in the group `orchestrator.data_sources` leads to."""

    Options: Callable[..., Any]
    """Takes the options of a spec as keywords. Raises ValueError or TypeError for those that are wrong."""

    def __call__(self, options: Any) -> Iterable[str | Mapping[str, Any]]:
        """The documents in their order, each as its text or as a line of JSON; given what `Options` made."""


def write_missing(entry: BlendEntry, sources: Mapping[str, DataSourceSpec], tell: Callable[[str], object]) -> None:
    """Write what a data set is made from where it is not there; whole, or not at all. Raises UserError for a source
    that cannot be used, JobError for one that fails.
    """
    for path in entry.text or ():
        if path in sources and not Path(path).exists():
            tell(f"{path}: written by {sources[path].plugin}")
            _write(Path(path), sources[path], entry.json_key)


def _write(path: Path, spec: DataSourceSpec, key: str) -> None:
    source: DataSource = plugins.load(plugins.DATA_SOURCES, spec.plugin)
    with file_refusal(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                for document in _documents(source, spec):
                    record = {key: document} if isinstance(document, str) else dict(document)
                    file.write(f"{json.dumps(record, ensure_ascii=False)}\n")
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise


def _documents(source: DataSource, spec: DataSourceSpec) -> Iterable[str | Mapping[str, Any]]:
    try:
        yield from source(source.Options(**spec.options))
    except OrchestratorError:
        raise
    except Exception as error:  # whatever another package's code raises
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise JobError(
            f"{plugins.described(plugins.DATA_SOURCES, spec.plugin)} failed: {why}", code="failed_plugin"
        ) from error
