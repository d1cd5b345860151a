"""Limits and periods of the product that tests make shorter: one name for each, and where it stands."""

from __future__ import annotations

import importlib

import pytest

PLACES = {
    "chunks_of_a_loss": ("orchestrator.kernel_selection.chunked_loss", "CHUNKS"),
    "cublas_workspace": ("orchestrator.planning.memory.stages", "_CUBLAS_WORKSPACE"),
    "between_job_steps": ("orchestrator.executors.slurm.supervisor.supervisor", "SECONDS_BETWEEN_STEPS"),
    "to_send_the_end": ("orchestrator.executors.slurm.supervisor.job_end", "SECONDS_TO_SEND_THE_END"),
    "between_requeues": ("orchestrator.executors.slurm.requeue_command", "SECONDS_BETWEEN_ATTEMPTS"),
    "to_insist_on_a_requeue": ("orchestrator.executors.slurm.requeue_command", "SECONDS_TO_INSIST"),
    "to_submit": ("orchestrator.executors.slurm.client", "SUBMIT_SECONDS"),
    "for_the_launcher_to_stop": ("orchestrator.api.starts.stopping", "SECONDS_FOR_THE_LAUNCHER"),
    "between_questions_about_a_job": ("orchestrator.api.starts.stopping", "SECONDS_BETWEEN_QUESTIONS"),
    "to_start_in_the_background": ("orchestrator.launch.local.background", "SECONDS_TO_START"),
    "between_looks_at_a_sweep": ("orchestrator.cli.runs.sweeps.tables", "SECONDS_BETWEEN_LOOKS"),
    "between_lines_about_a_sweep": ("orchestrator.cli.runs.sweeps.tables", "SECONDS_BETWEEN_LINES"),
    "to_answer_a_search": ("orchestrator.dashboard.pages.run_logs", "SECONDS_OF_WAITING"),
    "chunk_of_an_index": ("orchestrator.data.damage", "CHUNK"),
    "bytes_of_indices_read": ("orchestrator.data.source_survey", "LOOKED_THROUGH"),
    "megabyte": ("orchestrator.data.tokenization", "MEGABYTE"),
    "chunk_of_text": ("orchestrator.data.tokenization", "CHUNK_BYTES"),
    "piece_of_an_array": ("orchestrator.data.input.json_array", "PIECE"),
    "longest_record": ("orchestrator.data.input.sources", "LONGEST_RECORD"),
    "longest_example": ("orchestrator.data.tasks.examples", "LONGEST_RECORD"),
    "words_kept": ("orchestrator.data.tokenizers.token_cache", "MOST_WORDS"),
    "to_render": ("orchestrator.data.chat.rendering", "SECONDS"),
    "memory_to_render": ("orchestrator.data.chat.rendering", "MEMORY"),
    "characters_rendered": ("orchestrator.data.chat.rendering", "CHARACTERS"),
    "images_kept": ("orchestrator.inference.__main__", "HELD"),
    "pixels_of_pillow": ("PIL.Image", "MAX_IMAGE_PIXELS"),
    "to_send_a_request": ("orchestrator.http.server", "REQUEST_SECONDS"),
    "to_send_a_body": ("orchestrator.http.server", "BODY_SECONDS"),
    "to_read_an_answer": ("orchestrator.http.server", "READING_SECONDS"),
    "bytes_of_code": ("orchestrator.launch.code.snapshot", "MAX_BYTES"),
    "files_of_code": ("orchestrator.launch.code.snapshot", "MAX_FILES"),
    "between_looks_at_runs": ("orchestrator.review.index", "SECONDS_BETWEEN_LOOKS"),
    "between_looks_at_runs_at_rest": ("orchestrator.review.index", "SECONDS_BETWEEN_SECOND_LOOKS"),
    "bytes_of_series": ("orchestrator.review.index", "SERIES_BYTES"),
    "to_end_a_search": ("orchestrator.review.logs.log_search", "SECONDS_OF_GRACE"),
    "bytes_of_evidence": ("orchestrator.review.logs.pages", "MOST_EVIDENCE_BYTES"),
    "attempts_at_the_end": ("orchestrator.tracking.follower_loop", "LAST_ATTEMPTS"),
    "enough_to_measure": ("orchestrator.tuning.trial", "ENOUGH_SECONDS"),
}
"""Seconds, bytes and counts."""


def set_limits(monkeypatch: pytest.MonkeyPatch, **limits: float | None) -> None:
    """Set some of them, until the test is over."""
    for name, limit in limits.items():
        module, constant = PLACES[name]
        monkeypatch.setattr(importlib.import_module(module), constant, limit)
