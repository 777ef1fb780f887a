"""Bulk actions on the runs of a filter: counted first, repeatable, and never on all runs by accident."""

from __future__ import annotations

import datetime as dt
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from flujo_actors import (
    BulkReport,
    DeclarationError,
    Flujo,
    MemoryStore,
    Option,
    Pipeline,
    RunClient,
    RunFilter,
    Step,
)
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Admission
from kit import preloaded

HERS, ALL = RunFilter(labels={"user": "ada"}), RunFilter(all=True)


async def echo(data: Any) -> Any:
    return data


async def fail(data: Any) -> Any:
    raise ValueError("no")


ASK = Step.human_in_the_loop("ok", "Go?", input_schema=bool)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        yield request.getfixturevalue(f"{request.param}_place").open()


def filled(store: Any) -> RunClient:
    """Runs of two users in several states."""
    for user in ("ada", "bob"):
        labels = {"user": user}
        Flujo(Step("a", echo), store=store).run(1, run_id=f"{user} done", labels=labels)
        Flujo(Step("f", fail), store=store).run(1, run_id=f"{user} failed", labels=labels)
        Flujo(ASK, store=store).run(1, run_id=f"{user} asks", labels=labels)
        Flujo(Step("a", echo), store=store).submit_sync(1, run_id=f"{user} waits", labels=labels)
    return RunClient(store)


def states(client: RunClient) -> dict[str, str]:
    return {info.run_id: info.state for info in client.list()}


def test_runs_of_a_filter_are_cancelled(store: Any) -> None:
    """Runs that have ended are skipped, and runs of others are unchanged."""
    client = filled(store)
    report = client.bulk_cancel(HERS, "her account is closed")
    assert (report.matched, report.done, report.skipped_count, report.dry_run) == (4, 2, 2, False)
    assert report.skipped == {
        "ada done": "completed; nothing to cancel",
        "ada failed": "failed; nothing to cancel",
    }
    assert states(client) | {} == {
        "ada done": "completed",
        "ada failed": "failed",
        "ada asks": "aborted",
        "ada waits": "aborted",
        "bob done": "completed",
        "bob failed": "failed",
        "bob asks": "waiting",
        "bob waits": "blocked",
    }
    assert client.state("ada asks").feedback == "her account is closed"


def test_runs_of_a_filter_are_retried(store: Any) -> None:
    """One record each; completed and open runs are skipped with the reason."""
    client = filled(store)
    report = client.bulk_retry(HERS, reason="fixed")
    assert (report.matched, report.done) == (4, 1)
    assert report.skipped == {
        "ada done": "completed; nothing to retry",
        "ada asks": "waiting",
        "ada waits": "blocked",
    }
    assert (client.get("ada failed").retries, client.get("bob failed").retries) == (1, 0)
    assert client.bulk_retry(RunFilter(labels={"user": "ada"}, status="failed")) == BulkReport(
        matched=0, done=0, skipped={}, skipped_count=0
    )


def test_runs_of_a_filter_are_deleted(store: Any) -> None:
    """The report has the size of their records."""
    client = filled(store)
    report = client.bulk_delete(RunFilter(labels={"user": "ada"}, status="completed"))
    assert (report.matched, report.done, report.skipped) == (1, 1, {})
    assert report.bytes > 100
    assert "ada done" not in states(client)
    assert client.bulk_delete(RunFilter(run_ids=["bob done", "gone"])).done == 1
    assert len(states(client)) == 6


