"""Remote steps in a store: how they are opened, and how they come to rest."""

from __future__ import annotations

from functools import partial

import attrs

from .._core import record_bodies
from .._core.outcomes import RunId, Success
from .._core.paths import ROOT, StepPath
from .._core.records import Append, Lease, Record, StoredStatus
from .._durable.admissions import answer_schema_at, step_at
from .._durable.journal import Recorded
from .._durable.runs import OpenRun
from .._durable.store_journal import StoreJournal
from .._durable.stored_runs import StoredRuns
from ..errors import CorruptRecord, FingerprintMismatch
from .asking import Asked, read_asked


class RemoteJournal(StoreJournal):
    """The journal of a remote step; see rule 2."""

    top: StepPath | None = None
    """The single step that this is all about."""

    async def settled(self, path: StepPath, record: Recorded) -> Recorded:
        if path != self.top:
            return await super().settled(path, record)
        append = Append(
            lease=self.lease,
            records=(self._settled_record(path, record),),
            withdrawn=self._withdraw(path),
            evidence=record.evidence,
            status="completed" if isinstance(record.outcome, Success) else "failed",
            release=True,
        )
        await self._writer.write(append, self, None)
        self.at_rest = True
        return record

    async def end(self, status: StoredStatus, **said: object) -> None:
        """The remote run has come to rest."""
        await self._write("ended", ROOT, record_bodies.make_body(status=status, **said), status=status, release=True)
        self.at_rest = True

    async def park(self) -> None:
        """Nobody waits for it: it wants no worker until somebody does."""
        await self._writer.write(Append(lease=self.lease, records=(), status="paused", release=True), None, None)
        self.at_rest = True


@attrs.define(kw_only=True, eq=False)
class RemoteRuns(StoredRuns):
    """Remote steps in a store, of callers that have the same pipeline."""

    version: str
    asked: Asked | None = attrs.field(default=None, init=False)

    def _given(self, run_id: RunId, records: list[Record]) -> tuple[object, object]:
        where = f"record 1 of the remote step {run_id!r}"
        if not records or records[0].kind != "admitted":
            raise CorruptRecord(f"{where}: it is not its admission")
        body = record_bodies.read_body(records[0].body, where=where)
        self.asked = read_asked(body, where=where)
        if self.asked.version != self.version and self.mode == "strict":
            raise FingerprintMismatch(
                f"{run_id!r} is a step of another version of the pipeline: it was asked for by {self.asked.version}, "
                f"and this worker plays {self.version}"
            )
        return None, None

    async def put_back(self, run: OpenRun) -> None:
        """Give up what is not finished; one that asks something is not paused by that: others have its rest to do."""
        journal = run.journal
        assert isinstance(journal, RemoteJournal)
        if journal.at_rest:
            await super().put_back(run)
        else:
            await self._release(journal.lease)

    def _journal(self, lease: Lease) -> RemoteJournal:
        return RemoteJournal(
            self.store,
            self._writer(),
            lease,
            redact=self.redact,
            schema_of=partial(answer_schema_at, self.pipeline),
            step_at=partial(step_at, self.pipeline),
            cold=self.settings.cold,
        )
