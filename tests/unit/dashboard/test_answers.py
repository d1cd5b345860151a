"""What the application answers, asked without a server: who may see, what is kept out of pages, where commands run."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from fastapi import Response
from fastapi.testclient import TestClient
from support.event_log import append_event, append_to_ledger
from support.faults import wait_until
from support.training import tiny_job

from orchestrator.cli.main import main
from orchestrator.dashboard.actions import made_in
from orchestrator.dashboard.app import create_app
from orchestrator.dashboard.assets import asset
from orchestrator.dashboard.security import form_mark
from orchestrator.dashboard.settings import Settings
from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import dump_resolved
from orchestrator.sweeps.ledger import sweep_dir

SECRET = "hf_it's a secret"
HOOK = "https://hooks.example.com/services/T0/B0/abcdef"


def secretive(folder: Path, name: str, secret: str = SECRET) -> RunDir:
    """A run whose spec has secrets in it."""
    env = {"HF_TOKEN": secret, "NCCL_DEBUG": "INFO"}
    job = tiny_job(name, launch={"env": env}, notifications={"webhook": f"{HOOK}/{secret[-1]}"})
    run = create_run(job, dump_resolved(job), folder, CodeState({"version": "9.9"}, b""))
    (run.path / "launch.sh").write_text("export HF_TOKEN='hf_it'\"'\"'s a secret'\nexport NCCL_DEBUG=INFO\n")
    return run


@pytest.fixture
def visitor(tmp_path: Path) -> TestClient:
    return TestClient(create_app(Settings(tmp_path)))


def test_no_page_of_a_run_shows_its_secrets(visitor: TestClient, tmp_path: Path) -> None:
    one, other = secretive(tmp_path, "secretive"), secretive(tmp_path, "secretive", "hf_another secret")
    address = f"/runs/{one.name}/{one.run_id}"
    beside = f"?run={one.name}/{one.run_id}&run={other.name}/{other.run_id}"
    pages = (
        f"{address}/spec",
        f"{address}/spec?against={other.name}/{other.run_id}",
        f"{address}/code",
        f"/compare{beside}",
        f"/compare/figure/loss{beside}",
    )
    for page in pages:
        answer = visitor.get(page)
        assert answer.status_code == 200
        assert not re.search(r"s a secret|another secret|hooks\.example\.com/services", answer.text), page
    spec = visitor.get(pages[0]).text
    assert "launch.env.HF_TOKEN" in spec
    assert "INFO" in spec
    assert "(not shown)" in visitor.get(pages[3]).text


def test_the_head_of_a_section_has_no_facts_of_the_curves(visitor: TestClient, tmp_path: Path) -> None:
    job = tiny_job("first")
    run = create_run(job, dump_resolved(job), tmp_path)
    address = f"/runs/{run.name}/{run.run_id}"
    for end, tab in (("", ""), ("/events", "events")):
        for answer in (visitor.get(address + end), visitor.get(f"{address}/head?tab={tab}")):
            assert f'hx-get="{address}/head?tab={tab}"' in answer.text
            assert ('hx-select-oob="#facts"' in answer.text) is (tab == "")
            assert ('id="facts"' in answer.text) is (tab == "")
    assert visitor.get(f"{address}/head?tab=nothing").status_code == 404


@pytest.mark.parametrize("interval", [1, 10])
def test_a_page_says_that_points_are_means(interval: int, visitor: TestClient, tmp_path: Path) -> None:
    job = tiny_job("first", tracking={"log_interval": interval})
    run = create_run(job, dump_resolved(job), tmp_path)
    page = visitor.get(f"/runs/{run.name}/{run.run_id}").text
    assert ("the mean of 10 steps" in page) is (interval == 10)


def test_an_imported_run_has_no_steps_to_do(visitor: TestClient, tmp_path: Path) -> None:
    job = tiny_job("first")
    run = create_run(job, dump_resolved(job), tmp_path)
    pages = ("/", f"/runs/{run.name}/{run.run_id}", f"/compare?run={run.name}/{run.run_id}")
    steps = re.compile(rf"0 (?:/|of) {job.schedule.train_iters}|<b>0</b> of {job.schedule.train_iters}")

    def seen(state: str) -> bool:
        return f'<span class="state {state}">{state}</span>' in visitor.get("/").text

    with visitor:
        wait_until(lambda: seen("created"), "the run in the table")
        assert all(steps.search(visitor.get(page).text) for page in pages)
        append_event(run, "imported", source="gpt2")
        wait_until(lambda: seen("imported"), "what it is")
        for page in pages:
            assert not steps.search(visitor.get(page).text), page
        assert "weights to start from, imported from gpt2" in visitor.get(pages[1]).text


def test_a_cookie_is_of_one_dashboard_and_comes_along_with_links(tmp_path: Path) -> None:
    names = []
    for token in ("the first token", "the second token"):
        client = TestClient(create_app(Settings(tmp_path, token)))
        answer = client.get("/assets/x/style.css", params={"token": token}, follow_redirects=False)
        assert answer.status_code == 303
        assert "samesite=lax" in answer.headers["set-cookie"].lower()
        names.append(answer.headers["set-cookie"].partition("=")[0])
        assert client.get("/assets/x/style.css").status_code == 200
        assert TestClient(client.app).get("/assets/x/style.css").status_code == 401
    assert len(set(names)) == 2


def test_a_host_that_is_none_and_a_form_without_end(tmp_path: Path) -> None:
    settings = Settings(tmp_path, allows_actions=True)
    client = TestClient(create_app(settings))
    assert client.get("/assets/x/style.css", headers={"Host": "["}).status_code == 400
    form = "/sweeps/none/actions/retry"
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post(form, data={"mark": "x"}, headers={"Origin": "http://["}).status_code == 403
    taken = 0

    def parts() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b"a=" + b"b" * 1000 + b"&"

    assert client.post(form, content=parts(), headers=kind).status_code == 413
    mark = form_mark(settings)
    assert client.post(form, data={"mark": mark}).status_code == 404


def test_files_that_are_not_there_do_not_stay_in_memory(visitor: TestClient) -> None:
    assert visitor.get("/assets/x/nothing.js").status_code == 404
    assert asset("nothing.js") is None
    assert asset("style.css") is asset("style.css")


def test_a_sweep_goes_on_where_its_cells_were_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made"
    made.mkdir()
    job = tiny_job("cell")
    monkeypatch.chdir(made)
    run = create_run(job, dump_resolved(job), tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    absent = RunDir(tmp_path / "runs" / "cell" / "absent")
    assert made_in([absent, run]) == made
    made.rmdir()
    assert made_in([absent, run]) == tmp_path


def test_the_folder_of_the_runs_has_two_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = tmp_path / "absent"
    for name in ("--runs", "--runs-dir"):
        assert main(["dashboard", name, str(absent)]) == 2
        assert f"{absent} is not a folder of runs" in " ".join(capsys.readouterr().err.split())


def test_cells_are_compared_by_what_is_measured(tmp_path: Path) -> None:
    cell = {"id": "0" * 64, "name": "lr=1", "values": {"optimizer.lr": "1"}, "run": "cell/00000000"}
    sweep = sweep_dir("rates", tmp_path)
    sweep.path.mkdir(parents=True)
    append_to_ledger(sweep, "planned", generation=1, metric="validation/loss", goal="min", cells=[cell])
    with TestClient(create_app(Settings(tmp_path))) as client:
        wait_until(lambda: "are being read" not in client.get("/sweeps/rates").text, "the folder to be read")
        assert client.get("/sweeps/rates?metric=validation/loss").status_code == 200
        refused = client.get("/sweeps/rates", params={"metric": "<b>loss"})
        assert refused.status_code == 404
        assert "has measured &lt;b&gt;loss" in refused.text


@pytest.mark.parametrize(
    "path",
    [
        "//host.example/",
        "///host.example/",
        "/%2Fhost.example/",
        "/%2f%2fhost.example",
        "/\\host.example",
        "/%5Chost.example",
        "/%5c/host.example/",
        "/\t/host.example",
        "/%09/host.example",
        "/%0d%0aSet-Cookie:%20a=b",
        "//user@host.example:80/",
        "/.//host.example",
        "//",
    ],
)
def test_the_token_leads_to_no_other_server(tmp_path: Path, path: str) -> None:
    """What a browser makes of the address that it is sent to lies on this server."""
    visitor = TestClient(create_app(Settings(tmp_path, token="secret")), follow_redirects=False)
    target = f"{path}?token=secret&next=//host.example"
    scope_path = unquote(path)
    answer = asked_for(visitor, scope_path, target.partition("?")[2])
    assert answer.status_code == 303
    place = answer.headers["location"]
    assert place.startswith("/")
    assert not place.startswith(("//", "/\\"))
    assert not re.search(r"[\x00-\x20\\]", place)
    assert urlsplit(urljoin("http://here/", place)).netloc == "here"
    assert place.endswith("?next=%2F%2Fhost.example")


def asked_for(visitor: TestClient, path: str, query: str) -> Response:
    """The answer to a path as a server has it, which no client would leave as it is."""
    found: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        found.append(message)

    headers = [(b"host", b"testserver")]
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode()}
    scope |= {
        "headers": headers,
        "scheme": "http",
        "server": ("testserver", 80),
        "root_path": "",
        "http_version": "1.1",
    }
    asyncio.run(visitor.app(scope, receive, send))
    start = next(message for message in found if message["type"] == "http.response.start")
    given = {name.decode(): value.decode() for name, value in start["headers"]}
    return Response(status_code=start["status"], headers=given)


@pytest.mark.parametrize("path", ["/sweeps/", "//host.example/sweeps/", "/runs/a/b/", "/runs//host.example/"])
def test_a_slash_too_many_leads_to_no_other_server(tmp_path: Path, path: str) -> None:
    answer = asked_for(TestClient(create_app(Settings(tmp_path))), path, "")
    place = answer.headers.get("location", "/")
    assert urlsplit(urljoin("http://testserver/", place)).netloc == "testserver"


def test_a_start_again_shows_no_file_but_the_spec_of_the_run(tmp_path: Path) -> None:
    """What is wrong with a spec is told with its lines."""
    settings = Settings(tmp_path / "runs", allows_actions=True)
    visitor = TestClient(create_app(settings))
    (tmp_path / "id_rsa").write_text(f"key:{SECRET}\n- : {{\n")
    for name in ("linked", "extending", "waiting"):
        run = create_run(tiny_job(name), "", settings.runs_dir, CodeState({}, b""))
        place = run.path / "resolved.2.json"
        match name:
            case "linked":
                place.symlink_to(tmp_path / "id_rsa")
            case "extending":
                place.write_text(json.dumps({"extends": str(tmp_path / "id_rsa")}))
            case _:
                os.mkfifo(place)
        fields = {"mark": form_mark(settings), "run": f"{name}/{run.run_id}"}
        for page in ("/start", "/start/now"):
            answer = visitor.post(page, data=fields)
            assert answer.status_code == 200
            assert "resolved.2.json is damaged" in answer.text
            assert "a secret" not in answer.text


def test_no_form_fails_by_a_character_that_no_command_takes(tmp_path: Path) -> None:
    settings = Settings(tmp_path, allows_actions=True)
    visitor = TestClient(create_app(settings), raise_server_exceptions=False)
    run = create_run(tiny_job("first"), "", tmp_path, CodeState({}, b""))
    address, key = f"/runs/{run.name}/{run.run_id}", f"{run.name}/{run.run_id}"
    forms = [(f"{address}/actions/{action}", {"typed": "a\0b"}) for action in ("note", "tag", "rename")]
    forms += [(page, {"run": key, "changes": "lr=1\0"}) for page in ("/start", "/start/now")]
    for page, fields in forms:
        assert visitor.post(page, data={"mark": form_mark(settings), **fields}).status_code == 400, page


def test_no_answer_leads_to_the_name_that_a_visitor_calls_the_server(tmp_path: Path) -> None:
    """On an address that others reach too, that may be any name."""
    visitor = TestClient(create_app(Settings(tmp_path)), follow_redirects=False)
    for path in ("/compare/", "/sweeps/", "/health/", "/start/"):
        answer = visitor.get(path, headers={"Host": "host.example"})
        assert "host.example" not in answer.headers.get("location", "")
