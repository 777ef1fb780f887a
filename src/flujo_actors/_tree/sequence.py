"""Steps one after the other, and how an attempt ends by what became of a child.

Every run is a sequence of steps at its top, so this is what all runs need; the other composites are in `composites`.
"""

from __future__ import annotations

from typing import Any, Protocol

from .._core import paths
from .._core.attempts import Attempt, Done, Failed, Stopped
from .._core.degraded import degraded_texts, marks
from .._core.outcomes import Aborted, Failure, Paused, Success
from .._core.paths import ROOT
from .._dsl.pipeline import Pipeline
from .._run.messages import Settled, Tally
from .._run.run import Run
from .._run.work import Work
from .children import Children


class Spawner(Protocol):
    """Who can start actors in a run."""

    @property
    def run(self) -> Run:
        """The run they belong to."""

    def children(self, tally: Tally) -> Children:
        """A nursery for the actors of one composite, which counts in `tally`."""


async def sequence(spawner: Spawner, pipeline: Pipeline, work: Work) -> Attempt:
    """The steps in order, each on the output of the one before."""
    data, context, degraded = work.data, work.context, work.degraded
    scope = work.scope
    if scope is not None and "steps" in pipeline.asks_of_scope:
        scope = scope.inner()
    async with spawner.children(work.tally) as children:
        for step, name in pipeline.named_steps:
            path = paths.named(work.path, name)
            children.spawn(work.child(step, name, path, data, context, degraded=degraded, scope=scope))
            settled = await children.settled()
            work.tally.include(settled.result)
            if not isinstance(settled.verdict, Success):
                return ended_by(work, name, settled, context)
            data, context, degraded = output_of(settled), settled.context, texts_in(settled)
            work.tally.context = context
            if scope is not work.scope:
                assert scope is not None
                scope.settle(name, data)
    return Done(output=data, context=context, metadata=marks(data, degraded))


def texts_in(settled: Settled) -> frozenset[str]:
    """The texts in the output of a child that succeeded which stand for values."""
    assert isinstance(settled.outcome, Success)
    return degraded_texts(settled.outcome.step_result)


def output_of(settled: Settled) -> Any:
    """The output of a child that succeeded."""
    assert isinstance(settled.outcome, Success)
    return settled.outcome.step_result.output


def ended_by(work: Work, child: str, settled: Settled, before: Any) -> Failed | Stopped:
    """How a composite ends when a child that it needs did not succeed, which it had given the context `before`."""
    match settled.verdict:
        case Failure(error=error, feedback=feedback, step_result=result):
            whose = f"step {child!r} of {work.name!r}" if work.name else f"step {child!r}"
            output = None if result is None else result.output
            left = None if settled.context is before else _left_by_handlers(work, settled, before)
            return Failed(
                error=error, feedback=f"{whose} failed: {feedback}", output=output, of_child=True, context=left
            )
        case Paused() | Aborted() as outcome:
            return Stopped(outcome=outcome)
        case Success():
            raise AssertionError("a child that succeeded ends nothing")


def _left_by_handlers(work: Work, settled: Settled, before: Any) -> Any:
    """What the handlers of a failed child left in the context stays, although the attempt around it is dropped."""
    if work.span == ROOT:
        work.tally.context = settled.context
        return None
    from .._context.merging import carried  # only for those who change the context

    return carried(before, settled.context, work.context)


def vetoed(veto: Aborted | Failure) -> Failed | Stopped:
    """How an attempt ends when a hook is against going on."""
    if isinstance(veto, Aborted):
        return Stopped(outcome=veto)
    return Failed(error=veto.error, feedback=veto.feedback or "")
