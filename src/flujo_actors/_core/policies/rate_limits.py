"""Rate limits of providers, shared by all processes of a store.

Rules:

1. A rate is a virtual clock (GCRA): `free_at` is the time at which all reserved work would be done at the limit. A
   reservation of n moves it by `n * 60 / limit` seconds, and is granted for `free_at - burst_s` before the move.
2. A reservation and its waiting time come from one statement, so waiting requests are in order and none polls for a
   grant. A reservation that had to wait longer than `max_wait_s` is refused, and nothing is reserved.
3. Unused seconds of a reservation are refunded: `free_at` moves back, and `refunded` counts them. A waiting request
   starts earlier by the refunds since its grant.
4. A new bucket of tokens has no burst yet: its first calls have guessed sizes, and the burst of a starting fleet would
   exceed the rate of any short window. A bucket of requests starts with its burst.
5. A provider that answers 429 blocks the bucket: no request of any process starts before `blocked_until`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs

from ...errors import DeclarationError
from ..records.records import Lease
from ..validators import brief_repr, is_count, is_number, suggests_options

LONGEST_BLOCK_S = 60.0
"""Longest block after a 429 without `Retry-After`."""

LOOK_S = 0.25
"""Interval at which a waiting request reads its bucket."""


@suggests_options
@attrs.frozen
class RateLimit:
    """Named limit of a provider, shared by all processes of a store.

    Args:
        name: name of the bucket.
        requests_per_min: requests per minute.
        tokens_per_min: tokens per minute; a request reserves its estimated size.
        at_once: requests in flight over all processes.
        burst_s: seconds of the rate that may be used at once.
        max_wait_s: longest wait; then the attempt fails with `RateLimited`.

    Raises:
        DeclarationError: no rate is given, or a value is not positive.

    Example:
        ```python
        openai = RateLimit("openai", requests_per_min=500, tokens_per_min=200_000, at_once=20)
        step = Step("write", make_agent_async(scripted_model("ok"), rate_limit=openai))
        assert Flujo(step).run("hello").output == "ok"
        ```
    """

    name: str
    requests_per_min: float | None = attrs.field(default=None, kw_only=True)
    tokens_per_min: float | None = attrs.field(default=None, kw_only=True)
    at_once: int | None = attrs.field(default=None, kw_only=True)
    """Maximum number of concurrent requests."""
    burst_s: float = attrs.field(default=5.0, kw_only=True)
    """Seconds of the rate that may be used at once."""
    max_wait_s: float = attrs.field(default=600.0, kw_only=True)
    """Longest wait of a request; a longer one fails with `RateLimited`."""

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= 200 or not self.name.isprintable():
            raise DeclarationError(
                f"a RateLimit's name must have 1 to 200 printable characters, not {self.name!r:.250}"
            )
        for option in ("requests_per_min", "tokens_per_min"):
            self._require(option, "a finite number > 0", above=True)
        self._require("burst_s", "a finite number >= 0")
        self._require("max_wait_s", "a finite number >= 0")
        if self.at_once is not None and not is_count(self.at_once):
            raise DeclarationError(
                f"{self._title}: at_once must be a whole number >= 1, not {brief_repr(self.at_once)}"
            )
        if self.requests_per_min is None and self.tokens_per_min is None and self.at_once is None:
            raise DeclarationError(f"{self._title}: give requests_per_min, tokens_per_min or at_once")

    @property
    def _title(self) -> str:
        return f"RateLimit({self.name!r})"

    def _require(self, option: str, wanted: str, *, above: bool = False) -> None:
        value = getattr(self, option)
        if value is None:
            return
        if not is_number(value) or value < 0 or (above and value == 0):
            raise DeclarationError(f"{self._title}: {option} must be {wanted}, not {brief_repr(value)}")


@attrs.frozen(kw_only=True)
class RateReservation:
    """A request's amount of one resource, in seconds of its rate."""

    name: str
    resource: str
    seconds: float
    burst_s: float
    max_wait_s: float
    opening_s: float = 0.0
    """Seconds of the rate that are in use in a new bucket (rule 4)."""


@attrs.frozen(kw_only=True)
class RateGrant:
    """Answer to a reservation, by the store's clock."""

    granted: bool
    free_at: float
    """Virtual clock after the reservation, or unchanged."""
    refunded: float
    blocked_until: float
    now: float
    starts_at: float
    """Time at which the request may start, or could have."""


@attrs.frozen(kw_only=True)
class RateInfo:
    """State of one resource of a rate limit."""

    name: str
    """Name of the rate limit."""
    resource: str
    """`"requests"`, `"tokens"` or `"at_once"`."""
    free_at: float | None = None
    """Time at which all reserved work is done; `None` for `at_once`."""
    blocked_until: float | None = None
    """End of a provider's refusal; `None` if there is none."""
    in_use: int = 0
    """Number of requests in flight, for `at_once`."""
    refunded: float = attrs.field(default=0.0, eq=False, repr=False)
    """Seconds given back by requests that used less."""


