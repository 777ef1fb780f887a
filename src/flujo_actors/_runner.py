"""`Flujo`: a pipeline with everything it needs to run."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, Unpack, overload

from ._bridge.host import Host, checked_backend, current_host, in_own_loop
from ._context.isolation import FirstContext, check_context_model, isolated
from ._core.default_settings import BACKEND, default_settings
from ._core.outcomes import PipelineResult, RunId
from ._core.seconds import checked_seconds
from ._core.type_parameters import NOTHING, Ctx, Generic, In, Out
from ._core.usage import UsageLimits
from ._dsl.pipeline import Pipeline, StepLike, as_step
from ._durable.runs import NO_ANSWER, OpenRun, Resting, Runs, RunsInMemory, checked_id, reopened
from ._handle import Drive, Outlet, RunHandle
from ._run.run import Run
from ._submitting import Submitting
from ._tree.root import drive
from ._wiring import (
    beliefs_of,
    carry_of,
    checked_answer,
    checked_mode,
    chunks_of,
    engine_of,
    hook_reporter,
    hooks_of,
    initial_data,
    limits_of,
    load_for_steps,
    minds_failures,
    opened_to_cancel,
    puts_off,
    recovered,
    refuse_transactions,
    refuse_unreachable,
    searches_of,
    settings_of,
    store_of,
    stored_runs,
    telemetry_of,
    undone_before,
)

if TYPE_CHECKING:
    from ._context.freeform import Context
    from ._core.default_settings import Backend
    from ._core.recovery import RecoveryReport
    from ._core.settings import Settings
    from ._dsl.collections import Collection
    from ._dsl.shown_chunks import Chunks
    from ._dsl.typed_parts import Answers, I, O, Returns, TypedStep
    from ._durable.changes import ResumeMode
    from ._fleet.port import Engine
    from ._recovering import Recovering
    from ._retrieval.port import Retriever
    from ._run.hooks import Hooks
    from ._run.run import Office
    from .stores._port import Store

    C = TypeVar("C")
    Hook: TypeAlias = Callable[[Any], Any]

    class FlujoOptions(TypedDict, total=False):
        """What a pipeline needs to run, apart from the type of its context."""

        initial_context_data: Mapping[str, object] | None
        resources: object
        usage_limits: UsageLimits | None
        hooks: Hook | Iterable[Hook]
        store: Store | str | None
        settings: Settings | Mapping[str, Any] | None
        engine: Engine | str | None
        undo_grace_s: float | None
        retrievers: Mapping[type[Collection], Retriever | Callable[..., object]] | None
        carry: Iterable[ContextVar[Any]]


logger = logging.getLogger("flujo_actors")


class Flujo(Submitting[In], Generic[In, Out, Ctx]):
    """Runs one pipeline, any number of times and concurrently, from sync code, trio, or anyio on either backend."""

    @overload
    def __init__(
        self: Flujo[I, O, Context], pipeline: TypedStep[I, O] | Answers[I, O], **options: Unpack[FlujoOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: Flujo[I, O, C],
        pipeline: TypedStep[I, O] | Answers[I, O],
        context_model: type[C],
        **options: Unpack[FlujoOptions],
    ) -> None: ...
    @overload
    def __init__(self: Flujo[I, O, Context], pipeline: Returns[I, O], **options: Unpack[FlujoOptions]) -> None: ...
    @overload
    def __init__(
        self: Flujo[I, O, C], pipeline: Returns[I, O], context_model: type[C], **options: Unpack[FlujoOptions]
    ) -> None: ...
    def __init__(
        self,
        pipeline: StepLike,
        context_model: type | None = None,
        initial_context_data: Mapping[str, object] | None = None,
        resources: object = None,
        usage_limits: UsageLimits | None = None,
        hooks: Hook | Iterable[Hook] = (),
        store: Store | str | None = None,
        settings: Settings | Mapping[str, object] | None = None,
        engine: Engine | str | None = None,
        undo_grace_s: float | None = None,
        retrievers: Mapping[type[Collection], Retriever | Callable[..., Any]] | None = None,
        carry: Iterable[ContextVar[Any]] = (),
    ) -> None:
        self.pipeline: Pipeline = Pipeline.from_step(as_step(pipeline, where="what Flujo runs"))
        load_for_steps(self.pipeline)
        check_context_model(context_model)
        self._make_searches = searches_of(self.pipeline, retrievers, context_model)
        self._first_context = FirstContext(context_model, initial_data(self.pipeline, initial_context_data))
        self._resources = resources
        self._limits = limits_of(usage_limits, self.pipeline)
        self._make_hooks = hooks_of(hooks)
        self._configured = settings_of(settings)
        self._minds_failures = minds_failures(self.pipeline)
        self._undo_grace_s = None if undo_grace_s is None else checked_seconds(undo_grace_s, what="undo_grace_s")
        self._telemetry = telemetry_of(self._configured, self.pipeline, resources)
        self._in_memory = RunsInMemory()
        self._stored: dict[ResumeMode, Runs] = {}
        self._store = None if store is None else store_of(store, self.pipeline, context_model)
        self._beliefs = beliefs_of(self._store, self.pipeline)
        if self._store is None:
            refuse_transactions(self.pipeline)
        self._engine = engine_of(engine, self._store)
        self._carry = carry_of(carry)
        self._is_remote = refuse_unreachable(self.pipeline, self._store, self._engine)

    # --- running ---

    def run(
        self,
        data: In = NOTHING,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        backend: Backend | None = None,
    ) -> PipelineResult[Out, Ctx]:
        """Run the pipeline from synchronous code and return its result.

        `context` sets fields of this run's context, over those of `initial_context_data`.
        `backend` is the library that the steps are written for: `"trio"` or `"asyncio"`, by default the setting
        `run.backend`. Steps written with anyio run on either.
        """
        return in_own_loop(self._start(data, run_id, context), backend=self.backend(backend), instead="run_async")

    def run_async(
        self,
        data: In = NOTHING,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        started: bool = False,
        tools: bool = False,
        chunks: Chunks = True,
    ) -> RunHandle[Out, Ctx]:
        """A handle on a run: await it for the result, iterate it for the outcomes, or enter it.

        Whoever iterates it is told of steps that begin, too, with `started`, and of tool calls with `tools`. `chunks`
        says whose pieces are shown while they are made: of all steps, of none (`False`), of the `"last"` one, or of
        those with these names or paths; an agent whose pieces nobody sees is asked for whole answers.
        """
        shown = chunks_of(self.pipeline, chunks)
        return RunHandle(self._start(data, run_id, context), started=started, tools=tools, chunks=shown)

    def run_outcomes_async(
        self,
        data: In = NOTHING,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        started: bool = False,
        tools: bool = False,
        chunks: Chunks = True,
    ) -> RunHandle[Out, Ctx]:
        """The same as `run_async`, under the name that says it is iterated."""
        return self.run_async(data, run_id=run_id, context=context, started=started, tools=tools, chunks=chunks)

    def _start(self, data: object, run_id: str | None, context: Mapping[str, object] | None) -> Drive:
        return _Start(self, data, checked_id(run_id), self._first_context.of_run(context))

    async def _run_new(
        self, data: object, run_id: RunId, context: object, host: Host, outlet: Outlet | None
    ) -> PipelineResult:
        runs = self._runs()
        opened = await runs.admit(run_id, data, isolated(context))
        return await self._drive(runs, opened, host, outlet)

    # --- resuming ---

    def resume(
        self,
        token: str,
        answer: object = NO_ANSWER,
        *,
        mode: ResumeMode = "strict",
        wait: bool = True,
        backend: Backend | None = None,
    ) -> PipelineResult[Out, Ctx]:
        """Continue a run from synchronous code, on the `backend` that `run` would take.

        With an answer, `token` is the `state_token` of a pause; without one it is the id of a run that a process left
        unfinished. `mode` says what to do if the pipeline has changed since: `"strict"`, `"compat"` or `"force"`.
        A run is taken over at once from a process that is provably dead; otherwise its lease is waited for, or, without
        `wait`, `RunLeased` says how long it lasts.
        """
        start = functools.partial(self._run_on, token, answer, checked_mode(mode), wait)
        return in_own_loop(start, backend=self.backend(backend), instead="resume_async")

    def resume_async(
        self,
        token: str,
        answer: object = NO_ANSWER,
        *,
        mode: ResumeMode = "strict",
        wait: bool = True,
        started: bool = False,
        tools: bool = False,
        chunks: Chunks = True,
    ) -> RunHandle[Out, Ctx]:
        """A handle on the rest of a run; the arguments are those of `resume` and of `run_async`."""
        start = functools.partial(self._run_on, token, answer, checked_mode(mode), wait)
        return RunHandle(start, started=started, tools=tools, chunks=chunks_of(self.pipeline, chunks))

    async def _run_on(
        self, token: str, answer: object, mode: ResumeMode, wait: bool, host: Host, outlet: Outlet | None
    ) -> PipelineResult:
        runs = self._runs(mode)
        if answer is NO_ANSWER:
            opened = await reopened(runs, token, wait=wait)
        else:
            pause = await runs.pause_at(token)
            checked = checked_answer(answer, pause)
            take = runs.defer if puts_off(pause, checked) else runs.answer
            opened = await take(token, checked, wait=wait)
        return await self._drive(runs, opened, host, outlet, answer=None if answer is NO_ANSWER else answer)

    def recover(
        self, *, mode: ResumeMode = "strict", wait: bool = False, backend: Backend | None = None
    ) -> RecoveryReport:
        """Take over and finish every run of this pipeline that a dead process left; from synchronous code.

        What comes back is a list of their results, and in `left` the runs that were left as they are, with the reason:
        a living process works on it, it cannot be read, it was started with another pipeline (`mode` is that of
        `resume`), it raised something. With `wait`, leases are waited for until they expire.
        """
        start = functools.partial(self._recover, checked_mode(mode), wait)
        return in_own_loop(start, backend=self.backend(backend), instead="recover_async")

    async def recover_async(self, *, mode: ResumeMode = "strict", wait: bool = False) -> RecoveryReport:
        """The same as `recover`, inside a loop."""
        host = await current_host()
        return await host.enter(self._recover, checked_mode(mode), wait, host, None)

    async def _recover(self, mode: ResumeMode, wait: bool, host: Host, _: Outlet | None) -> RecoveryReport:
        runs = self._runs(mode)
        return await recovered(
            runs,
            lambda opened: self._drive(runs, opened, host, None),
            redact=self._telemetry.redact,
            wait=wait,
            at_once=self._settings.durability.recover_at_once,
        )

    def recovering(self, *, every_s: float = 1.0, mode: ResumeMode = "strict") -> Recovering:
        """Recovers again and again while the block runs: `async with flujo.recovering():`.

        It looks when the next question runs out of time, and every `every_s` seconds at the least. A pass that fails
        because the store is away is logged, and the next one tries again.
        """
        from ._recovering import Recovering  # what only programs with a store need

        seconds = checked_seconds(every_s, what="recovering: every_s")
        return Recovering(functools.partial(self._pass, checked_mode(mode)), every_s=seconds)

    async def _pass(self, mode: ResumeMode, host: Host) -> float | None:
        """Recover once; in how many seconds the next question runs out of time."""
        await self._recover(mode, False, host, None)
        return await self._runs(mode).next_due_s()

    def cancel(
        self, run_id: str, reason: str = "cancelled", *, mode: ResumeMode = "strict", backend: Backend | None = None
    ) -> PipelineResult[Out, Ctx] | None:
        """End a run as aborted, and undo what it did; from synchronous code. What comes back is its result.

        That is for runs that nobody works on: paused, cancelled by a `RunClient`, or left by a process that died. One
        that is at work is told to end by itself, and the result is `None`. `NotPaused` if the run has ended.
        """
        start = functools.partial(self._cancel, RunId(run_id), reason, checked_mode(mode))
        return in_own_loop(start, backend=self.backend(backend), instead="cancel_async")

    async def cancel_async(
        self, run_id: str, reason: str = "cancelled", *, mode: ResumeMode = "strict"
    ) -> PipelineResult[Out, Ctx] | None:
        """The same as `cancel`, inside a loop."""
        host = await current_host()
        return await host.enter(self._cancel, RunId(run_id), reason, checked_mode(mode), host, None)

    async def _cancel(
        self, run_id: RunId, reason: str, mode: ResumeMode, host: Host, _: Outlet | None
    ) -> PipelineResult | None:
        runs = self._runs(mode)
        opened = await opened_to_cancel(runs, self._store, run_id, self._telemetry.redact(reason))
        return None if opened is None else await self._drive(runs, opened, host, None)

    def forget(self, run_id: str) -> bool:
        """Drop a paused run that nobody will answer; whether there was one.

        Without a store, paused runs are kept in memory until they are answered or forgotten. Blocks if there is one.
        """
        if self._store is None:
            return self._in_memory.forget(RunId(run_id))
        return self._store.delete([RunId(run_id)]) > 0

    # --- both ---

    @property
    def _settings(self) -> Settings:
        return self._configured()

    def backend(self, asked: Backend | None = None) -> Backend:
        """The library that `run` runs on: the one asked for, or what the settings say."""
        if asked is not None:
            return checked_backend(asked)
        return BACKEND if self._configured is default_settings else self._settings.run.backend

    def _runs(self, mode: ResumeMode = "strict") -> Runs:
        if self._store is None:
            return self._in_memory
        if mode not in self._stored:
            redact = self._telemetry.redact
            self._stored[mode] = stored_runs(self._store, self.pipeline, self._settings, redact=redact, mode=mode)
        return self._stored[mode]

    async def _drive(
        self, runs: Runs, opened: OpenRun, host: Host, outlet: Outlet | None, *, answer: object = None
    ) -> PipelineResult:
        office = self._office() if self._is_remote else None
        run = self._make_run(opened, host, outlet=outlet, office=office)
        result: PipelineResult | None = None
        try:
            with runs.holding(opened) as hold:
                result = await drive(
                    run,
                    self.pipeline,
                    opened.data,
                    opened.context,
                    limits=self._limits,
                    resumed=opened.resumed,
                    rest=Resting(runs, opened),
                    halt=hold.halt,
                    answer=answer,
                )
            hold.check()
        finally:
            await runs.put_back(opened)
        assert result is not None
        return result

    def _make_run(
        self,
        opened: OpenRun,
        host: Host,
        *,
        root: RunId | None = None,
        outlet: Outlet | None = None,
        office: Office | None = None,
    ) -> Run:
        """The run, or, for a part of another one that is played here, a run under that one's id."""
        run_id = opened.run_id if root is None else root
        return Run(
            run_id=run_id,
            host=host,
            journal=opened.journal,
            resumed=opened.resumed,
            hooks=self._hooks_of(run_id, host),
            telemetry=self._telemetry,
            outlet=outlet,
            office=office,
            resources=self._resources,
            searches=None if self._make_searches is None else self._make_searches(),
            configured=self._configured,
            closing=opened.journal.cancelled,
            **(self._undoing(opened) if self._minds_failures else {}),
            beliefs=self._beliefs,
        )

    def _undoing(self, opened: OpenRun) -> dict[str, Any]:
        """What a run needs to know that tells of failures and undoes steps."""
        grace_s = self._settings.run.undo_grace_s if self._undo_grace_s is None else self._undo_grace_s
        return {
            "minds_failures": True,
            "undo_grace_s": grace_s,
            "undone": undone_before(opened, self.pipeline),
        }

    def _hooks_of(self, run_id: RunId, host: Host) -> Hooks | None:
        if self._make_hooks is None:
            return None
        return self._make_hooks(run_id, host, hook_reporter(self._telemetry), self._telemetry.redact)


class _Start:
    """Begins one run on whatever host it is given; smaller than a partial of a method."""

    __slots__ = ("_context", "_data", "_flujo", "_run_id")

    def __init__(self, flujo: Flujo[Any, Any, Any], data: object, run_id: RunId, context: object) -> None:
        self._flujo, self._data, self._run_id, self._context = flujo, data, run_id, context

    def __call__(self, host: Host, outlet: Outlet | None) -> Awaitable[PipelineResult]:
        return self._flujo._run_new(self._data, self._run_id, self._context, host, outlet)
