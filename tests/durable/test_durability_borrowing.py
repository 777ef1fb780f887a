"""Many steps that write through one store: one at a time, without holding the loop, whatever happens to the others."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import attrs
import psycopg
import pytest
import trio

from flujo_actors import Flujo, PipelineResult, PreStep, RunClient, Step
from flujo_actors.errors import LeaseLost, StoreError, TransactionLost, TransactionRefused
from kit.durable_places import Place, PostgresPlace, SqlitePlace
from kit.other_processes import all_at_once

ORDERS = "CREATE TABLE orders (item int)"
COUNTER = "CREATE TABLE counter (n int)"
INSERT = "INSERT INTO orders VALUES (%s)"
COUNT = "UPDATE counter SET n = n + 1"
BRIEF = {SqlitePlace: {"busy_timeout_s": 5}, PostgresPlace: {"timeout_s": 5}}
"""How long a deadlock would last; then it is an error."""

Main = Callable[[], Awaitable[Any]]
HOSTS: dict[str, Callable[[Main], Any]] = {
    "trio": trio.run,
    "asyncio": lambda main: asyncio.run(main()),  # type: ignore[arg-type]
}


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> Callable[[Main], Any]:
    """Each kind of loop in turn."""
    return HOSTS[request.param]


@attrs.define
class Shop:
    """A place with orders and a counter in it, and steps that write there."""

    place: Place
    open_now: int = 0
    most_open: int = 0
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    @classmethod
    def at(cls, place: Place) -> Shop:
        for statement in (ORDERS, COUNTER, "INSERT INTO counter VALUES (0)"):
            place.query(statement)
        return cls(place)

    def store(self, **options: Any) -> Any:
        return self.place.open(**{**BRIEF[type(self.place)], **options})

    def write(self, order: int, transaction: Any) -> None:
        self.place.write_through(transaction, INSERT, order)
        self.place.write_through(transaction, COUNT)

    @contextlib.contextmanager
    def counted(self) -> Any:
        with self.lock:
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
        yield
        with self.lock:
            self.open_now -= 1

    def booking(self, *, threads: bool = False) -> Step:
        async def book(order: int, *, transaction: Any) -> int:
            with self.counted():
                self.write(order, transaction)
                await anyio.lowlevel.checkpoint()
            return order

        def book_in_thread(order: int, *, transaction: Any) -> int:
            with self.counted():
                self.write(order, transaction)
            return order

        return Step("book", book_in_thread if threads else book)

    def orders(self) -> list[int]:
        return sorted(item for (item,) in self.place.query("SELECT item FROM orders"))

    def counter(self) -> int:
        return int(self.place.query("SELECT n FROM counter")[0][0])


@pytest.fixture
def shop(place: Place) -> Shop:
    """A shop in each kind of database."""
    return Shop.at(place)


async def all_together(runs: list[tuple[Flujo, int]]) -> list[PipelineResult]:
    """The results of all runs, begun at once."""
    results: list[PipelineResult] = []

    async def one(flujo: Flujo, order: int) -> None:
        results.append(await flujo.run_async(order))

    async with anyio.create_task_group() as group:
        for flujo, order in runs:
            group.start_soon(one, flujo, order)
    return results


# --- many at once -------------------------------------------------------------------------------------------


def test_fifty_async_steps_at_once_write_one_after_the_other(shop: Shop, host: Callable[[Main], Any]) -> None:
    """None of them waits in the loop's thread for a lock whose holder needs the loop to give it up."""
    flujo = Flujo(shop.booking(), store=shop.store())
    results = host(lambda: all_together([(flujo, order) for order in range(50)]))
    assert [result.status for result in results] == ["completed"] * 50
    assert (shop.orders(), shop.counter(), shop.most_open) == (list(range(50)), 50, 1)


def test_steps_in_threads_and_steps_on_the_loop_take_turns(shop: Shop, host: Callable[[Main], Any]) -> None:
    """A step in a thread needs the loop for its commit, too."""
    store = shop.store()
    kinds = [Flujo(shop.booking(threads=threads), store=store) for threads in (False, True)]
    results = host(lambda: all_together([(kinds[order % 2], order) for order in range(20)]))
    assert [result.status for result in results] == ["completed"] * 20
    assert (shop.orders(), shop.counter(), shop.most_open) == (list(range(20)), 20, 1)


