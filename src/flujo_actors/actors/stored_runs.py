"""Runs that survive their process: kept in a store, owned by one process at a time.

Rules:

1. A run exists in the store before any of its work is done.
2. Opening a run claims its lease; putting it back releases it. While it is open the lease is renewed, and if it is lost
   all the same, the run is cancelled at once.
3. A run is resumed only by the pipeline it was started with, unless the caller says otherwise.
4. An answer is in the store before anything is done with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import attrs
import trio

from ..core import bodies
from ..core.outcomes import PipelineResult, RunId
from ..core.paths import ROOT
from ..core.records import Admission, Append, Lease, Record, RunQuery
from ..core.settings import DurabilitySettings
from ..core.tokens import parse_token
from ..core.wire import encode
from ..dsl.fingerprint import Fingerprint, compare
from ..dsl.kinds import HumanInTheLoop
from ..dsl.pipeline import Pipeline
from ..dsl.tree import find_step
from ..errors import FingerprintMismatch, NotPaused, StoreError
from ..stores.port import Store
from .journal import Pause
from .journal_writer import JournalWriter, new_owner, writer_for
from .runs import Hold, OpenRun, ResumeMode
from .store_journal import StoreJournal


@attrs.define(kw_only=True, eq=False)
class StoredRuns:
    """The runs of one pipeline in a store; see the module's rules."""

    store: Store
    pipeline: Pipeline
    settings: DurabilitySettings
    redact: bodies.Redact
    mode: ResumeMode = "strict"

    async def admit(self, run_id: RunId, data: Any, context: Any) -> OpenRun:
        fingerprint = Fingerprint.of(self.pipeline)
        body = bodies.make_body(input=encode(data), context=encode(context), fingerprint=list(fingerprint.lines))
        admission = Admission(run_id=run_id, pipeline=fingerprint.name, body=body)
        lease = await self._writer().admit(admission)
        return OpenRun(run_id=run_id, data=data, context=context, journal=self._journal(lease))

    async def pause_at(self, token: str) -> Pause:
        run_id, path = parse_token(token)
        run = await _in_thread(lambda: self.store.get(run_id))
        waiting = next((pause for pause in run.pauses if pause.token == token), None)
        if waiting is None:
            raise NotPaused(f"run {run_id!r} is {run.status}; nothing in it waits for an answer at {token!r}")
        journal = self._journal(Lease(run_id=run_id, owner="", epoch=0))
        journal.load([Record(kind="paused", path=path, body=waiting.body)])
        pause = journal.waiting(path)
        assert pause is not None
        return pause

    async def answer(self, token: str, answer: Any) -> OpenRun:
        run_id, path = parse_token(token)
        record = Record(kind="answered", path=path, body=bodies.make_body(answer=encode(answer)))
        await _in_thread(lambda: self.store.answer(run_id, path, token=token, record=record))
        return await self.reopen(run_id)

    async def reopen(self, run_id: RunId) -> OpenRun:
        run = await _in_thread(lambda: self.store.get(run_id))
        if run.status not in ("running", "paused"):
            raise NotPaused(f"run {run_id!r} has ended as {run.status}; there is nothing left to resume")
        lease = await _in_thread(lambda: self.store.claim(run_id, owner=new_owner(), lease_s=self.settings.lease_s))
        try:
            return await self._opened(lease)
        except BaseException:
            await self._release(lease)
            raise

    async def _opened(self, lease: Lease) -> OpenRun:
        records = await _in_thread(lambda: self.store.read(lease.run_id))
        if not records or records[0].kind != "admitted":
            raise StoreError(f"run {lease.run_id!r} has no record of its admission")
        where = f"record 1 of run {lease.run_id!r}"
        body = bodies.read_body(records[0].body, where=where)
        done = {record.path for record in records if record.kind == "settled"}
        changes = compare(tuple(body.get("fingerprint", ())), Fingerprint.of(self.pipeline), done, mode=self.mode)
        if changes:
            listed = "; ".join(changes)
            raise FingerprintMismatch(
                f"run {lease.run_id!r} was started with another pipeline: {listed}. Resume it with the pipeline it was "
                'started with, or with mode="compat" or "force" if you know that what it has done still holds'
            )
        journal = self._journal(lease)
        journal.load(records)
        return OpenRun(
            run_id=lease.run_id,
            data=bodies.read_value(body.get("input"), where=where),
            context=bodies.read_value(body.get("context"), where=where),
            journal=journal,
            resumed=True,
        )

    async def put_back(self, run: OpenRun, result: PipelineResult | None) -> None:
        if result is None:
            await self._release(_lease_of(run))

    async def _release(self, lease: Lease) -> None:
        """Let another process have the run at once, instead of when the lease expires."""
        body = bodies.make_body(reason="interrupted")
        note = Record(kind="resumed", path=ROOT, body=body)
        with trio.CancelScope(shield=True):
            try:
                await self._writer().write(Append(lease=lease, records=(note,), release=True))
            except StoreError:
                return  # the lease expires by itself

    @contextlib.contextmanager
    def holding(self, run: OpenRun) -> Iterator[Hold]:
        lease = _lease_of(run)
        hold = Hold()
        self._writer().hold(lease, hold.lose)
        try:
            with hold.scope:
                yield hold
        finally:
            self._writer().let_go(lease)

    async def abandoned(self) -> list[RunId]:
        """The runs of this pipeline that a dead process left."""
        query = RunQuery(pipeline=Fingerprint.of(self.pipeline).name, abandoned=True)
        return [run.run_id for run in await _in_thread(lambda: self.store.find(query))]

    def _writer(self) -> JournalWriter:
        return writer_for(self.store, lease_s=self.settings.lease_s)

    def _journal(self, lease: Lease) -> StoreJournal:
        return StoreJournal(
            self.store,
            self._writer(),
            lease,
            redact=self.redact,
            schema_of=self._schema_of,
            cold=self.settings.cold,
        )

    def _schema_of(self, path: Any) -> Any:
        step = find_step(self.pipeline, path)
        return step.input_schema if isinstance(step, HumanInTheLoop) else None


def _lease_of(run: OpenRun) -> Lease:
    assert isinstance(run.journal, StoreJournal)
    return run.journal.lease


async def _in_thread(fn: Any) -> Any:
    return await trio.to_thread.run_sync(fn)
