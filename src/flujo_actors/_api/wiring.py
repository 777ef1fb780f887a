"""Wiring of optional parts: settings, hooks, telemetry, stores, answers.

This module alone loads them, on demand: a pipeline of plain functions runs without building their classes, and without
cattrs, pydantic or a driver. Every import inside a function states its saving.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import trio

from .._bridge.host_loop import file_content
from .._core.default_settings import CONFIG_FILE, PREFIX, default_settings
from .._core.error_info import message_of
from .._core.usage import UsageLimits
from .._dsl.call_plan import BUDGET
from .._dsl.declaration_tree import walk_steps
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.step_declaration import Step
from .._runtime.run.step_results import SCHEDULED_AT
from ..errors import DeclarationError, RunLeased
from ..telemetry._null_telemetry import NullTelemetry

if TYPE_CHECKING:
    from contextvars import ContextVar

    from pydantic_ai.conversation_store import ConversationStore

    from .._core.failure_info import HookPayload
    from .._core.outcomes import RunId, Undone
    from .._core.policies.rate_limits import RateLimit
    from .._core.records.records import RecoveryReport
    from .._core.settings_model import Settings
    from .._core.step_paths import StepPath
    from .._dsl.chunk_filter import Chunks, ShownChunks
    from .._dsl.declared_step import Declared
    from .._durable.claims import BackgroundRecovery, Finish, Pass
    from .._durable.durable_run_registry import DurableRunRegistry
    from .._durable.journal import Pause
    from .._durable.operations.bulk_actions import RunFilter
    from .._durable.operations.run_check import RunCheck
    from .._durable.operations.webhooks import Webhooks
    from .._durable.pipeline_diff import ResumeMode
    from .._durable.run_registry import OpenRun, RunRegistry
    from .._fleet.budget_ledger import WindowBudgets
    from .._fleet.engine_port import Engine
    from .._fleet.fleet_service import Fleet
    from .._fleet.run_queue import Counter, IfExists, SubmitOnce, WhenBusy
    from .._fleet.schedules import InputOf
    from .._runtime.context.copies import FirstContext
    from .._runtime.run.hooks import Hooks
    from .._runtime.run.rate_gate import RateLimits
    from .._runtime.run.retrieval_cache import Searches, StepCache
    from .._runtime.run.run_environment import RemoteSteps
    from .._runtime.run.selection_statistics import SelectionStatistics
    from ..stores._store_port import Store
    from ..telemetry._sinks import Telemetry

# --- steps --------------------------------------------------------------------------------------------------
# A module of the runtime enters its functions in the tables of `_runtime.tree.step_supervisor` when it is loaded.

_TREE = ".._runtime.tree"
_LIMITS = (f"{_TREE}.attempt_loop", f"{_TREE}.usage_limits")


def load_for_steps(pipeline: Pipeline) -> None:
    """Load the steps' modules before their first attempt's clock starts."""
    _load({module for step in walk_steps(pipeline) for module in _needed_by(step)})
    _derive(pipeline)


def _derive(pipeline: Pipeline) -> None:
    """Derive facts of the declaration once, before the first run needs them."""
    _ = pipeline.scope_keywords, pipeline.title
    for step in walk_steps(pipeline):
        _ = step.named_steps if isinstance(step, Pipeline) else (step.bare, step.may_read_again, step.shows_context)


def load_for_attempts() -> None:
    """Load the attempt loop of a resumed or stopping run."""
    _load([f"{_TREE}.attempt_loop"])


def _load(modules: Iterable[str]) -> None:
    for module in modules:
        importlib.import_module(module, __package__)


def handles_failures(pipeline: Pipeline) -> bool:
    """Return whether the pipeline has failure handlers or compensations."""
    return any(step.on_failure or step.compensate is not None for step in walk_steps(pipeline))


def _needed_by(step: AnyStep) -> Iterator[str]:
    if step.on_failure or step.compensate is not None:
        yield f"{_TREE}.pipeline_failure"
        yield f"{_TREE}.composites"  # a failed compensation may pause
        yield f"{_TREE}.attempt_loop"
    if step.usage_limits is not None:
        yield from _LIMITS
    if _is_remote(step):
        yield f"{_TREE}.attempt_loop"
    if isinstance(step, Step) and (step.plan.shape == "stream" or step.plan.stream is not None):
        yield ".._runtime.calls.agent_call"
    if isinstance(step, Pipeline) or step.road == "call":
        return
    yield f"{_TREE}.attempt_loop"
    if step.weighs:
        yield f"{_TREE}.confidence_check"
    yield from _needed_by_agent(step) if isinstance(step, Step) else _needed_by_kind(step)


def _needed_by_kind(step: Declared) -> Iterator[str]:
    yield f"{_TREE}.composites"
    if step.kind == "selection":
        yield f"{_TREE}.agent_selection"
    if step.kind == "approval":
        yield f"{_TREE}.approval_road"
    if step.kind in ("sleep", "wait_for"):
        yield f"{_TREE}.wait_road"
    if getattr(step, "guard", None) is not None or getattr(step, "keep_history", None) is not None:
        yield f"{_TREE}.loop_guard"


def _needed_by_agent(step: Step) -> Iterator[str]:
    if step.context_sources is not None:
        yield ".._runtime.calls.context_assembly"
    if step.processing.wanted is not None:
        yield f"{_TREE}.degraded_input"
    if step.plan.shape == "model":
        yield ".._runtime.calls.model_call"
        if step.conversation is not None:
            yield ".._runtime.calls.stored_conversations"
        if step.resumable is not None:
            yield ".._runtime.calls.conversations"
    elif step.processing.wanted is not None:
        yield ".._runtime.calls.structured_call"


def chunks_of(pipeline: Pipeline, chunks: Chunks) -> ShownChunks | None:
    """Return the selection of shown chunks; `None` for all."""
    if chunks is True:
        return None
    from .._dsl.chunk_filter import shown_chunks  # needed only by readers with options

    return shown_chunks(pipeline, chunks)


def compensated_before(opened: OpenRun, pipeline: Pipeline) -> dict[StepPath, Undone]:
    """Return the steps compensated by earlier sessions, in order."""
    if not opened.resumed:
        return {}
    from .._durable.compensation_records import compensated_in

    return compensated_in(opened.journal, pipeline)


def searches_of(
    pipeline: Pipeline, retrievers: Mapping[Any, Any] | None, context_model: type | None
) -> Callable[[], Searches] | None:
    """Return a factory of a run's searches; refuse impossible ones."""
    if retrievers is not None and not isinstance(retrievers, Mapping):
        raise DeclarationError(f"retrievers must be a dict of retrievers by collection, not {retrievers!r:.100}")
    steps = (step for step in walk_steps(pipeline) if isinstance(step, Step))
    if not retrievers and not any(step.context_sources is not None for step in steps):
        return None
    from .._runtime.run.retrieval_cache import Searches, planned_searches

    return functools.partial(Searches, planned_searches(pipeline, retrievers, context_model))


