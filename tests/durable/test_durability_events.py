"""Events: sent before or after a wait, consumed once, refused if they do not fit."""

from __future__ import annotations

import datetime
import os
import random
import signal
import time
from typing import Any

import pytest
import trio
from pydantic import BaseModel
from test_durability_sleeps import Wall, client, store, wall, work_once  # noqa: F401 (fixtures)

from flujo_actors import DeclarationError, Flujo, InvalidEvent, RunClient, Sent, Step, WaitTimeout
from flujo_actors.stores import Store
from kit.durable_places import AN_HOUR_LATER, ON_TIME, LateClock
from kit.other_processes import KILLED, ended, forked, in_another_process

HOUR = 3600.0


class Paid(BaseModel):
    """Data of a payment."""

    amount: float


def paying(store: Store, **options: Any) -> Flujo[Any, Any, Any]:  # noqa: F811
    """Return a pipeline that waits for the payment of an order."""
    step = Step.wait_for("paid?", "paid", key=lambda data, context: data, schema=Paid, **options)
    return Flujo(step, store=store)


def test_an_event_ends_the_wait_that_it_names(store: Store) -> None:  # noqa: F811
    """Its data is the output, as the schema reads it."""
    flujo = paying(store)
    assert flujo.run("7", run_id="order").status == "sleeping"
    assert client(store).get("order").reason == "it waits for event 'paid' with key '7'"
    assert [(wait.run_id, wait.event, wait.key) for wait in client(store).waits("paid")] == [("order", "paid", "7")]
    assert client(store).send("paid", key="other", data={"amount": 1}).status == "buffered"
    assert client(store).send("paid", key="7", data={"amount": 2}).delivered_to == ("order",)
    assert [result.output for result in flujo.recover()] == [Paid(amount=2)]


def test_an_early_event_is_buffered(store: Store) -> None:  # noqa: F811
    """The run that waits for it later does not sleep."""
    assert client(store).send("paid", key="7", data={"amount": 3}).status == "buffered"
    assert paying(store).run("7", run_id="order").output == Paid(amount=3)
    [info] = client(store).events("paid", status="delivered")
    assert (info.key, info.data, info.delivered_to) == ("7", {"amount": 3}, ("order",))


def test_a_loop_consumes_early_events_in_order(store: Store) -> None:  # noqa: F811
    """One wait consumes one event."""
    for number in (1, 2, 3):
        client(store).send("tick", key="loop", data=number)
    seen: list[int] = []

    def done(output: int, context: Any) -> bool:
        seen.append(output)
        return output == 3

    loop = Step.loop_until("loop", Step.wait_for("tick?", "tick"), done, max_loops=5)
    assert Flujo(loop, store=store).run(0, run_id="loop").output == 3
    assert seen == [1, 2, 3]


def test_the_wait_that_opened_first_gets_the_event(store: Store) -> None:  # noqa: F811
    """The next event is for the other one."""
    flujo = paying(store)
    for name in ("older", "younger"):
        flujo.run("7", run_id=name)
    sent = [client(store).send("paid", key="7", data={"amount": 1}).delivered_to for _ in range(2)]
    assert sent == [("older",), ("younger",)]


def test_a_broadcast_is_for_all_that_wait_now(store: Store) -> None:  # noqa: F811
    """It is never buffered."""
    flujo = paying(store)
    for name in ("a", "b"):
        flujo.run("7", run_id=name)
    assert client(store).send("paid", key="7", data={"amount": 1}, to="all").delivered_to == ("a", "b")
    assert len(flujo.recover()) == 2
    empty = client(store).send("paid", key="7", data={"amount": 1}, to="all")
    assert (empty.status, empty.delivered_to) == ("delivered", ())
    assert flujo.run("7", run_id="c").status == "sleeping"


