"""What torch reads of a checkpoint runs nothing, and what is wrong with it is said with the file."""

from __future__ import annotations

import enum
import io
import os
import pickle
import shutil
import signal
import sys
import types
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megatron.core.transformer.enums import AttnBackend
from support.depth import examples
from support.refused import refused
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.errors import CheckpointError
from orchestrator.weights_only import require_plain_state, weights_only

# One process reads and writes here, which torch warns of.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


class Call:
    """A pickle that makes a folder where it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


def state() -> dict[str, Any]:
    return {"weight": torch.zeros(4, 3), "object": {"numbers": [1, 2]}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # marks of tests do not reach fixtures of a module
        dcp.save({**state(), "weight": torch.arange(12.0).view(4, 3)}, checkpoint_id=str(folder), no_dist=True)
    return folder


def read(folder: Path) -> tuple[dict[str, Any], list[CheckpointError]]:
    """What is there, and what was said when it could not be read."""
    wanted, said = state(), []
    try:
        with weights_only() as said:
            dcp.load(wanted, storage_reader=FileSystemReader(str(folder)), no_dist=True)
    except CheckpointException:
        assert said
    return wanted, said


def refusal(folder: Path) -> str:
    _, said = read(folder)
    return str(said[0])


def rewritten(folder: Path, change: Callable[[Any], None]) -> Path:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


def test_what_was_saved_is_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment and torch's reader are then as they were."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    before, reader = dict(os.environ), FileSystemReader.read_metadata
    found, said = read(saved)
    assert said == []
    assert found["weight"].tolist() == torch.arange(12.0).view(4, 3).tolist()
    assert found["object"] == {"numbers": [1, 2]}
    assert dict(os.environ) == before
    assert FileSystemReader.read_metadata is reader


class OfPython3110(pickle.Pickler):
    """Writes members of enumerations as Python 3.11.0 to 3.11.3 do, and signals by their names in the module."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, signal.Signals):
            return obj.name
        return (getattr, (type(obj), obj.name)) if isinstance(obj, enum.Enum) else NotImplemented


def test_what_an_earlier_python_has_saved_is_read(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "earlier")
    metadata, written = pickle.loads((saved / ".metadata").read_bytes()), io.BytesIO()
    OfPython3110(written).dump(metadata)
    assert b"getattr" in written.getvalue()
    (folder / ".metadata").write_bytes(written.getvalue())
    found, said = read(folder)
    assert said == []
    assert found["weight"].tolist() == torch.arange(12.0).view(4, 3).tolist()


def test_what_it_has_saved_of_all_ranks_is_read(saved: Path, tmp_path: Path) -> None:
    """The arguments of Megatron-LM in a checkpoint have such members."""
    folder = shutil.copytree(saved, tmp_path / "earlier")
    arguments = {"attention_backend": AttnBackend.fused, "exit_signal": signal.SIGTERM}
    earlier = types.SimpleNamespace(Pickler=OfPython3110, __name__="pickle")
    torch.save({"args": arguments}, folder / "common.pt", pickle_module=earlier)
    with zipfile.ZipFile(folder / "common.pt") as archive:
        written = archive.read("common/data.pkl")
    assert b"getattr" in written
    assert b"Signals" not in written
    assert StoredWeights(folder).shared() == {"args": arguments}


def test_code_in_the_list_of_tensors(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "planted")
    (folder / ".metadata").write_bytes(pickle.dumps(Call(tmp_path / "ran")))
    assert refusal(folder) == (
        f"{folder / '.metadata'} is not the list of a checkpoint's tensors: "
        "it names posix.mkdir, which weights never contain"
    )
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("attribute", ["name", "further"])
def test_a_list_of_tensors_that_changes_a_class(saved: Path, tmp_path: Path, attribute: str) -> None:
    """pickle sets attributes of all that is named; with another `name` of all paths, one may lead out of its folder."""
    folder = shutil.copytree(saved, tmp_path / "planted")
    outside, before = f"../{saved.name}/__0_0.distcp", dict(vars(PosixPath))

    def lead_out(metadata: Any) -> None:
        for place in metadata.storage_data.values():
            place.relative_path = outside

    content = (rewritten(folder, lead_out) / ".metadata").read_bytes()
    names = "".join(f"V{text}\n" for text in (attribute, outside)).encode()
    change = b"cpathlib\nPosixPath\n" + b"N}" + names + b"s\x86b0"  # a state of (None, {attribute: outside})
    (folder / ".metadata").write_bytes(content[:2] + change + content[2:])
    assert "it changes PosixPath itself" in refusal(folder)
    assert dict(vars(PosixPath)) == before


