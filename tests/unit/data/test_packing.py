"""Which conversations share a sequence, what a sequence holds, and that the plan knows both."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.audit import files_opened
from support.built_datasets import datasets_of
from support.depth import examples
from support.refusals import before
from support.refused import refused

from orchestrator.data.chat.conversation_packing import loss_mask_prefix, pack, usable
from orchestrator.data.indexed_dataset.header import bin_path, idx_path, read_index
from orchestrator.data.inspection import first_documents
from orchestrator.data.request import ShowRequest
from orchestrator.data.samples.index_statistics import measured
from orchestrator.data.source_survey import survey
from orchestrator.errors import DataError
from orchestrator.planning.blend import blend_report
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.chat import ChatSpec

Tokenize = Callable[..., Path]
LENGTH = 64


@given(
    st.integers(1, 300).flatmap(
        lambda capacity: st.tuples(st.just(capacity), st.lists(st.integers(0, capacity), max_size=300))
    ),
    st.integers(0, 2**31),
)
@settings(max_examples=examples(150))
def test_every_conversation_is_there_once_and_fits(drawn: tuple[int, list[int]], seed: int) -> None:
    capacity, lengths = drawn
    packs = pack(lengths, capacity, seed, True)
    there = sorted(number for members in packs for number in members)
    assert there == [number for number, length in enumerate(lengths) if length]
    assert all(0 < sum(lengths[number] for number in members) <= capacity for members in packs)
    assert packs == pack(lengths, capacity, seed, True)
    # No two sequences fit into one: best fit would have put the later one's first conversation into the earlier.
    sizes = sorted(sum(lengths[number] for number in members) for members in packs)
    assert len(sizes) < 2 or sizes[0] + sizes[1] > capacity
    alone = pack(lengths, capacity, seed, False)
    assert sorted(alone) == [[number] for number in there]


def test_long_data_is_packed_in_windows_and_nearly_full() -> None:
    draw = random.Random(1)
    lengths = [min(int(draw.lognormvariate(5, 1)) + 1, 2048) for _ in range(20_000)]
    packs = pack(lengths, 2048, 1, True)
    assert sum(lengths) / (len(packs) * 2048) > 0.98
    assert pack(lengths, 2048, 2, True) != packs


@pytest.fixture
def chats(tmp_path: Path, tokenize: Tokenize) -> Path:
    """A data set of 60 conversations of 19 to 139 bytes, some of which are longer than a sequence; of every tenth, all
    that counts lies behind its cut."""
    draw, path = random.Random(3), tmp_path / "chats.jsonl"
    with open(path, "w") as file:
        for number in range(60):
            asked = "?" * (100 if number % 10 == 9 else draw.randint(1, 20))
            turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": "!" * draw.randint(1, 20)}]
            if number % 7 == 3:
                turns += [{"role": "user", "content": "-"}, {"role": "assistant", "content": "+" * draw.randint(1, 20)}]
            file.write(json.dumps({"messages": turns}) + "\n")
    return tokenize(path, append_eod=False, chat=True, name="chats")


def chat_job(prefix: Path, steps: int = 10, **chat: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "chat",
            "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": LENGTH},
            "batch": {"micro_batch_size": 2, "global_batch_size": 4},
            "data": {"blend": [{"path": str(prefix)}], "split": "80,20,0", "chat": chat},
            "optimizer": {"lr": 1e-3},
            "schedule": {"train_iters": steps},
            "evaluation": {"eval_interval": 5, "eval_iters": 1},
        }
    )


@pytest.fixture
def build(process_group: None, tmp_path: Path) -> Callable[..., Any]:
    def call(job: JobSpec, train: int = 0, validation: int = 0) -> Any:
        return datasets_of(job.data, job.model, tmp_path / "cache", train, validation)

    return call


def contents(prefix: Path) -> list[tuple[list[int], list[int]]]:
    """The tokens and the mask of each conversation, from the files themselves."""
    header = read_index(prefix)
    lengths = np.fromfile(idx_path(prefix), dtype="<i4", count=header.sequences, offset=34)
    cuts = np.cumsum(lengths)[:-1]
    ids = np.split(np.fromfile(bin_path(prefix), dtype=header.dtype), cuts)
    mask = np.split(np.fromfile(bin_path(loss_mask_prefix(prefix)), dtype="u1"), cuts)
    return [(a.tolist(), b.tolist()) for a, b in zip(ids, mask, strict=True)]


def held(item: dict[str, Any]) -> list[tuple[list[int], list[int], list[float]]]:
    """Input, labels and mask of each conversation of a sample; what fills it up is left out."""
    fields = {name: np.asarray(values).tolist() for name, values in item.items() if name != "dataset_id"}
    found = []
    for segment in sorted(set(fields["segment_ids"])):
        places = [place for place, number in enumerate(fields["segment_ids"]) if number == segment]
        assert places == list(range(places[0], places[-1] + 1))
        assert [fields["position_ids"][place] for place in places] == list(range(len(places)))
        part = tuple(fields[name][places[0] : places[-1] + 1] for name in ("tokens", "labels", "loss_mask"))
        if any(part[2]):
            found.append(part)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("long", ["truncate", "drop"])
@pytest.mark.parametrize("packing", [True, False])
def test_an_epoch_holds_every_conversation_once(build: Any, chats: Path, packing: bool, long: str) -> None:
    job = chat_job(chats, packing=packing, long_conversations=long)
    stored = contents(chats)[:48]
    fitting = [
        (ids[: LENGTH + 1], mask[: LENGTH + 1])
        for ids, mask in stored
        if len(ids) <= LENGTH + 1 or (long == "truncate" and any(mask[: LENGTH + 1]))
    ]
    data = build(job, train=3)
    sequences = data.train.sequences
    once = [part for number in range(sequences) for part in held(data.train[number])]
    assert sorted(once) == sorted((ids[:-1], ids[1:], [float(counts) for counts in mask[1:]]) for ids, mask in fitting)
    assert packing == (sequences < len(fitting))
    again = [part for number in range(sequences, 2 * sequences) for part in held(data.train[number])]
    assert sorted(again) == sorted(once)
    assert again != once
    assert len(data.train) >= 3


def test_items_are_the_same_for_every_reader(build: Any, chats: Path) -> None:
    """Built and found in the cache, by index alone, in any order; another seed gives others."""
    job = chat_job(chats)
    first, second = (build(job, train=100).train for _ in range(2))
    for number in (99, 0, 41):
        for name, values in first[number].items():
            assert np.array_equal(values, second[number][name]), name
    other = chat_job(chats).model_copy(update={"data": job.data.model_copy(update={"seed": 7})})
    assert any(not np.array_equal(build(other, train=100).train[n]["tokens"], first[n]["tokens"]) for n in range(3))


def test_each_source_keeps_its_order(build: Any, chats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sources a blend has: their samples come in turn, and an order is drawn once an epoch."""
    one = build(chat_job(chats), train=3).train
    sources = [copy.copy(one) for _ in range(20)]
    for seed, source in enumerate(sources):
        source.config = copy.copy(one.config)
        source.config.random_seed = seed
    drawn: list[int] = []
    before(monkeypatch, "numpy.random.RandomState", drawn.append)
    for number in (0, 1, one.sequences, one.sequences + 1):
        for source in sources:
            source[number]
    assert drawn == [[seed, epoch] for epoch in (0, 1) for seed in range(20)]


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("steps", [3, 40])
def test_the_plan_knows_what_is_built(build: Any, chats: Path, steps: int, packing: bool) -> None:
    job = chat_job(chats, steps, packing=packing)
    report = blend_report(job, BatchSchedule.of(job))
    data = build(job, train=report.train.samples, validation=report.validation.samples)
    for plan, made in ((report.train, data.train), (report.validation, data.validation["validation"])):
        [source] = plan.sources
        [index] = measured(made, plan.samples, LENGTH)
        assert source.samples_held == made.sequences
        assert source.epochs == plan.samples / made.sequences
        assert (source.documents, source.tokens_held) == (index.documents, index.tokens_held)
        assert index.samples_per_epoch == made.sequences
        assert index.epochs_built == -(-max(plan.samples, made.sequences) // made.sequences)
        assert source.conversations is not None
        assert source.conversations.kept == sum(len(held(made[number])) for number in range(made.sequences))
    expected = report.train.sources[0].second_epoch_step
    later = measured(data.train, report.train.samples, LENGTH)[0].second_epoch_at
    assert expected == (None if later is None else later // 4 + 1)
    assert any("left out for their length" in note for note in report.notes)
    if steps == 40 and packing:
        assert any(f"; 4 epochs are {4 * data.train.sequences * LENGTH:,} tokens" in each for each in report.warnings)
    assert report.stops == ()


def test_sources_are_blended(build: Any, chats: Path, tokenize: Tokenize, tmp_path: Path) -> None:
    path = tmp_path / "more.jsonl"
    path.write_text(json.dumps({"prompt": "more", "completion": "ok"}) + "\n")
    more = tokenize(path, append_eod=False, chat=True, name="more")
    job = chat_job(chats)
    blend = [{"path": str(chats), "weight": 3.0}, {"path": str(more), "weight": 1.0}]
    job = JobSpec.model_validate(
        {**job.model_dump(mode="json"), "data": {"blend": blend, "split": "1,0,0", "chat": {}}, "evaluation": {}}
    )
    data = build(job, train=40)
    ours = [held(data.train[number]) for number in range(40)]
    assert sum(parts[0][0][:9] == list(b"User:\nmor") for parts in ours) == 10


def test_what_is_cut_is_counted(chats: Path) -> None:
    header = read_index(chats)
    stored = contents(chats)
    is_long = [len(ids) > LENGTH + 1 for ids, _ in stored]
    counts = [any(mask[1 : LENGTH + 1]) for _, mask in stored]
    found = usable(header, 0, 60, ChatSpec(), LENGTH)
    assert found.cut == sum(long and count for long, count in zip(is_long, counts, strict=True)) > 0
    assert found.dropped == sum(long and not count for long, count in zip(is_long, counts, strict=True)) > 0
    assert usable(header, 0, 60, ChatSpec(long_conversations="drop"), LENGTH).dropped == sum(is_long)


def test_files_are_opened_once_however_many_are_cut(chats: Path) -> None:
    """On a network's file system each time takes long, and every rank asks."""
    header = read_index(chats)
    with files_opened() as opened:
        assert usable(header, 0, 60, ChatSpec(), LENGTH).cut > 1
    where_they_lie = idx_path(chats)  # their lengths, and the tokens before the first
    assert opened == [where_they_lie, where_they_lie, bin_path(loss_mask_prefix(chats))]


def test_what_is_no_data_set_of_conversations_is_refused(
    build: Any, chats: Path, tokenize: Tokenize, corpus: Path
) -> None:
    plain = chat_job(tokenize(corpus, name="plain"))
    [source] = survey(plain.data)
    assert source.trouble is not None
    assert "has no mask of the assistant's turns" in source.trouble
    with refused("data_does_not_fit_job", "plain", "data tokenize --chat", kind=DataError):
        build(plain, train=4)
    [source] = survey(chat_job(chats).data.model_copy(update={"chat": None}))
    assert source.trouble is not None
    assert "would train on all of their text: write `chat: {}`" in source.trouble


def test_a_part_in_which_nothing_fits_is_refused(build: Any, tokenize: Tokenize, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(5 * (json.dumps({"prompt": "x" * 200, "completion": "y"}) + "\n"))
    job = chat_job(tokenize(path, append_eod=False, chat=True, name="long"))
    report = blend_report(job, BatchSchedule.of(job))
    assert len(report.stops) == 2
    with refused("data_does_not_fit_job", "4", "model.seq_length", "65 tokens", kind=DataError):
        build(job, train=4)
    dropped = chat_job(Path(job.data.blend[0].path), long_conversations="drop")  # type: ignore[index]
    with refused("data_does_not_fit_job", "4", "model.seq_length", "long_conversations", kind=DataError):
        build(dropped, train=4)


def test_another_mask_packs_anew(build: Any, chats: Path) -> None:
    """Of the same tokens: where nothing counts before the cut, a conversation is left out."""
    job = chat_job(chats, packing=False)
    before = build(job, train=3).train.sequences
    mask = bin_path(loss_mask_prefix(chats))
    mask.write_bytes(b"\1" * mask.stat().st_size)
    assert build(job, train=3).train.sequences > before


def test_a_mask_that_was_not_copied_or_is_torn(chats: Path) -> None:
    """Of a data set that is at hand: said as a user's error by whoever reads it."""
    mask = bin_path(loss_mask_prefix(chats))
    mask.write_bytes(mask.read_bytes()[:-1])
    [source] = survey(chat_job(chats).data)
    assert source.trouble is not None
    assert "do not belong together" in source.trouble
    mask.unlink()
    [source] = survey(chat_job(chats).data)
    assert source.trouble is not None
    assert "has no mask" in source.trouble
    with refused("damaged_mask", "chats"):
        list(first_documents(ShowRequest(chats, 1)))


def test_torch_collates_items(build: Any, chats: Path) -> None:
    data = build(chat_job(chats), train=4)
    batch = next(iter(torch.utils.data.DataLoader(data.train, batch_size=2)))
    assert {name: (tuple(field.shape), field.dtype) for name, field in batch.items()} == {
        **dict.fromkeys(("tokens", "labels", "position_ids", "segment_ids"), ((2, LENGTH), torch.int64)),
        "loss_mask": ((2, LENGTH), torch.float32),
    }