def test_data_of_a_person_is_deleted(store: Any) -> None:
    """Open runs are cancelled before, also one that a process executes."""
    client = filled(store)
    begun = trio.Event()

    async def works(data: Any) -> Any:
        begun.set()
        await trio.sleep_forever()

    async def main() -> BulkReport:
        flujo = Flujo(Step("w", works), store=store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, flujo)
            await begun.wait()
            refused = await trio.to_thread.run_sync(lambda: client.bulk_delete(RunFilter(run_ids=["ada works"])))
            assert refused.skipped == {"ada works": "running"}
            return await trio.to_thread.run_sync(lambda: client.bulk_delete(HERS, cancel_first=True))

    async def run(flujo: Any) -> None:
        await flujo.run_async(1, run_id="ada works", labels={"user": "ada"})

    report = trio.run(main)
    assert (report.matched, report.done, report.skipped) == (5, 5, {})
    assert set(states(client)) == {"bob done", "bob failed", "bob asks", "bob waits"}


def test_questions_of_a_filter_are_answered(store: Any) -> None:
    """Only those whose schema accepts the answer; approvals with other options are skipped."""
    client, labels = filled(store), {"user": "ada"}
    Flujo(Step.approval("plain", "May I?"), store=store).run(1, run_id="ada approves", labels=labels)
    options = [Option("red", kind="approve"), Option("blue", kind="reject")]
    other = Step.approval("colors", "Which?", options=options)
    Flujo(other, store=store).run(1, run_id="ada chooses", labels=labels)
    report = client.bulk_answer(RunFilter(labels=labels, state="waiting"), {"option": "approve"}, by="boss")
    assert (report.matched, report.done, set(report.skipped)) == (3, 1, {"ada chooses", "ada asks"})
    assert "colors" in report.skipped["ada chooses"]
    assert [states(client)[f"ada {each}"] for each in ("approves", "chooses", "asks")] == [
        "blocked",
        "waiting",
        "waiting",
    ]
    none = client.bulk_answer(RunFilter(labels={"user": "bob"}, state="waiting"), True, to="someone")
    assert none.skipped == {"bob asks": "no open question to 'someone'"}
    assert client.bulk_answer(RunFilter(labels={"user": "bob"}), True).done == 1


@pytest.mark.parametrize("name", ["bulk_cancel", "bulk_retry", "bulk_delete", "bulk_answer"])
def test_a_filter_of_all_runs_must_say_so(name: str) -> None:
    """An empty filter changes nothing."""
    client = filled(MemoryStore())
    before = states(client)
    more = (True,) if name == "bulk_answer" else ()
    told = f"{name}: this filter matches every run; pass RunFilter\\(all=True\\)"
    for empty in (RunFilter(), RunFilter(labels={})):
        with pytest.raises(DeclarationError, match=told):
            getattr(client, name)(empty, *more)
    with pytest.raises(DeclarationError, match=f"{name} needs a RunFilter"):
        getattr(client, name)({"user": "ada"}, *more)
    assert states(client) == before
    assert getattr(client, name)(ALL, *more, dry_run=True).matched == 8


@pytest.mark.parametrize("name", ["bulk_cancel", "bulk_retry", "bulk_delete", "bulk_answer"])
def test_a_dry_run_counts_and_writes_nothing(store: Any, name: str) -> None:
    """Neither records nor states change."""
    client = filled(store)
    before = client.list()
    more = (True,) if name == "bulk_answer" else ()
    report = getattr(client, name)(HERS, *more, dry_run=True)
    assert (report.matched, report.done, report.skipped_count, report.dry_run) == (4, 0, 0, True)
    assert client.list() == before


def test_a_limit_bounds_the_runs(store: Any) -> None:
    """The newest ones first."""
    client = filled(store)
    assert client.bulk_delete(RunFilter(labels={"user": "bob"}), limit=2).done == 2
    assert {"bob done", "bob failed"} <= states(client).keys()
    with pytest.raises(ValueError, match="at least 1"):
        client.bulk_delete(HERS, limit=0)


