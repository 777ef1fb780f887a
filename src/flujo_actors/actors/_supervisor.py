"""Supervisor: starts actors, monitors them, and executes `actors._supervision_rules`'s decisions.

1. One task, the control loop, handles exit notices and stop requests one after the other. While
   it waits for a child to end, further notices are queued.
2. Children start one by one: each has run up to its first wait before the next is started. They are stopped
   one by one too, each with its own shutdown time.
3. Leaving the block requests the end of all children. An error in the block, or cancellation, cancels them all at
   once.
4. When a child ends for good, its queued messages become dead letters.
5. When restarts exceed the intensity, all children are stopped, the block is cancelled, and `Escalated` is raised.

Sections:

- Child of a supervisor: a stable address, and its successive incarnations.
"""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias, TypeVar, TypeVarTuple, assert_never

import attrs
import outcome
import trio

from ..errors import Escalated, NoSuchChild, SupervisorStopped
from ._mailbox import Mailbox
from ._ref import ActorAddress, ActorRef, DeadLetters
from ._supervision_rules import (
    ChildSpec,
    ChildState,
    Escalate,
    Intensity,
    NoAction,
    Restart,
    Strategy,
    SupervisorState,
    admit,
    dismiss,
    next_due,
    on_exit,
    start_due,
    stop_order,
)

# --- Child of a supervisor ----------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Incarnation:
    """One run of a child's actor, from its start to its end."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    begun: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    asked_to_end: bool = False


@attrs.define(eq=False)
class ChildProcess:
    """Child with its actor function, mailbox and current incarnation."""

    spec: ChildSpec
    addressee: ActorAddress[Any]
    act: Callable[[], Awaitable[object]]
    incarnation: Incarnation = attrs.field(factory=Incarnation)
    cause: Exception | None = None
    """Exception of the last incarnation's crash, if any."""

    async def live(self, incarnation: Incarnation) -> None:
        """Run the actor once; keep a crash as cause, propagate cancellation."""
        incarnation.begun.set()
        result = await outcome.acapture(self._act_within, incarnation.scope)
        self.cause = _crash(result)
        self.addressee.fail_taken(self.cause)
        incarnation.ended.set()
        if self.cause is None:
            result.unwrap()

    async def _act_within(self, scope: trio.CancelScope) -> None:
        with scope:
            await self.act()

    async def end(self, *, for_good: bool) -> None:
        """Request the incarnation's end, and cancel it after its shutdown time.

        For good, its mailbox is closed and it may handle queued messages. Before a restart its mailbox is suspended: it
        completes its current message, and the queue waits for the next incarnation.
        """
        self.incarnation.asked_to_end = True
        if for_good:
            self.addressee.mailbox.close()
        else:
            self.addressee.mailbox.suspend()
        with trio.move_on_after(self.spec.shutdown_s):
            await self.incarnation.ended.wait()
        self.incarnation.scope.cancel()
        await self.incarnation.ended.wait()

    def renew(self) -> Incarnation:
        """Return the next incarnation, reading on where the last one stopped."""
        self.addressee.mailbox.resume()
        self.incarnation = Incarnation()
        return self.incarnation


def _crash(result: outcome.Maybe[None]) -> Exception | None:
    match result:
        case outcome.Error(error=Exception() as crash):
            return crash
        case _:
            return None


# --- Supervisor ---------------------------------------------------------------------------------------------------


M = TypeVar("M")
Ts = TypeVarTuple("Ts")


@attrs.frozen(kw_only=True)
class ChildExit:
    """A child's actor ended, by itself or request, crashed or not."""

    name: str
    """Name of the child."""
    cause: Exception | None
    """Exception of a crash."""
    asked: bool
    """Whether the stop was requested."""


@attrs.frozen(kw_only=True)
class _Ended:
    child: ChildProcess
    incarnation: Incarnation


@attrs.frozen(kw_only=True)
class _StopChild:
    child: ChildProcess


@attrs.frozen(kw_only=True)
class _StopAll:
    pass


_Notice: TypeAlias = _Ended | _StopChild | _StopAll


