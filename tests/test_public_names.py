"""The public names, in one list, and what importing the library does not load."""

from __future__ import annotations

import importlib.resources
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import flujo_actors
from flujo_actors import errors

ROOT = Path(__file__).parents[1]

_IMPORTS = re.compile(r"^from flujo_actors import (.+)$", re.MULTILINE)

PUBLIC = [
    "abandoned_threads",
    "Aborted",
    "AbortRun",
    "Add",
    "AgentStep",
    "AlreadyAnswered",
    "AmbiguousStep",
    "answer_form",
    "Append",
    "ApprovalTimeout",
    "AssembledContext",
    "AsyncRunClient",
    "Backoff",
    "Belief",
    "BlueprintError",
    "Budget",
    "BudgetInfo",
    "BulkReport",
    "ByBudget",
    "Cache",
    "CaseResult",
    "Choice",
    "Chunk",
    "Collection",
    "compact_history",
    "Compacted",
    "Comparison",
    "Compensate",
    "Context",
    "ContextError",
    "ContextFormat",
    "ContextSegment",
    "ContextSources",
    "ContextTooLarge",
    "ControlError",
    "conversations",
    "CorruptRecord",
    "current_unit",
    "Decision",
    "DeclarationError",
    "Delta",
    "Dropped",
    "dump_blueprint",
    "Engine",
    "ensure_object",
    "ErrorInfo",
    "Difference",
    "Diverged",
    "Evaluation",
    "EvaluationMismatch",
    "event_app",
    "EventInfo",
    "Expired",
    "ExportReport",
    "extract_from_text",
    "Failure",
    "Finding",
    "FingerprintMismatch",
    "Flujo",
    "FlujoDeprecationWarning",
    "FlujoError",
    "Frame",
    "from_history",
    "from_json",
    "from_literal",
    "from_retrieval",
    "from_state",
    "GateError",
    "GateResult",
    "HookPayload",
    "HOST_APP",
    "ImportReport",
    "InfiniteRedirectError",
    "InMemoryRetriever",
    "InvalidAnswer",
    "InvalidEvent",
    "known_citations",
    "LeaseLost",
    "LeftRun",
    "LightRecord",
    "lint",
    "LiteralSegment",
    "load_blueprint",
    "load_settings",
    "LoopAlreadyRunning",
    "LoopDetected",
    "LoopGuard",
    "LowConfidence",
    "make_agent_async",
    "MaxTurnsReached",
    "MemoryStore",
    "Merge",
    "MergeConflict",
    "MissingAgentError",
    "MockDetectionError",
    "NoOutput",
    "NoRewardDue",
    "normalize_json_text",
    "NotAwaited",
    "NotExportable",
    "NotPaused",
    "NotRetryable",
    "NotSteerable",
    "NotSerializable",
    "OnPause",
    "OnStepFailure",
    "Option",
    "Outline",
    "parse_and_validate",
    "Paused",
    "Pipeline",
    "PipelineResult",
    "PostgresRetriever",
    "PostgresStore",
    "PostRun",
    "PostStep",
    "PreRun",
    "PreStep",
    "Price",
    "PricingNotConfiguredError",
    "Processing",
    "Processors",
    "Projector",
    "Prompt",
    "provider_errors",
    "PruneReport",
    "Question",
    "QueueInfo",
    "RateInfo",
    "RateLimit",
    "RateLimited",
    "RecordVersionError",
    "Recovered",
    "RecoveryReport",
    "Redirect",
    "RefusedOutput",
    "register_type",
    "Rejected",
    "Rehearsal",
    "RehearsedRun",
    "Replay",
    "RetrievalError",
    "RetrievalResult",
    "RetrievalSegment",
    "Retrieved",
    "Retriever",
    "run_page",
    "RUN_STATES",
    "RunAborted",
    "RunCheck",
    "RunClient",
    "RunEnded",
    "RunExists",
    "RunFailed",
    "RunFilter",
    "RunHandle",
    "RunInfo",
    "RunLeased",
    "RunNotFound",
    "RunPaused",
    "ScheduleExists",
    "ScheduleInfo",
    "Sent",
    "Settings",
    "SingletonBusy",
    "Skipped",
    "SqliteRetriever",
    "SqliteStore",
    "Started",
    "StateSegment",
    "Step",
    "step",
    "StepFailure",
    "StepOutcome",
    "StepResult",
    "StepTimeout",
    "Steered",
    "Store",
    "StoreError",
    "StoreVersionError",
    "StreamLimitExceeded",
    "StructuredOutputError",
    "Success",
    "ThompsonSampling",
    "Ticket",
    "to_json",
    "ToldOutcome",
    "TooLate",
    "ToolCall",
    "ToolCalled",
    "TotalsRow",
    "TransactionLost",
    "TransactionRefused",
    "UncertainUnit",
    "Undo",
    "Undone",
    "UnknownOption",
    "Usage",
    "UsageLimitExceededError",
    "UsageLimits",
    "Votes",
    "Wait",
    "WaitTimeout",
    "Webhook",
    "WebhookInfo",
    "Worker",
    "WorkerInfo",
    "wrap_dict",
]
"""Every name a user imports from `flujo_actors`."""

