"""Folders in which links stand: all that they lead to is read once, and what cannot be read is named."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuse
from support.refused import refused

from orchestrator.data.__main__ import run
from orchestrator.data.description import print_description
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.inspection import first_documents
from orchestrator.data.request import ShowRequest, TokenizeRequest, TrainTokenizerRequest
from orchestrator.data.tasks.race import race_files
from orchestrator.files.folder_tree import folder_tree
from orchestrator.run_directory.results.evaluation_request import file_facts

Tokenize = Callable[..., Path]


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A folder with links to folders outside and inside, loops, a link to nothing and a pipe."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "b" / "deep", root / ".hidden", outside / "more"):
        folder.mkdir(parents=True)
    for path in (root / "b" / "1.txt", root / "b" / "deep" / "2.txt", outside / "3.txt", outside / "more" / "4.txt"):
        path.write_text(path.stem)
    (root / ".hidden" / "9.txt").write_text("9")
    os.mkfifo(root / "pipe.txt")
    links = {
        "a": root / "b",  # before what it leads to, which is read all the same under its own name
        "b/deep/back": root,
        "c": outside,
        "d": tmp_path / "gone",
        "5.txt": outside / "3.txt",  # a file that is linked is a document of its own
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    (outside / "more" / "round").symlink_to(outside)
    (root / "itself").symlink_to("itself")
    return root


LEFT_OUT = {
    "a": "leads to {root}/b, which has already been read",
    "b/deep/back": "leads back to {root}, which has already been read",
    "c/more/round": "leads back to {root}/c, which has already been read",
    "d": "which does not exist",
    "itself": "which does not exist",
    "pipe.txt": "neither a file nor a folder",
}


def test_links_are_followed_and_what_is_not_read_is_named(linked: Path, tokenize: Tokenize, capfd: Any) -> None:
    prefix = tokenize(linked, append_eod=False)
    said = capfd.readouterr()
    assert sorted(first_documents(ShowRequest(prefix, 9))) == ["1", "2", "3", "3", "4"]
    manifest = read_manifest(prefix)
    assert manifest is not None
    assert [source.path for source in manifest.sources] == [
        str(linked / name) for name in ("5.txt", "b/1.txt", "b/deep/2.txt", "c/3.txt", "c/more/4.txt")
    ]
    assert [each.path for each in manifest.left_out] == [str(linked / name) for name in LEFT_OUT]
    for each, reason in zip(manifest.left_out, LEFT_OUT.values(), strict=True):
        assert reason.format(root=linked) in each.reason
        assert f"left out: {each.path}: {each.reason}" in said.err
    assert f"6 links, folders or kinds of files left out: see {prefix}.manifest.json" in said.out


def test_what_nobody_asked_for_is_not_named(linked: Path, tokenize: Tokenize) -> None:
    unwanted = ("a", "back", "d", "itself", "pipe.*", "round")
    prefix = tokenize(linked, append_eod=False, excludes=unwanted)
    manifest = read_manifest(prefix)
    assert manifest is not None
    assert (len(manifest.sources), manifest.left_out) == (5, [])


def test_programs_get_it_as_json(linked: Path, tmp_path: Path, capfd: Any) -> None:
    made, learnt = tmp_path / "made", tmp_path / "t.json"
    requests = {
        "tokenize": TokenizeRequest((linked,), output_prefix=made, workers=1),
        "train-tokenizer": TrainTokenizerRequest((linked,), output=learnt),
    }
    for command, request in requests.items():
        assert run(command, request, as_json=True) == 0
        said = json.loads(capfd.readouterr().out)
        left_out = said["datasets"][0]["left_out"] if command == "tokenize" else said["left_out"]
        assert [each["path"] for each in left_out] == [str(linked / name) for name in LEFT_OUT]
    print_description(made, as_json=False)
    assert "5 files, 5 bytes of text; 6 links, folders or kinds of files left out" in capfd.readouterr().out


def test_a_folder_of_dangling_links_alone(tmp_path: Path, tokenize: Tokenize) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "books").symlink_to("/nowhere/books")
    with refused("no_matching_files", "books", "/nowhere/books"):
        tokenize(folder)


def test_many_folders_that_lead_to_each_other(tmp_path: Path) -> None:
    """Each is read once, where following every way would take for ever."""
    folders = [tmp_path / str(number) for number in range(20)]
    for folder in folders:
        folder.mkdir()
        (folder / "text.txt").write_text("x")
    for folder in folders:
        for other in folders:
            (folder / f"to-{other.name}").symlink_to(other)
    tree = folder_tree(tmp_path)
    assert tree.files == sorted(folder / "text.txt" for folder in folders)
    assert len(tree.left_out) == 400
    assert all(each.is_read for each in tree.left_out)


def test_a_folder_that_cannot_be_read(tmp_path: Path, tokenize: Tokenize, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "folder" / "closed"
    closed.mkdir(parents=True)
    (tmp_path / "folder" / "a.txt").write_text("x")
    refuse(monkeypatch, "os.listdir", errno.EACCES, lambda path: path == closed)  # root may read every folder
    manifest = read_manifest(tokenize(tmp_path / "folder"))
    assert manifest is not None
    assert [each.path for each in manifest.left_out] == [str(closed)]
    assert "cannot be read: Permission denied" in manifest.left_out[0].reason
    with refused("unreadable_folder", "closed"):
        tokenize(closed)


def test_folders_of_race_follow_links_and_refuse_what_is_missing(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "race", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "1.txt").write_text("{}")
    (folder / "high").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    assert race_files(folder) == [folder / "high" / "1.txt"]
    assert file_facts(folder)["bytes"] == 2
    (folder / "middle").symlink_to("/nowhere")
    with refused("unreadable_folder", "race/middle", "/nowhere"):
        race_files(folder)
