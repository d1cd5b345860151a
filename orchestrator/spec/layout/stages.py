"""How the layers are dealt out to the stages of a pipeline, as megatron-core does it.

Evenly; or with as many on the first and the last stage as written; or with the embedding and the loss counted as a
layer each, so that the chunk that holds one of them has a layer less, and none where a chunk is one layer long; or
chunk by chunk, in letters.
"""

from __future__ import annotations

from functools import lru_cache

from orchestrator.spec.layout.parallelism import ParallelismSpec
from orchestrator.spec.layout.stage_letters import layers_in_letters


def layers_of_chunks(num_layers: int, degrees: ParallelismSpec) -> tuple[tuple[int, ...], ...]:
    """[stage][chunk]: how many layers each model chunk holds. Where they do not divide, which no rule of the spec lets
    pass, what is left over is left out.
    """
    stages, chunks = degrees.pipeline_model_parallel_size, degrees.num_model_chunks
    if degrees.pipeline_model_parallel_layout is not None:
        written = layers_in_letters(degrees.pipeline_model_parallel_layout, stages)
        if written is not None and len(written[0]) == chunks and sum(map(sum, written)) == num_layers:
            return written
    return _dealt_out(
        num_layers,
        stages,
        chunks,
        degrees.num_layers_in_first_pipeline_stage,
        degrees.num_layers_in_last_pipeline_stage,
        degrees.account_for_embedding_in_pipeline_split,
        degrees.account_for_loss_in_pipeline_split,
    )


@lru_cache(maxsize=1024)  # every part of an estimate asks, and the tuner makes thousands of them
def _dealt_out(
    num_layers: int, stages: int, chunks: int, first: int | None, last: int | None, embedding: bool, loss: bool
) -> tuple[tuple[int, ...], ...]:
    """The same where it is told by numbers."""
    between = stages - (first is not None) - (last is not None)
    even = max(num_layers + embedding + loss - (first or 0) - (last or 0), 0) // max(between, 1) // chunks
    counts = [[even] * chunks for _ in range(stages)]
    if first is not None:
        counts[0] = [first // chunks] * chunks
    if last is not None:
        counts[-1] = [last // chunks] * chunks
    counts[0][0] = max(counts[0][0] - embedding, 0)
    counts[-1][-1] = max(counts[-1][-1] - loss, 0)
    return tuple(tuple(each) for each in counts)
