"""Tasks of lm-evaluation-harness (Gao et al. 2021), asked of the network under its own layout.

The harness runs on rank 0 alone, reads local data and makes the metrics; the network answers its three kinds of
requests as the harness's own `hf` model does: contexts that are too long lose their beginning, texts are scored in
windows.
"""

from __future__ import annotations

import orchestrator.evaluation.offline  # noqa: F401 (sets variables that lm-eval's libraries read when imported)

# isort: split
import contextlib
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from lm_eval import evaluator
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from orchestrator.errors import OrchestratorError, UserError
from orchestrator.evaluation.base import Prompt, ScoredTokens, TaskContext, TaskNetwork, TaskResult
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest
from orchestrator.run_directory.results.record import Measure, key_of

_Answer = TypeVar("_Answer")

_SEED = 1234
_BOOTSTRAP_ITERATIONS = 1000
_MOST_NEW_TOKENS = 256
"""Where a task does not say, as the `hf` model has it."""
_GENERATION_OPTIONS = {"temperature", "top_k", "top_p", "repetition_penalty"}
_STDERR = "_stderr"


class Harness:
    """A task or a group of tasks."""

    libraries: Sequence[str] = ("lm-eval",)

    def __init__(self, asked: EvaluationRequest, setting: TaskContext) -> None:
        self._asked, self._setting, self._prefix = asked, setting, setting.prefix(asked)
        logging.getLogger("datasets").setLevel(logging.ERROR)
        with self._explained():
            self._loaded = self._load()
        self.contents = key_of(*(facts for _, task in sorted(self._tasks.items()) for facts in _facts(task)))

    @property
    def _tasks(self) -> dict[str, Any]:
        tasks: dict[str, Any] = self._loaded["tasks"]
        return tasks

    def measure(self, work: TaskNetwork) -> TaskResult:
        random.seed(_SEED)
        np.random.seed(_SEED)
        model = Adapter(self._setting, work, self._prefix)
        # What the harness prints is not for who reads our standard output.
        with self._explained(model), contextlib.redirect_stdout(sys.stderr):
            found = evaluator.evaluate(
                lm=model,
                task_dict=self._loaded,
                limit=self._asked.options["limit"],
                bootstrap_iters=_BOOTSTRAP_ITERATIONS,
                log_samples=False,
            )
        counts = {"documents": sum(count["effective"] for count in found["n-samples"].values())}
        return TaskResult(_measures(found), counts)

    def _load(self) -> Any:
        options = self._asked.options
        folders = [Path(folder) for folder in options["include_path"]]
        spec = self._asked.where
        own = TaskManager(include_path=folders, include_defaults=False)
        if not Path(spec).is_file() and spec not in own.all_tasks:
            own = TaskManager(include_path=folders)  # with all that the harness brings, which takes its time
            if spec not in own.all_tasks:
                raise UserError(
                    f"--lm-eval {spec}: there is no such task, and no such YAML file", code="missing_harness_task"
                )
        loaded = own.load([spec])
        for task in loaded["tasks"].values():
            _set_fewshot(task, options["num_fewshot"])
        return loaded

    @contextlib.contextmanager
    def _explained(self, model: Adapter | None = None) -> Iterator[None]:
        """What a task's files make the harness raise, which may be anything, as a person's error. What the network
        raises stays what it is.
        """
        try:
            yield
        except UserError as error:
            named = f"--lm-eval {self._asked.where}: "
            raise UserError(f"{named}{str(error).removeprefix(named)}", code=error.code) from error
        except OrchestratorError:
            raise
        except Exception as error:
            if model is not None and model.waits:
                raise
            kind = type(error).__name__
            said, *_ = str(error).strip().splitlines() or [kind]
            raise UserError(
                f"--lm-eval {self._asked.where}: {kind}: {said} (a task's data must be on this machine: "
                "dataset_path json, and dataset_kwargs with data_files)",
                code="wrong_harness_task",
            ) from error


