"""The mailbox: order, bounds, ends, cancellation and fairness."""

from __future__ import annotations

import math
from collections import deque
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from outcome import Error, Value
from trio.testing import wait_all_tasks_blocked

from flujo_actors.actors import Mailbox
from flujo_actors.actors._mailbox import LONGEST_RUN
from flujo_actors.errors import DeclarationError


async def drain(mailbox: Mailbox[int], into: list[int]) -> None:
    """Read the mailbox to its end."""
    async for item in mailbox:
        into.append(item)


@pytest.mark.parametrize("capacity", [1, 2, 64, math.inf])
@pytest.mark.trio
async def test_items_arrive_in_order_and_all_of_them(capacity: float) -> None:
    """Whatever the capacity."""
    mailbox, got = Mailbox[int](capacity), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain, mailbox, got)
        for item in range(3000):
            await mailbox.put(item)
        mailbox.close()
    assert got == list(range(3000))
    assert (mailbox.accepted, mailbox.taken, len(mailbox)) == (3000, 3000, 0)


@pytest.mark.trio
async def test_a_full_box_parks_the_sender_until_there_is_room() -> None:
    """The bound is a bound."""
    mailbox, sent = Mailbox[int](2), list[int]()

    async def send() -> None:
        for item in range(4):
            await mailbox.put(item)
            sent.append(item)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert (sent, len(mailbox), mailbox.untaken()) == ([0, 1], 2, [0, 1, 2])
        with pytest.raises(trio.WouldBlock):
            mailbox.put_nowait(9)
        assert [await mailbox.get() for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.trio
async def test_a_ready_hand_over_takes_no_scheduling_round() -> None:
    """Another task that is ready does not get a turn between puts and gets that need not wait."""
    mailbox, turns = Mailbox[int](8), list[str]()

    async def bystander() -> None:
        turns.append("bystander")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bystander)
        for item in range(8):
            await mailbox.put(item)
        for _ in range(8):
            await mailbox.get()
        assert turns == []


@pytest.mark.trio
async def test_a_task_that_never_has_to_wait_still_gives_way() -> None:
    """Putting into an endless box, draining it, and doing both in turn each let others run."""
    mailbox, rounds = Mailbox[int](math.inf), [0]

    async def bystander() -> None:
        while True:
            rounds[0] += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bystander)
        for act in (_put_many, _get_many, _put_and_get_many):
            before = rounds[0]
            await act(mailbox)
            assert rounds[0] >= before + 2
        nursery.cancel_scope.cancel()


async def _put_many(mailbox: Mailbox[int]) -> None:
    for item in range(5 * LONGEST_RUN):
        await mailbox.put(item)


async def _get_many(mailbox: Mailbox[int]) -> None:
    for _ in range(5 * LONGEST_RUN):
        await mailbox.get()


async def _put_and_get_many(mailbox: Mailbox[int]) -> None:
    for item in range(5 * LONGEST_RUN):
        await mailbox.put(item)
        mailbox.get_nowait()


@pytest.mark.trio
async def test_a_busy_sender_can_be_cancelled() -> None:
    """A sender in a tight loop notices its cancellation within a run of puts."""
    mailbox = Mailbox[int](math.inf)
    with trio.CancelScope() as scope:
        scope.cancel()
        for item in range(10 * LONGEST_RUN):
            await mailbox.put(item)
    assert scope.cancelled_caught
    assert len(mailbox) == LONGEST_RUN


@pytest.mark.trio
async def test_a_receiver_without_a_task_gets_what_comes_next_and_no_more() -> None:
    """At once if there is something, else in the step that brings it; in turn with receivers that are tasks."""
    mailbox, got = Mailbox[int](4), list[object]()

    def deliver(what: Value[Any] | Error) -> None:
        got.append(what.unwrap())

    async def receive() -> None:
        got.append(("task", await mailbox.get()))

    mailbox.put_nowait(1)
    mailbox.deliver_next(deliver)
    assert got == [1]
    async with trio.open_nursery() as nursery:
        mailbox.deliver_next(deliver)
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        mailbox.put_nowait(2)
        assert got == [1, 2]
        mailbox.put_nowait(3)
    mailbox.put_nowait(4)
    assert got == [1, 2, ("task", 3)]
    assert (mailbox.accepted, mailbox.taken, len(mailbox)) == (4, 3, 1)


