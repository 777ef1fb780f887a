"""Conversations of a granular step, each recorded by unit.

Rules:

1. A refused answer begins a new conversation, a failure continues its own.
2. A repair is recorded under the request whose answer it repairs: it is not paid for twice.
3. Each turn is in the step's history once, as its last attempt left it.

Sections:

- Unit journal of one granular attempt: called on asyncio, written on trio.
- Pauses of an agent's call, each at its own path.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs

from ..._agents.agent_cache import SomeAgent
from ..._agents.agent_request import AgentRequest
from ..._agents.approved_tools import ApprovalNeeded, question_about
from ..._agents.granular.conversation import AgentTurn, GranularCall
from ..._agents.granular.granular_request import GranularRequest
from ..._agents.granular.loop_detector import LoopQuestion
from ..._agents.granular.tool_outcomes import Returned, outcome_to_json
from ..._agents.granular.units import MESSAGES, RecordedUnit, RunAgain, ToolRequest, UnitKey
from ..._agents.provider_errors import is_about_content
from ..._agents.request_meter import AgentCall
from ..._bridge.to_trio import TrioCaller
from ..._core import step_paths
from ..._core.attempt_results import AttemptFailed, AttemptStopped
from ..._core.outcomes import Paused, StepResult
from ..._core.policies.approval_policy import GO_ON, RERUN, QuestionSpec
from ..._core.policies.rate_limits import RateWait
from ..._core.records.pause_tokens import idempotency_key
from ..._core.records.sent_events import SteeringMessage
from ..._core.step_paths import RATE, StepPath, unit
from ..._core.usage import NO_USAGE, Usage
from ..._dsl.output_options import Resumable
from ..._durable.journal import Journal, KeptUnit
from ..._durable.recorded_results import SteeringInbox
from ...errors import StoreError, StructuredOutputError, UncertainUnit
from ..run.messages import AttemptInput
from ..run.run_environment import Run
from .model_call import CallDefaults

# --- Unit journal of one granular attempt -------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class RunUnits:
    """`UnitJournal` of one step; units are below the step's path."""

    journal: Journal
    path: StepPath
    """Parent path of the units, one per conversation."""
    trio: TrioCaller

    def place(self, key: UnitKey | str) -> StepPath:
        """Return the path of a unit."""
        return unit(self.path, str(key))

    async def recall(self, key: UnitKey) -> RecordedUnit | RunAgain | None:
        """Return the unit's result: recorded, or given as an answer."""
        kept = self.journal.unit(self.place(key))
        if kept is not None:
            return await self._recalled(key, kept)
        answered = self.journal.answered(self.place(key))
        if answered is None:
            return None
        if answered.answer == RERUN:
            return RunAgain()
        result = outcome_to_json(Returned(answered.answer), tool=answered.pause.step_name)
        await self.commit(key, result, NO_USAGE)
        return RecordedUnit(result=result)

    async def recall_call(self, key: UnitKey, request: ToolRequest) -> RecordedUnit | None:
        """Return a rehearsed call's recorded result; `None` for a live one."""
        journal: Any = self.journal
        kept: KeptUnit | None = journal.called(self.place(key), request)
        return None if kept is None else await self._recalled(key, kept)

    def compare_request(self, key: UnitKey, asked: str) -> None:
        """Compare the hash of a model request with the recorded one."""
        journal: Any = self.journal
        journal.compare_request(self.place(key), asked)

    async def _recalled(self, key: UnitKey, kept: KeptUnit) -> RecordedUnit:
        """Return a recorded unit, adopted from another run if needed."""
        if kept.borrowed is not None:
            await self.intend(key, kept.borrowed)
            await self.commit(key, kept.result, kept.usage)
        return RecordedUnit(result=kept.result, usage=kept.usage, counted=kept.counted)

    async def answer(self, key: str) -> tuple[Any] | None:
        """Return the answer to a pause under this key, or None."""
        answered = self.journal.answered(self.place(key))
        return None if answered is None else (answered.answer,)

    async def intend(self, key: UnitKey, intent: str) -> bool:
        """Make the unit's intent durable; return whether it may have run before."""
        return await self.trio.call(self.journal.intend, self.place(key), intent)

    async def commit(self, key: UnitKey, result: str, usage: Usage) -> None:
        """Make the unit's result durable."""
        await self.trio.call(self.journal.commit_unit, self.place(key), result, usage)


@attrs.frozen(kw_only=True, eq=False)
class StepSteering:
    """`UnitSteering` of one conversation."""

    units: RunUnits
    inbox: SteeringInbox

    async def accepted(self, key: UnitKey) -> Sequence[SteeringMessage]:
        """Return the messages before a turn, or those of its record."""
        place, journal = self.units.place(key), self.units.journal
        is_recorded = journal.unit(place) is not None
        if not is_recorded:
            await self.units.trio.call(self.inbox.read_reported)
        found = self.inbox.of(step_paths.step_of(place))
        if not found:
            return found
        return self._recorded(place, found) if is_recorded else self._open(place, found)

    def _recorded(self, place: StepPath, found: Sequence[SteeringMessage]) -> list[SteeringMessage]:
        listed = _listed(dict(self.units.journal.intents(place)).get(place, "{}"))
        return [message for message in found if message.id in listed]

    def _open(self, place: StepPath, found: Sequence[SteeringMessage]) -> list[SteeringMessage]:
        """Return all messages; those of an earlier conversation follow the first prompt."""
        intents = self.units.journal.intents(step_paths.step_of(place))
        others = [intent for path, intent in intents if step_paths.parent_of(path) != self.units.path]
        earlier = {each for intent in others for each in _listed(intent)}
        return [attrs.evolve(each, when="next_turn") if each.id in earlier else each for each in found]