def refuse_without_store(pipeline: Pipeline) -> None:
    """Refuse transactions and event waits without a store."""
    for each in walk_steps(pipeline):
        if each.kind == "wait_for":
            raise DeclarationError(f"step {each.name!r} waits for an event, and events need a store")
        if getattr(each, "conversation", None) is not None:
            raise DeclarationError(f"step {each.name!r} has a conversation, and conversations need a store")
        if isinstance(each, Step) and "transaction" in each.plan.required:
            raise DeclarationError(
                f"step {each.name!r} asks for a `transaction`, but there is no store to give one: pass `store` to Flujo"
            )


def conversations(store: str | Store) -> ConversationStore:
    """Return a store of conversations for pydantic-ai's agents, in this store.

    Args:
        store: a store or its URL.
    """
    from .._runtime.calls.stored_conversations import (  # pydantic-ai 2.66, and older ones are allowed
        StoredConversations,
        rows_of,
    )
    from ..stores._store_factory import open_store

    return StoredConversations(rows_of(open_store(store)))


# --- limits -------------------------------------------------------------------------------------------------


def limits_of(given: UsageLimits | Sequence[UsageLimits] | None, pipeline: Pipeline) -> UsageLimits | None:
    """Return the limits of one run: the `Flujo`'s, else its pipeline's."""
    declared = _declared_limits(given, pipeline)
    own = [each for each in declared if each.window is None]
    if len(own) > 1:
        raise DeclarationError("usage_limits: at most one UsageLimits(…) can have no window")
    limits = own[0] if own else UsageLimits() if declared else _counting(pipeline)
    if limits is not None:
        _load(_LIMITS)
    return limits


