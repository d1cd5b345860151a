"""Python's safe path (`python -P`): our programs do not import from the working directory, which may contain anything.

A downloaded model, a checkpoint or a source tree is a folder that people change into. What lies there by the name of a
library is not the library. The one exception is a training whose spec names code of the user's own, and there only the
ranks (`code_folders`).

Nothing is imported here but what Python itself has loaded when it starts: this runs before anything else.
"""

import os
import sys

RUNTIME_MODULE = "orchestrator.runtime"
"""The training program."""
CODE_PATH_VARIABLE = "ORCHESTRATOR_CODE_PATH"
"""The relative entries of PYTHONPATH, which `leave_working_directory` takes out: for the user's own code alone."""
_SEARCHED = ("PYTHONPATH", "PATH", "LD_LIBRARY_PATH")


def module_command(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """The command line of a program of ours. `python`: another one than this process's."""
    return [python or sys.executable, "-P", "-m", module, *arguments]


def isolated_command(path: str, *arguments: str) -> list[str]:
    """The command line of a file of ours that imports the standard library alone: Python starts in half the time."""
    return [sys.executable, "-I", "-S", path, *arguments]


def leave_working_directory() -> None:
    """Search the working directory neither for modules, nor for programs, nor for shared libraries, in this process and
    in those that it starts. An empty entry of a search path means that directory, and `PATH=$PATH:/opt/tools` is often
    written where nothing is set; a relative entry leads below it.
    """
    given = os.environ.get("PYTHONPATH", "")
    for name in _SEARCHED:
        left = os.pathsep.join(filter(os.path.isabs, os.environ.pop(name, "").split(os.pathsep)))
        if left:  # one that is there and empty means the working directory, too
            os.environ[name] = left
    relative = [entry for entry in given.split(os.pathsep) if not os.path.isabs(entry)] if given else []
    if relative:
        os.environ[CODE_PATH_VARIABLE] = os.pathsep.join(relative)
    # Python has made them absolute. An editable installation of this package may lie in the working directory as well.
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for folder in {"", *map(os.path.abspath, relative)} & set(sys.path):
        sys.path.remove(folder)
        if folder == own:
            sys.path.append(folder)
            # A checkout that is not installed has to be found by the programs that are started, too.
            os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), own])


def code_folders() -> list[str]:
    """Where code of the user's own is looked for beside Python's search path: the working directory, and what the
    relative entries of their PYTHONPATH name.
    """
    relative = os.environ.get(CODE_PATH_VARIABLE, "").split(os.pathsep)
    return list(dict.fromkeys([os.getcwd(), *map(os.path.abspath, relative)]))
