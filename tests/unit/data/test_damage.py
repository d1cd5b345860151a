"""An index that is damaged within: noticed before anything reads by it, by one message, whatever the damage."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDataset
from support.built_datasets import datasets_of
from support.depth import examples
from support.indexed_files import write_indexed
from support.limits import set_limits
from support.refusals import before
from support.refused import refused

from orchestrator.data.chat.conversation_packing import loss_mask_prefix, usable
from orchestrator.data.checks import check_data
from orchestrator.data.damage import index_damage, refuse_damage
from orchestrator.data.indexed_dataset.header import HEADER, bin_path, idx_path, read_index
from orchestrator.data.indexed_dataset.manifest import manifest_path, read_manifest
from orchestrator.data.source_survey import survey
from orchestrator.errors import DataError, OrchestratorError, UserError
from orchestrator.models.registry import FAMILIES
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.chat import ChatSpec
from orchestrator.spec.sections.data import DataSpec

LENGTHS = (5, 0, 40, 7, 3, 9, 60, 1, 2, 8, 30)
MARKS = (0, 2, 3, 3, 7, 9, 11)
"""Documents of some sentences each; one is empty."""

changes = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(300)
)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Made by another tool: it has no manifest."""
    return Path(write_indexed(tmp_path / "made", LENGTHS, MARKS))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, chunk_of_an_index=4)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The index after some of its numbers, or any of its bytes, were written over, or some were put in or taken out."""
    content = bytearray(whole)
    sequences, marks = HEADER.unpack_from(whole)[3:]
    places = [(18, 8), (26, 8), *((HEADER.size + 4 * number, 4) for number in range(sequences))]
    places += [(HEADER.size + 4 * sequences + 8 * number, 8) for number in range(sequences + marks)]
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["number", "number", "bytes", "cut"]))
        if kind == "number":
            start, size = draw(st.sampled_from(places))
            old = int.from_bytes(whole[start : start + size], "little", signed=True)
            near = st.integers(-3, 3).map(lambda step, old=old: old + step)
            most = 2 ** (8 * size - 1)
            value = draw(st.one_of(near, st.integers(0, 12), st.integers(-most, most - 1), st.just(most - 1)))
            content[start : start + size] = value.to_bytes(size, "little", signed=True)
        elif kind == "bytes":
            start = draw(st.integers(0, len(content) - 1))
            new = draw(st.binary(min_size=1, max_size=24))[: len(content) - start]
            content[start : start + len(new)] = new
        else:
            start, stop = sorted(draw(st.tuples(st.integers(0, len(content)), st.integers(0, len(content)))))
            content[start:stop] = draw(st.binary(max_size=30))
    return bytes(content)


def view(prefix: Path) -> tuple[list[int], list[int], list[int], list[bytes]]:
    """What megatron-core's reader makes of a data set: lengths, offsets, marks, and the bytes of each sequence."""
    made = IndexedDataset(str(prefix))
    index = made.index
    return (
        index.sequence_lengths.tolist(),
        index.sequence_pointers.tolist(),
        index.document_indices.tolist(),
        [bytes(made[number].tobytes()) for number in range(len(made))],
    )


def test_what_is_whole_is_taken(prefix: Path, tokenize: Any, corpus: Path, tmp_path: Path) -> None:
    empty = Path(write_indexed(tmp_path / "empty", []))
    assert index_damage(prefix) is index_damage(empty) is index_damage(tmp_path / "nothing") is None
    refuse_damage([prefix, empty, tokenize(corpus)])


