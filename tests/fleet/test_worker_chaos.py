"""A fleet under everything that happens to fleets: nothing is lost, nothing committed is repeated, nothing is stuck."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import chaos_app
import psycopg
import pytest
from fleet_processes import Worker
from fleet_waiting import until, until_while_it_moves

from flujo_actors import RunClient
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow

SEEDS = range(1, 9) if os.environ.get("TEST_ALL_SEEDS") else (1,)
RUNS, WORKERS = 30, 3
THAW_S = 3.5
"""Longer than a lease: a frozen worker comes back when others have finished its runs."""

FROZEN, THAWED = "frozen", "thawed"
"""Events in the log beside its effects."""

TRICKS = {"kill": 3, "freeze": 6, "stop": 2, "drop_tickets": 6, "duplicate_tickets": 6, "cut_connections": 5}
"""What happens to the fleet, and how often."""


class Fleet:
    """Some workers, and what can happen to them; every choice is the seed's."""

    def __init__(self, url: str, log: Path, rng: random.Random) -> None:
        self.url, self.log, self.rng = url, log, rng
        self._readers: list[threading.Thread] = []
        self.workers = [self._started() for _ in range(WORKERS)]
        self.frozen: list[tuple[float, Worker]] = []
        self.all = list(self.workers)

    def _started(self) -> Worker:
        worker = Worker(self.url, self.log, "--slots", "3", "--grace", "1", target="chaos_app:flujo").ready()
        reader = threading.Thread(target=drained, args=(worker,))  # a full pipe would stop the worker, too
        reader.start()
        self._readers.append(reader)
        return worker

    def _replaced(self, number: signal.Signals) -> None:
        worker = self.workers.pop(self.rng.randrange(len(self.workers)))
        worker.send(number)
        self.workers.append(self._started())
        self.all.append(self.workers[-1])

    def kill(self) -> None:
        self._replaced(signal.SIGKILL)

    def stop(self) -> None:
        self._replaced(signal.SIGTERM)

    def freeze(self) -> None:
        frozen = [worker for _, worker in self.frozen]
        awake = [worker for worker in self.workers if worker not in frozen]
        if len(awake) > 1:
            worker = self.rng.choice(awake)
            worker.process.freeze()
            self._log(FROZEN, worker)
            self.frozen.append((time.monotonic() + THAW_S, worker))

    def thaw(self, *, all_of_them: bool = False) -> None:
        """Continue those who have been frozen for long enough."""
        for due, worker in list(self.frozen):
            if all_of_them or time.monotonic() >= due:
                self.frozen.remove((due, worker))
                self._log(THAWED, worker)
                worker.send(signal.SIGCONT)

    def _log(self, event: str, worker: Worker) -> None:
        with self.log.open("a") as file:
            file.write(f"{worker.process.pid} {event} -\n")

    def drop_tickets(self) -> None:
        self._execute("DELETE FROM procrastinate_jobs WHERE status = 'todo' AND random() < 0.5")

    def duplicate_tickets(self) -> None:
        self._execute(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, priority, args, status)"
            " SELECT queue_name, task_name, priority, args, 'todo' FROM procrastinate_jobs LIMIT 5"
        )

    def cut_connections(self) -> None:
        self._execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND random() < 0.5"
        )

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute(statement.encode())

    def ended(self) -> None:
        """End every process, whatever state it is in."""
        self.thaw(all_of_them=True)
        for worker in self.all:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
        for reader in self._readers:
            reader.join()


def drained(worker: Worker) -> None:
    """Read what a worker says until it has ended."""
    assert worker.process.stderr is not None
    with worker.process.stderr as said:
        said.read()


def effects(log: Path) -> list[tuple[str, str]]:
    """Step and run of every effect, in order."""
    return [(step, run) for _, step, run in lines(log) if step in chaos_app.STEPS]


def lines(log: Path) -> list[list[str]]:
    """Process, step or event, and run of each line."""
    return [line.split() for line in log.read_text().splitlines()]