def _declared_limits(given: UsageLimits | Sequence[UsageLimits] | None, pipeline: Pipeline) -> list[UsageLimits]:
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    found: list[object] = list(given) if several else [given]  # type: ignore[arg-type]
    if given is None or (several and not found):
        found = [] if pipeline.usage_limits is None else [pipeline.usage_limits]
    for each in found:
        if not isinstance(each, UsageLimits):
            raise DeclarationError(f"usage_limits must be UsageLimits(…), not {each!r}")
    return [each for each in found if isinstance(each, UsageLimits)]


def windows_of(
    given: UsageLimits | Sequence[UsageLimits] | None, pipeline: Pipeline, store: Store | None
) -> WindowBudgets | None:
    """Return the window budgets of a `Flujo`'s runs, if any."""
    for step in walk_steps(pipeline):
        if step is not pipeline and step.usage_limits is not None and step.usage_limits.window is not None:
            raise DeclarationError(f"step {step.name!r}: limits with a window hold for whole runs: pass them to Flujo")
    windows = [each for each in _declared_limits(given, pipeline) if each.window is not None]
    if not windows:
        return None
    if any(each.when_reached == "wait" for each in windows):
        _load([f"{_TREE}.wait_road"])
    from .._fleet.budget_ledger import window_budgets  # only for limits with a window

    return window_budgets(store, windows, pipeline.title)


def check_context(model: type | None) -> None:
    """Refuse a `context_model` whose fields cannot be inspected."""
    if model is not None:
        from .._runtime.context.merge import check_context_model  # only for contexts with a model

        check_context_model(model)


def initial_data(pipeline: Pipeline, given: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """Return the initial context data: the pipeline's, overridden by the user's."""
    declared = pipeline.initial_context_data
    if given is not None and not isinstance(given, Mapping):
        raise DeclarationError(f"initial_context_data must be a dict, not {given!r:.100}")
    return given if declared is None else declared if given is None else {**declared, **given}


def _counting(pipeline: Pipeline) -> UsageLimits | None:
    """Return limits without a bound, for a pipeline that reads its spending."""
    return UsageLimits() if any(map(_asks_for_budget, walk_steps(pipeline))) else None


def _asks_for_budget(step: AnyStep) -> bool:
    if isinstance(step, Pipeline):
        return False
    return bool(step.budget_functions) or (isinstance(step, Step) and BUDGET in step.plan.named)


# --- settings -----------------------------------------------------------------------------------------------


def settings_of(given: Settings | Mapping[str, object] | None) -> Callable[[], Settings]:
    """Return a factory of the settings; configured ones are validated now."""
    if given is None and not _is_configured():
        return default_settings
    from .settings_loader import resolve_settings  # the classes of all settings, and the reader of TOML

    settings = resolve_settings(given)
    return lambda: settings


# Looked up before any loop runs, as far as possible; an error of the file is raised where its settings are needed.
with contextlib.suppress(OSError):
    file_content(CONFIG_FILE)


def _is_configured() -> bool:
    return file_content(CONFIG_FILE) is not None or any(name.startswith(PREFIX) for name in os.environ)


# --- hooks --------------------------------------------------------------------------------------------------


def hooks_of(given: Iterable[Callable[..., object]] | Callable[..., object]) -> Callable[..., Hooks] | None:
    """Return a factory of a run's hooks, or None.

    It takes `run_id`, `host`, `report` and `redact`.
    """
    if not callable(given) and (not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping)):
        raise DeclarationError(f"hooks must be a callable or a list of them, not {given!r}")
    listed = (given,) if callable(given) else tuple(given)
    if not listed:
        return None
    from .._runtime.run.hooks import Hooks, plan_hooks  # the types of payloads

    return functools.partial(Hooks, plan_hooks(listed))


