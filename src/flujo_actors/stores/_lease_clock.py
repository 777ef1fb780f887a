"""Lease clock of one boot's processes, independent of wall time."""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path
from typing import Protocol

import attrs

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LeaseClock(Protocol):
    """Seconds that only go forward, and which boot they are counted from."""

    def boot(self) -> str:
        """Return the origin of the seconds, different for each boot."""

    def now(self) -> float:
        """Seconds since then."""


@attrs.frozen
class SystemClock:
    """The operating system's monotonic clock, which all processes of one boot share."""

    def boot(self) -> str:
        return _this_boot()

    def now(self) -> float:
        return time.monotonic()


@attrs.define
class ManualClock:
    """Clock for tests that advances only on request."""

    seconds: float = 1000.0
    boot_name: str = "manual"

    def boot(self) -> str:
        return self.boot_name

    def now(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@functools.cache
def boot_id() -> str | None:
    """Return the id of this boot, or None without one."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else None


def _this_boot() -> str:
    # Without boot ids, a lease of an earlier boot is recognized by a grant time in the future: see `held` in the
    # stores.
    return boot_id() or sys.platform
