"""The command itself: where it begins, what it loads, and how it ends."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from flujo_actors import errors
from flujo_actors._api.cli import entry
from flujo_actors._api.cli.command_group import COMMANDS, flujo_actors
from flujo_actors._api.cli.output import exit_code, printable, wants_color
from kit import preloaded


def run(*arguments: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
    call = ["-c", script] if script else ["-m", "flujo_actors"]
    start = subprocess.run if script else preloaded.run
    return start([sys.executable, *call, *arguments], capture_output=True, text=True, timeout=240)


def test_the_module_is_the_command() -> None:
    """`python -m flujo_actors` lists the commands."""
    done = run("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS)


def test_the_script_is_installed_with_the_package() -> None:
    """Whoever installs the package has `flujo-actors`, with or without its extra."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["flujo-actors"].partition(":")
    assert getattr(importlib.import_module(module), function) is entry.main


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_list_says_of_a_command_what_it_says_of_itself(name: str) -> None:
    """The table that the list is made of follows the commands."""
    group = flujo_actors()
    command = group.get_command(group.make_context("flujo-actors", ["--help"], resilient_parsing=True), name)
    assert command is not None
    assert (command.help or "").partition("\n")[0] == COMMANDS[name].summary


def test_help_loads_no_runtime() -> None:
    """Neither trio nor pydantic-ai nor rich, nor what reads blueprints."""
    script = (
        "import sys\n"
        "from flujo_actors._api.cli.entry import main\n"
        "main(['--help'])\n"
        "heavy = {'trio', 'pydantic_ai', 'pydantic', 'rich', 'yaml', 'jinja2', 'asyncio', 'sqlite3'}\n"
        "sys.exit(repr(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)\n"
    )
    done = run(script=script)
    assert done.returncode == 0, done.stderr


def test_a_wrong_command_is_usage_with_the_nearest_one() -> None:
    """Exit code 2, nothing on stdout."""
    done = run("completions")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'completion'?" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("library", ["click", "jinja2", "yaml"])
def test_without_its_extra_the_script_says_which_one_is_missing(library: str) -> None:
    """One extra has everything that a command needs, also where click is there for another package."""
    main = "from flujo_actors._api.cli.entry import main\nsys.exit(main(['worker', '--help']))"
    done = run(script=f"import sys; sys.modules[{library!r}] = None\n{main}")
    assert done.returncode == 2
    assert "pip install 'flujo-actors[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_defect_is_a_line_and_with_vv_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody expected is said to be a defect."""
    monkeypatch.setattr(sys, "argv", ["flujo-actors", "run"])
    entry._unexpected(ValueError, ValueError("bad\x1b[31m"), None)
    assert "this is a defect of flujo-actors: ValueError: bad\\x1b[31m" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["flujo-actors", "run", "-vv"])
    entry._unexpected(ValueError, ValueError("bad"), None)
    assert capsys.readouterr().err == "ValueError: bad\n"


CRASHING = """
import trio
from flujo_actors import Step

async def meddles(data):
    manager = trio.open_nursery()
    nursery = await manager.__aenter__()
    nursery.start_soon(trio.sleep, 0)
    trio.lowlevel.spawn_system_task(manager.__aexit__, None, None, None)  # another task ends the block
    while True:
        await trio.lowlevel.checkpoint()

pipeline = Step("before", lambda data: data) >> Step("meddles", meddles)
"""


def test_a_crash_of_the_event_loop_names_the_step_and_blames_no_library(tmp_path: Path) -> None:
    """A nursery that is left in one task and closed in another crashes trio's scheduler."""
    app = tmp_path / "app.py"
    app.write_text(CRASHING)
    done = run("run", f"{app}:pipeline", "--input", "x")
    assert done.returncode == 1
    said = next(line for line in done.stderr.splitlines() if line.startswith("flujo-actors: "))
    assert "code of step 'meddles'" in said
    assert "aclosing" in said
    assert "defect" not in said


def test_only_a_defect_is_called_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the user's module, of the system or of a driver says whose it is."""
    monkeypatch.setattr(sys, "argv", ["flujo-actors", "run"])
    try:
        raise KeyError("id")
    except KeyError as error:
        raised: BaseException = error
    for unexpected, whose in (
        (raised, f"your code raised, at {__file__}"),
        (ConnectionRefusedError("no server"), "the system or an installed package refused: ConnectionRefusedError"),
        (click.ClickException("odd"), "click raised: ClickException: odd"),
    ):
        entry._unexpected(type(unexpected), unexpected, unexpected.__traceback__)
        told = capsys.readouterr().err
        assert whose in told
        assert "a defect of" not in told


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_completes(shell: str) -> None:
    """Without looking for that shell."""
    done = run("completion", shell)
    assert done.returncode == 0
    assert "_FLUJO_ACTORS_COMPLETE" in done.stdout


def test_a_closed_pipe_ends_quietly() -> None:
    """`flujo-actors … | head` says nothing on stderr."""
    done = subprocess.run(
        f"{sys.executable} -m flujo_actors completion bash | true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RunNotFound("x"), 5),
        (errors.AlreadyAnswered("x"), 4),
        (errors.RunExists("x"), 4),
        (errors.RunLeased("x"), 4),
        (errors.DeclarationError("x"), 2),
        (errors.InvalidAnswer("x"), 2),
        (errors.FingerprintMismatch("x"), 2),
        (errors.UsageLimitExceededError("x"), 1),
    ],
)
def test_every_error_has_an_exit_code(error: errors.FlujoError, code: int) -> None:
    """A script can tell what to do next."""
    assert exit_code(error) == code


def test_nothing_that_a_terminal_obeys_is_printed() -> None:
    """Escapes, bells, directions and lines are written out."""
    assert printable("a\x1b[2J\x07b\u202ec\nd\te") == "a\\x1b[2J\\x07b\\u202ec d    e"
    assert printable("a\r\nb\rc", lines=True) == "a\nb\\x0dc"


def test_color_is_for_terminals_and_whoever_asks() -> None:
    """`--color` first, then NO_COLOR and FORCE_COLOR, then the terminal."""
    assert wants_color("always", sys.__stdout__, {"NO_COLOR": "1"})  # type: ignore[arg-type]
    assert not wants_color("auto", sys.__stdout__, {"NO_COLOR": "1", "FORCE_COLOR": "1"})  # type: ignore[arg-type]
    assert wants_color("auto", sys.__stdout__, {"FORCE_COLOR": "1"})  # type: ignore[arg-type]