def hook_reporter(telemetry: Telemetry | NullTelemetry) -> Callable[[str, HookPayload, BaseException], None]:
    """Return a callback that reports a failed hook to telemetry."""

    def report(name: str, payload: HookPayload, error: BaseException) -> None:
        if telemetry.enabled:
            telemetry.report(
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


def telemetry_of(
    settings: Callable[[], Settings], pipeline: Pipeline | None, resources: object
) -> Telemetry | NullTelemetry:
    """Return telemetry that knows the secrets of resources and deps."""
    steps = [] if pipeline is None else [each for each in walk_steps(pipeline) if isinstance(each, Step)]
    deps = [each.deps for each in steps if each.deps is not None]
    if resources is None and not deps and settings is default_settings:
        return NullTelemetry(os.environ)
    from ..telemetry._sinks import open_telemetry  # the types of events, and the expressions of the redactor

    return open_telemetry(settings(), os.environ, [resources, *deps])


def evaluations() -> Any:
    """Return the module of evaluations, which needs pydantic-ai."""
    return importlib.import_module(".evaluation.evaluation_run", __package__)


# --- durability ---------------------------------------------------------------------------------------------


def store_of(
    given: str | Store | None,
    pipeline: Pipeline,
    context_model: type | None,
    settings: Callable[[], Settings] | None = None,
) -> Store:
    """Return the given or named store, after registering the pipeline's types."""
    from .._durable import durable_run_registry as _loaded_now  # noqa: F401  (it reads /proc, which a loop must not wait for)
    from .._durable.run_admission import register_types_of  # needed to store values
    from ..stores._store_factory import open_store  # drivers

    never = isinstance(given, str) and settings is not None and settings().store_migrate == "never"
    store = open_store(given, migrate="never" if never else "auto")
    register_types_of(pipeline, context_model)
    _refuse_deadlines(store, pipeline)
    _refuse_waits(store, pipeline)
    _refuse_options(store, pipeline)
    return store


def statistics_of(store: Store | None, pipeline: Pipeline) -> SelectionStatistics | None:
    """Return the selection statistics of a pipeline, or None."""
    selection = next((step for step in walk_steps(pipeline) if step.kind == "selection"), None)
    if selection is None:
        return None
    from .._runtime.run.selection_statistics import (  # needed only by pipelines with selections
        MemoryStatistics,
        StoredStatistics,
    )

    if store is not None and not hasattr(store, "beliefs"):
        raise DeclarationError(
            f"step {selection.name!r} learns from outcomes, but {type(store).__name__} cannot keep beliefs: it "
            "has no `beliefs` and `reward` (`flujo_actors.stores.Beliefs`)"
        )
    return MemoryStatistics() if store is None else StoredStatistics(store)


def _refuse_waits(store: Store, pipeline: Pipeline) -> None:
    """Refuse waits on a custom store without them."""
    needed = {"sleep": ("due", "Step.sleep"), "wait_for": ("send", "Step.wait_for")}
    for step in walk_steps(pipeline):
        method, subject = needed.get(step.kind, ("", ""))
        if method and not hasattr(store, method):
            raise DeclarationError(f"store {type(store).__name__} has no {method!r}: {subject} needs it")


def cache_of(store: Store | None, pipeline: Pipeline) -> StepCache | None:
    """Return the cache of steps, or None without any."""
    cached = next((step for step in walk_steps(pipeline) if getattr(step, "cache", None) is not None), None)
    if cached is None or store is None:
        return None
    for method in ("cached", "clear_cache"):
        if not hasattr(store, method):
            raise DeclarationError(f"store {type(store).__name__} has no {method!r}: Cache needs it")
    from .._runtime.run.retrieval_cache import StepCache as Cache  # needed only by cached steps

    return Cache(store, pipeline.title)


def rate_limits_of(
    store: Store | None,
    pipeline: Pipeline,
    given: Mapping[str, RateLimit] | None,
    configured: Callable[[], Settings],
) -> RateLimits | None:
    """Return the rate limits of requests, or None without any."""
    by_setting = {} if configured is default_settings else configured().rate_limits
    agents = [step for step in walk_steps(pipeline) if isinstance(step, Step)]
    own = any(step.rate_limit or getattr(step.agent, "rate_limits", ()) for step in agents)
    if not (given or by_setting or own):
        return None
    from .._runtime.run.rate_gate import RateLimits as Limits  # needed only by limited requests

    if store is not None:
        for method in ("reserve", "settle", "block", "slots", "rates"):
            if not hasattr(store, method):
                raise DeclarationError(f"store {type(store).__name__} has no {method!r}: RateLimit needs it")
    settings = configured()
    by_model = {**by_setting, **_checked_rate_limits(given or {})}
    return Limits(store, by_model, settings.fleet.provider_retries, settings.usage.first_call_tokens)


def _checked_rate_limits(given: Mapping[str, RateLimit]) -> Mapping[str, RateLimit]:
    from .._core.policies.rate_limits import RateLimit as Limit  # the same

    if not isinstance(given, Mapping) or not all(isinstance(each, Limit) for each in given.values()):
        raise DeclarationError(f"rate_limits must be a dict of RateLimit(…) by `provider:model`, not {given!r:.200}")
    return given


def _refuse_deadlines(store: Store, pipeline: Pipeline) -> None:
    """Refuse timeouts on a custom store without deadlines."""
    if hasattr(store, "expire"):
        return
    for step in walk_steps(pipeline):
        if getattr(step, "deadline_s", None) is not None:
            raise DeclarationError(
                f"step {step.name!r} has a timeout_s, but {type(store).__name__} cannot keep deadlines: it has no "
                "`expire`, `next_due_s` and `defer` (`flujo_actors.stores.Deadlines`)"
            )


def _refuse_options(store: Store, pipeline: Pipeline) -> None:
    """Refuse options of steps on a custom store that lacks their part."""
    needed = {"keep_history": ("compacted",), "conversation": ("conversation_rows", "conversation_sql")}
    for option, methods in needed.items():
        if any(hasattr(store, method) for method in methods):
            continue
        if any(getattr(step, option, None) is not None for step in walk_steps(pipeline)):
            raise DeclarationError(f"store {type(store).__name__} has no {methods[0]!r}: {option} needs it")


def stored_runs(
    store: Store,
    pipeline: Pipeline,
    settings: Settings,
    *,
    redact: Callable[[str], str],
    mode: ResumeMode,
    webhooks: Webhooks | None = None,
) -> RunRegistry:
    """Return the registry of a store's runs."""
    from .._durable.durable_run_registry import DurableRunRegistry  # records, and cattrs to write them

    return DurableRunRegistry(
        store=store, pipeline=pipeline, settings=settings.durability, redact=redact, mode=mode, webhooks=webhooks
    )


def webhooks_of(given: object, store: Store | None) -> Webhooks | None:
    """Return the webhooks of a pipeline, or raise `DeclarationError`."""
    if given == () or given == []:
        return None
    from .._durable.operations.webhooks import checked_webhooks  # needed only with webhooks

    return checked_webhooks(given, store)


def engine_of(given: object, store: Store | None) -> Engine | None:
    """Return the engine that was given or named."""
    if given is None:
        return None
    from .._fleet.engine_port import open_engine

    return open_engine(given, store)


def carry_of(carry: Iterable[object]) -> tuple[object, ...]:
    """Return the context variables that go with remote steps."""
    if not isinstance(carry, Iterable) or isinstance(carry, str | bytes | Mapping):
        raise DeclarationError(f"carry must be a list of ContextVar(…), not {carry!r:.100}")
    listed = tuple(carry)
    if not listed:
        return (SCHEDULED_AT,)
    from .._fleet.remote_request import checked_carry

    return (*checked_carry(listed), SCHEDULED_AT)


def refuse_unreachable(pipeline: Pipeline, store: Store | None, engine: Engine | None) -> bool:
    """Return whether steps are remote; refuse an unreachable store."""
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


def remote_steps_of(
    flujo: object, runs: RunRegistry, engine: Engine, settings: Settings, carry: tuple[ContextVar[object], ...]
) -> RemoteSteps:
    """Return the dispatcher of remote steps in this trio run."""
    from .._fleet.fleet_service import dispatcher_for  # the same

    return dispatcher_for(flujo, runs, engine, settings.fleet, carry)


def fleet_of(
    runs: RunRegistry,
    engine: Engine | None,
    settings: Settings,
    drive: Any,
    *,
    make_run: Any,
    remote: Callable[[], RemoteSteps | None],
    carry: tuple[ContextVar[object], ...],
    telemetry: Telemetry | NullTelemetry,
    first_context: FirstContext,
    schedules: Mapping[str, InputOf | None],
    counter: Counter | None = None,
) -> Fleet:
    """Return the fleet service that submits and executes runs.

    `counter` is that of an earlier call: it knows that the engine is prepared, which costs a connection.
    """
    from .._durable.durable_run_registry import DurableRunRegistry  # as above
    from .._fleet.fleet_service import Fleet, player_for
    from .._fleet.run_queue import Counter as RunCounter

    if not isinstance(runs, DurableRunRegistry):
        raise DeclarationError(
            "submit() and worker() need a store, shared by submitters and workers: pass "
            "`store` to Flujo, as in Flujo(pipeline, store='sqlite:///runs.db')"
        )
    player = player_for(runs, settings, make_run=make_run, remote=remote, carry=carry)
    return Fleet(
        runs=runs,
        engine=engine,
        drive=drive,
        settings=settings.fleet,
        counter=counter or RunCounter(runs.store, engine),
        player=player,
        retention=settings.retention,
        telemetry=telemetry,
        first_context=first_context,
        schedules=schedules,
    )


def checked_runs(runs: RunRegistry, where: RunFilter | None, mode: ResumeMode) -> Sequence[RunCheck]:
    """Return whether a pipeline can resume its open runs."""
    from .._durable.operations.run_check import check_runs  # needed before deploys only

    if not hasattr(runs, "store"):
        raise DeclarationError("check_runs needs a store: Flujo(…, store='sqlite:///runs.db')")
    return check_runs(cast("DurableRunRegistry", runs), where, mode)


def once_of(run_id: str | None, if_exists: IfExists, singleton: str | None, when_busy: WhenBusy) -> SubmitOnce | None:
    """Return the handling of used ids and keys; `None` by default."""
    if (if_exists, singleton, when_busy) == ("raise", None, "return"):
        return None
    from .._fleet.run_queue import SubmitOnce as Once  # needed only by a fleet

    once = Once(if_exists=if_exists, singleton=singleton, when_busy=when_busy)
    once.check(run_id)
    return once


async def recovered(runs: RunRegistry, finish: Finish, **options: Any) -> RecoveryReport:
    """Return the report of one recovery pass."""
    from .._durable.claims import Recovery  # a recovery loads all of durability anyway

    return await Recovery(runs=runs, finish=finish, **options).report()


def background_recovery(recover: Pass, *, every_s: float) -> BackgroundRecovery:
    """Return a block that recovers runs repeatedly."""
    from .._durable.claims import BackgroundRecovery as Block  # the same

    return Block(recover, every_s=every_s)


async def opened_to_cancel(runs: RunRegistry, store: Store | None, run_id: RunId, reason: str) -> OpenRun | None:
    """Open a run to compensate it; `None` if its owner does."""
    try:
        return await runs.reopen(run_id, wait=False, cancel=reason)
    except RunLeased:
        if store is None:
            raise
    from .._durable.cancel_requests import cancel  # needed only to cancel a run of another process
    from .._durable.store_executor import call_store

    await call_store(lambda: cancel(store, run_id, reason))
    return None


async def retry_stored(
    store: Store | None, run_id: RunId, *, from_start: bool, mode: ResumeMode, reason: str | None
) -> None:
    """Record a run's retry in its store; raise `DeclarationError` without one."""
    if store is None:
        raise DeclarationError(f"run {run_id!r} cannot be retried: Flujo has no store; pass `store` to Flujo")
    from .._durable.forks import retry
    from .._durable.store_executor import call_store

    await call_store(lambda: retry(store, run_id, from_start=from_start, mode=mode, reason=reason))


def checked_mode(mode: ResumeMode) -> ResumeMode:
    """Return the mode, if it is one of the three."""
    from .._durable import pipeline_diff  # compares pipelines

    return pipeline_diff.checked_mode(mode)


def checked_answer(answer: object, pause: Pause) -> Any:
    """Return the answer as its step takes it, or raise `InvalidAnswer`."""
    if pause.question is None and pause.input_schema is None and not isinstance(answer, Mapping):
        return answer
    from .._durable.pause_lookup import accepted  # pydantic

    return accepted(answer, pause.question, pause.path, pause.input_schema, step_name=pause.step_name)


def puts_off(pause: Pause, answer: object) -> bool:
    """Return whether a checked answer puts the decision off."""
    if pause.question is None:
        return False
    from .._durable.pause_lookup import defers  # as above

    return defers(pause.question, answer)
