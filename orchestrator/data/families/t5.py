"""T5: spans of a text are taken out of the encoder's input, and the decoder gives them back."""

from __future__ import annotations

from typing import Any

from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig

from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.errors import UserError
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import DataSpec

LONGEST_SPAN = 10
"""Words of a span at most; lengths are geometric with a mean of 5, cut here (as Megatron-LM has it)."""

Masking = tuple[list[int], list[int], list[int], list[int], list[tuple[list[int], list[int]]]]
"""Masked tokens, masked positions, their labels, word boundaries, and each span's positions and labels."""


class SpanCorruptionDataset(T5MaskedWordPieceDataset):
    """megatron-core's, which takes no more spans than there are sentinels and than the decoder's input has room for.

    megatron-core's own ends the training at the first sample that has one too many.
    """

    def _create_masked_lm_predictions(
        self, token_ids: list[int], target_sequence_length: int, numpy_random_state: Any
    ) -> Masking:
        masked: Masking = super()._create_masked_lm_predictions(token_ids, target_sequence_length, numpy_random_state)
        tokens, positions, labels, boundaries, spans = masked
        fitting = spans[: len(self.config.tokenizer.additional_special_tokens_ids)]
        while 1 + sum(1 + len(indices) for indices, _ in fitting) > self.config.sequence_length_decoder:
            fitting.pop()
        for indices, originals in spans[len(fitting) :]:
            for index, original in zip(indices, originals, strict=True):
                tokens[index] = original
        return tokens, positions, labels, boundaries, fitting


class SpanTokens:
    """A tokenizer by the names that megatron-core's T5 data set has for its parts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.vocab_size = tokenizer.vocab_size
        self.inv_vocab = tokenizer.inv_vocab
        self.eod = self.eos = tokenizer.eod
        self.additional_special_tokens_ids = tokenizer.additional_special_tokens_ids
        if not self.additional_special_tokens_ids:
            raise UserError(
                f"the tokenizer {tokenizer.spec.path} has no sentinels <extra_id_0>, <extra_id_1>, …, which mark the "
                f"spans "
                "that T5 predicts; write data.tokenizer.vocab_extra_ids: 100 to add some",
                code="no_sentinel_tokens",
            )
        self.cls, self.sep = tokenizer.token_id("[CLS]"), tokenizer.token_id("[SEP]")
        self.bos = decoder_start(tokenizer)
        # What is masked is replaced by sentinels; and no token is padding: the data set's masks say what is.
        self.mask, self.pad = self.additional_special_tokens_ids[0], -1
        self.unique_identifiers = tokenizer.unique_identifiers


def decoder_start(tokenizer: Tokenizer) -> int:
    """What the decoder begins with: padding where the tokenizer has no begin of its own, as in T5."""
    begins = (tokenizer.bos, tokenizer.token_id("[PAD]"), tokenizer.token_id("<pad>"))
    return next((token for token in begins if token is not None), tokenizer.eod)


def dataset(
    model: ModelSpec, data: DataSpec, settings: dict[str, Any]
) -> tuple[type[SpanCorruptionDataset], T5MaskedWordPieceDatasetConfig]:
    """Item i holds `text_enc`, `enc_mask` [s_enc] and `text_dec`, `labels`, `loss_mask`, `dec_mask` [s_dec], int64.

    Masks are 1 where a token counts. Raises UserError for a tokenizer without sentinels.
    """
    config = T5MaskedWordPieceDatasetConfig(
        **{**settings, "tokenizer": SpanTokens(settings["tokenizer"])},
        sequence_length_decoder=model.decoder_seq_length,
        masking_probability=data.mask_prob,
        short_sequence_probability=data.short_seq_prob,
        masking_max_ngram=LONGEST_SPAN,
        masking_do_full_word=True,
        masking_do_permutation=False,
        masking_use_longer_ngrams=False,
        masking_use_geometric_distribution=True,
    )
    return SpanCorruptionDataset, config
