"""The supervisor on a mock clock: order, time, escalation, cancellation, nesting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

import attrs
import pytest
import trio
from puppets import Boom, Crash, Finish, Ignore, Note, Order, Seen, puppet
from trio.testing import MockClock, wait_all_tasks_blocked

from flujo_actors.actors import (
    ActorRef,
    Backoff,
    ChildExit,
    ChildSpec,
    DeadLetters,
    Intensity,
    Mailbox,
    RestartType,
    Strategy,
    Supervisor,
    open_supervisor,
)
from flujo_actors.errors import ActorDied, DeclarationError, Escalated, NoSuchChild, SupervisorStopped

OFTEN = Intensity(restarts=100, period_s=1000)
SECOND = Backoff(first=1, jitter=0)


def spec(name: str, restart: RestartType = "permanent", shutdown_s: float = 5) -> ChildSpec:
    """A child that waits a second before its first restart."""
    return ChildSpec(name=name, restart=restart, shutdown_s=shutdown_s, backoff=SECOND)


async def trio_of_puppets(supervisor: Supervisor, log: list[str]) -> dict[str, ActorRef[Order]]:
    """Three children, a, b and c."""
    return {name: await supervisor.spawn(puppet, spec(name), name, log) for name in "abc"}


@pytest.mark.trio
async def test_children_start_in_order_and_stop_in_reverse() -> None:
    """Leaving the block stops the last one first."""
    log = list[str]()
    async with open_supervisor() as supervisor:
        await trio_of_puppets(supervisor, log)
    assert log == ["start a", "start b", "start c", "end c", "end b", "end a"]


@pytest.mark.trio
async def test_children_can_be_declared_with_the_supervisor() -> None:
    """They are found by name."""
    async with open_supervisor(children=[(puppet, spec("a")), (puppet, spec("b"))]) as supervisor:
        assert [child.spec.name for child in supervisor.children] == ["a", "b"]
        assert await supervisor.ref("a").ask(Seen) == 0
        with pytest.raises(NoSuchChild, match="'x'"):
            supervisor.ref("x")


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("one_for_one", ["end b", "start b"]),
        ("one_for_all", ["end b", "end c", "end a", "start a", "start b", "start c"]),
        ("rest_for_one", ["end b", "end c", "start b", "start c"]),
    ],
)
@pytest.mark.trio
async def test_a_strategy_says_who_is_restarted(
    strategy: Strategy, expected: list[str], autojump_clock: MockClock
) -> None:
    """Stopped in reverse order, started in order, a second later."""
    log = list[str]()
    async with open_supervisor(strategy=strategy, intensity=OFTEN) as supervisor:
        refs = await trio_of_puppets(supervisor, log)
        log.clear()
        await refs["b"].tell(Crash())
        await trio.sleep(0.9)
        assert [event for event in log if event.startswith("start")] == []
        await trio.sleep(0.2)
        assert log == expected


@pytest.mark.parametrize(
    ("restart", "order", "comes_back"),
    [
        ("permanent", Finish(), True),
        ("permanent", Crash(), True),
        ("transient", Finish(), False),
        ("transient", Crash(), True),
        ("temporary", Finish(), False),
        ("temporary", Crash(), False),
    ],
)
@pytest.mark.trio
async def test_the_restart_type_says_which_exits_bring_a_child_back(
    restart: RestartType, order: Order, comes_back: bool, autojump_clock: MockClock
) -> None:
    """Permanent always, transient after a crash, temporary never."""
    async with open_supervisor(intensity=OFTEN) as supervisor:
        ref = await supervisor.spawn(puppet, spec("a", restart))
        await ref.tell(order)
        await trio.sleep(2)
        assert ref.alive == comes_back
        assert [child.spec.name for child in supervisor.children] == ["a"] * comes_back


@pytest.mark.trio
async def test_backoff_doubles_while_a_child_keeps_crashing(autojump_clock: MockClock) -> None:
    """Measured on the clock: one, two and four seconds, and one again after a steady time."""
    starts = list[float]()

    async def shaky(mailbox: Mailbox[Order]) -> None:
        starts.append(trio.current_time())
        await trio.sleep(100 if len(starts) == 4 else 0)
        raise Boom

    async with open_supervisor(intensity=Intensity(restarts=50, period_s=60)) as supervisor:
        await supervisor.spawn(shaky, spec("shaky", shutdown_s=0))
        await trio.sleep(108.5)
    gaps = [round(later - earlier, 6) for earlier, later in pairwise(starts)]
    assert gaps == [1, 2, 4, 101]


@pytest.mark.trio
async def test_jitter_shortens_the_wait_by_chance(autojump_clock: MockClock) -> None:
    """Chance is the supervisor's, given as an argument."""
    log = list[str]()
    jittery = attrs.evolve(spec("a"), backoff=Backoff(first=1, jitter=0.5))
    async with open_supervisor(rng=lambda: 0.5) as supervisor:
        ref = await supervisor.spawn(puppet, jittery, "a", log)
        await ref.tell(Crash())
        await trio.sleep(0.74)
        assert log == ["start a", "end a"]
        await trio.sleep(0.02)
        assert log == ["start a", "end a", "start a"]


