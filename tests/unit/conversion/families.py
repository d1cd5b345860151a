"""Models of transformers with random weights: `make` saves and imports them, all or those that are named; `check`
compares what was exported. They run in the tests' own process, which has imported transformers for others anyway.

Both work on a folder of folders, one for each family: `theirs`, `run`, `logits.pt`, of decoders `new`, how many tokens
they are to write, and for each layout `out-LAYOUT`.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.conversion.hugging_face.config_json import read_config, to_model
from orchestrator.conversion.hugging_face.families.model_folder import family_of_folder
from orchestrator.conversion.hugging_face.hf_export import export
from orchestrator.conversion.hugging_face.hf_import import import_weights
from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.run_directory.checkpoints.commit_markers import COMMIT_FILE
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_resolved
from tests.unit.conversion import native_images
from tests.unit.conversion.families_configurations import LENGTH, NEW, VOCAB, configurations

ENCODERS = {"bert-untied", "megatron-bert", "modernbert-biases", "t5", "mt5"}
"""Of `CUT_AT_FOUR`: what writes no text is cut at two stages as at one."""
CUT_AT_FOUR = (
    *(*sorted(ENCODERS), "gemma3-images", "llava-qwen2", "qwen2.5-vl"),
    *("nemotron-h", "nemotron-h-moe", "qwen3-next", "qwen3-next-uneven", "deepseek-v2", "deepseek-v2-lite"),
    *("deepseek-v3", "gpt-oss", "glm4-moe", "glm4-moe-all-routed", "qwen2-moe", "falcon-heads", "falcon-two-norms"),
    *("gpt-neox", "stablelm"),
)
"""Each tensor is cut and stored by itself, and these have one of every kind: `test_every_kind_of_tensor_is_cut`."""


@contextmanager
def transformers_alone() -> Iterator[None]:
    """With random numbers of its own, and without what transformers warns of."""
    said, shows_progress = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.manual_seed(1)
        try:
            yield
        finally:
            transformers.logging.set_verbosity(said)
            if shows_progress:
                transformers.logging.enable_progress_bar()


def auto(config: Any) -> Any:
    """The class of transformers that a model of a configuration is loaded with."""
    if "vision_config" in config.sub_configs:
        return transformers.AutoModelForImageTextToText
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    if "BertForMaskedLM" in str(config.architectures):
        return transformers.AutoModelForMaskedLM
    return transformers.AutoModelForPreTraining if "bert" in config.model_type else transformers.AutoModelForCausalLM


def logits(model: Any) -> torch.Tensor:
    """What a model says of `ids`: logits [2, s, v], and behind them those of other heads."""
    with torch.no_grad():
        if "vision_config" in model.config.sub_configs:
            return logits_after_images(model, seen_ids(model.config.model_type))
        if "bert" not in model.config.model_type:
            more = {"decoder_input_ids": ids().flip(0)} if model.config.is_encoder_decoder else {}
            found: torch.Tensor = model(ids(), **more).logits
            return found
        types = getattr(model.config, "type_vocab_size", 0)
        said = model(ids(), **({"token_type_ids": ids() % min(types, 2)} if types else {}))
        if "logits" in said:
            return said.logits.flatten()
        return torch.cat([said.prediction_logits.flatten(), said.seq_relationship_logits.flatten()])


def logits_after_images(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [2, s, v] of tokens that begin with `seen_ids`."""
    if model.config.model_type == "qwen2_5_vl":
        given: torch.Tensor = model(tokens, **native_images.theirs()).logits
        return given
    more = {"token_type_ids": (tokens == VOCAB - 1).long()} if model.config.model_type == "gemma3" else {}
    pixels = scaled(images()[0], model.config.vision_config.model_type)
    found: torch.Tensor = model(tokens, pixel_values=pixels, **more).logits
    return found