def test_a_filter_has_times_in_three_forms(store: Any) -> None:
    """Seconds, a datetime, or a span before now."""
    client, now = filled(store), time.time()
    for moment in (now - 3600, dt.datetime.now(dt.UTC) - dt.timedelta(hours=1), "1h"):
        assert len(client.list(where=RunFilter(created_after=moment))) == 8
        assert client.list(where=RunFilter(created_before=moment)) == []
        assert client.list(where=RunFilter(ended_before=moment)) == []
    assert len(client.list(where=RunFilter(ended_before=now + 60))) == 4
    for wrong in ("7", "soon", True, float("nan")):
        with pytest.raises(DeclarationError):
            RunFilter(created_after=wrong)
    with pytest.raises(ValueError, match="there is no status"):
        RunFilter(status="gone")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no state"):
        RunFilter(state="gone")  # type: ignore[arg-type]


def test_a_listing_takes_a_filter(store: Any) -> None:
    """Its conditions together, with order, limit and cursor of the listing."""
    client = filled(store)
    assert [info.run_id for info in client.list(where=HERS, order="created", limit=2)] == ["ada waits", "ada asks"]
    page = client.list(where=HERS, order="created", limit=2)
    rest = client.list(where=HERS, order="created", cursor=page[-1].cursor)
    assert [info.run_id for info in rest] == ["ada failed", "ada done"]
    both = RunFilter(state=("waiting", "failed"), pipeline="ok")
    assert {info.run_id for info in client.list(where=both)} == {"ada asks", "bob asks"}
    named = client.list(where=RunFilter(run_ids=["bob done", "ada done", "gone"], labels={"user": "ada"}))
    assert [info.run_id for info in named] == ["ada done"]
    with pytest.raises(DeclarationError, match="all conditions in `where`"):
        client.list("failed", where=HERS)


def test_reasons_are_named_up_to_a_bound() -> None:
    """All skipped runs are counted."""
    store = MemoryStore()
    flujo = Flujo(Step("a", echo), store=store)
    for number in range(1005):
        flujo.submit_sync(number, run_id=f"r{number}")
    report = RunClient(store).bulk_retry(ALL)
    assert (report.matched, report.done, report.skipped_count, len(report.skipped)) == (1005, 0, 1005, 1000)


KILLED = """
import sys
from flujo_actors import RunClient, RunFilter
client = RunClient(sys.argv[1])
print("begun", flush=True)
options = {"cancel_first": True} if sys.argv[2] == "bulk_delete" else {}
getattr(client, sys.argv[2])(RunFilter(pipeline="p"), **options)
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bulk_cancel", "bulk_delete"])
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_an_action_that_was_killed_is_repeated(
    tmp_path: Any, database: str, name: str, request: pytest.FixtureRequest
) -> None:
    """No run is lost or acted on twice, and runs of others are unchanged."""
    is_sqlite = database == "sqlite"
    url = f"sqlite:///{tmp_path}/runs.db" if is_sqlite else request.getfixturevalue("postgres_server").fresh_url()
    store = Flujo(Pipeline([Step("a", echo)], name="p"), store=url).store
    assert store is not None
    body = '{"v": 1, "input": 1}'
    runs = [Admission(run_id=RunId(f"r{number}"), pipeline="p", body=body, queue="q") for number in range(600)]
    store.admit_all(runs, owner=None, lease_s=0)
    store.admit_all([Admission(run_id=RunId("other"), pipeline="o", body=body)], owner=None, lease_s=0)
    client, path = RunClient(url), os.pathsep.join(sys.path)
    process = preloaded.Popen(
        [sys.executable, "-c", KILLED, url, name], stdout=preloaded.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    while store.counts().by_status["running"] > 550:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    left = len(client.list("running"))
    assert 1 <= left < 601
    where = RunFilter(pipeline="p")
    report = client.bulk_cancel(where) if name == "bulk_cancel" else client.bulk_delete(where, cancel_first=True)
    assert report.done >= left - 2  # a lease of the killed process may last
    ended = client.list("aborted")
    if name == "bulk_cancel":
        assert {tuple(record.kind for record in client.records(info.run_id)) for info in ended[:50]} == {
            ("admitted", "ended")
        }
    assert client.get("other").status == "running"