class Adapter(TemplateLM):
    """The network as the harness wants a model to be."""

    backend = "causal"

    def __init__(self, setting: TaskContext, work: TaskNetwork, prefix: list[int]) -> None:
        """`prefix`: what begins every text, where one is asked for."""
        super().__init__()
        self._tokenizer, self._work, self._prefix = setting.tokenizer, work, prefix
        self.max_length = setting.job.model.positions
        self.waits = False
        """For the network."""

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.eod

    @property
    def prefix_token_id(self) -> int:
        bos = self._tokenizer.bos
        return self.eot_token_id if bos is None else bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Token ids of a text, after what begins every text unless the harness says that it follows another."""
        return [*([] if add_special_tokens is False else self._prefix), *self._tokenizer.encode(string)]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        return [(score.logprob, score.greedy) for score in self._scores("loglikelihood", requests)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text, in windows of which each has as much context as fits."""
        numbered = [
            (number, make_disjoint_window(window))
            for number, request in enumerate(requests)
            for window in get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, 1
            )
        ]
        scores = self._scores("rolling", [(None, *window) for _, window in numbered])
        totals = [0.0] * len(requests)
        for (number, _), score in zip(numbered, scores, strict=True):
            totals[number] += score.logprob
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What follows each context, up to a stop string or the end of a document."""
        times: Counter[str] = Counter()
        prompts = []
        for request in requests:
            prompt = self._prompt(*request.args)
            # Asked for several times, a prompt is drawn from several times.
            prompt.options["seed"] = _SEED + times[key := key_of(vars(prompt))]
            times[key] += 1
            prompts.append(prompt)
        part = f"texts-{key_of([vars(prompt) for prompt in prompts])[:16]}"
        return self._asking(lambda: self._work.texts(part, prompts))

    def _scores(self, part: str, requests: Sequence[tuple[Any, list[int], list[int]]]) -> Any:
        sequences = []
        for said, context, continuation in requests:
            if len(continuation) > self.max_length:
                raise UserError(
                    f"a continuation has {len(continuation)} tokens, and the model {self.max_length} positions: "
                    f"{str(said and said[1])[:60]!r}",
                    code="continuation_too_long",
                )
            tokens = [*context, *continuation][-(self.max_length + 1) :]
            sequences.append(ScoredTokens(tokens, len(tokens) - len(continuation)))
        digest = key_of([(one.tokens, one.first) for one in sequences])
        return self._asking(lambda: self._work.scores(f"{part}-{digest[:16]}", sequences))

    def _asking(self, ask: Callable[[], _Answer]) -> _Answer:
        self.waits = True
        answer = ask()
        self.waits = False
        return answer

    def _prompt(self, context: str, given: Mapping[str, Any]) -> Prompt:
        options = dict(normalize_gen_kwargs(dict(given), _MOST_NEW_TOKENS))
        most, draws = int(options.pop("max_gen_toks")), options.pop("do_sample", False)
        stop = [text for text in options.pop("until") if text]
        if unknown := sorted(set(options) - _GENERATION_OPTIONS):
            raise UserError(
                f"generation_kwargs has {', '.join(unknown)}; known are until, max_gen_toks, do_sample, "
                f"{', '.join(sorted(_GENERATION_OPTIONS))}",
                code="unknown_generation_options",
            )
        room = self.max_length - most
        if room < 1:
            raise UserError(
                f"max_gen_toks {most} leaves no room for a context: the model has {self.max_length} positions",
                code="no_room_for_context",
            )
        if not draws:
            options["temperature"] = 0.0
        tokens = self.tok_encode(context)[-room:] or [self.prefix_token_id]
        return Prompt(tokens, {**options, "max_new_tokens": most, "stop": stop})


def _set_fewshot(task: Any, number: int | None) -> None:
    """Examples before each question, as the harness has it: a task that says none gets none."""
    default = task.get_config("num_fewshot")
    if number is not None and default != 0:
        task.set_config(key="num_fewshot", value=number)
    elif default is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=_SEED)


def _facts(task: Any) -> Iterator[object]:
    """All that a task's numbers depend on, as texts."""
    yield {name: str(value) for name, value in task.dump_config().items() if name != "metadata"}
    yield [str(document) for document in task.eval_docs]
    if task.get_config("num_fewshot"):
        yield [str(document) for document in task.fewshot_docs()]


def _measures(found: Mapping[str, Any]) -> dict[str, Measure]:
    """`acc,none` with `acc_stderr,none` as acc; the names of other filters stay, and those of tasks where there are
    several.
    """
    tables: Mapping[str, Mapping[str, Any]] = {**found["results"], **found.get("groups", {})}
    measures = {}
    for task, table in tables.items():
        for key, value in table.items():
            metric, comma, filter_ = key.partition(",")
            if not comma or metric.endswith(_STDERR) or not isinstance(value, int | float):
                continue
            stderr = table.get(f"{metric}{_STDERR},{filter_}")
            name = metric if filter_ == "none" else f"{metric}/{filter_}"
            name = name if len(tables) == 1 else f"{task}/{name}"
            measures[name] = Measure(float(value), float(stderr) if isinstance(stderr, int | float) else None)
    return measures
