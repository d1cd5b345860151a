"""What is read of a folder of Hugging Face's, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from support.refused import refused

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.conversion.hugging_face.families.bert import BERT
from orchestrator.conversion.hugging_face.families.llama import LLAMA
from orchestrator.conversion.hugging_face.families.t5 import T5
from orchestrator.conversion.hugging_face.hf_import import check_copies
from orchestrator.conversion.tensors.names import SINGLE
from orchestrator.conversion.tensors.safetensors_reader import PublishedWeights
from orchestrator.errors import UserError
from orchestrator.spec.model import ModelSpec

MODEL = ModelSpec(num_layers=1, hidden_size=4, num_attention_heads=1, seq_length=8, vocab_size=2)
TABLE, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
ONES, ZEROS = torch.ones(2, 4), torch.zeros(2, 4)


def index(folder: Path, **shards: dict[str, torch.Tensor]) -> None:
    """Shards and the list of what they hold."""
    for name, tensors in shards.items():
        save_file(tensors, folder / f"{name}.safetensors")
    names = {key: f"{name}.safetensors" for name, tensors in shards.items() for key in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def test_the_single_file_goes_before_an_index_as_in_transformers(tmp_path: Path) -> None:
    index(tmp_path, one={TABLE: ZEROS})
    save_file({TABLE: ONES}, tmp_path / "model.safetensors")
    published = PublishedWeights(tmp_path, LLAMA)
    assert torch.equal(published.read(TABLE), ONES)


def test_files_that_hold_the_same_weight_are_refused(tmp_path: Path) -> None:
    index(tmp_path, one={TABLE: ONES}, two={"embed_tokens.weight": ZEROS})
    with refused("duplicate_tensor", "one.safetensors", "two.safetensors", TABLE):
        PublishedWeights(tmp_path, LLAMA)


def test_names_of_old_files(tmp_path: Path) -> None:
    """The first BERT's norms have a gamma and a beta; some files leave the base out."""
    names = ("bert.embeddings.LayerNorm.gamma", "encoder.layer.0.output.LayerNorm.beta", "cls.predictions.bias")
    save_file({name: ONES + place for place, name in enumerate(names)}, tmp_path / "model.safetensors")
    now = (
        *("bert.embeddings.LayerNorm.weight", "bert.encoder.layer.0.output.LayerNorm.bias"),
        "cls.predictions.bias",
    )
    published = PublishedWeights(tmp_path, BERT)
    for place, name in enumerate(now):
        assert torch.equal(published.read(name), ONES + place)


def test_what_published_t5_files_hold_beside_their_weights(tmp_path: Path) -> None:
    """A bias that nothing uses, and the table of tokens again."""
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    again = dict.fromkeys(T5.copies)
    save_file({"shared.weight": ONES, unused: ZEROS, **{name: ONES.clone() for name in again}}, tmp_path / SINGLE)
    published = PublishedWeights(tmp_path, T5)
    published.check({"shared.weight": (2, 4)}, ignored=tuple(again))
    check_copies(published, [])
    assert unused not in published


@pytest.mark.parametrize(("output", "is_refused"), [(ONES, False), (ZEROS, True)])
def test_an_output_layer_that_is_said_to_be_the_embedding(
    output: torch.Tensor, is_refused: bool, tmp_path: Path
) -> None:
    save_file({TABLE: ONES, OUTPUT: output.clone()}, tmp_path / "model.safetensors")
    published = PublishedWeights(tmp_path, LLAMA)
    if not is_refused:
        check_copies(published, list(LLAMA.weights(MODEL)))
        return
    with refused("tied_weights_differ", "tie_word_embeddings", OUTPUT, TABLE):
        check_copies(published, list(LLAMA.weights(MODEL)))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        PublishedWeights(folder, LLAMA)
    return str(refused.value)


@pytest.mark.parametrize(
    "place", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "a\0", 7, None, ["x"]]
)
def test_an_index_leads_nowhere_else(place: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {TABLE: place}}))
    assert f"index.json names {json.dumps(place)} for {TABLE}, which is no file of its folder" in refusal(tmp_path)


@given(
    st.binary(max_size=40)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["weight_map", "a"]), inner),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_index_is_refused_with_its_name(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("index")
    (folder / "model.safetensors.index.json").write_bytes(content)
    try:
        published = PublishedWeights(folder, LLAMA)
    except UserError as error:
        assert str(folder) in str(error)  # noqa: PT017 - of two outcomes, this is one
        return
    assert TABLE not in published, "it named no file"


def test_files_and_index_that_do_not_belong_together(tmp_path: Path) -> None:
    index(tmp_path, one={TABLE: ONES}, two={OUTPUT: ZEROS})
    (tmp_path / "one.safetensors").rename(tmp_path / "three.safetensors")
    assert "one.safetensors is missing" in refusal(tmp_path)
    save_file({"model.norm.weight": ONES}, tmp_path / "one.safetensors")
    said = f"one.safetensors lacks {TABLE}, which model.safetensors.index.json says it holds"
    assert said in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pytorch_model.bin", "there is pytorch_model.bin; weights are imported only from safetensors"),
        ("model.pth", "there is model.pth"),
        ("adapter_model.safetensors", "is an adapter: merge it into its model first"),
    ],
)
def test_other_files_are_named(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04")
    assert said in refusal(tmp_path)


def test_shapes_and_formats_that_config_does_not_say(tmp_path: Path) -> None:
    tensors = {TABLE: torch.ones(3, 4), OUTPUT: ONES.to(torch.int8), "model.more": ONES}
    save_file(tensors, tmp_path / "model.safetensors")
    published = PublishedWeights(tmp_path, LLAMA)
    with pytest.raises(UserError) as refused:
        published.check({TABLE: (2, 4), OUTPUT: (2, 4), "model.norm.weight": (4,)}, ignored=())
    for reason in (
        "they lack model.norm.weight",
        "Llama has no model.more",
        f"other shapes than config.json says: {TABLE} is (3, 4) and not (2, 4)",
        f"not stored as F32, BF16, F16: {OUTPUT}",
    ):
        assert reason in str(refused.value)
