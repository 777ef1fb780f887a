"""Pytest fixtures; import those you want into a test module or a `conftest.py`.

    from flujo_actors.testing.fixtures import mock_clock_run as mock_clock_run

Nothing is registered by itself, and nothing here needs a plugin; `jumping_clock` is for tests that pytest-trio runs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .._core.outcomes import PipelineResult
from ._clock import JumpingClock
from ._recorder import Recorder, run_on_mock_clock


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
