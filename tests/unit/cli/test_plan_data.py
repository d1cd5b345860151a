"""What `orchestrator plan` says of a job's data, and what it draws."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from support.indexed_files import write_indexed

JOB = """\
name: blended
model: {preset: gpt-tiny, seq_length: 32}
parallelism: {pipeline_model_parallel_size: 2, data_parallel_size: 2}
batch: {micro_batch_size: 2, global_batch_size: 16}
data:
  blend: [3, books, 1, web]
  test: [web]
  split: "9,1,0"
evaluation: {eval_interval: 25, eval_iters: 2}
optimizer: {lr: 1e-3}
schedule: {train_iters: 60}
launch: {gpu: H100}
"""


def test_every_source_and_the_drawings(orchestrator: Any, tmp_path: Path) -> None:
    write_indexed(tmp_path / "books", [50] * 100)
    write_indexed(tmp_path / "web", [50] * 1000)
    (tmp_path / "job.yaml").write_text(JOB)
    finished = orchestrator("plan", "job.yaml", "--html", "plan.html", "--svg", "drawings")
    assert finished.code == 0, finished.out + finished.err
    lines = [line.split() for line in finished.out.splitlines()]
    assert ["train", "books", "75.0%", "720", "23,040", "4,500", "90", "5.12", "12"] in lines
    assert ["train", "web", "25.0%", "240", "7,680", "45,000", "900", "0.17"] in lines
    assert ["validation,", "3", "times", "books", "75.0%", "24", "768", "500", "10", "1.54"] in lines
    assert ["test", "(not", "read)", "web", "100.0%", "0", "0", "50,000", "1,000"] in lines
    assert "books is read 5.12 times (again from step 12 on, with its epochs shuffled together)" in finished.out
    page = (tmp_path / "plan.html").read_text()
    assert "Plan of blended" in page
    assert "16 = micro 2 x 4 micro-batches x DP 2" in page
    # The page is what is sent to others: the verdict with its warnings and every table that it does not draw are in it.
    text = html.unescape(page)
    for line in finished.out[finished.out.index("Verdict:") :].splitlines():
        assert line in text or line.startswith("drawn:")
    for title in ("Memory of a rank", "Time of a step", "Data blend"):
        assert f'aria-label="{title}' in page
    assert '<td>train</td><td>books</td><td class="right">75.0%</td><td class="right">720</td>' in page
    assert page.count(" of micro-batch ") == 2 * 2 * 4
    assert {path.name for path in (tmp_path / "drawings").iterdir()} == {"ranks.svg", "timeline.svg"}
    refused = orchestrator("plan", "job.yaml", "--html", "no/plan.html")
    assert refused.code == 2
    assert "cannot write no/plan.html: No such file or directory" in refused.err
