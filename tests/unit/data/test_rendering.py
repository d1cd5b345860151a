"""Chat templates that do not end, or that make too much: bounded in time and size, wherever they are rendered."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support.limits import set_limits
from support.refused import refused

from orchestrator.data.chat import rendering
from orchestrator.data.chat.templates import CHATML, JinjaTemplate
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.errors import UserError
from orchestrator.inference.serving.chat_template_choice import Chat
from orchestrator.inference.serving.protocol import ChatRequest, parsed
from orchestrator.spec.sections.data import TokenizerSpec

Tokenize = Callable[..., Path]

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
POWER = "{{ 9 ** (9 ** 9) }}"
"""One operation of Python, which no signal handler and no thread can interrupt."""
CALLS = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
TOO_LONG = {"loops": LOOPS, "one operation": POWER, "calls": CALLS}
NO_MEMORY = "more than 256 MiB of memory"
TOO_MUCH = {
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    "multiplied": ("{{ 'a' * 10 ** 10 }}", NO_MEMORY),
    "multiplied text": ("{{ messages[0].content * 10 ** 10 }}", NO_MEMORY),
    "multiplied list": ("{{ [messages] * 10 ** 10 }}", NO_MEMORY),
    "doubled": (
        "{% set n = namespace(x='a') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        NO_MEMORY,
    ),
    "centred": ("{{ 'a'.center(10 ** 10) }}", NO_MEMORY),
    "long": ("{{ messages[0].content * 2 ** 18 }}", "it writes 2097152 characters, more than 1048576"),
    "range": ("{% for i in range(10 ** 9) %}x{% endfor %}", "Range too big"),
    "digits": ("{{ (10 ** 5000) | string }}", "4300"),
    "nested": ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "recursion"),
    "blocks": ("{% for a in b %}" * 30 + "{% endfor %}" * 30, "nested"),
}


@pytest.fixture(autouse=True, scope="module")
def small_bounds() -> Iterator[None]:
    """Less time and memory than usual, so that they are used up soon."""
    rendering.RENDERER.close()
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, to_render=0.5, memory_to_render=1 << 28, characters_rendered=1 << 20)
        yield
    rendering.RENDERER.close()


@pytest.mark.parametrize("content", TOO_LONG.values(), ids=TOO_LONG)
def test_what_takes_too_long_is_ended(content: str) -> None:
    with refused("failing_chat_template", "mine", "0.5 s"):
        JinjaTemplate("mine", content, {})
    assert JinjaTemplate("next", CHATML, {}).turn_end == "<|im_end|>"


def test_a_request_that_takes_too_long_is_refused() -> None:
    """By what a server makes of a conversation, with the next one answered."""
    ending = "{% if messages[0].content == 'loop' %}" + LOOPS + "{% endif %}"
    chat = Chat(load_tokenizer(TokenizerSpec()), JinjaTemplate("mine", CHATML + ending, {}))
    with refused("failing_chat_template", "0.5 s"):
        parsed(ChatRequest, {"messages": [{"role": "user", "content": "loop"}]}).prompt(chat)
    assert parsed(ChatRequest, {"messages": [{"role": "user", "content": "Hi"}]}).prompt(chat)


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_makes_too_much_is_refused(name: str) -> None:
    content, reason = TOO_MUCH[name]
    with pytest.raises(UserError, match=f"chat template mine: .*{reason}"):
        JinjaTemplate("mine", content, {})
    assert JinjaTemplate("next", CHATML, {}).turn_end == "<|im_end|>"


def test_a_line_whose_rendering_does_not_end_is_a_bad_line(tokenize: Tokenize, tmp_path: Path) -> None:
    path, template = tmp_path / "chats.jsonl", tmp_path / "mine.jinja"
    template.write_text(
        CHATML.replace("{%- endfor %}", "{%- if message.content == 'loop' %}" + LOOPS + "{% endif %}{%- endfor %}")
    )
    lines = [{"prompt": prompt, "completion": "x"} for prompt in ("a", "loop", "b")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with refused("wrong_record", "chats.jsonl:2", "0.5 s"):
        tokenize(path, append_eod=False, chat=True, chat_template=str(template))
    prefix = tokenize(path, append_eod=False, chat=True, chat_template=str(template), on_error="skip")
    assert json.loads(prefix.with_name("data.skipped.jsonl").read_text())["line"] == 2


def test_the_process_is_started_again_where_it_was_killed() -> None:
    template = JinjaTemplate("mine", CHATML, {})
    process = rendering.RENDERER.process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert template.turn_end == "<|im_end|>"


def test_threads_take_turns() -> None:
    """As requests to a server do: each has the answer to its own."""
    found: dict[int, str] = {}

    def render(number: int) -> None:
        for _ in range(20):
            text = rendering.rendered("{{ messages }}", messages=[{"role": "user", "content": str(number)}])
            found[number] = str(found.get(number, "")) + text.partition("content': '")[2][:1]

    threads = [Thread(target=render, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: str(number) * 20 for number in range(8)}


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Killed while a template loops: the timer ends what nobody waits for any more."""
    program = (
        "import sys\nfrom orchestrator.data.chat import rendering\nrendering.SECONDS = 0.5\n"
        "rendering.compiled('a', sys.argv[1])\nprint(rendering.RENDERER.process.pid, flush=True)\n"
        "rendering.rendered(sys.argv[1], messages=[])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, LOOPS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate()
    end = time.monotonic() + 60
    while _is_running(child):
        assert time.monotonic() < end
        time.sleep(0.05)


def _is_running(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2][:1]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_values_are_those_of_transformers() -> None:
    """What a template may ask for: nulls, order and characters stay."""
    values: dict[str, Any] = {"messages": [], "tools": [{"b": None, "a": "ü\u2028<&"}], "documents": None}
    content = "{{ tools | tojson(indent=1, separators=(',', ':')) }}{{ tools[0].b is none }}{{ documents is none }}"
    assert rendering.rendered(content, **values) == '[\n {\n  "b":null,\n  "a":"ü\u2028<&"\n }\n]TrueTrue'


def number_of_the_process() -> int:
    rendering.compiled("a", "{{ messages }}")
    assert rendering.RENDERER.process is not None
    return rendering.RENDERER.process.pid


def test_a_fork_has_a_process_of_its_own() -> None:
    ours = number_of_the_process()
    with multiprocessing.get_context("fork").Pool(1) as forked:
        theirs = forked.apply_async(number_of_the_process).get(60)
        assert theirs != ours
        assert rendering.rendered("{{ messages }}", messages=[1]) == "[1]"
        assert forked.apply_async(number_of_the_process).get(60) == theirs
    assert number_of_the_process() == ours
