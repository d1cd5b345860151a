"""Options of a continuation, and files of prompts: every message says where and what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.refused import refused

from orchestrator.errors import UserError
from orchestrator.spec.generation import Generation, options_of
from orchestrator.spec.prompts import read_prompts


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_p": 0}, "top_p: must be greater than 0, not 0"),
        ({"top_k": -1}, "top_k: must be at least 0, not -1"),
        ({"top_k": True}, "top_k: expects a number, not true"),
        ({"temperature": "hot"}, "temperature: expects a number, not 'hot'"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens 9 is more than max_new_tokens 8"),
        ({"top_p": 0.2, "top_p_bound": 0.3}, "top_p_bound 0.3 is above top_p 0.2"),
        ({"num_beams": 2, "top_k": 5}, "num_beams 2 searches and does not draw: leave out top_k"),
        ({"stop": [""]}, "an empty stop string would stop before anything is written"),
        ({"nonsense": 1}, "nonsense is not an option; there are max_new_tokens, min_new_tokens, temperature, top_k"),
        ({"topp": 1}, "topp is not an option; did you mean top_p?"),
        ({"max_tokens": 1}, "max_tokens is not an option; did you mean max_new_tokens?"),
        ({"tokens_to_generate": 1}, "did you mean max_new_tokens?"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        options_of(given, "line 3: ")
    assert str(caught.value).startswith("line 3: ")
    assert message in str(caught.value)


def test_what_goes_together() -> None:
    assert options_of({"num_beams": 4, "temperature": 0}).is_greedy
    assert options_of({}) == Generation()


def test_prompts_are_read_with_their_options(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\\nb", "seed": 5}\n\n{"prompt": "ü"}\r\n')
    read = read_prompts(path, {"temperature": 0.5})
    assert read == [
        ("a\nb", Generation(temperature=0.5, seed=5), (), f"{path}:1"),
        ("ü", Generation(temperature=0.5), (), f"{path}:3"),
    ]


def test_lines_have_images_of_their_own(tmp_path: Path) -> None:
    """Beside the file, whatever the folder is that the command is given in."""
    path, image = tmp_path / "prompts.jsonl", tmp_path / "cat.png"
    image.touch()
    own = ('"<image>", "images": ["cat.png"]', '"x", "images": []', '"<image>", "image": "cat.png"')
    path.write_text("\n".join(f'{{"prompt": {each}}}' for each in own))
    assert [line.images for line in read_prompts(path, {}, sees=True)] == [(image,), (), (image,)]
    lines = [
        '"<image>"}',
        '"x", "images": ["cat.png"]}',
        '"<image>", "images": ["dog.png"]}',
        '"x", "images": "cat.png"}',
        '"<image>", "images": ["cat.png"], "image": "cat.png"}',
    ]
    path.write_text("\n".join('{"prompt": ' + line for line in lines))
    with pytest.raises(UserError) as caught:
        read_prompts(path, {}, sees=True)
    assert str(caught.value).splitlines() == [
        f"{path}:1: the prompt has 1 x <image> and 0 images: each image takes the place of one <image>; "
        'give the others by "images": ["cat.jpg"] in its line, or leave <image> out',
        f"{path}:2: the prompt has 0 x <image> and 1 image: each image takes the place of one <image>",
        f"{path}:3: image {tmp_path / 'dog.png'} does not exist",
        f'{path}:4: "images" is not a list of the names of files, nor "image" the name of one',
        f'{path}:5: it has both "image" and "images": write one of them',
    ]
    path.write_text('{"prompt": "x", "images": null}\n')
    assert [line.images for sees in (True, False) for line in read_prompts(path, {}, sees=sees)] == [(), ()]
    path.write_text('{"prompt": "<image>"}\n')
    assert read_prompts(path, {})[0].prompt == "<image>", "text like any other to a model that sees none"
    path.write_text('{"prompt": "<image>", "images": ["cat.png"]}\n')
    with pytest.raises(UserError, match="the prompt has 1 image, but the model takes none: "):
        read_prompts(path, {})


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("temperature", 0.0, 1000.0),
        ("repetition_penalty", 0.001, 1000.0),
        ("length_penalty", -10.0, 10.0),
        ("num_beams", 1, 256),
        ("max_new_tokens", 1, 2**31 - 1),
        ("top_k", 0, 2**31 - 1),
        ("seed", 0, 2**31 - 1),
    ],
)
def test_every_number_has_bounds(name: str, least: float, most: float, tmp_path: Path) -> None:
    """By which nothing overflows: a length of 2^31 - 1 to the power of 10 is a float, in fp32 a score over 1e-5 is."""
    for value in (least, most):
        assert getattr(options_of({name: value}), name) == value
    path = tmp_path / "prompts.jsonl"
    for wrong in (
        least - 1,
        most + 1,
        -1e308,
        1e308,
        10**400,
        float("nan"),
        float("inf"),
        True,
        "x" * 100_000,
        [1] * 9,
    ):
        with pytest.raises(UserError) as caught:
            options_of({name: wrong})
        assert len(str(caught.value)) < 500
    path.write_text(f'{{"prompt": "x"}}\n{{"prompt": "x", "{name}": 1e308}}\n')
    with pytest.raises(UserError, match=rf"^{path}:2: {name}: "):
        read_prompts(path, {})


def test_a_temperature_that_scores_cannot_be_divided_by_is_greedy() -> None:
    assert [Generation(temperature=value).is_greedy for value in (0, 5e-324, 1e-45, 1e-6, 1e-4, 1)] == [True] * 4 + [
        False
    ] * 2


@pytest.mark.parametrize(
    "given",
    [
        {"stop": [5] * 1_000_000},
        {"stop": ["a"] * 1_000_000},
        {"stop": ["a" * 1_000_000]},
        {"stop": {"a": 1}},
        {"x" * 1_000_000: 1},
        {f"key {number}": 1 for number in range(100_000)},
    ],
    ids=["numbers", "many", "long", "mapping", "name", "names"],
)
def test_a_large_mistake_is_told_in_few_words(given: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        options_of(given)
    assert len(str(caught.value)) < 2000


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(
        b'{"prompt": "x"}\nnope\n[1]\n{"prompt": 3}\n{"prompt": "x", "top_p": 2}\n\xff\n{"prompt": "\\ud800"}\n'
    )
    with pytest.raises(UserError) as caught:
        read_prompts(path, {})
    said = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in said] == [f"{path}:{number}" for number in (2, 3, 4, 5, 6, 7)]
    assert "not JSON" in said[0]
    assert 'a text "prompt"' in said[1]
    assert "top_p: must be at most 1, not 2" in said[3]
    assert "holds half of a surrogate pair" in said[5]
    path.write_text("\n")
    with refused("no_prompts"):
        read_prompts(path, {})
    with refused("unreadable_file"):
        read_prompts(tmp_path / "none", {})
