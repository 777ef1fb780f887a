"""Telling the handlers of a step or pipeline that it has failed.

Rules:

1. They run one after the other, when the last attempt has failed and been undone, and the fallback too. Not for pauses,
   aborts and errors that stop the run.
2. Each is a step of its own below the one that failed, and gets the `StepFailure` as its data; anything inside it may
   ask for `failure` by name.
3. One that returns `Recovered` makes the step a success with that output; those after it are not run.
4. One that fails is noted, and the next one is run: the failure that they are told of is never replaced.
5. What they leave in the context stays.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .._core import paths
from .._core.attempts import Attempt, Done, Failed, Stopped, escalating
from .._core.failures import Recovered, StepFailure
from .._core.outcomes import Aborted, Failure, Paused, Success
from .._dsl.pipeline import AnyStep
from .._run.aftermath import Aside
from .._run.messages import Around, Request, Settled, Work
from .children import Spawner, of_one_child


@attrs.define(eq=False)
class Handling:
    """The handlers of one failed step; see the module's rules."""

    spawner: Spawner
    work: Work
    handlers: tuple[AnyStep, ...]
    failure: StepFailure
    _context: object = attrs.field(init=False)
    _failed: dict[str, str] = attrs.field(factory=dict, init=False)

    @_context.default
    def _as_it_was(self) -> object:
        return self.work.context

    async def ended(self, failed: Failed) -> Attempt:
        """How the step ends after its handlers."""
        for number, handler in enumerate(self.handlers, start=1):
            settled = await self._told(handler, number)
            match settled.verdict:
                case Success(step_result=result):
                    self._context = settled.context
                    if isinstance(result.output, Recovered):
                        return self._recovered(failed, result.output, handler)
                case Failure(error=error, feedback=feedback):
                    if escalating(error) is not None:
                        return Failed(error=error, feedback=feedback or "")
                    self._note(handler, number, feedback or "")
                case Paused() | Aborted() as outcome:
                    return Stopped(outcome=outcome)
            self._forget_what_it_left()
        return attrs.evolve(failed, metadata=self._noted(failed.metadata), context=self._left(failed))

    async def _told(self, handler: AnyStep, number: int) -> Settled:
        work = self.work
        request = Request(
            step=handler,
            name=handler.name or f"{work.name} (handler {number})".strip(),
            path=paths.handler(work.span, number),
            parent=work.span,
            data=self.failure,
            context=self._context,
            around=Around(
                quotas=work.quotas,
                aside=Aside(failure=self.failure, undo=None if work.aside is None else work.aside.undo),
            ),
        )
        return await of_one_child(self.spawner, work.tally, request)

    def _recovered(self, failed: Failed, recovered: Recovered, handler: AnyStep) -> Done:
        work, run = self.work, self.spawner.run
        run.emit("step.recovered", work.span, step_name=work.name, handler_name=handler.name or "")
        noted = {**self._noted(failed.metadata), "recovered": True, "original_error": failed.feedback}
        return Done(output=recovered.output, context=self._context, metadata=noted)

    def _note(self, handler: AnyStep, number: int, feedback: str) -> None:
        name = handler.name or f"handler {number}"
        self._failed[name] = feedback
        self.spawner.run.emit(
            "handler.failed", self.work.span, step_name=self.work.name, handler_name=name, feedback=feedback
        )

    def _noted(self, metadata: Mapping[str, object]) -> dict[str, object]:
        return {**metadata, **({"failed_handlers": self._failed} if self._failed else {})}

    def _left(self, failed: Failed) -> object:
        return failed.context if self._context is self.work.context else self._context

    def _forget_what_it_left(self) -> None:
        """What a handler did stands beside the failed work: it is not undone with it."""
        if self.work.tally.aftermath is not None:
            self.work.tally.aftermath.undo.clear()
