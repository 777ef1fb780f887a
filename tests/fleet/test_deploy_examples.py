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
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from flujo_actors import RunClient
from flujo_actors._api.cli.command_group import flujo_actors
from kit import preloaded
from kit.postgres_server import session_server

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"


FILES = (DEPLOY / "docker", DEPLOY.parent / "support_desk")
"""Folders with a Dockerfile, a compose file and an application."""


def unknown_options(command: list[str]) -> set[str]:
    """Options that `flujo-actors` does not have, of a command line that begins with it."""
    found: click.Command = flujo_actors()
    rest = command[1:]
    while isinstance(found, click.Group):
        name, *rest = rest
        known = found.get_command(click.Context(found), name)
        assert known is not None, f"no command {name!r}"
        found = known
    options = {option for each in found.params if isinstance(each, click.Option) for option in each.opts}
    return {each for each in rest if each.startswith("--")} - options


def is_there(command: list[str], folder: Path) -> bool:
    """Whether a command line can be executed with the files of a folder."""
    match command:
        case ["flujo-actors", *_]:
            target = [] if "worker" not in command else [command[command.index("worker") + 1]]
            return not unknown_options(command) and all(names(each, folder) for each in target)
        case ["uvicorn", target, *_]:
            return names(target, folder)
    return False


def names(target: str, folder: Path) -> bool:
    """Whether `module:name` is an assignment of a file of the folder."""
    module, _, name = target.partition(":")
    return re.search(rf"^{name} = ", (folder / f"{module}.py").read_text(encoding="utf-8"), re.MULTILINE) is not None


@functools.cache
def dockerfile(folder: Path) -> dict[str, Any]:
    """Instructions of the image by name, with the JSON of commands."""
    text = (folder / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    found = dict(re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE))
    return {name: json.loads(value) if value.startswith("[") else value for name, value in found.items()}


