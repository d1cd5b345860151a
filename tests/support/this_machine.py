"""What this machine shows of its GPUs, and which libraries this Python finds: as a test wants it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.kernel_selection.libraries import has_flash
from orchestrator.planning.hardware import local_gpus


class Gpus:
    """An empty machine: folders where the driver would show its GPUs."""

    def __init__(self, folder: Path) -> None:
        self.driver, self.devices = folder / "gpus", folder / "dev"
        self.driver.mkdir()
        self.devices.mkdir()

    def are(self, models: Sequence[str]) -> None:
        """From now on the driver names these."""
        for information in self.driver.glob("*/information"):
            information.unlink()
        for number, model in enumerate(models):
            (self.driver / f"0000:{number:02}").mkdir(exist_ok=True)
            (self.driver / f"0000:{number:02}" / "information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")

    def cannot_be_counted(self) -> None:
        """There may be some of another maker."""
        self.are(())
        (self.devices / "kfd").touch()


@pytest.fixture
def gpus(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """The GPUs of this machine, none at first."""
    found = Gpus(tmp_path_factory.mktemp("machine"))
    for name, folder in (("DRIVER", found.driver), ("DEVICES", found.devices)):
        monkeypatch.setattr(local_gpus, name, folder)
    return found


class Libraries:
    """What this Python finds, without loading it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        monkeypatch.syspath_prepend(folder)

    def there(self, *modules: str) -> None:
        """These are found; each is empty."""
        for name in modules:
            self._monkeypatch.delitem(sys.modules, name, raising=False)
            (self._folder / name).mkdir(exist_ok=True)
            (self._folder / name / "__init__.py").touch()

    def missing(self, *modules: str) -> None:
        """These are not, whether they are installed or not."""
        for name in modules:
            self._monkeypatch.setitem(vars(sys)["modules"], name, None)

    def distribution(self, name: str, version: str, *modules: str) -> Path:
        """A package of this version and these modules is installed, as its metadata says, which is a folder."""
        self.there(*modules)
        metadata = self._folder / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
        has_flash.cache_clear()
        return metadata


@pytest.fixture
def libraries(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Libraries]:
    yield Libraries(tmp_path_factory.mktemp("libraries"), monkeypatch)
    has_flash.cache_clear()