def test_an_id_is_accepted_once_for_a_time(store: Store, wall: Wall) -> None:  # noqa: F811
    """Whatever its key and data; a week later it is another event."""
    assert client(store).send("paid", key="7", id="one", data={"amount": 1}) == Sent("one", "buffered")
    assert client(store).send("paid", key="8", id="one") == Sent("one", "duplicate")
    assert len(client(store).events("paid")) == 1
    wall.now += 8 * 24 * HOUR
    assert client(store).send("paid", key="7", id="one", data={"amount": 2}).status == "buffered"
    assert paying(store).run("7").output == Paid(amount=2)


def test_an_event_that_does_not_fit_is_refused_and_not_stored(store: Store) -> None:  # noqa: F811
    """Its id is not used up, and the run still waits."""
    flujo = paying(store)
    flujo.run("7", run_id="order-7")
    with pytest.raises(InvalidEvent) as refused:
        client(store).send("paid", key="7", id="one", data={"amount": "much"})
    assert str(refused.value) == (
        "event 'paid' with key '7' does not fit what step 'paid?' of run 'order-7' waits for: data.amount: Input "
        "should be a valid number; nothing was stored, the run still waits"
    )
    assert list(client(store).events()) == []
    assert client(store).send("paid", key="7", id="one", data={"amount": 4}).status == "delivered"
    assert [result.output for result in flujo.recover()] == [Paid(amount=4)]


def test_a_buffered_event_that_does_not_fit_is_passed_over(store: Store, caplog: Any) -> None:  # noqa: F811
    """It is kept as refused, and the wait takes the next one."""
    client(store).send("paid", key="7", data="nonsense")
    client(store).send("paid", key="7", data={"amount": 5})
    assert paying(store).run("7", run_id="order").output == Paid(amount=5)
    [info] = client(store).events(status="refused")
    assert (info.data, info.refused_by) == ("nonsense", "order")
    assert info.reason is not None
    assert "does not fit" in caplog.text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"when": datetime.date(2026, 1, 1)}, "event 'paid': data.when is a datetime.date, which has no JSON form"),
        ("x" * 1_048_575, "event 'paid' has 1,048,577 bytes, and events.max_bytes is 1,048,576"),
        ([float("nan")], "event 'paid': data.0 is nan, which has no JSON form"),
    ],
    ids=["date", "large", "nan"],
)
def test_data_that_is_no_json_or_too_large_is_refused(store: Store, data: Any, text: str) -> None:  # noqa: F811
    """The message names the part."""
    with pytest.raises(InvalidEvent) as refused:
        client(store).send("paid", key="7", data=data)
    assert str(refused.value) == text


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", 7, None])
def test_a_key_is_a_short_printable_text(store: Store, key: Any) -> None:  # noqa: F811
    """It is compared, and stored in an index."""
    with pytest.raises(DeclarationError, match="send: key must be a text of 1 to 200 printable characters"):
        client(store).send("paid", key=key)


def test_a_key_that_is_no_text_fails_the_step(store: Store) -> None:  # noqa: F811
    """The text says what it must be."""
    flujo = Flujo(Step.wait_for("paid?", "paid", key=lambda data, context: None), store=store)
    result = flujo.run(1)
    text = "step 'paid?': key must return a text of 1 to 200 characters, not None"
    assert (result.status, result.step_history[0].feedback) == ("failed", text)


def test_without_an_event_in_time_the_step_fails(store: Store, wall: Wall) -> None:  # noqa: F811
    """An event that arrives after that is buffered."""
    flujo = paying(store, timeout_s=HOUR)
    assert flujo.run("7", run_id="order").wakes_at == wall.now + HOUR
    wall.now += HOUR
    assert client(store).send("paid", key="7", data={"amount": 1}).status == "buffered"
    [result] = flujo.recover()
    assert result.status == "failed"
    assert isinstance(result.error, WaitTimeout)
    assert str(result.error) == "no event 'paid' with key '7' arrived within 3600 s"
    assert (result.error.event, result.error.key, result.error.timeout_s) == ("paid", "7", HOUR)


