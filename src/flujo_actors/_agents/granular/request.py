"""A pydantic-ai agent, called for a granular step: every model request and tool call is committed by itself."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import attrs
from pydantic_ai import AgentRunResult
from pydantic_ai.messages import UserContent
from pydantic_ai.models import Model
from pydantic_ai.usage import RunUsage, UsageLimits

from ..._core.loops import LoopGuard
from ..factory import StepAgent
from ..metered_model import Metering, metered_model
from ..metering import AgentCall
from ..per_agent import SomeAgent
from ..request import Intake, streaming_to
from ..turns import Turn
from .capability import Durability
from .conversation import GranularCall
from .loop_watch import LoopWatch
from .units import OnUncertain, UnitJournal

_NAMESPACE = uuid.UUID("5f3c1a52-9d0e-5b7c-8a41-6f0b8f1f7c11")


@attrs.frozen(kw_only=True, eq=False)
class GranularRequest:
    """What is asked of an agent, and where its units are kept. For one attempt: make a new one for the next."""

    agent: SomeAgent
    """As the user made it; nothing is changed about it."""
    prompt: str | Sequence[UserContent] | None
    call: AgentCall
    journal: UnitJournal
    scope: str
    """`run:path`: the same on every attempt that is to go on where the last one ended."""
    max_turns: int = 20
    on_uncertain: OnUncertain = "rerun"
    guard: LoopGuard | None = None
    deps: object = None
    options: dict[str, Any] = attrs.field(factory=dict)
    """Further arguments for pydantic-ai's `run`."""
    granular: GranularCall = attrs.field(init=False)

    @granular.default
    def _units(self) -> GranularCall:
        return GranularCall(
            journal=self.journal,
            scope=self.scope,
            call=self.call,
            max_turns=self.max_turns,
            on_uncertain=self.on_uncertain,
            watch=LoopWatch(guard=self.guard, journal=self.journal, emit=self.call.emit),
        )

    @property
    def turns(self) -> tuple[Turn, ...]:
        """What the agent has done so far, turn by turn, also when it failed."""
        return tuple(self.granular.turns)

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `Agent.run` for this request."""
        options = {"model": metered_model(self.agent), **self.options}
        metering = [Metering()] if options["model"] is None else []  # for what is asked of the model past the units
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

    async def run(self, intake: Intake | None = None) -> AgentRunResult[object]:
        """The agent's result, on the running asyncio loop; its text as it comes is given to the intake.

        The text of a recalled turn comes as one piece, so that the pieces of a resumed run add up to the same text.
        """
        with self.call.current(), self.granular.stops_heard():
            streaming = streaming_to(intake, self.call, self.agent)
            result: AgentRunResult[object] = await self.agent.run(self.prompt, **self.arguments(), **streaming)
            return result
