"""LLM-agent pipelines as supervised trio actors.

What is imported from here is the public API. The package itself loads its errors only; every other name is loaded when
it is first used, with what it needs: what only reads pipelines, as the command `flujo-actors validate` does, loads
neither the runtime nor what declares steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy_names import lazy_names as _lazy_names
from .errors import AbortRun as AbortRun
from .errors import AlreadyAnswered as AlreadyAnswered
from .errors import ApprovalTimeout as ApprovalTimeout
from .errors import BlueprintError as BlueprintError
from .errors import ContextError as ContextError
from .errors import ContextTooLarge as ContextTooLarge
from .errors import ControlError as ControlError
from .errors import CorruptRecord as CorruptRecord
from .errors import DeclarationError as DeclarationError
from .errors import Expired as Expired
from .errors import FingerprintMismatch as FingerprintMismatch
from .errors import FlujoError as FlujoError
from .errors import InfiniteRedirectError as InfiniteRedirectError
from .errors import InvalidAnswer as InvalidAnswer
from .errors import LeaseLost as LeaseLost
from .errors import LoopAlreadyRunning as LoopAlreadyRunning
from .errors import LoopDetected as LoopDetected
from .errors import LowConfidence as LowConfidence
from .errors import MaxTurnsReached as MaxTurnsReached
from .errors import MergeConflict as MergeConflict
from .errors import MissingAgentError as MissingAgentError
from .errors import MockDetectionError as MockDetectionError
from .errors import NoOutput as NoOutput
from .errors import NoRewardDue as NoRewardDue
from .errors import NotAwaited as NotAwaited
from .errors import NotExportable as NotExportable
from .errors import NotPaused as NotPaused
from .errors import NotSerializable as NotSerializable
from .errors import PricingNotConfiguredError as PricingNotConfiguredError
from .errors import Rejected as Rejected
from .errors import RetrievalError as RetrievalError
from .errors import RunAborted as RunAborted
from .errors import RunExists as RunExists
from .errors import RunFailed as RunFailed
from .errors import RunLeased as RunLeased
from .errors import RunNotFound as RunNotFound
from .errors import RunPaused as RunPaused
from .errors import StepTimeout as StepTimeout
from .errors import StoreError as StoreError
from .errors import StoreVersionError as StoreVersionError
from .errors import StreamLimitExceeded as StreamLimitExceeded
from .errors import StructuredOutputError as StructuredOutputError
from .errors import TransactionLost as TransactionLost
from .errors import TransactionRefused as TransactionRefused
from .errors import UncertainUnit as UncertainUnit
from .errors import UnknownOption as UnknownOption
from .errors import UsageLimitExceededError as UsageLimitExceededError
from .telemetry._log_records import hide_secrets_in_log as _hide_secrets_in_log

if TYPE_CHECKING:
    from ._agents.compaction import compact_history as compact_history
    from ._agents.factory import make_agent_async as make_agent_async
    from ._agents.granular.units import current_unit as current_unit
    from ._blueprint.findings import Finding as Finding
    from ._blueprint_names import dump_blueprint as dump_blueprint
    from ._blueprint_names import lint as lint
    from ._blueprint_names import load_blueprint as load_blueprint
    from ._bridge.threads import abandoned_threads as abandoned_threads
    from ._client import RunClient as RunClient
    from ._client import RunInfo as RunInfo
    from ._client import WorkerInfo as WorkerInfo
    from ._context.freeform import Context as Context
    from ._core.approvals import Decision as Decision
    from ._core.approvals import Option as Option
    from ._core.assembled import AssembledContext as AssembledContext
    from ._core.assembled import ContextSegment as ContextSegment
    from ._core.assembled import Dropped as Dropped
    from ._core.assembled import LiteralSegment as LiteralSegment
    from ._core.assembled import RetrievalResult as RetrievalResult
    from ._core.assembled import RetrievalSegment as RetrievalSegment
    from ._core.assembled import Retrieved as Retrieved
    from ._core.assembled import Skipped as Skipped
    from ._core.assembled import StateSegment as StateSegment
    from ._core.backoff import Backoff as Backoff
    from ._core.budgets import Budget as Budget
    from ._core.by_budget import ByBudget as ByBudget
    from ._core.failures import Recovered as Recovered
    from ._core.failures import StepFailure as StepFailure
    from ._core.failures import ToolCall as ToolCall
    from ._core.failures import Undo as Undo
    from ._core.hook_payloads import HookPayload as HookPayload
    from ._core.hook_payloads import OnPause as OnPause
    from ._core.hook_payloads import OnStepFailure as OnStepFailure
    from ._core.hook_payloads import PostRun as PostRun
    from ._core.hook_payloads import PostStep as PostStep
    from ._core.hook_payloads import PreRun as PreRun
    from ._core.hook_payloads import PreStep as PreStep
    from ._core.json_codec import from_json as from_json
    from ._core.light_records import LightRecord as LightRecord
    from ._core.loops import LoopGuard as LoopGuard
    from ._core.outcomes import Aborted as Aborted
    from ._core.outcomes import Chunk as Chunk
    from ._core.outcomes import ErrorInfo as ErrorInfo
    from ._core.outcomes import Failure as Failure
    from ._core.outcomes import Frame as Frame
    from ._core.outcomes import Paused as Paused
    from ._core.outcomes import PipelineResult as PipelineResult
    from ._core.outcomes import Started as Started
    from ._core.outcomes import StepOutcome as StepOutcome
    from ._core.outcomes import StepResult as StepResult
    from ._core.outcomes import Success as Success
    from ._core.outcomes import ToldOutcome as ToldOutcome
    from ._core.outcomes import ToolCalled as ToolCalled
    from ._core.outcomes import Undone as Undone
    from ._core.outline import Outline as Outline
    from ._core.recovery import LeftRun as LeftRun
    from ._core.recovery import RecoveryReport as RecoveryReport
    from ._core.reducers import Add as Add
    from ._core.reducers import Append as Append
    from ._core.reducers import Merge as Merge
    from ._core.run_state import Projector as Projector
    from ._core.selection import Belief as Belief
    from ._core.selection import Choice as Choice
    from ._core.selection import ThompsonSampling as ThompsonSampling
    from ._core.settings import Price as Price
    from ._core.settings import Settings as Settings
    from ._core.usage import Usage as Usage
    from ._core.usage import UsageLimits as UsageLimits
    from ._core.votes import Votes as Votes
    from ._dsl.agent_step import AgentStep as AgentStep
    from ._dsl.citations import known_citations as known_citations
    from ._dsl.collections import Collection as Collection
    from ._dsl.compensation import Compensate as Compensate
    from ._dsl.context_format import ContextFormat as ContextFormat
    from ._dsl.context_sources import ContextSources as ContextSources
    from ._dsl.context_sources import from_history as from_history
    from ._dsl.context_sources import from_literal as from_literal
    from ._dsl.context_sources import from_retrieval as from_retrieval
    from ._dsl.context_sources import from_state as from_state
    from ._dsl.declared import Processors as Processors
    from ._dsl.pipeline import Pipeline as Pipeline
    from ._dsl.processing import Processing as Processing
    from ._dsl.redirect import Redirect as Redirect
    from ._dsl.step import Step as Step
    from ._dsl.step import step as step
    from ._fleet.port import Engine as Engine
    from ._fleet.port import Ticket as Ticket
    from ._fleet.worker import Worker as Worker
    from ._handle import RunHandle as RunHandle
    from ._json_text import to_json as to_json
    from ._retrieval.memory import InMemoryRetriever as InMemoryRetriever
    from ._retrieval.port import Retriever as Retriever
    from ._retrieval.postgres import PostgresRetriever as PostgresRetriever
    from ._retrieval.sqlite import SqliteRetriever as SqliteRetriever
    from ._runner import Flujo as Flujo
    from ._settings import load_settings as load_settings
    from ._type_registry import register_type as register_type
    from .page import HOST_APP as HOST_APP
    from .page import answer_form as answer_form
    from .page import run_page as run_page
    from .stores._memory import MemoryStore as MemoryStore
    from .stores._port import Store as Store
    from .stores.postgres._store import PostgresStore as PostgresStore
    from .stores.sqlite._store import SqliteStore as SqliteStore
    from .structured._builtins import ensure_object as ensure_object
    from .structured._builtins import wrap_dict as wrap_dict
    from .structured._extract import extract_from_text as extract_from_text
    from .structured._reader import normalize_json_text as normalize_json_text
    from .structured._reader import parse_and_validate as parse_and_validate
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "Context": "._context.freeform",
            "Backoff": "._core.backoff",
            "Aborted": "._core.outcomes",
            "Chunk": "._core.outcomes",
            "ErrorInfo": "._core.outcomes",
            "Failure": "._core.outcomes",
            "Frame": "._core.outcomes",
            "Paused": "._core.outcomes",
            "PipelineResult": "._core.outcomes",
            "Started": "._core.outcomes",
            "StepOutcome": "._core.outcomes",
            "StepResult": "._core.outcomes",
            "Success": "._core.outcomes",
            "ToldOutcome": "._core.outcomes",
            "ToolCalled": "._core.outcomes",
            "Undone": "._core.outcomes",
            "Usage": "._core.usage",
            "UsageLimits": "._core.usage",
            "Processors": "._dsl.declared",
            "Pipeline": "._dsl.pipeline",
            "Processing": "._dsl.processing",
            "Step": "._dsl.step",
            "step": "._dsl.step",
            "Add": "._core.reducers",
            "AgentStep": "._dsl.agent_step",
            "Append": "._core.reducers",
            "AssembledContext": "._core.assembled",
            "Belief": "._core.selection",
            "Budget": "._core.budgets",
            "LoopGuard": "._core.loops",
            "Votes": "._core.votes",
            "ByBudget": "._core.by_budget",
            "Choice": "._core.selection",
            "Collection": "._dsl.collections",
            "Compensate": "._dsl.compensation",
            "ContextFormat": "._dsl.context_format",
            "ContextSegment": "._core.assembled",
            "ContextSources": "._dsl.context_sources",
            "Decision": "._core.approvals",
            "Dropped": "._core.assembled",
            "Engine": "._fleet.port",
            "Finding": "._blueprint.findings",
            "Flujo": "._runner",
            "HOST_APP": ".page",
            "HookPayload": "._core.hook_payloads",
            "InMemoryRetriever": "._retrieval.memory",
            "LeftRun": "._core.recovery",
            "LightRecord": "._core.light_records",
            "LiteralSegment": "._core.assembled",
            "MemoryStore": ".stores._memory",
            "Merge": "._core.reducers",
            "OnPause": "._core.hook_payloads",
            "OnStepFailure": "._core.hook_payloads",
            "Option": "._core.approvals",
            "Outline": "._core.outline",
            "PostRun": "._core.hook_payloads",
            "PostStep": "._core.hook_payloads",
            "PostgresRetriever": "._retrieval.postgres",
            "PostgresStore": ".stores.postgres._store",
            "PreRun": "._core.hook_payloads",
            "PreStep": "._core.hook_payloads",
            "Price": "._core.settings",
            "Projector": "._core.run_state",
            "Recovered": "._core.failures",
            "RecoveryReport": "._core.recovery",
            "Redirect": "._dsl.redirect",
            "RetrievalResult": "._core.assembled",
            "RetrievalSegment": "._core.assembled",
            "Retrieved": "._core.assembled",
            "Retriever": "._retrieval.port",
            "RunClient": "._client",
            "RunHandle": "._handle",
            "RunInfo": "._client",
            "Settings": "._core.settings",
            "Skipped": "._core.assembled",
            "SqliteRetriever": "._retrieval.sqlite",
            "SqliteStore": ".stores.sqlite._store",
            "StateSegment": "._core.assembled",
            "StepFailure": "._core.failures",
            "Store": ".stores._port",
            "ThompsonSampling": "._core.selection",
            "Ticket": "._fleet.port",
            "ToolCall": "._core.failures",
            "Undo": "._core.failures",
            "Worker": "._fleet.worker",
            "WorkerInfo": "._client",
            "abandoned_threads": "._bridge.threads",
            "answer_form": ".page",
            "compact_history": "._agents.compaction",
            "current_unit": "._agents.granular.units",
            "dump_blueprint": "._blueprint_names",
            "ensure_object": ".structured._builtins",
            "extract_from_text": ".structured._extract",
            "from_history": "._dsl.context_sources",
            "from_json": "._core.json_codec",
            "from_literal": "._dsl.context_sources",
            "from_retrieval": "._dsl.context_sources",
            "from_state": "._dsl.context_sources",
            "known_citations": "._dsl.citations",
            "lint": "._blueprint_names",
            "load_blueprint": "._blueprint_names",
            "load_settings": "._settings",
            "make_agent_async": "._agents.factory",
            "normalize_json_text": ".structured._reader",
            "parse_and_validate": ".structured._reader",
            "register_type": "._type_registry",
            "run_page": ".page",
            "to_json": "._json_text",
            "wrap_dict": ".structured._builtins",
        },
    )

_hide_secrets_in_log()

__all__ = [
    "HOST_APP",
    "AbortRun",
    "Aborted",
    "Add",
    "AgentStep",
    "AlreadyAnswered",
    "Append",
    "ApprovalTimeout",
    "AssembledContext",
    "Backoff",
    "Belief",
    "BlueprintError",
    "Budget",
    "ByBudget",
    "Choice",
    "Chunk",
    "Collection",
    "Compensate",
    "Context",
    "ContextError",
    "ContextFormat",
    "ContextSegment",
    "ContextSources",
    "ContextTooLarge",
    "ControlError",
    "CorruptRecord",
    "Decision",
    "DeclarationError",
    "Dropped",
    "Engine",
    "ErrorInfo",
    "Expired",
    "Failure",
    "Finding",
    "FingerprintMismatch",
    "Flujo",
    "FlujoError",
    "Frame",
    "HookPayload",
    "InMemoryRetriever",
    "InfiniteRedirectError",
    "InvalidAnswer",
    "LeaseLost",
    "LeftRun",
    "LightRecord",
    "LiteralSegment",
    "LoopAlreadyRunning",
    "LoopDetected",
    "LoopGuard",
    "LowConfidence",
    "MaxTurnsReached",
    "MemoryStore",
    "Merge",
    "MergeConflict",
    "MissingAgentError",
    "MockDetectionError",
    "NoOutput",
    "NoRewardDue",
    "NotAwaited",
    "NotExportable",
    "NotPaused",
    "NotSerializable",
    "OnPause",
    "OnStepFailure",
    "Option",
    "Outline",
    "Paused",
    "Pipeline",
    "PipelineResult",
    "PostRun",
    "PostStep",
    "PostgresRetriever",
    "PostgresStore",
    "PreRun",
    "PreStep",
    "Price",
    "PricingNotConfiguredError",
    "Processing",
    "Processors",
    "Projector",
    "Recovered",
    "RecoveryReport",
    "Redirect",
    "Rejected",
    "RetrievalError",
    "RetrievalResult",
    "RetrievalSegment",
    "Retrieved",
    "Retriever",
    "RunAborted",
    "RunClient",
    "RunExists",
    "RunFailed",
    "RunHandle",
    "RunInfo",
    "RunLeased",
    "RunNotFound",
    "RunPaused",
    "Settings",
    "Skipped",
    "SqliteRetriever",
    "SqliteStore",
    "Started",
    "StateSegment",
    "Step",
    "StepFailure",
    "StepOutcome",
    "StepResult",
    "StepTimeout",
    "Store",
    "StoreError",
    "StoreVersionError",
    "StreamLimitExceeded",
    "StructuredOutputError",
    "Success",
    "ThompsonSampling",
    "Ticket",
    "ToldOutcome",
    "ToolCall",
    "ToolCalled",
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
    "Worker",
    "WorkerInfo",
    "abandoned_threads",
    "answer_form",
    "compact_history",
    "current_unit",
    "dump_blueprint",
    "ensure_object",
    "extract_from_text",
    "from_history",
    "from_json",
    "from_literal",
    "from_retrieval",
    "from_state",
    "known_citations",
    "lint",
    "load_blueprint",
    "load_settings",
    "make_agent_async",
    "normalize_json_text",
    "parse_and_validate",
    "register_type",
    "run_page",
    "step",
    "to_json",
    "wrap_dict",
]
