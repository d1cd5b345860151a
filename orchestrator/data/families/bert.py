"""BERT: sentences of one document in two parts, some of their tokens masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig

from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import DataSpec

_NOT_A_TOKEN = -1


class _Draws:
    """A generator of random numbers as masking asks it: the same draws, without the checks that numpy makes of
    probabilities each time, which were half of a sample's time.
    """

    def __init__(self, random: np.random.RandomState) -> None:
        self.random, self.randint, self.shuffle = random.random, random.randint, random.shuffle

    def choice(self, values: np.ndarray, p: np.ndarray) -> int:
        """One of the values, by their probabilities, as `RandomState.choice` draws it."""
        sums = p.cumsum()
        return int(values[(sums / sums[-1]).searchsorted(self.random(), side="right")])


class BertDataset(BERTMaskedWordPieceDataset):
    """megatron-core's, for any id of [PAD].

    Item i holds `text`, `types` (which part a token is of), `labels` (0 where none is asked for), `padding_mask` (1
    where there is a token) and `loss_mask` (1 where it is masked), each [s], int64; `is_random`: 1 where the parts do
    not follow each other as in the document.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # megatron-core fills masks and types up with the id of [PAD], which is right for 0 and -1 alone, and takes a
        # random token that happens to be [PAD] for the end of the sample. No token is -1.
        self._pad_token_id = _NOT_A_TOKEN

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return self._filled(super().__getitem__(idx))

    def _create_masked_lm_predictions(self, tokens: list[int], length: int, random: np.random.RandomState) -> Any:
        return super()._create_masked_lm_predictions(tokens, length, _Draws(random))

    def _filled(self, item: dict[str, Any]) -> dict[str, Any]:
        there = item["padding_mask"] == 1
        return {
            "text": np.where(there, item["text"], self.config.tokenizer.pad),
            "types": np.where(there, item["types"], 0),
            "labels": item["labels"],
            "padding_mask": there.astype(np.int64),
            "loss_mask": item["loss_mask"],
            "is_random": item["is_random"],
        }


class NextSentenceDataset(BertDataset):
    """The second part of half of the samples is from another sample's document (Devlin et al. 2019, section 3.1)."""

    def __getitem__(self, idx: int) -> dict[str, Any]:
        config, tokenizer = self.config, self.config.tokenizer
        random = np.random.RandomState((config.random_seed + idx) % 2**32)
        first, last, length = (int(number) for number in self.sample_index[idx])
        pivot = first + int(random.randint(1, last - first))
        is_random = bool(random.random_sample() < 0.5)
        parts = [self._tokens(first, pivot), self._tokens(pivot, last)]
        if is_random:
            parts[1] = self._elsewhere(first, random)
        self._trim(parts, length, random)
        tokens = [tokenizer.cls, *parts[0], tokenizer.sep, *parts[1], tokenizer.sep]
        masked, positions, labels, _, _ = self._create_masked_lm_predictions(tokens, length, random)
        item = {name: np.zeros(config.sequence_length, dtype=np.int64) for name in ("labels", "loss_mask", "types")}
        item["labels"][positions], item["loss_mask"][positions] = labels, 1
        item["types"][len(parts[0]) + 2 : len(tokens)] = 1
        item["text"] = np.pad(np.array(masked, dtype=np.int64), (0, config.sequence_length - len(masked)))
        item["padding_mask"] = (np.arange(config.sequence_length) < len(masked)).astype(np.int64)
        return self._filled({**item, "is_random": int(is_random)})

    def _tokens(self, first: int, last: int) -> list[int]:
        return [int(token) for sentence in range(first, last) for token in self.dataset[sentence]]

    def _elsewhere(self, first: int, random: np.random.RandomState) -> list[int]:
        """The sentences of another sample; of this document where chance, or a data set of one sample, has it so."""
        for _ in range(10):
            start, stop, _ = self.sample_index[int(random.randint(len(self.sample_index)))]
            if int(start) != first:
                break
        return self._tokens(int(start), int(stop))

    @staticmethod
    def _trim(parts: Sequence[list[int]], length: int, random: np.random.RandomState) -> None:
        """Take tokens from either end of the longer part until both together have `length`."""
        cuts = [0, 0], [len(parts[0]), len(parts[1])]
        while (excess := sum(cuts[1]) - sum(cuts[0]) - length) > 0:
            sizes = [stop - start for start, stop in zip(*cuts, strict=True)]
            longer = int(sizes[1] >= sizes[0])
            taken = max(min(excess, sizes[longer] - sizes[1 - longer]), 1)
            from_front = int(random.binomial(taken, 0.5))
            cuts[0][longer] += from_front
            cuts[1][longer] -= taken - from_front
        for part, start, stop in zip(parts, *cuts, strict=True):
            part[:] = part[start:stop]


def dataset(
    model: ModelSpec, data: DataSpec, settings: dict[str, Any]
) -> tuple[type[BertDataset], BERTMaskedWordPieceDatasetConfig]:
    """`BertDataset` says what an item holds. Raises UserError for a tokenizer without BERT's tokens."""
    tokenizer: Tokenizer = settings["tokenizer"]
    _ = (tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask)
    config = BERTMaskedWordPieceDatasetConfig(
        **settings,
        classification_head=model.bert_binary_head,
        masking_probability=data.mask_prob,
        short_sequence_probability=data.short_seq_prob,
        # As Megatron-LM's pretrain_bert.py.
        masking_max_ngram=3,
        masking_do_full_word=True,
        masking_do_permutation=False,
        masking_use_longer_ngrams=False,
        masking_use_geometric_distribution=False,
    )
    is_next = model.bert_binary_head and data.bert_order == "next_sentence"
    return (NextSentenceDataset if is_next else BertDataset), config
