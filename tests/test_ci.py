"""What CI runs besides tests: the check of the wheel, and the suite on every Python."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CI = Path(__file__).parents[1] / ".ci"


@pytest.fixture
def matrix() -> dict[str, Any]:
    """The names of the script."""
    return runpy.run_path(str(CI / "matrix.py"))["main"].__globals__


def test_a_wheel_holds_the_package_and_nothing_beside_it() -> None:
    """Tests, tools and stray files are named; the package and its metadata are not."""
    foreign_files = runpy.run_path(str(CI / "wheel.py"))["foreign_files"]
    right = ["flujo_actors/__init__.py", "flujo_actors/testing/_recorder.py", "flujo_actors-0.1.0.dist-info/RECORD"]
    wrong = ["flujo_actors/core/test_paths.py", "flujo_actors/tests/kit.py", "tests/kit.py"]
    assert foreign_files([*right, *wrong]) == wrong


def test_a_python_that_is_not_here_is_named_and_the_others_are_tested(
    matrix: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing version is reported as not tested, and is no failure."""
    monkeypatch.setitem(matrix, "interpreter", {"3.12": "python3.12"}.get)
    monkeypatch.setitem(matrix, "passes", lambda version, python, target: True)
    with pytest.raises(SystemExit, match=r"^0$"):
        matrix["main"]("test")
    said = capsys.readouterr().out
    assert "Python 3.12: passed (python3.12)" in said
    assert "Python 3.14: not found, so not tested" in said


def test_a_failure_on_any_python_is_a_failure(matrix: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are tested all the same, and the exit code tells."""
    tested = []
    monkeypatch.setitem(matrix, "interpreter", lambda version: f"python{version}")
    monkeypatch.setitem(matrix, "passes", lambda version, python, target: tested.append(version) or version != "3.11")
    with pytest.raises(SystemExit, match=r"^1$"):
        matrix["main"]("test")
    assert tested == ["3.11", "3.12", "3.13", "3.14"]


def test_a_shim_that_leads_nowhere_is_no_python(matrix: dict[str, Any], tmp_path: Path) -> None:
    """The interpreter itself reports its version."""
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    assert matrix["version_of"](str(shim)) is None
    assert matrix["version_of"](str(tmp_path / "missing")) is None


# --- repeated tests ---------------------------------------------------------------------------------------------

FLAKY = """
from pathlib import Path

def test_passes_the_second_time():
    before = Path("before")
    if not before.exists():
        before.touch()
        raise AssertionError("first")

def test_fails():
    assert not Path("broken").exists()

def test_passes():
    Path("passes").open("a").write("!")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A small suite; each call runs Python in it."""
    (tmp_path / "test_it.py").write_text(FLAKY, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q\n", encoding="utf-8")

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)

    return python


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_failed_tests_are_repeated_alone(
    suite: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, broken: bool
) -> None:
    """A test that passes now is named; one that fails again is a failure; the last line is the summary of pytest."""
    if broken:
        (tmp_path / "broken").touch()
    assert suite("-m", "pytest", "-n", "2").returncode == 1
    (tmp_path / "exit").write_text("1\n", encoding="utf-8")
    done = suite(str(CI / "retest.py"), "exit")
    assert done.returncode == (1 if broken else 0)
    assert "FLAKY test_it.py::test_passes_the_second_time: failed in the full run and passed alone" in done.stdout
    assert ("1 failed, 1 passed" if broken else "1 passed") in done.stdout.splitlines()[-1]
    assert (tmp_path / "passes").read_text() == "!"


@pytest.mark.parametrize(
    ("exit_code", "failed", "why"),
    [
        ("2", ["a"], "the last run ended with exit code 2; 1 is a complete run with failed tests"),
        ("none", ["a"], "the last run ended with exit code none"),
        ("1", [], "the last run has no failed test"),
        ("1", ["a", "b", "c", "d"], "4 tests failed, and more than 3 are no accident"),
        ("1", ["a", "b", "c"], None),
    ],
)
def test_a_run_with_many_failures_or_without_an_end_is_not_repeated(
    exit_code: str, failed: list[str], why: str | None
) -> None:
    """Only a complete run with a few failed tests is."""
    reason = runpy.run_path(str(CI / "retest.py"))["refusal"](exit_code, failed)
    assert reason is why is None or reason.startswith(why)
