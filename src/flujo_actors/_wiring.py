"""The parts that only some runs have: settings, hooks, telemetry, a store, answers.

This is the one place that loads them, and only for those who have them: a pipeline of plain functions runs without
building their classes, and without cattrs, pydantic or a driver. Every import inside a function says what it saves.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from ._core.default_settings import CONFIG_FILE, PREFIX, default_settings
from ._core.error_info import message_of
from ._core.usage import UsageLimits
from ._dsl.call_plan import BUDGET
from ._dsl.pipeline import AnyStep, Pipeline
from ._dsl.step import Step
from ._dsl.tree import walk_steps
from .errors import DeclarationError, RunLeased
from .telemetry._silence import Silence

if TYPE_CHECKING:
    from contextvars import ContextVar

    from ._core.hook_payloads import HookPayload
    from ._core.outcomes import RunId, Undone
    from ._core.paths import StepPath
    from ._core.recovery import RecoveryReport
    from ._core.settings import Settings
    from ._dsl.shown_chunks import Chunks, ShownChunks
    from ._durable.changes import ResumeMode
    from ._durable.journal import Pause
    from ._durable.recovering import Finish
    from ._durable.runs import OpenRun, Runs
    from ._fleet.port import Engine
    from ._fleet.service import Fleet
    from ._run.beliefs import BeliefBook
    from ._run.hooks import Hooks
    from ._run.run import Office
    from ._run.searching import Searches
    from .stores._port import Store
    from .telemetry._sinks import Telemetry

# --- steps --------------------------------------------------------------------------------------------------


def load_for_steps(pipeline: Pipeline) -> None:
    """Load what the steps need besides a plain call: now, and not while the time of their first attempt runs."""
    for module in {module for step in walk_steps(pipeline) for module in _needed_by(step)}:
        importlib.import_module(module, __package__)


def minds_failures(pipeline: Pipeline) -> bool:
    """Whether somebody is told of failures, or undoes steps."""
    return any(step.on_failure or step.compensate is not None for step in walk_steps(pipeline))


def _needed_by(step: AnyStep) -> Iterator[str]:
    if step.on_failure or step.compensate is not None:
        yield "._tree.scopes"
    if isinstance(step, Step) and (step.plan.shape == "stream" or step.plan.stream is not None):
        yield "._calls.shown_pieces"
    if isinstance(step, Pipeline) or (isinstance(step, Step) and step.is_just_a_call):
        return
    yield "._tree.retries"
    if isinstance(step, Step) and step.context_sources is not None:
        yield "._calls.assembling"
    if not isinstance(step, Step):
        yield "._tree.composites"
    elif step.plan.shape == "model":
        yield "._calls.model"
        if step.resumable is not None:
            yield "._calls.conversations"
    elif step.processing.wanted is not None:
        yield "._calls.structured"


def chunks_of(pipeline: Pipeline, chunks: Chunks) -> ShownChunks | None:
    """Whose chunks a reader sees; `None` if those of all steps."""
    if chunks is True:
        return None
    from ._dsl.shown_chunks import shown_chunks  # what only readers need who choose

    return shown_chunks(pipeline, chunks)


def undone_before(opened: OpenRun, pipeline: Pipeline) -> dict[StepPath, Undone]:
    """The steps that earlier parts of a run have undone, in this order."""
    if not opened.resumed:
        return {}
    from ._durable.undone import undone_in  # what only resumed runs with compensations need

    return undone_in(opened.journal, pipeline)


def searches_of(
    pipeline: Pipeline, retrievers: Mapping[Any, Any] | None, context_model: type | None
) -> Callable[[], Searches] | None:
    """What makes the searches of one run; `None` if no step has sources. What cannot be searched is refused now."""
    steps = (step for step in walk_steps(pipeline) if isinstance(step, Step))
    if not retrievers and not any(step.context_sources is not None for step in steps):
        return None
    from ._run.search_plans import planned_searches  # only for those who have sources
    from ._run.searching import Searches

    return functools.partial(Searches, planned_searches(pipeline, retrievers, context_model))


def refuse_transactions(pipeline: Pipeline) -> None:
    """Refuse steps that ask for a transaction where no store could give one."""
    for each in walk_steps(pipeline):
        if isinstance(each, Step) and "transaction" in each.plan.required:
            raise DeclarationError(
                f"step {each.name!r} asks for a `transaction`, but there is no store to give one: pass `store` to Flujo"
            )


# --- limits -------------------------------------------------------------------------------------------------


def limits_of(given: UsageLimits | None, pipeline: Pipeline) -> UsageLimits | None:
    """The limits of a `Flujo`, if there are any: its own, else those of its pipeline."""
    if given is not None and not isinstance(given, UsageLimits):
        raise DeclarationError(f"usage_limits must be UsageLimits(…), not {given!r}")
    return given or pipeline.usage_limits or _counting(pipeline)


def initial_data(pipeline: Pipeline, given: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """What a context begins with: what the pipeline says, and above it what its user says."""
    declared = pipeline.initial_context_data
    return given if declared is None else declared if given is None else {**declared, **given}


def _counting(pipeline: Pipeline) -> UsageLimits | None:
    """Limits that limit nothing, for a pipeline that asks what was spent."""
    return UsageLimits() if any(map(_asks_for_budget, walk_steps(pipeline))) else None


def _asks_for_budget(step: AnyStep) -> bool:
    if isinstance(step, Pipeline):
        return False
    return bool(step.asks_for_budget) or (isinstance(step, Step) and BUDGET in step.plan.named)


# --- settings -----------------------------------------------------------------------------------------------


def settings_of(given: Settings | Mapping[str, object] | None) -> Callable[[], Settings]:
    """What tells the settings of a `Flujo`; they are read and checked now, unless nothing is configured."""
    if given is None and not _is_configured():
        return default_settings
    from ._settings import resolve_settings  # the classes of all settings, and the reader of TOML

    settings = resolve_settings(given)
    return lambda: settings


def _is_configured() -> bool:
    return Path(CONFIG_FILE).is_file() or any(name.startswith(PREFIX) for name in os.environ)


# --- hooks --------------------------------------------------------------------------------------------------


def hooks_of(given: Iterable[Callable[..., object]] | Callable[..., object]) -> Callable[..., Hooks] | None:
    """What makes the hooks of one run (`run_id`, `host`, `report`, `redact`); `None` if there are none."""
    if not callable(given) and not isinstance(given, Iterable):
        raise DeclarationError(f"hooks must be a callable or a list of them, not {given!r}")
    listed = (given,) if callable(given) else tuple(given)
    if not listed:
        return None
    from ._run.hooks import Hooks, plan_hooks  # the types of payloads

    return functools.partial(Hooks, plan_hooks(listed))


def hook_reporter(telemetry: Telemetry | Silence) -> Callable[[str, HookPayload, BaseException], None]:
    """What tells telemetry of a hook that failed."""

    def report(name: str, payload: HookPayload, error: BaseException) -> None:
        if telemetry.enabled:
            telemetry.tell(
                "hook.failed",
                run_id=payload.run_id,
                path=getattr(payload, "path", ""),
                step_name=getattr(payload, "step_name", ""),
                at=trio.current_time(),
                hook=name,
                hook_kind=payload.kind,
                feedback=f"{type(error).__name__}: {message_of(error)}",
            )

    return report


# --- telemetry ----------------------------------------------------------------------------------------------


def telemetry_of(settings: Callable[[], Settings], pipeline: Pipeline, resources: object) -> Telemetry | Silence:
    """The telemetry of a `Flujo`. What its resources and deps hold is looked at now, since they may change later."""
    deps = [each.deps for each in walk_steps(pipeline) if isinstance(each, Step) and each.deps is not None]
    if resources is None and not deps and settings is default_settings:
        return Silence(os.environ)
    from .telemetry._sinks import open_telemetry  # the types of events, and the expressions of the redactor

    return open_telemetry(settings(), os.environ, [resources, *deps])


# --- durability ---------------------------------------------------------------------------------------------


def store_of(given: str | Store | None, pipeline: Pipeline, context_model: type | None) -> Store:
    """The store that was given or named, when the types it will have to read are known."""
    from ._durable.known_types import register_types_of  # what it takes to write values down
    from .stores._opening import open_store  # drivers

    store = open_store(given)
    register_types_of(pipeline, context_model)
    _refuse_deadlines(store, pipeline)
    return store


def beliefs_of(store: Store | None, pipeline: Pipeline) -> BeliefBook | None:
    """Where the selections of a pipeline keep what they learn; `None` if it has none."""
    selection = next((step for step in walk_steps(pipeline) if step.kind == "selection"), None)
    if selection is None:
        return None
    from ._run.beliefs import BeliefsInMemory, StoredBeliefs  # what only pipelines with selections need

    if store is not None and not hasattr(store, "beliefs"):
        raise DeclarationError(
            f"step {selection.name!r} selects by what it learns, but {type(store).__name__} cannot keep beliefs: it "
            "has no `beliefs` and `reward` (`flujo_actors.stores.Beliefs`)"
        )
    return BeliefsInMemory() if store is None else StoredBeliefs(store)


def _refuse_deadlines(store: Store, pipeline: Pipeline) -> None:
    """A store that others wrote may not know deadlines: say so before a run waits for ever."""
    if hasattr(store, "expire"):
        return
    for step in walk_steps(pipeline):
        if getattr(step, "deadline_s", None) is not None:
            raise DeclarationError(
                f"step {step.name!r} has a timeout_s, but {type(store).__name__} cannot keep deadlines: it has no "
                "`expire`, `next_due_s` and `defer` (`flujo_actors.stores.Deadlines`)"
            )


def stored_runs(
    store: Store, pipeline: Pipeline, settings: Settings, *, redact: Callable[[str], str], mode: ResumeMode
) -> Runs:
    """The runs that a store keeps."""
    from ._durable.stored_runs import StoredRuns  # records, and cattrs to write them

    return StoredRuns(store=store, pipeline=pipeline, settings=settings.durability, redact=redact, mode=mode)


def engine_of(given: object, store: Store | None) -> Engine | None:
    """The engine that was given or named."""
    if given is None:
        return None
    from ._fleet.opening import open_engine  # what only a fleet needs

    return open_engine(given, store)


def carry_of(carry: Iterable[object]) -> tuple[object, ...]:
    """The context variables that go with remote steps."""
    listed = tuple(carry)
    if not listed:
        return ()
    from ._fleet.carrying import checked_carry  # the same

    return checked_carry(listed)


def refuse_unreachable(pipeline: Pipeline, store: Store | None, engine: Engine | None) -> bool:
    """Whether steps run elsewhere; `DeclarationError` if workers of other machines could not reach their store."""
    remote = None if engine is None else next((step for step in walk_steps(pipeline) if _is_remote(step)), None)
    if remote is not None and not getattr(store, "between_machines", True):
        raise DeclarationError(
            f"step {remote.name!r} runs on {getattr(remote, 'runs_on', None)!r}, but its workers could not reach the "
            f"store, a {type(store).__name__}: pass store='postgresql://…', which all machines reach, or leave out "
            "`engine`, and all steps run in one process"
        )
    return remote is not None


def _is_remote(step: AnyStep) -> bool:
    return getattr(step, "runs_on", None) is not None


def office_of(
    flujo: object, runs: Runs, engine: Engine, settings: Settings, carry: tuple[ContextVar[object], ...]
) -> Office:
    """Who has the steps of a `Flujo` performed elsewhere, in the current trio run."""
    from ._fleet.offices import office_for  # the same

    return office_for(flujo, runs, engine, settings.fleet, carry)


def fleet_of(
    runs: Runs,
    engine: Engine | None,
    settings: Settings,
    drive: Any,
    *,
    make_run: Any,
    office: Callable[[], Office | None],
    carry: tuple[ContextVar[object], ...],
    telemetry: Telemetry | Silence,
) -> Fleet:
    """What hands in runs and plays those of others."""
    from ._durable.stored_runs import StoredRuns  # as above
    from ._fleet.offices import player_for
    from ._fleet.service import Fleet
    from ._fleet.submitting import Counter

    if not isinstance(runs, StoredRuns):
        raise DeclarationError(
            "submit() and worker() need a store, where whoever hands a run in and whoever plays it find it: pass "
            "`store` to Flujo, as in Flujo(pipeline, store='sqlite:///runs.db')"
        )
    counter = Counter(runs.store, engine)
    player = player_for(runs, settings, make_run=make_run, office=office, carry=carry)
    return Fleet(
        runs=runs,
        engine=engine,
        drive=drive,
        settings=settings.fleet,
        counter=counter,
        player=player,
        telemetry=telemetry,
    )


async def recovered(runs: Runs, finish: Finish, **options: Any) -> RecoveryReport:
    """What a pass over the runs that other processes left came to."""
    from ._durable.recovering import Recovery  # who recovers is about to load all of durability

    return await Recovery(runs=runs, finish=finish, **options).report()


async def opened_to_cancel(runs: Runs, store: Store | None, run_id: RunId, reason: str) -> OpenRun | None:
    """A run that goes no further; `None` if somebody works on it, who is asked to end it."""
    try:
        return await runs.reopen(run_id, wait=False, cancel=reason)
    except RunLeased:
        if store is None:
            raise
    from ._durable.cancelling import cancel  # what only those need who cancel a run elsewhere
    from ._durable.store_wait import call_store

    await call_store(lambda: cancel(store, run_id, reason))
    return None


def checked_mode(mode: ResumeMode) -> ResumeMode:
    """The mode, if it is one of the three."""
    from ._durable import changes  # what compares pipelines

    return changes.checked_mode(mode)


def checked_answer(answer: object, pause: Pause) -> Any:
    """The answer to a pause as its step takes it; `InvalidAnswer` if it does not."""
    if pause.question is not None and pause.question.kind == "approval":
        from ._durable.deferring import decision_on  # what only runs with approvals need

        return decision_on(pause.question, answer, step_name=pause.step_name)
    if pause.question is not None and pause.question.kind == "tool":
        from ._core.approvals import checked_tool_answer  # what only runs with such tools need

        return checked_tool_answer(answer, step_name=pause.step_name)
    if pause.input_schema is None:
        return answer
    from ._durable import answers  # pydantic

    return answers.checked_answer(answer, pause.input_schema, step_name=pause.step_name)


def puts_off(pause: Pause, answer: object) -> bool:
    """Whether a checked answer puts the decision off."""
    if pause.question is None:
        return False
    from ._durable.deferring import defers  # as above

    return defers(pause.question, answer)