class Supervisor:
    """Runs actors as its children; made by `open_supervisor`."""

    def __init__(
        self,
        family: SupervisorState,
        dead_letters: DeadLetters,
        exits: Mailbox[ChildExit] | None,
        rng: Callable[[], float],
    ) -> None:
        self.dead_letters = dead_letters
        self._escalation: Escalated | None = None
        self._family = family
        self._exits = exits
        self._rng = rng
        self._running: dict[str, ChildProcess] = {}
        self._notices: Mailbox[_Notice] = Mailbox(float("inf"))
        self._next_due = float("inf")
        self._stopping = False
        self._done = trio.Event()
        self._nursery: trio.Nursery

    # --- public -------------------------------------------------------------------------------------------

    async def spawn(
        self, actor: Callable[[Mailbox[M], *Ts], Awaitable[object]], spec: ChildSpec, *args: *Ts
    ) -> ActorRef[M]:
        """Start `actor(mailbox, *args)` as last child; its ref survives restarts.

        Args:
            actor: async function of a mailbox.
            spec: name, restarts and backoff of the child.
            args: further arguments of the actor.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._stopping:
            raise SupervisorStopped(f"child {spec.name!r} cannot start: its supervisor is stopping")
        self._family = admit(self._family, spec, now=trio.current_time())
        addressee = ActorAddress(spec.name, Mailbox[M](spec.capacity), self.dead_letters)
        act = functools.partial(actor, addressee.mailbox, *args)
        child = ChildProcess(spec, addressee, act)
        self._running[spec.name] = child
        # The child exists from here on. It begins within one scheduling round, so this cannot hang.
        with trio.CancelScope(shield=True):
            await self._start(child)
        return addressee.ref()

    def ref(self, name: str) -> ActorRef[Any]:
        """Return the ref of a child by its name.

        Args:
            name: name of the child.
        """
        return self._child(name).addressee.ref()

    @property
    def children(self) -> tuple[ChildState, ...]:
        """Return the children that have not ended for good, in start order."""
        return tuple(self._family.children.values())

    async def stop(self, name: str) -> None:
        """End one child for good, within its shutdown time.

        Args:
            name: name of the child.
        """
        child = self._child(name)
        self._notices.put_nowait(_StopChild(child=child))
        await child.addressee.wait_end()

    async def stop_all(self) -> None:
        """End all children, last started first; nothing can be started afterwards."""
        self._notices.put_nowait(_StopAll())
        await self._done.wait()

    async def join(self) -> None:
        """Wait until no child is left."""
        while self._running:
            await next(iter(self._running.values())).addressee.wait_end()

    def _child(self, name: str) -> ChildProcess:
        if name not in self._running:
            raise NoSuchChild(f"no child {name!r}; there are {sorted(self._running)}")
        return self._running[name]

    # --- the control loop ---------------------------------------------------------------------------------

    async def _run(
        self, give_up: Callable[[], None], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Supervise until stopped; `give_up` is called when this supervisor escalates."""
        try:
            with _lone_error():
                async with trio.open_nursery() as self._nursery:
                    task_status.started()
                    await self._control()
        finally:
            self._stopping = True
            self._terminate_all()
            self._done.set()
        if self._escalation is not None:
            give_up()

    def _escalated(self) -> Escalated | None:
        return self._escalation

    async def _control(self) -> None:
        while not self._stopping:
            match await self._next_notice():
                case None:
                    await self._start_due()
                case _Ended() as ended:
                    await self._on_exit(ended)
                case _StopChild(child=child):
                    await self._stop_child(child)
                case _StopAll():
                    await self._stop_all(stop_order(self._family))
                case other:
                    assert_never(other)

    async def _next_notice(self) -> _Notice | None:
        with trio.move_on_at(self._next_due):
            return await self._notices.get()
        return None

    async def _start_due(self) -> None:
        self._family, names = start_due(self._family, now=trio.current_time())
        self._next_due = next_due(self._family)
        for name in names:
            await self._start(self._running[name])

    async def _start(self, child: ChildProcess) -> None:
        incarnation = child.renew()
        self._nursery.start_soon(self._watch, child, incarnation, name=child.spec.name)
        await incarnation.begun.wait()

    async def _watch(self, child: ChildProcess, incarnation: Incarnation) -> None:
        await child.live(incarnation)
        self._show(ChildExit(name=child.spec.name, cause=child.cause, asked=incarnation.asked_to_end))
        self._notices.put_nowait(_Ended(child=child, incarnation=incarnation))

    async def _on_exit(self, ended: _Ended) -> None:
        child, cause = ended.child, ended.child.cause
        if child.incarnation is not ended.incarnation or not child.addressee.alive:
            return  # notice of a replaced incarnation, or of a child that was stopped meanwhile
        self._family, decision = on_exit(
            self._family,
            child.spec.name,
            crashed=cause is not None,
            now=trio.current_time(),
            rng=self._rng,
        )
        match decision:
            case NoAction():
                self._terminate_if_ended(child)
            case Restart():
                await self._restart(decision)
            case Escalate():
                await self._escalate(decision, cause)
            case _:
                assert_never(decision)

    async def _restart(self, restart: Restart) -> None:
        self._next_due = next_due(self._family)
        for name in restart.stop:
            child = self._running[name]
            await child.end(for_good=name in restart.ended)
            self._terminate_if_ended(child)

    async def _escalate(self, escalate: Escalate, cause: Exception | None) -> None:
        self._escalation = Escalated(escalate.child, escalate.crashes, cause, str(self._family.intensity))
        await self._stop_all(escalate.stop)

    async def _stop_all(self, names: tuple[str, ...]) -> None:
        self._stopping = True
        for name in names:
            await self._stop_child(self._running[name])

    async def _stop_child(self, child: ChildProcess) -> None:
        if child.addressee.alive:
            await child.end(for_good=True)
            self._family = dismiss(self._family, child.spec.name)
            self._terminate_if_ended(child)

    # --- ends ---------------------------------------------------------------------------------------------

    def _terminate_if_ended(self, child: ChildProcess) -> None:
        if child.spec.name not in self._family.children:
            del self._running[child.spec.name]
            child.addressee.terminate(child.cause)

    def _terminate_all(self) -> None:
        while self._running:
            _, child = self._running.popitem()
            child.addressee.terminate(child.cause)

    def _show(self, end: ChildExit) -> None:
        if self._exits is None:
            return
        try:
            self._exits.put_nowait(end)
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            # An observer that does not keep up misses exits; supervision continues.
            return


