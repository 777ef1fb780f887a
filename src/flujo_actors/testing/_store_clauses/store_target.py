"""Description of a store under test.

Sections:

- Runs and records for the suite to write.
"""

from __future__ import annotations

import abc
import functools
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from ..._core.outcomes import RunId
from ..._core.records.records import Admission, Append, Lease, OpenPause, Record, RecordKind
from ..._core.step_paths import StepPath
from ...stores._store_port import Store, Verdict


class StorePlace(abc.ABC):
    """Empty location for runs, new for each test: file, schema, bucket."""

    between_processes = True
    """Whether another process that opens the location sees the same runs."""

    @abc.abstractmethod
    def open(self) -> Store:
        """Return a store on this location, as another process would open it.

        The location closes its stores.
        """

    @abc.abstractmethod
    def advance(self, seconds: float) -> None:
        """Let time pass for the leases in all stores of this place."""

    def damage(self, run_id: RunId, seq: int, **columns: object) -> None:
        """Overwrite `kind` or `body` of a stored record, behind the store's back."""
        pytest.skip("this place cannot damage records")

    def damage_blobs(self, *, delete: bool) -> None:
        """Delete all blobs, or cut off their last byte, bypassing the store."""
        pytest.skip("this place has no blobs to damage")

    def count_blobs(self) -> int:
        """Return the number of blobs are stored."""
        pytest.skip("this place has no blobs")

    def set_version(self, version: int) -> None:
        """Set the schema version of the location."""
        pytest.skip("this place has no schema")

    def version(self) -> int:
        """Return the version of the schema."""
        pytest.skip("this place has no schema")

    def dump(self) -> list[str]:
        """Everything that is stored, to see whether it changed."""
        pytest.skip("this place cannot be dumped")


# --- Runs and records for the suite to write ----------------------------------------------------------------------


LEASE_S = 60.0
STEP = StepPath("ask/~i1")


def record(text: str = "", *, kind: RecordKind = "unit", path: StepPath = STEP) -> Record:
    """Return a record whose body holds a text that JSON leaves unescaped."""
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
    """Return the bodies of the run's records after the first."""
    return [each.body for each in store.read(RunId(run_id), after=1)]


def give_up(store: Store, append: Append) -> None:
    """Append in a transaction that is then left by an exception."""
    with store.transaction() as transaction:
        transaction.append(append)
        raise ZeroDivisionError


ANSWERED, REFUSED = 0, 3
"""Exit codes of a child that won or lost a race."""


def all_at_once(count: int, work: Callable[[int], int]) -> list[int]:
    """Run `work(number)` in `count` processes at once; return exit codes."""
    ready, go = os.pipe(), os.pipe()
    children = [_forked(functools.partial(_when_told, ready, go, work, number)) for number in range(count)]
    for _ in children:
        os.read(ready[0], 1)
    os.write(go[1], b"!" * count)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for end in (*ready, *go):
        os.close(end)
    return codes


def kill_after(work: Callable[[Callable[[], None]], None], reports: int) -> None:
    """Run `work(report)` in a process; kill it after `reports` reports."""
    reading, writing = os.pipe()
    child = _forked(lambda: _reporting(work, writing))
    os.close(writing)
    for _ in range(reports):
        assert os.read(reading, 1), "the process ended before it was killed"
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reading)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _reporting(work: Callable[[Callable[[], None]], None], writing: int) -> int:
    work(lambda: _tell(writing))
    signal.pause()
    return 0


def _tell(writing: int) -> None:
    os.write(writing, b"!")


def _when_told(ready: tuple[int, int], go: tuple[int, int], work: Callable[[int], int], number: int) -> int:
    os.write(ready[1], b"!")
    os.read(go[0], 1)
    return work(number)


def _forked(work: Callable[[], int]) -> int:
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # stores are made for forks of processes with threads
        child = os.fork()
    if child == 0:
        _live(work)
    return child


def _live(work: Callable[[], int]) -> NoReturn:
    """Run a child's whole life, never returning to parent code."""
    code = 1
    try:
        code = work()
    finally:
        if code == 1:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
