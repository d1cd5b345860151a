"""Conversations with images: what is stored of them, what a training reads, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.built_datasets import datasets_of
from support.limits import set_limits
from support.pictures import PATCH_SIZE, PATCHES, SIZE, SIZES, talk, written
from support.refusals import after, fail_at
from support.refused import refused

from orchestrator.data.chat.conversation_packing import PATCH, loss_mask_prefix
from orchestrator.data.chat.stored_images import images_prefix
from orchestrator.data.damage import refuse_damage
from orchestrator.data.indexed_dataset.header import bin_path, idx_path, read_index
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.input.images import pixels as pixels_of
from orchestrator.data.missing_datasets import prepare
from orchestrator.data.source_survey import survey_job
from orchestrator.errors import DataError, MissingDependency, UserError
from orchestrator.planning.blend import blend_report
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.spec.job import JobSpec
from orchestrator.spec.vision import VisionSpec

Tokenize = Callable[..., Path]
Program = Callable[..., Any]
LENGTH = 64


@pytest.fixture
def chats(album: Path) -> Path:
    """24 conversations: of every six one has no image, one has two and one three, the others one; every eighth answer
    is longer than a sequence, and every twelfth question too, with its image in front."""
    lines = []
    names = ("a.jpg", "b.png", "c.jpg", "d.png", "more/e.jpg", "more/f.png")
    for number in range(24):
        images = [names[(number + place) % 6] for place in range({0: 0, 1: 2, 2: 3}.get(number % 6, 1))]
        asked = "".join(f"<image>{place}" for place in range(len(images))) + "?" * (90 if number % 12 == 9 else 1)
        lines.append(talk(asked, "!" * (90 if number % 8 == 4 else 1 + number % 5), images=images))
    return written(album, *lines)


@pytest.fixture
def prefix(tokenize: Tokenize, chats: Path) -> Path:
    return tokenize(chats, append_eod=False, chat=True, **SIZES)


def stored(prefix: Path) -> list[tuple[list[int], list[int], bytes]]:
    """Tokens, mask and pixels of each conversation, from the files themselves."""
    parts = []
    for each, kind in ((prefix, "<u2"), (loss_mask_prefix(prefix), "u1"), (images_prefix(prefix), "u1")):
        header = read_index(each)
        lengths = np.fromfile(idx_path(each), dtype="<i4", count=header.sequences, offset=34)
        parts.append(np.split(np.fromfile(bin_path(each), dtype=kind), np.cumsum(lengths)[:-1]))
    return [(ids.tolist(), mask.tolist(), pixels.tobytes()) for ids, mask, pixels in zip(*parts, strict=True)]


def test_what_is_stored(prefix: Path, chats: Path, program: Program) -> None:
    lines = [json.loads(line) for line in chats.read_text().splitlines()]
    for line, (ids, mask, found) in zip(lines, stored(prefix), strict=True):
        assert found == b"".join(
            pixels_of(chats.parent / image, VisionSpec(image_size=SIZE)).tobytes() for image in line["images"]
        )
        assert sum(mark == PATCH for mark in mask) == PATCHES * len(line["images"])
        assert [number for number, mark in zip(ids, mask, strict=True) if mark == 1] == [
            *line["messages"][1]["content"].encode(),
            256,
        ]
    manifest, images = read_manifest(prefix), 4 * (0 + 2 + 3 + 1 + 1 + 1)
    assert manifest is not None
    assert (manifest.images, manifest.image_size, manifest.patch_size) == (images, SIZE, PATCH_SIZE)
    assert manifest.counted_tokens == sum(mask.count(1) for _, mask, _ in stored(prefix))
    shown = program("inspect", prefix, "--show", "3").stdout
    assert f"images          {images} of 8 x 8 pixels, in patches of 4 x 4\n" in shown
    assert "--- conversation 1\nUser:\n<image>0<image>1?\n\nAssistant:\n⟦!!⟧\n" in shown


def test_workers_shards_and_a_kill_change_nothing(tokenize: Tokenize, album: Path, monkeypatch: Any) -> None:
    lines = [talk("<image>" * (number % 3), f"{number}", images=["a.jpg"] * (number % 3)) for number in range(600)]
    chats = written(album, *lines, name="many.jsonl")
    options = {"append_eod": False, "chat": True, "image_size": 56, "patch_size": 14}
    one = tokenize(chats, name="one", **options)
    two = tokenize(chats, name="two", workers=2, shard_size=1, **options)
    with monkeypatch.context() as patch:
        set_limits(patch, megabyte=1)  # a commit after each chunk
        commits: list[object] = []
        after(
            patch,
            "orchestrator.data.indexed_dataset.output.PartialOutput.commit",
            lambda *committed: (commits.append(committed), 1 / (len(commits) < 4)),
        )
        with pytest.raises(ZeroDivisionError):
            tokenize(chats, name="three", **options)
    three = tokenize(chats, name="three", **options)
    assert len(commits) == 4
    for each in (two, three):
        for of in (lambda prefix: prefix, loss_mask_prefix, images_prefix):
            for path in (bin_path, idx_path):
                assert path(of(one)).read_bytes() == path(of(each)).read_bytes()


def test_text_alone_where_images_are_asked_for(tokenize: Tokenize, build: Any, tmp_path: Path) -> None:
    """The same bytes as where none are, and images of no length."""
    chats = written(tmp_path, *[talk(f"<image> {number}") for number in range(9)])
    plain, prefix = (
        tokenize(chats, name="plain", append_eod=False, chat=True),
        tokenize(chats, append_eod=False, chat=True, **SIZES),
    )
    for of in (lambda prefix: prefix, loss_mask_prefix):
        for path in (bin_path, idx_path):
            assert path(of(plain)).read_bytes() == path(of(prefix)).read_bytes()
    assert (read_index(images_prefix(prefix)).sequences, bin_path(images_prefix(prefix)).stat().st_size) == (9, 0)
    for each in (plain, prefix):
        for job in (job_of(each), job_of(each, vision=None)):
            assert [source.trouble for source in survey_job(job)] == [None]
        item = build(job_of(each), train=4).train[0]
        assert (item["images"].shape, item["images"].any(), item["image_mask"].any()) == ((2, 3, 8, 8), False, False)
    assert "images" not in build(job_of(plain, vision=None), train=4).train[0]


def job_of(prefix: Path, vision: dict[str, Any] | None = SIZES, **chat: Any) -> JobSpec:
    sees = None if vision is None else {**vision, "images_per_sequence": 2, "hidden_size": 32, "num_attention_heads": 2}
    return JobSpec.model_validate(
        {
            "name": "chat",
            "model": {
                "num_layers": 2,
                "hidden_size": 32,
                "num_attention_heads": 2,
                "seq_length": LENGTH,
                "vision": sees,
            },
            "batch": {"micro_batch_size": 2, "global_batch_size": 4},
            "data": {"blend": [{"path": str(prefix)}], "split": "1,0,0", "chat": {"packing": False, **chat}},
            "optimizer": {"lr": 1e-3},
            "schedule": {"train_iters": 10},
        }
    )


@pytest.fixture
def build(process_group: None, tmp_path: Path) -> Callable[..., Any]:
    def call(job: JobSpec, train: int) -> Any:
        return datasets_of(job.data, job.model, tmp_path / "cache", train)

    return call


@pytest.mark.parametrize("long", ["truncate", "drop"])
def test_an_epoch_holds_every_conversation_that_is_not_crowded(build: Any, prefix: Path, long: str) -> None:
    job = job_of(prefix, long_conversations=long)
    train = build(job, train=4).train
    expected = []
    for ids, mask, pixels in stored(prefix):
        images = len(pixels) // 192
        fits = len(ids) <= LENGTH + 1 or (long == "truncate" and 1 in mask[: LENGTH + 1])
        if images > 2 or not fits:
            continue
        ids, mask = ids[: LENGTH + 1], mask[: LENGTH + 1]
        fill = [0] * (LENGTH + 1 - len(ids))
        expected.append(
            (
                [*ids[:-1], *fill],
                [*ids[1:], *fill],
                [*(float(mark == 1) for mark in mask[1:]), *fill],
                [*(float(mark == 2) for mark in mask[:-1]), *fill],
                pixels + bytes((2 - images) * 192),
            )
        )
    found = []
    for number in range(train.sequences):
        item = train[number]
        names = ("tokens", "labels", "loss_mask", "image_mask")
        found.append((*(item[name].tolist() for name in names), item["images"].tobytes()))
        assert (item["images"].shape, item["images"].dtype) == ((2, 3, SIZE, SIZE), np.uint8)
        assert (item["image_mask"].shape, item["image_mask"].dtype) == ((LENGTH,), np.float32)
    assert sorted(found) == sorted(expected)
    [source] = blend_report(job, BatchSchedule.of(job)).train.sources
    assert source.samples_held == len(expected) == train.sequences
    assert source.conversations is not None
    assert source.conversations.crowded == 4
    assert source.conversations.dropped == 24 - len(expected)
    images = sum(len(pixels.rstrip(b"\0")) > 0 and (2 if pixels[192:].strip(b"\0") else 1) for *_, pixels in expected)
    assert source.conversations.images == images
    [note] = blend_report(job, BatchSchedule.of(job)).notes[:1]
    assert f"conversations with {images} images for training are" in note
    assert "; 4 are skipped, with more images than model.vision.images_per_sequence" in note


def test_an_image_that_is_cut_off_keeps_its_first_patches(build: Any, tokenize: Tokenize, album: Path) -> None:
    said = "!" * (LENGTH - len("User:\n") - len("\n\nAssistant:\n") - 2)
    turns = [*talk("", said)["messages"], *talk("<image>")["messages"]]
    chats = written(album, {"messages": turns, "image": "a.jpg"}, name="cut.jsonl")
    prefix = tokenize(chats, append_eod=False, chat=True, **SIZES)
    cuts = []
    for length in range(LENGTH + 8, LENGTH + 16):
        job = job_of(prefix)
        job = job.model_copy(update={"model": job.model.model_copy(update={"seq_length": length})})
        item = build(job, train=1).train[0]
        cuts.append(int(item["image_mask"].sum()))
        assert item["image_mask"].tolist() == [float(mark == 2) for mark in stored(prefix)[0][1][:length]]
        assert item["images"][0].tobytes() == stored(prefix)[0][2]
    assert cuts == sorted(cuts)
    assert {0, 1, 2, 3, 4} >= set(cuts) >= {1, 2, 3}


def test_torch_collates_items(build: Any, prefix: Path) -> None:
    data = build(job_of(prefix), train=4)
    batch = next(iter(torch.utils.data.DataLoader(data.train, batch_size=2)))
    found = {name: (tuple(batch[name].shape), batch[name].dtype) for name in ("images", "image_mask", "loss_mask")}
    assert found == {
        "images": ((2, 2, 3, SIZE, SIZE), torch.uint8),
        "image_mask": ((2, LENGTH), torch.float32),
        "loss_mask": ((2, LENGTH), torch.float32),
    }


def test_other_images_or_another_number_of_them_are_indexed_anew(build: Any, prefix: Path) -> None:
    job = job_of(prefix)
    before = build(job, train=4)
    vision = job.model.vision.model_copy(update={"images_per_sequence": 3})  # type: ignore[union-attr]
    more = job.model_copy(update={"model": job.model.model_copy(update={"vision": vision})})
    assert build(more, train=4).train.sequences == before.train.sequences + 4
    assert build(job, train=4).index.folder == before.index.folder
    path = bin_path(images_prefix(prefix))
    path.write_bytes(path.read_bytes()[::-1])
    assert build(job, train=4).index.folder != before.index.folder


def test_data_that_a_job_does_not_see(build: Any, prefix: Path) -> None:
    for vision, values in {
        None: ("model.vision",),
        (8, 2): ("8 pixels in patches of 4", "8 pixels in patches of 2"),
        (16, 4): ("8 pixels in patches of 4", "16 pixels in patches of 4"),
    }.items():
        job = job_of(prefix, None if vision is None else {"image_size": vision[0], "patch_size": vision[1]})
        [source] = survey_job(job)
        assert source.is_unfit
        assert all(value in str(source.trouble) for value in values)
        with refused("data_does_not_fit_job", *values, kind=DataError):
            build(job, train=4)


def test_images_that_were_not_copied_or_are_anothers(build: Any, prefix: Path, tokenize: Tokenize, chats: Path) -> None:
    images = images_prefix(prefix)
    kept = {path: path.read_bytes() for path in (bin_path(images), idx_path(images))}

    def trouble() -> str:
        [source] = survey_job(job_of(prefix))
        assert source.is_unfit
        with pytest.raises((DataError, UserError)):
            build(job_of(prefix), train=4)
        return str(source.trouble)

    for path in kept:
        path.unlink()
        assert f"has 32 images, and {path} is not there: copy all its files" in trouble()
        path.write_bytes(kept[path])
    bin_path(images).write_bytes(kept[bin_path(images)][:-1])
    assert "do not belong together" in trouble()
    bin_path(images).write_bytes(kept[bin_path(images)])
    other = images_prefix(tokenize(chats, name="other", append_eod=False, chat=True, image_size=16, patch_size=4))
    for path in (bin_path, idx_path):
        path(images).write_bytes(path(other).read_bytes())
    assert f"{prefix} and {images} do not belong together" in trouble()
    damaged = bytearray(kept[idx_path(images)])
    damaged[34 + 4] ^= 1  # the length of the second conversation's images
    for path, content in kept.items():
        path.write_bytes(content)
    idx_path(images).write_bytes(damaged)
    with refused("damaged_data_set", "images.idx", "sequence 1", kind=DataError):
        refuse_damage([prefix])
    assert "is damaged: its sequence 1 of" in trouble()


def test_lost_images_are_told_by_inspect(prefix: Path, program: Program) -> None:
    images = images_prefix(prefix)
    assert program("inspect", prefix).returncode == 0
    manifest = prefix.with_name("data.manifest.json")
    said = manifest.read_bytes()
    for path in (bin_path(images), idx_path(images)):
        kept = path.read_bytes()
        path.unlink()
        for arguments in ((), ("--show", "1"), ("--json",)):
            shown = program("inspect", prefix, *arguments)
            assert (shown.returncode, f"has 32 images, and {path} is not there" in shown.stdout + shown.stderr) == (
                2,
                True,
            )
        manifest.unlink()
        assert "has images in one file of two" in program("inspect", prefix).stderr
        manifest.write_bytes(said)
        path.write_bytes(kept)


def test_without_a_manifest_sizes_are_taken_on_trust(build: Any, prefix: Path) -> None:
    prefix.with_name("data.manifest.json").unlink()
    assert build(job_of(prefix), train=4).train.sequences > 0
    with refused("data_does_not_fit_job", "model.vision", "10 pixels", kind=DataError):
        build(job_of(prefix, {"image_size": 10, "patch_size": 5}), train=4)
    for path in (idx_path(images_prefix(prefix)), bin_path(images_prefix(prefix))):
        kept = path.read_bytes()
        path.unlink()
        for job in (job_of(prefix), job_of(prefix, None)):
            reason = (
                f"{prefix} has images in one file of two: {path} is not there. Copy it next to the other, or remove"
            )
            assert reason in str(survey_job(job)[0].trouble)
            with refused("data_does_not_fit_job", path, kind=DataError):
                build(job, train=4)
        path.write_bytes(kept)


def test_only_crowded_conversations_are_refused(build: Any, tokenize: Tokenize, album: Path) -> None:
    chats = written(album, talk("<image>" * 3, images=["a.jpg"] * 3), name="crowd.jsonl")
    job = job_of(tokenize(chats, append_eod=False, chat=True, **SIZES))
    assert blend_report(job, BatchSchedule.of(job)).stops
    with refused("data_does_not_fit_job", "1 of 1", "model.vision.images_per_sequence", kind=DataError):
        build(job, train=4)


def test_a_data_set_without_images_in_place_of_one_with(tokenize: Tokenize, prefix: Path, tmp_path: Path) -> None:
    chats = written(tmp_path, talk("Hi"))
    with refused("output_exists", "data.idx"):
        tokenize(chats, append_eod=False, chat=True, **SIZES)
    assert tokenize(chats, append_eod=False, chat=True, overwrite=True) == prefix
    assert not idx_path(images_prefix(prefix)).exists()
    assert not bin_path(images_prefix(prefix)).exists()
    assert [source.trouble for source in survey_job(job_of(prefix))] == [None]


def test_images_that_are_left_over(tokenize: Tokenize, build: Any, prefix: Path, tmp_path: Path) -> None:
    """Of a data set that was removed by hand. Neither do they matter where they come back, whole, half or torn."""
    images = [path(images_prefix(prefix)) for path in (idx_path, bin_path)]
    kept = {path: path.read_bytes() for path in images}
    for path in (path(of) for of in (prefix, loss_mask_prefix(prefix)) for path in (idx_path, bin_path)):
        path.unlink()
    chats = written(tmp_path, *[talk(f"Hi {number}") for number in range(30)])
    assert tokenize(chats, append_eod=False, chat=True) == prefix
    assert not any(path.exists() for path in images)
    index, data = images
    torn = {index: kept[index][:-1], data: kept[data]}
    for come_back in ({index: kept[index]}, {data: kept[data]}, kept, torn):
        for path in images:
            path.unlink(missing_ok=True)
        for path, content in come_back.items():
            path.write_bytes(content)
        for job in (job_of(prefix), job_of(prefix, None)):
            assert [source.trouble for source in survey_job(job)] == [None]
            train = build(job, train=4).train
            assert train.sequences == 30
            assert not any(train[number].get("images", np.zeros(1)).any() for number in range(30))


def test_images_stay_where_the_data_set_without_them_cannot_be_finished(
    tokenize: Tokenize, prefix: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    before = {path: path.read_bytes() for path in prefix.parent.glob(f"{prefix.name}.*")}
    chats = written(tmp_path, talk("Hi"))
    with monkeypatch.context() as patch:
        fail_at(
            patch, "orchestrator.data.indexed_dataset.output.PartialOutput.commit", ZeroDivisionError()
        )  # no room is left
        with pytest.raises(ZeroDivisionError):
            tokenize(chats, append_eod=False, chat=True, overwrite=True)
    assert {path: path.read_bytes() for path in prefix.parent.glob(f"{prefix.name}.*")} == before
    assert [source.trouble for source in survey_job(job_of(prefix))] == [None]


def test_a_data_set_of_that_name_is_not_taken_for_images(tokenize: Tokenize, tmp_path: Path) -> None:
    chats = written(tmp_path, talk("Hi"))
    own = tokenize(chats, name="chats.images", append_eod=False, chat=True)
    tokenize(chats, name="chats", append_eod=False, chat=True)
    assert read_index(own).documents == 1


def test_a_job_makes_its_conversations(chats: Path, tmp_path: Path, build: Any) -> None:
    job = job_of(tmp_path / "made", template="chatml")
    entry = job.data.blend[0].model_copy(update={"text": (str(chats),)})  # type: ignore[index]
    data = job.data.model_copy(update={"blend": [entry]})
    [(_, manifest)] = prepare(data, 1, lambda line: None, vision=job.model.vision)
    assert (manifest.images, manifest.image_size, manifest.patch_size) == (32, SIZE, PATCH_SIZE)
    assert build(job.model_copy(update={"data": data}), train=4).train[0]["images"].shape == (2, 3, SIZE, SIZE)


def test_a_spec_end_to_end(chats: Path, tmp_path: Path, program: Program) -> None:
    spec = job_of(tmp_path / "made").model_dump(mode="json", exclude_defaults=True)
    spec["data"]["blend"] = [{"path": "made", "text": str(chats)}]
    (tmp_path / "job.yaml").write_text(json.dumps(spec))
    done = program("prepare", "job.yaml", "--workers", "2")
    assert (done.returncode, "conversations, " in done.stdout, ", 32 images" in done.stdout) == (0, True, True)
    assert read_index(images_prefix(tmp_path / "made")).tokens == 32 * 192


def test_options(program: Program, chats: Path, tmp_path: Path) -> None:
    for arguments, reason in {
        ("--chat", "--patch-size", "4"): "--patch-size is for images: add --image-size",
        ("--image-size", "8"): "--image-size is for conversations with images: add --chat",
        ("--chat", "--image-size", "8", "--patch-size", "3"): (
            "--patch-size 3 does not divide --image-size 8: write 2 or 4"
        ),
        ("--chat", "--image-size", "16"): (
            "--patch-size 14, the default, does not divide --image-size 16: write 8 or 16"
        ),
        ("--chat", "--image-size", "8"): "--patch-size 14, the default, does not divide --image-size 8: write 8",
    }.items():
        done = program("tokenize", chats, "--output-prefix", "x", *arguments)
        assert (done.returncode, reason in done.stderr) == (2, True)
    done = program("tokenize", chats, "--output-prefix", "x", "--chat", "--image-size", "14", "--json")
    [made] = json.loads(done.stdout)["datasets"]
    assert (made["image_size"], made["patch_size"], made["images"]) == (14, 14, 32)


def test_pillow_is_asked_for_before_anything_is_made(tokenize: Tokenize, chats: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with refused("missing_dependency", "pip install pillow", kind=MissingDependency) as raised:
        tokenize(chats, append_eod=False, chat=True, **SIZES)
    assert raised.value.exit_code == 2
    tokenize(written(chats.parent, talk("Hi"), name="text.jsonl"), append_eod=False, chat=True)
