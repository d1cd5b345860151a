"""Scripts and styles: our own, and those of plotly and htmx, which lie in installed packages. Nothing is loaded from
elsewhere.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from orchestrator.errors import MissingDependency

_OWN = Path(__file__).parent / "static"
_PACKAGED = {
    "plotly.js": ("plotly", "package_data/plotly.min.js"),
    "htmx.js": ("django_htmx", "static/django_htmx/htmx-2.min.js"),
}
_DISTRIBUTIONS = {"plotly": "plotly", "django_htmx": "django-htmx"}
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Asset:
    """A file as it is served; `tag` changes with its content."""

    content: bytes
    type: str
    tag: str

    @cached_property
    def zipped(self) -> bytes:
        """As browsers take it. Zipped once, and well: the largest has 5 MB, and comes through an SSH tunnel."""
        return gzip.compress(self.content, 6, mtime=0)


def asset(name: str) -> Asset | None:
    """A file by the name that pages give it; None where there is none of that name.

    Raises MissingDependency when its package is not installed.
    """
    # An address may name anything: only what there is stays in memory.
    return _read(name) if name in _PACKAGED or name in _own() else None


@cache
def _own() -> dict[str, Path]:
    return {path.name: path for path in _OWN.iterdir() if path.suffix in _TYPES}


@cache
def _read(name: str) -> Asset:
    path = _packaged(name) if name in _PACKAGED else _own()[name]
    content = path.read_bytes()
    return Asset(content, _TYPES[Path(name).suffix], hashlib.sha256(content).hexdigest()[:12])


def prepare_assets() -> None:
    """Zip what takes long to zip before somebody waits for it."""
    for name in _PACKAGED:
        found = asset(name)
        assert found is not None, f"{name} is shipped"
        assert found.zipped, f"{name} holds something"


def _packaged(name: str) -> Path:
    package, place = _PACKAGED[name]
    # Its place is asked for, and nothing of it imported: one of them would bring a web framework along.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency(
            f"the dashboard needs {_DISTRIBUTIONS[package]}, which this Python lacks: "
            "pip install 'megatron-orchestrator[dashboard]'"
        )
    return Path(next(iter(spec.submodule_search_locations))) / place
