"""transformers' models with random weights, imported, and both asked to go on from the same prompts.

`transformers_program.py FOLDER`: prints JSON; of each search how many of PROMPTS prompts differ, and of each way to
draw the p-value of a chi-square test against the distribution that transformers' own processors give.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.generation import logits_process

from orchestrator.inference import load
from orchestrator.inference.generation.encoder_decoder import EncoderDecoderRunner
from orchestrator.inference.generation.sampling import Choice
from orchestrator.spec.generation import options_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from orchestrator.conversion.hugging_face.config_json import read_config, to_model
    from orchestrator.conversion.hugging_face.families.model_folder import family_of_folder
    from orchestrator.conversion.hugging_face.hf_import import import_weights
    from orchestrator.run_directory.rundir import RunDir
    from orchestrator.spec.job import JobSpec
    from orchestrator.spec.loading import dump_resolved

PROMPTS, NEW, VOCAB = 60, 10, 101
SIZES = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64},
    **{"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0},
}
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "eos_token_id": None}
T5 = {
    **{"vocab_size": VOCAB, "d_model": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 16},
    **{"d_ff": 48, "relative_attention_max_distance": 20, "decoder_start_token_id": 0, "eos_token_id": None},
}
CONFIGURATIONS: dict[str, Any] = {
    "gpt2": lambda: transformers.GPT2Config(**GPT2, pad_token_id=0),
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, head_dim=16, sliding_window=5),
    "deepseek": lambda: transformers.DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": 4, "first_k_dense_replace": 1, "kv_lora_rank": 12, "q_lora_rank": 20},
        **{"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "moe_intermediate_size": 24},
        **{"n_routed_experts": 8, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2},
        rope_parameters={
            **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16},
            **{"mscale": 1.0, "mscale_all_dim": 0.5},
        },
    ),
    "longrope": lambda: transformers.Phi3Config(
        **{**SIZES, "original_max_position_embeddings": 32},
        rope_parameters={
            **{"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.5, 2.0, 3.0]},
            "long_factor": [2.0, 5.0, 9.0, 17.0],
        },
    ),
    "t5": lambda: transformers.T5Config(**T5, pad_token_id=0),
}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1},
    "beams 4": {"num_beams": 4},
    "beams 20": {"num_beams": 20},
}
MORE: dict[str, dict[str, Any]] = {
    "short beams": {"num_beams": 4, "length_penalty": -1.0},
    "long beams": {"num_beams": 4, "length_penalty": 2.0, "repetition_penalty": 1.3, "min_new_tokens": 4},
    "no repetition": {"num_beams": 1, "repetition_penalty": 1.3, "min_new_tokens": 4},
}


def prompts() -> list[list[int]]:
    """Of one to twenty tokens."""
    source = random.Random(3)
    return [[source.randrange(8, VOCAB) for _ in range(source.randint(1, 20))] for _ in range(PROMPTS)]


def alike() -> list[list[list[int]]]:
    """Half as many, of few lengths: those of a length need no padding."""
    source = random.Random(4)
    return [[[source.randrange(8, VOCAB) for _ in range(length)] for _ in range(PROMPTS // 6)] for length in (2, 9, 20)]


def make(name: str, folder: Path) -> tuple[Any, RunDir]:
    """transformers' model, and a run with its weights."""
    torch.manual_seed(1)
    config = CONFIGURATIONS[name]()
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    theirs = auto.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for kind, parameter in theirs.named_parameters():
            centre = 1.0 if "norm" in kind or "ln_" in kind else 0.0
            # T5 does not divide scores by the square root of a head's width: its queries are that much smaller.
            scale = 0.25 / 4 if kind.endswith("Attention.q.weight") else 0.25
            parameter.copy_(centre + scale * torch.randn_like(parameter))
    theirs.save_pretrained(folder / name / "theirs")
    found = read_config(folder / name / "theirs")
    family = family_of_folder(folder / name / "theirs")
    job = JobSpec.model_validate(
        {
            **{"name": name, "model": to_model(found, family), "data": {"random_tokens": True}},
            **{"batch": {"global_batch_size": 2}, "optimizer": {"lr": 1e-5}, "schedule": {"train_iters": 1}},
            **{"precision": {"dtype": "fp32"}, "runtime": {"device": "cpu"}},
        }
    )
    run = RunDir(folder / name / "run")
    run.path.mkdir()
    run.path.joinpath("resolved.json").write_text(dump_resolved(job))
    import_weights(folder / name / "theirs", job, family, run.checkpoint(0), threads=1)
    return theirs, run