@pytest.mark.parametrize(
    ("on_timeout", "output"),
    [("none", None), (Step("late", lambda data: f"late {data}"), "late 7")],
    ids=["none", "step"],
)
def test_a_timeout_may_have_another_result(store: Store, wall: Wall, on_timeout: Any, output: Any) -> None:  # noqa: F811
    """None, or the output of a step that gets the input of the wait."""
    flujo = paying(store, timeout_s=HOUR, on_timeout=on_timeout)
    flujo.run("7", run_id="order")
    wall.now += HOUR + 1
    assert [result.output for result in flujo.recover()] == [output]


def test_an_event_arrives_while_another_branch_works(store: Store) -> None:  # noqa: F811
    """The branch continues in the same process."""
    events: list[str] = []

    async def send(data: int) -> int:
        await trio.to_thread.run_sync(lambda: client(store).send("go", key="run", data="now"))
        while not events:
            await trio.sleep(0.01)
        return data

    async def note(data: str) -> str:
        events.append(data)
        return data

    branches = {"wait": Step.wait_for("go?", "go") >> Step("note", note), "work": Step("work", send)}
    result = Flujo(Step.parallel("both", branches), store=store).run(1, run_id="run")
    assert (result.status, events) == ("completed", ["now"])


def test_a_cancelled_run_leaves_no_wait(store: Store) -> None:  # noqa: F811
    """The next event is buffered."""
    flujo = paying(store)
    flujo.run("7", run_id="order")
    client(store).cancel("order")
    assert client(store).send("paid", key="7", data={"amount": 1}).status == "buffered"
    assert client(store).wake("order") is False


def test_wake_does_not_end_a_wait_for_an_event(store: Store) -> None:  # noqa: F811
    """Only the event or the timeout does."""
    paying(store).run("7", run_id="order")
    assert client(store).wake("order") is False
    assert client(store).get("order").status == "sleeping"


def test_old_events_are_deleted_with_old_runs(store: Store, wall: Wall) -> None:  # noqa: F811
    """Also by workers, a thousand a minute."""
    client(store).send("paid", key="7")
    client(store).forget(older_than_s=1e9)
    assert len(client(store).events()) == 1
    wall.now += 8 * 24 * HOUR
    client(store).forget(older_than_s=1e9)
    assert list(client(store).events()) == []


def test_events_need_a_store() -> None:
    """Without one the pipeline is refused."""
    with pytest.raises(DeclarationError) as refused:
        Flujo(Step.wait_for("paid?", "paid"))
    assert str(refused.value) == "step 'paid?' waits for an event, and events need a store"


def test_a_later_start_is_a_sleeping_run(store: Store, wall: Wall) -> None:  # noqa: F811
    """Its time is that of the store; the worker's clock decides nothing."""
    flujo = Flujo(Step("echo", lambda data: data), store=store)
    flujo.submit_sync(1, run_id="later", delay_s=60)
    info = client(store).get("later")
    assert (info.status, info.state, info.wakes_at) == ("sleeping", "sleeping", wall.now + 60)
    assert [wait.kind for wait in info.waits] == ["start"]
    wall.now += 59
    work_once(flujo)
    assert client(store).get("later").status == "sleeping"
    wall.now += 2
    work_once(flujo)
    assert client(store).get("later").status == "completed"


def test_recover_starts_what_is_due(store: Store, wall: Wall) -> None:  # noqa: F811
    """A delayed start without a worker is begun once; other queued runs are left to workers."""
    ran: list[int] = []
    flujo = Flujo(Step("note", ran.append), store=store)
    flujo.submit_sync(0, run_id="queued")
    for number, name in enumerate(("later", "woken", "much later"), start=1):
        flujo.submit_sync(number, run_id=name, delay_s=60 * number)
    assert flujo.recover() == []
    assert client(store).wake("woken") is True
    wall.now += 61
    assert sorted(result.run_id for result in flujo.recover()) == ["later", "woken"]
    assert flujo.recover() == []
    assert sorted(ran) == [1, 2]
    assert [client(store).get(name).status for name in ("queued", "much later")] == ["running", "sleeping"]


