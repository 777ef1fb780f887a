"""What the actors of a run say to each other, and what one attempt of a step is.

There is one request and one report for every step of every run. So what a step shares with all that stands inside it is
one object (`Around`), what only some steps count is made when somebody counts (`Request.tally`), and both messages are
frozen for type checkers alone: to guard them again at run time takes as long as to make them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from .._core import paths
from .._core.degraded import NO_TEXTS
from .._core.outcomes import Aborted, Failure, StepResult, Success, TerminalOutcome
from .._core.paths import StepPath
from .._core.quota import Quota
from .._core.usage import NO_USAGE, Usage
from .._dsl.call_plan import CallPlan
from .._dsl.pipeline import AnyStep
from .._durable.journal import OpenTransaction
from .._locks import QUOTA_LOCK

if TYPE_CHECKING:
    from attrs import frozen as message
else:
    from attrs import define as message  # see above

if TYPE_CHECKING:  # what only some runs have
    from pydantic_ai.messages import ModelMessage

    from .._core.assembled import AssembledContext
    from .._core.failures import Cause
    from .._core.selection import Choice, Evidence
    from .._core.undoing import ToUndo
    from .aftermath import Aftermath, Aside
    from .scope import Scope


@attrs.frozen(kw_only=True, eq=False)
class Selected:
    """What a selection chose in the current attempt, and what that came to."""

    choice: Choice
    result: StepResult | None


NOTHING_TOLD: Mapping[str, object] = {}
"""What can be asked for by name outside of reviews and rejections."""


class Completed:
    """A step with a compensation that completed: most are never undone, and pay for one small object.

    It keeps what it needs and not the request, which would keep alive what the step has used.
    """

    __slots__ = ("attempts", "context", "input", "name", "output", "path", "step")

    def __init__(self, request: Request, data: object, output: object, attempts: int, context: object) -> None:
        self.step, self.name, self.path = request.step, request.name, request.path
        self.input, self.output, self.attempts = data, output, attempts
        self.context = context
        """What the step left, if that is not the context that it was given."""


class Bill:
    """What a step has used and what was nested in it so far, over all its attempts.

    It is kept apart from the attempts' results so that nothing is lost when an attempt is cut short.
    """

    __slots__ = ("aftermath", "attempts", "context", "history", "usage")

    attempts: int
    context: object
    """The context after the last nested step that succeeded, one after the other."""
    usage: Usage
    history: list[StepResult]
    aftermath: Aftermath | None
    """What is to be undone and why; `None` while there is nothing."""

    def leave(self, started: int, settled: Settled) -> None:
        """Keep what a nested step has left behind, by when it started."""
        if self.aftermath is None:
            from .aftermath import Aftermath  # see above

            self.aftermath = Aftermath()
        if settled.undo:
            self.aftermath.undo[started] = settled.undo
        if settled.cause is not None and self.aftermath.cause is None:
            self.aftermath.cause = settled.cause

    def left_inside(self) -> tuple[ToUndo, ...]:
        """What is to be undone inside the step, in the order of starting."""
        if self.aftermath is None:
            return ()
        from .aftermath import spelled_out  # see above

        return tuple(spelled_out(each) for _, left in sorted(self.aftermath.undo.items()) for each in left)

    def spend(self, usage: Usage) -> None:
        """Count a call."""
        self.usage += usage

    def include(self, result: StepResult | None) -> None:
        """Count a nested step, if it left a result."""
        if result is not None:
            self.history.append(result)
            if result.usage is not NO_USAGE:
                self.usage += result.usage


class Tally(Bill):
    """The bill of a step, and how far its attempts are."""

    __slots__ = (
        "assembly",
        "evidence",
        "lost",
        "pauses",
        "pieces",
        "questions",
        "refusal",
        "refused",
        "selected",
        "settled",
        "transaction",
    )

    def __init__(self) -> None:
        # Not by a constructor of the bill's own: there is one of these for every step of every run.
        self.attempts, self.context, self.usage, self.history, self.aftermath = 0, None, NO_USAGE, [], None
        self.lost = 0
        """How many of the attempts the store undid: they count against no retries."""
        self.refused = 0
        """How many answers were complete, but refused: by a validator, by the agent itself, or by the schema."""
        self.refusal: str | None = None
        """Why the last of those was refused: what a model is told, however the attempts since then failed."""
        self.pauses = False
        """Whether the step itself pauses the run, and not one inside it."""
        self.questions = 0
        """How often the current attempt has asked its agent."""
        self.transaction: OpenTransaction | None = None
        """What the attempt that succeeded has written, to be committed with its outcome."""
        self.selected: Selected | None = None
        """What the current attempt has chosen, if the step is a selection."""
        self.evidence: tuple[Evidence, ...] = ()
        """What was learned of agents that were chosen, and is not written yet."""
        self.pieces: list[object] = []
        """What the current attempt has streamed."""
        self.assembly: Assembly | None = None
        """What the step's agent is shown besides its prompt, from the first attempt that assembled it."""
        self.settled: Settled | None = None
        """The step's report, from the moment on at which there is one."""


@attrs.define(kw_only=True, eq=False)
class Batch:
    """Items of a map that go to a worker together."""

    path: StepPath
    """What the batch is known by."""
    size: int
    """How many items may come."""
    requests: list[Request] = attrs.field(factory=list)
    """Those that have."""
    sent: bool = False


