"""Type registry: models known to this process by name.

Rules:

1. A value is stored under the name of its class, and read by a process that knows a class of that name. Nothing is
   imported to find one.
2. Declared classes are known: registered ones, and those in annotations of a pipeline. A fresh
   process that declares the same pipeline knows the same.
3. A run may also store any model at the top of a module (or inside a class there): the same
   program has loaded the same modules. Only loaded modules are searched, and no code is run for it.
4. Stored values must be readable by a fresh process: any other class is refused when it is written.
5. Data of other origin may be of a declared class, or of one that this process has written before.
6. `__main__` is known by the name under which it would be imported.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Literal, ParamSpec, TypeAlias, TypeVar

from ..errors import NotSerializable

P = ParamSpec("P")
T = TypeVar("T")

Reader: TypeAlias = Literal["this process", "a fresh process", "anybody"]
"""Intended reader of written data; `anybody` takes unknown classes as plain data."""

_declared: dict[str, type] = {}
_written: dict[str, type] = {}
_findable: dict[str, type] = {}
"""Cache of written classes that their module provides."""
_public: dict[type, str] = {}
"""Library classes stored under their public name."""
_reader: ContextVar[Reader] = ContextVar("reader of values", default="this process")


def read_by(reader: Reader) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function that writes values for, or reads them as, `reader`."""

    def decorated(fn: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(fn)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            before = _reader.set(reader)
            try:
                return fn(*args, **kwargs)
            finally:
                _reader.reset(before)

        return called

    return decorated


_MAIN = ("__main__", "__mp_main__")
"""Names of a program's own module, and in processes spawned by `multiprocessing`."""


def type_name(cls: type) -> str:
    """Return the name under which values of `cls` are stored."""
    return _public.get(cls) or stored_name(f"{imported_as(cls.__module__)}.{cls.__qualname__}")


def imported_as(module: str) -> str:
    """Return the importable name of a module (rule 6)."""
    if module not in _MAIN:
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        name: str = spec.name
        return name
    return module if file is None else _name_in_package(file)


@functools.cache
def _name_in_package(file: str) -> str:
    """Return the name of a script, with any package."""
    path = Path(file).resolve()
    packages = itertools.takewhile(lambda folder: (folder / "__init__.py").is_file(), path.parents)
    return ".".join((*reversed([folder.name for folder in packages]), path.stem))


# Looked up and cached when the module is loaded: a loop must not wait for the file system.
imported_as("__main__")


def register_type(cls: type[T]) -> type[T]:
    """Register `cls` for reading stored values. Usable as a decorator.

    Example:
        ```python
        @register_type
        @attrs.frozen
        class Invoice:
            number: int

        assert from_json(to_json({"invoice": Invoice(7)}), object) == {"invoice": Invoice(7)}
        ```
    """
    _declared[type_name(cls)] = cls
    return cls


def register_public_type(cls: type[T]) -> type[T]:
    """Register a library class under its public and defining names."""
    register_type(cls)
    _public[cls] = f"flujo_actors.{cls.__qualname__}"
    return register_type(cls)


def register_former_name(name: str, cls: type) -> None:
    """Register a former stored name of `cls`."""
    _declared[name] = cls


def name_to_write(cls: type, is_model: Callable[[type], bool]) -> str:
    """Return a model's stored name; raise `NotSerializable` if unreadable."""
    name = type_name(cls)
    if _declared.get(name) is cls or _findable.get(name) is cls:
        return name
    if _reader.get() == "this process":
        _written[name] = cls
        return name
    if loaded_model(name, is_model) is not cls:
        raise NotSerializable(
            f"no other process could read a {name}: it is not at the top of a module, where it could be found; "
            "move it there, annotate the step that returns it with it, or call register_type(cls)"
        )
    _findable[name] = cls
    return name


def known_type(name: object, is_model: Callable[[type], bool]) -> type | None:
    """Return the named model, `None` for plain data, or raise."""
    reader = _reader.get()
    found = _known(_as_imported(name), is_model, reader) if isinstance(name, str) else None
    if found is None and reader != "anybody":
        raise NotSerializable(
            f"stored value is a {name!r}, which this process does not know: import the module that defines it, "
            "annotate the step that returns it, or call register_type(cls)"
        )
    return found


def _known(name: str, is_model: Callable[[type], bool], reader: Reader) -> type | None:
    if name in _declared:
        return _declared[name]
    found = _written.get(name) if reader != "a fresh process" else None
    return found if found or reader == "this process" else loaded_model(name, is_model)


def _as_imported(name: str) -> str:
    """Return the importable form of a name stored with `__main__`."""
    module, _, rest = name.partition(".")
    return f"{imported_as(module)}.{rest}" if module == "__main__" else name


# --- loaded modules -----------------------------------------------------------------------------------------


def loaded_model(name: str, is_model: Callable[[type], bool]) -> type | None:
    """Return the named model of a loaded module (rule 3), or None."""
    parts = _mapped(name, _DEFINED_AS).split(".")
    for place in range(len(parts) - 1, 0, -1):
        module = _loaded_module(".".join(parts[:place]))
        if module is not None:
            found = _at(module, parts[place:])
            return found if found is not None and type_name(found) == name and is_model(found) else None
    return None


def _loaded_module(name: str) -> ModuleType | None:
    module = sys.modules.get("__main__" if name == imported_as("__main__") else name)
    return module if isinstance(module, ModuleType) else None


def _at(module: ModuleType, way: list[str]) -> type | None:
    """Return the class at a path, without `getattr`, which runs code."""
    place: object = module
    for part in way:
        place = vars(place).get(part)
        if not isinstance(place, type):
            return None
    return place if isinstance(place, type) else None


# --- Stored names -------------------------------------------------------------------------------------------------
# Stored values and fingerprints name classes and functions of this package. A name that was stored once is stored
# forever: add a line when one of them moves.

_PACKAGE = "flujo_actors."

_STORED_AS: Mapping[str, str] = {
    "_agents.agent_factory.make_agent_async": "_agents.factory.make_agent_async",
    "_agents.retrieval.memory_retriever.InMemoryRetriever": "_retrieval.memory.InMemoryRetriever",
    "_agents.retrieval.postgres_retriever.PostgresRetriever": "_retrieval.postgres.PostgresRetriever",
    "_agents.retrieval.retriever_port.Retriever": "_retrieval.port.Retriever",
    "_agents.retrieval.sqlite_retriever.SqliteRetriever": "_retrieval.sqlite.SqliteRetriever",
    "_api.async_client.AsyncRunClient": "_async_client.AsyncRunClient",
    "_api.blueprints.dump_blueprint": "_blueprint_names.dump_blueprint",
    "_api.blueprints.lint": "_blueprint_names.lint",
    "_api.blueprints.load_blueprint": "_blueprint_names.load_blueprint",
    "_api.client.RunClient": "_client.RunClient",
    "_api.flujo.Flujo": "_runner.Flujo",
    "_api.handle.RunHandle": "_handle.RunHandle",
    "_api.run_info.QueueInfo": "_run_info.QueueInfo",
    "_api.run_info.RunInfo": "_run_info.RunInfo",
    "_api.run_info.WorkerInfo": "_run_info.WorkerInfo",
    "_api.settings_loader.load_settings": "_settings.load_settings",
    "_blueprint.compiler.EnsureObject": "_blueprint.compiling.EnsureObject",
    "_blueprint.compiler.OutputTemplate": "_blueprint.processors.OutputTemplate",
    "_blueprint.compiler.Reduce": "_blueprint.processors.Reduce",
    "_blueprint.compiler.SinkTo": "_blueprint.processors.SinkTo",
    "_blueprint.parser.findings.Finding": "_blueprint.findings.Finding",
    "_blueprint.templates.templates.Exit": "_blueprint.templates.Exit",
    "_blueprint.templates.templates.Input": "_blueprint.templates.Input",
    "_blueprint.templates.templates.Items": "_blueprint.templates.Items",
    "_blueprint.templates.templates.MessageTemplate": "_blueprint.templates.Message",
    "_blueprint.templates.templates.TemplateChoice": "_blueprint.templates.Choice",
    "_core.usage.Budget": "_core.budgets.Budget",
    "_core.failure_info.CompensatedToolCall": "_core.failures.ToolCall",
    "_core.failure_info.Recovered": "_core.failures.Recovered",
    "_core.failure_info.StepFailure": "_core.failures.StepFailure",
    "_core.failure_info.Undo": "_core.failures.Undo",
    "_core.outcomes.TracebackFrame": "_core.outcomes.Frame",
    "_core.policies.approval_policy.Decision": "_core.approvals.Decision",
    "_core.policies.approval_policy.Option": "_core.approvals.Option",
    "_core.policies.loop_detection.LoopGuard": "_core.loops.LoopGuard",
    "_core.policies.selection.Votes": "_core.votes.Votes",
    "_core.policies.selection.Belief": "_core.selection.Belief",
    "_core.policies.selection.ByBudget": "_core.by_budget.ByBudget",
    "_core.policies.selection.Evidence": "_core.selection.Evidence",
    "_core.policies.selection.Selection": "_core.selection.Choice",
    "_core.policies.selection.ThompsonSampling": "_core.selection.ThompsonSampling",
    "_core.policies.shared_budgets.BudgetClaim": "_core.shared_budgets.BudgetClaim",
    "_core.policies.shared_budgets.BudgetShare": "_core.shared_budgets.BudgetShare",
    "_core.policies.shared_budgets.BudgetSnapshot": "_core.shared_budgets.BudgetTold",
    "_core.records.assembled.AssembledContext": "_core.assembled.AssembledContext",
    "_core.records.assembled.Dropped": "_core.assembled.Dropped",
    "_core.records.assembled.LiteralSegment": "_core.assembled.LiteralSegment",
    "_core.records.assembled.RetrievalResult": "_core.assembled.RetrievalResult",
    "_core.records.assembled.RetrievalSegment": "_core.assembled.RetrievalSegment",
    "_core.records.assembled.Retrieved": "_core.assembled.Retrieved",
    "_core.records.assembled.Skipped": "_core.assembled.Skipped",
    "_core.records.assembled.StateSegment": "_core.assembled.StateSegment",
    "_core.records.json_codec.from_json": "_core.json_codec.from_json",
    "_core.records.records.AbandonedRun": "_core.recovery.LeftRun",
    "_core.records.records.Admission": "_core.records.Admission",
    "_core.records.records.Append": "_core.records.Append",
    "_core.records.records.CancelRequest": "_core.records.CancelRequest",
    "_core.records.records.Lease": "_core.records.Lease",
    "_core.records.records.OpenPause": "_core.records.OpenPause",
    "_core.records.records.Record": "_core.records.Record",
    "_core.records.records.RecoveryReport": "_core.recovery.RecoveryReport",
    "_core.records.records.RunQuery": "_core.records.RunQuery",
    "_core.records.records.StoredRun": "_core.records.StoredRun",
    "_core.records.run_state.Projector": "_core.run_state.Projector",
    "_core.settings_model.Price": "_core.settings.Price",
    "_core.settings_model.Settings": "_core.settings.Settings",
    "_core.telemetry_events.AgentInput": "_core.events.AgentInput",
    "_core.telemetry_events.AgentResponse": "_core.events.AgentResponse",
    "_core.telemetry_events.AgentSystem": "_core.events.AgentSystem",
    "_core.telemetry_events.AgentUsage": "_core.events.AgentUsage",
    "_core.telemetry_events.ArosFallbackStage": "_core.events.ArosFallbackStage",
    "_core.telemetry_events.ArosRepairFailed": "_core.events.ArosRepairFailed",
    "_core.telemetry_events.ArosRepairStarted": "_core.events.ArosRepairStarted",
    "_core.telemetry_events.ArosRepairSuccess": "_core.events.ArosRepairSuccess",
    "_core.telemetry_events.AttemptEnded": "_core.events.AttemptEnded",
    "_core.telemetry_events.AttemptStarted": "_core.events.AttemptStarted",
    "_core.telemetry_events.HandlerFailed": "_core.events.HandlerFailed",
    "_core.telemetry_events.HookFailed": "_core.events.HookFailed",
    "_core.telemetry_events.ModelEnded": "_core.events.ModelEnded",
    "_core.telemetry_events.ModelStarted": "_core.events.ModelStarted",
    "_core.telemetry_events.RunEndedEvent": "_core.events.RunEnded",
    "_core.telemetry_events.RunPausedEvent": "_core.events.RunPaused",
    "_core.telemetry_events.RunResumed": "_core.events.RunResumed",
    "_core.telemetry_events.RunStarted": "_core.events.RunStarted",
    "_core.telemetry_events.RunTaken": "_core.events.RunTaken",
    "_core.telemetry_events.StepEnded": "_core.events.StepEnded",
    "_core.telemetry_events.StepFallback": "_core.events.StepFallback",
    "_core.telemetry_events.StepRecovered": "_core.events.StepRecovered",
    "_core.telemetry_events.StepRetry": "_core.events.StepRetry",
    "_core.telemetry_events.StepStarted": "_core.events.StepStarted",
    "_core.telemetry_events.StepUnstoppable": "_core.events.StepUnstoppable",
    "_core.telemetry_events.ToolEnded": "_core.events.ToolEnded",
    "_core.telemetry_events.ToolStarted": "_core.events.ToolStarted",
    "_core.telemetry_events.UndoEnded": "_core.events.UndoEnded",
    "_core.telemetry_events.UndoStarted": "_core.events.UndoStarted",
    "_core.type_registry.register_type": "_type_registry.register_type",
    "_core.views.record_summaries.RecordSummary": "_core.light_records.LightRecord",
    "_core.views.run_tree.RunTree": "_core.outline.Outline",
    "_dsl.compensation_options.Compensate": "_dsl.compensation.Compensate",
    "_dsl.declared_step.Processors": "_dsl.declared.Processors",
    "_dsl.output_options.Processing": "_dsl.processing.Processing",
    "_dsl.output_options.Redirect": "_dsl.redirect.Redirect",
    "_dsl.retrieval_collections.Collection": "_dsl.collections.Collection",
    "_dsl.retrieval_collections.known_citations": "_dsl.citations.known_citations",
    "_dsl.step_declaration.Step": "_dsl.step.Step",
    "_dsl.step_declaration.step": "_dsl.step.step",
    "_fleet.engine_port.Engine": "_fleet.port.Engine",
    "_fleet.engine_port.Ticket": "_fleet.port.Ticket",
    "_fleet.worker_loop.Worker": "_fleet.worker.Worker",
    "_runtime.run.json_text.to_json": "_json_text.to_json",
    "actors._supervision_rules.ChildSpec": "actors._supervision.ChildSpec",
    "actors._supervision_rules.Intensity": "actors._supervision.Intensity",
    "stores._memory_store.MemoryStore": "stores._memory.MemoryStore",
    "stores._store_port.Store": "stores._port.Store",
    "structured._compiled_schema.Schema": "structured._schema.Schema",
    "structured._read_result.Coercion": "structured._reading.Coercion",
    "structured._read_result.Flaw": "structured._reading.Flaw",
    "structured._read_result.ReadResult": "structured._reading.Reading",
    "structured._stages.RepairPlanSettings": "structured._stages.RepairSettings",
    "structured._read_result.Limits": "structured._limits.Limits",
    "_core.retry_decisions.Backoff": "_core.backoff.Backoff",
    "_core.usage.Resources": "_core.budget_levels.Resources",
}
"""Current name to stored name, both without the package."""

_DEFINED_AS = {stored: current for current, stored in _STORED_AS.items()}


def stored_name(name: str) -> str:
    """Return the stored name of a class or function name."""
    return _mapped(name, _STORED_AS)


def _mapped(name: str, names: Mapping[str, str]) -> str:
    if not name.startswith(_PACKAGE):
        return name
    inner = name.removeprefix(_PACKAGE)
    return _PACKAGE + names.get(inner, inner)
