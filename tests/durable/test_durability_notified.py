"""Waits and watches that are notified: by LISTEN, by early looks, and again after the store was away."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio

from flujo_actors import AsyncRunClient, Flujo, MemoryStore, RunClient, Step
from flujo_actors._durable import watch_poller
from flujo_actors.errors import DeclarationError, RunNotFound, StoreError
from flujo_actors.stores import PostgresStore
from kit.durable_places import PostgresPlace
from kit.other_processes import ended, forked
from kit.postgres_server import SessionServer


async def double(x: int) -> int:
    return x * 2


ASKS = Step.human_in_the_loop("ask", "Well?") >> Step("echo", lambda x: x)


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch whose store can listen looks once an hour by itself."""
    monkeypatch.setattr(watch_poller, "_LISTENING_POLL_S", 3600.0)


def until(path: Path) -> Step:
    """A step that ends when a file is there."""

    async def hold(x: Any) -> Any:
        while not path.exists():
            await trio.sleep(0.005)
        return x

    return Step("hold", hold)


def child_run(place: PostgresPlace, go: Path, bye: Path) -> int:
    """Run a pipeline in a process that outlives its run."""

    def work() -> None:
        Flujo(until(go), store=place.open()).run(1, run_id="r")
        wait_for(bye.exists)

    return forked(work)


@pytest.mark.slow
@pytest.mark.usefixtures("no_polling")
@pytest.mark.parametrize("kind", ["wait", "async wait", "watch"])
def test_a_commit_of_another_process_ends_a_wait_on_postgres(
    postgres_place: PostgresPlace, tmp_path: Path, kind: str
) -> None:
    """The notification alone wakes it: no look follows within the bound of the wait."""
    go, bye, store = tmp_path / "go", tmp_path / "bye", postgres_place.open()
    client = RunClient(store)
    child = child_run(postgres_place, go, bye)
    wait_for(lambda: bool(store.look(["r"])))  # type: ignore[list-item]

    async def waits() -> object:
        with trio.fail_after(120):
            if kind == "async wait":
                return (await AsyncRunClient(store).wait("r")).output
            return [record.kind async for record in client.watch("r")][-1]

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: client.wait("r", 60).output if kind == "wait" else trio.run(waits))
        wait_for(lambda: watchers_of(postgres_place.url) == 1)
        go.touch()
        assert waiting.result() == ("ended" if kind == "watch" else 1)
    bye.touch()
    assert ended(child) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("no_polling")
