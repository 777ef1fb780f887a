"""The store that fails on demand does so at the call it was told, and only there."""

from __future__ import annotations

import pytest

from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Append
from flujo_actors.errors import RunNotFound, StoreError
from flujo_actors.stores._memory_store import MemoryStore
from flujo_actors.testing._store_clauses.store_target import admit, bodies, record, write
from flujo_actors.testing.faulty_store import FaultyStore, store_faults
from flujo_actors.testing.store_conformance import StoreConformance


class TestWithoutFaults(StoreConformance):
    """A wrapper that was told nothing is as good as the store below it."""

    @pytest.fixture
    def place(self, memory_place):
        return memory_place

    @pytest.fixture
    def store(self, memory_place):
        return FaultyStore(memory_place.open())


def test_a_call_that_fails_before_never_reaches_the_store():
    """The n-th call fails, the one after it works."""
    below = MemoryStore()
    store = FaultyStore(below, fail_at=2)
    lease = admit(store)
    with pytest.raises(StoreError):
        write(store, lease, record("a"))
    assert bodies(below) == []
    assert write(store, lease, record("b")) is None
    assert store.calls == ["admit", "append", "append"]


def test_a_call_that_fails_after_was_done():
    """An answer that is lost is not a write that is lost."""
    below = MemoryStore()
    store = FaultyStore(below, fail_at=1, when="after")
    with pytest.raises(StoreError):
        admit(store)
    assert below.get(RunId("run")).records == 1


def test_a_fault_can_last():
    """Several calls in a row fail, with the error that was asked for."""
    store = FaultyStore(MemoryStore(), fail_at=1, times=2, error=store_faults()["full"])
    for _ in range(2):
        with pytest.raises(StoreError, match="full") as caught:
            store.get(RunId("run"))
        assert caught.value.__cause__ is not None
    with pytest.raises(RunNotFound):
        store.get(RunId("run"))


@pytest.mark.parametrize(
    ("fail_at", "when", "written"), [(2, "before", 0), (3, "before", 0), (4, "before", 0), (4, "after", 1)]
)
def test_a_transaction_fails_at_each_of_its_calls(fail_at, when, written):
    """Opening, appending and committing are calls of their own."""
    below = MemoryStore()
    store = FaultyStore(below, fail_at=fail_at, when=when)
    lease = admit(store)

    def transact():
        with store.transaction() as transaction:
            transaction.append(Append(lease=lease, records=(record("a"),)))

    with pytest.raises(StoreError):
        transact()
    assert len(bodies(below)) == written


def test_a_call_can_be_held_up():
    """A slow store is slow at the call it was told, and then does it."""
    store = FaultyStore(MemoryStore(), hold_at=1, hold_s=0.01)
    assert admit(store).epoch == 1
