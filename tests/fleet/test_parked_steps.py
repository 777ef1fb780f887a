"""Remote steps whose caller is cancelled while they are requested: no worker performs them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from flujo_actors import Flujo, Step
from flujo_actors._core.outcomes import RunId
from flujo_actors._fleet import map_batches, remote_dispatcher
from flujo_actors._fleet.map_batches import Batch
from flujo_actors._fleet.remote_dispatcher import RemoteDispatcher
from flujo_actors.stores import PostgresStore
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow

SOON_S = 0.3
"""How long a slow call of the store waits for a parking that must not overtake it."""


class SlowStore(PostgresStore):
    """A store in which a call about remote steps is slow, so that a parking might overtake it."""

    def __init__(self, slow: str) -> None:
        super().__init__(session_server().fresh_url())
        self.slow, self.begun, self.parked = slow, threading.Event(), threading.Event()

    def _called(self, name: str) -> None:
        if name == self.slow:
            self.begun.set()
            self.parked.wait(SOON_S)

    def admit_and_notify(self, admissions: Any, notify: Any) -> Any:
        self._called("admit_and_notify")
        return super().admit_and_notify(admissions, notify)

    def requeue(self, run_ids: Any) -> None:
        self._called("requeue")
        super().requeue(run_ids)

    def park(self, run_ids: Any, *, reason: str) -> None:
        super().park(run_ids, reason=reason)
        self.parked.set()


async def double(number: int) -> int:
    return 2 * number


async def cancelled_when(flujo: Flujo[Any, Any, Any], ready: Callable[[], bool], given: Any = 1) -> None:
    """Run it, and cancel its caller as soon as that is true."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: flujo.run_async(given, run_id="r"))
        with trio.fail_after(120):
            while not ready():
                await trio.sleep(0.002)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("slow", ["admit_and_notify", "requeue"])
def test_a_step_that_is_requested_while_its_caller_is_cancelled_is_parked(slow: str) -> None:
    """Whether it is requested for the first time or again."""
    store = SlowStore(slow)
    flujo = Flujo(
        Step("double", double, runs_on="gpu"),
        store=store,
        engine="postgres",
        settings={"fleet": {"look_s": 0.01, "unclaimed_s": 0.01}},
    )

    async def main() -> None:
        await cancelled_when(flujo, store.begun.is_set)
        await trio.sleep(2 * SOON_S)  # an overtaken call has reached the store by then

    trio.run(main)
    [child] = store.children(RunId("r"))
    assert [run.status for run in store.standing([child])] == ["paused"]


def test_a_batch_of_cancelled_items_is_not_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were cancelled while they waited for another item, which was settled before."""
    send_late, waiting = RemoteDispatcher._send_late, trio.Event()

    async def begun(self: RemoteDispatcher, *given: Any) -> None:
        waiting.set()
        await send_late(self, *given)

    monkeypatch.setattr(RemoteDispatcher, "_send_late", begun)
    monkeypatch.setattr(map_batches, "Batch", lambda path, size: Batch(path=path, size=size + 1))
    monkeypatch.setattr(remote_dispatcher, "GATHER_S", 0.1)
    store = PostgresStore(session_server().fresh_url())
    items = Step.map_over("items", Step("double", double, runs_on="gpu"), batch=4)

    async def main() -> None:
        await cancelled_when(Flujo(items, store=store, engine="postgres"), waiting.is_set, [1, 2, 3, 4])
        await trio.sleep(0.4)

    trio.run(main)
    assert store.children(RunId("r")) == []