CONTRACT_ERRORS = [
    "InfiniteRedirectError",
    "InvalidAnswer",
    "MissingAgentError",
    "MockDetectionError",
    "NotPaused",
    "PricingNotConfiguredError",
    "RunExists",
    "SingletonBusy",
    "StructuredOutputError",
    "UsageLimitExceededError",
]
"""The exceptions that the contract names."""

UNWANTED = ["pydantic", "pydantic_ai", "sqlite3", "psycopg", "psycopg_pool", "opentelemetry"]
"""What only those who use it shall pay for."""


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_can_be_imported_from_the_package(name: str) -> None:
    """One import path for everything public, and `dir()` shows it."""
    assert getattr(flujo_actors, name) is not None
    assert name in dir(flujo_actors)


@pytest.mark.parametrize("name", CONTRACT_ERRORS)
def test_an_exception_of_the_contract_can_be_imported_from_errors(name: str) -> None:
    """Callers catch by these names, from either place."""
    assert issubclass(getattr(errors, name), errors.FlujoError)
    assert getattr(flujo_actors, name) is getattr(errors, name)


def test_every_exception_of_the_library_lives_in_errors() -> None:
    """What `errors` defines is an exception with a docstring, and all of them have one root."""
    defined = [
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert len(defined) > 10
    for cls in defined:
        assert issubclass(cls, errors.FlujoError)
        assert cls.__doc__


@pytest.mark.parametrize(
    "name",
    [
        "UsageLimitExceededError",
        "PricingNotConfiguredError",
        "MissingAgentError",
        "MockDetectionError",
        "InfiniteRedirectError",
    ],
)
def test_control_errors_can_be_raised_with_just_a_message(name: str) -> None:
    """User code raises them too; the result is filled in on the way out."""
    error = getattr(errors, name)("stop here")
    assert str(error) == "stop here"
    assert isinstance(error, errors.ControlError)
    assert error.result is None


def test_import_star_gives_the_public_names() -> None:
    """`__all__`, `dir()` and the list above are one list."""
    assert sorted(flujo_actors.__all__) == sorted(PUBLIC)


def test_the_page_of_names_is_the_public_names() -> None:
    """`docs/api.md` has a line for each."""
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(PUBLIC)


def test_what_the_documents_import_is_public() -> None:
    """Nobody is told of a name that is not in the list."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    imported = {name.strip() for text in texts for names in _IMPORTS.findall(text) for name in names.split(",")}
    assert imported - {*PUBLIC, "*"} == set()


def test_nothing_else_is_public() -> None:
    """A name that is not in the list is a module or begins with an underscore."""
    others = set(dir(flujo_actors)) - set(PUBLIC) - {"Any", "TYPE_CHECKING", "annotations"}
    public = [name for name in others if not name.startswith("_")]
    assert [name for name in public if not isinstance(getattr(flujo_actors, name), ModuleType)] == []


def test_importing_the_library_loads_no_agents_models_or_drivers() -> None:
    """A fresh interpreter that imports `flujo_actors` has loaded neither pydantic nor a database driver."""
    script = f"import sys, flujo_actors; print(*[name for name in {UNWANTED} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == []


def test_the_package_is_typed() -> None:
    """Type checkers of users see the annotations."""
    assert importlib.resources.files(flujo_actors).joinpath("py.typed").is_file()


FACADES = [
    "flujo_actors",
    "flujo_actors.actors",
    "flujo_actors.errors",
    "flujo_actors.page",
    "flujo_actors.protocols",
    "flujo_actors.protocols.ag_ui",
    "flujo_actors.protocols.mcp",
    "flujo_actors.protocols.sse",
    "flujo_actors.stores",
    "flujo_actors.stores.postgres",
    "flujo_actors.stores.sqlite",
    "flujo_actors.structured",
    "flujo_actors.structured.read",
    "flujo_actors.telemetry",
    "flujo_actors.telemetry.otel",
    "flujo_actors.terminal",
    "flujo_actors.testing",
    "flujo_actors.testing.engine_conformance",
    "flujo_actors.testing.faults",
    "flujo_actors.testing.faulty_store",
    "flujo_actors.testing.fixtures",
    "flujo_actors.testing.store_conformance",
    "flujo_actors.testing.wire",
    "flujo_actors.testing.wire.flaky",
]
"""The modules that a program may import from."""


def test_every_other_module_is_private() -> None:
    """A module without an underscore in its path is a promise, so each is promised here by name."""
    package = ROOT / "src" / "flujo_actors"
    paths = [path.relative_to(package.parent).with_suffix("").parts for path in sorted(package.rglob("*.py"))]
    names = [".".join(path[:-1] if path[-1] == "__init__" else path) for path in paths]
    assert [name for name in names if "._" not in name] == sorted(FACADES)
