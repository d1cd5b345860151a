"""The command line: one file per command, one error boundary in main.py.

A command is a file in the folder of its help panel, with a function `command` or a Typer group `app`, and a row in the
table of `cli.main`. It is imported only when it is typed. Its docstring ends in an `Example:` block (after a `\\b`
line). `--json` prints one JSON document on standard output, also for an error: `{"error", "message", "exit_code"}`, and
for an invalid spec `"problems": [{"message", "path", "hint", "source", "line", "column"}]`.

Errors are raised, never printed: `cli.main` turns them into a message and an exit code. `typer.Exit(code)` ends a
command early. If something fails after a command has results (`bench`, `tune --measure`, `calibrate`, `evaluate`), it
prints the results as usual; then `cli.common.end_with(error)` prints the error on standard error and exits with its
code. If the JSON is an object, its `failure` contains the error (null if nothing failed), and a `path` that was not
written is null.
"""

from orchestrator.safe_path import leave_working_directory

leave_working_directory()  # before anything is imported that could be found there
