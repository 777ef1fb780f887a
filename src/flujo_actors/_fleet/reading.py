"""Reading what remote steps have written: those that end together are read together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import trio
from outcome import Outcome, Value, capture

from .._bridge.guard import guarded
from .._core.outcomes import RunId
from .._core.records import Record
from .._durable.store_wait import call_store
from .._durable.stored_runs import StoredRuns
from ..stores import _refusals as refusals
from ..stores._port import Store
from .errands import End, end_in
from .seen_journal import SeenJournal, seen_journal

_TOGETHER = 50
"""How many are read at once: each may hold megabytes."""


@attrs.define(eq=False)
class _Wanted:
    """A remote step that somebody wants to read, and what came of that."""

    journal: SeenJournal
    got: Outcome[End | None] | None = None
    done: trio.Event = attrs.field(factory=trio.Event)

    @property
    def child(self) -> RunId:
        return self.journal.lease.run_id


@attrs.define(eq=False)
class Reading:
    """Reads remote steps for one trio run: while some are read, the next are gathered."""

    runs: StoredRuns
    _wanted: list[_Wanted] = attrs.field(factory=list, init=False)
    _reads: bool = attrs.field(default=False, init=False)

    async def read(self, child: RunId) -> tuple[SeenJournal, End | None]:
        """What a remote step has written, and how it came to rest, if it has."""
        wanted = _Wanted(seen_journal(self.runs, child))
        self._wanted.append(wanted)
        if not self._reads:
            self._reads = True
            trio.lowlevel.spawn_system_task(self._read_all)
        await wanted.done.wait()
        assert wanted.got is not None
        return wanted.journal, wanted.got.unwrap()

    async def _read_all(self) -> None:
        await trio.lowlevel.checkpoint()  # for company: signals come together
        while self._wanted:
            part, self._wanted = self._wanted[:_TOGETHER], self._wanted[_TOGETHER:]
            got = await guarded(call_store, lambda part=part: _load_all(self.runs.store, part))
            for wanted in part:
                wanted.got = wanted.got if isinstance(got, Value) else got
                wanted.done.set()
        self._reads = False


def _load_all(store: Store, wanted: Sequence[_Wanted]) -> None:
    """Read them all, and let each have its own; blocks."""
    found = _records_of(store, [each.child for each in wanted])
    for each in wanted:
        each.got = capture(_load, each.journal, found.get(each.child))


def _records_of(store: Store, children: Sequence[RunId]) -> Mapping[RunId, Sequence[Record]]:
    if len(children) == 1 or not hasattr(store, "read_all"):  # few stores have it
        return {child: store.read(child) for child in children}
    found: Mapping[RunId, Sequence[Record]] = store.read_all(children)
    return found


def _load(journal: SeenJournal, records: Sequence[Record] | None) -> End | None:
    child = journal.lease.run_id
    if records is None:
        raise refusals.not_found(child)
    journal.load(records)
    return end_in(records, where=f"the remote step {child!r}")
