"""Owners that are frozen around an acknowledged cancel: the run ends as aborted, and each step is compensated."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from flujo_actors import Flujo, RunClient, Step, Undo
from flujo_actors._core.attempt_results import CancelPending
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Append
from flujo_actors.errors import FlujoError, LeaseLost, NotPaused, RunLeased, StoreError
from flujo_actors.stores._memory_store import MemoryStore
from flujo_actors.testing import World, faults, simulate

pytestmark = pytest.mark.slow

RUN = RunId("r")
FROZEN_S = 45.0
"""Longer than a lease."""


def booked(world: World) -> Flujo:
    """Two steps with an effect and a compensation each, which deduplicate by their keys."""

    def booking(name: str) -> Step:
        async def book(data: object, *, idempotency_key: str) -> object:
            await world.sleep(world.rng.uniform(0, 3))
            once(world, f"book {name}", idempotency_key)
            return data

        async def undo(entry: Undo, *, idempotency_key: str) -> None:
            await world.sleep(world.rng.uniform(0, 3))
            once(world, f"undo {name}", idempotency_key)

        return Step(name, book, compensate=undo)

    return Flujo(booking("flight") >> booking("car"), store=world.store)


def once(world: World, name: str, key: str) -> None:
    if all(effect.key != key for effect in world.effects):
        world.effect(name, key=key)


def aborted(world: World) -> str | None:
    """Return the broken promise of a cancelled run, or None."""
    kinds = [event.kind for event in world.events]
    ends = [place for place, event in enumerate(world.events) if "ended ''" in event.text]
    written = [end for end in ends if not world.events[end].fault and "refused" not in kinds[end : end + 2]]
    if "cancelled" not in kinds or (written and written[0] < kinds.index("cancelled")):
        return None
    if world.result is None or world.result.status != "aborted":
        return f"the run was cancelled, and it is {world.result and world.result.status}"
    names = [effect.name for effect in world.effects]
    missing = [name for name in ("flight", "car") if names.count(f"book {name}") > names.count(f"undo {name}")]
    return f"{missing[0]!r} is not compensated" if missing else None


def cancel(world: World) -> None:
    with contextlib.suppress(FlujoError):
        RunClient(world.store, allow_blocking=True).cancel("r", "enough")
        world.note("cancelled", "")


def claim_elsewhere(world: World) -> None:
    """Claim the run as another process, which then dies."""
    with contextlib.suppress(FlujoError):
        world.store.claim(RUN, owner="other:0:process:::", lease_s=30.0)
        world.note("claimed elsewhere", "")


async def life(world: World, flujo: Flujo) -> Any:
    try:
        return await (flujo.resume_async("r") if world.records() else flujo.run_async(1, run_id="r"))
    except (LeaseLost, NotPaused, RunLeased, StoreError):
        return None


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("cancelled", ["before", "after"])
def test_an_owner_that_is_frozen_around_a_cancel_ends_its_run_as_aborted(cancelled: str, *, claimed: bool) -> None:
    """It thaws after its lease has expired, and another process may have claimed the run."""

    async def freeze(world: World) -> None:
        await trio.sleep(world.rng.uniform(0, 6))
        if cancelled == "before":
            cancel(world)
        world.process.now += FROZEN_S
        if cancelled == "after":
            cancel(world)
        if claimed:
            claim_elsewhere(world)

    async def drive(world: World, flujo: Flujo) -> Any:
        async with trio.open_nursery() as nursery:
            if world.life == 1:
                nursery.start_soon(freeze, world)
            return await life(world, flujo)

    seen: list[World] = []
    simulate(
        booked, seeds=40, faults=faults.none(), drive=drive, check=lambda world: seen.append(world) or aborted(world)
    )
    statuses = [world.result.status for world in seen if world.result is not None]
    assert statuses.count("aborted") > 10
    kinds = faults.only("crash", "store_slow", "store_fails", "ack_lost")
    simulate(
        booked, seeds=40, faults=kinds, drive=drive, check=lambda world: aborted(world) if world.records() else None
    )


@pytest.mark.parametrize("claimed", [False, True])
def test_an_owner_that_is_frozen_after_the_refusal_of_its_end_ends_its_run_as_aborted(
    monkeypatch: pytest.MonkeyPatch, *, claimed: bool
) -> None:
    """A store refuses to complete a cancelled run; before the owner continues, its lease expires."""
    worlds: list[World] = []
    write = MemoryStore.append

    def append(self: MemoryStore, batch: Sequence[Append]) -> Any:
        world = worlds[-1]
        if not any(each.unless_cancelled for each in batch) or refused(world):
            return write(self, batch)
        cancel(world)
        verdicts = write(self, batch)
        assert any(isinstance(each, CancelPending) for each in verdicts)
        world.process.now += FROZEN_S
        if claimed:
            claim_elsewhere(world)
        return verdicts

    def app(world: World) -> Flujo:
        worlds.append(world)
        return booked(world)

    def check(world: World) -> str | None:
        return aborted(world) if refused(world) else None

    monkeypatch.setattr(MemoryStore, "append", append)
    simulate(app, seeds=40, faults=faults.none(), drive=life, check=check)
    assert all(map(refused, worlds))
    simulate(app, seeds=40, faults=faults.only("crash", "store_slow", "lease_lost"), drive=life, check=check)


def refused(world: World) -> bool:
    return any(event.kind == "cancelled" for event in world.events)
