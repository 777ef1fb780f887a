"""A supervisor in trio, step by step against a small model, on a mock clock.

Each rule does one thing to the supervisor, lets trio come to rest, does the same to the model, and compares:
what every child wrote down, in which order; who is up and who waits; what became of every message and question.
"""

from __future__ import annotations

from typing import TypeVar

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from puppets import Crash, Finish, Ignore, Note, Order, Seen, puppet
from supervisor_model import CAPACITY, SupervisorModel
from trio_thread import TrioThread

from flujo_actors.actors import (
    ActorRef,
    Backoff,
    ChildSpec,
    DeadLetters,
    Intensity,
    RestartType,
    Strategy,
    Supervisor,
    Traffic,
    open_supervisor,
)
from flujo_actors.actors._supervision_rules import Waiting
from flujo_actors.errors import ActorDied, AskTimeout, Escalated

T = TypeVar("T")
positions = st.integers(0, 31)


class SupervisorMachine(RuleBasedStateMachine):
    """The real supervisor beside its model."""

    def __init__(self) -> None:
        super().__init__()
        self.trio = TrioThread()
        self.log: list[str] = []
        self.refs: list[ActorRef[Order]] = []
        self.answers: dict[int, str] = {}
        self.letters = DeadLetters()
        self.escalated: Escalated | None = None
        self.supervisor: Supervisor
        self.model: SupervisorModel

    @initialize(
        strategy=st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"]),
        restarts=st.integers(1, 4),
        period=st.sampled_from([3.0, 20.0, 100.0]),
    )
    def open(self, strategy: Strategy, restarts: int, period: float) -> None:
        """Open a supervisor without children."""
        self.model = SupervisorModel(strategy=strategy, restarts=restarts, period=period)
        self.trio.in_background(self._supervise, strategy, Intensity(restarts=restarts, period_s=period))
        self.trio.settle()

    async def _supervise(self, strategy: Strategy, intensity: Intensity) -> None:
        try:
            async with open_supervisor(
                strategy=strategy, intensity=intensity, dead_letters=self.letters, rng=lambda: 0.5
            ) as self.supervisor:
                await trio.sleep_forever()
        except Escalated as escalated:
            self.escalated = escalated

    # --- rules --------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.model.over and len(self.model.living) < 4)
    @rule(restart=st.sampled_from(["permanent", "permanent", "transient", "temporary"]), stubborn=st.booleans())
    def spawn(self, restart: RestartType, stubborn: bool) -> None:
        """Start one more child; a stubborn one has to be cancelled when it is to end."""
        child = self.model.spawn(restart)
        spec = ChildSpec(
            name=child.name,
            restart=restart,
            shutdown_s=0 if stubborn else 5,
            backoff=Backoff(first=1, jitter=0.5, ceiling=6),
            capacity=CAPACITY,
        )

        async def spawn() -> ActorRef[Order]:
            return await self.supervisor.spawn(puppet, spec, child.name, self.log, stubborn)

        self.refs.append(self.trio.call(spawn))
        self.trio.settle()

    @precondition(lambda self: self.refs)
    @rule(
        position=positions,
        order=st.sampled_from([Note(1), Note(2), Crash("one"), Crash("two"), Finish()]),
    )
    def tell(self, position: int, order: Order) -> None:
        """Send a message to a child, be it up, waiting or gone."""
        position = self._pick(position)
        accepted = self.trio.call_sync(self.refs[position].tell_nowait, order)
        assert accepted == self.model.tell(position, order)
        self.trio.settle()

    @precondition(lambda self: self.refs)
    @rule(position=positions, timeout=st.sampled_from([0.25, 1.25, 4.25]), ignored=st.booleans())
    def ask(self, position: int, timeout: float, ignored: bool) -> None:
        """Ask a child; the answer may come now, after its restart, or never."""
        position = self._pick(position)
        number = self.model.ask(position, timeout, ignored)
        if number is not None:
            self.trio.in_background(self._ask, number, self.refs[position], timeout, ignored)
            self.trio.settle()

    async def _ask(self, number: int, ref: ActorRef[Order], timeout: float, ignored: bool) -> None:
        try:
            seen = await ref.ask(Ignore if ignored else Seen, timeout=timeout)
            self.answers[number] = f"seen {seen}"
        except AskTimeout:
            self.answers[number] = "timeout"
        except ActorDied as died:
            self.answers[number] = f"died: {died.cause}"

    @precondition(lambda self: self.refs)
    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 5.0, 30.0]))
    def advance(self, seconds: float) -> None:
        """Let time pass: restarts fall due, questions time out."""
        self.model.advance(seconds)
        self.trio.call_sync(self.trio.clock.jump, seconds)
        self.trio.settle()

    @precondition(lambda self: self.model.living)
    @rule(position=positions)
    def stop(self, position: int) -> None:
        """End one child for good."""
        child = self.model.living[position % len(self.model.living)]
        self.model.stop(child)
        self.trio.call(lambda: self.supervisor.stop(child.name))
        self.trio.settle()

    def _pick(self, position: int) -> int:
        """Any child, but three times of four one that has not ended, if there is one."""
        living = [self.model.children.index(child) for child in self.model.living]
        among = living if living and position % 4 else range(len(self.refs))
        return among[position // 4 % len(among)]

    # --- comparing ----------------------------------------------------------------------------------------

    @invariant()
    def children_did_the_same(self) -> None:
        """Starts and ends came in the same order, and the same children are up or wait."""
        if not hasattr(self, "model"):
            return
        assert self.log == self.model.log
        real = {c.spec.name: isinstance(c.phase, Waiting) for c in self.supervisor.children}
        if not self.model.over:
            assert real == {child.name: child.due is not None for child in self.model.living}
        assert [ref.alive for ref in self.refs] == [not child.gone for child in self.model.children]

    @invariant()
    def messages_went_the_same_way(self) -> None:
        """sent == handled + dead + queued, for each child and in the dead letters' own count."""
        if not hasattr(self, "model"):
            return
        traffic = [ref.traffic() for ref in self.refs]
        assert traffic == [child.traffic() for child in self.model.children]
        assert all(t.sent == t.handled + t.dead + t.queued for t in traffic)
        assert self.letters.count == sum(traffic, Traffic()).dead

    @invariant()
    def questions_had_the_same_answers(self) -> None:
        """Every question is open, or was answered, or failed, as the model says."""
        if hasattr(self, "model"):
            assert self.answers == self.model.answers

    @invariant()
    def escalation_names_the_child(self) -> None:
        """A supervisor gives up exactly when the model does, because of the same child."""
        if hasattr(self, "model"):
            assert (self.escalated.child if self.escalated else None) == self.model.escalated_by

    def teardown(self) -> None:
        """Stop everything: in reverse order, and no message is left anywhere."""
        if hasattr(self, "model") and not self.model.over:
            self.model.stop_all()
            self.trio.call(lambda: self.supervisor.stop_all())
            self.trio.settle()
            self.children_did_the_same()
            self.messages_went_the_same_way()
            self.questions_had_the_same_answers()
        self.trio.close()


TestSupervisorMachine = SupervisorMachine.TestCase
TestSupervisorMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