def test_a_step_that_waits_inside_its_transaction_holds_up_nobody_else_but_borrowers(
    shop: Shop, host: Callable[[Main], Any]
) -> None:
    """Other runs of the same loop go on meanwhile, also through the same store, until it writes."""
    others_are_done: list[anyio.Event] = []

    async def book(order: int, *, transaction: Any) -> int:
        await others_are_done[0].wait()
        shop.write(order, transaction)
        return order

    async def main() -> list[PipelineResult]:
        others_are_done.append(anyio.Event())
        store, results = shop.store(), []
        plain = Flujo(Step("plain", lambda data: data), store=store)

        async def one(order: int) -> None:
            results.append(await Flujo(Step("book", book), store=store).run_async(order))

        async with anyio.create_task_group() as group:
            group.start_soon(one, 1)
            group.start_soon(one, 2)
            results.extend(await all_together([(plain, 5)] * 5))
            others_are_done[0].set()
        return results

    assert [result.status for result in host(main)] == ["completed"] * 7
    assert shop.orders() == [1, 2]


def test_loops_in_several_threads_share_one_queue(shop: Shop) -> None:
    """Two trio loops, two asyncio loops and one `run()` at a time, all on one store."""
    flujo = Flujo(shop.booking(), store=shop.store())
    results: list[PipelineResult] = []

    def many(host: Callable[[Main], Any], orders: range) -> None:
        results.extend(host(lambda: all_together([(flujo, order) for order in orders])))

    work = [
        *(partial(many, HOSTS["trio"], range(start, start + 5)) for start in (0, 5)),
        *(partial(many, HOSTS["asyncio"], range(start, start + 5)) for start in (10, 15)),
        *(partial(lambda order: results.append(flujo.run(order)), order) for order in (20, 21)),
    ]
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.status for result in results] == ["completed"] * 22
    assert (shop.orders(), shop.counter(), shop.most_open) == (list(range(22)), 22, 1)


def test_two_stores_on_one_database_share_one_queue(shop: Shop, host: Callable[[Main], Any]) -> None:
    """What counts is the place, not the object that stands for it."""
    flows = [Flujo(shop.booking(), store=shop.store()) for _ in range(2)]
    results = host(lambda: all_together([(flows[order % 2], order) for order in range(10)]))
    assert [result.status for result in results] == ["completed"] * 10
    assert (shop.counter(), shop.most_open) == (10, 1)


def test_two_processes_write_through_one_database(shop: Shop) -> None:
    """Each lets one step at a time borrow; between them the database decides."""

    def work(number: int) -> int:
        flujo = Flujo(shop.booking(), store=shop.place.open())
        orders = range(number * 25, number * 25 + 25)
        results = trio.run(all_together, [(flujo, order) for order in orders])
        return 0 if {result.status for result in results} == {"completed"} else 1

    assert all_at_once(2, work) == [0, 0]
    assert (shop.orders(), shop.counter()) == (list(range(50)), 50)


# --- those who wait -----------------------------------------------------------------------------------------


def test_a_step_that_is_cancelled_while_it_waits_leaves_the_queue(shop: Shop, host: Callable[[Main], Any]) -> None:
    """Its run can be resumed, and whoever came after it gets the turn."""
    in_the_way: list[anyio.Event] = []
    begun: list[int] = []

    async def book(order: int, *, transaction: Any) -> int:
        if order == 1:
            await in_the_way[0].wait()
        shop.write(order, transaction)
        return order

    def note(told: PreStep) -> None:
        begun.append(told.input)

    async def main() -> list[PipelineResult]:
        in_the_way[:] = [anyio.Event()]
        flujo, results = Flujo(Step("book", book), store=shop.store(), hooks=note), []

        async def one(order: int) -> None:
            results.append(await flujo.run_async(order, run_id=f"order {order}"))

        async def has_begun(order: int) -> None:
            while order not in begun:
                await anyio.sleep(0.001)

        async with anyio.create_task_group() as group:
            group.start_soon(one, 1)
            await has_begun(1)
            async with anyio.create_task_group() as cancelled:
                cancelled.start_soon(one, 2)
                await has_begun(2)
                group.start_soon(one, 3)
                await has_begun(3)
                cancelled.cancel_scope.cancel()
            in_the_way[0].set()
        results.append(await flujo.resume_async("order 2"))
        return results

    assert [result.status for result in host(main)] == ["completed"] * 3
    assert shop.orders() == [1, 2, 3]


