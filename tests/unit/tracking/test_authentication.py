"""A real MLflow server that asks who comes: by user and password, by token, and with too few permissions."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import sqlite3
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.faults import Ranks
from support.training import losses, tiny_job
from werkzeug.security import generate_password_hash

from orchestrator.cli.main import main
from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import dump_resolved
from tests.unit.tracking.conftest import PATIENT, MlflowServer, log_steps, once, only_run, sending_is_forked

PASSWORD, WRONG, TOKEN = "adm1n-pa55word", "wr0ng-pa55word", "t0ken-of-a-service"
USER = {"MLFLOW_TRACKING_USERNAME": "admin"}

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("flask_wtf") is None,
    reason="MLflow's server with authentication needs Flask-WTF: pip install 'mlflow[auth]'",
)

# As MLflow's documentation has it for tokens: a function of whoever runs the server.
BY_TOKEN = f"""
from flask import request
from mlflow.server.auth import authenticate_request_basic_auth
from werkzeug.datastructures import Authorization

def authenticate():
    if request.authorization is not None and request.authorization.type == "bearer":
        if request.authorization.token == "{TOKEN}":
            return Authorization("basic", {{"username": "admin", "password": ""}})
        request.authorization.parameters.update(username="nobody", password="")
    return authenticate_request_basic_auth()
"""


@pytest.fixture
def guarded_server(tmp_path: Path, empty_store: Path, ranks: Ranks) -> Iterator[MlflowServer]:
    folder = tmp_path / "server"
    folder.mkdir()
    settings = ["[mlflow]", "default_permission = READ", f"database_uri = sqlite:///{folder}/users.db"]
    settings += [
        "admin_username = admin",
        f"admin_password = {PASSWORD}",
        "authorization_function = by_token:authenticate",
    ]
    (folder / "auth.ini").write_text("\n".join(settings) + "\n")
    (folder / "by_token.py").write_text(BY_TOKEN)
    environment = {
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "of this test",
    }
    server = MlflowServer(folder, empty_store, ranks, "--app-name", "basic-auth", environment=environment)
    server.start()
    yield server
    server.kill()


def add_user(server: MlflowServer, name: str) -> None:
    """Someone who may read, and write only what is their own."""
    asked = json.dumps({"username": name, "password": PASSWORD}).encode()
    request = urllib.request.Request(f"{server.address}/api/2.0/mlflow/users/create", asked)
    request.add_header("Authorization", "Basic " + base64.b64encode(f"admin:{PASSWORD}".encode()).decode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.status == 200


def hash_quickly(server: MlflowServer) -> None:
    """MLflow's hashes of passwords take a tenth of a core's second to check, with every request."""
    quick = generate_password_hash(PASSWORD, "pbkdf2:sha256:1")
    with contextlib.closing(sqlite3.connect(server.folder / "users.db")) as users, users:
        users.execute("update users set password_hash = ?", [quick])


@pytest.mark.slow("an MLflow server, a training and five sendings")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked_sending")
def test_a_server_that_asks_who_comes(
    ranks: Ranks,
    inject: Callable[[str], Path],
    guarded_server: MlflowServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_SERVER", guarded_server.address)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
    job = tiny_job("guarded", tracking={"mlflow": True, "uri": "${env:MLFLOW_SERVER}"}, schedule={"train_iters": 6})
    run = create_run(job, dump_resolved(job), tmp_path / "runs", CodeState({}, b""))
    guarded_server.wait_until_up()
    hash_quickly(guarded_server)

    # A wrong password: the training ends as it should, and one line says why nothing was sent.
    wrong = {**USER, "MLFLOW_TRACKING_PASSWORD": WRONG, "MLFLOW_HTTP_REQUEST_TIMEOUT": "120"}
    environment = {**sending_is_forked(ranks), **wrong, "MLFLOW_SERVER": guarded_server.address}
    ranks.must_train(run, job, env=environment, inject=inject(PATIENT))
    assert set(losses(run)) == set(range(1, 7))
    said = (run.logs / "mlflow.log").read_text().splitlines()
    refused = [line for line in said if "not sent: " in line and "bytes" not in line]
    [line] = refused
    assert "MLflow at ${env:MLFLOW_SERVER}: it rejected the credentials: MLFLOW_TRACKING_USERNAME and " in line
    assert main(["status", str(run.path)]) == 0
    left = f"{run.metrics_file.stat().st_size:,} bytes of metrics to MLflow: {run.logs / 'mlflow.log'} says why"
    assert left in capsys.readouterr().out

    # Nobody, a wrong token and someone without permission are told so; then password and token do.
    add_user(guarded_server, "reader")
    hash_quickly(guarded_server)
    assert "it rejected the credentials" in message_of(run, {})
    assert "it rejected the credentials" in message_of(run, {"MLFLOW_TRACKING_TOKEN": WRONG})
    assert message_of(run, {**USER, "MLFLOW_TRACKING_PASSWORD": PASSWORD}) == ""
    stored = only_run(guarded_server.database)
    assert (stored.status, len(stored.metrics["train/loss"])) == ("FINISHED", 6)
    log_steps(run, range(7, 9))
    reader = {"MLFLOW_TRACKING_USERNAME": "reader", "MLFLOW_TRACKING_PASSWORD": PASSWORD}
    assert "it does not allow this (Permission denied)" in message_of(run, reader)
    assert message_of(run, {"MLFLOW_TRACKING_TOKEN": TOKEN}) == ""
    assert len(only_run(guarded_server.database).metrics["train/loss"]) == 8

    # The run directory leads to the page, and holds no secret.
    assert main(["status", str(run.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["mlflow_unsent_bytes"] == 0
    page = shown["mlflow_url"]
    assert page.startswith(f"{guarded_server.address}/#/experiments/")
    assert page.endswith(f"/runs/{stored.run_id}")
    kept = b"".join(path.read_bytes() for path in run.path.rglob("*") if path.is_file())
    assert not [secret for secret in (PASSWORD, WRONG, TOKEN) if secret.encode() in kept]


def message_of(run: RunDir, environment: dict[str, str]) -> str:
    """What one sending says was wrong; nothing when all was sent."""
    code, [record] = once(run, environment=environment)
    assert (code == 0) == (record["state"] == "sent"), record
    return str(record["message"])