@changes
@given(st.data())
def test_a_reader_sees_what_was_written_or_there_is_a_message(prefix: Path, data: Any) -> None:
    """Of documents without a checksum, those that begin with other sequences in order are as good as any."""
    path = idx_path(prefix)
    whole, expected = path.read_bytes(), view(prefix)
    path.write_bytes(data.draw(damaged(whole)))
    try:
        message = index_damage(prefix)
        try:
            header = read_index(prefix)
        except OrchestratorError:
            return  # by whom it is said
        assert message is None or path.read_bytes() != whole
        if message is None:
            lengths, offsets, marks, sequences = view(prefix)
            assert (lengths, offsets, sequences) == (expected[0], expected[1], expected[3])
            assert (marks[0], marks[-1]) == (0, header.sequences)
            assert all(begin <= end for begin, end in pairwise(marks))
        else:
            assert message.startswith(f"{path} is damaged: its ")
            assert message.endswith(". Tokenize again or copy it again")
            assert "\n" not in message
    finally:
        path.write_bytes(whole)


@changes
@given(st.data())
def test_of_what_was_made_here_every_change_is_noticed(made_here: Path, data: Any) -> None:
    path = idx_path(made_here)
    whole = path.read_bytes()
    changed = data.draw(damaged(whole).filter(lambda content: content != whole))
    path.write_bytes(changed)
    try:
        message = index_damage(made_here)
        if message is None:
            with pytest.raises(UserError) as caught:
                read_index(made_here)
            assert caught.value.code in ("not_an_index", "unknown_index_version")
        else:
            assert message.startswith((f"{path} is ", f"{bin_path(made_here)} and {path} do not belong together: "))
            assert "\n" not in message
    finally:
        path.write_bytes(whole)


@pytest.fixture
def made_here(tokenize: Any, tmp_path: Path) -> Path:
    """Sentences of some documents, with a manifest."""
    lines = [" ".join(["One.", "Two", "and", "more.", "Three!"][: 1 + number % 5]) for number in range(12)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    made: Path = tokenize(tmp_path / "text.jsonl", split_sentences=True, append_eod=False)
    return made


def test_sentences_that_change_their_document(made_here: Path) -> None:
    """All of its parts fit each other: only the checksum tells."""
    path = idx_path(made_here)
    header, content = read_index(made_here), bytearray(path.read_bytes())
    marks_at = HEADER.size + 12 * header.sequences
    marks = np.frombuffer(content, dtype="<i8", offset=marks_at)
    place = int(np.flatnonzero(np.diff(marks) > 1)[0]) + 1
    struct.pack_into("<q", content, marks_at + 8 * place, int(marks[place]) - 1)
    del marks
    path.write_bytes(content)
    manifest = read_manifest(made_here)
    assert manifest is not None
    message = index_damage(made_here)
    assert message is not None
    assert message.startswith(f"{path} is damaged or belongs to other data: its CRC-32 is ")
    assert f", and that of {manifest_path(made_here)} is {manifest.index_crc32:08x}. " in message
    assert message.endswith("remove the manifest if another tool has since made the data")
    manifest_path(made_here).unlink()
    assert index_damage(made_here) is None


def test_a_manifest_of_an_earlier_version_has_no_checksum(made_here: Path) -> None:
    record = json.loads(manifest_path(made_here).read_text())
    assert record.pop("index_crc32")
    manifest_path(made_here).write_text(json.dumps(record))
    assert index_damage(made_here) is None
    change(made_here, 0, 99)
    assert "is damaged: its sequence 0 of 99 tokens, 2 bytes each, begins at byte 0" in str(index_damage(made_here))


def change(prefix: Path, number: int, value: int, part: str = "length") -> None:
    """Write over one number of an index."""
    path = idx_path(prefix)
    content = bytearray(path.read_bytes())
    sequences = HEADER.unpack_from(content)[3]
    begin = HEADER.size + {"length": 0, "offset": 4 * sequences, "mark": 12 * sequences}[part]
    kind, size = ("<i", 4) if part == "length" else ("<q", 8)
    struct.pack_into(kind, content, begin + number * size, value)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("part", "number", "value", "said"),
    [
        ("length", 2, -1, "its sequence 2 of -1 tokens, 2 bytes each, begins at byte 10 of the data and ends at 90"),
        ("length", 4, 2**31 - 1, "its sequence 4 of 2147483647 tokens"),
        ("offset", 0, 2, "its first sequence begins at byte 2 of the data"),
        ("offset", 4, 10**12, "its sequence 3 of 7 tokens, 2 bytes each, begins at byte 90 of the data and ends at 1"),
        ("offset", 9, -4, "its sequence 8 of 2 tokens, 2 bytes each, begins at byte 250 of the data and ends at -4"),
        ("mark", 0, 1, "its first document begins with sequence 1"),
        ("mark", 1, -5, "its document 0 begins with sequence 0, and the one after it with -5"),
        ("mark", 4, 2, "its document 3 begins with sequence 3, and the one after it with 2"),
        ("mark", 5, 12, "its document 5 begins with sequence 12, and the one after it with 11"),
        ("mark", 6, 10, "its last document ends before sequence 10, and there are 11"),
    ],
)
def test_the_message_says_where(prefix: Path, part: str, number: int, value: int, said: str) -> None:
    change(prefix, number, value, part)
    assert f"{idx_path(prefix)} is damaged: {said}" in str(index_damage(prefix))


