"""Runs and records for the suite to write."""

from __future__ import annotations

from typing import Any

from ..._core.outcomes import RunId
from ..._core.paths import StepPath
from ..._core.records import Admission, Append, Lease, OpenPause, Record, RecordKind
from ...stores._port import Store, Verdict

LEASE_S = 60.0
STEP = StepPath("ask/~i1")


def record(text: str = "", *, kind: RecordKind = "unit", path: StepPath = STEP) -> Record:
    """A record whose body holds a text, in characters that JSON leaves as they are."""
    return Record(kind=kind, path=path, body=f'{{"v": 1, "text": "{text}"}}')


def admission(run_id: str, *, pipeline: str = "pipeline") -> Admission:
    return Admission(run_id=RunId(run_id), pipeline=pipeline, body='{"v": 1, "input": "hello"}')


def admit(store: Store, run_id: str = "run", *, owner: str = "owner", pipeline: str = "pipeline") -> Lease:
    return store.admit(admission(run_id, pipeline=pipeline), owner=owner, lease_s=LEASE_S)


def claim(store: Store, run_id: str = "run", *, owner: str = "thief") -> Lease:
    return store.claim(RunId(run_id), owner=owner, lease_s=LEASE_S)


def write(store: Store, lease: Lease, *records: Record, **changes: Any) -> Verdict:
    """Append to one run: the store's verdict."""
    [verdict] = store.append([Append(lease=lease, records=records, **changes)])
    return verdict


def pause(token: str = "token", *, path: StepPath = STEP, message: str = "May I?") -> OpenPause:
    return OpenPause(path=path, token=token, message=message, body='{"schema": null}')


def put_to_sleep(store: Store, lease: Lease, *pauses: OpenPause) -> None:
    """Pause a run and give it up, as its owner does."""
    asked = record(kind="paused")
    batch = [Append(lease=lease, records=(asked,), pauses=pauses, status="paused", release=True)]
    assert store.append(batch) == [None]


def answer(store: Store, text: str = "yes", *, run_id: str = "run", token: str = "token") -> None:
    store.answer(RunId(run_id), STEP, token=token, record=record(text, kind="answered"))


def bodies(store: Store, run_id: str = "run") -> list[str]:
    """The bodies of the run's records after the first."""
    return [each.body for each in store.read(RunId(run_id), after=1)]


def give_up(store: Store, append: Append) -> None:
    """Append in a transaction that is then left by an exception."""
    with store.transaction() as transaction:
        transaction.append(append)
        raise ZeroDivisionError