def services(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return found


def commands_of(folder: Path) -> dict[str, list[str]]:
    """Command lines of the containers that are built, by service."""
    image = dockerfile(folder)
    return {
        name: [*service.get("entrypoint", image.get("ENTRYPOINT", [])), *service.get("command", image["CMD"])]
        for name, service in services(folder).items()
        if "build" in service
    }


def unit(name: str) -> Any:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(DEPLOY / "systemd" / name)
    return found["Service"]


@pytest.mark.parametrize("name", ["flujo-worker@.service", "flujo-web@.service"])
def test_a_unit_starts_a_process_that_there_is(name: str) -> None:
    """Its command takes these options, and systemd waits longer than the worker's grace."""
    service = unit(name)
    _, place, program, *rest = shlex.split(service["ExecStart"])
    assert place == f"--chdir={service['WorkingDirectory']}"
    assert is_there([Path(program).name, *rest], DEPLOY / "docker")
    if "--grace" in rest:
        assert float(service["TimeoutStopSec"]) > float(rest[rest.index("--grace") + 1])


@pytest.mark.parametrize("folder", FILES, ids=lambda path: path.name)
def test_containers_start_processes_that_there_are(folder: Path) -> None:
    """Commands, options, targets and the address of the health check exist; a stop takes longer than the grace."""
    for name, command in commands_of(folder).items():
        assert is_there(command, folder), (name, command)
        if "--health" in command:
            port = command[command.index("--health") + 1].rpartition(":")[2]
            probe = services(folder)[name].get("healthcheck", {}).get("test", dockerfile(folder).get("HEALTHCHECK"))
            assert f"http://127.0.0.1:{port}/health" in str(probe)
            stop = float(services(folder)[name]["stop_grace_period"].removesuffix("s"))
            assert stop > float(command[command.index("--grace") + 1])


@pytest.mark.parametrize("folder", FILES, ids=lambda path: path.name)
def test_the_reference_architecture_is_complete(folder: Path) -> None:
    """A database, a migration before all other processes, web processes and workers."""
    waits = {name: service.get("depends_on", {}) for name, service in services(folder).items()}
    assert waits.pop("postgres") == {}
    assert waits.pop("migrate") == {"postgres": {"condition": "service_healthy"}}
    assert all(each == {"migrate": {"condition": "service_completed_successfully"}} for each in waits.values())
    programs = [command[0] for command in commands_of(folder).values()]
    assert {"uvicorn", "flujo-actors"} == {*programs}
    assert folder.name == "docker" or (programs.count("uvicorn"), services(folder)["worker"]["deploy"]["replicas"]) == (
        2,
        2,
    )


@pytest.mark.parametrize("folder", FILES, ids=lambda path: path.name)
def test_the_image_is_built_of_files_that_there_are(folder: Path) -> None:
    """The build context is the folder of the Dockerfile, and its requirements are extras of this package."""
    assert {service["build"] for service in services(folder).values() if "build" in service} == {"."}
    assert dockerfile(folder)["COPY"] == ". ."
    wanted = (folder / "requirements.txt").read_text(encoding="utf-8").split()
    [own] = [each for each in wanted if each.startswith("flujo-actors[")]
    project = tomllib.loads((DEPLOY.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*own.removeprefix("flujo-actors[").removesuffix("]").split(",")} <= project["optional-dependencies"].keys()
    assert {"fleet", "page"} <= {*own.removeprefix("flujo-actors[").removesuffix("]").split(",")}


@pytest.mark.slow
def test_the_commands_of_compose_run_without_containers(tmp_path: Path) -> None:
    """The tables are migrated, a web process that has no DDL submits, and workers of both queues execute the run."""
    folder, url = DEPLOY / "docker", session_server().fresh_url()
    paths = os.pathsep.join([str(folder), *sys.path])
    environ = {**os.environ, "PYTHONPATH": paths, "PAGE_TOKEN": "a-long-token", "FLUJO_STORE": url}
    separator = "&" if "?" in url else "?"
    as_application = {**environ, "FLUJO_STORE": f"{url}{separator}flujo.migrate=never"}
    run = functools.partial(preloaded.run, cwd=tmp_path, check=True, timeout=240)
    migrate, _, default, _ = commands_of(folder).values()
    run([sys.executable, "-m", "flujo_actors", *migrate[1:]], env=environ)
    submit = "print(TestClient(app).post('/letters?topic=tea').json()['run_id'])"
    program = f"from app import app; from starlette.testclient import TestClient; {submit}"
    run_id = run([sys.executable, "-c", program], env=as_application, capture_output=True, text=True).stdout.strip()
    arguments = [each.replace("0.0.0.0:8080", str(tmp_path / "health.json")) for each in default[1:]]
    run([sys.executable, "-m", "flujo_actors", *arguments, "--queue", "gpu", "--once"], env=as_application)
    assert RunClient(url).state(run_id).output == "A letter about tea. (with a picture)"


def test_kubernetes_starts_processes_that_there_are() -> None:
    """Options and probes exist, budgets match their deployments, both queues have workers, and a job migrates."""
    manifests = [
        each
        for name in ("web.yaml", "worker.yaml")
        for each in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text(encoding="utf-8"))
    ]
    image = dockerfile(DEPLOY / "docker")
    by_kind = {kind: [each for each in manifests if each["kind"] == kind] for kind in ("Job", "Deployment")}
    for manifest in (*by_kind["Job"], *by_kind["Deployment"]):
        [container] = manifest["spec"]["template"]["spec"]["containers"]
        command = [*container.get("command", image["ENTRYPOINT"]), *container.get("args", [])]
        assert is_there(command, DEPLOY / "docker"), command
        for probe in ("livenessProbe", "readinessProbe"):
            assert container.get(probe, {}).get("httpGet", {}).get("path", "/health") in {"/health", "/ready"}
    budgets = [each["spec"]["selector"] for each in manifests if each["kind"] == "PodDisruptionBudget"]
    assert budgets == [each["spec"]["selector"] for each in by_kind["Deployment"]]
    queues = [each["spec"]["selector"]["matchLabels"].get("queue") for each in by_kind["Deployment"]]
    assert queues == [None, "default", "gpu"]


@pytest.mark.parametrize(
    ("linter", "file"),
    [
        ("systemd-analyze verify --man=no", "systemd/flujo-worker@.service"),
        ("systemd-analyze verify --man=no", "systemd/flujo-web@.service"),
        ("hadolint", "docker/Dockerfile"),
        ("hadolint", "../support_desk/Dockerfile"),
        ("kubeconform -strict", "kubernetes/worker.yaml"),
        ("kubeconform -strict", "kubernetes/web.yaml"),
    ],
)
def test_their_own_linters_agree(linter: str, file: str) -> None:
    """Where they are installed."""
    command = shlex.split(linter)
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed here, so {file} is checked by the other tests alone")
    done = subprocess.run([*command, str(DEPLOY / file)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
