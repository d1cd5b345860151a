"""What Megatron-LM's own trainer is run with beside ours: each kind of job as flags of one of its programs."""

from __future__ import annotations

import json
import random
import shlex
from dataclasses import dataclass
from pathlib import Path

SAVED = 4
"""After how many steps of at least fourteen the other program goes on."""
_COMMON = """
    --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --hidden-dropout 0 --attention-dropout 0 --micro-batch-size 2 --weight-decay 0.1 --clip-grad 1.0
    --make-vocab-size-divisible-by 1 --split 1,0,0
    --data-cache-path cache --eval-iters 0 --eval-interval 1000 --log-interval 1 --save-interval 4
    --use-distributed-optimizer --dist-ckpt-optim-fully-reshardable --distributed-backend gloo
"""
_PIECES = """
    --data-path sentences --tokenizer-type BertWordPieceLowerCase --vocab-file vocabulary.txt --legacy-tokenizer
"""
_DATA = {
    "pretrain_gpt": "--data-path corpus --tokenizer-type NullTokenizer --vocab-size 260",
    "pretrain_bert": _PIECES,
    "pretrain_t5": _PIECES,
}
"""By program; Megatron-LM's other tokenizer of word pieces is looked up on a network."""
_STEPS = "--train-iters 14 --global-batch-size 8 --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-iters 2"
_LLAMA = """
    --position-embedding-type rope --disable-bias-linear --swiglu --normalization RMSNorm --group-query-attention
    --num-query-groups 2 --untie-embeddings-and-output-weights --ffn-hidden-size 96 --norm-epsilon 1e-6
"""
_EXPERTS = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 48 --moe-aux-loss-coeff 0.01"
_LATENT = """
    --position-embedding-type rope --disable-bias-linear --swiglu --normalization RMSNorm --ffn-hidden-size 96
    --untie-embeddings-and-output-weights --norm-epsilon 1e-6 --multi-latent-attention --qk-layernorm
    --kv-lora-rank 16 --qk-head-dim 16 --qk-pos-emb-head-dim 8 --v-head-dim 12
"""
_BALANCED = """
    --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 48 --moe-layer-freq '[0]*1+[1]*3'
    --moe-shared-expert-intermediate-size 48 --moe-router-score-function sigmoid --moe-router-enable-expert-bias
    --moe-router-bias-update-rate 1e-3 --moe-router-topk-scaling-factor 2.5
    --moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-4 --moe-router-dtype fp32
"""
_DELTA = """
    --experimental-attention-variant gated_delta_net --linear-attention-freq 2 --linear-num-key-heads 2
    --linear-num-value-heads 4 --linear-key-head-dim 12 --linear-value-head-dim 16 --linear-conv-kernel-dim 3
    --attention-output-gate --apply-layernorm-1p --rotary-percent 0.5 --qk-layernorm
"""


@dataclass(frozen=True)
class Kind:
    """One kind of job: its flags, and how many processes train it."""

    flags: str
    ranks: int = 1
    program: str = "pretrain_gpt"
    finetunes: str | None = None
    """The kind whose weights it begins with."""
    forgets: bool = False
    """Whether the trainer goes on from its own checkpoints otherwise than it would have gone on."""

    @property
    def loads(self) -> list[str]:
        return ["--load", f"../{self.finetunes}/checkpoints", "--finetune"] if self.finetunes else []

    @property
    def words(self) -> list[str]:
        """Of the program, but for where it saves and what it loads."""
        return [*_COMMON.split(), *_DATA[self.program].split(), *shlex.split(self.flags)]

    @property
    def script(self) -> str:
        """As people have it."""
        words = [*self.words, "--save", "checkpoints", *self.loads]
        return f"#!/bin/bash\ntorchrun --nproc_per_node {self.ranks} {self.program}.py {shlex.join(words)}\n"


