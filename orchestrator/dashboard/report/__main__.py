"""`python -m orchestrator.dashboard.report RUN_DIR… --output FILE`: write a report and say where it is."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.dashboard.report.building import ReportRequest, build
from orchestrator.dashboard.report.html import to_html
from orchestrator.dashboard.report.markdown import to_markdown
from orchestrator.errors import OrchestratorError
from orchestrator.quantities import disk_size
from orchestrator.run_directory.rundir import RunDir, write_atomically, write_refusal


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one report. The command has checked the arguments."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.dashboard.report")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--output", required=True, help="a file that ends in .html or .md; - prints Markdown")
    parser.add_argument("--title", default="")
    parser.add_argument("--note", default="")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    try:
        report = build(ReportRequest(tuple(RunDir(path) for path in asked.runs), asked.title, asked.note))
        if asked.output == "-":
            sys.stdout.write(to_markdown(report))
            return 0
        path = Path(asked.output)
        is_markdown = path.name.endswith((".md", ".markdown"))
        text = to_markdown(report) if is_markdown else to_html(report, light=asked.light)
        content = text.encode("utf-8", "backslashreplace")
        write_atomically(path, content)
    except (OrchestratorError, OSError) as raised:
        error = (write_refusal(raised) or raised) if isinstance(raised, OSError) else raised
        code = error.exit_code if isinstance(error, OrchestratorError) else 1
        said = {"error": type(error).__name__, "message": str(error), "exit_code": code}
        print(
            json.dumps(said, indent=2) if asked.json else f"error: {error}",
            file=sys.stdout if asked.json else sys.stderr,
        )
        return code
    if asked.json:
        print(json.dumps({"path": str(path.absolute()), "bytes": len(content), "runs": len(asked.runs)}, indent=2))
    else:
        print(f"wrote {path}: {disk_size(len(content))}, {len(asked.runs)} run{'s' * (len(asked.runs) != 1)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