def test_a_later_start_is_cancelled_or_woken(store: Store) -> None:  # noqa: F811
    """A cancelled run executes no step."""
    ran: list[int] = []
    flujo = Flujo(Step("note", ran.append), store=store)
    for number, name in enumerate(("cancelled", "woken")):
        flujo.submit_sync(number, run_id=name, at=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=90_000))
    client(store).cancel("cancelled")
    assert client(store).wake("woken") is True
    work_once(flujo)
    found = [client(store).get(name).status for name in ("cancelled", "woken")]
    assert (found, ran) == (["aborted", "completed"], [1])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"at": 1.0, "delay_s": 1.0}, "submit: give either at or delay_s"),
        ({"delay_s": -1}, "submit: delay_s must be a finite number >= 0, not -1"),
        (
            {"at": datetime.datetime(2030, 1, 1)},
            'submit: at has no time zone; use datetime(..., tzinfo=ZoneInfo("..."))',
        ),
    ],
    ids=["both", "negative", "naive"],
)
def test_an_impossible_start_is_refused(store: Store, given: Any, text: str) -> None:  # noqa: F811
    """Nothing is submitted."""
    with pytest.raises(DeclarationError) as refused:
        Flujo(Step("echo", lambda data: data), store=store).submit_sync(1, **given)
    assert str(refused.value) == text
    assert list(client(store).list()) == []


SENDS, WAITS = 60, 240


def _send_all(place: Any, first: int) -> None:
    sender = RunClient(place.open(), allow_blocking=True)
    for number in range(first, first + SENDS):
        sender.send("go", key=f"k{number}", data=number, id=f"id{number}")


def _receive(place: Any) -> None:
    flujo = Flujo(_waiting(), store=place.open(), settings={"durability": {"lease_s": 60.0}})

    async def work() -> None:
        async with flujo.worker(look_s=0.05) as worker:
            await worker.stopped()

    trio.run(work)


def _waiting() -> Any:
    return Step.wait_for("go?", "go", key=lambda data, context: f"k{data}")


@pytest.mark.slow
def test_no_event_is_lost_between_processes_that_are_killed(place: Any) -> None:
    """Senders and receivers race, workers are killed, each event is consumed once."""
    flujo = Flujo(_waiting(), store=place.open())
    for number in range(WAITS):
        flujo.submit_sync(number, run_id=f"run{number}")
    senders = [forked(lambda first=first: _send_all(place, first)) for first in range(0, WAITS, SENDS)]
    workers = [forked(lambda: _receive(place)) for _ in range(2)]
    runs, deadline = RunClient(place.open(), allow_blocking=True), time.monotonic() + 240
    kills = 6
    try:
        while len(runs.list("completed")) < WAITS and time.monotonic() < deadline:
            time.sleep(0.3)
            if kills:
                kills -= 1
                victim = random.randrange(len(workers))
                _kill(workers[victim])
                workers[victim] = forked(lambda: _receive(place))
        assert [ended(sender) for sender in senders] == [0] * 4
    finally:
        for worker in workers:
            _kill(worker)
    outputs = {info.run_id: runs.state(info.run_id).output for info in runs.list("completed")}
    assert outputs == {f"run{number}": number for number in range(WAITS)}
    assert {info.status for info in runs.events(limit=1000)} == {"delivered"}


@pytest.mark.slow
def test_a_delivered_event_is_recalled_after_a_kill(place: Any) -> None:
    """The worker dies between the delivery and the end of the step after it."""

    def flujo(clock: LateClock = ON_TIME) -> Flujo[Any, Any, Any]:
        return Flujo(_waiting() >> Step("next", _die_in_a_fork), store=place.open(clock))

    assert flujo().run(7, run_id="r").status == "sleeping"
    assert RunClient(place.open()).send("go", key="k7", data="paid").status == "delivered"
    assert in_another_process(lambda: flujo().recover()) == KILLED
    assert [result.output for result in flujo(AN_HOUR_LATER).recover()] == ["paid"]
    assert [info.status for info in RunClient(place.open()).events()] == ["delivered"]


TESTS = os.getpid()


def _die_in_a_fork(data: Any) -> Any:
    if os.getpid() != TESTS:
        os.kill(os.getpid(), signal.SIGKILL)
    return data


def _kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    ended(child)