@pytest.mark.parametrize("number", [0, 4095, 4096, 8191, 8192])
@pytest.mark.parametrize("part", ["length", "offset", "mark"])
def test_long_indices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, part: str) -> None:
    """Each number of an index is looked at, whichever chunk it is in."""
    set_limits(monkeypatch, chunk_of_an_index=4096)
    prefix = Path(write_indexed(tmp_path / "long", [3] * 8193))
    assert index_damage(prefix) is None
    change(prefix, number, 9001 if part == "mark" else 1, part)
    assert index_damage(prefix) is not None


def test_a_sequence_longer_than_its_length_can_say(tmp_path: Path) -> None:
    """What a tool may write: the offsets fit the data, and the length has become negative."""
    prefix = Path(write_indexed(tmp_path / "long", [3, 4, 5]))
    change(prefix, 0, 2**31 + 7 - 2**32)
    for number in (1, 2):
        change(prefix, number, 2 * (2**31 + 7) + 8 * (number - 1), "offset")
    os.truncate(bin_path(prefix), 2 * (2**31 + 7) + 18)
    assert "its sequence 0 of -2147483641 tokens, 2 bytes each, begins at byte 0" in str(index_damage(prefix))


def test_marks_that_go_all_the_way_round(tmp_path: Path) -> None:
    """No two of them are 2**63 apart, so that none seems to be less than the one before it."""
    prefix = Path(write_indexed(tmp_path / "round", LENGTHS, [0, 2**63 - 1, -(2**62), 5, 11]))
    assert "its document 1 begins with sequence 9223372036854775807, and the one after it" in str(index_damage(prefix))


def test_the_mask_of_conversations(tmp_path: Path, prefix: Path) -> None:
    mask = Path(write_indexed(loss_mask_prefix(prefix), LENGTHS, MARKS))
    refuse_damage([prefix])
    change(mask, 2, 41)
    change(prefix, 0, 6)
    with pytest.raises(DataError) as refusal:
        refuse_damage([prefix])
    first, second = str(refusal.value).split("\n")
    assert first.startswith(f"{idx_path(prefix)} is damaged: its sequence 0 of 6 tokens")
    assert second.startswith(f"{idx_path(mask)} is damaged: its sequence 2 of 41 tokens")


def spec(*prefixes: Path, **fields: Any) -> DataSpec:
    return DataSpec.model_validate({"blend": [{"path": str(prefix)} for prefix in prefixes], **fields})


