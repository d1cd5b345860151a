"""Importing the Python interface takes about as long as importing what it checks specs with, and what takes long to
import is imported where somebody needs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from support.shipped import SHIPPED

SECONDS_OF_IMPORTS = """
import os, sys, time
modules, rounds = sys.argv[2:], int(sys.argv[1])
seconds = {module: [] for module in modules}
for _ in range(rounds):
    for module in modules:
        reading, writing = os.pipe()
        if os.fork() == 0:
            before = time.process_time()
            __import__(module)
            os.write(writing, str(time.process_time() - before).encode())
            os._exit(0)
        os.close(writing)
        with open(reading) as said:
            seconds[module].append(float(said.read()))
        os.wait()
import json
print(json.dumps(seconds))
"""
"""Each import in a process of its own, forked from one that has imported neither module, nor what both import."""
ROUNDS, MOST_TIMES = 5, 4


def test_the_interface_is_imported_in_twice_the_time_of_pydantic_at_most() -> None:
    """By processor time, in turns, some rounds until it is so; the least of each counts, as other work can only add to
    it.
    """
    seconds: dict[str, list[float]] = {"orchestrator": [], "pydantic": []}
    for _ in range(MOST_TIMES):
        for module, found in _said(SECONDS_OF_IMPORTS, str(ROUNDS), *seconds).items():
            seconds[module] += found
        if min(seconds["orchestrator"]) <= 2 * min(seconds["pydantic"]):
            return
    pytest.fail(str(seconds))


_LOADED = """
import json, sys
import orchestrator
for name in sys.argv[1:]:
    getattr(orchestrator, name)
print(json.dumps(sorted(sys.modules)))
"""


def test_the_interface_loads_nothing_that_only_some_jobs_need() -> None:
    """What draws on a terminal, what renders scripts, and pydantic's search for plugins in all that is installed."""
    loaded = _said(_LOADED, "load_job", "parse_job", "runs", "find_run", "PlannedJob")
    assert "orchestrator.api.jobs" in loaded
    assert {"rich", "jinja2", "importlib.metadata", "typer"} & set(loaded) == set()


FAMILIES = "orchestrator.conversion.hugging_face.families"
_LOADED_BY = """
import contextlib, io, json, sys
from orchestrator.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(sys.argv[1:]) == 0
print(json.dumps(sorted(sys.modules)))
"""


def test_a_job_is_checked_without_the_tables_of_other_kinds_of_models() -> None:
    """What it can be exported as is looked for among families of its kind, up to the first that it is of."""
    loaded = _said(_LOADED_BY, "validate", str(SHIPPED["gpt-345m"]))
    folder = f"{FAMILIES}."
    found = {name.removeprefix(folder) for name in loaded if name.startswith(folder)}
    others = ("bert", "t5", "hybrids", "image_models", "parallel_residual", "gemma", "mixture_of_experts.deepseek")
    assert "gpt2" in found
    assert found & set(others) == set()
    assert "orchestrator.conversion.hugging_face.config_json" not in loaded


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_calls_deep_in_imports_map_no_memory(command: str) -> None:
    """See orchestrator/api/__init__.py: where they did, it was 13,400 page faults, and 3,600 of the imports alone."""
    imports = _page_faults("-c", "import pydantic, typer, yaml")
    assert _page_faults("-m", "orchestrator", command, str(SHIPPED["gpt-345m"])) < 3 * imports


def _page_faults(*arguments: str) -> int:
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_minflt


_WORK = """
import contextlib, gc, io, json, sys, tokenize
done = {"collections": 0, "tokenized": 0}

def collecting(phase, info):
    done["collections"] += phase == "start" and "typer" in sys.modules and not commands

def counted(function):
    def call(*arguments):
        done["tokenized"] += 1
        return function(*arguments)
    return call

commands = []
gc.callbacks.append(collecting)
tokenize.tokenize = counted(tokenize.tokenize)
tokenize.generate_tokens = counted(tokenize.generate_tokens)
from orchestrator.cli.main import main
commands.append(main)
with contextlib.redirect_stdout(io.StringIO()):
    done["code"] = main(sys.argv[1:])
print(json.dumps(done))
"""


def test_a_job_is_checked_without_needless_work() -> None:
    """No garbage is looked for among what every command imports, and no source is tokenized to find the parameters of
    what makes a field's default.
    """
    assert _said(_WORK, "validate", str(SHIPPED["gpt-345m"])) == {"collections": 0, "tokenized": 0, "code": 0}


def _said(program: str, *arguments: str) -> Any:
    command = [sys.executable, "-c", program, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
