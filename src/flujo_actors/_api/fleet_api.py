"""Fleet, evaluation and rehearsal API of `Flujo`."""

from __future__ import annotations

import copy
import datetime as dt
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import flujo_actors

from .. import _fleet
from .._bridge.host_loop import current_host, in_own_loop, refuse_inside_loop
from .._core.default_settings import default_settings
from .._core.labels import case_labels, checked_labels
from .._core.type_parameters import NOTHING, Generic, In
from .._core.usage import UsageLimits
from .._durable.run_registry import MemoryRunRegistry, OpenRun, RunRegistry, checked_id
from .._runtime.context.copies import FirstContext, isolated
from ..errors import DeclarationError
from . import rehearsal as _rehearsal
from .wiring import checked_mode, engine_of, evaluations, fleet_of, limits_of, once_of, remote_steps_of

if TYPE_CHECKING:
    from pydantic_evals import Dataset
    from pydantic_evals.evaluators import Evaluator

    from .._agents.retrieval.retriever_port import Retriever
    from .._core.default_settings import Backend
    from .._core.labels import Labels
    from .._core.policies.rate_limits import RateLimit
    from .._core.policies.schedule_rules import Missed, Overlap
    from .._core.quota import Quota
    from .._core.settings_model import Settings, UsageSettings
    from .._dsl.pipeline import Pipeline
    from .._dsl.retrieval_collections import Collection
    from .._dsl.wait_steps import Instant
    from .._durable.operations.webhooks import Webhook
    from .._durable.pipeline_diff import ResumeMode
    from .._fleet.budget_ledger import ParentBudget
    from .._fleet.engine_port import Engine
    from .._fleet.fleet_service import Fleet
    from .._fleet.run_queue import IfExists, WhenBusy
    from .._fleet.schedules import ScheduleInfo
    from .._fleet.worker_loop import Worker
    from .._runtime.run.run_environment import RemoteSteps
    from ..stores._store_port import Store
    from .evaluation.evaluation_results import Evaluation
    from .rehearsal.playback import Performer
    from .rehearsal.rehearsal import RehearsalOptions
    from .rehearsal.verdicts import Rehearsal, Replay
    from .run_info import RunInfo

    Hook: TypeAlias = Callable[[Any], Any]

    class FlujoOptions(TypedDict, total=False):
        """Options of a pipeline's execution, apart from the type of its context."""

        initial_context_data: Mapping[str, object] | None
        resources: object
        usage_limits: UsageLimits | Sequence[UsageLimits] | None
        hooks: Hook | Iterable[Hook]
        store: Store | str | None
        settings: Settings | Mapping[str, Any] | None
        engine: Engine | str | None
        undo_grace_s: float | None
        retrievers: Mapping[type[Collection], Retriever | Callable[..., object]] | None
        carry: Iterable[ContextVar[Any]]
        rate_limits: Mapping[str, RateLimit] | None
        labels: Mapping[str, str] | None
        webhooks: Iterable[Webhook]


class ScheduleApi:
    """Schedule operations of a `Flujo`."""

    _declared_schedules: dict[str, Callable[[dt.datetime], object] | None]
    _first_context: FirstContext
    _labels: Labels
    _store: Store | None
    pipeline: Pipeline

    def schedule(
        self,
        name: str,
        *,
        cron: str | None = None,
        every_s: float | None = None,
        zone: str = "UTC",
        input: Any | Callable[[dt.datetime], Any] = NOTHING,
        context: Mapping[str, object] | None = None,
        labels: Mapping[str, str] | None = None,
        queue: str = "default",
        priority: int = 0,
        key: str | None = None,
        overlap: Overlap = "skip",
        missed: Missed = "one",
        missed_within_s: float = 86_400,
        jitter_s: float = 0.0,
        starts_at: dt.datetime | float | None = None,
        ends_at: dt.datetime | float | None = None,
        paused: bool = False,
    ) -> ScheduleInfo:
        """Create or update a schedule, whose runs workers submit. Blocks.

        Args:
            name: name of the schedule.
            cron: five fields in `zone`, or `@daily` and the like.
            every_s: interval, counted from the epoch or from `starts_at`.
            zone: time zone of `cron`.
            input: input of each run, or a function of the scheduled time that the worker calls.
            context: fields of each run's context.
            labels: labels of each run.
            queue: queue of the runs.
            priority: priority in the queue.
            key: key in the queue.
            overlap: for an instant while an earlier run is open: `skip`, `queue`, `cancel` or `allow`.
            missed: for instants without a worker: `one`, `skip` or `all`.
            missed_within_s: age up to which a missed instant counts.
            jitter_s: delay of each instant, equal in every process.
            starts_at: first time.
            ends_at: last time.
            paused: whether a new schedule is paused.

        Raises:
            DeclarationError: no store, or a wrong expression, zone or interval.

        Example:
            ```python
            flujo = Flujo(Step("report", str), store="sqlite:///runs.db")
            info = flujo.schedule("daily", cron="0 9 * * 1-5", zone="Europe/Madrid")
            assert info.next[0].hour == 9
            ```
        """
        self._first_context.of_run(context)  # a wrong context is refused where it is declared
        schedule = _fleet.checked_schedule(
            name,
            self.pipeline.title,
            input=input,
            context=context,
            starts_at=starts_at,
            ends_at=ends_at,
            labels=checked_labels(labels, self._labels),
            cron=cron,
            every_s=every_s,
            zone=zone,
            queue=queue,
            priority=priority,
            key=key,
            overlap=overlap,
            missed=missed,
            missed_within_s=missed_within_s,
            jitter_s=jitter_s,
        )
        declared = _fleet.declare_schedule(self._store, schedule, paused=paused)
        self._declared_schedules[name] = input if schedule.calls_input else None
        return declared


