"""BERT, and the data of sentences that it shares with T5."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.sections.data import DataSpec

FAMILY, OFFSET = "model.architecture", "model.position_embedding_offset"
SHORTEST = 8
"""[CLS], two [SEP], and a few tokens between them."""
_NOT_OF_BERT = {
    "no_rope_freq": "all its layers have the same kind of positions",
    "qk_l2_norm": "of published models only decoders have it",
    "attention_logit_softcapping": "capped scores are for causal attention",
    "final_logit_softcapping": "caps a decoder's logits",
    "scale_embeddings": "scales a decoder's embeddings",
}
_UNREAD = {
    "reset_position_ids": "a BERT sample comes from one document: its positions never restart",
    "eod_mask_loss": "BERT's loss counts only the masked tokens",
}


def bert_model(job: JobSections) -> Iterator[Problem]:
    """What the encoder is built from."""
    model = job.model
    if model.architecture != "bert":
        return
    for name, reason in _NOT_OF_BERT.items():
        if getattr(model, name) != ModelSpec.model_fields[name].default:
            yield Problem(f"is not for architecture: bert: {reason}", (f"model.{name}", FAMILY), "leave it out")
    if model.position_embedding_type not in model.family.positions:
        message = f"{model.position_embedding_type} positions are not for architecture: bert"
        yield Problem(message, ("model.position_embedding_type", FAMILY), "write learned_absolute or rope")
    if model.query_groups != model.num_attention_heads:
        message = f"grouped queries are not for architecture: bert: {model.query_groups} ≠ {model.num_attention_heads}"
        paths = ("model.num_query_groups", "model.num_attention_heads", FAMILY)
        yield Problem(message, paths, "leave num_query_groups out")
    if model.position_embedding_offset and model.position_embedding_type != "learned_absolute":
        message = f"is for learned positions, but position_embedding_type is {model.position_embedding_type}"
        yield Problem(message, (OFFSET, "model.position_embedding_type"), "leave it out")
    if model.bert_binary_head and model.tokentypes < 2:
        message = "the binary head learns how two parts are related, which needs two token types: 1 < 2"
        yield Problem(message, ("model.num_tokentypes", "model.bert_binary_head"), "write 2, or leave it out")
    if model.seq_length < SHORTEST:
        message = f"a sample of BERT is two parts between [CLS] and two [SEP]: {model.seq_length} < {SHORTEST}"
        yield Problem(message, ("model.seq_length", FAMILY), f"write at least {SHORTEST}; 512 is usual")


def bert_data(job: JobSections) -> Iterator[Problem]:
    """What masked samples are made of."""
    data = job.data
    if job.model.architecture != "bert":
        return
    for name, reason in _UNREAD.items():
        if getattr(data, name):
            yield Problem(f"is not for architecture: bert: {reason}", (f"data.{name}", FAMILY), "leave it out")
    if not data.random_tokens and data.tokenizer.type in ("gpt2_bpe", "sentencepiece"):
        message = f"BERT needs [CLS], [SEP], [MASK] and [PAD], which a {data.tokenizer.type} tokenizer does not have"
        hint = "write wordpiece, byte_level, or huggingface with a tokenizer.json that has them"
        yield Problem(message, ("data.tokenizer.type", "data.tokenizer", FAMILY), hint)
    if not job.model.bert_binary_head and data.bert_order != DataSpec.model_fields["bert_order"].default:
        message = "is what the binary head learns, but model.bert_binary_head is false"
        yield Problem(message, ("data.bert_order", "model.bert_binary_head"), "leave it out")


def of_other_families(job: JobSections) -> Iterator[Problem]:
    """Fields of BERT, and of families that read sentences, are for these."""
    family, data = job.model.architecture, job.data
    if family != "bert":
        written = {
            "model.bert_binary_head": not job.model.bert_binary_head,
            "model.bert_head_bias": not job.model.bert_head_bias,
            OFFSET: job.model.position_embedding_offset > 0,
            "model.num_tokentypes": job.model.num_tokentypes is not None,
            "model.transformer_block_type": job.model.transformer_block_type == "post_ln",
            "data.bert_order": data.bert_order != DataSpec.model_fields["bert_order"].default,
        }
        for path in (path for path, is_written in written.items() if is_written):
            message = f"is for architecture: bert, but architecture is {family}"
            yield Problem(message, (path, FAMILY), "leave it out")
    if not job.model.reads_sentences:
        for name in ("mask_prob", "short_seq_prob"):
            if getattr(data, name) != DataSpec.model_fields[name].default:
                message = f"is for architecture: bert and t5, but architecture is {family}"
                yield Problem(message, (f"data.{name}", FAMILY), "leave it out")


RULES: tuple[Rule, ...] = (bert_model, bert_data, of_other_families)
