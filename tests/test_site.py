"""The documentation site builds without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow("it builds every page")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    loads = re.compile(r"<(?:script|img|iframe|link rel=\"stylesheet\")[^>]*(?:src|href)=\"?https?://[^\">]*")
    assert {page.name: found for page in pages if (found := loads.findall(page.read_text()))} == {}
    assert [page.name for page in pages if page.name == "README.html"] == []
    missing = [
        f"{page.relative_to(tmp_path)}: {target}"
        for page in pages
        for target in re.findall(r'(?:href|src)="([^":#?]+)["#?]', page.read_text())
        if page.name != "404.html" and not (page.parent / target).exists()
    ]
    assert missing == []