@torch.no_grad()
def theirs_of(theirs: Any, lists: list[list[int]], options: dict[str, Any], end: int) -> list[list[int]]:
    """What transformers writes, up to the token that ends it. Prompts are filled up where it wants that: in front, or
    behind where an encoder reads them."""
    encodes, longest = theirs.config.is_encoder_decoder, max(map(len, lists))
    gaps = [[0] * (longest - len(row)) for row in lists]
    ids = torch.tensor([row + gap if encodes else gap + row for row, gap in zip(lists, gaps, strict=True)])
    ones = [[1] * len(row) for row in lists]
    mask = torch.tensor([row + gap if encodes else gap + row for row, gap in zip(ones, gaps, strict=True)])
    fixed = {"do_sample": False, "max_new_tokens": NEW, "eos_token_id": end, "pad_token_id": 0}
    out = theirs.generate(input_ids=ids, attention_mask=mask, **fixed, **options)
    new = [row[1 if encodes else longest :] for row in out.tolist()]
    return [row[: row.index(end)] if end in row else row for row in new]


def searched(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in CONFIGURATIONS:
        theirs, run = make(name, folder)
        with load(run.path) as model:
            if name == "t5":  # it came without a tokenizer, which would say what the decoder begins with
                vars(model)["_passes"] = EncoderDecoderRunner(model.network, 0)
            greedy = {"max_new_tokens": NEW, "temperature": 0}
            often = Counter(
                token for each in model.generate(prompts(), greedy, ends=[]) for token in set(each.tokens[2:])
            )
            # Some texts end, and others are written to their greatest length. A T5's beams avoid a rarer one.
            most = PROMPTS if theirs.config.is_encoder_decoder else PROMPTS // 2
            end = max((token for token in often if often[token] <= most), key=often.__getitem__)
            for search, options in {**SEARCHES, **(MORE if name == "llama" else {})}.items():
                # Without padding where their processors would count it as a token that occurred.
                batches = [prompts()] if options.get("repetition_penalty") is None else alike()
                expected = [row for batch in batches for row in theirs_of(theirs, batch, options, end)]
                ours = model.generate([*chain(*batches)], {**greedy, **options}, ends=[end])
                written = [each.tokens for each in ours]
                found[f"{name}, {search}"] = {
                    "prompts": len(written),
                    "differ": sum(a != b for a, b in zip(expected, written, strict=True)),
                    "ended": sum(each.finish == "end" for each in ours),
                    "kinds": len({tuple(row) for row in written}),
                }
    return found


def drawn() -> dict[str, float]:
    """p-values."""
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 1.5, -2.0])
    warpers = {
        "temperature": lambda value: logits_process.TemperatureLogitsWarper(value),
        "top_k": lambda value: logits_process.TopKLogitsWarper(value),
        "top_p": lambda value: logits_process.TopPLogitsWarper(value),
        "repetition_penalty": lambda value: logits_process.RepetitionPenaltyLogitsProcessor(value),
    }
    ways: list[dict[str, Any]] = [
        {},
        {"temperature": 0.6},
        {"top_k": 3},
        {"top_p": 0.8},
        {"repetition_penalty": 1.8, "temperature": 1.5, "top_k": 6, "top_p": 0.9},
    ]
    found = {}
    for way in ways:
        scores, order = logits[None].clone(), ["repetition_penalty", "temperature", "top_k", "top_p"]
        prompt = [0, 4]
        for option in order:
            if option in way:
                scores = warpers[option](way[option])(torch.tensor([prompt]), scores)
        expected = scores.softmax(-1)[0]
        rows, steps = 400, 50
        options = [options_of({**way, "seed": seed, "max_new_tokens": steps}) for seed in range(rows)]
        counts = torch.zeros(len(logits))
        choice = Choice(options, [prompt] * rows, len(logits), [], torch.device("cpu"))
        for _ in range(steps):
            tokens, _ = choice(logits.expand(rows, -1))
            choice.note(torch.full_like(tokens, prompt[0]))  # what occurred stays the same
            counts += torch.bincount(tokens, minlength=len(logits))
        possible = expected > 0
        wanted = expected[possible] * rows * steps
        statistic = ((counts[possible] - wanted) ** 2 / wanted).sum()
        p = torch.special.gammaincc((possible.sum() - 1) / 2, statistic / 2).item()
        found[json.dumps(way)] = p if counts[~possible].sum() == 0 else 0.0
    return found


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    print(json.dumps({"searches": searched(Path(sys.argv[1])), "draws": drawn()}))
