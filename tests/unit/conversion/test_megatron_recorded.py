"""Checkpoints that Megatron-LM's own trainer wrote (`tests/parity`): taken in with the job migrated from its script."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.kinds import KINDS, SAVED
from parity.records import recorded, value_of, values_of, write_checkpoint
from support.faults import Ranks
from support.refused import refused

from orchestrator.cli.main import main
from orchestrator.cli.models import megatron
from orchestrator.conversion.megatron.arguments import differences, to_arguments, to_model
from orchestrator.conversion.megatron.bert_and_t5 import family_of
from orchestrator.conversion.megatron.checkpoint_keys import numbered_object, stacked_object, wanted_tensors
from orchestrator.conversion.megatron.checkpoints import describe, export_megatron, import_megatron
from orchestrator.conversion.megatron.optimizer import is_resumable
from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.migration.from_megatron import migrate_script
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

ROWS = 261
"""Of a GPT's table."""


@functools.cache
def job_of(kind: str) -> JobSpec:
    """The job migrated from a kind's script; what it begins with is no part of it."""
    script = replace(KINDS[kind], finetunes=None).script
    return load_text(job_text(migrate_script(script, "pretrain.sh"))).job


@dataclass(frozen=True)
class Checkpoints:
    """Recorded ones, each written once for the tests that read it."""

    folder: Path

    @functools.cache  # noqa: B019 - there is one, and the tests of this file end with it
    def saved(self, kind: str) -> Path:
        """The folder that Megatron-LM saved into."""
        return write_checkpoint(kind, self.folder / kind)

    def theirs(self, kind: str) -> Path:
        """The checkpoint in it."""
        return self.saved(kind) / f"iter_{SAVED:07d}"

    @functools.cache  # noqa: B019 - likewise
    def ours(self, kind: str) -> Path:
        """What an import makes of it."""
        import_megatron(self.theirs(kind), job_of(kind), self.folder / f"{kind}-ours", with_optimizer=True)
        return self.folder / f"{kind}-ours"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("recorded"))


def found_in(checkpoint: Path) -> dict[str, Any]:
    """What the command hears of a checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(describe(checkpoint)))
    return found


@pytest.mark.parametrize("kind", recorded())
def test_weights_and_optimizer_are_all_there(
    kind: str, checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    source = checkpoints.theirs(kind)
    found, job = found_in(source), job_of(kind)
    family = family_of(found["kinds"])
    assert family is job.model.family
    assert differences(job, found["arguments"], family) == []
    megatron.check_weights(source, found, job)
    assert megatron.takes_optimizer(source, found, job), capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "multiple", "fits"), [(ROWS + 1, 1, False), (400, 128, False), (ROWS, 1, True), (ROWS, 128, True)]
)
def test_each_token_of_the_job_has_a_row(
    size: int,
    multiple: int,
    fits: bool,
    checkpoints: Checkpoints,
    tmp_path: Path,
    ranks: Ranks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However far the job's vocabulary is padded; a job with more tokens is refused before anything is written."""
    sizes = {"vocab_size": size, "make_vocab_size_divisible_by": multiple}
    job = job_of("gpt")
    job = job.model_copy(update={"model": job.model.model_copy(update=sizes)})
    checkpoint = checkpoints.theirs("gpt")
    if fits:
        megatron.check_weights(checkpoint, found_in(checkpoint), job)
        return
    with refused("vocabulary_differs", ROWS, size):
        megatron.check_weights(checkpoint, found_in(checkpoint), job)
    (tmp_path / "job.yaml").write_text(job.model_dump_json())
    for name, value in ranks.for_commands().items():
        monkeypatch.setenv(name, value)
    words = ["checkpoint", "import", str(checkpoints.saved("gpt")), "--job", str(tmp_path / "job.yaml")]
    assert main([*words, "--runs-dir", str(tmp_path / "runs")]) == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ["gpt", "windowed", "scaled-rope", "experts-local"])
def test_the_network_is_that_of_the_script_without_it_too(kind: str, checkpoints: Checkpoints) -> None:
    source = checkpoints.theirs(kind)
    found = found_in(source)
    loaded = megatron.job_of(source, found, None, None)
    megatron.check_weights(source, found, loaded.job)
    assert loaded.job.model.vocab_size == ROWS, "a NullTokenizer has an end of document more than it says"
    assert differences(job_of(kind), found["arguments"]) == []
    assert loaded.job.model.sliding_window == job_of(kind).model.sliding_window
    assert loaded.job.model.rope_scaling == job_of(kind).model.rope_scaling