@attrs.frozen(kw_only=True, eq=False)
class Around:
    """What a step shares with all that stands inside it; most steps have nothing of it."""

    quotas: tuple[Quota, ...] = ()
    """The budgets to draw on: the run's, and those of limited steps around."""
    scope: Scope | None = None
    """What functions may ask for; `None` if nobody in the run asks."""
    aside: Aside | None = None
    """Set inside handlers and compensations."""
    told: Mapping[str, Any] = NOTHING_TOLD
    """What can be asked for by name: a person's decision, how sure an answer was."""


NOTHING_AROUND = Around()


class _Inside:
    """Who has something around it."""

    __slots__ = ()

    around: Around

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """The budgets it draws on."""
        return self.around.quotas

    @property
    def scope(self) -> Scope | None:
        """What its functions may ask for."""
        return self.around.scope

    @property
    def aside(self) -> Aside | None:
        """What handlers and compensations may ask for."""
        return self.around.aside

    @property
    def told(self) -> Mapping[str, Any]:
        """What can be asked for by name."""
        return self.around.told


@message(kw_only=True, eq=False)
class Request(_Inside):
    """Parent to child: do this step, here, on this data and context."""

    step: AnyStep
    name: str
    path: StepPath
    parent: StepPath | None
    data: object
    context: object
    index: int = 0
    """Which of its parent's children this is."""
    around: Around = NOTHING_AROUND
    _tally: Tally | None = None
    runs_on: str | None = None
    """The queue whose workers perform the items of the map around, if they do."""
    batch: Batch | None = None
    """The items that go there together."""
    degraded: frozenset[str] = NO_TEXTS
    """The texts in the data that stand for values: whoever asks for a dict gets one made of them."""
    of: int = 0
    """How many children its parent has, if that is a map or a parallel stage."""

    @property
    def tally(self) -> Tally:
        """What the step counts in; most calls leave nothing to count."""
        if self._tally is None:
            object.__setattr__(self, "_tally", Tally())
        assert self._tally is not None
        return self._tally

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What was learned of agents that were chosen, and is not written yet."""
        return () if self._tally is None else self._tally.evidence

    @property
    def transaction(self) -> OpenTransaction | None:
        """What the attempt that succeeded has written, to be committed with its outcome."""
        return None if self._tally is None else self._tally.transaction

    def changed(self, **changes: Any) -> Request:
        """The same request and the same tally, with something else in it."""
        return attrs.evolve(self, tally=self.tally, **changes)

    def telling(self, **told: object) -> Request:
        """The same request, with what can be asked for by name here and below."""
        return self.changed(around=attrs.evolve(self.around, told={**self.told, **told}))


@message(kw_only=True, eq=False)
class Settled:
    """Child to parent, exactly once: how the step ended, and the context it leaves behind."""

    index: int
    outcome: TerminalOutcome
    context: object
    overruled: Aborted | Failure | None = None
    """Set when a hook ends the run although the step settled as `outcome` says."""
    cut_short: bool = False
    """Whether the step was stopped from outside, instead of settling by itself."""
    unfinished: StepResult | None = None
    """What a step that paused or was aborted had used until then, if anything."""
    undo: tuple[ToUndo | Completed, ...] = ()
    """What is to be undone if the attempt around the step does not count."""
    cause: Cause | None = None
    """What failed, if the step did."""

    @property
    def verdict(self) -> TerminalOutcome:
        """What the parent has to act on."""
        return self.overruled or self.outcome

    @property
    def result(self) -> StepResult | None:
        """What there is to count of the step."""
        if isinstance(self.outcome, (Success, Failure)):
            return self.outcome.step_result
        return self.unfinished


@attrs.frozen(kw_only=True, eq=False)
class Untold:
    """An outcome that not everybody knows yet."""

    request: Request
    outcome: TerminalOutcome
    hooks_know: bool = False


# --- one attempt --------------------------------------------------------------------------------------------


@attrs.define(kw_only=True, eq=False)
class Assembly:
    """What a step's agent is shown besides its prompt, and what it said to it."""

    context: AssembledContext
    text: str
    """The context as a model is shown it; empty if there is nothing to show."""
    said: list[ModelMessage] = attrs.field(factory=list)
    """The messages of the last call of a model agent that had a result."""


@message(kw_only=True, eq=False)
class Work(_Inside):
    """One attempt of a step: where it stands, on what, and where to count."""

    name: str
    span: StepPath
    """The path of the step in the ledger."""
    path: StepPath
    """Below which this attempt's children stand."""
    data: object
    context: object
    tally: Tally
    attempt: int = 1
    feedback: str | None = None
    """Why the attempt before this one failed."""
    around: Around = NOTHING_AROUND
    plan: CallPlan | None = None
    """The agent that was redirected to, instead of the step's own."""
    degraded: frozenset[str] = NO_TEXTS
    """The texts in the data that stand for values."""
    transaction: OpenTransaction | None = None
    """What the step writes through, if it asks for a transaction."""
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
        data: object,
        context: object,
        index: int = 0,
        degraded: frozenset[str] = NO_TEXTS,
        around: Around | None = None,
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
            around=around or self.around,
            degraded=degraded,
            of=of,
        )


def work_of(request: Request, data: object, *, feedback: str | None = None, plan: CallPlan | None = None) -> Work:
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
        around=request.around,
        plan=plan,
        degraded=request.degraded,
    )