def likeliest(model: Any, new: torch.Tensor) -> torch.Tensor:
    """What a model finds most likely, without a cache, in the place of each of some new tokens behind `ids`, or behind
    `seen_ids` of what sees images: [2, new]. They are its greedy text where they are these.
    """
    if model.config.model_type == "qwen2_5_vl":
        return native_images.likeliest(model, new)
    sees = "vision_config" in model.config.sub_configs
    tokens = torch.cat([seeing_ids() if sees else ids(), new], dim=1)[:, :-1]
    with torch.no_grad():
        following = logits_after_images(model, tokens) if sees else model(tokens).logits
    following[..., VOCAB - 1] -= torch.inf if sees else 0.0  # it would be an image
    return following[:, LENGTH - 1 :].argmax(dim=-1)


@transformers_alone()
def written(folder: Path, prompt: str) -> tuple[str, torch.dtype]:
    """The 20 tokens or fewer that a decoder of a folder finds most likely after a text, and what it computes in."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    words = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    tokens = model.generate(**words, do_sample=False, max_new_tokens=20)[0, words.input_ids.size(1) :]
    return tokenizer.decode(tokens, skip_special_tokens=True), model.dtype


def ids() -> torch.Tensor:
    """Tokens [2, s]."""
    return torch.arange(2 * LENGTH).reshape(2, LENGTH) * 7 % VOCAB


def seeing_ids() -> torch.Tensor:
    """Tokens [2, s]: the first sequence has two images, with text around them, and the second has none."""
    found = ids().clone()
    found[found == VOCAB - 1] = 0
    found[0, 1:5] = found[0, 7:11] = VOCAB - 1
    return found


def seen_ids(model_type: str) -> torch.Tensor:
    """Those of a family."""
    return native_images.tokens() if model_type == "qwen2_5_vl" else seeing_ids()


def _seen(model_type: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Tokens and pixels of a family, and the grids of patches where images are of any size."""
    if model_type == "qwen2_5_vl":
        return native_images.tokens(), native_images.images(), native_images.GRIDS
    return seeing_ids(), images(), None


def images() -> torch.Tensor:
    """Pixels of as many images as each sequence may have, [2, n, 3, 16, 16], uint8."""
    return (torch.arange(2 * 2 * 3 * 256).reshape(2, 2, 3, 16, 16) * 37 % 251).to(torch.uint8)


def scaled(pixels: torch.Tensor, encoder: str) -> torch.Tensor:
    """As transformers' processor of CLIP, or that of SigLIP, scales them."""
    utils = transformers.image_utils
    colours = (utils.OPENAI_CLIP_MEAN, utils.OPENAI_CLIP_STD)
    if encoder == "siglip_vision_model":
        colours = (utils.IMAGENET_STANDARD_MEAN, utils.IMAGENET_STANDARD_STD)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in colours)
    return (pixels / 255 - mean) / deviation


@transformers_alone()
def make(folder: Path, *names: str, models: Mapping[str, Any] | None = None) -> None:
    """Save the models, by default those of `configurations`, and import each as a run."""
    for name, config in (configurations() if models is None else models).items():
        if names and name not in names:
            continue
        theirs = auto(config).from_config(config, attn_implementation="eager").eval()
        own_output = name == "t5-v1.1"
        if own_output:  # as its published files have it; transformers makes none
            theirs.lm_head.weight = torch.nn.Parameter(torch.zeros_like(theirs.shared.weight))
        with torch.no_grad():
            for kind, parameter in theirs.named_parameters():
                norm = "bias" not in kind and ("norm" in kind.lower() or "ln_" in kind or "ln." in kind)
                # T5 does not divide scores by the square root of a head's width: its queries are that much smaller.
                scale = 0.2 / 4 if kind.endswith("Attention.q.weight") else 0.2
                # What is divided by its length must be more than rounding.
                scale = 1.0 if kind.endswith("conv1d.weight") else scale
                is_centred = config.model_type == "qwen3_next" and "linear_attn" not in kind
                parameter.copy_((1.0 if norm and not is_centred else 0.0) + scale * torch.randn_like(parameter))
            for kind, buffer in theirs.named_buffers():
                if kind.endswith("e_score_correction_bias"):
                    buffer.copy_(0.2 * torch.randn_like(buffer))
            if name == "qwen2.5-vl":  # it never writes an image
                theirs.lm_head.weight[VOCAB - 1] = 0.0
            if name == "roberta-untied":
                theirs.lm_head.bias.copy_(theirs.lm_head.decoder.bias)
            if name == "bert-untied":  # of two biases it computes with the other
                theirs.cls.predictions.bias.copy_(theirs.cls.predictions.decoder.bias)
        packed = _packed(theirs) if name == "gpt-oss-mxfp4" else {}
        torch.save(logits(theirs), _made(folder / name) / "logits.pt")
        if auto(config) in (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText):
            (folder / name / "new").write_text(str(NEW))
        torch.save(_seen(config.model_type), folder / name / "seen.pt")
        # Several files: an index, and weights of one layer in two of them.
        theirs.save_pretrained(folder / name / "theirs", max_shard_size="30KB")
        if packed:
            _replace_packed(folder / name / "theirs", packed)
        if own_output:
            found = read_config(folder / name / "theirs")
            found["tie_word_embeddings"] = False
            (folder / name / "theirs" / "config.json").write_text(json.dumps(found))
        import_saved(folder / name)