@asynccontextmanager
async def open_supervisor(
    *,
    strategy: Strategy = "one_for_one",
    intensity: Intensity | None = None,
    children: Iterable[tuple[Callable[[Mailbox[Any]], Awaitable[object]], ChildSpec]] = (),
    dead_letters: DeadLetters | None = None,
    exits: Mailbox[ChildExit] | None = None,
    rng: Callable[[], float] = random.random,
) -> AsyncIterator[Supervisor]:
    """Run a supervisor with these children for the length of the block.

    `exits` gets a `ChildExit` for every end of a child's actor, as far as it has room. `rng` is the randomness of the
    backoff. If restarts exceed `intensity`, the block is cancelled and `Escalated` is raised.

    Args:
        strategy: children that restart after a crash of one.
        intensity: most restarts in a period; a further one raises `Escalated`.
        children: pairs of actor and child spec that start with the block.
        dead_letters: collector of messages that no actor handles.
        exits: mailbox that receives each `ChildExit`, if it has room.
        rng: randomness of the backoff.
    """
    family = SupervisorState(strategy=strategy, intensity=Intensity() if intensity is None else intensity)
    letters = DeadLetters() if dead_letters is None else dead_letters
    supervisor = Supervisor(family, letters, exits, rng)
    with _EscalationGuard(supervisor._escalated), _lone_error():
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor._run, nursery.cancel_scope.cancel)
            for actor, spec in children:
                await supervisor.spawn(actor, spec)
            yield supervisor
            await supervisor.stop_all()


@attrs.frozen
class _EscalationGuard:
    """Raise the supervisor's escalation in place of resulting errors."""

    escalation: Callable[[], Escalated | None]

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        escalation = self.escalation()
        if escalation is None or not isinstance(error, Exception | None):
            return
        if error is not None:
            escalation.add_note(f"meanwhile the block raised {error!r}")
        raise escalation


@contextmanager
def _lone_error() -> Iterator[None]:
    """Unwrap the group that a nursery puts around a single error."""
    lone: BaseException | None = None
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        lone = group.exceptions[0]
    if lone is not None:
        raise lone