def test_a_step_that_fails_or_is_cancelled_gives_its_turn_back(shop: Shop, host: Callable[[Main], Any]) -> None:
    """However a transaction ends, the next one begins."""

    async def book(order: int, *, transaction: Any) -> Any:
        shop.write(order, transaction)
        match order:
            case 1:
                raise ValueError("no")
            case 2:
                return object()
            case 3:
                await anyio.sleep_forever()
        return order

    async def main() -> list[str]:
        flujo, ends = Flujo(Step("book", book), store=shop.store()), []
        for order in (1, 2, 3, 4):
            with anyio.move_on_after(0.2 if order == 3 else None):
                ends.append((await flujo.run_async(order)).status)
        return ends

    assert host(main) == ["failed", "failed", "completed"]
    assert shop.orders() == [4]


def test_a_transaction_inside_a_transaction_is_refused(shop: Shop, host: Callable[[Main], Any]) -> None:
    """The inner step would wait for the outer one, which waits for it."""

    async def main() -> PipelineResult:
        store = shop.store()
        inner = Flujo(shop.booking(), store=store)

        async def outer(order: int, *, transaction: Any) -> Any:
            return (await inner.run_async(order)).output

        return await Flujo(Step("outer", outer), store=store).run_async(1)

    result = host(main)
    assert result.status == "failed"
    assert "inside step 'outer', which has a transaction of the same store open" in result.feedback


@pytest.mark.parametrize("threads", [False, True])
def test_a_run_inside_a_transaction_is_refused_where_it_could_never_begin(
    shop: Shop, host: Callable[[Main], Any], threads: bool
) -> None:
    """On SQLite it would wait for the lock of the step around it; on Postgres it is a run like any other."""
    inside = Flujo(Step("inner", lambda data: data), store=shop.store())

    async def outer(order: int, *, transaction: Any) -> Any:
        shop.write(order, transaction)
        return (await inside.run_async(order, run_id="inside")).status

    def outer_in_thread(order: int, *, transaction: Any) -> Any:
        shop.write(order, transaction)
        return inside.run(order, run_id="inside").status

    async def main() -> PipelineResult:
        return await Flujo(Step("outer", outer_in_thread if threads else outer), store=shop.store()).run_async(1)

    result = host(main)
    if isinstance(shop.place, PostgresPlace):
        assert result.output == "completed"
    else:
        assert "run 'inside' begins inside step 'outer', which has a transaction" in result.feedback


@pytest.mark.slow
def test_a_transaction_that_outlasts_the_lease_is_named(sqlite_place: SqlitePlace) -> None:
    """Its own lock keeps the lease from being renewed: the error says which step, and what to do."""
    shop = Shop.at(sqlite_place)

    async def slow(order: int, *, transaction: Any) -> None:
        shop.write(order, transaction)
        await trio.sleep_forever()

    flujo = Flujo(Step("slow", slow), store=shop.store(), settings={"durability": {"lease_s": 3}})
    with pytest.raises(LeaseLost, match=r"step 'slow' has a transaction of it open: do what takes time before"):
        flujo.run(1)


def test_a_borrower_whose_loop_was_closed_is_passed_over(shop: Shop) -> None:
    """Nobody waits for a step that can never go on."""

    async def never(order: int, *, transaction: Any) -> int:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)
        return order

    store = shop.store()
    loop = asyncio.new_event_loop()
    stranded = loop.create_task(_awaited(Flujo(Step("never", never), store=store)))
    loop.run_forever()
    stranded._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    assert Flujo(shop.booking(), store=store).run(1).status == "completed"


