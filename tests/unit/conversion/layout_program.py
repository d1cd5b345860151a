"""A rank that loads imported checkpoints at a layout and writes them anew from there: FOLDER NAME TP PP [ETP
[FAMILY...]], with ETP only those whose experts are split so, with families only these.
"""

from __future__ import annotations

import math
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from support import mamba_stub
from support.megatron_saving import save_at_once

from orchestrator.inference.generation.decoder import DecoderRunner
from orchestrator.inference.generation.decoding import Decoding
from orchestrator.inference.generation.self_drafting import SelfDraftingRunner
from orchestrator.inference.generation.speculative_decoding import SpeculativeDecoding
from orchestrator.inference.images import IMAGE, Images
from orchestrator.inference.model import Model
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request
from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.checkpoints.commit_markers import Commit
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.network.model import build_chunks, parameter_count, transformer_config
from orchestrator.runtime.processes.device import select_device
from orchestrator.runtime.processes.process_groups import (
    seed_everything,
    start_process_groups,
    stop_process_groups,
)
from orchestrator.runtime.steps.native_resolution import NextTokenAfterImagesOfAnySize
from orchestrator.runtime.steps.vision import NextTokenAfterImages
from orchestrator.spec.generation import Generation
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.spec.model import ModelSpec


def main() -> int:
    folder, name, tp, pp = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    runs = {path.parent.name: RunDir(path) for path in sorted(folder.glob("*/run"))}
    jobs = {family: _at(load_resolved(run.resolved()), tp, pp) for family, run in runs.items()}
    if sys.argv[5:]:
        etp = int(sys.argv[5])
        jobs = {family: job for family, job in jobs.items() if job.parallelism.expert_tensor_parallel == etp}
    if named := sys.argv[6:]:
        jobs = {family: job for family, job in jobs.items() if family in named}
    mamba_stub.install()
    device = select_device("cpu", threads=1)
    megatron_compat.apply(device)
    ranks, groups = start_process_groups(next(iter(jobs.values())), device, 60.0)
    seed_everything(1, ranks)
    for family, job in jobs.items():
        config = transformer_config(job, device, "torch")
        [module] = build_chunks(job, config, device, "torch", vocabulary(job), ranks)
        held = {(rank.tp, rank.pp): rank.parameters for rank in parameters(job, vocabulary(job).padded_size).per_rank}
        assert parameter_count([module]) == held[ranks.tp, ranks.pp], family
        loaded = dist_checkpointing.load({"model": module.sharded_state_dict()}, str(runs[family].checkpoint(0)))
        module.load_state_dict(loaded["model"])
        module.eval()
        new = folder / family / "new"
        # What tensor ranks alone have is cut as it is at two stages, but for experts, and read for what it writes.
        if tp == 1 or pp > 1 or job.model.has_experts or not new.exists():
            _save(module, folder / family / f"layout-{name}")
        if dist.get_world_size() == 1:
            with torch.no_grad():
                torch.save(_logits(module, job.model, folder / family), folder / family / "ours.pt")
            if job.model.predicts_further:
                torch.save(_further(module), folder / family / "further.pt")
        if job.model.predicts_further:
            drafting = Network(module.eval(), job, 101, ranks, groups, device)
            runner = SelfDraftingRunner(drafting)
            if dist.get_world_size() == 1:
                torch.save(_drafted(runner), folder / family / "drafted.pt")
            texts = _texts(drafting, runner)
            if ranks.is_first:
                torch.save(texts, folder / family / f"texts-{name}.pt")
        if pp == 1 and new.exists():
            network = Network(module, job, 101, ranks, groups, device)
            write = _greedy if job.model.mrope_section is None else _written
            wrote = write(network, int(new.read_text()), folder / family)
            if ranks.is_first:
                torch.save(wrote, folder / family / f"wrote-{name}.pt")
    stop_process_groups()
    return 0


def _greedy(network: Network, new: int, home: Path) -> torch.Tensor:
    """So many tokens behind those that `families.likeliest` goes on from, with a cache: [2, new]."""
    runner, tokens = DecoderRunner(network), torch.arange(32).reshape(2, 16) * 7 % 101
    vision, seen = network.job.model.vision, None
    if vision is not None:
        tokens, pixels, _ = torch.load(home / "seen.pt")
        seen = Images(tuple(each.numpy() for each in pixels[0]), (1, 7), (vision.tokens_per_image,) * 2)
    requests = [
        Request(number, row.tolist(), Generation(), None if number else seen) for number, row in enumerate(tokens)
    ]
    begin = tokens.size(1)
    logits = runner.prefill(requests, begin + new)
    while True:
        assert logits is not None, "there is one stage"
        if vision is not None:
            logits[:, 100] = -torch.inf
        place = tokens.size(1)
        tokens = torch.cat([tokens, logits.argmax(dim=-1, keepdim=True)], dim=1)
        if tokens.size(1) == begin + new:
            return tokens[:, begin:]
        logits = runner.decode_step(tokens[:, place], torch.full((2,), place))