@pytest.mark.trio
async def test_a_child_is_asked_to_end_and_cancelled_when_its_time_is_over(autojump_clock: MockClock) -> None:
    """Each child has its own shutdown time, one after the other."""
    ends = dict[str, float]()

    async def stubborn(mailbox: Mailbox[Order], name: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ends[name] = trio.current_time() - left

    async with open_supervisor() as supervisor:
        await supervisor.spawn(stubborn, spec("patient", shutdown_s=10), "patient")
        await supervisor.spawn(puppet, spec("polite", shutdown_s=100))
        await supervisor.spawn(stubborn, spec("hasty", shutdown_s=2), "hasty")
        left = trio.current_time()
    assert ends == {"hasty": pytest.approx(2), "patient": pytest.approx(12)}


@pytest.mark.trio
async def test_a_child_that_is_stopped_for_good_may_handle_what_is_queued(autojump_clock: MockClock) -> None:
    """Within its shutdown time; the rest becomes dead letters."""
    done = list[int]()

    async def slow(mailbox: Mailbox[int]) -> None:
        async for number in mailbox:
            await trio.sleep(1)
            done.append(number)

    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(slow, spec("slow", shutdown_s=3.5))
        for number in range(6):
            await ref.tell(number)
    assert done == [0, 1, 2]
    assert supervisor.dead_letters.count == 2
    assert ref.traffic().handled == 4


@pytest.mark.trio
async def test_a_sibling_that_is_restarted_keeps_its_queue(autojump_clock: MockClock) -> None:
    """It finishes the message in hand; the next incarnation takes the others."""
    done = list[str]()

    async def slow(mailbox: Mailbox[int]) -> None:
        done.append("start")
        async for number in mailbox:
            await trio.sleep(1)
            done.append(f"done {number}")

    async with open_supervisor(strategy="one_for_all") as supervisor:
        ref = await supervisor.spawn(slow, spec("slow"))
        other = await supervisor.spawn(puppet, spec("other"))
        await ref.tell(1)
        await ref.tell(2)
        await other.tell(Crash())
        await trio.sleep(10)
    assert done == ["start", "done 1", "start", "done 2"]
    assert supervisor.dead_letters.count == 0


@pytest.mark.trio
async def test_too_many_restarts_escalate_with_child_crashes_and_cause(autojump_clock: MockClock) -> None:
    """All children are stopped in reverse order, the block is cancelled, the error says why."""
    log, refs = list[str](), dict[str, ActorRef[Order]]()

    async def crash_three_times() -> None:
        async with open_supervisor(intensity=Intensity(restarts=2, period_s=100)) as supervisor:
            refs.update(await trio_of_puppets(supervisor, log))
            for number in range(3):
                await refs["b"].tell(Crash(f"number {number}"))
            await trio.sleep_forever()

    with pytest.raises(Escalated, match="more than 2 restarts in 100 s") as caught:
        await crash_three_times()
    assert (caught.value.child, caught.value.crashes) == ("b", 3)
    assert isinstance(caught.value.cause, Boom)
    assert str(caught.value.cause) == "number 2"
    assert log[-3:] == ["end b", "end c", "end a"]
    assert not any(ref.alive for ref in refs.values())


@pytest.mark.trio
async def test_slow_restarts_never_escalate(autojump_clock: MockClock) -> None:
    """Only what falls within one period counts."""
    async with open_supervisor(intensity=Intensity(restarts=1, period_s=5)) as supervisor:
        ref = await supervisor.spawn(puppet, spec("a"))
        for _ in range(10):
            await ref.tell(Crash())
            await trio.sleep(6)
        assert ref.alive


@pytest.mark.trio
async def test_an_escalation_is_told_even_if_the_block_fails_over_the_same_crash() -> None:
    """The block's own error is kept as a note."""

    async def ask_until_it_crashes() -> None:
        async with open_supervisor(intensity=Intensity(restarts=0)) as supervisor:
            ref = await supervisor.spawn(puppet, spec("a"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ref.tell, Crash())
                await ref.ask(Ignore)

    with pytest.raises(Escalated) as caught:
        await ask_until_it_crashes()
    assert "ActorDied" in caught.value.__notes__[0]


@pytest.mark.trio
async def test_an_error_in_the_block_arrives_as_it_was_raised() -> None:
    """Children are cancelled, and no exception group is put around a single error."""
    log = list[str]()

    async def fail() -> None:
        async with open_supervisor() as supervisor:
            await supervisor.spawn(puppet, spec("a", shutdown_s=1000), "a", log, True)
            raise Boom("mine")

    with pytest.raises(Boom, match="mine"):
        await fail()
    assert log == ["start a", "end a"]


@pytest.mark.trio
async def test_cancellation_stops_everything_and_drains_every_mailbox() -> None:
    """Also mailboxes of children that wait for their restart, and questions on their way."""
    letters, failed = DeadLetters(), list[str]()

    async def idle(mailbox: Mailbox[int]) -> None:
        await trio.sleep_forever()

    async def ask(ref: ActorRef[Order]) -> None:
        with pytest.raises(ActorDied):
            await ref.ask(Seen)
        failed.append(ref.name)

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with open_supervisor(dead_letters=letters) as supervisor:
                busy = await supervisor.spawn(idle, spec("busy", shutdown_s=1000))
                waiting = await supervisor.spawn(puppet, spec("waiting"))
                for number in range(3):
                    await busy.tell(number)
                await waiting.tell(Crash())
                await wait_all_tasks_blocked()
                nursery.start_soon(ask, waiting)
                await wait_all_tasks_blocked()
                scope.cancel()
                await trio.sleep_forever()
    assert scope.cancelled_caught
    assert (letters.count, failed) == (4, ["waiting"])
    assert not busy.alive
    assert not waiting.alive


@pytest.mark.trio
async def test_one_child_can_be_stopped_for_good(autojump_clock: MockClock) -> None:
    """Whatever its restart type, and also while it waits for its restart; its name is free again."""
    log = list[str]()
    async with open_supervisor(intensity=OFTEN) as supervisor:
        refs = await trio_of_puppets(supervisor, log)
        await supervisor.stop("b")
        await refs["c"].tell(Crash())
        await wait_all_tasks_blocked()
        await supervisor.stop("c")
        assert [child.spec.name for child in supervisor.children] == ["a"]
        again = await supervisor.spawn(puppet, spec("b"))
        await trio.sleep(5)
        assert (refs["b"].alive, again.alive) == (False, True)


@pytest.mark.parametrize("repetition", range(10))
@pytest.mark.trio
async def test_a_crash_and_a_stop_at_the_same_moment_are_one_end(repetition: int) -> None:
    """Whichever comes first, the child ends once, and a new child of its name is not taken for it."""
    log = list[str]()
    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(puppet, spec("a"), "a", log)
        await wait_all_tasks_blocked()
        ref.tell_nowait(Crash())
        await supervisor.stop("a")
        again = await supervisor.spawn(puppet, spec("a"), "a", log)
        await wait_all_tasks_blocked()
        assert [child.crashes for child in supervisor.children] == [0]
        assert (ref.alive, again.alive) == (False, True)
    assert log == ["start a", "end a"] * 2


@pytest.mark.trio
async def test_join_waits_until_no_child_is_left(autojump_clock: MockClock) -> None:
    """Children that end by themselves need no stopping."""

    async def nap(mailbox: Mailbox[int], seconds: float) -> None:
        await trio.sleep(seconds)

    started = trio.current_time()
    async with open_supervisor() as supervisor:
        await supervisor.spawn(nap, spec("short", "transient"), 1)
        await supervisor.spawn(nap, spec("long", "temporary"), 7)
        await supervisor.join()
        assert trio.current_time() - started == pytest.approx(7)


@pytest.mark.trio
async def test_a_stopping_supervisor_takes_no_new_child() -> None:
    """The refusal names the child."""
    async with open_supervisor() as supervisor:
        await supervisor.stop_all()
        with pytest.raises(SupervisorStopped, match="'late'"):
            await supervisor.spawn(puppet, spec("late"))


@pytest.mark.trio
async def test_a_name_is_taken_while_its_child_lives() -> None:
    """The error arrives as it was raised, and the supervisor goes on."""
    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(puppet, spec("a"))
        with pytest.raises(DeclarationError, match="'a'"):
            await supervisor.spawn(puppet, spec("a"))
        assert await ref.ask(Seen) == 0


@pytest.mark.trio
async def test_every_end_of_an_actor_is_shown_to_an_observer(autojump_clock: MockClock) -> None:
    """With its cause, and whether it was asked to end."""
    exits = Mailbox[ChildExit](2)
    async with open_supervisor(exits=exits) as supervisor:
        ref = await supervisor.spawn(puppet, spec("a"))
        await ref.tell(Crash())
        await trio.sleep(2)
    first, second = exits.untaken()
    assert (first.name, repr(first.cause), first.asked) == ("a", "Boom('boom')", False)
    assert second == ChildExit(name="a", cause=None, asked=True)


def team(log: list[str], intensity: Intensity) -> Callable[[Mailbox[Order]], Awaitable[None]]:
    """An actor that supervises a puppet and passes its messages on."""

    async def lead(mailbox: Mailbox[Order]) -> None:
        async with open_supervisor(intensity=intensity) as inner:
            member = await inner.spawn(puppet, spec("member"), "member", log)
            async for order in mailbox:
                await member.tell(order)

    return lead


@pytest.mark.trio
async def test_supervisors_nest_and_escalation_is_a_crash_of_the_inner_one(autojump_clock: MockClock) -> None:
    """The outer supervisor restarts the whole team."""
    log, exits = list[str](), Mailbox[ChildExit](10)
    async with open_supervisor(exits=exits) as outer:
        ref = await outer.spawn(team(log, Intensity(restarts=1, period_s=100)), spec("team"))
        await ref.tell(Crash())
        await trio.sleep(1.5)
        await ref.tell(Crash())
        await trio.sleep(0.5)
        assert log == ["start member", "end member"] * 2
        await trio.sleep(1)
        assert log[-1] == "start member"
        assert isinstance(exits.untaken()[0].cause, Escalated)
        assert await ref.ask(Seen, timeout=1) == 0
    assert log == ["start member", "end member"] * 3


@pytest.mark.trio
async def test_keyboard_interrupt_is_no_crash() -> None:
    """It passes the supervisor as it is."""

    async def interrupted(mailbox: Mailbox[int]) -> None:
        raise KeyboardInterrupt

    async def supervise() -> None:
        async with open_supervisor() as supervisor:
            await supervisor.spawn(interrupted, spec("a"))
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        await supervise()


@pytest.mark.trio
async def test_a_child_that_crashes_while_it_is_stopped_is_still_stopped() -> None:
    """Its crash is what its ref ended with."""

    async def sore_loser(mailbox: Mailbox[Note]) -> None:
        async for _ in mailbox:
            pass
        raise Boom("at the end")

    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(sore_loser, spec("a"))
    assert str(await ref.ended()) == "at the end"
