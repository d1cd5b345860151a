"""What the loss is averaged over, and what a T5's output layer adds to it."""

from __future__ import annotations

from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import MEGATRON, GivenFlags
from orchestrator.migration.megatron_flags.programs import PROGRAMS
from orchestrator.models.blocks.flags import FlagGroup

PER_TOKEN, BIAS = "batch.calculate_per_token_loss", "model.add_output_bias"
_FLAG = "calculate-per-token-loss"


def read_loss(given: GivenFlags) -> None:
    """Without the flag Megatron-LM averages each micro-batch by itself, which is another loss only where micro-batches
    have different numbers of tokens that count.
    """
    if given.family.averages_micro_batches:
        if given.has(_FLAG):
            reason = "Megatron-LM's BERT averages each micro-batch all the same; its gradients become DP times as large"
            given.refuse_value(_FLAG, PER_TOKEN, reason)
        return
    counts_vary = given.family.trains.targets_vary or given.get("data.eod_mask_loss")
    if given.has(_FLAG):
        if counts_vary:
            given.settle(_FLAG, "default", PER_TOKEN, True)
        else:
            given.no_effect(_FLAG, "all micro-batches have as many tokens, which is the same loss")
    elif counts_vary:
        given.default(PER_TOKEN, False, f"{MEGATRON}: without --{_FLAG} each micro-batch is averaged by itself")


def write_loss(writer: FlagWriter) -> None:
    job = writer.job
    if PROGRAMS.of(job.model.family).averages_micro_batches:
        if job.has_per_token_loss:
            writer.unsaid_value(PER_TOKEN, "Megatron-LM's BERT averages each micro-batch by itself")
        elif job.batch.calculate_per_token_loss is not None:
            writer.say_otherwise(PER_TOKEN, "Megatron-LM's BERT has no other")
        return
    if job.has_per_token_loss:
        writer.add("TRAINING", _FLAG)
    counts_vary = job.model.family.targets_vary or job.data.eod_mask_loss
    if job.batch.calculate_per_token_loss is not None and (job.has_per_token_loss or not counts_vary):
        writer.say_otherwise(PER_TOKEN, f"with and without --{_FLAG} it is read back as the default")


def read_output_bias(given: GivenFlags) -> None:
    """Megatron-LM's T5 has the bias wherever its output layer is tied, and no flag for it."""
    is_tied = not given.get("model.untie_embeddings_and_output_weights")
    if given.family.biases_tied_output and is_tied:
        given.default(BIAS, True, f"{MEGATRON}: a tied output layer of its T5 has a bias")


def write_output_bias(writer: FlagWriter) -> None:
    model = writer.job.model
    is_tied = not model.untie_embeddings_and_output_weights
    if PROGRAMS.of(model.family).biases_tied_output and is_tied and not model.add_output_bias:
        writer.unsaid_value(BIAS, "Megatron-LM's T5 has this bias wherever its output layer is tied")


LOSSES = (
    FlagGroup({_FLAG: 0}, read_loss, write_loss, (PER_TOKEN,)),
    FlagGroup({}, read_output_bias, write_output_bias, (BIAS,)),
)
