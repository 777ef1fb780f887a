"""Talking to actors: tell, ask, dead letters."""

from __future__ import annotations

import attrs
import pytest
import trio
from puppets import Boom, Crash, Finish, Ignore, Note, Order, Seen, puppet
from trio.testing import wait_all_tasks_blocked

from flujo_actors.actors import (
    ActorRef,
    Addressee,
    Ask,
    Backoff,
    ChildSpec,
    DeadLetter,
    DeadLetters,
    Mailbox,
    Supervisor,
    Traffic,
    open_supervisor,
)
from flujo_actors.errors import ActorDied, AskTimeout, ProtocolError

ONCE = ChildSpec(name="once", restart="temporary")
AGAIN = ChildSpec(name="again", backoff=Backoff(first=1, jitter=0), capacity=4)


@attrs.frozen
class Divide:
    """A question with an argument."""

    ask: Ask[float]
    by: int


async def divider(mailbox: Mailbox[Divide]) -> None:
    """Answers, or fails the question."""
    async for question in mailbox:
        if question.by:
            question.ask.reply(12 / question.by)
        else:
            question.ask.fail(ZeroDivisionError("by zero"))


@pytest.mark.trio
async def test_ask_returns_the_reply() -> None:
    """The message is made with the slot for its reply and its arguments."""
    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(divider, ONCE)
        assert await ref.ask(Divide, 3) == 4


@pytest.mark.trio
async def test_ask_raises_what_the_actor_fails_it_with() -> None:
    """The error arrives where the question was asked; the actor lives on."""
    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(divider, ONCE)
        with pytest.raises(ZeroDivisionError, match="by zero"):
            await ref.ask(Divide, 0)
        assert await ref.ask(Divide, 4) == 3


@pytest.mark.trio
async def test_ask_times_out_with_the_actor_and_the_time_in_the_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An actor that never answers costs the asker its timeout, no more."""
    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(puppet, ONCE)
        started = trio.current_time()
        with pytest.raises(AskTimeout, match="'once' did not reply within 3 s") as caught:
            await ref.ask(Ignore, timeout=3)
        assert (caught.value.actor, caught.value.timeout) == ("once", 3)
        assert trio.current_time() - started == pytest.approx(3)
        assert isinstance(caught.value, TimeoutError)


@pytest.mark.trio
async def test_a_late_reply_goes_nowhere(autojump_clock: trio.testing.MockClock) -> None:
    """The actor may look whether anybody still waits; answering too late is no mistake."""
    late = list[bool]()

    async def slow(mailbox: Mailbox[Seen]) -> None:
        async for question in mailbox:
            await trio.sleep(10)
            late.append(question.ask.open)
            question.ask.reply(1)

    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(slow, attrs.evolve(ONCE, shutdown_s=60))
        with pytest.raises(AskTimeout):
            await ref.ask(Seen, timeout=1)
    assert late == [False]


@pytest.mark.trio
async def test_answering_twice_is_a_defect_of_the_actor() -> None:
    """The second answer is refused loudly, in the actor."""

    async def eager(mailbox: Mailbox[Seen]) -> None:
        question = await mailbox.get()
        question.ask.reply(1)
        question.ask.reply(2)

    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(eager, ONCE)
        assert await ref.ask(Seen) == 1
        assert isinstance(await ref.ended(), ProtocolError)


@pytest.mark.trio
async def test_an_actor_that_dies_over_a_question_fails_it_with_the_cause() -> None:
    """Questions it had taken fail at once, long before their timeout."""
    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(puppet, ONCE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_death, ref, "over and out")
            await wait_all_tasks_blocked()
            await ref.tell(Crash("over and out"))


async def _expect_death(ref: ActorRef[Ignore], reason: str) -> None:
    with pytest.raises(ActorDied, match=reason) as caught:
        await ref.ask(Ignore, timeout=1000)
    assert isinstance(caught.value.cause, Boom)
    assert caught.value.__cause__ is caught.value.cause


@pytest.mark.trio
async def test_a_taken_question_fails_with_the_crash_even_if_the_actor_comes_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is not kept waiting for the restart, for nobody remembers it then."""
    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(puppet, AGAIN)
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_death, ref, "boom")
            await wait_all_tasks_blocked()
            await ref.tell(Crash())
        assert trio.current_time() == started
        assert ref.alive


