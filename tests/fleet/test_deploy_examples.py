"""The files of `examples/deploy` say what the command understands; where their own linters are, these are asked."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from flujo_actors._cli.worker import worker

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
    done = subprocess.run([*command, str(DEPLOY / file)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
