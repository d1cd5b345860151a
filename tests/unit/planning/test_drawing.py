"""Drawings: what is in them, that they are whole documents, and that their colours can be told apart."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.refusals import fill_the_disk
from support.refused import refused

from orchestrator.planning.drawing import (
    PageText,
    Rows,
    bubble_share,
    page_html,
    ranks_svg,
    timeline_svg,
    unit_timeline,
    write_drawings,
    write_page,
)
from orchestrator.planning.drawing.colours import contrast, pass_colour, stage_colour
from orchestrator.planning.layout.pipeline import timeline
from orchestrator.planning.layout.topology import Topology, topology

SVG = "{http://www.w3.org/2000/svg}"
_KINDS = ("forward", "backward")
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def layout(make_job: Any) -> Topology:
    """Two nodes of six GPUs: TP 4, so that a tensor group lies on both."""
    degrees = {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 3}
    return topology(make_job(model={"num_layers": 12}, parallelism=degrees, launch={"nodes": 2}))


@pytest.fixture(scope="module")
def largest(make_job: Any) -> tuple[Topology, int]:
    """The 462B row of Megatron-LM's table, 6,144 GPUs, with as many chunks as can be; and its micro-batches."""
    degrees = {
        "tensor_model_parallel_size": 8,
        "pipeline_model_parallel_size": 16,
        "virtual_pipeline_model_parallel_size": 7,
        "data_parallel_size": 48,
    }
    batch = {"global_batch_size": 3072, "micro_batch_size": 1}
    job = make_job(model={"num_layers": 112}, parallelism=degrees, batch=batch, launch={"nodes": 768})
    return topology(job), job.num_micro_batches


def titles(svg: str, tag: str) -> Iterator[tuple[str, ElementTree.Element]]:
    """What elements of a kind say when a pointer rests on them."""
    for element in ElementTree.fromstring(svg).iter(SVG + tag):
        title = element.find(SVG + "title")
        if title is not None:
            yield title.text or "", element


def test_every_rank_is_drawn_on_its_node(layout: Topology) -> None:
    svg = ranks_svg(layout)
    said = [text for text, _ in titles(svg, "g")]
    assert [text for text in said if text.startswith("Node")] == ["Node 0: ranks 0 to 5", "Node 1: ranks 6 to 11"]
    assert "rank 9: tp 1, cp 0, dp 0, pp 2; node 1, GPU 3; layers 8-11" in said
    assert sum(text.startswith("rank ") for text in said) == 12
    fills = {next(element.iter(SVG + "rect")).get("fill") for text, element in titles(svg, "g") if "pp 1;" in text}
    assert fills == {stage_colour(1, 3).fill}


def test_tensor_groups_are_outlined(layout: Topology) -> None:
    outlines = Counter(
        (text, element.get("class")) for text, element in titles(ranks_svg(layout), "rect") if "tensor" in text
    )
    assert outlines == {
        ("tensor group 0", "outline"): 1,
        ("tensor group 1, which has ranks on other nodes too", "outline cut"): 2,
        ("tensor group 2", "outline"): 2,  # its four GPUs are on two lines of the box
    }


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(1, 1, 3), (4, 1, 8), (4, 2, 8)])
def test_every_pass_is_drawn_where_it_runs(make_job: Any, stages: int, chunks: int, micro_batches: int) -> None:
    degrees = {
        "pipeline_model_parallel_size": stages,
        "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
    }
    made = topology(make_job(model={"num_layers": 8}, parallelism=degrees))
    step = unit_timeline(made, micro_batches)
    svg = timeline_svg(step, in_seconds=False)
    boxes = [(text, element) for text, element in titles(svg, "rect") if " of micro-batch " in text]
    heights = {kind: {box.get("height") for text, box in boxes if text.startswith(kind)} for kind in _KINDS}
    assert [len(found) for found in heights.values()] == [1, 1]
    assert heights["forward"] != heights["backward"], "colours alone are not enough"
    spans = [span for row in step.spans for span in row]
    assert len(boxes) == len(spans) == 2 * stages * chunks * micro_batches
    left = float(boxes[0][1].attrib["x"])
    scale = (float(boxes[-1][1].attrib["x"]) - left) / spans[-1].start
    for (text, box), span in zip(boxes, spans, strict=True):
        assert text.startswith("forward" if span.what.forward else "backward")
        assert f"micro-batch {span.what.micro_batch}" in text
        assert float(box.attrib["x"]) == pytest.approx(left + span.start * scale, abs=0.05)
        assert float(box.attrib["width"]) == pytest.approx((span.end - span.start) * scale - 1, abs=0.05)
    expected = (stages - 1) / (chunks * micro_batches + stages - 1)
    assert bubble_share(step) == pytest.approx(expected)
    assert f"bubble, {expected:.1%} of the step on average" in svg


def test_times_that_are_known_have_a_unit(make_job: Any) -> None:
    step = timeline([[0.010], [0.010]], [[0.020], [0.020]], 4)
    svg = timeline_svg(step, in_seconds=True)
    assert "forward of micro-batch 1: 10 ms to 20 ms" in svg
    assert "1F1B: 4 micro-batches through 2 stages in 150 ms, 20.0% of it bubble on average" in svg
    assert "stage 1 waits 30 ms, 20.0% of the step" in svg
    assert "4 micro-batches through 1 stage in 12 s" in timeline_svg(timeline([[1.0]], [[2.0]], 4), in_seconds=True)