def _listed(intent: str) -> Sequence[str]:
    """Return the ids of the messages of a request."""
    ids: Sequence[str] = json.loads(intent).get(MESSAGES, ())
    return ids


# --- Pauses of an agent's call ------------------------------------------------------------------------------------


def question_of(run: Run, request: GranularRequest, error: BaseException) -> AttemptStopped | None:
    """Return the pause of a call's error, or None."""
    units = request.journal
    assert isinstance(units, RunUnits)
    match error:
        case UncertainUnit(policy="pause"):
            return _uncertain(run, units, error)
        case LoopQuestion():
            text = f"{error}. Answer {GO_ON!r} to let it continue, or with a hint for the model."
            place = units.place(error.key)
            return AttemptStopped(
                outcome=Paused(message=run.redact(text)), place=place, question=QuestionSpec(kind="loop")
            )
        case ApprovalNeeded(call=call):
            asked = Paused(message=run.redact(call.question))
            return AttemptStopped(outcome=asked, place=units.place(error.key), question=question_about(call))
        case RateWait(paused=Paused() as paused):
            return AttemptStopped(outcome=paused)
        case RateWait(facts=facts):
            place = unit(step_paths.step_of(units.place("")), RATE)
            spec = QuestionSpec(kind="rate", facts=facts)
            return AttemptStopped(outcome=Paused(message=str(error)), place=place, question=spec)
        case _:
            return None


def _uncertain(run: Run, units: RunUnits, error: UncertainUnit) -> AttemptStopped:
    """Return a pause about an uncertain tool call, with own token."""
    place = units.place(error.key)
    asked = run.journal.times_answered(place)
    again = f" This was asked {asked} times before, and it was run again since." if asked else ""
    question = f"{error}.{again} Answer {RERUN!r} to run it again, or with its return value."
    return AttemptStopped(outcome=Paused(message=run.redact(question)), place=place)


# --- Conversations of a granular step -----------------------------------------------------------------------------


Request: TypeAlias = AgentRequest | GranularRequest
"""Request to an agent, atomic or by unit."""


@attrs.define(kw_only=True, eq=False)
class Conversations:
    """Conversations of one attempt; see the module's rules."""

    run: Run
    work: AttemptInput
    resumable: Resumable
    defaults: CallDefaults
    _last: GranularCall | None = None
    _repairs: int = 0

    def question(
        self, agent: SomeAgent, prompt: object, options: Any, call: AgentCall, *, keeps_messages: bool
    ) -> GranularRequest:
        """Return a request with recorded units (rule 1)."""
        state = self.work.state
        state.questions += 1
        return self._kept_at(
            step_paths.conversation(self.work.span, state.refused, state.questions),
            agent=agent,
            prompt=prompt,
            call=call,
            keeps_messages=keeps_messages,
            options=self.defaults.shortened(options, self.resumable.keep_last),
            deps=self.defaults.deps,
            max_turns=self.resumable.max_turns,
            guard=self.resumable.guard,
            steered=True,
        )

    def repair(self, agent: SomeAgent, prompt: str, call: AgentCall) -> GranularRequest:
        """Return a repair of the last request's answer (rule 2)."""
        self._repairs += 1
        state = self.work.state
        path = step_paths.repair(self.work.span, state.refused, state.questions, self._repairs)
        return self._kept_at(path, agent=agent, prompt=prompt, call=call, max_turns=1)

    def _kept_at(self, path: StepPath, *, steered: bool = False, **asked: Any) -> GranularRequest:
        units = RunUnits(journal=self.run.journal, path=path, trio=TrioCaller(self.run.host.asyncio().keep_awake))
        inbox = self.run.journal.steering if steered and self.run.gate is None else None
        return GranularRequest(
            journal=units,
            steering=None if inbox is None else StepSteering(units=units, inbox=inbox),
            scope=idempotency_key(self.run.key_id, path),
            on_uncertain=self.resumable.on_uncertain,
            redact=self.run.redact,
            rehearsed=None if self.run.gate is None else units,
            **asked,
        )

    def ended(self, request: Request) -> None:
        """Add an ended request's turns to the step's history (rule 3)."""
        assert isinstance(request, GranularRequest)
        self._last = request.granular
        history = self.work.state.history = list(self.work.state.history)
        _note_turns(history, request)

    def undelivered(self) -> dict[str, object]:
        """Return the metadata about messages that came after the last request."""
        ids = () if self._last is None else self._last.undelivered
        return {"undelivered": list(ids)} if ids else {}

    def is_store_error(self, error: BaseException) -> bool:
        """Return whether the store, not the agent, ended the last conversation."""
        return isinstance(error, StoreError) and self._last is not None and error is self._last.stopped

    def ended_with_refusal(self, failed: AttemptFailed) -> bool:
        """Return whether the last one ended with a refusal."""
        kept, error = self._last, failed.error
        refused = isinstance(error, StructuredOutputError) or is_about_content(error)
        return kept is not None and not kept.broken and kept.stopped is None and refused

    def asks_about(self, request: Request, error: BaseException) -> AttemptStopped | None:
        """Return the pause of an error that needs a person, or None."""
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


def _turn_result(turn: AgentTurn, conversation: str) -> StepResult:
    """Return a granular step's turn, for the step's history."""
    calls = [{"name": call.name, "tool_call_id": call.tool_call_id, "ended": call.ended} for call in turn.tool_calls]
    return StepResult(
        name=f"turn {turn.number}",
        output=turn.text,
        token_counts=turn.usage.tokens,
        cost_usd=turn.usage.cost_usd,
        usage=turn.usage,
        metadata={"tool_calls": calls, "recalled": turn.recalled, "conversation": conversation},
    )
