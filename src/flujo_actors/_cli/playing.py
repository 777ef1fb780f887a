"""What `flujo-actors run` and `runs resume` do: the parts of one run, until it has ended or somebody else is asked."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from .._core.outcomes import PipelineResult
from ..errors import InvalidAnswer
from .asking import asked
from .call import Call
from .exits import FAILED
from .run_output import print_result
from .run_views import RunView
from .stopping import Stop
from .stored import BY_STATUS
from .target_flujo import flujo_of
from .values import seconds

if TYPE_CHECKING:
    from .._durable.changes import ResumeMode
    from .._handle import RunHandle
    from .._runner import Flujo
    from .run import RunOptions


def new_run_id() -> str:
    """A name that no other run has."""
    return os.urandom(16).hex()


@attrs.frozen(kw_only=True)
class Part:
    """What a run begins with, or goes on with."""

    data: object = None
    context: dict[str, object] | None = None
    run_id: str
    token: str | None = None
    """The id of a run to go on with, or the token of a question."""
    answers: list[object] = attrs.Factory(list)
    """What the answer to that question may mean, the likeliest first."""
    mode: ResumeMode = "strict"

    def begun(self, flujo: Flujo) -> RunHandle:
        """The run, or the rest of it."""
        if self.token is None:
            return flujo.run_async(self.data, run_id=self.run_id, context=self.context, started=True, tools=True)
        answer: dict[str, Any] = {"answer": self.answers[0]} if self.answers else {}
        return flujo.resume_async(self.token, mode=self.mode, started=True, tools=True, **answer)


def play(call: Call, target: str | None, part: Part, options: RunOptions) -> int:
    """Run it to its end, or to a question that nobody answers here; the exit code."""
    flujo = flujo_of(call, target, options)
    view = RunView(call, flujo, options, target=target, run_id=part.run_id)
    span = math.inf if options["timeout"] is None else seconds(options["timeout"])
    game = _Game(call=call, flujo=flujo, view=view, stop=Stop(view.left), span=span)
    result = game.played(part)
    while result is not None and result.status == "paused" and options["ask"] and game.stop.told is None:
        answers = asked(flujo, result)
        if answers is None:
            break
        result = game.answered(attrs.evolve(part, token=result.state_token, answers=answers), result)
    if result is None:
        return game.stopped(options["timeout"])
    print_result(view, result, options)
    return game.stop.code or BY_STATUS[result.status]


@attrs.frozen(kw_only=True, eq=False)
class _Game:
    """One call of the command."""

    call: Call
    flujo: Flujo
    view: RunView
    stop: Stop
    span: float
    """How long a part may take, in seconds."""

    def played(self, part: Part) -> PipelineResult | None:
        """One part of the run; `None` if it was stopped."""
        with self.stop.heeded():
            return anyio.run(self._watched, part, backend=self.flujo.backend())

    async def _watched(self, part: Part) -> PipelineResult | None:
        most = None if self.span == math.inf else self.span
        with self.view.open(), anyio.move_on_after(most) as scope, self.stop.cancelling(scope):
            return await self.view.follow(part.begun(self.flujo))
        return None

    def answered(self, part: Part, before: PipelineResult) -> PipelineResult | None:
        """The rest of the run after an answer; as before, if it does not fit in whatever way it is meant."""
        first: InvalidAnswer | None = None
        for meant in part.answers:
            try:
                return self.played(attrs.evolve(part, answers=[meant]))
            except InvalidAnswer as error:
                first = first or error
        self.call.say(str(first))
        return before

    def stopped(self, timeout: str | None) -> int:
        """Say how to go on; the exit code."""
        if self.stop.told is None:
            self.view.say(f"stopped: it took longer than {timeout}")
        self.view.say_how_to_resume()
        return self.stop.code or FAILED
