"""Code for the ranks: micro-batches of two shapes."""

from __future__ import annotations


def shorter_batches(tokens: int) -> str:
    """Each sixth micro-batch of a GPT, from the second on, has so many tokens per sequence: of steps of three, jobs
    that the same ranks train one after the other have them at the same places.
    """
    return f"""
from orchestrator.runtime.steps.gpt import NextToken
plain, taken = NextToken.get_batch, []

def get_batch(self, samples):
    taken.append(None)
    batch = plain(self, samples)
    return {{name: each[:, :{tokens}].contiguous() for name, each in batch.items()}} if len(taken) % 6 == 2 else batch

NextToken.get_batch = get_batch
"""