class FleetApi(ScheduleApi, Generic[In]):
    """Fleet operations of a `Flujo`."""

    _store: Store | None
    _engine: Engine | None
    _counter: Any = None
    _carry: tuple[Any, ...]
    _is_remote: bool
    _first_context: FirstContext
    _labels: Labels
    _limits: UsageLimits | None
    _windows: Any
    _parent_quota: Any = None
    """Quota of an evaluation without a store, of whose cases this is."""
    _drive: Any
    _make_run: Any
    _telemetry: Any

    def _budgets(self, opened: OpenRun) -> tuple[UsageLimits | None, Any]:
        """Return limits and budgets of a run that draws on its parent's."""
        if self._store is None and self._parent_quota is None:
            return self._limits, self._windows  # a case that its evaluation left paused
        limits = limits_of(self._limits or UsageLimits(), self.pipeline)
        return limits, _fleet.child_budget(opened.labels, self._store, self._windows, self._parent_quota)

    @property
    def store(self) -> Store | None:
        """Return the store of the runs; None for runs in memory."""
        return self._store

    if TYPE_CHECKING:  # `Flujo` has them

        @property
        def _settings(self) -> Settings: ...

        def _runs(self, mode: ResumeMode = "strict") -> RunRegistry: ...

    async def submit(
        self,
        data: In = NOTHING,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        queue: str = "default",
        priority: int = 0,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        at: Instant | None = None,
        delay_s: float | None = None,
        if_exists: IfExists = "raise",
        singleton: str | None = None,
        when_busy: WhenBusy = "return",
    ) -> str:
        """Submit a run to a queue; return its id once durable.

        `RunClient(store).wait(run_id)` waits for its end, from any process.

        Args:
            data: input of the first step.
            run_id: id of the run; a random one by default.
            context: fields of this run's context.
            queue: queue whose workers execute the run.
            priority: -100 to 100; workers claim the highest first.
            key: tenant or user; among equal priorities one run of each key is claimed in turn.
            labels: texts to find the run by.
            at: start, an aware datetime or epoch seconds.
            delay_s: start in so many seconds by the store's clock.
            if_exists: for a used id: `"raise"`, `"return"` the id, or `"retry_failed"`.
            singleton: key that at most one open run of the store has.
            when_busy: for a used singleton: `"return"` the id of that run, `"raise"`, or `"replace"` it.

        Raises:
            RunExists: the id is used.
            SingletonBusy: an open run has the key.
            DeclarationError: the `Flujo` has no store, or an argument is not valid.

        Example:
            ```python
            flujo = Flujo(Step("greet", str.upper), store="sqlite:///runs.db")
            run_id = trio.run(flujo.submit, "ada")  # in a handler: await flujo.submit("ada")
            assert RunClient("sqlite:///runs.db").get(run_id).status == "running"
            ```
        """
        once = once_of(run_id, if_exists, singleton, when_busy)
        named, first = checked_labels(labels, self._labels), isolated(self._first_context.of_run(context))
        place = queue, priority, key
        return await self._fleet().submit(checked_id(run_id), data, first, place, named, (at, delay_s), once)

    def submit_sync(
        self,
        data: In = NOTHING,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        queue: str = "default",
        priority: int = 0,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        at: Instant | None = None,
        delay_s: float | None = None,
        if_exists: IfExists = "raise",
        singleton: str | None = None,
        when_busy: WhenBusy = "return",
    ) -> str:
        """Return the same from synchronous code."""
        once = once_of(run_id, if_exists, singleton, when_busy)
        named, first = checked_labels(labels, self._labels), isolated(self._first_context.of_run(context))
        place = queue, priority, key
        return self._fleet().submit_sync(checked_id(run_id), data, first, place, named, (at, delay_s), once)

    def worker(
        self,
        queues: str | Iterable[str] = "default",
        slots: int = 8,
        *,
        grace_s: float = 30.0,
        health: str | os.PathLike[str] | None = None,
        mode: ResumeMode = "strict",
        engine: Engine | str | None = None,
        look_s: float | None = None,
        once: bool = False,
        per_key: int | None = None,
    ) -> Worker:
        """Return a worker inside this program: `async with flujo.worker(queues="default", slots=8):`.

        It executes runs, claims runs of dead workers, and stops at the end of the block.

        Args:
            queues: names of its queues.
            slots: most runs at once.
            grace_s: time to finish runs at the end; the others are released.
            health: port (`":8080"`) or path of a file that reports its health.
            mode: handling of runs of another pipeline version, as in `resume`.
            engine: job queue, in place of the `Flujo`'s own.
            look_s: interval of polls of the store.
            once: whether it stops when nothing is queued: `await worker.stopped()`.
            per_key: most runs of one `key` at once, over all workers with this limit.

        Raises:
            DeclarationError: the `Flujo` has no store, or an argument is not valid.

        Example:
            ```python
            flujo = Flujo(Step("greet", str.upper), store="sqlite:///runs.db")

            async def main():
                run_id = await flujo.submit("ada")
                async with flujo.worker(), AsyncRunClient("sqlite:///runs.db") as client:
                    return (await client.wait(run_id, timeout=30)).output

            assert trio.run(main) == "ADA"
            ```
        """
        fleet = self._fleet(checked_mode(mode), engine_of(engine, self._store))
        return fleet.worker(
            queues=queues, slots=slots, grace_s=grace_s, health=health, look_s=look_s, once=once, per_key=per_key
        )

    def _fleet(self, mode: ResumeMode = "strict", engine: Engine | None = None) -> Fleet:
        fleet = fleet_of(
            self._runs(mode),
            engine or self._engine,
            self._settings,
            self._drive,
            make_run=self._make_run,
            remote=self._remote_steps,
            carry=self._carry,
            telemetry=self._telemetry,
            first_context=self._first_context,
            schedules=self._declared_schedules,
            counter=self._counter if engine is None else None,
        )
        self._counter = fleet.counter if engine is None else self._counter
        return fleet

    def _remote_steps(self) -> RemoteSteps | None:
        if not self._is_remote or self._engine is None:
            return None
        return remote_steps_of(self, self._runs(), self._engine, self._settings, self._carry)


