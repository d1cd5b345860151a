"""Models of transformers with the layers by which they predict further tokens, which it loads for generation alone:
`make` saves and imports them as families.py does others, `check` compares what became of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.conversion.hugging_face.config_json import read_config, to_model
from orchestrator.conversion.hugging_face.families.mixture_of_experts.further_tokens import layers_of_further_tokens
from orchestrator.conversion.hugging_face.families.model_folder import family_of_folder
from orchestrator.conversion.hugging_face.hf_export import export
from orchestrator.conversion.hugging_face.hf_import import import_weights
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_resolved
from tests.unit.conversion import qwen_next_head
from tests.unit.conversion.families import ids, logits, transformers_alone
from tests.unit.conversion.families_configurations import DELTA, FEW_EXPERTS, GROUPED_EXPERTS, LATENT_EXPERTS, SIZES


def configurations() -> dict[str, Any]:
    """New ones at each call: transformers changes the one that a model is made from."""
    return {
        "deepseek-v3": transformers.DeepseekV3Config(**LATENT_EXPERTS, first_k_dense_replace=1, num_mtp_layers=1),
        "glm4-moe": transformers.Glm4MoeConfig(
            **{**SIZES, **GROUPED_EXPERTS, "num_mtp_layers": 2}, first_k_dense_replace=1, tie_word_embeddings=True
        ),
        "qwen3-next": transformers.Qwen3NextConfig(
            **{**SIZES, "num_hidden_layers": 4, **FEW_EXPERTS, **DELTA, "shared_expert_intermediate_size": 56},
            layer_types=["linear_attention", "full_attention"] * 2,
        ),
    }


@transformers_alone()
def make(folder: Path) -> None:
    for name, config in configurations().items():
        theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        randomize(theirs)
        tensors, each = (of_qwen_next if name == "qwen3-next" else of_transformers)(theirs)
        home = folder / name
        home.mkdir(parents=True)
        torch.save(logits(theirs), home / "logits.pt")
        torch.save(each[0], home / "further-theirs.pt")
        torch.save(each, home / "drafts-theirs.pt")
        theirs.save_pretrained(home / "theirs")
        tensors = load_file(home / "theirs" / "model.safetensors") | tensors
        save_file(
            {key: tensor.contiguous().clone() for key, tensor in tensors.items()}, home / "theirs" / "model.safetensors"
        )
        found = read_config(home / "theirs")
        family = family_of_folder(home / "theirs")
        job = JobSpec.model_validate(
            {
                **{"name": name, "data": {"random_tokens": True}, "precision": {"dtype": "fp32"}},
                "model": {**to_model(found, family), "mtp_num_layers": layers_of_further_tokens(found, family)},
                **{"batch": {"global_batch_size": 2}, "optimizer": {"lr": 1e-5}, "schedule": {"train_iters": 1}},
                "runtime": {"device": "cpu"},
            }
        )
        run = RunDir(home / "run")
        run.path.mkdir()
        run.path.joinpath("resolved.json").write_text(dump_resolved(job))
        import_weights(home / "theirs", job, family, run.checkpoint(0), threads=2)


def randomize(model: Any) -> None:
    with torch.no_grad():
        for kind, parameter in model.named_parameters():
            # What is divided by its length must be more than rounding.
            scale = 1.0 if kind.endswith("conv1d.weight") else 0.2
            is_centred = model.config.model_type == "qwen3_next" and "linear_attn" not in kind
            mean = 1.0 if "norm" in kind and not is_centred else 0.0
            parameter.copy_(mean + scale * torch.randn_like(parameter))


def of_transformers(theirs: Any) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """The tensors of further layers as published files have them, and what they predict."""
    further = MtpModel(theirs, theirs.config.num_mtp_layers).eval()
    randomize(further)
    return dict(named(theirs, further)), further_logits(theirs, further)


def of_qwen_next(theirs: Any) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """The same, of what transformers passes over."""
    tensors = {name: 0.2 * torch.randn(shape) for name, shape in qwen_next_head.shapes(theirs.config)}
    return tensors, [qwen_next_head.logits(theirs, tensors, ids())]


def named(theirs: Any, further: Any) -> Any:
    """Weights of further layers as published files have them, with each expert by itself and both tables once more."""
    first = theirs.config.num_hidden_layers
    for depth, layer in enumerate(further.layers):
        begin = f"model.layers.{first + depth}."
        for key, tensor in layer.state_dict().items():
            name = "shared_head.norm.weight" if key == "post_norm.weight" else key.removeprefix("mtp_block.")
            if ".experts." not in key:
                yield begin + name, tensor
                continue
            for expert, own in enumerate(tensor):
                place = f"{begin}mlp.experts.{expert}."
                if "gate_up_proj" in key:
                    gate, up = own.chunk(2)
                    yield f"{place}gate_proj.weight", gate
                    yield f"{place}up_proj.weight", up
                else:
                    yield f"{place}down_proj.weight", own
        yield f"{begin}embed_tokens.weight", theirs.get_input_embeddings().weight.detach()
        yield f"{begin}shared_head.head.weight", theirs.lm_head.weight.detach()


def further_logits(theirs: Any, further: Any) -> list[torch.Tensor]:
    """Of each depth those of the token so many behind the next one, [2, s - depth, v]: the tokens before it are known
    of so many places.
    """
    tokens, found = ids(), []
    with torch.no_grad():
        hidden = theirs.model(tokens).last_hidden_state
        for depth in range(1, len(further.layers) + 1):
            places = torch.arange(tokens.size(1) - depth).expand(2, -1)
            hidden = further.forward_layer(depth - 1, hidden[:, :-1], places, None, input_ids=tokens[:, depth:])
            found.append(further._project_to_logits(hidden))
    return found


@transformers_alone()
def check(folder: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in configurations():
        home, entry = folder / name, {}
        job = load_resolved(home / "run" / "resolved.json")
        came = load_file(home / "theirs" / "model.safetensors")
        for checkpoint in sorted(home.glob("layout-*")):
            target = home / checkpoint.name.replace("layout", "out")
            export(checkpoint, job, target, most_bytes=10**9, dtype=None, tokenizer="no", threads=2)
            went = load_file(target / "model.safetensors")
            entry[checkpoint.name] = came.keys() == went.keys() and all(torch.equal(came[k], went[k]) for k in came)
        entry["count"] = read_config(target)["num_nextn_predict_layers"]
        for kind, ours in (("logits", "ours"), ("further-theirs", "further")):
            expected = torch.load(home / f"{kind}.pt")
            difference = torch.load(home / f"{ours}.pt")[:, : expected.size(1)] - expected
            entry[kind] = difference.abs().max().item() / expected.std().item()
        drafted = torch.load(home / "drafted.pt")
        theirs = torch.load(home / "drafts-theirs.pt")
        differences = [(row - theirs[depth][number, place]).abs().max() for depth, number, place, row in drafted]
        entry["drafts"], entry["depths"] = max(differences).item() / theirs[0].std().item(), len(theirs)
        entry["drafted"] = len(drafted)
        entry["texts"] = [text for path in sorted(home.glob("texts-*.pt")) for text in torch.load(path)]
        found[name] = entry
    return found
