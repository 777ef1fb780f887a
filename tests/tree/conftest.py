"""The runtime's tests again, on cold runs: `COLD_RUNS=1 pytest tests/tree`.

Every `Flujo` then has a store, and goes on after each step from what the store says instead of from memory. What cannot
hold there is listed by name below, with the reason.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from flujo_actors import Flujo
from flujo_actors._api.settings_loader import resolve_settings
from flujo_actors._core.settings_model import DurabilitySettings
from flujo_actors.stores.sqlite._store import SqliteStore
from flujo_actors.testing import JumpingClock

COLD = os.environ.get("COLD_RUNS") == "1"

_UNSTORABLE = "what the step leaves cannot be stored, so it fails there"

NOT_COLD: Mapping[str, str] = {
    "test_a_context_that_cannot_be_copied_names_the_key": _UNSTORABLE,
    "test_map_over_an_iterator_that_a_step_made": _UNSTORABLE,
    "test_what_cannot_be_copied_is_shared": "what cannot be copied cannot be stored either",
    "test_in_a_chain_the_output_is_handed_on_as_it_is": "every step gets what the store says",
    "test_leaving_the_block_ends_the_run": "leases are renewed, so a clock that jumps over waiting has where to jump",
}
"""Tests that cannot hold in a cold run, by name."""


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Leave out what cannot hold, saying why."""
    for item in items:
        name = getattr(item, "originalname", item.name)
        if COLD and name in NOT_COLD:
            item.add_marker(pytest.mark.skip(reason=NOT_COLD[name]))


@pytest.fixture(autouse=True)
def _cold_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    if COLD:
        monkeypatch.setattr(Flujo, "__init__", _cold(Flujo.__init__))


def _cold(init: Any) -> Any:
    @functools.wraps(init)
    def make(self: Flujo, *arguments: Any, **options: Any) -> None:
        settings = resolve_settings(options.pop("settings", None))
        cold = attrs.evolve(settings, durability=DurabilitySettings(cold=True))
        options.setdefault("store", SqliteStore(":memory:"))
        init(self, *arguments, settings=cold, **options)

    return make


@pytest.fixture
def autojump_clock() -> trio.abc.Clock:
    """A store's calls are made in threads: where runs are cold, the clock must not jump over them."""
    return JumpingClock() if COLD else trio.testing.MockClock(autojump_threshold=0.0)