def test_a_receiver_without_a_task_hears_of_the_end_or_withdraws() -> None:
    """Closed while it waits, or before; withdrawn, it hears nothing and takes nothing."""
    mailbox, ends = Mailbox[int](4), list[str]()

    def deliver(what: Value[Any] | Error) -> None:
        ends.append(type(what.error).__name__ if isinstance(what, Error) else "an item")

    mailbox.deliver_next(deliver)
    mailbox.withdraw(deliver)
    mailbox.put_nowait(1)
    assert (ends, mailbox.get_nowait()) == ([], 1)
    mailbox.deliver_next(deliver)
    mailbox.close()
    mailbox.deliver_next(deliver)
    mailbox.break_off()
    mailbox.deliver_next(deliver)
    assert ends == ["EndOfChannel", "EndOfChannel", "ClosedResourceError"]


@pytest.mark.trio
async def test_close_lets_receivers_drain() -> None:
    """What was accepted before the close is still read; then comes the end."""
    mailbox = Mailbox[int](4)
    mailbox.put_nowait(1)
    mailbox.close()
    with pytest.raises(trio.ClosedResourceError):
        await mailbox.put(2)
    assert await mailbox.get() == 1
    with pytest.raises(trio.EndOfChannel):
        await mailbox.get()
    with pytest.raises(trio.EndOfChannel):
        mailbox.get_nowait()


@pytest.mark.trio
async def test_close_wakes_whoever_is_parked() -> None:
    """Parked senders are refused, parked receivers see the end."""
    full, empty, ends = Mailbox[int](1), Mailbox[int](1), list[str]()
    full.put_nowait(0)

    async def send() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await full.put(1)
        ends.append("sender")

    async def receive() -> None:
        with pytest.raises(trio.EndOfChannel):
            await empty.get()
        ends.append("receiver")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        full.close()
        empty.close()
    assert sorted(ends) == ["receiver", "sender"]
    assert full.untaken() == [0]


@pytest.mark.trio
async def test_break_off_hands_back_what_nobody_took() -> None:
    """Senders learn that the receiver is gone, and a parked one keeps its item."""
    mailbox, refused = Mailbox[int](2), list[int]()
    mailbox.put_nowait(0)
    mailbox.put_nowait(1)

    async def send() -> None:
        with pytest.raises(trio.BrokenResourceError):
            await mailbox.put(2)
        refused.append(2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert mailbox.break_off() == [0, 1]
    assert refused == [2]
    with pytest.raises(trio.BrokenResourceError):
        mailbox.put_nowait(3)
    with pytest.raises(trio.ClosedResourceError):
        await mailbox.get()


@pytest.mark.trio
async def test_a_suspended_box_ends_its_reader_and_keeps_its_queue() -> None:
    """The next reader goes on where the last one stopped."""
    mailbox, got = Mailbox[int](8), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain, mailbox, got)
        await wait_all_tasks_blocked()
        mailbox.suspend()
    await mailbox.put(1)
    await drain(mailbox, got)
    assert (got, len(mailbox)) == ([], 1)
    mailbox.resume()
    mailbox.close()
    await drain(mailbox, got)
    assert got == [1]


@pytest.mark.parametrize("capacity", [0, -1, math.nan])
def test_a_box_without_room_is_refused(capacity: float) -> None:
    """A capacity is one or more."""
    with pytest.raises(DeclarationError):
        Mailbox[int](capacity)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    capacity=st.sampled_from([1, 2, 5, math.inf]),
    senders=st.integers(1, 4),
    receivers=st.integers(1, 4),
)
def test_no_schedule_loses_or_doubles_an_item(seed: int, capacity: float, senders: int, receivers: int) -> None:
    """Tasks are cancelled at random, parked or not: what a put accepted is taken once or is still there."""
    trio.run(_crossfire, Random(seed), capacity, senders, receivers)


