"""A model that sees: images among the tokens of prompts, with a key/value cache, at other layouts, by the command."""

from __future__ import annotations

import base64
import http.client
import io
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.faults import PATIENCE, CommandLine, Ranks
from support.training import four_layer_job, layout, make_run, values
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

pytestmark = [pytest.mark.distributed, pytest.mark.slow("a tiny training, ranks for each layout, and a server")]

HERE = Path(__file__).parent
EYES: dict[str, Any] = {
    **{"image_size": 16, "patch_size": 4, "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4},
    "images_per_sequence": 2,
}
MODEL = {
    **{"num_query_groups": 2, "vocab_size": 300, "position_embedding_type": "learned_absolute", "vision": EYES},
    "init_method_std": 0.3,  # so that it has much to say after a few steps
}
LAYOUTS: dict[str, dict[str, Any]] = {"tp1": layout(), "tp2": layout(tp=2, sequence_parallel=True), "pp2": layout(pp=2)}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}<|endoftext|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
GREEDY = ("--temperature", "0", "--max-new-tokens", "6", "--json")


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer of bytes, with a chat template, that knows the mark of an image."""
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<image>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|endoftext|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    tokenizer = {"type": "huggingface", "path": str(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))}
    steps = {"train_iters": 4}
    more: dict[str, Any] = {"schedule": steps, "evaluation": {"eval_interval": 2, "eval_iters": 1}}
    return four_layer_job("seer", model=MODEL, data={"random_tokens": True, "tokenizer": tokenizer}, **more)


@pytest.fixture(scope="module")
def run(ranks: Ranks, job: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return ranks.must_train(make_run(tmp_path_factory.mktemp("runs"), job), job)


def generated(ranks: Ranks, run: RunDir, job: JobSpec, name: str, out: Path) -> list[dict[str, Any]]:
    """What each rank generated at a layout."""
    sections = job.model_dump(mode="json", exclude_none=True)
    written = JobSpec.model_validate({**sections, "parallelism": LAYOUTS[name]})
    (out / "job.json").write_text(dump_resolved(written))
    arguments, program = (str(out / "job.json"), str(out)), HERE / "seeing_program.py"
    assert ranks.starter.start(run.path, written.world_size, *arguments, program=program).wait() == 0
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(written.world_size)]


@pytest.fixture(scope="module")
def alone(ranks: Ranks, run: RunDir, job: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    [found] = generated(ranks, run, job, "tp1", tmp_path_factory.mktemp("tp1"))
    return found


@pytest.fixture
def pictures(tmp_path: Path) -> tuple[Path, Path]:
    """Of the size that the model sees, and as noise at another."""
    noise = np.random.default_rng(3).integers(0, 256, (2, 40, 30, 3), dtype=np.uint8)
    paths = tmp_path / "small.png", tmp_path / "large.png"
    Image.fromarray(noise[0, :16, :16]).save(paths[0])
    Image.fromarray(noise[1]).save(paths[1])
    return paths


def test_the_cache_and_the_batch_change_nothing(alone: dict[str, Any]) -> None:
    """Prompts with no, one, two and three images together, keys and values kept, are as each alone without."""
    assert all(len(set(tokens)) > 4 for tokens in alone["cached"])
    assert alone["cached"] == alone["recomputed"]
    assert alone["beams"] == alone["beams, alone"]
    assert alone["drawn"] == alone["drawn, alone"]


def test_images_are_seen_and_those_of_other_prompts_are_not(alone: dict[str, Any]) -> None:
    logits = [torch.tensor(rows) for rows in alone["~logits"]]
    assert [len(rows) for rows in logits] == [3 + 16, 5, 4 + 32, 16, 1 + 48]
    torch.testing.assert_close(logits[0], torch.tensor(alone["~alone"]), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits[1], torch.tensor(alone["~text"]), atol=1e-4, rtol=0)
    apart = (logits[0] - torch.tensor(alone["~of another image"])).abs().amax(dim=1)
    assert apart[0] < 1e-4, "before the image"
    assert (apart[1:] > 1e-2).all()
    for images, tokens, others in zip([1, 0, 2, 1, 3], alone["cached"], alone["of others"], strict=True):
        assert (tokens == others) == (images == 0)
    assert alone["prompt"] == [7, *[257] * 16, 8, 9], "the tokenizer's own token keeps the places of patches"


def test_without_images_it_is_a_decoder_like_any_other(alone: dict[str, Any]) -> None:
    assert alone["text"] == alone["blind"] == alone["cached"][1:2]


def test_what_is_written_is_measured_as_logits_are(alone: dict[str, Any]) -> None:
    assert alone["likeliest"] == [True] * 10
    assert alone["~measured"] == pytest.approx(alone["~scored"], abs=1e-4)


@pytest.mark.parametrize("name", ["tp2", "pp2"])
def test_other_layouts_generate_the_same(
    ranks: Ranks, run: RunDir, job: JobSpec, alone: dict[str, Any], name: str, tmp_path: Path
) -> None:
    for rank in generated(ranks, run, job, name, tmp_path):
        assert rank.keys() == alone.keys() - {"recomputed", "beams, alone", "drawn, alone", "blind"}
        for field, value in rank.items():
            if field.startswith("~"):
                for ours, theirs in zip(value, alone[field], strict=True):
                    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=1e-4, rtol=0)
            else:
                assert value == alone[field], field


def test_evaluation_in_training_goes_through_images(run: RunDir) -> None:
    curve = values(run, "validation/loss")
    assert list(curve) == [2, 4]
    assert all(map(math.isfinite, curve.values()))


def test_files_and_lines_are_as_the_prompt(orchestrator: CommandLine, run: RunDir, pictures: tuple[Path, Path]) -> None:
    small, large = pictures
    images = ("--image", small.name, "--image", large.name)
    said = orchestrator("generate", run.path, "--prompt", "a<image>b<image>\nc", *images, *GREEDY)
    assert said.code == 0, said.err
    answer = json.loads(said.out)
    assert answer["prompt"] == "a<image>b<image>\nc"
    lines = [
        {"prompt": "hello"},
        {"prompt": "a<image>b<image>\nc", "images": [small.name, str(large)]},
        {"prompt": "a<image>b<image>\nc", "images": [large.name, small.name]},
    ]
    (orchestrator.folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    said = orchestrator("generate", run.path, "--file", "prompts.jsonl", *GREEDY)
    assert said.code == 0, said.err
    texts = [json.loads(line)["tokens"] for line in said.out.splitlines()]
    assert texts[1] == answer["tokens"]
    assert len({tuple(each) for each in texts}) == 3
    said = orchestrator("evaluate", run.path, "--text", "prompts.jsonl", "--json")
    assert said.code == 0, said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--prompt", "a<image>"),
            "each image takes the place of one <image>; give the others by --image FILE, or leave",
        ),
        (("--prompt", "a", "--image", "small.png"), "the prompt has 0 x <image> and 1 image: "),
        (("--prompt", "a<image>", "--image", "none.png"), "image none.png does not exist"),
        (("--file", "prompts.jsonl", "--image", "small.png"), 'in a file each line has its own: "images"'),
        (("--file", "prompts.jsonl"), "prompts.jsonl:1: the prompt has 1 x <image> and 0 images"),
        (
            ("--prompt", "a<image>", "--image", "prompts.jsonl"),
            "prompts.jsonl is not supported; supported are JPEG, PNG",
        ),
        (
            ("--prompt", "<image>" * 4, *("--image", "small.png") * 4),
            "the prompt has 64 tokens (of which images take 64), but the model has learned 64 positions",
        ),
    ],
)
def test_bad_input_is_told(
    orchestrator: CommandLine, run: RunDir, pictures: tuple[Path, Path], arguments: tuple[str, ...], message: str
) -> None:
    (orchestrator.folder / "prompts.jsonl").write_text('{"prompt": "<image>"}')
    said = orchestrator("generate", run.path, *arguments, *GREEDY)
    assert said.code == 2, said.err
    assert message in json.loads(said.out)["message"]


def test_a_server_reads_images_in_conversations(
    orchestrator: CommandLine, run: RunDir, pictures: tuple[Path, Path]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "serve", str(run.path), "--port", "0", "--json"],
        env={**os.environ, **orchestrator.env},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])

        def ask(content: Any) -> tuple[int, Any]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            turns = [{"role": "user", "content": content}]
            body = json.dumps({"messages": turns, "temperature": 0, "max_tokens": 6})
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            found = json.loads(answer.read())
            connection.close()
            return answer.status, found

        def image(url: str) -> dict[str, Any]:
            return {"type": "image_url", "image_url": {"url": url}}

        def as_url(picture: Image.Image) -> str:
            file = io.BytesIO()
            picture.save(file, "png")
            return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()

        huge = Image.new("1", (8000, 5001))
        photograph = as_url(Image.effect_noise((1600, 1200), 90))
        assert len(photograph) > 1 << 20
        assert ask([image(photograph)])[0] == 200, "a request with a photograph is not too large"
        sent = as_url(Image.open(pictures[1]))
        status, answer = ask([image(sent), {"type": "text", "text": "\nhi"}])
        assert status == 200, answer
        prompt = "user: <image>\nhi<|endoftext|>\nassistant: "
        said = orchestrator("generate", run.path, "--prompt", prompt, "--image", pictures[1].name, *GREEDY)
        assert answer["choices"][0]["message"]["content"] == json.loads(said.out)["text"]
        assert answer["usage"]["prompt_tokens"] == len(prompt) - len("<image><|endoftext|>") + 1 + 16
        in_parts, plain = (ask(content)[1] for content in ([{"type": "text", "text": part} for part in "hi"], "hi"))
        assert (in_parts["choices"], in_parts["usage"]) == (plain["choices"], plain["usage"])
        status, answer = ask("<image>")
        assert (status, answer["usage"]["prompt_tokens"]) == (200, len(prompt) - len("\nhi<|endoftext|><image>") + 2)
        status, answer = ask([image(sent), {"type": "text", "text": "\nhi<image>"}])
        assert status == 200, answer
        assert answer["usage"]["prompt_tokens"] == len(prompt) - len("<image><|endoftext|>") + 1 + 16 + 1
        for content, message in [
            ([image("https://example.org/cat.png")], "part 0: URLs are not fetched; send the image itself"),
            ([image("data:image/png;base64,?")], "part 0: its image is not base64"),
            ([image(as_url(huge))], "8000 x 5001 exceed the limit of 40000000 pixels per image"),
            ([image("data:image/png;base64,aGk=")], "the image is not supported; supported are JPEG, PNG"),
            ([image(sent)] * 5, "5 images take 80 tokens; a prompt has at most 64"),
            ([{"type": "input_audio"}], "part 0: expects"),
        ]:
            status, answer = ask(content)
            assert status == 400, answer
            assert message in answer["error"]["message"]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
