"""What the suite needs to know about a store under test."""

from __future__ import annotations

import abc

import pytest

from ..._core.outcomes import RunId
from ...stores._port import Store


class StorePlace(abc.ABC):
    """One empty place for runs: a file, a schema, a bucket. The suite gets a new one for each test."""

    between_processes = True
    """Whether another process that opens the place sees the same runs."""

    @abc.abstractmethod
    def open(self) -> Store:
        """A store on this place, as another process would open it; the place closes what it opened."""

    @abc.abstractmethod
    def advance(self, seconds: float) -> None:
        """Let time pass for the leases in all stores of this place."""

    def damage(self, run_id: RunId, seq: int, **columns: object) -> None:
        """Overwrite `kind` or `body` of a stored record, behind the store's back."""
        pytest.skip("this place cannot damage records")

    def damage_blobs(self, *, delete: bool) -> None:
        """Delete all blobs, or cut their last byte off, behind the store's back."""
        pytest.skip("this place has no blobs to damage")

    def count_blobs(self) -> int:
        """How many blobs are stored."""
        pytest.skip("this place has no blobs")

    def set_version(self, version: int) -> None:
        """Make the place look as if another version of the schema had written it."""
        pytest.skip("this place has no schema")

    def version(self) -> int:
        """The version of the schema."""
        pytest.skip("this place has no schema")

    def dump(self) -> list[str]:
        """Everything that is stored, to see whether it changed."""
        pytest.skip("this place cannot be dumped")
