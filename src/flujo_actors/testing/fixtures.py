"""Pytest fixtures and tests from stored runs.

Import the fixtures into a test module or a `conftest.py`:

    from flujo_actors.testing.fixtures import mock_clock_run as mock_clock_run

Nothing is registered automatically, and no plugin is needed; `jumping_clock` is for tests that pytest-trio runs.
`flujo_actors.testing.test_from_run` and `tests_from_runs` make tests of run files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._core.lazy_exports import missing_extra
from .._core.outcomes import PipelineResult
from ..errors import DeclarationError
from ._recorder import JumpingClock, Recorder, run_on_mock_clock

try:
    import pytest
except ModuleNotFoundError as _missing:
    raise missing_extra(_missing, extra=None, needed_by="flujo_actors.testing.fixtures") from _missing


@pytest.fixture
def recorder() -> Recorder:
    """A recorder for one test."""
    return Recorder()


@pytest.fixture
def jumping_clock() -> JumpingClock:
    """The clock of the test: pytest-trio runs the test on it."""
    return JumpingClock()


@pytest.fixture
def mock_clock_run() -> Callable[..., PipelineResult]:
    """`mock_clock_run(flujo, data, recorder=None)`: the result of a run that waits for nothing."""
    return run_on_mock_clock


# --- Tests from run files -----------------------------------------------------------------------------------------


def test_from_run(path: str | os.PathLike[str], flujo: Any) -> Callable[[], None]:
    """Return a test that replays a run file until a difference.

    `test_refund = test_from_run("runs/refund.flujo.jsonl", flujo)`: the path is relative to the calling file.
    `flujo` is a `Flujo`, or a function that returns one.

    Args:
        path: run file, relative to the calling file.
        flujo: pipeline under test.
    """
    file = _beside_caller(path)

    def test() -> None:
        """The present code gives the recorded run."""
        replay_file(file, flujo)

    return test


def tests_from_runs(folder: str | os.PathLike[str], flujo: Any) -> Callable[[Path], None]:
    """Return one test per run file of a folder, by name.

    Args:
        folder: folder of run files, relative to the calling file.
        flujo: pipeline under test.
    """
    where = _beside_caller(folder)
    files = sorted(where.rglob("*.flujo.jsonl"))
    if not files:
        raise DeclarationError(f"tests_from_runs: there is no *.flujo.jsonl in {where.name!r}")

    @pytest.mark.parametrize("run_file", files, ids=[file.relative_to(where).as_posix() for file in files])
    def test(run_file: Path) -> None:
        """The present code gives the recorded run."""
        replay_file(run_file, flujo)

    return test


test_from_run.__test__ = tests_from_runs.__test__ = False  # type: ignore[attr-defined]  # pytest collects neither


def replay_file(file: Path, flujo: Any) -> None:
    """Replay a run file; fail the test unless it is the same."""
    __tracebackhide__ = True
    made = flujo if hasattr(flujo, "replay") else flujo()
    replay = made.replay(file)
    if replay.verdict != "same":
        pytest.fail(f"{file.name}: {replay}", pytrace=False)


def _beside_caller(path: str | os.PathLike[str]) -> Path:
    """Return a path relative to the file that called the caller."""
    return Path(sys._getframe(2).f_code.co_filename).resolve().parent / path
