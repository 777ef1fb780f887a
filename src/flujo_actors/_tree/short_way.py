"""The short way: a step that is one call and nothing else, in a run that nobody listens to.

Most steps of most pipelines are like this. The rules of the step actor hold for them, too; what is left out does
nothing for them: attempt, copy, timeout, processors, validators, quotas, and in a run that lives in memory whatever
waits for a record to be written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import trio
from outcome import Error, Value

from .._bridge.guard import guarded
from .._context.isolation import own
from .._core.attempts import PLAIN, Attempt
from .._core.outcomes import Failure, StepResult, Success, TerminalOutcome
from .._dsl.step import Step
from .._durable.memory_journal import MemoryJournal
from .._run.messages import Completed, Request, Settled
from .._run.run import Run, report_unstoppable

if TYPE_CHECKING:
    from .._core.undoing import ToUndo

Undo: TypeAlias = "tuple[ToUndo | Completed, ...]"
"""What a step leaves to undo."""

Remember: TypeAlias = Callable[..., None]
"""Takes the path of a step that settled, its outcome, and what it leaves to undo, if it does."""


@attrs.frozen(eq=False)
class ShortWay(ABC):
    """Performs calls; whatever turns out to be more is handed to the long way."""

    run: Run
    clock: trio.abc.Clock = attrs.field(init=False)
    """That of the trio run."""
    remembers: Remember | None = attrs.field(init=False)
    """Takes what settled, in a run that nobody listens to and that lives in memory; `None` in all others."""

    @clock.default
    def _current_clock(self) -> trio.abc.Clock:
        return trio.lowlevel.current_clock()

    @remembers.default
    def _memory(self) -> Remember | None:
        run = self.run
        alone = run.quiet and run.outlet is None
        return run.journal.keep if alone and isinstance(run.journal, MemoryJournal) else None

    @abstractmethod
    async def concluded(self, request: Request, ended: Attempt, latency_s: float) -> tuple[TerminalOutcome, object]:
        """The outcome of the step, and the context that it leaves."""

    @abstractmethod
    async def remember(
        self, request: Request, outcome: Success | Failure, context: object, undo: Undo
    ) -> tuple[Any, object, Undo]:
        """Write down the outcome; what is known of the step from then on, which may not be what it came to."""

    @abstractmethod
    async def settle(self, request: Request, outcome: TerminalOutcome, context: object) -> Settled:
        """Write down the outcome and tell whoever listens."""

    def is_just_a_call(self, request: Request) -> bool:
        """Whether a step can take the short way."""
        if not self.run.quiet or request.quotas or request.degraded or request.runs_on is not None:
            return False
        return isinstance(request.step, Step) and request.step.is_just_a_call

    async def just_call(self, request: Request) -> Settled:
        """Do such a step and say how it ended."""
        run, step = self.run, request.step
        assert isinstance(step, Step)
        run.ledger.start(request.path, request.parent)
        if self.remembers is None:
            run.journal.started(request.path, request.name, request.of)
        begun = self.clock.current_time()
        data = request.data if step.compensate is None else own(request.data)
        got = await guarded(run.host.call, step.plan.target, data)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            report_unstoppable(run, request.name, request.path)
            raise
        latency_s = self.clock.current_time() - begun
        if isinstance(got, Value) and type(got.value) in PLAIN:
            success = Success(step_result=StepResult(name=request.name, output=got.value, latency_s=latency_s))
            del got  # what waits for a commit holds as little as it can
            if self.remembers is not None:
                return self.remembered(self.remembers, request, success)
            if run.outlet is None and step.compensate is None:
                return await self.settled_durably(request, success)
            request.tally.attempts = 1
            return await self.settle(request, success, request.context)
        return await self._meant(request, got, latency_s)

    def remembered(self, remember: Remember, request: Request, success: Success) -> Settled:
        """Settle a call that succeeded, as `settle` does, where there is nobody to tell and nothing to wait for."""
        self.run.ledger.settle(request.path)
        if request.step.compensate is None:
            remember(request.path, success)
            return Settled(index=request.index, outcome=success, context=request.context)
        undo = (Completed(request, request.data, own(success.step_result.output), 1, None),)
        remember(request.path, success, undo)
        return Settled(index=request.index, outcome=success, context=request.context, undo=undo)

    async def settled_durably(self, request: Request, success: Success) -> Settled:
        """The same where the outcome has to be written down."""
        self.run.ledger.settle(request.path)
        outcome, context, _ = await self.remember(request, success, request.context, ())
        return Settled(index=request.index, outcome=outcome, context=context)

    async def _meant(self, request: Request, got: Value[Any] | Error, latency_s: float) -> Settled:
        """Settle a call that raised, or returned something that may be more than an output."""
        from .retries import meant_by  # how errors and outcomes of the user's own are read

        request.tally.attempts = 1
        outcome, context = await self.concluded(request, meant_by(self.run, request, got), latency_s)
        return await self.settle(request, outcome, context)
