"""The command line: one file per command, one error boundary in main.py."""

from orchestrator.safe_path import leave_working_directory

leave_working_directory()  # before anything is imported that could be found there