class TestBeforeTheStart:
    def test_a_job_is_told_at_its_place(self, prefix: Path, tmp_path: Path) -> None:
        whole = Path(write_indexed(tmp_path / "whole", LENGTHS))
        change(prefix, 3, 8)
        first, second = survey(spec(whole, prefix))
        assert first.header is not None
        assert (second.place, second.header, second.is_unfit) == ("data.blend[1]", None, True)
        assert "is damaged: its sequence 3 of 8 tokens" in str(second.trouble)

    def test_many_jobs_with_the_same_data_read_it_once(
        self, prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[Path] = []
        before(monkeypatch, "orchestrator.data.source_survey.refuse_damage", read.extend)
        other = Path(write_indexed(tmp_path / "other", LENGTHS))
        for _ in range(3):
            assert [source.trouble for source in survey(spec(prefix, other))] == [None, None]
        assert read == [prefix, other]
        os.utime(idx_path(other), (1, 1))
        write_indexed(loss_mask_prefix(prefix), LENGTHS, MARKS)
        survey(spec(prefix, other))
        assert read == [prefix, other] * 2

    def test_large_indices_are_left_to_the_start(
        self, prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        small = Path(write_indexed(tmp_path / "small", LENGTHS[:4]))
        for damaged_one in (prefix, small):
            change(damaged_one, 1, 77)
        set_limits(monkeypatch, bytes_of_indices_read=read_index(prefix).index_bytes - 1)
        large, looked_through = survey(spec(prefix, small))
        assert (large.trouble, large.header) == (None, read_index(prefix))
        assert "is damaged" in str(looked_through.trouble)

    @changes
    @given(st.data(), st.sampled_from(["gpt", "bert", "t5", "chat"]))
    def test_what_is_read_of_a_large_one_gives_no_traceback(self, prefix: Path, data: Any, family: str) -> None:
        """What a verdict reads by an index that it has not looked through."""
        write_indexed(loss_mask_prefix(prefix), LENGTHS, MARKS)
        path = idx_path(prefix)
        whole = path.read_bytes()
        path.write_bytes(data.draw(damaged(whole)))
        chat = ChatSpec(long_conversations="truncate") if family == "chat" else None
        try:
            _check(spec(prefix, chat=chat, split="6,4,0"), "gpt" if chat else family, (9, 9, 0))
            header = read_index(prefix)
            usable(header, 0, header.sequences, ChatSpec(long_conversations="truncate"), 8)
        except OrchestratorError:
            return
        finally:
            path.write_bytes(whole)


def _check(data: DataSpec, architecture: str, samples: Sequence[int]) -> None:
    check_data(
        data, family=FAMILIES[architecture], sequence_length=8, vocab_size=261, tokenizer_hash="", samples=samples
    )


@pytest.mark.usefixtures("process_group")
class TestAtTheStart:
    def build(self, data: DataSpec, cache: Path) -> None:
        datasets_of(data, ModelSpec(num_layers=1, hidden_size=64, num_attention_heads=1, seq_length=16), cache, 4)

    def test_every_damaged_source_is_told(self, prefix: Path, tmp_path: Path) -> None:
        other = Path(write_indexed(tmp_path / "other", LENGTHS))
        unread = Path(write_indexed(tmp_path / "unread", LENGTHS))
        data = spec(prefix, other, validation=[{"path": str(unread)}], split="1,0,0")
        self.build(data, tmp_path / "cache")
        change(other, 9, 0)
        change(unread, 9, 0)
        change(prefix, 2, 8, "mark")
        with pytest.raises(DataError) as refusal:
            self.build(data, tmp_path / "cache")
        assert str(refusal.value).split("\n") == [index_damage(prefix), index_damage(other)]

    def test_one_rank_of_each_node_reads(self, prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        change(prefix, 2, 8, "mark")
        monkeypatch.setenv("LOCAL_RANK", "1")
        self.build(spec(prefix, split="1,0,0"), tmp_path / "cache")
        monkeypatch.setenv("LOCAL_RANK", "0")
        with refused("damaged_data_set", "document 2", "sequence 8", "3", kind=DataError):
            self.build(spec(prefix, split="1,0,0"), tmp_path / "cache")