def import_saved(home: Path) -> RunDir:
    """Import `theirs` of a folder as its `run`. Raises UserError where that is refused."""
    family = family_of_folder(home / "theirs")
    model = to_model(read_config(home / "theirs"), family)
    if home.name in ("phi3-longrope-long", "phi4-mini"):
        model["seq_length"] = LENGTH
    hybrid = model.get("architecture") == "mamba"
    job = JobSpec.model_validate(
        {
            **{"name": home.name, "model": model, "data": {"random_tokens": True}},
            **{"batch": {"global_batch_size": 2}, "optimizer": {"lr": 1e-5}, "schedule": {"train_iters": 1}},
            # A rule keeps hybrids off the CPU; it does not know the stubs of `layout_program`.
            **{"precision": {"dtype": "fp32"}, "runtime": {} if hybrid else {"device": "cpu"}},
        }
    )
    run = RunDir(_made(home / "run"))
    run.path.joinpath("resolved.json").write_text(dump_resolved(job))
    import_weights(home / "theirs", job, family, run.checkpoint(0), threads=2)
    return run


def _packed(model: Any) -> dict[str, torch.Tensor]:
    """Random matrices of experts in MXFP4, by the names of gpt-oss's published files; the model gets them."""
    found = {}
    for name, parameter in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = parameter.shape
            blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(121, 126, (experts, outputs, inputs // 32), dtype=torch.uint8)
            parameter.data.copy_(convert_moe_packed_tensors(blocks, scales))
            found |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return found


def _replace_packed(folder: Path, packed: dict[str, torch.Tensor]) -> None:
    """Their files with matrices of experts in MXFP4."""
    others = {key: value for key, value in weights(folder).items() if f"{key}_blocks" not in packed}
    for file in [*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"]:
        file.unlink()
    save_file({**others, **packed}, folder / "model.safetensors", metadata={"format": "pt"})
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens", "lm_head"]}
    config = {**read_config(folder), "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))


def _unpacked(came: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As transformers reads them."""
    found = {}
    for key, tensor in came.items():
        name = key.removesuffix("_blocks")
        if name != key:
            found[name] = convert_moe_packed_tensors(tensor, came[f"{name}_scales"])
        elif not key.endswith("_scales"):
            found[key] = tensor
    return found


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@transformers_alone()
def check(folder: Path) -> dict[str, dict[str, Any]]:
    """For each family and each layout's checkpoint: whether the weights are bitwise those that came, of the first
    layout in an export, and the largest difference of the logits that AutoModelForCausalLM computes from it, and of
    ours. What is exported depends on what a checkpoint stores alone: the others store the same.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, config in configurations().items():
        home = folder / name
        if not home.exists():  # another was asked for
            continue
        job = load_resolved(home / "run" / "resolved.json")
        came, entry = _as_written(name, weights(home / "theirs")), {}
        alone, *others = sorted(home.glob("layout-*"))
        target = home / alone.name.replace("layout", "out")
        # It says what the weights were imported as, as the marker of a trained checkpoint does.
        shutil.copy(RunDir(home / "run").checkpoint(0) / COMMIT_FILE, alone)
        export(alone, job, target, most_bytes=20_000, dtype=None, tokenizer="no", threads=2)
        went = weights(target)
        entry[alone.name] = came.keys() == went.keys() and all(torch.equal(came[k], went[k]) for k in came)
        entry["files"] = len(list(target.glob("*.safetensors")))
        stored = StoredWeights(alone)
        entry |= {path.name: entry[alone.name] and _have_the_same(StoredWeights(path), stored) for path in others}
        loaded = auto(config).from_pretrained(target, attn_implementation="eager").eval()
        expected = torch.load(home / "logits.pt")
        entry["theirs"] = (logits(loaded) - expected).abs().max().item()
        entry["ours"] = (torch.load(home / "ours.pt") - expected).abs().max().item()
        wrote = [torch.load(path) for path in home.glob("wrote-*.pt")]
        entry["greedy"] = [new.shape == (2, NEW) and torch.equal(new, likeliest(loaded, new)) for new in wrote]
        if (home / "losses.pt").exists():
            probabilities = (
                expected.log_softmax(2).gather(2, seen_ids(config.model_type).roll(-1, 1).unsqueeze(2)).squeeze(2)
            )
            entry["losses"] = (torch.load(home / "losses.pt") + probabilities).abs().max().item()
        entry["spread"] = expected.std().item()
        entry["class"] = type(loaded).__name__
        found[name] = entry
    return found


def _have_the_same(one: StoredWeights, other: StoredWeights) -> bool:
    """Whether two checkpoints store the same tensors, but for tokens by which a vocabulary is padded."""
    if one.keys() != other.keys():
        return False
    pairs = [(one.read(key, ()), other.read(key, ())) for key in one.keys()]  # noqa: SIM118 - it is no mapping
    padded = ((a, b) if a.shape == b.shape else (a[:VOCAB], b[:VOCAB]) for a, b in pairs)
    return all(torch.equal(a, b) for a, b in padded)


def _as_written(name: str, came: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of one in MXFP4: in bf16. Of one that sees: under the names that all versions of transformers read, without the
    layers whose output is not taken, and the norm behind them as it does nothing.
    """
    if "llava" not in name and "images" not in name:
        return _unpacked(came)
    tower, found = "vision_tower.vision_model.", {}
    for key, tensor in came.items():
        key = key.replace("vision_tower.", tower)
        if name == "llava" and key.startswith(f"{tower}encoder.layers.2."):
            continue
        if key.startswith(f"{tower}post_layernorm.") and "llava" in name:
            tensor = torch.full_like(tensor, float(key.endswith("weight")))
        found[key] = tensor
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a model's folder."""
    return {key: value for file in folder.glob("*.safetensors") for key, value in load_file(file).items()}


def kinds_of_tensors(home: Path) -> set[tuple[str, bool, bool]]:
    """The names that an imported model stores its tensors by, with N for the number of a layer that is unlike others. A
    matrix of queries, keys and values is of another kind with fewer groups than heads, and one of an MLP where half of
    it is a gate; a word's embedding is on the last stage as well where it is tied.
    """
    run = RunDir(home / "run")
    model, found = load_resolved(run.resolved()).model, set()
    for name in StoredWeights(run.checkpoint(0)).keys():  # noqa: SIM118 - it is no mapping
        grouped = "linear_qkv" in name and model.num_query_groups not in (None, model.num_attention_heads)
        special = "linear_fc1" in name and model.activation.endswith(("glu", "glu_exact"))
        tied = name.startswith("embedding.word") and not model.untie_embeddings_and_output_weights
        found.add((re.sub(r"\.\d+\.", ".N.", name), grouped, special or tied))
    return found