# --- evaluations --------------------------------------------------------------------------------------------


class EvaluationApi:
    """Evaluations of a `Flujo`."""

    _labels: Labels
    _parent_quota: Any
    _store: Store | None
    _configured: Callable[[], Settings]
    pipeline: Pipeline
    backend: Any

    def evaluate(
        self,
        dataset: Dataset[Any, Any, Any] | str | os.PathLike[str],
        *,
        evaluators: Iterable[Evaluator[Any, Any, Any] | type[Evaluator[Any, Any, Any]]] = (),
        run_id: str | None = None,
        baseline: str | os.PathLike[str] | Evaluation | None = None,
        gates: Iterable[str] = (),
        repeat: int = 1,
        max_concurrency: int = 8,
        max_cost_usd: float | None = None,
        queue: str | None = None,
        lower_is_better: Iterable[str] = (),
        backend: Backend | None = None,
    ) -> Evaluation:
        """Run each case of a dataset of pydantic-evals, and judge its output.

        A case is a run `{run_id}/{case}`. With a store, a call with the same `run_id` continues an interrupted
        evaluation, and returns an ended one without work. `EvaluationMismatch` if dataset, evaluators, pipeline or
        `repeat` differ. `RunLeased` if another process runs it.

        Args:
            dataset: dataset of pydantic-evals, or its file.
            evaluators: evaluators that are added to those of the dataset; classes are those that its file may name.
            run_id: id of the evaluation's run; the same id resumes it.
            baseline: earlier evaluation: its id in the store, an `Evaluation`, or a file of `to_json()`.
            gates: conditions such as `"pass>=0.9"`, `"cost<=1.1x"` and `"score.tone not worse"`.
            repeat: number of runs of each case.
            max_concurrency: most cases at once.
            max_cost_usd: bound of cases and judges together; a call with a larger bound continues.
            queue: queue of the workers that run the cases; by default they run here.
            lower_is_better: metrics whose decrease is an improvement.
            backend: library that the steps are written for.
        """
        refuse_inside_loop(instead="evaluate_async")
        import anyio  # only for evaluations

        evaluated = functools.partial(
            self.evaluate_async,
            dataset,
            evaluators=evaluators,
            run_id=run_id,
            baseline=baseline,
            gates=gates,
            repeat=repeat,
            max_concurrency=max_concurrency,
            max_cost_usd=max_cost_usd,
            queue=queue,
            lower_is_better=lower_is_better,
        )
        return anyio.run(evaluated, backend=self.backend(backend))

    async def evaluate_async(
        self,
        dataset: Dataset[Any, Any, Any] | str | os.PathLike[str],
        *,
        evaluators: Iterable[Evaluator[Any, Any, Any] | type[Evaluator[Any, Any, Any]]] = (),
        run_id: str | None = None,
        baseline: str | os.PathLike[str] | Evaluation | None = None,
        gates: Iterable[str] = (),
        repeat: int = 1,
        max_concurrency: int = 8,
        max_cost_usd: float | None = None,
        queue: str | None = None,
        lower_is_better: Iterable[str] = (),
    ) -> Evaluation:
        """Return the same as `evaluate`, inside a loop."""
        module = evaluations()
        options = module.EvaluationOptions(
            dataset=dataset,
            evaluators=evaluators,
            run_id=run_id,
            baseline=baseline,
            gates=gates,
            repeat=repeat,
            max_concurrency=max_concurrency,
            max_cost_usd=max_cost_usd,
            queue=queue,
            lower_is_better=lower_is_better,
        )
        found: Evaluation = await module.evaluate(SubjectFlujo(self), options)
        return found


