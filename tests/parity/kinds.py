"""What Megatron-LM's own trainer is run with beside ours: each kind of job as flags of pretrain_gpt.py."""

from __future__ import annotations

import random
import shlex
from dataclasses import dataclass

SAVED = 4
"""After how many steps of at least fourteen the other program goes on."""
_COMMON = """
    --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --hidden-dropout 0 --attention-dropout 0 --micro-batch-size 2 --weight-decay 0.1 --clip-grad 1.0
    --tokenizer-type NullTokenizer --vocab-size 260 --make-vocab-size-divisible-by 1 --data-path corpus --split 1,0,0
    --data-cache-path cache --eval-iters 0 --eval-interval 1000 --log-interval 1 --save-interval 4
    --use-distributed-optimizer --dist-ckpt-optim-fully-reshardable --distributed-backend gloo
"""
_STEPS = "--train-iters 14 --global-batch-size 8 --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-iters 2"
_LLAMA = """
    --position-embedding-type rope --disable-bias-linear --swiglu --normalization RMSNorm --group-query-attention
    --num-query-groups 2 --untie-embeddings-and-output-weights --ffn-hidden-size 96 --norm-epsilon 1e-6
"""
_EXPERTS = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 48 --moe-aux-loss-coeff 0.01"


@dataclass(frozen=True)
class Kind:
    """One kind of job: its flags, and how many processes train it."""

    flags: str
    ranks: int = 1
    finetunes: str | None = None
    """The kind whose weights it begins with."""
    forgets: bool = False
    """Whether the trainer goes on from its own checkpoints otherwise than it would have gone on."""

    @property
    def loads(self) -> list[str]:
        return ["--load", f"../{self.finetunes}/checkpoints", "--finetune"] if self.finetunes else []

    @property
    def words(self) -> list[str]:
        """Of pretrain_gpt.py, but for where it saves and what it loads."""
        return [*_COMMON.split(), *shlex.split(self.flags)]

    @property
    def script(self) -> str:
        """As people have it."""
        words = [*self.words, "--save", "checkpoints", *self.loads]
        return f"#!/bin/bash\ntorchrun --nproc_per_node {self.ranks} pretrain_gpt.py {shlex.join(words)}\n"


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
    "decoupled-lr": Kind(f"{_STEPS} {_LLAMA} --decoupled-lr 5e-4 --decoupled-min-lr 2e-4", forgets=True),
    # With 261 words megatron-core 0.16.1 saves the state of the last stage shifted: its bucket of words is padded.
    "pipeline": Kind(f"{_STEPS} --pipeline-model-parallel-size 2 --vocab-size 261", ranks=2),
    "data-parallel": Kind(f"{_STEPS} {_LLAMA}", ranks=2),
    "wsd": Kind(
        """
        --train-samples 112 --global-batch-size 8 --lr 1e-3 --min-lr 1e-5 --lr-decay-style WSD --lr-wsd-decay-samples 32
        --lr-wsd-decay-style linear --lr-warmup-samples 16 --lr-decay-samples 112 --start-weight-decay 0.01
        --end-weight-decay 0.1 --weight-decay-incr-style linear
        """
    ),
    "ramp-up": Kind(
        "--train-samples 192 --global-batch-size 16 --rampup-batch-size 8 8 80 --lr 1e-3 --min-lr 1e-4"
        " --lr-decay-style linear --lr-warmup-samples 16"
    ),
    "finetune": Kind(f"{_STEPS}", finetunes="gpt"),
}


def corpus() -> list[str]:
    """Documents of made-up words, the same everywhere."""
    drawn = random.Random(7)
    words = ["".join(drawn.choice("etaoinshrdlu") for _ in range(drawn.randint(2, 7))) for _ in range(60)]
    return [" ".join(drawn.choice(words) for _ in range(drawn.randint(20, 120))) for _ in range(60)]
