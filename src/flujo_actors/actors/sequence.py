"""Steps one after the other, and what one attempt of a step is made of.

Every run is a sequence of steps at its top, so this is what all runs need; the other composites are in `composites`.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from ..core import paths
from ..core.attempts import Attempt, Done, Failed, Stopped
from ..core.degraded import NO_TEXTS, degraded_texts, marks
from ..core.outcomes import Aborted, Failure, Paused, Success
from ..core.paths import StepPath
from ..core.quota import QUOTA_LOCK, Quota
from ..core.usage import NO_USAGE, Usage
from ..dsl.callplan import CallPlan
from ..dsl.pipeline import AnyStep, Pipeline
from .children import Children
from .journal import OpenTransaction
from .messages import Request, Settled, Tally
from .run import Run


class Troupe(Protocol):
    """Who can start actors in a run."""

    @property
    def run(self) -> Run:
        """The run they belong to."""

    def children(self, tally: Tally) -> Children:
        """A nursery for the actors of one composite, which counts in `tally`."""


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
    transaction: OpenTransaction | None = None
    """What the step writes through, if it asks for a transaction."""

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
    )


async def sequence(troupe: Troupe, pipeline: Pipeline, work: Work) -> Attempt:
    """The steps in order, each on the output of the one before."""
    data, context, degraded = work.data, work.context, work.degraded
    async with troupe.children(work.tally) as children:
        for step, name in pipeline.named_steps:
            path = paths.named(work.path, name)
            children.spawn(work.child(step, name, path, data, context, degraded=degraded))
            settled = await children.settled()
            work.tally.include(settled.result)
            if not isinstance(settled.verdict, Success):
                return ended_by(work.name, name, settled)
            data, context, degraded = output_of(settled), settled.context, texts_in(settled)
            work.tally.context = context
    return Done(output=data, context=context, metadata=marks(data, degraded))


def texts_in(settled: Settled) -> frozenset[str]:
    """The texts in the output of a child that succeeded which stand for values."""
    assert isinstance(settled.outcome, Success)
    return degraded_texts(settled.outcome.step_result)


def output_of(settled: Settled) -> Any:
    """The output of a child that succeeded."""
    assert isinstance(settled.outcome, Success)
    return settled.outcome.step_result.output


def ended_by(name: str, child: str, settled: Settled) -> Failed | Stopped:
    """How a composite ends when a child that it needs did not succeed."""
    match settled.verdict:
        case Failure(error=error, feedback=feedback, step_result=result):
            whose = f"step {child!r} of {name!r}" if name else f"step {child!r}"
            output = None if result is None else result.output
            return Failed(error=error, feedback=f"{whose} failed: {feedback}", output=output, of_child=True)
        case Paused() | Aborted() as outcome:
            return Stopped(outcome=outcome)
        case Success():
            raise AssertionError("a child that succeeded ends nothing")


def vetoed(veto: Aborted | Failure) -> Failed | Stopped:
    """How an attempt ends when a hook is against going on."""
    if isinstance(veto, Aborted):
        return Stopped(outcome=veto)
    return Failed(error=veto.error, feedback=veto.feedback or "")