class SubjectFlujo:
    """A `Flujo` as its evaluation sees it."""

    def __init__(self, flujo: Any) -> None:
        self._flujo = flujo
        self.pipeline: Pipeline = flujo.pipeline

    @property
    def store(self) -> Store | None:
        store: Store | None = self._flujo.store
        return store

    def usage_settings(self) -> UsageSettings:
        usage: UsageSettings = self._flujo._configured().usage
        return usage

    def for_cases(self, parent: str, *, charged: bool, quota: Quota | None) -> Any:
        cases = copy.copy(self._flujo)
        cases._labels = case_labels(cases._labels, parent, charged=charged)
        cases._parent_quota = quota
        cases._in_memory = MemoryRunRegistry()  # without a store, an earlier evaluation of this id is forgotten
        return cases

    def for_evaluation(self, pipeline: Pipeline, budget: ParentBudget | None) -> Any:
        flujo = self._flujo
        settings = None if flujo._configured is default_settings else flujo._configured()
        own: Any = flujo_actors.Flujo(pipeline, store=flujo.store, settings=settings)
        if budget is not None:
            own._limits, own._windows = limits_of(UsageLimits(), pipeline), budget
        return own


# --- Replays and rehearsals ---------------------------------------------------------------------------------------


class RehearsalApi:
    """Replays and rehearsals of a `Flujo`."""

    _store: Store | None
    pipeline: Pipeline
    backend: Any
    _drive: Any
    _first_context: Any
    _telemetry: Any
    _configured: Any

    def replay(
        self,
        run: str | os.PathLike[str],
        *,
        live_steps: Iterable[str] = (),
        connect: bool = False,
        backend: Backend | None = None,
    ) -> Replay:
        """Run the present code on the records of a run, without effects.

        Recorded model responses, tool results, outcomes of steps and answers replace all effects.

        Args:
            run: id of a stored run, or path of a run file.
            live_steps: steps that are executed, as if they were declared `rehearse="live"`.
            connect: whether toolsets may connect to list their tools.
            backend: library that the steps are written for.

        Raises:
            RunNotFound: there is no such run.
            LoopAlreadyRunning: this thread runs an event loop; use `replay_async`.

        Example:
            ```python
            flujo = Flujo(Step("greet", str.upper), store="sqlite:///runs.db")
            flujo.run("ada", run_id="r1")
            assert flujo.replay("r1").verdict == "same"
            ```
        """
        start = functools.partial(_rehearsal.replayed, self._performer(), run, live_steps, connect)
        return in_own_loop(start, backend=self.backend(backend), instead="replay_async")

    async def replay_async(
        self, run: str | os.PathLike[str], *, live_steps: Iterable[str] = (), connect: bool = False
    ) -> Replay:
        """Return the same as `replay`, inside a loop."""
        host = await current_host()
        return await host.enter(_rehearsal.replayed, self._performer(), run, live_steps, connect, host, None)

    def rehearse(
        self,
        runs: Iterable[str | os.PathLike[str] | RunInfo] | str | os.PathLike[str] | RunInfo,
        *,
        changed: Any = None,
        tools: str = "recorded",
        models: Literal["live", "recorded"] = "live",
        at: str | None = None,
        live_steps: Iterable[str] = (),
        same: Callable[[Any, Any], Any] | None = None,
        evaluators: Iterable[Any] = (),
        repeat: int = 1,
        max_cost_usd: float | None = None,
        max_concurrency: int = 4,
        gates: Iterable[str] = (),
        into: str | Store | None = None,
        connect: bool = False,
        backend: Backend | None = None,
    ) -> Rehearsal:
        """Run stored runs on a changed pipeline, from their first changed step.

        Models answer within `max_cost_usd`, or from the record. Tools and functions answer from the record.

        Args:
            runs: ids, `RunInfo`s or run files.
            changed: `Flujo` with the change; by default this one.
            tools: `"recorded"`, the only choice: no tool is called.
            models: `"live"` to ask the models, `"recorded"` to answer from the record.
            at: path of the first step that runs again; by default the first changed step.
            live_steps: steps that are executed, as if they were declared `rehearse="live"`.
            same: function of the recorded and the new output that returns whether they are equal.
            evaluators: pydantic-evals evaluators that compare the outputs.
            repeat: number of forks of each run.
            max_cost_usd: bound of all forks together; live models need one.
            max_concurrency: most forks at once.
            gates: conditions such as `"same>=0.9"` and `"cost<=1.1x"`.
            into: store that keeps the forks.
            connect: whether toolsets may connect to list their tools.
            backend: library that the steps are written for.
        """
        options = self._rehearsal_options(locals())
        start = functools.partial(_rehearsal.rehearsed, _performer_of(changed or self), self._store, runs, options)
        return in_own_loop(start, backend=self.backend(backend), instead="rehearse_async")

    async def rehearse_async(
        self,
        runs: Iterable[str | os.PathLike[str] | RunInfo] | str | os.PathLike[str] | RunInfo,
        *,
        changed: Any = None,
        tools: str = "recorded",
        models: Literal["live", "recorded"] = "live",
        at: str | None = None,
        live_steps: Iterable[str] = (),
        same: Callable[[Any, Any], Any] | None = None,
        evaluators: Iterable[Any] = (),
        repeat: int = 1,
        max_cost_usd: float | None = None,
        max_concurrency: int = 4,
        gates: Iterable[str] = (),
        into: str | Store | None = None,
        connect: bool = False,
    ) -> Rehearsal:
        """Return the same as `rehearse`, inside a loop."""
        options = self._rehearsal_options(locals())
        host = await current_host()
        return await host.enter(
            _rehearsal.rehearsed, _performer_of(changed or self), self._store, runs, options, host, None
        )

    def _rehearsal_options(self, given: dict[str, Any]) -> RehearsalOptions:
        names = ("at", "tools", "models", "live_steps", "same", "evaluators", "repeat", "max_cost_usd")
        more = ("max_concurrency", "gates", "into", "connect")
        options = _rehearsal.RehearsalOptions(**{name: given[name] for name in (*names, *more)})
        options.check()
        return options

    def _performer(self) -> Performer:
        return _rehearsal.performer_of(
            pipeline=self.pipeline,
            context_model=self._first_context.model,
            store=self._store,
            settings=self._configured(),
            redact=self._telemetry.redact,
            drive=functools.partial(self._drive, event_stream=None),
        )


def _performer_of(flujo: object) -> Performer:
    if not isinstance(flujo, RehearsalApi):
        raise DeclarationError(f"rehearse: changed must be a Flujo, not {flujo!r:.100}")
    return flujo._performer()