@pytest.mark.parametrize("unsafe", ["0", "1"])
def test_code_in_an_object(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsafe: str) -> None:
    folder = shutil.copytree(saved, tmp_path / "planted")
    data = io.BytesIO()
    torch.save(Call(tmp_path / "ran"), data)
    file = folder / "__0_0.distcp"
    offset = file.stat().st_size
    file.write_bytes(file.read_bytes() + data.getvalue())

    def lead_there(metadata: Any) -> None:
        [place] = [place for index, place in metadata.storage_data.items() if index.fqn == "object.numbers"]
        place.offset, place.length = offset, len(data.getvalue())

    rewritten(folder, lead_there)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", unsafe)
    assert refusal(folder).startswith(f"{file} cannot be read (object.numbers …): it names posix.mkdir")
    assert not (tmp_path / "ran").exists()
    dcp.load(state(), storage_reader=FileSystemReader(str(folder)), no_dist=True)
    assert (tmp_path / "ran").is_dir(), "torch by itself runs it"


def test_code_in_what_all_ranks_share(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a conversion reads it, of a checkpoint of another tool too."""
    folder = shutil.copytree(saved, tmp_path / "planted")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({"iteration": 5, "args": Call(tmp_path / "ran")}, folder / "common.pt")
    with refused("unreadable_pickle", "common.pt", "posix.mkdir", kind=CheckpointError):
        StoredWeights(folder).shared()
    assert not (tmp_path / "ran").exists()
    torch.save({"iteration": 5}, folder / "common.pt")
    assert StoredWeights(folder).shared() == {"iteration": 5}


@pytest.mark.parametrize("planted", [False, True])
def test_what_all_ranks_share_may_be_an_object(tmp_path: Path, planted: bool) -> None:
    """As megatron-core 0.19 writes it."""
    shared = {"iteration": 5, **({"args": Call(tmp_path / "ran")} if planted else {})}
    whole = DefaultSavePlanner(flatten_state_dict=False)
    dcp.save({"common_state/shard_0_1": [shared]}, checkpoint_id=str(tmp_path / "new"), planner=whole, no_dist=True)
    stored = StoredWeights(tmp_path / "new")
    if planted:
        with refused("unreadable_pickle", "common_state/shard_0_1", "posix.mkdir", kind=CheckpointError):
            stored.shared()
        assert not (tmp_path / "ran").exists()
    else:
        assert stored.shared() == shared


def test_files_that_are_not_what_they_should_be(saved: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        return shutil.copytree(saved, tmp_path / name)

    gone = copy("gone")
    (gone / "__0_0.distcp").unlink()
    assert refusal(gone) == f"{gone / '__0_0.distcp'} is missing"
    torn = copy("torn")
    (torn / "__0_0.distcp").write_bytes((torn / "__0_0.distcp").read_bytes()[:100])
    assert refusal(torn).startswith(f"{torn / '__0_0.distcp'} cannot be read (")
    empty = copy("empty")
    (empty / ".metadata").unlink()
    assert refusal(empty) == f"{empty / '.metadata'} is missing"

    def lead_out(metadata: Any) -> None:
        for place in metadata.storage_data.values():
            place.relative_path = "../saved/__0_0.distcp"

    assert "leads out of its folder, to ../saved/__0_0.distcp" in refusal(rewritten(copy("out"), lead_out))
    lost = rewritten(copy("lost"), lambda metadata: metadata.storage_data.clear())
    assert "does not say where" in refusal(lost)
    (lost / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    assert refusal(lost) == f"{lost / '.metadata'} is not the list of a checkpoint's tensors"


def _without(metadata: Any, name: str) -> None:
    del vars(metadata)[name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda metadata: metadata.storage_data.update(more=5), "it does not say in which files"),
        (lambda metadata: metadata.storage_data.update(more=_StorageInfo(5, 0, 1)), "it does not say in which files"),
        (lambda metadata: vars(metadata).update(storage_data=[1]), "it has no table of them"),
        (lambda metadata: vars(metadata).update(state_dict_metadata=[1]), "it has no table of them"),
        (lambda metadata: _without(metadata, "state_dict_metadata"), "it has no table of them"),
    ],
)
def test_a_list_of_tensors_made_of_something_else(
    saved: Path, tmp_path: Path, change: Callable[[Any], None], said: str
) -> None:
    """As a conversion meets it first."""
    folder = rewritten(shutil.copytree(saved, tmp_path / "planted"), change)
    with pytest.raises(CheckpointError) as caught:
        StoredWeights(folder)
    assert str(caught.value) == f"{folder / '.metadata'} is not the list of a checkpoint's tensors: {said}"


RECIPES = """
import dataclasses, enum, typing
class Helper(typing.NamedTuple):
    most: float
class Format(enum.Enum):
    HYBRID = Helper(448.0)
@dataclasses.dataclass
class DelayedScaling:
    format: Format = Format.HYBRID
    history: int = 1024
"""
"""What Transformer Engine's recipes are like."""
OF_MEGATRON = "megatron.core.extensions.transformer_engine"


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("transformer_engine.common.recipe")
    for name in ("transformer_engine", "transformer_engine.common"):  # pickle imports these first
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(RECIPES, vars(module))
    derived = types.ModuleType(OF_MEGATRON)
    vars(derived)["DelayedScaling"] = module.DelayedScaling
    exec("class TEDelayedScaling(DelayedScaling):\n    pass\ndef beside():\n    pass", vars(derived))
    monkeypatch.setitem(sys.modules, OF_MEGATRON, derived)
    return module


def test_states_of_layers_name_torch_or_megatron_core_for_tensors() -> None:
    """megatron-core 0.19 puts a function of its own in place of torch's, and pickles name that."""
    by_torch = b"ctorch.storage\n_load_from_bytes\n"
    by_megatron = b"cmegatron.core.safe_globals\nsafe_load_from_bytes\n"
    here = pickle.dumps({"scale_fwd": torch.ones(3)}, protocol=3)
    assert (by_torch in here) != (by_megatron in here)
    for content in (here.replace(by_torch, by_megatron), here.replace(by_megatron, by_torch)):
        require_plain_state(content, "the state")


def test_states_of_layers_are_looked_into_before_they_are_read(recipes: Any, tmp_path: Path) -> None:
    """They are pickles within tensors, which Transformer Engine reads as they are."""
    state = {
        "recipe": recipes.DelayedScaling(),
        "scale_fwd": torch.ones(3),
        "amax_history_fwd": torch.zeros(2, 3, dtype=torch.bfloat16),
        "extra_fp8_variables": {"num_gemms": 1, "fp8_max_fwd": 448.0, "names": ["a"], "place": (1, None)},
    }
    derived = sys.modules[OF_MEGATRON].TEDelayedScaling()  # megatron-core's recipe of delayed scales
    for protocol in range(pickle.DEFAULT_PROTOCOL, pickle.HIGHEST_PROTOCOL + 1):
        require_plain_state(pickle.dumps(state, protocol), "the state")
        require_plain_state(pickle.dumps({**state, "recipe": derived}, protocol), "the state")
    ran = tmp_path / "ran"
    nested = io.BytesIO()
    torch.save(Call(ran), nested, _use_new_zipfile_serialization=False)

    class Nested:
        def __reduce__(self) -> tuple[Any, ...]:
            return torch.storage._load_from_bytes, (nested.getvalue(),)

    class Attribute:
        def __reduce__(self) -> tuple[Any, ...]:
            return getattr, (recipes.DelayedScaling, "__init__")

    class Beside:
        def __reduce__(self) -> tuple[Any, ...]:
            return sys.modules[OF_MEGATRON].beside, ()

    for planted, name in (
        (Call(ran), "posix.mkdir"),
        (Beside(), f"{OF_MEGATRON}.beside"),
        (Nested(), "posix.mkdir"),
        (Attribute(), "builtins.getattr"),
    ):
        with refused("unreadable_pickle", "the state", name, kind=CheckpointError):
            require_plain_state(pickle.dumps({**state, "scale_bwd": planted}), "the state")
    assert not ran.exists()
    with refused("unreadable_pickle", "the state", kind=CheckpointError):
        require_plain_state(pickle.dumps(state)[:50], "the state")


@pytest.mark.parametrize(
    "attribute", ["relative_path", "offset", "length", "fqn", "properties", "size", "chunks", "offsets", "sizes"]
)
def test_a_list_of_tensors_that_lacks_an_attribute(saved: Path, tmp_path: Path, attribute: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(saved, folder)
    path = folder / ".metadata"
    name = bytes([len(attribute)]) + attribute.encode() + b"\x94"
    content = path.read_bytes()
    assert name in content
    path.write_bytes(content.replace(name, name[:-2] + b"_\x94"))
    _, said = read(folder)
    assert said
    assert all(str(path) in str(error) for error in said)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_said_and_nothing_else_is_raised(saved: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(saved, folder, dirs_exist_ok=True)
    path = folder / data.draw(st.sampled_from([".metadata", "__0_0.distcp"]))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place : place + 2] = data.draw(st.binary(min_size=1, max_size=4))
    path.write_bytes(content)
    _, said = read(folder)
    assert all(str(path) in str(error) for error in said)
