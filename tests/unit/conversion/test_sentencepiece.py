"""A SentencePiece model of Llama 2's kind is exported as a tokenizer.json with the same ids; others are refused."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from orchestrator.conversion.hugging_face.tokenizer_files import write_tokenizer
from orchestrator.errors import UserError
from orchestrator.spec.sections.data import TokenizerSpec
from tests.unit.conversion.families import transformers_alone

LLAMA = {
    **{"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "split_digits": True},
    **{"remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True},
}
TEXTS = ["def main():", "  two  spaces", " tab\tx\n\nnew", "é € 漢字 🎉", "123 456", "", "a" * 40, "▁ already"]


def trained(folder: Path, **options: Any) -> TokenizerSpec:
    prefix = folder / "-".join(["of", *map(str, options)])
    text = Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"
    given = {**LLAMA, **options}
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(prefix), vocab_size=500, minloglevel=2, **given
    )
    return TokenizerSpec(type="sentencepiece", path=f"{prefix}.model")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Tokenizer, Path]:
    folder = tmp_path_factory.mktemp("sentencepiece")
    spec = trained(folder)
    special = write_tokenizer(spec, folder)
    assert (special.bos, special.eos) == (1, 2)
    assert (folder / "tokenizer.model").read_bytes() == Path(str(spec.path)).read_bytes()
    own = sentencepiece.SentencePieceProcessor(model_file=spec.path)
    return own, Tokenizer.from_file(str(folder / "tokenizer.json")), folder


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0<")) | st.sampled_from(TEXTS))
def test_the_same_ids_and_the_same_text(written: tuple[Any, Tokenizer, Path], text: str) -> None:
    own, exported, _ = written
    ids = own.encode(text)
    assert exported.encode(text, add_special_tokens=False).ids == ids
    assert exported.decode(ids) == own.decode(ids)


def test_transformers_loads_it(written: tuple[Any, Tokenizer, Path]) -> None:
    own, _, folder = written
    with transformers_alone():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]
    assert ids == [own.encode(text) for text in TEXTS]
    assert [tokenizer.bos_token_id, tokenizer.eos_token_id] == [1, 2]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": "unigram"}, "it is no BPE"),
        ({"byte_fallback": False}, "it does not fall back to bytes"),
        ({"normalization_rule_name": "nmt_nfkc"}, "it normalises characters"),
        ({"add_dummy_prefix": False}, "it puts no space before a text"),
        ({"remove_extra_whitespaces": True}, "it removes spaces"),
        ({"treat_whitespace_as_suffix": True}, "it puts spaces behind words"),
        ({"user_defined_symbols": ["<tool>"]}, "it has symbols of its user's"),
    ],
)
def test_what_is_of_another_kind_is_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        write_tokenizer(trained(tmp_path, **options), tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