def test_a_long_step_is_drawn_at_its_beginning_and_end(largest: tuple[Topology, int]) -> None:
    layout, micro_batches = largest
    svg = timeline_svg(unit_timeline(layout, micro_batches), in_seconds=False)
    width = float(ElementTree.fromstring(svg).attrib["width"])
    said = [text for text, _ in titles(svg, "rect") if " of micro-batch " in text]
    assert width < 6000
    assert "· · ·" in svg
    assert any(text.startswith("forward of micro-batch 0, chunk 0: 0 to") for text in said)
    assert any(text.startswith("backward of micro-batch 63, chunk 0:") for text in said)
    assert not any(text.startswith("forward of micro-batch 40, chunk 3:") for text in said)


def test_passes_of_very_different_lengths_are_drawn(make_job: Any) -> None:
    svg = timeline_svg(timeline([[1e-6], [1.0]], [[2e-6], [2.0]], 8), in_seconds=True)
    assert float(ElementTree.fromstring(svg).attrib["width"]) < 6000


def test_the_page_is_one_small_file(largest: tuple[Topology, int]) -> None:
    layout, micro_batches = largest
    page = page_html(
        "462B", PageText((("layout", "TP 8"),)), layout, unit_timeline(layout, micro_batches), in_seconds=False
    )
    assert len(page.encode()) < 1_000_000
    assert not re.search(r"(src|href)=|@import|url\((?!#)", page)
    assert page.replace("http://www.w3.org/2000/svg", "").count("http") == 0
    assert "6,144 processes on 768 nodes, 16 of them drawn: those of the first replica" in page
    assert "384 of 384 groups cross nodes, 16 nodes each" in page
    assert "15 | 31 | 47 | 63 | 79 | 95 | 111" in page
    assert page.count("<svg xmlns") == 17
    assert "prefers-color-scheme:dark" in page
    # Without its doctype, and with its two void elements closed, it is XML: no tag is left open.
    ElementTree.fromstring(re.sub(r"(<meta [^>]*)>", r"\1/>", page.removeprefix("<!doctype html>")))


def test_names_are_text(layout: Topology) -> None:
    step = unit_timeline(layout, 4)
    page = page_html(
        "<b>&",
        PageText((("data", EVIL),), (f"  warning  {EVIL}",), (Rows(EVIL, (EVIL,), ((EVIL,),)),)),
        layout,
        step,
        in_seconds=False,
    )
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 6
    assert "Plan of &lt;b&gt;&amp;" in page


def test_writing(layout: Topology, tmp_path: Path) -> None:
    step = unit_timeline(layout, 4)
    write_page(tmp_path / "plan.html", "a", PageText(), layout, step, in_seconds=False)
    assert (tmp_path / "plan.html").read_text().startswith("<!doctype html>")
    for path in write_drawings(tmp_path / "new" / "folder", layout, step, in_seconds=False):
        assert ElementTree.fromstring(path.read_text()).tag == SVG + "svg"
    with refused("unwritable_output", "no/plan.html"):
        write_page(tmp_path / "no" / "plan.html", "a", PageText(), layout, step, in_seconds=False)
    with refused("unwritable_folder", "plan.html/x"):
        write_drawings(tmp_path / "plan.html" / "x", layout, step, in_seconds=False)


def test_on_a_full_disk_the_page_before_stays(
    layout: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, step = tmp_path / "plan.html", unit_timeline(layout, 4)
    write_page(page, "before", PageText(), layout, step, in_seconds=False)
    before = page.read_text()
    fill_the_disk(monkeypatch)
    with refused("unwritable_output", "plan.html", os.strerror(errno.ENOSPC)):
        write_page(page, "after", PageText(), layout, step, in_seconds=False)
    assert page.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]


def test_a_pipe_takes_a_page(layout: Topology, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reading:
        read = reading.submit(pipe.read_text)
        write_page(pipe, "a", PageText(), layout, unit_timeline(layout, 4), in_seconds=False)
        assert read.result(timeout=30).startswith("<!doctype html>")


# What dichromats see: Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def seen(colour: str, vision: str) -> tuple[float, ...]:
    """A colour as it is seen, in sRGB from 0 to 1."""
    srgb = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in srgb]
    mixed = [min(max(sum(a * b for a, b in zip(row, linear, strict=True)), 0), 1) for row in VISION[vision]]
    return tuple(12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055 for part in mixed)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_stages_are_told_apart_by_every_eye(vision: str, stages: int) -> None:
    colours = [seen(stage_colour(stage, stages).fill, vision) for stage in range(stages)]
    for number, one in enumerate(colours):
        for other in colours[:number]:
            assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 0.1
    forward, backward = (seen(pass_colour(kind, 0, 1).fill, vision) for kind in (True, False))
    assert sum((a - b) ** 2 for a, b in zip(forward, backward, strict=True)) ** 0.5 > 0.3


@pytest.mark.parametrize("count", [1, 2, 8, 9, 16, 64])
def test_numbers_can_be_read_on_their_colours(count: int) -> None:
    colours = [stage_colour(number, count) for number in range(count)]
    colours += [pass_colour(forward, number, count) for number in range(count) for forward in (True, False)]
    assert min(contrast(*colour) for colour in colours) >= 4.5
    assert len({colour.fill for colour in colours[:count]}) == count
