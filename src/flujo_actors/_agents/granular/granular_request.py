"""Call of a pydantic-ai agent for a granular step."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from pydantic_ai import AgentRunResult
from pydantic_ai.messages import ModelMessage, UserContent
from pydantic_ai.models import Model
from pydantic_ai.usage import RunUsage, UsageLimits

from ..._core.policies.loop_detection import LoopGuard
from ..agent_cache import SomeAgent
from ..agent_factory import StepAgent
from ..agent_request import ChunkSink, captured, handler_of, streaming_to
from ..metered_model import MeteredModel, RequestMeter, metered_model
from ..request_meter import AgentCall
from .capability import Durability
from .conversation import AgentTurn, GranularCall
from .loop_detector import LoopWatch
from .units import OnUncertain, RehearsedUnits, UnitJournal, UnitSteering

_NAMESPACE = uuid.UUID("5f3c1a52-9d0e-5b7c-8a41-6f0b8f1f7c11")


@attrs.frozen(kw_only=True, eq=False)
class GranularRequest:
    """Request to an agent with its unit records, for one attempt."""

    agent: SomeAgent
    """As the user made it; nothing is changed about it."""
    prompt: str | Sequence[UserContent] | None
    call: AgentCall
    journal: UnitJournal
    scope: str
    """`run:path`: equal for every attempt that resumes the last one."""
    steering: UnitSteering | None = None
    """Messages from outside to the conversation, if it takes any."""
    max_turns: int = 20
    on_uncertain: OnUncertain = "rerun"
    guard: LoopGuard | None = None
    redact: Callable[[str], str] = str
    """Hides secrets in the errors that tools raise for the model."""
    deps: object = None
    options: dict[str, Any] = attrs.field(factory=dict)
    """Further arguments for pydantic-ai's `run`."""
    heard: list[ModelMessage] = attrs.field(factory=list)
    """Messages of the run, also of a failed one; filled if `keeps_messages`."""
    keeps_messages: bool = False
    rehearsed: RehearsedUnits | None = None
    """Recorded tool calls, in a replay or rehearsal."""
    granular: GranularCall = attrs.field(init=False)

    @granular.default
    def _units(self) -> GranularCall:
        return GranularCall(
            journal=self.journal,
            scope=self.scope,
            call=self.call,
            max_turns=self.max_turns,
            steering=self.steering,
            on_uncertain=self.on_uncertain,
            redact=self.redact,
            rehearsed=self.rehearsed,
            watch=LoopWatch(guard=self.guard, journal=self.journal, emit=self.call.emit),
        )

    @property
    def turns(self) -> tuple[AgentTurn, ...]:
        """Return the agent's turns so far, also after a failure."""
        return tuple(self.granular.turns)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `Agent.run` for this request."""
        options = {**self.options, "model": metered_model(self.agent, self.options)}
        # For model requests outside of units, such as those of other capabilities.
        metering = [] if isinstance(options["model"], MeteredModel) else [RequestMeter()]
        return {
            "usage": RunUsage(),  # the call's own counter is fed unit by unit
            "usage_limits": UsageLimits(request_limit=None),  # `max_turns` is the limit
            "run_id": str(uuid.uuid5(_NAMESPACE, self.scope)),
            "infer_name": False,
            **({} if self.deps is None else {"deps": self.deps}),
            **({"timeout": self.agent.timeout_s} if isinstance(self.agent, StepAgent) else {}),
            **options,
            "capabilities": [*options.get("capabilities", ()), *metering, self._durability(options["model"])],
        }

    def _durability(self, model: Model | str | None) -> Durability:
        return Durability(self.granular, name=self.agent.name or "agent", model=model)

    async def run(self, intake: ChunkSink | None = None) -> AgentRunResult[object]:
        """Run the agent on asyncio and pass its text to the intake.

        The text of a recalled turn is one chunk, so that the chunks of a resumed run add up to the same text.
        """
        with self.call.current(), self.granular.raise_pending_stop():
            arguments = self.arguments()
            arguments |= streaming_to(intake, self.call, handler_of(self.agent, arguments))
            with captured(self.heard if self.keeps_messages else None):
                result: AgentRunResult[object] = await self.agent.run(self.prompt, **arguments)
            return result