@pytest.mark.trio
async def test_a_question_still_queued_is_answered_by_the_next_incarnation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Refs survive restarts, and so does what the mailbox holds."""
    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(puppet, AGAIN)
        await ref.tell(Note(1))
        await ref.tell(Crash())
        await ref.tell(Note(2))
        assert await ref.ask(Seen, timeout=5) == 1


@pytest.mark.trio
async def test_asking_the_dead_fails_at_once_and_is_a_dead_letter() -> None:
    """With the crash that ended the actor as the cause."""
    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(puppet, ONCE)
        await ref.tell(Crash())
        assert isinstance(await ref.ended(), Boom)
        with pytest.raises(ActorDied, match="boom"):
            await ref.ask(Seen)
        assert supervisor.dead_letters.count == 1
        assert not ref.alive


@pytest.mark.trio
async def test_an_error_of_the_answer_is_not_taken_for_a_refused_message() -> None:
    """An actor may fail a question with the very error that a closed mailbox raises."""

    async def odd(mailbox: Mailbox[Seen]) -> None:
        async for question in mailbox:
            question.ask.fail(trio.ClosedResourceError("mine"))

    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(odd, ONCE)
        with pytest.raises(trio.ClosedResourceError, match="mine"):
            await ref.ask(Seen)
        assert supervisor.dead_letters.count == 0


@pytest.mark.trio
async def test_tell_waits_for_room_and_tell_nowait_does_not() -> None:
    """A bounded mailbox slows its senders down."""
    addressee = Addressee("slow", Mailbox[int](2))
    ref = addressee.ref()
    assert [ref.tell_nowait(n) for n in range(3)] == [True, True, False]
    with trio.CancelScope() as scope:
        scope.cancel()
        await ref.tell(3)
    assert scope.cancelled_caught
    assert ref.traffic() == Traffic(sent=2, queued=2)


@pytest.mark.trio
async def test_telling_the_dead_makes_dead_letters_and_no_error() -> None:
    """Whether the sender would wait or not."""
    async with open_supervisor() as supervisor:
        ref = await supervisor.spawn(puppet, ONCE)
        await ref.tell(Finish())
        assert await ref.ended() is None
        await ref.tell(Note(1))
        assert ref.tell_nowait(Note(2)) is False
    assert ref.traffic() == Traffic(sent=3, handled=1, dead=2)
    assert supervisor.dead_letters.count_for("once") == 2


@pytest.mark.trio
async def test_dead_letters_are_shown_to_a_subscriber_that_has_room() -> None:
    """A subscriber that does not keep up misses letters; counts stay exact."""
    shown = Mailbox[DeadLetter](2)
    letters = DeadLetters(subscriber=shown)
    addressee = Addressee("gone", Mailbox[int](4), letters)
    ref = addressee.ref()
    await ref.tell(1)
    addressee.terminate(None)
    await ref.tell(2)
    await ref.tell(3)
    assert (letters.count, letters.missed) == (3, 1)
    assert shown.untaken() == [
        DeadLetter(actor="gone", message=1, reason="abandoned"),
        DeadLetter(actor="gone", message=2, reason="refused"),
    ]


@pytest.mark.trio
async def test_what_was_sent_was_handled_or_is_dead(autojump_clock: trio.testing.MockClock) -> None:
    """The equation holds over crashes, a restart, a stop with a full mailbox and late messages."""
    letters = DeadLetters()
    async with open_supervisor(dead_letters=letters) as supervisor:
        ref = await supervisor.spawn(puppet, AGAIN)
        await _send_ten(ref, supervisor)
    await ref.tell(Note(99))
    traffic = ref.traffic()
    assert traffic == Traffic(sent=11, handled=5, dead=6)
    assert letters.count == traffic.dead


async def _send_ten(ref: ActorRef[Order], supervisor: Supervisor) -> None:
    for order in (Note(1), Crash(), Note(2), Note(3)):
        await ref.tell(order)
    await trio.sleep(1.5)
    assert ref.traffic() == Traffic(sent=4, handled=4)
    await ref.tell(Crash())
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(ref.tell, Note(number))
        await wait_all_tasks_blocked()
        # Four fit into the mailbox, the fifth waits for room until its actor is gone.
        assert ref.traffic() == Traffic(sent=9, handled=5, queued=4)
        await supervisor.stop("again")