def test_local_norms_before_experts_come_in_under_their_other_name(checkpoints: Checkpoints) -> None:
    ours = StoredWeights(checkpoints.ours("experts-local"))
    for begin in ("", "optimizer.state.exp_avg."):
        read = ours.read(f"{begin}decoder.layers.1.pre_mlp_layernorm.weight", ())
        assert torch.equal(read, value_of(f"{begin}decoder.layers.1.mlp.linear_fc1.layer_norm_weight", (64,)))


def test_layers_that_are_stored_one_by_one_become_one(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """--moe-layer-freq '[1]*4' gives every layer keys of its own; all are alike, and ours has them in one."""
    job = job_of("experts")
    model = job.model.model_copy(update={"moe_layer_freq": [1, 1, 1, 1]})
    listed = job.model_copy(update={"model": model})
    ours = StoredWeights(checkpoints.ours("experts"))
    there = export_megatron(checkpoints.ours("experts"), listed, tmp_path / "there")
    numbered = StoredWeights(Path(there["path"]) / f"iter_{SAVED:07d}")
    assert "decoder.layers.3.mlp.experts.experts.linear_fc1.weight" in numbered
    assert "decoder.layers.1.mlp.experts.experts.linear_fc1._extra_state/shard_2_4" in numbered.objects()
    import_megatron(Path(there["path"]) / f"iter_{SAVED:07d}", listed, tmp_path / "back", with_optimizer=True)
    back = StoredWeights(tmp_path / "back")
    assert (back.keys(), back.objects()) == (ours.keys(), ours.objects())
    for key in ours.keys():  # noqa: SIM118 - it is no mapping
        assert torch.equal(back.read(key, ()), ours.read(key, ())), key


DOUBLED = {
    f"optimizer.state.{state}.{weight}"
    for state in ("param", "exp_avg", "exp_avg_sq")
    for weight in ("embedding.position_embeddings.weight", "lm_head.output_layer.bias")
}
"""Of the two keys of a weight of a T5, the trainer keeps its state under the other, and an export under both."""


@pytest.mark.parametrize(
    "kind",
    ["gpt", "experts", "experts-local", "experts-parallel", "gated-delta-net", "decoupled-lr", "bert", "t5"],
)
def test_in_and_out_again_is_what_megatron_lm_wrote(kind: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    theirs, ours, job = StoredWeights(checkpoints.theirs(kind)), StoredWeights(checkpoints.ours(kind)), job_of(kind)
    shapes = {key: ours.shape(key) for key in ours.keys()}  # noqa: SIM118 - it is no mapping
    rows = theirs.shape("embedding.word_embeddings.weight")[0]
    assert shapes == wanted_tensors(job, rows, with_optimizer=True)
    export_megatron(checkpoints.ours(kind), job, tmp_path / "there")
    there = StoredWeights(tmp_path / "there" / f"iter_{SAVED:07d}")
    named = set(theirs.keys())
    assert {*there.keys()} - named == (DOUBLED if kind == "t5" else set())
    for key in named:  # a norm that is zero-centred there alone is rounded once each way
        near = 1e-6 if key.endswith("out_norm.weight") else 0.0
        assert torch.allclose(there.read(key, ()), theirs.read(key, ()), rtol=0, atol=near), key
    rng = ("rng_state", "rerun_state")
    assert there.objects() == [key for key in theirs.objects() if not key.startswith(rng)]
    said, expected = there.shared(), theirs.shared()
    assert said["content_metadata"].items() <= expected["content_metadata"].items()
    assert groups_of(said["optimizer"]) == groups_of(expected["optimizer"])


OF_FLAGS = {"apply_layernorm_1p", "norm_epsilon", "disable_bias_linear"}
"""Names that our exports have and the trainer's checkpoints do not."""
OTHERWISE = {
    *("data_path", "save", "load", "iteration", "no_save_rng", "manual_gc", "cross_entropy_loss_fusion"),
    *("cross_entropy_fusion_impl", "moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion"),
    "use_rotary_position_embeddings",
}
"""Places, kernels, and what our exports say of themselves."""


@pytest.mark.parametrize("kind", recorded())
def test_arguments_of_an_export_are_those_that_megatron_lm_writes(kind: str) -> None:
    theirs = values_of(kind)
    rows = theirs["padded_vocab_size"]
    ours = to_arguments(job_of(kind), iteration=SAVED, consumed_samples=8 * SAVED, padded_vocab=rows)
    assert ours.keys() - theirs.keys() <= OF_FLAGS
    shared = (ours.keys() & theirs.keys()) - OTHERWISE
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


def groups_of(state: dict[Any, Any]) -> list[set[tuple[Any, ...]]]:
    """What tells the groups of parameters apart, of each optimizer."""
    parts = [state] if "optimizer" in state else list(state.values())
    names = ("wd_mult", "lr_mult", "is_expert_parallel", "is_decoupled_lr", "max_lr", "min_lr", "step")
    return [{tuple(group[name] for name in names) for group in part["optimizer"]["param_groups"]} for part in parts]


def test_what_a_resume_would_lack_is_told_before(checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]) -> None:
    source, job = checkpoints.theirs("experts"), job_of("experts")
    found = found_in(source)

    def without(*keys: str) -> dict[str, Any]:
        return {**found, "tensors": {key: shape for key, shape in found["tensors"].items() if key not in keys}}

    state = "optimizer.state.exp_avg.output_layer.weight"
    assert not megatron.takes_optimizer(source, without(state), job)
    assert f"the job's adam wants {state}, which it lacks" in capsys.readouterr().err
    with refused("network_differs", "output_layer.weight"):
        megatron.check_weights(source, without("output_layer.weight"), job)
    wide = {**found, "tensors": {**found["tensors"], "decoder.layers.mlp.router.bias": [4, 4]}}
    with refused("network_differs", "decoder.layers.mlp.router.bias", "[4, 4]"):
        megatron.check_weights(source, wide, job)
    assert not megatron.takes_optimizer(source, {**found, "is_resumable": False}, job)
    assert "does not say how many steps it has taken" in capsys.readouterr().err
    plain = job.parallelism.model_copy(update={"use_distributed_optimizer": False})
    assert not megatron.takes_optimizer(source, found, job.model_copy(update={"parallelism": plain}))
    assert "use_distributed_optimizer: false" in capsys.readouterr().err


def test_a_state_that_is_not_that_of_its_weights_stays_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As megatron-core writes it of a pipeline with a tied output layer whose bucket is padded."""

    def shifted(key: str, shape: Sequence[int]) -> torch.Tensor:
        return (
            value_of(key, shape).flatten().roll(1).reshape(*shape) if ".param.decoder" in key else value_of(key, shape)
        )

    source = write_checkpoint("gpt", tmp_path, shifted) / f"iter_{SAVED:07d}"
    assert not megatron.takes_optimizer(source, found_in(source), job_of("gpt"))
    assert "its copy of decoder.final_layernorm.bias is not that weight" in capsys.readouterr().err


GROUPS = {"param_groups": [{"wd_mult": 1.0, "step": 3}]}


@pytest.mark.parametrize(
    ("state", "resumable"),
    [
        ({"optimizer": GROUPS}, True),
        ({0: {"optimizer": GROUPS}, 1: {"optimizer": GROUPS}}, True),
        ({"optimizer": {"param_groups": [{"wd_mult": 1.0}]}}, False),
        ({"state": {}, **GROUPS}, False),
        ({"optimizer": None}, False),
        ({}, False),
        (None, False),
    ],
)
def test_what_an_optimizer_says_beside_its_tensors(state: Any, resumable: bool) -> None:
    assert is_resumable(state) is resumable


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("softmax_type", "off-by-one"),
        ("qk_l2_norm", True),
        ("experimental_attention_variant", "dsa"),
    ],
)
def test_networks_that_are_not_here_are_refused(argument: str, value: Any, windowed: dict[str, Any]) -> None:
    to_model(windowed)
    with refused("network_not_importable"):
        to_model({**windowed, argument: value})


@pytest.fixture(scope="module")
def windowed(checkpoints: Checkpoints) -> dict[str, Any]:
    arguments: dict[str, Any] = found_in(checkpoints.theirs("windowed"))["arguments"]
    return arguments


@pytest.mark.parametrize(
    ("stacked", "numbered"),
    [
        (
            "decoder.layers.mlp.linear_fc1._extra_state/shard_3_4",
            "decoder.layers.3.mlp.linear_fc1._extra_state/shard_0_1",
        ),
        ("decoder.layers.mlp.x._extra_state/shard_3.2_4.8", "decoder.layers.3.mlp.x._extra_state/shard_2_8"),
        ("output_layer._extra_state/shard_0_1", "output_layer._extra_state/shard_0_1"),
    ],
)
def test_objects_of_layers(stacked: str, numbered: str) -> None:
    assert (stacked_object(numbered, 4), numbered_object(stacked)) == (stacked, numbered)
