"""Multi-token prediction against its definition in plain torch (DeepSeek-V3, section 2.2), and over restarts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import UNSAVED, WEIGHTS_ALONE, CommandLine, Ranks
from support.matrix import FAMILIES
from support.trained_together import ResumedTogether, TrainedTogether
from support.trained_weights import BITWISE, weights_apart
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values
from torch.nn import functional

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.batch_sampler import RandomTokens
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each run trains on real ranks")]

MASKED = Path(__file__).with_name("masked_tokens.py")
"""For `inject`: tokens that are not a multiple of 3 count."""
HEADS, GROUPS, WIDTH, DEPTHS, FACTOR, SAMPLES, MICRO = 4, 2, 8, 2, 0.5, 8, 4
Weights = Mapping[str, torch.Tensor]


def mtp_job(name: str, steps: int = 4, model: dict[str, Any] | None = None, **sections: Any) -> JobSpec:
    """Steps of a schedule of four."""
    schedule = {"train_iters": steps, "lr_decay_iters": 4, "lr_warmup_iters": 0}
    return tiny_job(name, model={**FAMILIES["mtp"], **(model or {})}, schedule=schedule, **sections)


def weights_of(run: RunDir, iteration: int) -> dict[str, torch.Tensor]:
    """Of a checkpoint, by the key that each layer has by itself."""
    [path] = [each.path for each in committed(run) if each.iteration == iteration]
    stored, found = StoredWeights(path), {}
    for key in stored.keys():  # noqa: SIM118
        if key.startswith("decoder.layers."):
            tensor = stored.read(key, ())
            found |= {key.replace("layers.", f"layers.{n}.", 1): layer.double() for n, layer in enumerate(tensor)}
        elif key.startswith(("decoder.", "embedding.", "mtp.")):
            found[key] = stored.read(key, ()).double()
    return found


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight, 1e-5)


def transformer_layer(x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
    """A Llama's, [b, s, h], with biases; queries, keys and values lie by groups."""
    b, s, h = x.shape
    begin = f"{name}.self_attention."
    inner = normed(x, weights[f"{begin}linear_qkv.layer_norm_weight"])
    qkv = functional.linear(inner, weights[f"{begin}linear_qkv.weight"], weights[f"{begin}linear_qkv.bias"])
    q, k, v = qkv.view(b, s, GROUPS, -1).split([HEADS // GROUPS * WIDTH, WIDTH, WIDTH], -1)
    q, k, v = (each.reshape(b, s, -1, WIDTH).transpose(1, 2) for each in (q, k, v))
    angles = torch.outer(torch.arange(s).double(), 10000.0 ** -(torch.arange(0, WIDTH, 2).double() / WIDTH))
    angles = torch.cat((angles, angles), -1)

    def rotated(each: torch.Tensor) -> torch.Tensor:
        first, second = each.chunk(2, -1)
        return each * angles.cos() + torch.cat((-second, first), -1) * angles.sin()

    k, v = (each.repeat_interleave(HEADS // GROUPS, 1) for each in (rotated(k), v))
    attended = (
        functional.scaled_dot_product_attention(rotated(q), k, v, is_causal=True).transpose(1, 2).reshape(b, s, h)
    )
    x = x + functional.linear(attended, weights[f"{begin}linear_proj.weight"], weights[f"{begin}linear_proj.bias"])
    begin = f"{name}.mlp."
    inner = normed(x, weights[f"{begin}linear_fc1.layer_norm_weight"])
    gate, up = functional.linear(inner, weights[f"{begin}linear_fc1.weight"], weights[f"{begin}linear_fc1.bias"]).chunk(
        2, -1
    )
    inner = functional.silu(gate) * up
    return x + functional.linear(inner, weights[f"{begin}linear_fc2.weight"], weights[f"{begin}linear_fc2.bias"])


def losses_of_depths(weights: Weights, tokens: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> list[Any]:
    """Sum and count of the losses of the next token, and of each further one: at depth k only the first s - k tokens
    have one.
    """
    table = weights["embedding.word_embeddings.weight"]

    def part(hidden: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = hidden @ table[:250].t()
        each = functional.cross_entropy(logits.transpose(1, 2), labels[:, depth:], reduction="none")
        return (each * mask[:, depth:]).sum(), mask[:, depth:].sum()

    hidden = table[tokens]
    for layer in range(2):
        hidden = transformer_layer(hidden, weights, f"decoder.layers.{layer}")
    hidden = normed(hidden, weights["decoder.final_layernorm.weight"])
    found = [part(hidden, 0)]
    for depth in range(1, DEPTHS + 1):
        name = f"mtp.layers.{depth - 1}"
        ahead = table[tokens[:, depth:]]
        joined = torch.cat(
            (
                normed(ahead, weights[f"{name}.enorm.weight"]),
                normed(hidden[:, : ahead.size(1)], weights[f"{name}.hnorm.weight"]),
            ),
            -1,
        )
        hidden = transformer_layer(joined @ weights[f"{name}.eh_proj.weight"].t(), weights, f"{name}.transformer_layer")
        hidden = normed(hidden, weights[f"{name}.final_layernorm.weight"])
        found.append(part(hidden, depth))
    return found


@pytest.mark.parametrize("per_token", [False, True])
def test_losses_and_gradients_are_those_of_the_definition(per_token: bool, ranks: Ranks, tmp_path: Path) -> None:
    sgd = {"name": "sgd", "lr": 1.0, "sgd_momentum": 0.0, "weight_decay": 0.0, "clip_grad": 0.0}
    job = mtp_job(
        "defined",
        steps=2,
        model={"mtp_loss_scaling_factor": FACTOR},
        batch={"calculate_per_token_loss": per_token},
        optimizer=sgd,
        checkpoint={"save_interval": 1},
    )
    run = ranks.must_train(make_run(tmp_path, job), job, inject=MASKED)
    before, after = (weights_of(run, iteration) for iteration in (1, 2))
    for weight in before.values():
        weight.requires_grad_()
    data = RandomTokens(250, 32, job.data.seed, 2 * SAMPLES)
    samples = [data[index] for index in range(SAMPLES, 2 * SAMPLES)]
    parts = []
    for first in range(0, SAMPLES, MICRO):
        tokens, labels = (
            torch.stack([each[name] for each in samples[first : first + MICRO]]) for name in ("tokens", "labels")
        )
        parts.append(losses_of_depths(before, tokens, labels, (labels % 3 != 0).double()))
    shares = [1.0, *[FACTOR / DEPTHS] * DEPTHS]
    if per_token:
        counted = sum(part[0][1] for part in parts)
        minimised = sum(
            share * total / counted for part in parts for share, (total, _) in zip(shares, part, strict=True)
        )
    else:
        minimised = sum(
            share * total / count / len(parts)
            for part in parts
            for share, (total, count) in zip(shares, part, strict=True)
        )
    assert isinstance(minimised, torch.Tensor)
    minimised.backward()
    for depth, name in enumerate(("train/loss", "train/mtp/loss_1", "train/mtp/loss_2")):
        mean = sum(part[depth][0].item() for part in parts) / sum(part[depth][1].item() for part in parts)
        assert values(run, name)[2] == pytest.approx(mean, abs=2e-6), name
    rate = values(run, "train/lr")[2]
    for name, weight in before.items():
        assert weight.grad is not None, name
        taken = (weight.detach() - after[name]) / rate
        assert (taken - weight.grad)[: len(weight)].abs().max() < 2e-6, name


def test_a_checkpoint_goes_on_at_other_layouts(ranks: Ranks, tmp_path: Path) -> None:
    alone = mtp_job("alone")
    expected = ranks.must_train(make_run(tmp_path, alone), alone, inject=WEIGHTS_ALONE)
    for number, parallelism in enumerate((layout(pp=2), layout(tp=2, sequence_parallel=True), {}), 2):
        job = mtp_job("moved", steps=number, parallelism=parallelism)
        run = make_run(tmp_path, job)
        ranks.must_train(run, job, launch_id=str(number))
    assert list(losses(run)) == [1, 2, 3, 4]
    for name in ("train/loss", "train/mtp/loss_1", "train/mtp/loss_2"):
        assert largest_difference(values(expected, name), values(run, name)) < 1e-5, name
    assert weights_apart(expected, run) == {}


def test_a_training_goes_on_to_the_bit(ranks: Ranks, tmp_path: Path) -> None:
    """On both stages: each updates its own copy of the embedding."""
    jobs = {name: mtp_job(name, steps=steps, parallelism=layout(pp=2)) for name, steps in (("whole", 4), ("half", 2))}
    trained = TrainedTogether(ranks, tmp_path, jobs)
    longer = mtp_job("half", parallelism=layout(pp=2))
    whole, halves = trained["whole"], ResumedTogether(ranks, trained, {"half": longer})["half"]
    assert losses(whole) == losses(halves)
    assert weights_apart(whole, halves, BITWISE) == {}


FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def test_recomputed_and_without_logits_it_is_the_same(ranks: Ranks, tmp_path: Path) -> None:
    dropping = {"attention_dropout": 0.1, "hidden_dropout": 0.1}
    sections: dict[str, dict[str, Any]] = {
        "kept": {"model": dropping},
        "again": {"model": dropping, "runtime": FULL},
        "logits": {"runtime": {"fused_linear_cross_entropy": False}},
        "joined": {"runtime": {"fused_linear_cross_entropy": True}},
    }
    jobs = {name: mtp_job(name, steps=2, **each) for name, each in sections.items()}
    trained = TrainedTogether(ranks, tmp_path, jobs, UNSAVED)
    kept, again, logits, joined = (losses(trained[name]) for name in jobs)
    assert kept == again
    assert largest_difference(logits, joined) < 1e-5


def test_weights_to_start_from_need_no_such_layers(ranks: Ranks, orchestrator: CommandLine, tmp_path: Path) -> None:
    """These begin at random then, or are left out; and what generates does without them."""
    start: dict[str, Any] = {}
    runs = {}
    for name, count in (("plain", 0), ("further", 2), ("again", 0)):
        model = {"mtp_num_layers": count, "mtp_loss_scaling_factor": 0.5 if count else 0.1, "vocab_size": 261}
        job = mtp_job(name, steps=1, model=model, parallelism=layout(pp=2 if count else 1), **start)
        runs[name] = ranks.must_train(make_run(tmp_path, job), job, inject=WEIGHTS_ALONE)
        start = {"checkpoint": {"pretrained": str(runs[name].path)}}
    fresh = {name: [event.get("fresh") for event in events(run, "pretrained")] for name, run in runs.items()}
    assert fresh == {"plain": [], "further": [["the layers of further tokens"]], "again": [None]}
    assert losses(runs["plain"])[1] == pytest.approx(losses(runs["further"])[1], abs=0.5)
    said = orchestrator("generate", runs["further"].path, "--prompt", "def", "--temperature", "0", "--json")
    assert said.code == 0, said.err