def _written(network: Network, new: int, home: Path) -> torch.Tensor:
    """What goes on after images of any size, as `native_images.likeliest` has it of transformers, beside text alone:
    [2, new]."""
    tokens, images, grids = torch.load(home / "seen.pt")
    side, prompts = network.job.model.image_encoder.patch_size, [[5, 6, 7]]
    seen: list[list[Any]] = [[]]
    for row, own, shapes in zip(tokens.tolist(), images, grids, strict=True):
        runs = [(is_image, list(run)) for is_image, run in groupby(row, key=lambda token: token == 100)]
        prompts.append([token for is_image, run in runs for token in ([IMAGE] if is_image else run)])
        sizes = [(3, down * side, across * side) for down, across in shapes.tolist() if down]
        counts = [math.prod(size) for size in sizes]
        flat = own[: sum(counts)].split(counts)
        seen.append([each.view(size).numpy() for each, size in zip(flat, sizes, strict=True)])
    options = {"max_new_tokens": new, "temperature": 0}
    said = Model(network, Commit(Path(), 0, 0, {})).generate(prompts, options, images=seen, ends=[])
    return torch.tensor([each.tokens for each in said[1:]])


def _logits(module: Any, model: ModelSpec, home: Path) -> torch.Tensor:
    """As `families.logits` has those of transformers."""
    tokens = torch.arange(32).reshape(2, 16) * 7 % 101
    if model.architecture == "bert":
        types = tokens % min(model.tokentypes, 2) if model.tokentypes else None
        said, order = module(tokens, torch.ones_like(tokens), types)
        heads = [said[..., :101], *([] if order is None else [order])]
        return torch.cat([logits.flatten() for logits in heads])
    if model.vision is not None:
        tokens, images, grids = torch.load(home / "seen.pt")
        step = NextTokenAfterImages(model.vision)
        seen = {"images": images, "image_mask": (tokens == 100).float()}
        if grids is not None:
            step, seen = NextTokenAfterImagesOfAnySize(model.vision), {**seen, "grids": grids}
        batch = {"tokens": tokens, "position_ids": torch.arange(16).expand_as(tokens), "labels": tokens.roll(-1, 1)}
        torch.save(step.forward(module, {**batch, **seen}), home / "losses.pt")
        logits: torch.Tensor = module(tokens, batch["position_ids"], None, **seen)[..., :101]
        return logits
    if model.architecture == "t5":
        kept: list[torch.Tensor] = []
        module.output_layer.register_forward_hook(lambda _, given, out: kept.append(out[0].clone()))
        module(tokens, tokens.flip(0), torch.zeros(2, 1, 1, 16, dtype=torch.bool), tokens)
        return kept[0].transpose(0, 1)[..., :101]
    found: torch.Tensor = module(tokens, torch.arange(16).expand_as(tokens), None)[..., :101]
    return found


def _further(module: Any) -> torch.Tensor:
    """Logits of the first of the further tokens behind each, [2, s, v], which only a training computes."""
    kept: list[torch.Tensor] = []
    hook = module.output_layer.register_forward_hook(lambda _, given, out: kept.append(out[0].detach().clone()))
    tokens = torch.arange(32).reshape(2, 16) * 7 % 101
    module.train()(tokens, torch.arange(16).expand_as(tokens), None, labels=tokens.roll(-1, 1))
    hook.remove()
    return kept[0].transpose(0, 1)[..., :101]


def _drafted(runner: SelfDraftingRunner) -> list[tuple[int, int, int, torch.Tensor]]:
    """Logits of drafts by depth, row and place, after a prompt and behind drafts of which each row keeps another
    number, of the tokens of `_logits`.
    """
    tokens, rows, found = torch.arange(32).reshape(2, 16) * 7 % 101, range(2), []
    newest = torch.tensor([5, 3])
    requests = [Request(row, tokens[row, : newest[row]].tolist(), Generation()) for row in rows]
    runner.prefill(requests, 32)
    for kept in ((0, 1), (1, 0), (runner.drafts, 0), (0, runner.drafts)):
        text = torch.nn.functional.pad(tokens, (0, 16))
        for row in rows:  # drafts that are not kept are wrong
            text[row, newest[row] + kept[row] + 1 :] = (text[row, newest[row] + kept[row] + 1 :] + 1) % 101
        for depth in range(runner.drafts):
            logits = runner.draft(depth, text)
            assert logits is not None, "there is one stage"
            found += [(depth, row, int(newest[row]) - 1, logits[row]) for row in rows if depth <= kept[row]]
        places = newest[:, None] + torch.arange(runner.drafts + 1)
        runner.verify(text.gather(1, places), places)
        runner.accept(torch.tensor(kept), places)
        newest = newest + torch.tensor(kept) + 1
    return found


def _texts(network: Network, runner: SelfDraftingRunner) -> list[list[list[int]]]:
    """What two rows go on with, without drafts and with them."""
    options = [Generation(max_new_tokens=12, temperature=0.0)] * 2
    requests = [Request(row, [5 + row, 9, 80][: 3 - row], own) for row, own in enumerate(options)]
    return [
        [[token for step in steps for token in step.tokens[row]][:12] for row in range(2)]
        for steps in (
            list(Decoding(network, runner, None).steps(requests, ())),
            list(SpeculativeDecoding(network, runner).steps(requests, ())),
        )
    ]


def _at(job: JobSpec, tp: int, pp: int) -> JobSpec:
    degrees: dict[str, Any] = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp}
    if tp > 1 and pp > 1:  # whole experts on different ranks; else each is split as other layers are
        degrees |= {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1}
    elif job.model.has_experts and job.model.add_bias_linear:  # those with biases are not split
        degrees |= {"expert_tensor_parallel_size": 1}
    return job.model_copy(update={"parallelism": job.parallelism.model_copy(update=degrees)})


def _save(module: torch.nn.Module, path: Path) -> None:
    path.mkdir(exist_ok=True)
    save_at_once({"model": module.sharded_state_dict()}, path, {})