async def _awaited(flujo: Flujo) -> PipelineResult:
    return await flujo.run_async(1)


# --- what the store loses -----------------------------------------------------------------------------------


def end_sessions(place: PostgresPlace, where: str = "true") -> None:
    """Close the store's connections from the server's side."""
    sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'flujo-actors' AND "
    place.query(f"{sessions} {where}")


@pytest.fixture
def postgres_shop(postgres_place: PostgresPlace) -> Shop:
    """A shop in Postgres."""
    return Shop.at(postgres_place)


@pytest.mark.parametrize("threads", [False, True])
def test_connections_that_the_server_closed_are_replaced(postgres_shop: Shop, threads: bool) -> None:
    """A pool of dead connections is no reason to fail, and no driver's error leaves the run."""
    shop = postgres_shop
    flujo = Flujo(shop.booking(threads=threads), store=shop.store(pool_size=4))
    for order in range(8):
        trio.run(all_together, [(flujo, 100 + order), (flujo, 200 + order)])
        assert isinstance(shop.place, PostgresPlace)
        end_sessions(shop.place)
        assert flujo.run(order).status == "completed"
    assert len(shop.orders()) == 24


@pytest.mark.parametrize("threads", [False, True])
def test_a_connection_lost_inside_a_step_is_no_failure_of_the_step(postgres_shop: Shop, threads: bool) -> None:
    """Nothing of the attempt was committed, so it is made again, and its rows are there once."""
    shop, pids = postgres_shop, []

    def lose(order: int, transaction: Any) -> int:
        pids.append(transaction.info.backend_pid)
        shop.write(order, transaction)
        if len(pids) < 3:
            assert isinstance(shop.place, PostgresPlace)
            end_sessions(shop.place, f"pid = {pids[-1]}")
        transaction.execute("SELECT 1")
        return order

    async def book(order: int, *, transaction: Any) -> int:
        return lose(order, transaction)

    def book_in_thread(order: int, *, transaction: Any) -> int:
        return lose(order, transaction)

    result = Flujo(Step("book", book_in_thread if threads else book), store=shop.store()).run(7)
    assert (result.status, result.step_history[0].attempts) == ("completed", 3)
    assert (shop.orders(), len(set(pids))) == ([7], 3)


def test_a_step_that_hides_the_loss_is_made_again_too(postgres_shop: Shop) -> None:
    """An error of its own does not stand for what the store lost; its own retries are not used up."""
    shop, calls = postgres_shop, []

    async def book(order: int, *, transaction: Any) -> int:
        calls.append(transaction.info.backend_pid)
        if len(calls) == 1:
            assert isinstance(shop.place, PostgresPlace)
            end_sessions(shop.place, f"pid = {calls[-1]}")
        try:
            shop.write(order, transaction)
        except psycopg.Error as error:
            raise ValueError("the shop is closed") from error
        return order

    assert Flujo(Step("book", book), store=shop.store()).run(7).status == "completed"
    assert (shop.orders(), len(calls)) == ([7], 2)


def test_a_run_whose_transaction_is_lost_again_and_again_can_be_resumed(postgres_shop: Shop) -> None:
    """It is the store that fails then: the caller gets its error, and the run is not over."""
    shop, calm = postgres_shop, []

    async def book(order: int, *, transaction: Any) -> int:
        shop.write(order, transaction)
        if not calm:
            assert isinstance(shop.place, PostgresPlace)
            end_sessions(shop.place, f"pid = {transaction.info.backend_pid}")
            transaction.execute("SELECT 1")
        return order

    flujo = Flujo(Step("book", book), store=shop.store())
    with pytest.raises(TransactionLost, match="nothing was written"):
        flujo.run(7, run_id="run")
    assert (RunClient(shop.store()).get("run").status, shop.orders()) == ("running", [])
    calm.append(True)
    assert flujo.resume("run").status == "completed"
    assert shop.orders() == [7]


