"""How busy the machines of a run were, from logs of any length and condition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.review.charts.machines import MEASURES, machine_figure, measures_of, nodes_of
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.records.machine_use import MachineUse

START = 1_700_000_000.0


def write(run: RunDir, node: int, host: str, values: list[dict[str, Any]], seconds: float = 10.0) -> Path:
    """The log of a node with a measurement every so many seconds."""
    run.system.mkdir(exist_ok=True)
    path = run.system / f"node-{node:05d}.jsonl"
    lines = (
        json.dumps({"time": START + number * seconds, "iteration": number, "host": host, "values": each})
        for number, each in enumerate(values)
    )
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def names(run: RunDir, measure: str) -> list[str]:
    return [trace["name"] for trace in machine_figure(run, MEASURES[measure])["data"]]


def test_what_a_node_measures_of_itself_is_drawn(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    here = MachineUse(tmp_path)
    write(run, 0, "node1", [dict(here.measure()) for _ in range(3)])
    assert [measure.name for measure in measures_of(run)] == ["cpu", "memory", "disk", "received", "sent"]
    (node,) = nodes_of(run)
    assert (node.number, node.host, node.time, node.gpus) == (0, "node1", START + 20, 0)
    assert set(node.values) == {"cpu", "memory", "disk"}
    for measure in measures_of(run):
        (trace,) = machine_figure(run, measure)["data"]
        assert len(trace["x"]) == (2 if measure.is_sum else 3)


def test_a_pause_is_a_gap_on_an_axis_that_suits_its_length(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    path = write(run, 0, "a", [{"cpu_utilization_percentage": value} for value in (1.0, 2.0, 3.0, 4.0, 5.0)])
    first, second = (START + 40 + wait for wait in (100, 110))
    with open(path, "a") as log:
        for time in (first, second):
            values = {"cpu_utilization_percentage": 6.0}
            log.write(json.dumps({"time": time, "iteration": 9, "host": "a", "values": values}) + "\n")
    figure = machine_figure(run, MEASURES["cpu"])
    [trace] = figure["data"]
    assert trace["y"] == [1.0, 2.0, 3.0, 4.0, 5.0, None, 6.0, 6.0]
    assert trace["x"][-1] == pytest.approx(150 / 60)
    assert figure["layout"]["xaxis"]["title"]["text"] == "minutes since the first measurement"
    write(run, 0, "a", [{"cpu_utilization_percentage": 1.0}] * 3, seconds=3600.0)
    figure = machine_figure(run, MEASURES["cpu"])
    assert figure["data"][0]["x"] == [0, 1, 2]
    assert figure["layout"]["xaxis"]["title"]["text"] == "hours since the first measurement"


def test_gpus_of_one_machine_each_and_of_several_together(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 0, "a", [{"gpu_utilization_percentage": [90.0, None]}, {"gpu_utilization_percentage": [80.0, 60.0]}])
    assert names(run, "gpu") == ["GPU 0", "GPU 1"]
    write(run, 1, "b", [{"gpu_utilization_percentage": [50.0, 70.0]}])
    found = machine_figure(run, MEASURES["gpu"])["data"]
    assert [(trace["name"], trace["y"]) for trace in found] == [("0 a", [90.0, 70.0]), ("1 b", [60.0])]
    assert [node.values["gpu"] for node in nodes_of(run)] == [70.0, 60.0]


def test_traffic_is_what_was_added_and_a_new_start_counts_anew(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 0, "a", [{"network_receive_megabytes": value} for value in (0.0, 20.0, 60.0, 5.0, 25.0)])
    (trace,) = machine_figure(run, MEASURES["received"])["data"]
    assert trace["y"] == [2.0, 4.0, 2.0]
    assert trace["x"] == pytest.approx([10 / 60, 20 / 60, 40 / 60])


def test_a_long_log_is_read_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    count = 30_000
    path = write(run, 0, "a", [{"cpu_utilization_percentage": float(number % 100)} for number in range(count)])
    assert path.stat().st_size > 2 << 20
    (trace,) = machine_figure(run, MEASURES["cpu"])["data"]
    assert 500 < len(trace["x"]) <= 1000
    assert trace["x"] == sorted(trace["x"])
    assert trace["x"][0] == 0.0
    assert trace["x"][-1] == pytest.approx((count - 1) * 10 / 3600)


def test_torn_and_foreign_lines_and_nothing_at_all(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert nodes_of(run) == []
    assert measures_of(run) == []
    assert machine_figure(run, MEASURES["cpu"])["data"] == []
    path = write(run, 0, "a", [{"cpu_utilization_percentage": 50.0}])
    path.write_bytes(b'nonsense\n{"time": NaN, "values": 3}\n' + path.read_bytes() + b'{"time": 17')
    assert names(run, "cpu") == ["0 a"]
    (node,) = nodes_of(run)
    assert node.values == {"cpu": 50.0}