def test_a_lost_subscription_is_begun_again(
    postgres_place: PostgresPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the session of a waiter; the waiter listens again, and hears of the end."""
    monkeypatch.setattr(watch_poller, "_LISTEN_AGAIN_S", 0.0)
    go, bye, store = tmp_path / "go", tmp_path / "bye", postgres_place.open()
    child = child_run(postgres_place, go, bye)
    wait_for(lambda: bool(store.look(["r"])))  # type: ignore[list-item]
    with ThreadPoolExecutor(1) as threads, psycopg.connect(postgres_place.url, autocommit=True) as db:
        waiting = threads.submit(RunClient(store).wait, "r", 60)
        wait_for(lambda: watchers_of(postgres_place.url) == 1)
        [(former,)] = db.execute(f"SELECT pid {_WATCHERS}").fetchall()
        db.execute("SELECT pg_terminate_backend(%s, 5000)", (former,))
        wait_for(lambda: db.execute(f"SELECT pid {_WATCHERS}").fetchall() not in ([], [(former,)]))
        go.touch()
        assert waiting.result().output == 1
    bye.touch()
    assert ended(child) == 0


def watcher_threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("flujo_actors watcher")


@pytest.mark.slow
def test_many_waits_share_a_session_which_ends_with_the_store(postgres_place: PostgresPlace) -> None:
    """Twenty waits and a second round of them share a connection and a thread."""
    store = postgres_place.open()
    client, flujo = RunClient(store), Flujo(ASKS, store=store)
    for number in range(20):
        token = flujo.run(run_id=f"r{number}").state_token
        client.answer(str(token), number)  # it is owned by no process, and not at rest

    for _ in range(2):
        with ThreadPoolExecutor(20) as threads:
            waits = [threads.submit(_times_out, client, f"r{number}") for number in range(20)]
            wait_for(lambda: (watcher_threads(), watchers_of(postgres_place.url)) == (1, 1))  # the session is kept
            assert all(each.result() for each in waits)
        assert watchers_of(postgres_place.url) == 1
    wait_for(lambda: not any("watcher" in thread.name for thread in threading.enumerate()))
    store.close()
    wait_for(lambda: watchers_of(postgres_place.url) == 0)
    wait_for(lambda: not any(thread.name == "flujo signals" for thread in threading.enumerate()))


@pytest.mark.slow
def test_no_session_listens_behind_a_pooler(postgres_server: SessionServer) -> None:
    """A pooler in transaction mode gives the session to others: waits poll."""
    store = PostgresStore(postgres_server.fresh_url(), pooler="transaction")
    assert store.listen() is None
    assert Flujo(Step("double", double), store=store).run(1, run_id="r").output == 2
    assert RunClient(store).wait("r", 30).output == 2
    store.close()


@pytest.mark.slow
def test_a_watch_outlasts_a_restart_of_the_server(postgres_server: SessionServer, tmp_path: Path) -> None:
    """All records are delivered once and in order, though the server restarts in between."""
    go, store = tmp_path / "go", PostgresStore(postgres_server.fresh_url())
    seen: list[int] = []

    async def look() -> None:
        async with trio.open_nursery() as nursery:
            flujo = Flujo(Step("double", double) >> until(go), store=store)
            nursery.start_soon(lambda: flujo.run_async(1, run_id="r"))
            while not await trio.to_thread.run_sync(lambda: store.look(["r"])):  # type: ignore[list-item]
                await trio.sleep(0.01)
            async for record in RunClient(store).watch("r"):
                seen.append(record.seq)
                if len(seen) == 2:
                    await trio.to_thread.run_sync(postgres_server.restart, "immediate")
                    go.touch()

    trio.run(look)
    assert seen == [record.seq for record in store.scan("r")]  # type: ignore[arg-type]
    store.close()


# --- stores that are scripted ---


@pytest.mark.usefixtures("no_polling")
def test_a_change_before_the_subscription_is_not_missed() -> None:
    """The run ends after the last look and before LISTEN: the store is read once more."""
    scripted = _Scripted()
    scripted.on_listen = scripted.finish
    assert RunClient(scripted).wait("r", 30).output == "yes"


def test_a_store_that_cannot_notify_is_looked_at_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first looks do not wait for the poll interval."""
    monkeypatch.setattr(watch_poller, "POLL_S", 3600.0)
    monkeypatch.setattr(watch_poller, "FIRST_LOOKS_S", (0.0,) * 7)
    scripted = _Scripted()
    scripted.on_look[5] = scripted.finish
    scripted.hears = False
    assert RunClient(scripted).wait("r", 30).output == "yes"


def test_a_watch_continues_after_its_last_record() -> None:
    """Three failures of the store in the middle of a watch: each record comes once, in order."""
    scripted = _Scripted()
    scripted.hears = False
    scripted.on_look = {2: _fail, 3: _fail, 5: _fail, 7: scripted.finish}

    async def seqs() -> list[int]:
        return [record.seq async for record in RunClient(scripted).watch("r")]

    assert trio.run(seqs) == [record.seq for record in scripted.scan("r")]
    assert scripted.looks >= 7


def test_a_store_that_stays_away_is_an_error(autojump_clock: trio.testing.MockClock) -> None:
    """The error is raised after `reconnect_s` of failures, and at once if that is 0."""
    scripted = _Scripted()
    scripted.always = _fail

    async def main() -> tuple[float, float]:
        took = []
        for reconnect_s in (0.0, 20.0):
            began = trio.current_time()
            with pytest.raises(StoreError, match="away"):
                await anext(aiter(RunClient(scripted).watch("r", reconnect_s=reconnect_s)))
            took.append(trio.current_time() - began)
        return took[0], took[1]

    at_once, later = trio.run(main, clock=autojump_clock)
    assert at_once == 0
    assert 20 <= later < 21


def test_errors_that_stay_are_raised_at_once() -> None:
    """A missing run is not waited for, and a senseless patience is refused."""
    with pytest.raises(RunNotFound):
        trio.run(lambda: anext(aiter(RunClient(MemoryStore()).watch("r"))))
    with pytest.raises(DeclarationError, match="reconnect_s"):
        RunClient(MemoryStore()).watch("r", reconnect_s=-1)


def test_an_answer_in_the_same_process_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch of a paused run is notified of the answer, without a look by itself."""
    monkeypatch.setattr(watch_poller, "POLL_S", 3600.0)
    monkeypatch.setattr(watch_poller, "FIRST_LOOKS_S", ())
    store = MemoryStore()
    token = str(Flujo(ASKS, store=store).run(run_id="r").state_token)

    async def kinds() -> list[str]:
        seen = []
        with trio.fail_after(120):
            async for record in RunClient(store).watch("r"):
                seen.append(record.kind)
                if record.kind == "paused":
                    RunClient(store).answer(token, "yes")
                if record.kind == "answered":
                    return seen
        return seen

    assert trio.run(kinds)[-1] == "answered"


class _Scripted:
    """A store of another process: the run `r` waits in it, answered, and ends when `finish` is called."""

    def __init__(self) -> None:
        self._inner = MemoryStore()
        self._flujo = Flujo(ASKS, store=self._inner)
        token = self._flujo.run(run_id="r").state_token
        RunClient(self._inner).answer(str(token), "yes")
        self.looks, self.hears = 0, True
        self.on_look: dict[int, Any] = {}
        self.on_listen: Any = lambda: None
        self.always: Any = lambda: None

    def finish(self) -> None:
        self._flujo.resume("r")

    def look(self, run_ids: Any) -> Any:
        self.looks += 1
        self.always()
        self.on_look.get(self.looks, lambda: None)()
        return self._inner.look(run_ids)

    def scan(self, *args: Any, **options: Any) -> Any:
        self.always()
        return self._inner.scan(*args, **options)

    def listen(self) -> _Deaf | None:
        self.on_listen()
        return _Deaf() if self.hears else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Deaf:
    """A subscription that hears of nothing."""

    def __init__(self) -> None:
        self._interrupted = threading.Event()

    def wait(self, run_ids: Any, timeout_s: float) -> None:
        self._interrupted.wait(timeout_s)
        self._interrupted.clear()

    def interrupt(self) -> None:
        self._interrupted.set()

    def release(self) -> None:
        """Nothing to do."""


def _fail() -> None:
    raise StoreError("the store is away")


def _times_out(client: RunClient, run_id: str) -> bool:
    try:
        client.wait(run_id, 3.0)
    except TimeoutError:
        return True
    return False


_WATCHERS = "FROM pg_stat_activity WHERE application_name = 'flujo watcher'"


def watchers_of(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as db:
        [(count,)] = db.execute(f"SELECT count(*) {_WATCHERS}").fetchall()  # type: ignore[arg-type]
    return int(count)


def wait_for(done: Any) -> None:
    for _ in range(3000):
        if done():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within 30 s")
