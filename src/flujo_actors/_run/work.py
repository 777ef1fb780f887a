"""One attempt of a step, as those see it who carry it out: where it stands, on what it works, and where it counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from .._core import paths
from .._core.degraded import NO_TEXTS
from .._core.paths import StepPath
from .._core.quota import Quota
from .._core.usage import NO_USAGE, Usage
from .._dsl.call_plan import CallPlan
from .._dsl.pipeline import AnyStep
from .._durable.journal import OpenTransaction
from .._locks import QUOTA_LOCK
from .messages import NOTHING_TOLD, Request, Tally

if TYPE_CHECKING:  # what only some runs have
    from .._core.assembled import AssembledContext
    from .aftermath import Aside
    from .scope import Scope


@attrs.define(kw_only=True, eq=False)
class Assembly:
    """What a step's agent is shown besides its prompt, and what it said to it."""

    context: AssembledContext
    text: str
    """The context as a model is shown it; empty if there is nothing to show."""
    said: list[Any] = attrs.field(factory=list)
    """The messages of the last call of a model agent that had a result."""


@attrs.frozen(kw_only=True, eq=False)
class Work:
    """One attempt of a step: where it stands, on what, and where to count."""

    name: str
    span: StepPath
    """The path of the step in the ledger."""
    path: StepPath
    """Below which this attempt's children stand."""
    data: Any
    context: Any
    tally: Tally
    attempt: int = 1
    feedback: str | None = None
    """Why the attempt before this one failed."""
    quotas: tuple[Quota, ...] = ()
    plan: CallPlan | None = None
    """The agent that was redirected to, instead of the step's own."""
    degraded: frozenset[str] = NO_TEXTS
    """The texts in the data that stand for values."""
    told: Mapping[str, Any] = NOTHING_TOLD
    """What can be asked for by name: a person's decision, how sure an answer was."""
    transaction: OpenTransaction | None = None
    """What the step writes through, if it asks for a transaction."""
    scope: Scope | None = None
    """What functions may ask for; `None` if nobody in the run asks."""
    aside: Aside | None = None
    """Set inside handlers and compensations."""
    assembly: Assembly | None = None
    """What the agent is shown besides its prompt, if the step has sources."""

    @property
    def caller(self) -> str:
        """What quotas know this step's calls by."""
        return f"step {self.name}"

    def spend(self, usage: Usage) -> None:
        """Count a call of this step, in its tally and in every budget it draws on."""
        if usage is not NO_USAGE:
            self.tally.spend(usage.as_one_request())
            with QUOTA_LOCK:
                for quota in self.quotas:
                    quota.spend(usage, self.caller)

    def child(
        self,
        step: AnyStep,
        name: str,
        path: StepPath,
        data: Any,
        context: Any,
        index: int = 0,
        degraded: frozenset[str] = NO_TEXTS,
        scope: Scope | None = None,
        of: int = 0,
    ) -> Request:
        """The request for a child of this attempt."""
        return Request(
            step=step,
            name=step.name or name,
            path=path,
            parent=self.span,
            data=data,
            context=context,
            index=index,
            quotas=self.quotas,
            degraded=degraded,
            told=self.told,
            scope=scope or self.scope,
            aside=self.aside,
            of=of,
        )


def work_of(request: Request, data: Any, *, feedback: str | None = None, plan: CallPlan | None = None) -> Work:
    """One attempt's share of a request."""
    tally = request.tally
    return Work(
        name=request.name,
        span=request.path,
        path=paths.attempt(request.path, tally.attempts),
        data=data,
        context=request.context,
        tally=tally,
        attempt=tally.attempts,
        feedback=feedback,
        quotas=request.quotas,
        plan=plan,
        degraded=request.degraded,
        told=request.told,
        scope=request.scope,
        aside=request.aside,
    )