def repeated(log: Path) -> list[tuple[str, str]]:
    """Effects of steps that were begun after the next step: then their outcome was committed already.

    A worker that was frozen before the next step began may have been about to begin this one: it does so once.
    """
    reached: dict[str, list[int]] = {}  # by run: the line at which each of its steps but the first was begun
    frozen: dict[str, int] = {}
    thawed: set[tuple[str, str]] = set()  # processes and runs with an effect since the process was thawed
    found = []
    for number, (process, step, run) in enumerate(lines(log)):
        if step == FROZEN:
            frozen[process] = number
            thawed = {each for each in thawed if each[0] != process}
        elif step != THAWED:
            place, begun = chaos_app.STEPS.index(step), reached.setdefault(run, [])
            begun += [number] * (place - len(begun))
            is_late = place < len(begun)
            if is_late and (frozen.get(process, number) > begun[place] or (process, run) in thawed):
                found.append((step, run))
            thawed.add((process, run))
    return found


def test_effects_of_committed_steps_are_found(tmp_path: Path) -> None:
    """A thawed worker may end what it was about to begin, and nothing else."""
    log, begun = tmp_path / "log", "1 reserve a\n2 reserve a\n2 charge a\n"
    for more, wrong in (
        ("2 charge a\n3 ship a\n", []),
        ("1 reserve a\n", [("reserve", "a")]),
        ("1 frozen -\n1 thawed -\n1 reserve a\n", [("reserve", "a")]),
    ):
        log.write_text(begun + more)
        assert repeated(log) == wrong
    log.write_text("1 frozen -\n" + begun.removeprefix("1 reserve a\n") + "1 thawed -\n1 reserve a\n")
    assert repeated(log) == []
    log.write_text(log.read_text() + "1 reserve a\n")
    assert repeated(log) == [("reserve", "a")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_repeated_or_stuck_whatever_happens_to_a_fleet(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are killed, frozen, stopped and cut off, tickets lost and doubled: every run is finished once."""
    url, log, rng = session_server().fresh_url(), tmp_path / "log", random.Random(seed)
    log.touch()
    monkeypatch.setattr(chaos_app, "LOG", str(log))
    flujo, client = chaos_app.make(url), RunClient(url)
    names = [f"order-{number}" for number in range(RUNS)]
    fleet = Fleet(url, log, rng)
    acts: list[Callable[[], object]] = [getattr(fleet, trick) for trick, times in TRICKS.items() for _ in range(times)]
    acts += [lambda name=name: flujo.submit_sync(name, run_id=name) for name in names]  # type: ignore[misc]
    rng.shuffle(acts)
    try:
        for act in acts:
            act()
            fleet.thaw()
            time.sleep(rng.uniform(0.0, 0.2))  # the pace of the mishaps; nothing is asserted of it
        until(lambda: fleet.thaw() or not fleet.frozen)
        until_while_it_moves(lambda: all(has_ended(client, name) for name in names), lambda: state_of(url))
        settled = len(effects(log))
        until_while_it_moves(lambda: tickets(url) == 0, lambda: state_of(url))
    finally:
        fleet.ended()
    assert [client.state(name).output for name in names] == [f"billed {name}" for name in names]
    assert repeated(log) == []
    assert effects(log)[settled:] == []
    assert rows(url, "SELECT run FROM flujo_records GROUP BY run HAVING count(*) <> max(seq)") == []


def has_ended(client: RunClient, name: str) -> bool:
    """Whether a run is completed; another end fails the test at once."""
    info = client.get(name)
    assert info.status in ("running", "completed"), client.state(name)
    return info.status == "completed"


def state_of(url: str) -> list[tuple[object, ...]]:
    """Every open run with its progress, and the tickets."""
    return rows(
        url,
        "SELECT run_id, status, epoch, owner, next_seq FROM flujo_runs WHERE status <> 'completed'"
        " UNION ALL SELECT queueing_lock, status::text, worker_id, NULL, attempts FROM procrastinate_jobs"
        " ORDER BY 1, 2",
    )


def tickets(url: str) -> int:
    return len(rows(url, "SELECT id FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"))


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(statement.encode()).fetchall()
