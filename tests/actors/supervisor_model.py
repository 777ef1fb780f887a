"""What a supervisor of puppets should do, said as plainly as possible.

Everything happens at once here: a puppet that is up handles a message the moment it is sent, so queues hold
messages only while their child waits for its restart.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import attrs
from puppets import Crash, Finish, Note, Order

from flujo_actors.actors import RestartType, Strategy, Traffic

CAPACITY = 4


@attrs.define(eq=False)
class Question:
    """A question for the number of notes seen; the child may choose to keep it and never answer."""

    number: int
    deadline: float
    ignored: bool


Item: TypeAlias = Order | Question


@attrs.define(eq=False)
class ModelChild:
    """One child: up if it has no due time and is not gone."""

    name: str
    restart: RestartType
    since: float
    due: float | None = None
    gone: bool = False
    seen: int = 0
    streak: int = 0
    cause: str | None = None
    queue: deque[Item] = attrs.field(factory=deque)
    kept: list[Question] = attrs.field(factory=list)
    sent: int = 0
    handled: int = 0
    dead: int = 0

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self.due is None and not self.gone

    def traffic(self) -> Traffic:
        """What became of its messages."""
        return Traffic(sent=self.sent, handled=self.handled, dead=self.dead, queued=len(self.queue))


@attrs.define(eq=False)
class SupervisorModel:
    """The whole supervisor as one sequential program."""

    strategy: Strategy
    restarts: int
    period: float
    now: float = 0.0
    over: bool = False
    escalated_by: str | None = None
    children: list[ModelChild] = attrs.field(factory=list)
    log: list[str] = attrs.field(factory=list)
    restarted_at: list[float] = attrs.field(factory=list)
    answers: dict[int, str] = attrs.field(factory=dict)
    asked: int = 0

    @property
    def living(self) -> list[ModelChild]:
        """Those that are up or will be restarted."""
        return [child for child in self.children if not child.gone]

    # --- what is done to it -------------------------------------------------------------------------------

    def spawn(self, restart: RestartType) -> ModelChild:
        """One more child."""
        child = ModelChild(name=f"c{len(self.children)}", restart=restart, since=self.now)
        self.children.append(child)
        self.log.append(f"start {child.name}")
        return child

    def tell(self, position: int, order: Order) -> bool:
        """Whether the message is accepted."""
        child = self.children[position]
        if child.due is not None and len(child.queue) == CAPACITY:
            return False
        accepted = not child.gone
        self._send(child, order)
        return accepted

    def ask(self, position: int, timeout: float, ignored: bool) -> int | None:
        """The number of the question; None if there is no room for it."""
        child = self.children[position]
        if child.due is not None and len(child.queue) == CAPACITY:
            return None
        self.asked += 1
        self._send(child, Question(number=self.asked, deadline=self.now + timeout, ignored=ignored))
        return self.asked

    def advance(self, seconds: float) -> None:
        """Time out questions, then start whom it is time for."""
        self.now += seconds
        for child in self.living:
            for item in [*child.queue, *child.kept]:
                if isinstance(item, Question) and item.deadline <= self.now:
                    self.answers.setdefault(item.number, "timeout")
        self._start([child for child in self.living if child.due is not None and child.due <= self.now])

    def stop(self, child: ModelChild) -> None:
        """End one child for good."""
        if child.up:
            self._end(child, None)
        self._bury(child)

    def stop_all(self) -> None:
        """End all, last started first."""
        self.over = True
        for child in reversed(self.living):
            self.stop(child)

    # --- what it does -------------------------------------------------------------------------------------

    def _send(self, child: ModelChild, item: Item) -> None:
        child.sent += 1
        if child.gone:
            child.dead += 1
            self._fail(child, item)
            return
        child.queue.append(item)
        if child.up and self._work(child):
            self._exits([child])

    def _work(self, child: ModelChild) -> bool:
        """Handle what is queued; True if the child ended over it."""
        while child.queue:
            item = child.queue.popleft()
            child.handled += 1
            match item:
                case Note():
                    child.seen += 1
                case Question(ignored=True):
                    child.kept.append(item)
                case Question():
                    self.answers.setdefault(item.number, f"seen {child.seen}")
                case Crash() | Finish():
                    self._end(child, item.reason if isinstance(item, Crash) else None)
                    return True
        return False

    def _end(self, child: ModelChild, cause: str | None) -> None:
        child.cause = cause
        self.log.append(f"end {child.name}")
        while child.kept:
            self._fail(child, child.kept.pop())

    def _start(self, due: list[ModelChild]) -> None:
        ended = []
        for child in due:
            child.due, child.since, child.seen = None, self.now, 0
            self.log.append(f"start {child.name}")
            if self._work(child):
                ended.append(child)
        self._exits(ended)

    def _exits(self, ended: list[ModelChild]) -> None:
        """Decide on each; those that ended are down already when siblings are stopped."""
        down = set(ended)
        for child in ended:
            if child.up and not self.over:
                self._decide(child, down)

    def _decide(self, child: ModelChild, down: set[ModelChild]) -> None:
        crashed = child.cause is not None
        if child.restart == "temporary" or (child.restart == "transient" and not crashed):
            self._bury(child)
            return
        self.restarted_at = [at for at in self.restarted_at if at > self.now - self.period] + [self.now]
        if len(self.restarted_at) > self.restarts:
            self._escalate(child, down)
            return
        child.streak = 1 if self.now - child.since >= self.period else child.streak + 1
        wait = min(6.0, 2.0 ** (child.streak - 1)) * 0.75
        self._restart(self._group(child), self.now + wait, down)

    def _group(self, child: ModelChild) -> list[ModelChild]:
        living = self.living
        first = living.index(child)
        return {"one_for_one": [child], "one_for_all": living, "rest_for_one": living[first:]}[self.strategy]

    def _restart(self, group: list[ModelChild], due: float, down: set[ModelChild]) -> None:
        due = max([due, *(member.due for member in group if member.due is not None)])
        for member in reversed(group):
            if member.up and member not in down:
                self._end(member, None)
            if member.restart == "temporary":
                self._bury(member)
            else:
                member.due = due

    def _escalate(self, child: ModelChild, down: set[ModelChild]) -> None:
        self.over, self.escalated_by = True, child.name
        for member in reversed(self.living):
            if member.up and member not in down:
                self._end(member, None)
            self._bury(member)

    def _bury(self, child: ModelChild) -> None:
        child.gone, child.due = True, None
        while child.queue:
            child.dead += 1
            self._fail(child, child.queue.popleft())

    def _fail(self, child: ModelChild, item: Item) -> None:
        if isinstance(item, Question):
            self.answers.setdefault(item.number, f"died: {child.cause}")