@attrs.define(kw_only=True)
class RateBucket:
    """One resource of a rate limit, for in-memory stores."""

    free_at: float = 0.0
    refunded: float = 0.0

    def reserve(self, wanted: RateReservation, now: float, blocked_until: float) -> RateGrant:
        """Reserve, or refuse an excessive wait (rules 1 and 2)."""
        begin = max(self.free_at, now)
        starts_at = max(begin - wanted.burst_s, blocked_until, now)
        granted = starts_at - now <= wanted.max_wait_s
        if granted:
            self.free_at = begin + wanted.seconds
        return RateGrant(
            granted=granted,
            free_at=self.free_at,
            refunded=self.refunded,
            blocked_until=blocked_until,
            now=now,
            starts_at=starts_at,
        )

    def settle(self, seconds: float, *, only_at: float | None = None) -> None:
        """Refund unused seconds; `only_at` requires that none reserved after it."""
        if only_at is None or self.free_at == only_at:
            self.free_at -= seconds
            self.refunded += seconds


PUT_AWAY_S = 5.0
"""Longest wait in process of a granular step that can be put away."""


class RateWait(Exception):
    """A request whose rate wait releases its run."""

    def __init__(self, name: str, facts: Mapping[str, object], paused: object = None) -> None:
        super().__init__(f"waits for the rate limit {name!r}")
        self.facts = facts
        """Start of the request and its reservations, as JSON data."""
        self.paused = paused
        """Recorded pause of this wait, if it was put away before."""


class RateTable:
    """Buckets and slots; callers hold a lock around every call."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], RateBucket] = {}
        self._blocked: dict[str, float] = {}
        self._slots: dict[str, dict[str, Lease]] = {}

    def reserve(self, wanted: RateReservation, now: float) -> RateGrant:
        """Reserve an amount, or refuse it."""
        key = (wanted.name, wanted.resource)
        bucket = self._buckets.get(key) or self._buckets.setdefault(key, RateBucket(free_at=now + wanted.opening_s))
        return bucket.reserve(wanted, now, self._blocked.get(wanted.name, 0.0))

    def settle(self, name: str, resource: str, seconds: float, only_at: float | None) -> None:
        """Refund unused seconds of a reservation."""
        bucket = self._buckets.get((name, resource))
        if bucket is not None:
            bucket.settle(seconds, only_at=only_at)

    def block(self, name: str, until: float) -> None:
        """Block a bucket."""
        self._blocked[name] = max(until, self._blocked.get(name, 0.0))

    def take(self, lease: Lease, name: str, holder: str, limit: int, lasts: Callable[[Lease], bool]) -> bool:
        """Take a slot, if one is free."""
        slots = self._slots[name] = {key: each for key, each in self._slots.get(name, {}).items() if lasts(each)}
        if len(slots) >= limit:
            return False
        slots[holder] = lease
        return True

    def release(self, name: str, holder: str) -> None:
        """Release a slot."""
        self._slots.get(name, {}).pop(holder, None)

    def infos(self, name: str | None, lasts: Callable[[Lease], bool]) -> list[RateInfo]:
        """Return the state of all resources by name."""
        found = [
            RateInfo(
                name=each,
                resource=resource,
                free_at=bucket.free_at,
                refunded=bucket.refunded,
                blocked_until=self._blocked.get(each),
            )
            for (each, resource), bucket in self._buckets.items()
        ]
        used = {each: sum(map(lasts, slots.values())) for each, slots in self._slots.items()}
        alone = {each for each in self._blocked if not any(info.name == each for info in found)}
        for each in {each for each, count in used.items() if count} | alone:
            found.append(
                RateInfo(name=each, resource="at_once", blocked_until=self._blocked.get(each), in_use=used.get(each, 0))
            )
        shown = [each for each in found if name in (None, each.name)]
        return sorted(shown, key=lambda each: (each.name, each.resource))


def block_s(retry_after: float, streak: int) -> float:
    """Return a block's length: as requested, or doubled per consecutive 429."""
    return retry_after if retry_after > 0 else min(LONGEST_BLOCK_S, 2.0 ** (max(1, streak) - 1))


def checked_limits(given: object, where: str) -> tuple[RateLimit, ...]:
    """Return one limit or several; `DeclarationError` for other values."""
    if given is None:
        return ()
    found = (given,) if isinstance(given, RateLimit) else given
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise DeclarationError(f"{where} must be RateLimit(…) or a list of them, not {brief_repr(given)}")
    limits = tuple(found)
    for each in limits:
        if not isinstance(each, RateLimit):
            raise DeclarationError(f"{where} must be RateLimit(…) or a list of them, not {brief_repr(each)}")
    return limits


class Rates(Protocol):
    """Optional: rate limits shared by all processes of the store."""

    def reserve(self, wanted: RateReservation) -> RateGrant:
        """Reserve an amount, or refuse it, in one statement.

        It is granted if it starts within `max_wait_s`; then the virtual clock moves by its seconds.
        """

    def settle(self, name: str, resource: str, seconds: float, *, only_at: float | None = None) -> None:
        """Refund seconds: the virtual clock moves back, `refunded` grows.

        With `only_at`, only if the virtual clock has this value: no later reservation was made.
        """

    def block(self, name: str, *, for_s: float) -> None:
        """Let no request of the bucket start for this time."""

    def slots(self, lease: Lease, name: str, holder: str, *, limit: int | None) -> bool:
        """Acquire a leased slot if fewer than `limit` are in use.

        Slots of ended leases are free. Without a limit, the holder's slot is released.
        """

    def rates(self, name: str | None = None) -> list[RateInfo]:
        """Return the state of rate limits, or of one."""