def test_a_connection_lost_before_the_commit_leaves_a_run_that_can_be_resumed(postgres_shop: Shop) -> None:
    """The step is done, its outcome is not written: the next part of the run does it again."""
    shop, calls = postgres_shop, []

    async def book(order: int, *, transaction: Any) -> int:
        shop.write(order, transaction)
        calls.append(order)
        if len(calls) == 1:
            assert isinstance(shop.place, PostgresPlace)
            end_sessions(shop.place, f"pid = {transaction.info.backend_pid}")
        return order

    flujo = Flujo(Step("book", book), store=shop.store())
    with pytest.raises(StoreError):
        flujo.run(7, run_id="run")
    assert flujo.resume("run").status == "completed"
    assert shop.orders() == [7]


def test_a_file_that_somebody_else_has_locked_is_waited_for_again(sqlite_place: SqlitePlace) -> None:
    """An attempt that could not write has written nothing, and is made again when the lock is free."""
    shop, calls = Shop.at(sqlite_place), []

    async def book(order: int, *, transaction: Any) -> int:
        calls.append(order)
        with contextlib.closing(sqlite3.connect(sqlite_place.path, isolation_level=None)) as other:
            if len(calls) == 1:
                other.execute("BEGIN IMMEDIATE")
            shop.write(order, transaction)
        return order

    result = Flujo(Step("book", book), store=shop.store(busy_timeout_s=0.1)).run(7)
    assert (result.status, shop.orders(), len(calls)) == ("completed", [7], 2)


def test_what_a_step_did_wrong_itself_is_its_own_failure(shop: Shop) -> None:
    """A constraint that it broke is no loss of the store's: it is not tried again unasked."""
    shop.place.query("CREATE UNIQUE INDEX once ON orders (item)")
    shop.place.query(INSERT, 7)
    calls: list[int] = []

    async def book(order: int, *, transaction: Any) -> int:
        calls.append(order)
        shop.write(order, transaction)
        return order

    result = Flujo(Step("book", book), store=shop.store()).run(7)
    assert (result.status, calls, shop.counter()) == ("failed", [7], 0)
    assert isinstance(result.error, sqlite3.IntegrityError | psycopg.errors.UniqueViolation)


def test_a_constraint_that_is_broken_at_the_commit_fails_the_step(shop: Shop) -> None:
    """It would be broken again however often the run is resumed: the step has failed, its rows are gone."""
    deferred = "item int REFERENCES customers (id) DEFERRABLE INITIALLY DEFERRED"
    shop.place.query("CREATE TABLE customers (id int PRIMARY KEY)")
    shop.place.query(f"CREATE TABLE debts ({deferred})")

    async def book(order: int, *, transaction: Any) -> int:
        if isinstance(transaction, sqlite3.Connection):
            transaction.execute("PRAGMA foreign_keys = ON")
        shop.place.write_through(transaction, "INSERT INTO debts VALUES (%s)", order)
        return order

    store = shop.store()
    result = Flujo(Step("book", book), store=store).run(7, run_id="run")
    assert (result.status, RunClient(store).get("run").status) == ("failed", "failed")
    assert isinstance(result.error, TransactionRefused)
    assert shop.place.query("SELECT * FROM debts") == []
    assert Flujo(shop.booking(), store=store).run(1).status == "completed"


def test_a_thread_that_was_left_behind_writes_to_nobody(shop: Shop) -> None:
    """Its step timed out, and what it writes afterwards is not written on its own."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(order: int, *, transaction: Any) -> int:
        begun.set()
        go_on.wait()
        try:
            shop.write(order, transaction)
        finally:
            ended.set()
        return order

    store = shop.store()
    while not begun.is_set():  # the time of a step may be up before a busy machine has begun it
        result = Flujo(Step("slow", slow, timeout_s=0.05), store=store).run(7)
        assert result.status == "failed"
    assert Flujo(Step("plain", lambda data: data), store=store).run(1).status == "completed"
    go_on.set()
    ended.wait()
    assert (shop.orders(), shop.counter()) == ([], 0)
