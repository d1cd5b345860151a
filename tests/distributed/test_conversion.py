"""Hugging Face models in and out: every family, at every layout, by the weights, the logits and the command line."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import CommandLine, Ranks
from support.training import events, layout, make_run, tiny_job
from tokenizers import Tokenizer, models

from orchestrator.run_directory.checkpoints.commit_markers import committed, file_record, read_commit, write_commit
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import dump_resolved, load_job, load_resolved
from tests.unit.conversion import families

pytestmark = [pytest.mark.distributed, pytest.mark.slow("many models at three layouts"), pytest.mark.timeout(900)]

HERE = Path(__file__).parents[1] / "unit" / "conversion"
NAMES = ("config.json", "generation_config.json")
LAYOUTS = {"tp1-pp1": (1, 1), "tp2-pp1": (2, 1), "tp2-pp2": (2, 2)}
READ_ALONE = "tp2-pp1"
"""A decoder without experts is cut here as at two stages: it is loaded, and writes text."""
AT_FOUR = "tp2-pp2"
FAMILIES = {
    **{"gpt2": "GPT2LMHeadModel", "gpt2-untied": "GPT2LMHeadModel", "llama2": "LlamaForCausalLM"},
    **{"llama3": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM"},
    **{
        "qwen3-moe": "Qwen3MoeForCausalLM",
        "qwen3-moe-dense-layers": "Qwen3MoeForCausalLM",
        "qwen2-moe": "Qwen2MoeForCausalLM",
        "qwen2-moe-no-biases": "Qwen2MoeForCausalLM",
        **dict.fromkeys(("glm4-moe", "glm4-moe-all-routed"), "Glm4MoeForCausalLM"),
        **dict.fromkeys(("olmoe", "olmoe-normalized"), "OlmoeForCausalLM"),
        "granite-moe": "GraniteMoeForCausalLM",
        "granite-moe-shared": "GraniteMoeSharedForCausalLM",
        "granite-moe-without-shared": "GraniteMoeSharedForCausalLM",
        "llama4": "Llama4ForCausalLM",
        "llama4-all-routed": "Llama4ForCausalLM",
        "llama4-listed": "Llama4ForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "ministral": "MinistralForCausalLM",
        "qwen2-windows": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "gemma": "GemmaForCausalLM",
        "gemma2": "Gemma2ForCausalLM",
        **dict.fromkeys(("gemma3", "gemma3-capped"), "Gemma3ForCausalLM"),
        "phi3": "Phi3ForCausalLM",
        **dict.fromkeys(("phi3-longrope", "phi3-longrope-long", "phi4-mini"), "Phi3ForCausalLM"),
        "starcoder2-no-biases": "Starcoder2ForCausalLM",
        "starcoder2": "Starcoder2ForCausalLM",
        **dict.fromkeys(("stablelm", "stablelm-no-biases", "stablelm-one-norm"), "StableLmForCausalLM"),
        "nemotron": "NemotronForCausalLM",
        "mamba2": "Mamba2ForCausalLM",
        "mamba2-wide": "Mamba2ForCausalLM",
        **dict.fromkeys(("nemotron-h", "nemotron-h-gelu", "nemotron-h-moe"), "NemotronHForCausalLM"),
        "nemotron-h-moe-dense-layers": "NemotronHForCausalLM",
        "granite": "GraniteForCausalLM",
        "smollm3": "SmolLM3ForCausalLM",
        "smollm3-rotated": "SmolLM3ForCausalLM",  # it is a Llama too
        **dict.fromkeys(("glm4", "glm4-no-biases"), "Glm4ForCausalLM"),
        "glm": "GlmForCausalLM",
        "gpt-neox": "GPTNeoXForCausalLM",
        "gpt-neox-sequential": "GPTNeoXForCausalLM",
        **dict.fromkeys(("falcon", "falcon-heads", "falcon-one-norm", "falcon-two-norms"), "FalconForCausalLM"),
        **dict.fromkeys(("cohere", "cohere-norms"), "CohereForCausalLM"),
        **dict.fromkeys(("cohere2", "cohere2-windows"), "Cohere2ForCausalLM"),
        "olmo2": "Olmo2ForCausalLM",
        "olmo3": "Olmo3ForCausalLM",
        "qwen3-next": "Qwen3NextForCausalLM",
        "qwen3-next-uneven": "Qwen3NextForCausalLM",
        "deepseek-v2": "DeepseekV2ForCausalLM",
        "deepseek-v2-lite": "DeepseekV2ForCausalLM",
        "deepseek-v3": "DeepseekV3ForCausalLM",
        "deepseek-dense": "DeepseekV2ForCausalLM",
        "gpt-oss": "GptOssForCausalLM",
        "gpt-oss-mxfp4": "GptOssForCausalLM",
    },
    **{"megatron-bert": "MegatronBertForPreTraining", **dict.fromkeys(("bert", "bert-untied"), "BertForPreTraining")},
    **{"bert-masked": "BertForMaskedLM", "megatron-masked": "MegatronBertForMaskedLM"},
    **dict.fromkeys(("roberta", "roberta-untied"), "RobertaForMaskedLM"),
    **dict.fromkeys(("modernbert", "modernbert-biases"), "ModernBertForMaskedLM"),
    **{**dict.fromkeys(("t5", "t5-v1.1"), "T5ForConditionalGeneration"), "mt5": "MT5ForConditionalGeneration"},
    **dict.fromkeys(("llava", "llava-qwen2"), "LlavaForConditionalGeneration"),
    **{"gemma3-images": "Gemma3ForConditionalGeneration", "qwen2.5-vl": "Qwen2_5_VLForConditionalGeneration"},
}
SEES = ("llava", "llava-qwen2", "gemma3-images", "qwen2.5-vl")
DECODERS = [name for name, kind in FAMILIES.items() if kind.endswith(("CausalLM", "LMHeadModel"))]


@pytest.fixture(scope="module")
def folder(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Imported models, loaded and written anew at every layout."""
    folder = tmp_path_factory.mktemp("families")
    families.make(folder)
    for name, (tp, pp) in LAYOUTS.items():
        # On two ranks experts are split, but for those with biases.
        for etp in (1, 2) if (tp, pp) == (2, 1) else (1,):
            named = {AT_FOUR: families.CUT_AT_FOUR, READ_ALONE: FAMILIES.keys() - families.ENCODERS}.get(name, ())
            degrees = (name, str(tp), str(pp), str(etp), *named)
            assert ranks.starter.start(folder, tp * pp, *degrees, program=HERE / "layout_program.py").wait() == 0
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, dict[str, Any]]:
    return families.check(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_there_and_back_is_bitwise(found: dict[str, dict[str, Any]], folder: Path, family: str) -> None:
    """From transformers' files by way of a checkpoint of each layout, whose vocabulary is padded."""
    is_dense = not load_resolved(folder / family / "run" / "resolved.json").model.has_experts
    not_there = {READ_ALONE} if is_dense and family in {*DECODERS, *SEES, *families.ENCODERS} else set()
    written = {*LAYOUTS} - not_there - (set() if family in families.CUT_AT_FOUR else {AT_FOUR})
    assert {name: found[family].get(f"layout-{name}") for name in written} == dict.fromkeys(written, True)
    assert found[family]["files"] > 2


def test_every_kind_of_tensor_is_cut(folder: Path) -> None:
    """On tensor ranks of several stages."""
    kinds = {family: families.kinds_of_tensors(folder / family) for family in FAMILIES}
    assert set().union(*kinds.values()) == set().union(*(kinds[family] for family in families.CUT_AT_FOUR))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_same(found: dict[str, dict[str, Any]], family: str) -> None:
    """Ours, and those of what AutoModelForCausalLM makes of the export, in standard deviations."""
    entry = found[family]
    assert entry["class"] == FAMILIES[family]
    assert entry["spread"] > 0.1, "logits that say something"
    assert entry["theirs"] == 0.0
    assert entry["ours"] < 1e-5 * max(entry["spread"], 1.0)


@pytest.mark.parametrize("family", [*DECODERS, *SEES])
def test_greedy_generation_writes_the_same_tokens(found: dict[str, dict[str, Any]], family: str) -> None:
    """With a cache, on one rank and on two, as transformers without one."""
    assert found[family]["greedy"] == [True, True]


@pytest.mark.parametrize("family", SEES)
def test_losses_after_images_are_the_same(found: dict[str, dict[str, Any]], family: str) -> None:
    """Of a sequence with two images, and of one with none."""
    assert found[family]["losses"] < 1e-5


MODEL = {
    **{"num_layers": 2, "num_query_groups": 2, "vocab_size": 261, "activation": "swiglu", "normalization": "RMSNorm"},
    **{"add_bias_linear": False, "init_method_std": 0.3},
}
CONVERTS = """
import contextlib, sys
from orchestrator.conversion.__main__ import main as convert
def main():
    with open(sys.argv.pop(1), "w") as answer, contextlib.redirect_stdout(answer):
        code = convert()
        print(code)
    return code
"""
DIES = """
import os, sys
from orchestrator.conversion.hugging_face import hf_export, hf_import
calls = []
def dying(function):
    def wrapped(*arguments):
        calls.append(0)
        if len(calls) == 5:
            os.write(os.open(sys.argv[0] + ".died", os.O_CREAT | os.O_WRONLY), b"here")
            os._exit(9)
        return function(*arguments)
    return wrapped
hf_export.ShardFiles.write = dying(hf_export.ShardFiles.write)
hf_import.PublishedWeights.read = dying(hf_import.PublishedWeights.read)
"""


@pytest.fixture(scope="module")
def trained(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    job = tiny_job("writer", model=MODEL, schedule={"train_iters": 5}, parallelism=layout(dp=1))
    return ranks.must_train(make_run(tmp_path_factory.mktemp("runs"), job), job)


@dataclass(frozen=True)
class Converter:
    """`python -m orchestrator.conversion` in a rank that has imported already what it needs."""

    ranks: Ranks
    folder: Path

    def __call__(self, *arguments: object, first: str | None = None) -> tuple[int, dict[str, Any]]:
        """The exit code and what was answered. `first` is code that is run before."""
        answer = self._run(arguments, first)
        said, code = answer.read_text().splitlines()
        return int(code), json.loads(said)

    def dies(self, *arguments: object) -> None:
        """At the fifth tensor, as it is killed."""
        (died := self.folder / "convert.py.died").unlink(missing_ok=True)
        assert self._run(arguments, DIES).read_text() == ""
        assert died.read_text() == "here"

    def _run(self, arguments: tuple[object, ...], first: str | None) -> Path:
        program, inject, answer = (self.folder / name for name in ("convert.py", "first.py", "answer"))
        program.write_text(CONVERTS)
        inject.write_text(first or "")
        self.ranks.starter.start(answer, 1, *map(str, arguments), program=program, inject=inject).wait()
        return answer


@pytest.fixture
def convert(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Converter:
    return Converter(ranks, tmp_path_factory.mktemp("convert"))


def test_a_trained_model_writes_the_same_text(ranks: Ranks, orchestrator: CommandLine, trained: RunDir) -> None:
    """A checkpoint of ours, copied elsewhere and exported by the command: the greedy text of `generate` is that of
    transformers, with its tokenizer.
    """
    alone = shutil.copytree(committed(trained)[-1].path, orchestrator.folder / "alone")
    said = orchestrator("checkpoint", "export", alone, "-o", "out", "--to", "hf", "--max-shard-size", "200KB", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["family"] == "Llama"
    prompt = "def main("
    options = ("--prompt", prompt, "--temperature", "0", "--max-new-tokens", "20", "--json")
    ours = orchestrator("generate", alone, *options)
    assert ours.code == 0, ours.err
    text, dtype = families.written(orchestrator.folder / "out", prompt)
    assert text == json.loads(ours.out)["text"]
    assert len(text) > 4
    assert dtype == torch.float32


ROUTED = {
    "Qwen 2 with experts": {
        **{"add_qkv_bias": True, "num_experts": 4, "moe_ffn_hidden_size": 48, "moe_router_pre_softmax": True},
        **{"moe_shared_expert_intermediate_size": 56, "moe_shared_expert_gate": True, "moe_layer_freq": [0, 1]},
    },
    "GLM-4.5": {
        **{"num_experts": 8, "moe_ffn_hidden_size": 48, "moe_router_score_function": "sigmoid", "rotary_percent": 0.5},
        **{"moe_shared_expert_intermediate_size": 48, "moe_router_enable_expert_bias": True, "moe_layer_freq": [0, 1]},
        **{"moe_router_num_groups": 4, "moe_router_group_topk": 2, "moe_router_group_score_topk": 2},
        **{"moe_router_topk_scaling_factor": 1.5, "moe_router_load_balancing_type": "none"},
        **{"moe_router_dtype": "fp32", "moe_router_bias_update_rate": 0.05},
    },
}


@pytest.mark.parametrize("family", ROUTED)
def test_a_model_with_routed_experts_writes_the_same_text(
    ranks: Ranks, orchestrator: CommandLine, family: str, tmp_path: Path
) -> None:
    """As above, of experts whose bias has moved."""
    job = tiny_job("routed", model={**MODEL, **ROUTED[family]}, schedule={"train_iters": 5}, parallelism=layout(dp=1))
    run = ranks.must_train(make_run(tmp_path, job), job)
    said = orchestrator("checkpoint", "export", run.path, "out", "--to", "hf", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["family"] == family
    options = ("--prompt", "def main(", "--temperature", "0", "--max-new-tokens", "20", "--json")
    ours = orchestrator("generate", run.path, *options)
    assert ours.code == 0, ours.err
    text, _ = families.written(orchestrator.folder / "out", "def main(")
    assert text == json.loads(ours.out)["text"]
    assert len(text) > 4


def test_an_imported_model_trains_at_another_layout(ranks: Ranks, orchestrator: CommandLine, folder: Path) -> None:
    """`checkpoint import` makes a run that verify, export and `checkpoint.pretrained` take, and a job to go on with."""
    said = orchestrator("checkpoint", "import", folder / "llama3" / "theirs", "--name", "llama", "-o", "tune.yaml")
    assert said.code == 0, said.err
    assert "no tokenizer.json" in said.err
    assert orchestrator("checkpoint", "verify", "llama").code == 0
    assert orchestrator("validate", "tune.yaml").code == 0
    refused = orchestrator("resume", "llama")
    assert refused.code == 2
    assert refused.out == ""
    assert "no optimizer" in refused.err
    assert "imported: weights to start from, imported from" in orchestrator("status", "llama").out
    tune = load_job(
        [orchestrator.folder / "tune.yaml"],
        [
            *("schedule.train_iters=1", "tracking.mlflow=false", "runtime.device=cpu"),
            *("parallelism.tensor_model_parallel_size=2", "parallelism.pipeline_model_parallel_size=2"),
        ],
    ).job
    run = ranks.must_train(make_run(orchestrator.folder / "tuned", tune), tune)
    [event] = events(run, "pretrained")
    assert (event["from_iteration"], committed(run)[-1].imported_as) == (0, "Llama")
    assert tune.precision.dtype == "fp32", "as it is stored"
    said = orchestrator("checkpoint", "export", run.path, "tuned-hf", "--to", "hf", "--dtype", "bf16")
    assert said.code == 0, said.err
    config = json.loads((orchestrator.folder / "tuned-hf" / "config.json").read_text())
    theirs = json.loads((folder / "llama3" / "theirs" / "config.json").read_text())
    assert (config["torch_dtype"], config["tie_word_embeddings"]) == ("bfloat16", True)
    assert "none is written" in said.err
    assert not (orchestrator.folder / "tuned-hf" / "tokenizer.json").exists()
    assert config["rope_scaling"]["factor"] == theirs["rope_parameters"]["factor"] == 4.0


def test_a_hybrid_is_converted_without_its_kernels(orchestrator: CommandLine, folder: Path) -> None:
    theirs = folder / "nemotron-h" / "theirs"
    said = orchestrator("checkpoint", "import", theirs, "--name", "hybrid", "-o", "tune.yaml")
    assert said.code == 0, said.err
    assert orchestrator("validate", "tune.yaml").code == 0
    said = orchestrator("checkpoint", "export", "hybrid", "out", "--to", "hf", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["family"] == "Nemotron-H"


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"


def test_an_import_needs_its_folder_no_more(orchestrator: CommandLine, folder: Path) -> None:
    """The tokenizer, its template and what ends a text come along, into the job that starts from it, into an export."""
    theirs = shutil.copytree(folder / "llama2" / "theirs", orchestrator.folder / "theirs")
    tokenizer = Tokenizer(models.BPE(vocab={chr(ord("a") + number): number for number in range(26)}, merges=[]))
    tokenizer.save(str(theirs / "tokenizer.json"))
    said = {"eos_token_id": [1, 2], "bos_token_id": 3, "do_sample": True, "temperature": 0.6}
    (theirs / "generation_config.json").write_text(json.dumps(said))
    (theirs / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert "there is no folder" in orchestrator("checkpoint", "import", theirs, "-o", "not/there.yaml").err
    made = orchestrator("checkpoint", "import", theirs, "--name", "alone", "-o", "tune.yaml")
    assert made.code == 0, made.err
    shutil.rmtree(theirs)
    assert orchestrator("validate", "tune.yaml").code == 0
    out = orchestrator("checkpoint", "export", "alone", "out", "--to", "hf")
    assert out.code == 0, out.err
    written = {name: json.loads((orchestrator.folder / "out" / name).read_text()) for name in NAMES}
    assert written["generation_config.json"] == said
    assert written["config.json"]["eos_token_id"] == [1, 2]
    assert json.loads((orchestrator.folder / "out" / "chat_template.json").read_text())["chat_template"]
    assert Tokenizer.from_file(str(orchestrator.folder / "out" / "tokenizer.json")).encode("abc").ids == [0, 1, 2]


def test_a_full_disk_leaves_nothing(convert: Converter, folder: Path, tmp_path: Path) -> None:
    source, target = folder / "qwen2", tmp_path / "iter_0000000"
    arguments = ("import", source / "theirs", source / "run" / "resolved.json", target)
    code, answer = convert(*arguments, first=LIMITED)
    assert code == 1
    assert answer["error"].startswith(f"no room for {target}")
    assert list(tmp_path.iterdir()) == []


def test_a_kill_leaves_nothing_that_looks_finished(
    convert: Converter, folder: Path, tmp_path: Path, trained: RunDir
) -> None:
    checkpoint, target = committed(trained)[-1].path, tmp_path / "out"
    convert.dies("export", checkpoint, target, "--most-bytes=1000000")
    assert [path.name for path in tmp_path.iterdir()] == [".out.export"]
    source, imported = folder / "qwen2", tmp_path / "iter_0000000"
    convert.dies("import", source / "theirs", source / "run" / "resolved.json", imported)
    assert imported.is_dir()
    assert read_commit(imported) is None
    # What was left is in nobody's way.
    code, _ = convert("export", checkpoint, target, "--most-bytes=1000000", "--tokenizer=no")
    assert code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iter_0000000", "out"]


class Call:
    """A pickle that makes a folder where it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


def recommit(checkpoint: Path) -> None:
    """Have the marker say what the files are now, as whoever makes a checkpoint with bad intent would."""
    commit = read_commit(checkpoint)
    assert commit is not None
    records = {name: file_record(checkpoint / name) for name in commit.files}
    write_commit(checkpoint, iteration=commit.iteration, consumed_samples=commit.consumed_samples, files=records)


def test_nothing_in_a_checkpoint_is_run(convert: Converter, tmp_path: Path, trained: RunDir) -> None:
    """Nor does one that holds another network than its run says come through."""

    def refusal(checkpoint: Path, *options: str) -> tuple[int, str]:
        code, answer = convert("export", checkpoint, tmp_path / "out", "--most-bytes=1000000", *options)
        assert not (tmp_path / "out").exists()
        assert answer["exit_code"] == code
        return code, answer["error"]

    checkpoint = committed(trained)[-1].path
    foreign = shutil.copytree(checkpoint, tmp_path / "foreign")
    (foreign / ".metadata").write_bytes(pickle.dumps(Call(tmp_path / "ran")))
    code, message = refusal(foreign)
    assert code == 1
    assert ".metadata is damaged" in message
    recommit(foreign)
    code, message = refusal(foreign)
    assert code == 1
    assert "it names posix.mkdir" in message
    assert not (tmp_path / "ran").exists()
    wider = tiny_job("wider", model={**MODEL, "ffn_hidden_size": 320})
    other = shutil.copytree(checkpoint, tmp_path / "other")
    (other / "job.json").write_text(dump_resolved(wider))
    recommit(other)
    code, message = refusal(other)
    assert code == 1
    assert "linear_fc1.weight of the checkpoint is (2, " in message


def test_what_cannot_be_is_refused(orchestrator: CommandLine, trained: RunDir, tmp_path: Path) -> None:
    """Exit code 2 and the reason, and nothing is written."""

    def refusal(*arguments: str | Path) -> str:
        said = orchestrator("checkpoint", *arguments)
        assert (said.code, said.out) == (2, ""), said.err
        assert "Traceback" not in said.err
        return said.err

    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    assert "is one checkpoint: --iteration selects a checkpoint of a run" in refusal(
        "export", committed(trained)[-1].path, "out", "--to", "hf", "--iteration", "5"
    )
    assert "already exists" in refusal("export", trained.path, "there", "--to", "hf")
    assert "is not a size" in refusal("export", trained.path, "out", "--to", "hf", "--max-shard-size", "much")
    alibi = tiny_job("alibi", model={**MODEL, "position_embedding_type": "alibi", "final_logit_softcapping": 9.0})
    other = make_run(tmp_path / "runs", alibi)
    shutil.copytree(trained.checkpoints, other.checkpoints)
    message = refusal("export", other.path, "out", "--to", "hf")
    assert "model.position_embedding_type is alibi, and Llama has rope" in message
    assert "model.final_logit_softcapping is 9.0, and Llama has none" in message
    assert "--to megatron-lm" not in message, "it has no such network either"
    plain = make_run(tmp_path / "runs", tiny_job("plain", model={"activation": "squared_relu"}))
    shutil.copytree(trained.checkpoints, plain.checkpoints)
    message = refusal("export", plain.path, "out", "--to", "hf")
    assert message.endswith("Megatron-LM's own layout takes it: --to megatron-lm\n")
    assert not (tmp_path / "out").exists()
    hf = tmp_path / "hf"
    hf.mkdir()
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    llama = {"model_type": "llama", "vocab_size": 8, "num_key_value_heads": 2, **sizes}
    (hf / "config.json").write_text(json.dumps(llama))
    (hf / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    assert "is damaged" in refusal("import", hf)
    assert not list((tmp_path / "runs" / "hf").iterdir())
