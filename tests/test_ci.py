"""What CI runs besides tests: the check of the wheel, and the suite on every Python."""

from __future__ import annotations

import runpy
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
    strangers = runpy.run_path(str(CI / "wheel.py"))["strangers"]
    right = ["flujo_actors/__init__.py", "flujo_actors/testing/_clock.py", "flujo_actors-0.1.0.dist-info/RECORD"]
    wrong = ["flujo_actors/core/test_paths.py", "flujo_actors/tests/kit.py", "tests/kit.py"]
    assert strangers([*right, *wrong]) == wrong


def test_a_python_that_is_not_here_is_named_and_the_others_are_tested(
    matrix: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody takes a version for tested that was not there, and a missing one is no failure."""
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
    """A version is believed when the interpreter says it itself."""
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    assert matrix["says_version"](str(shim)) is None
    assert matrix["says_version"](str(tmp_path / "missing")) is None
