"""Generation with a key/value cache under tensor and pipeline parallelism, and the command around it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import CommandLine, Ranks
from support.training import layout, make_run, tiny_job

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import dump_resolved

LISTS = [[7, 8, 9], [1, 2, 3, 4, 5], [249, 240], [3, 1, 4, 1, 5, 9, 2, 6]]
pytestmark = [pytest.mark.distributed, pytest.mark.slow("a tiny training, and ranks for each layout")]

HERE = Path(__file__).parent
MODEL = {"num_layers": 4, "num_query_groups": 2, "vocab_size": 300, "position_embedding_type": "learned_absolute"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp1": layout(),
    "tp2": layout(tp=2, sequence_parallel=True),
    "pp2": layout(pp=2, vp=2),
}


def job(parallelism: dict[str, Any]) -> Any:
    data = {"random_tokens": True, "tokenizer": {"type": "byte_level"}}
    # Trained with logits or without: there are some to draw from.
    runtime = {"fused_linear_cross_entropy": parallelism != LAYOUTS["tp1"]}
    steps = {"train_iters": 10}
    return tiny_job("writer", model=MODEL, data=data, parallelism=parallelism, schedule=steps, runtime=runtime)


@pytest.fixture(scope="module")
def run(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    trained = job(layout())
    return ranks.must_train(make_run(tmp_path_factory.mktemp("runs"), trained), trained)


BY_THEMSELVES = {
    *("~alone", "recomputed", "drawn in twos", "each alone", "unequal, alone", "at once, alone"),
    *("other seed", "drawn, fewer", "went on", "tokenizer's end"),
}
"""Of other batches, without a cache, or of another seed, bound or end: at one rank the same as the rest, or drawn and
ended as the rest is, which is compared at other layouts.
"""
OF_STAGES = {"drawn in twos"}
"""But in more than one stage a batch is cut otherwise."""


def generate(ranks: Ranks, run: RunDir, name: str, out: Path, *fields: str) -> list[dict[str, Any]]:
    """What each rank generated at a layout: all or these fields."""
    written = job(LAYOUTS[name])
    (out / "job.json").write_text(dump_resolved(written))
    arguments, program = (str(out / "job.json"), str(out), *fields), HERE / "generate_program.py"
    assert ranks.starter.start(run.path, written.world_size, *arguments, program=program).wait() == 0
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(written.world_size)]


@pytest.fixture(scope="module")
def alone(ranks: Ranks, run: RunDir, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    [found] = generate(ranks, run, "tp1", tmp_path_factory.mktemp("tp1"))
    return found


def test_the_cache_and_the_batch_change_nothing(alone: dict[str, Any]) -> None:
    """Prompts of different lengths together, with keys and values kept, are as each alone without."""
    assert [len(tokens) for tokens in alone["cached"]] == [8, 8, 8, 8]
    assert alone["cached"] == alone["recomputed"]


def test_a_row_that_has_no_room_left_does_not_disturb_the_others(alone: dict[str, Any]) -> None:
    """28 tokens and 4 new ones fill the 32 positions, while the other row goes on."""
    assert alone["unequal"] == alone["unequal, alone"]
    assert [[len(tokens) for tokens in rows] for rows in alone["unequal"]] == [[4, 20], [4, 20]]


def test_beams_of_a_single_token_are_done_at_once(alone: dict[str, Any]) -> None:
    assert alone["at once"] == alone["at once, alone"]
    assert [len(tokens) for tokens in alone["at once"]] == [1, 5]


def test_a_draw_depends_on_seed_and_prompt_alone(alone: dict[str, Any]) -> None:
    assert alone["drawn"] != alone["other seed"]
    assert alone["drawn"] != alone["cached"]
    assert alone["drawn in twos"] == alone["drawn"]
    assert alone["drawn, fewer"] == [tokens[:3] for tokens in alone["drawn"]]
    assert alone["of each its own"] == alone["each alone"]
    assert [len(tokens) for tokens in alone["of each its own"]] == [8, 8, 5, 8]


def test_the_end(alone: dict[str, Any]) -> None:
    end = alone["cached"][0][4]
    cut = [tokens[: tokens.index(end)] if end in tokens else tokens for tokens in alone["cached"]]
    assert alone["ended"] == cut
    assert len(cut[0]) <= 4
    assert alone["went on"] == alone["cached"]
    assert alone["tokenizer's end"] == [
        tokens[: tokens.index(256)] if 256 in tokens else tokens for tokens in alone["cached"]
    ]
    assert [len(tokens) for tokens in alone["not ended"]] == [8, 8, 8, 8]
    assert all(end not in tokens for tokens in alone["not ended"])


def test_logits_are_those_of_each_list_alone_without_padding(alone: dict[str, Any]) -> None:
    """300 tokens are padded to 384; the longest list has eight tokens."""
    logits = [torch.tensor(rows) for rows in alone["~logits"]]
    assert [tuple(rows.shape) for rows in logits] == [(3, 300), (5, 300), (2, 300), (8, 300)]
    torch.testing.assert_close(logits[0], torch.tensor(alone["~alone"]), atol=1e-5, rtol=0)
    assert logits[0].std() > 0.1
    for row, tokens in enumerate(LISTS):
        for place, token in enumerate(tokens[1:]):
            scores = logits[row][place]
            assert alone["~log-probabilities"][row][place] == pytest.approx(scores.log_softmax(0)[token].item(), 1e-5)
            assert alone["likeliest"][row][place] == (scores.argmax().item() == token)


def test_what_is_written_is_measured_as_logits_are(alone: dict[str, Any]) -> None:
    """The log-probabilities of new tokens, with the cache, are those of the whole, without; each was the likeliest."""
    assert alone["likeliest of the greedy"] == [[True] * 8] * 4, "of any part of the vocabulary"
    assert len(alone["~measured"]) == 8
    assert alone["~measured"] == pytest.approx(alone["~scored"], abs=1e-5)


@pytest.mark.parametrize("name", ["tp2", "pp2"])
def test_other_layouts_generate_the_same(
    ranks: Ranks, run: RunDir, alone: dict[str, Any], name: str, tmp_path: Path
) -> None:
    fields = alone.keys() - BY_THEMSELVES | (OF_STAGES if name == "pp2" else set())
    for rank in generate(ranks, run, name, tmp_path, *sorted(fields)):
        assert rank.keys() == fields
        for field, value in rank.items():
            if field.startswith("~"):
                for ours, theirs in zip(value, alone[field], strict=True):
                    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=1e-5, rtol=0)
            else:
                assert value == alone[field], field


def test_the_command_prints_one_json_document(orchestrator: CommandLine, run: RunDir) -> None:
    finished = orchestrator(
        "generate", run.path, "--prompt", "héllo", "--max-new-tokens", "8", "--temperature", "0", "--json"
    )
    assert finished.code == 0, finished.err
    answer = json.loads(finished.out)
    assert answer["prompt"] == "héllo"
    assert answer["iteration"] == 10
    assert isinstance(answer["text"], str)


def test_more_than_the_learned_positions_is_refused(orchestrator: CommandLine, run: RunDir) -> None:
    finished = orchestrator("generate", run.path, "--prompt", "12345", "--max-new-tokens", "28", "--json")
    assert finished.code == 2
    assert "at most 27 new tokens" in json.loads(finished.out)["message"]
    assert "Traceback" not in finished.err


def test_a_model_that_sees_nothing_is_given_no_image(orchestrator: CommandLine, run: RunDir) -> None:
    """And a mark is text like any other."""
    (orchestrator.folder / "cat.png").touch()
    finished = orchestrator("generate", run.path, "--prompt", "<image>", "--image", "cat.png", "--json")
    assert finished.code == 2
    said = "the prompt has 1 image, but the model takes none: it has no model.vision"
    assert json.loads(finished.out)["message"] == said
    finished = orchestrator("generate", run.path, "--prompt", "<image>", "--max-new-tokens", "1", "--json")
    assert finished.code == 0, finished.err


def test_a_damaged_checkpoint_is_named_and_not_used(orchestrator: CommandLine, run: RunDir, tmp_path: Path) -> None:
    damaged = RunDir(shutil.copytree(run.path, tmp_path / "writer" / "run"))
    shutil.copytree(damaged.checkpoint(10), damaged.checkpoint(20))
    marker = damaged.checkpoint(20) / "commit.json"
    marker.write_text(marker.read_text().replace('"iteration": 10', '"iteration": 20'))
    file = sorted(damaged.checkpoint(20).glob("*.distcp"))[0]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    finished = orchestrator("generate", damaged.path, "--prompt", "a", "--max-new-tokens", "1", "--json")
    assert finished.code == 0, finished.err
    assert json.loads(finished.out)["iteration"] == 10
    assert f"warning: skipped a checkpoint: {file} is damaged" in finished.err
    finished = orchestrator(
        "generate", damaged.path, "--prompt", "a", "--max-new-tokens", "1", "--json", "--iteration", "20"
    )
    assert finished.code == 1
    assert f"{file} is damaged: its CRC-32 is" in json.loads(finished.out)["message"]
