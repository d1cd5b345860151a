"""From a sweep file to cells."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.problems import codes, problems_of
from support.refused import refused

from orchestrator.errors import SpecError, UserError
from orchestrator.spec.loading import load_job, load_text
from orchestrator.sweeps.loading import LoadedSweep, load_sweep
from tests.unit.sweeps.conftest import JOB

Load = Callable[[str], LoadedSweep]


def names(loaded: LoadedSweep) -> list[str]:
    return [cell.name for cell in loaded.cells.cells]


def test_grid_zip_and_list_are_combined_each_with_each(load: Load) -> None:
    loaded = load("""
        grid:
          lr: [1e-3, 1e-4]
        zip:
          model.num_layers: [2, 4]
          hidden: [16, 32]
        list:
          - {tp: 1}
          - {parallelism: {tensor_model_parallel_size: 2, sequence_parallel: true}}
        """)
    assert loaded.name == "tiny"
    assert len(loaded.cells.cells) == 2 * 2 * 2
    assert names(loaded)[:2] == [
        "lr=1e-3,num_layers=2,hidden_size=16,tp=1",
        "lr=1e-3,num_layers=2,hidden_size=16,tp=2,sp=true",
    ]
    shapes = {(cell.job.model.num_layers, cell.job.model.hidden_size) for cell in loaded.cells.cells}
    assert shapes == {(2, 16), (4, 32)}


def test_a_cell_is_the_job_that_set_would_make(load: Load, folder: Path) -> None:
    [cell] = load(
        "grid: {lr: [3e-4], schedule.train_iters: [1k], precision.dtype: [bf16], tracking.tags.a: [no]}"
    ).cells.cells
    settings = ["optimizer.lr=3e-4", "schedule.train_iters=1k", "precision.dtype=bf16", "tracking.tags.a=no"]
    alone = load_job([folder / "job.yaml"], settings).job
    assert cell.job == alone
    assert cell.id == alone.config_hash
    assert cell.job.schedule.train_iters == 1000
    assert cell.job.tracking.tags == {"a": "no"}
    written = [line.removeprefix("# --set ") for line in cell.loaded.text.splitlines() if line.startswith("# --set ")]
    assert load_text(JOB, overrides=written).job == alone, "its text says how to make it by hand"


def test_a_section_in_the_job_file_and_a_file_over_a_base_are_the_same(folder: Path, load: Load) -> None:
    over = load("grid: {lr: [1, 2]}")
    (folder / "both.yaml").write_text(JOB + "sweep:\n  grid: {lr: [1, 2]}\n")
    (folder / "named.yaml").write_text("base: job.yaml\nsweep: {name: rates, grid: {lr: [1, 2]}}\nruntime: {seed: 7}\n")
    both, named = load_sweep([folder / "both.yaml"]), load_sweep([folder / "named.yaml"])
    assert [cell.id for cell in both.cells.cells] == [cell.id for cell in over.cells.cells]
    assert named.name == "rates"
    assert {cell.job.runtime.seed for cell in named.cells.cells} == {7}
    overridden = load_sweep([folder / "both.yaml"], ["runtime.seed=7"])
    assert [cell.id for cell in overridden.cells.cells] == [cell.id for cell in named.cells.cells]


def test_a_command_for_one_job_says_what_to_use_instead(folder: Path) -> None:
    (folder / "both.yaml").write_text(JOB + "sweep:\n  grid: {lr: [1, 2]}\n")
    [problem] = problems_of(lambda: load_job([Path("both.yaml")]))
    assert (problem.code, str(problem.location)) == ("unexpected_sweep", "both.yaml:10:1")
    assert "orchestrator sweep run" in str(problem.hint)
    assert codes(problems_of(lambda: load_sweep([folder / "job.yaml"]))) == ["missing_key sweep"]
    assert codes(problems_of(lambda: load_sweep([folder / "nofile.yaml"]))) == ["file_not_found"]
    with refused("no_sweep"):
        load_sweep([])


def test_null_takes_a_key_back_to_its_default(load: Load) -> None:
    loaded = load("grid: {model.hidden_dropout: [null, 0.3], vp: [null]}")
    assert [cell.job.model.hidden_dropout for cell in loaded.cells.cells] == [0.0, 0.3]
    assert names(loaded)[0] == "hidden_dropout=null,vp=null"


def test_random_values_are_the_same_for_a_seed_and_only_added_to(load: Load) -> None:
    text = """
        random:
          count: {count}
          seed: {seed}
          fields:
            lr: {loguniform: [1e-5, 1e-2]}
            model.hidden_dropout: {uniform: [0, 0.5]}
            model.num_layers: {integers: [1, 64]}
            precision.dtype: {choice: [bf16, fp32]}
        """

    def ids(count: int, seed: int) -> list[str]:
        found = load(text.replace("{count}", str(count)).replace("{seed}", str(seed)))
        for cell in found.cells.cells:
            assert 1e-5 <= cell.job.optimizer.lr <= 1e-2
            assert 0 <= cell.job.model.hidden_dropout <= 0.5
            assert 1 <= cell.job.model.num_layers <= 64
        assert {cell.job.precision.dtype for cell in found.cells.cells} == {"bf16", "fp32"}
        assert len({math.floor(math.log10(cell.job.optimizer.lr)) for cell in found.cells.cells}) == 3
        return [cell.id for cell in found.cells.cells]

    assert ids(20, 1) == ids(20, 1)
    assert ids(40, 1)[:20] == ids(20, 1)
    assert not set(ids(20, 1)) & set(ids(20, 2))


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("grid: {layers: [torch, auto]}", ["runtime.layers=torch", "runtime.layers=auto"]),
        ("list: [{layers: torch}, {layers: 2}]", ["runtime.layers=torch", "num_layers=2"]),
        ("random: {count: 1, fields: {layers: {choice: [torch, torch]}}}", ["runtime.layers=torch"]),
        ("grid: {layers: [2, 4]}", ["num_layers=2", "num_layers=4"]),
    ],
)
def test_a_short_name_of_two_fields_means_the_one_that_takes_the_values(
    load: Load, section: str, expected: list[str]
) -> None:
    assert names(load(section)) == expected


def test_values_for_either_field_of_a_short_name_are_refused_with_both(load: Load) -> None:
    [problem] = problems_of(lambda: load("grid: {layers: [torch, 2]}"))
    assert (problem.code, problem.paths) == ("unknown_key", ("layers",))
    assert all(path in str(problem.hint) for path in ("model.num_layers", "runtime.layers"))


def test_conditions_leave_cells_out_before_they_are_checked(load: Load) -> None:
    loaded = load("""
        grid: {tp: [1, 2, 3, 4], pp: [1, 2, 4]}
        when: [tp * pp <= 4, "tp != 3", layers == 4]
        """)
    assert names(loaded) == ["tp=1,pp=1", "tp=1,pp=2", "tp=1,pp=4", "tp=2,pp=1", "tp=2,pp=2", "tp=4,pp=1"]
    assert (loaded.cells.filtered, loaded.cells.pruned) == (6, [])


def test_conditions_know_what_follows_from_other_fields(load: Load) -> None:
    loaded = load("""
        grid: {tp: [1, 2], dp: [null, 4]}
        when: world_size > 2 and dp == 4 and gbs == 16 and optimizer.weight_decay < 1 and batch.num_micro_batches == 4
        """)
    assert names(loaded) == ["tp=1,dp=4", "tp=2,dp=4"]


def test_conditions_know_what_a_preset_says(load: Load, folder: Path) -> None:
    (folder / "job.yaml").write_text(f"{JOB.splitlines()[0]}\nmodel: {{}}\n" + JOB.split("\n", 2)[2])
    loaded = load("grid: {model.preset: [gpt2, gpt2-large]}\nwhen: layers > 20")
    assert names(loaded) == ["preset=gpt2-large"]


def test_cells_that_cannot_run_are_set_aside_with_the_reason(load: Load) -> None:
    loaded = load("grid: {tp: [1, 3], lr: [1e-3, 1e-4]}")
    assert names(loaded) == ["tp=1,lr=1e-3", "tp=1,lr=1e-4"]
    assert [cell.name for cell in loaded.cells.pruned] == ["tp=3,lr=1e-3", "tp=3,lr=1e-4"]
    for cell in loaded.cells.pruned:
        assert codes(cell.problems)[0] == "heads_by_tensor_parallel parallelism.tensor_model_parallel_size"
        assert cell.problems[0].message in cell.reason
    location = loaded.cells.pruned[0].problems[0].location
    assert location is not None
    assert (location.source, location.line, location.column) == ("sweep.yaml", 2, 16)


def test_the_same_job_twice_is_one_cell(load: Load) -> None:
    loaded = load("grid: {lr: [1e-3, 0.001, 1.0e-3, 2e-3]}")
    assert (len(loaded.cells.cells), loaded.cells.repeated) == (2, 2)


WRONG = {
    "grid: {optimizer.lrr: [1]}": ["unknown_key optimizer.lrr"],
    "grid: {tensor_parallel: [1]}": ["unknown_key tensor_parallel"],
    "grid: {optimiser.lr: [1]}": ["unknown_key optimiser.lr"],
    "grid: {seed: [1]}": ["unknown_key seed"],
    "grid: {mbs: [1, two, -3]}": ["wrong_type batch.micro_batch_size", "out_of_range batch.micro_batch_size"],
    "grid: {precision.dtype: [fp61]}": ["unknown_choice precision.dtype"],
    "grid: {lr: 3}": ["wrong_type sweep.grid.lr"],
    "grid: {lr: }": ["wrong_type lr"],
    "grid: {lr: []}": ["wrong_length sweep.grid.lr"],
    "grid: {launch.runs_dir: [a, b]}": ["fixed_key launch.runs_dir"],
    "grid: {lr: [1], optimizer.lr: [2]}": ["varied_twice optimizer.lr"],
    "grid: {lr: [1]}\nlist: [{optimizer: {lr: 2}}]": ["varied_twice optimizer.lr"],
    "grid: {launch.env: [{A: b}], launch.env.A: [c]}": ["varied_twice launch.env.A"],
    "list: [{lr: 1, optimizer.lr: 2}]": ["varied_twice optimizer.lr"],
    "list: [{}]": ["wrong_length sweep.list[0]"],
    "list: [3]": ["wrong_type sweep.list[0]"],
    "zip: {lr: [1, 2], mbs: [1]}": ["unequal_lengths sweep.zip"],
    "random: {count: 2, fields: {lr: {unifrm: [1, 2]}}}": [
        "invalid_value sweep.random.fields.lr",
        "unknown_key sweep.random.fields.lr.unifrm",
    ],
    "random: {count: 2, fields: {lr: {uniform: [2, 1]}}}": ["invalid_value sweep.random.fields.lr"],
    "random: {count: 2, fields: {lr: {loguniform: [0, 1]}}}": ["invalid_value sweep.random.fields.lr"],
    "random: {count: 2, fields: {lr: {uniform: [0, 1], choice: [1]}}}": ["invalid_value sweep.random.fields.lr"],
    "random: {count: 2, fields: {lr: {uniform: [-2, -1]}}}": ["out_of_range optimizer.lr"],
    "random: {count: 2, fields: {lr: , mbs: {choice: [1]}}}": ["wrong_type lr"],
    "random: {count: 0, fields: {lr: {uniform: [0, 1]}}}": ["out_of_range sweep.random.count"],
    "grdi: {lr: [1]}": ["unknown_key sweep.grdi"],
    "goal: max": ["nothing_to_vary sweep"],
    "": ["nothing_to_vary sweep"],
    "grid: {lr: [1]}\nwhen: tpp < 3": ["unknown_key sweep.when"],
    "grid: {lr: [1]}\nwhen: [tp < 3, 'tp <']": ["condition_syntax sweep.when"],
    "grid: {lr: [1]}\nwhen: vp > 3": ["condition_failed sweep.when"],
    "grid: {lr: [1]}\nwhen: model > 3": ["condition_failed sweep.when"],
    "grid: {lr: [1]}\nwhen: eval('1')": ["condition_syntax sweep.when"],
    "grid: {lr: [1e-3]}\nbatch: {}": ["unknown_key sweep.batch"],
    "grid: {runtime.seed: [" + "1," * 400 + "], lr: [" + "1," * 400 + "]}": ["too_many_cells sweep"],
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_told(load: Load, text: str) -> None:
    assert codes(problems_of(lambda: load(text))) == WRONG[text]


def test_values_that_are_wrong_are_something_to_vary(load: Load) -> None:
    assert len(problems_of(lambda: load("zip: {lr: [1, 2], mbs: [1]}"))) == 1


def test_a_base_that_is_not_there_is_called_so(load: Load, folder: Path) -> None:
    (folder / "job.yaml").unlink()
    assert codes(problems_of(lambda: load("grid: {lr: [1, 2]}"))) == ["file_not_found base"]


def test_everything_wrong_is_told_at_once(load: Load, folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB.replace("num_layers: 4", "num_layers: four") + "modl: 3\n")
    with pytest.raises(SpecError) as caught:
        load("grid: {lrr: [1], tp: [two]}\nwhen: tp <")
    places = [str(problem.location) for problem in caught.value.problems]
    assert places == ["job.yaml:2:9", "job.yaml:10:1", "sweep.yaml:2:8", "sweep.yaml:2:23", "sweep.yaml:3:1"]


def test_what_the_base_lacks_a_sweep_may_give(load: Load, folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB.replace("optimizer: {lr: 1e-3}\n", ""))
    assert len(load("grid: {lr: [1, 2]}").cells.cells) == 2
    assert codes(problems_of(lambda: load("grid: {mbs: [1, 2]}"))) == ["missing_key optimizer"]


scalars = st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=12)
keys = st.sampled_from(["lr", "tp", "mbs", "model", "model.preset", "data.blend", "launch.env.A", "name", "x", "grid"])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
sections = st.fixed_dictionaries(
    {},
    optional={
        "grid": st.dictionaries(keys, values, max_size=3) | values,
        "zip": st.dictionaries(keys, values, max_size=3) | values,
        "list": st.lists(st.dictionaries(keys, values, max_size=3), max_size=3) | values,
        "random": st.fixed_dictionaries(
            {"count": st.integers(0, 5), "fields": st.dictionaries(keys, values, max_size=2)}
        )
        | values,
        "when": values | st.sampled_from(["tp < 3", "lr * tp > gbs", "model == 1"]),
        "name": values,
        "goal": values,
    },
)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(section=sections)
def test_no_sweep_gives_a_traceback(section: dict[str, Any], folder: Path) -> None:
    path = folder / "any.yaml"
    path.write_text(JOB + "sweep: " + json.dumps(section) + "\n")
    try:
        loaded = load_sweep([path])
    except UserError as error:
        said = str(error)
    else:
        said = f"{len(loaded.cells.cells)} cells"
        check(loaded)
    assert said


def check(loaded: LoadedSweep) -> None:
    for cell in loaded.cells.cells:
        assert cell.id == cell.job.config_hash
    assert all(cell.reason for cell in loaded.cells.pruned)