KINDS = {
    "gpt": Kind(_STEPS),
    "gpt-rope": Kind(f"{_STEPS} --position-embedding-type rope --rotary-percent 0.5 --use-rotary-position-embeddings"),
    "gpt-local": Kind(f"{_STEPS} --transformer-impl local --apply-layernorm-1p --no-bias-gelu-fusion"),
    "llama": Kind(f"{_STEPS} {_LLAMA} --rotary-base 500000 --qk-layernorm"),
    "qkv-bias": Kind(f"{_STEPS} {_LLAMA} --add-qkv-bias"),
    "squared-relu": Kind(f"{_STEPS} --squared-relu --disable-bias-linear --position-embedding-type none"),
    "scaled-rope": Kind(f"{_STEPS} {_LLAMA} --use-rope-scaling"),
    "windowed": Kind(f"{_STEPS} {_LLAMA} --window-size 15,0 --window-attn-skip-freq 2"),
    "experts": Kind(f"{_STEPS} {_LLAMA} {_EXPERTS}"),
    "experts-local": Kind(f"{_STEPS} {_LLAMA} {_EXPERTS} --transformer-impl local --moe-layer-freq '[1]*2+[0]*2'"),
    "experts-parallel": Kind(
        f"{_STEPS} {_LLAMA} {_EXPERTS} --expert-model-parallel-size 2 --moe-layer-freq 2", ranks=2
    ),
    "latent-attention": Kind(f"{_STEPS} {_LATENT} --rope-type rope"),
    "deepseek": Kind(
        f"{_STEPS} {_LATENT} {_BALANCED} --q-lora-rank 24 --rope-type yarn --rotary-scaling-factor 40 --mscale 1"
        " --mscale-all-dim 1"
    ),
    "gated-delta-net": Kind(
        f"{_STEPS} {_LLAMA} {_DELTA} {_EXPERTS} --moe-shared-expert-intermediate-size 48 --moe-shared-expert-gate"
    ),
    "gated-delta-net-parallel": Kind(
        f"{_STEPS} {_LLAMA} {_DELTA} --tensor-model-parallel-size 2 --sequence-parallel --vocab-size 261", ranks=2
    ),
    "further-tokens": Kind(f"{_STEPS} {_LLAMA} --mtp-num-layers 1 --mtp-loss-scaling-factor 0.3"),
    "decoupled-lr": Kind(f"{_STEPS} {_LLAMA} --decoupled-lr 5e-4 --decoupled-min-lr 2e-4", forgets=True),
    # With 261 words megatron-core 0.16.1 saves the state of the last stage shifted: its bucket of words is padded.
    "pipeline": Kind(f"{_STEPS} --pipeline-model-parallel-size 2 --vocab-size 261", ranks=2),
    "data-parallel": Kind(f"{_STEPS} {_LLAMA}", ranks=2),
    "wsd": Kind(
        """
        --train-samples 115 --global-batch-size 8 --lr 1e-3 --min-lr 1e-5 --lr-decay-style WSD --lr-wsd-decay-samples 32
        --lr-wsd-decay-style linear --lr-warmup-samples 16 --start-weight-decay 0.01
        --end-weight-decay 0.1 --weight-decay-incr-style linear
        """
    ),
    "ramp-up": Kind(
        "--train-samples 184 --global-batch-size 16 --rampup-batch-size 8 8 80 --lr 1e-3 --min-lr 1e-4"
        " --lr-decay-style linear --lr-warmup-samples 16"
    ),
    "finetune": Kind(f"{_STEPS}", finetunes="gpt"),
    "bert": Kind(_STEPS, program="pretrain_bert"),
    # Of its own masks: those for Transformer Engine's layers are made by what version of it is there.
    "t5": Kind(
        f"{_STEPS} --decoder-seq-length 32 --vocab-extra-ids 50 --transformer-impl local", program="pretrain_t5"
    ),
}


def write_data(program: str, folder: Path) -> list[str]:
    """Write the texts that a program is trained on into a folder; the command that makes its data of them there."""
    if program == "pretrain_gpt":
        _write_texts(folder / "corpus.jsonl", corpus())
        return ["data", "tokenize", "corpus.jsonl", "--output-prefix", "corpus", "--append-eod"]
    words = sorted({word for text in corpus() for word in text.split()})
    # A random token that happens to be [PAD] is padding to Megatron-LM's BERT, and a token to ours: among so many words
    # none is. The last two are Megatron-LM's own, which it appends where they are not there.
    unused = [f"[unused{number}]" for number in range(1000)]
    (folder / "vocabulary.txt").write_text("\n".join([*_SPECIAL, *words, *unused, "[BOS]", "[EOS]"]) + "\n")
    _write_texts(folder / "sentences.jsonl", [_in_sentences(text.split()) for text in corpus()])
    tokenizer = ["--tokenizer-type", "wordpiece", "--tokenizer-path", "vocabulary.txt"]
    return ["data", "tokenize", "sentences.jsonl", "--output-prefix", "sentences", "--split-sentences", *tokenizer]


_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]


def _write_texts(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def _in_sentences(words: list[str]) -> str:
    return " ".join(" ".join(words[start : start + 9]).capitalize() + "." for start in range(0, len(words), 9))


def corpus() -> list[str]:
    """Documents of made-up words, the same everywhere."""
    drawn = random.Random(7)
    words = ["".join(drawn.choice("etaoinshrdlu") for _ in range(drawn.randint(2, 7))) for _ in range(60)]
    return [" ".join(drawn.choice(words) for _ in range(drawn.randint(20, 120))) for _ in range(60)]