async def _crossfire(random: Random, capacity: float, senders: int, receivers: int) -> None:
    mailbox = Mailbox[tuple[int, int]](capacity)
    accepted, taken = list[tuple[int, int]](), list[tuple[int, int]]()

    async def send(who: int) -> None:
        for number in range(30):
            with trio.CancelScope() as scope:
                _cancel_sometimes(nursery, random, scope)
                await mailbox.put((who, number))
                accepted.append((who, number))
            await _rest(random)

    async def receive() -> None:
        while True:
            with trio.CancelScope() as scope:
                _cancel_sometimes(nursery, random, scope)
                taken.append(await mailbox.get())
            await _rest(random)

    async with trio.open_nursery() as background:
        nursery = background
        for _ in range(receivers):
            background.start_soon(receive)
        async with trio.open_nursery() as sending:
            for who in range(senders):
                sending.start_soon(send, who)
        background.cancel_scope.cancel()
    assert sorted(accepted) == sorted(taken + mailbox.untaken())
    assert (mailbox.accepted, mailbox.taken) == (len(accepted), len(taken))
    if receivers == 1:
        _assert_in_order(taken, senders)


def _assert_in_order(taken: list[tuple[int, int]], senders: int) -> None:
    for who in range(senders):
        numbers = [number for sender, number in taken if sender == who]
        assert numbers == sorted(numbers)


def _cancel_sometimes(nursery: trio.Nursery, random: Random, scope: trio.CancelScope) -> None:
    async def cancel() -> None:
        await _rest(random)
        scope.cancel()

    if random.random() < 0.4:
        nursery.start_soon(cancel)


async def _rest(random: Random) -> None:
    for _ in range(random.randrange(3)):
        await trio.lowlevel.checkpoint()


class MailboxMachine(RuleBasedStateMachine):
    """The calls that never wait, against a plain deque."""

    def __init__(self) -> None:
        super().__init__()
        self.mailbox = Mailbox[int](3)
        self.model: deque[int] = deque()
        self.end: str = "open"
        self.suspended = False
        self.number = 0

    @rule()
    def put(self) -> None:
        """A put is accepted while the box is open and has room."""
        self.number += 1
        expected = {"closed": trio.ClosedResourceError, "broken": trio.BrokenResourceError}.get(self.end)
        if expected is None and len(self.model) == 3:
            expected = trio.WouldBlock
        if expected is None:
            self.mailbox.put_nowait(self.number)
            self.model.append(self.number)
        else:
            with pytest.raises(expected):
                self.mailbox.put_nowait(self.number)

    @rule()
    def get(self) -> None:
        """A get gives the oldest item, or says why there is none."""
        if self.model and not self.suspended:
            assert self.mailbox.get_nowait() == self.model.popleft()
            return
        ended = self.suspended or self.end == "closed"
        expected = trio.ClosedResourceError if self.end == "broken" else trio.WouldBlock
        with pytest.raises(trio.EndOfChannel if ended and self.end != "broken" else expected):
            self.mailbox.get_nowait()

    @rule()
    def suspend_or_resume(self) -> None:
        """Reading can be ended for now and taken up again."""
        self.suspended = not self.suspended
        (self.mailbox.suspend if self.suspended else self.mailbox.resume)()

    @precondition(lambda self: self.number > 5)
    @rule()
    def close(self) -> None:
        """Closing is for good, and closing twice changes nothing."""
        self.mailbox.close()
        self.end = "broken" if self.end == "broken" else "closed"

    @precondition(lambda self: self.number > 8)
    @rule()
    def break_off(self) -> None:
        """Breaking off hands back the queue."""
        assert self.mailbox.break_off() == list(self.model)
        self.model.clear()
        self.end = "broken"

    @invariant()
    def same_items(self) -> None:
        """The queue is the model's."""
        assert self.mailbox.untaken() == list(self.model)
        assert len(self.mailbox) == len(self.model)


TestMailboxMachine = MailboxMachine.TestCase
TestMailboxMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
