"""Someone who answers the questions of `orchestrator init`."""

from __future__ import annotations

from orchestrator.cli.jobs.job_files.questionnaire import QUESTIONS

TOKENIZER = '{"added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}'


class Person:
    """Answers questions by their text; takes the default for the rest."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = {
            question.path: list(answers.get(question.path.replace(".", "__"), [])) for question in QUESTIONS
        }
        self.asked: list[str] = []
        self.told: list[str] = []

    def read(self, text: str, default: str) -> str:
        [question] = [question for question in QUESTIONS if question.text == text]
        self.asked.append(question.path)
        waiting = self.answers[question.path]
        return waiting.pop(0) if waiting else default

    def tell(self, reason: str) -> None:
        self.told.append(reason)
