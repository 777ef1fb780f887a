"""When the leases of open runs are renewed, and when they are given up: decided from times, without a clock.

Rules:

1. Leases are renewed together, three times per lease. One renewal is under way at a time.
2. A lease is given up when it must have expired, and the store has refused to renew it or has not answered for a third
   of a lease. Whoever comes late to renew, say because its machine slept, asks first: perhaps nobody wanted the run.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.define(kw_only=True)
class LeaseTimes:
    """What is known of the renewals of some leases; see the module's rules."""

    lease_s: float
    asked_at: float
    """When the store was last asked to renew, or when the first lease was granted."""
    asking: bool = False
    """Whether it has not answered yet."""
    failed: bool = False
    """Whether the last answer was an error."""

    @property
    def every_s(self) -> float:
        return self.lease_s / 3

    def is_due(self, now: float) -> bool:
        """Whether to ask the store now."""
        return not self.asking and now >= self.asked_at + self.every_s

    def is_over(self, until: float, now: float, *, silent_s: float) -> bool:
        """Whether to give up a lease that lasts until then, the store having been silent for so long."""
        return now >= until and (self.failed or (self.asking and silent_s >= self.every_s))

    def next_look(self, untils: Iterable[float], now: float) -> float:
        """When something may have to be done next; an answer that comes meanwhile makes it no earlier."""
        times = (self.asked_at + self.every_s, now + self.every_s, *untils)
        return min(time for time in times if time > now)
