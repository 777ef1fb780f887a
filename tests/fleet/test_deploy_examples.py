"""The files of `examples/deploy` say what the command understands; where their own linters are, these are asked."""

from __future__ import annotations

import configparser
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from flujo_actors import RunClient
from flujo_actors._api.cli.worker_process import worker
from kit.postgres_server import session_server

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"


def options_in(arguments: list[str]) -> set[str]:
    return {each for each in arguments if each.startswith("--")}


def known() -> set[str]:
    return {option for each in worker.params if isinstance(each, click.Option) for option in each.opts}


def test_the_unit_starts_a_worker_that_there_is() -> None:
    """Its command takes these options, and systemd waits longer than the worker's grace."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "systemd" / "flujo-worker@.service")
    command = shlex.split(unit["Service"]["ExecStart"])
    assert command[command.index("worker") + 1] == "app:flujo"
    assert options_in(command[command.index("worker") :]) <= known()
    assert float(unit["Service"]["TimeoutStopSec"]) > float(command[command.index("--grace") + 1])


def test_the_image_starts_a_worker_that_there_is() -> None:
    """And asks for its health where the worker tells of it."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0])
    assert entry[:3] == ["flujo-actors", "worker", "app:flujo"]
    assert options_in(entry) <= known()
    assert "http://127.0.0.1:8080/health" in text


def test_the_image_is_built_of_files_that_there_are() -> None:
    """The build context is the directory of the Dockerfile, also for compose."""
    context = DEPLOY / "docker"
    copied = re.findall(r"^COPY (.*) \S+$", (context / "Dockerfile").read_text(), re.MULTILINE)
    assert copied
    assert all((context / name).is_file() for names in copied for name in names.split())
    services = yaml.safe_load((context / "compose.yaml").read_text())["services"].values()
    assert {service["build"] for service in services if "build" in service} == {"."}


@pytest.mark.slow
def test_the_application_of_the_image_is_executed_by_its_workers() -> None:
    """A worker of both queues executes a run to its end."""
    url = session_server().fresh_url()
    environ = {**os.environ, "FLUJO_STORE": url, "PYTHONPATH": os.pathsep.join(sys.path)}
    submit = "import app; app.flujo.submit_sync('tea', run_id='run')"
    run = functools.partial(subprocess.run, env=environ, cwd=DEPLOY / "docker", check=True, timeout=120)
    run([sys.executable, "-c", submit])
    run([sys.executable, "-m", "flujo_actors", "worker", "app:flujo", "--queue", "default", "--queue", "gpu", "--once"])
    assert RunClient(url).state("run").output == "A letter about tea. (with a picture)"


def containers() -> list[Any]:
    services = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"].values()
    return [service["command"] for service in services if "command" in service]


def test_compose_and_kubernetes_start_workers_that_there_are() -> None:
    """The options exist, and the probes ask for paths that are answered."""
    deployment, budget = yaml.safe_load_all((DEPLOY / "kubernetes" / "worker.yaml").read_text())
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    for arguments in (*containers(), container["args"]):
        assert options_in(arguments) <= known()
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert deployment["spec"]["selector"] == budget["spec"]["selector"]


@pytest.mark.parametrize(
    ("linter", "file"),
    [
        ("systemd-analyze verify --man=no", "systemd/flujo-worker@.service"),
        ("hadolint", "docker/Dockerfile"),
        ("kubeconform -strict", "kubernetes/worker.yaml"),
    ],
)
def test_their_own_linters_agree(linter: str, file: str) -> None:
    """Where they are installed."""
    command = shlex.split(linter)
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed here, so {file} is checked by the other tests alone")
    done = subprocess.run([*command, str(DEPLOY / file)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
