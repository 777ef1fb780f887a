"""Asking for room in quotas that other processes draw on, too: what they have is known once the store was asked."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TypeVar

from .._core.quota import Amount, Quota, Shared
from .._core.usage import NO_USAGE, Usage
from .._locks import QUOTA_LOCK
from .waiting_requests import waiting

T = TypeVar("T")

LOOK_S = 0.2
"""How often whoever waits for other processes asks whether there is room now."""

GiveBack = Callable[[tuple[Amount, ...], Usage], None]
"""Counts what was used instead of what was set aside."""


async def granted_by_all(
    shared: Shared, quotas: tuple[Quota, ...], caller: str, sure: Amount, *, give_back: GiveBack
) -> tuple[Amount, ...]:
    """What was set aside for a request, as soon as there is room for it; `UsageLimitExceededError` if there is none."""
    while True:
        reserved = await _taken(functools.partial(shared.take, quotas, caller, sure), give_back)
        if reserved is not None:
            return reserved
        with QUOTA_LOCK:
            verdicts = {quota.ask(caller, sure): quota for quota in quotas}
            if "refused" in verdicts:
                raise verdicts["refused"].error(caller, sure)
            settled = waiting.join()
        if "wait" in verdicts:
            await asyncio.wait([settled], timeout=LOOK_S)


async def begun_with_all(quotas: tuple[Quota, ...], one: Amount) -> Quota | None:
    """Count what begins in all of the quotas; the one that is against it, if one is."""
    shared = quotas[0].shared
    assert shared is not None
    return await _in_thread(functools.partial(shared.take_one, quotas, one))


async def _taken(take: Callable[[], tuple[Amount, ...] | None], give_back: GiveBack) -> tuple[Amount, ...] | None:
    """What was set aside; given back if nobody is there any more to make the request."""

    def left(taken: asyncio.Future[tuple[Amount, ...] | None]) -> None:
        reserved = None if taken.cancelled() or taken.exception() is not None else taken.result()
        if reserved is not None:
            give_back(reserved, NO_USAGE)

    taking = asyncio.ensure_future(_in_thread(take))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(left)
        raise


async def _in_thread(do: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, do)
