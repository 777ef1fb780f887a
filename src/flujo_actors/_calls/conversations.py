"""The conversations of a granular step with its agent: each is kept, unit by unit, under a path of its own.

Rules:

1. A refused answer begins a new conversation, a failure goes on in its own.
2. A repair is kept under the question whose answer it mends: it is not paid for twice.
3. Each turn is in the step's history once, as the last attempt that came to it left it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from .._agents.granular.conversation import GranularCall
from .._agents.granular.request import GranularRequest
from .._agents.metering import AgentCall
from .._agents.per_agent import SomeAgent
from .._agents.provider_errors import is_about_content
from .._agents.request import AgentRequest
from .._agents.turns import Turn
from .._bridge.to_trio import TrioCaller
from .._core import paths
from .._core.attempts import Failed, Stopped
from .._core.outcomes import StepResult
from .._core.paths import StepPath
from .._core.pause_tokens import idempotency_key
from .._dsl.resumable import Resumable
from .._run.messages import Work
from .._run.run import Run
from ..errors import StructuredOutputError
from .questions import question_of
from .standing import Standing
from .units import RunUnits

Request: TypeAlias = AgentRequest | GranularRequest
"""A question to an agent, as one call or unit by unit."""


@attrs.define(kw_only=True, eq=False)
class Conversations:
    """Those of one attempt; see the module's rules."""

    run: Run
    work: Work
    resumable: Resumable
    standing: Standing
    _last: GranularCall | None = None
    _repairs: int = 0

    def question(self, agent: SomeAgent, prompt: object, options: Any, call: AgentCall) -> GranularRequest:
        """A request whose units are kept (rule 1)."""
        tally = self.work.tally
        tally.questions += 1
        return self._kept_at(
            paths.conversation(self.work.span, tally.refused, tally.questions),
            agent=agent,
            prompt=prompt,
            call=call,
            options=self.standing.shortened(options, self.resumable.keep_last),
            deps=self.standing.deps,
            max_turns=self.resumable.max_turns,
            guard=self.resumable.guard,
        )

    def repair(self, agent: SomeAgent, prompt: str, call: AgentCall) -> GranularRequest:
        """A repair of what the last question was answered with (rule 2)."""
        self._repairs += 1
        tally = self.work.tally
        path = paths.repair(self.work.span, tally.refused, tally.questions, self._repairs)
        return self._kept_at(path, agent=agent, prompt=prompt, call=call, max_turns=1)

    def _kept_at(self, path: StepPath, **asked: Any) -> GranularRequest:
        return GranularRequest(
            journal=RunUnits(journal=self.run.journal, path=path, trio=TrioCaller(self.run.host.asyncio().keep_awake)),
            scope=idempotency_key(self.run.run_id, path),
            on_uncertain=self.resumable.on_uncertain,
            **asked,
        )

    def ended(self, request: Request) -> None:
        """A request came to its end: its turns are part of the step's history (rule 3)."""
        assert isinstance(request, GranularRequest)
        self._last = request.granular
        _note_turns(self.work.tally.history, request)

    def heard_out(self, failed: Failed) -> bool:
        """Whether the last one came to an end that was refused: recalled, it would come to the same again."""
        kept, error = self._last, failed.error
        refused = isinstance(error, StructuredOutputError) or is_about_content(error)
        return kept is not None and not kept.broken and kept.stopped is None and refused

    def asks_about(self, request: Request, error: BaseException) -> Stopped | None:
        """The pause that an error stands for, if a person is to be asked before the conversation goes on."""
        assert isinstance(request, GranularRequest)
        return question_of(self.run, request, error)


def _note_turns(history: list[StepResult], request: GranularRequest) -> None:
    places = {(turn.metadata.get("conversation"), turn.name): place for place, turn in enumerate(history)}
    for result in (_turn_result(turn, request.scope) for turn in request.turns):
        place = places.get((request.scope, result.name))
        if place is None:
            history.append(result)
        else:
            history[place] = result


def _turn_result(turn: Turn, conversation: str) -> StepResult:
    """A turn of a granular step, as part of the step's history."""
    calls = [{"name": call.name, "tool_call_id": call.tool_call_id, "ended": call.ended} for call in turn.tool_calls]
    return StepResult(
        name=f"turn {turn.number}",
        output=turn.text,
        token_counts=turn.usage.tokens,
        cost_usd=turn.usage.cost_usd,
        usage=turn.usage,
        metadata={"tool_calls": calls, "recalled": turn.recalled, "conversation": conversation},
    )
