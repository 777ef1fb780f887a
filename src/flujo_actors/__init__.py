"""LLM-agent pipelines as supervised trio actors.

Names imported from here are the public API. The package itself loads only its errors; every other name is loaded on
first use with its dependencies. A program that only reads pipelines, such as `flujo-actors validate`, loads neither the
runtime nor the declarations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._core.lazy_exports import FlujoDeprecationWarning as FlujoDeprecationWarning
from ._core.lazy_exports import lazy_names as _lazy_names
from ._core.lazy_exports import leave_out as _leave_out
from .errors import AbortRun as AbortRun
from .errors import AlreadyAnswered as AlreadyAnswered
from .errors import AmbiguousStep as AmbiguousStep
from .errors import ApprovalTimeout as ApprovalTimeout
from .errors import BlueprintError as BlueprintError
from .errors import Compacted as Compacted
from .errors import ContextError as ContextError
from .errors import ContextTooLarge as ContextTooLarge
from .errors import ControlError as ControlError
from .errors import CorruptRecord as CorruptRecord
from .errors import DeclarationError as DeclarationError
from .errors import Diverged as Diverged
from .errors import EvaluationMismatch as EvaluationMismatch
from .errors import Expired as Expired
from .errors import FingerprintMismatch as FingerprintMismatch
from .errors import FlujoError as FlujoError
from .errors import GateError as GateError
from .errors import InfiniteRedirectError as InfiniteRedirectError
from .errors import InvalidAnswer as InvalidAnswer
from .errors import InvalidEvent as InvalidEvent
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
from .errors import NotRetryable as NotRetryable
from .errors import NotSerializable as NotSerializable
from .errors import NotSteerable as NotSteerable
from .errors import PricingNotConfiguredError as PricingNotConfiguredError
from .errors import RateLimited as RateLimited
from .errors import RecordVersionError as RecordVersionError
from .errors import RefusedOutput as RefusedOutput
from .errors import Rejected as Rejected
from .errors import RetrievalError as RetrievalError
from .errors import RunAborted as RunAborted
from .errors import RunEnded as RunEnded
from .errors import RunExists as RunExists
from .errors import RunFailed as RunFailed
from .errors import RunLeased as RunLeased
from .errors import RunNotFound as RunNotFound
from .errors import RunPaused as RunPaused
from .errors import ScheduleExists as ScheduleExists
from .errors import SingletonBusy as SingletonBusy
from .errors import StepTimeout as StepTimeout
from .errors import StoreError as StoreError
from .errors import StoreVersionError as StoreVersionError
from .errors import StreamLimitExceeded as StreamLimitExceeded
from .errors import StructuredOutputError as StructuredOutputError
from .errors import TooLate as TooLate
from .errors import TransactionLost as TransactionLost
from .errors import TransactionRefused as TransactionRefused
from .errors import UncertainUnit as UncertainUnit
from .errors import UnknownOption as UnknownOption
from .errors import UsageLimitExceededError as UsageLimitExceededError
from .errors import WaitTimeout as WaitTimeout
from .telemetry._null_telemetry import hide_secrets_in_log as _hide_secrets_in_log

if TYPE_CHECKING:
    from ._agents.agent_factory import make_agent_async as make_agent_async
    from ._agents.compaction import compact_history as compact_history
    from ._agents.granular.units import current_unit as current_unit
    from ._agents.retrieval.memory_retriever import InMemoryRetriever as InMemoryRetriever
    from ._agents.retrieval.postgres_retriever import PostgresRetriever as PostgresRetriever
    from ._agents.retrieval.retriever_port import Retriever as Retriever
    from ._agents.retrieval.sqlite_retriever import SqliteRetriever as SqliteRetriever
    from ._api.async_client import AsyncRunClient as AsyncRunClient
    from ._api.blueprints import dump_blueprint as dump_blueprint
    from ._api.blueprints import lint as lint
    from ._api.blueprints import load_blueprint as load_blueprint
    from ._api.client import Prompt as Prompt
    from ._api.client import RunClient as RunClient
    from ._api.evaluation.comparison import Comparison as Comparison
    from ._api.evaluation.comparison import Delta as Delta
    from ._api.evaluation.evaluation_results import CaseResult as CaseResult
    from ._api.evaluation.evaluation_results import Evaluation as Evaluation
    from ._api.evaluation.gates import GateResult as GateResult
    from ._api.flujo import Flujo as Flujo
    from ._api.handle import RunHandle as RunHandle
    from ._api.rehearsal.verdicts import Difference as Difference
    from ._api.rehearsal.verdicts import Rehearsal as Rehearsal
    from ._api.rehearsal.verdicts import RehearsedRun as RehearsedRun
    from ._api.rehearsal.verdicts import Replay as Replay
    from ._api.run_info import QueueInfo as QueueInfo
    from ._api.run_info import RunInfo as RunInfo
    from ._api.run_info import Wait as Wait
    from ._api.run_info import WebhookInfo as WebhookInfo
    from ._api.run_info import WorkerInfo as WorkerInfo
    from ._api.settings_loader import load_settings as load_settings
    from ._api.version import __version__ as __version__
    from ._api.wiring import conversations as conversations
    from ._blueprint.parser.findings import Finding as Finding
    from ._bridge.threads import abandoned_threads as abandoned_threads
    from ._core.failure_info import CompensatedToolCall as ToolCall
    from ._core.failure_info import HookPayload as HookPayload
    from ._core.failure_info import OnPause as OnPause
    from ._core.failure_info import OnStepFailure as OnStepFailure
    from ._core.failure_info import PostRun as PostRun
    from ._core.failure_info import PostStep as PostStep
    from ._core.failure_info import PreRun as PreRun
    from ._core.failure_info import PreStep as PreStep
    from ._core.failure_info import Recovered as Recovered
    from ._core.failure_info import StepFailure as StepFailure
    from ._core.failure_info import Undo as Undo
    from ._core.outcomes import Aborted as Aborted
    from ._core.outcomes import Chunk as Chunk
    from ._core.outcomes import ErrorInfo as ErrorInfo
    from ._core.outcomes import Failure as Failure
    from ._core.outcomes import Paused as Paused
    from ._core.outcomes import PipelineResult as PipelineResult
    from ._core.outcomes import Started as Started
    from ._core.outcomes import StepOutcome as StepOutcome
    from ._core.outcomes import StepResult as StepResult
    from ._core.outcomes import Success as Success
    from ._core.outcomes import ToldOutcome as ToldOutcome
    from ._core.outcomes import ToolCalled as ToolCalled
    from ._core.outcomes import TracebackFrame as Frame
    from ._core.outcomes import Undone as Undone
    from ._core.policies.approval_policy import Decision as Decision
    from ._core.policies.approval_policy import Option as Option
    from ._core.policies.loop_detection import LoopGuard as LoopGuard
    from ._core.policies.rate_limits import RateInfo as RateInfo
    from ._core.policies.rate_limits import RateLimit as RateLimit
    from ._core.policies.selection import Belief as Belief
    from ._core.policies.selection import ByBudget as ByBudget
    from ._core.policies.selection import Selection as Choice
    from ._core.policies.selection import ThompsonSampling as ThompsonSampling
    from ._core.policies.selection import Votes as Votes
    from ._core.policies.shared_budgets import BudgetInfo as BudgetInfo
    from ._core.records.assembled import AssembledContext as AssembledContext
    from ._core.records.assembled import ContextSegment as ContextSegment
    from ._core.records.assembled import Dropped as Dropped
    from ._core.records.assembled import LiteralSegment as LiteralSegment
    from ._core.records.assembled import RetrievalResult as RetrievalResult
    from ._core.records.assembled import RetrievalSegment as RetrievalSegment
    from ._core.records.assembled import Retrieved as Retrieved
    from ._core.records.assembled import Skipped as Skipped
    from ._core.records.assembled import StateSegment as StateSegment
    from ._core.records.json_codec import from_json as from_json
    from ._core.records.records import AbandonedRun as LeftRun
    from ._core.records.records import RecoveryReport as RecoveryReport
    from ._core.records.run_state import Projector as Projector
    from ._core.records.sent_events import EventInfo as EventInfo
    from ._core.records.sent_events import Sent as Sent
    from ._core.records.sent_events import Steered as Steered
    from ._core.reducers import Add as Add
    from ._core.reducers import Append as Append
    from ._core.reducers import Merge as Merge
    from ._core.retry_decisions import Backoff as Backoff
    from ._core.retry_decisions import provider_errors as provider_errors
    from ._core.settings_model import Price as Price
    from ._core.settings_model import Settings as Settings
    from ._core.type_registry import register_type as register_type
    from ._core.usage import Budget as Budget
    from ._core.usage import Usage as Usage
    from ._core.usage import UsageLimits as UsageLimits
    from ._core.views.record_summaries import RecordSummary as LightRecord
    from ._core.views.run_tree import RunTree as Outline
    from ._dsl.agent_step import AgentStep as AgentStep
    from ._dsl.compensation_options import Compensate as Compensate
    from ._dsl.context_format import ContextFormat as ContextFormat
    from ._dsl.context_sources import ContextSources as ContextSources
    from ._dsl.context_sources import from_history as from_history
    from ._dsl.context_sources import from_literal as from_literal
    from ._dsl.context_sources import from_retrieval as from_retrieval
    from ._dsl.context_sources import from_state as from_state
    from ._dsl.declared_step import Processors as Processors
    from ._dsl.output_options import Cache as Cache
    from ._dsl.output_options import Processing as Processing
    from ._dsl.output_options import Redirect as Redirect
    from ._dsl.pipeline import Pipeline as Pipeline
    from ._dsl.retrieval_collections import Collection as Collection
    from ._dsl.retrieval_collections import known_citations as known_citations
    from ._dsl.step_declaration import Step as Step
    from ._dsl.step_declaration import step as step
    from ._durable.operations.bulk_actions import BulkReport as BulkReport
    from ._durable.operations.bulk_actions import RunFilter as RunFilter
    from ._durable.operations.run_check import RunCheck as RunCheck
    from ._durable.operations.run_files import ExportReport as ExportReport
    from ._durable.operations.run_files import ImportReport as ImportReport
    from ._durable.operations.run_totals import TotalsRow as TotalsRow
    from ._durable.operations.webhooks import Webhook as Webhook
    from ._durable.pause_lookup import Question as Question
    from ._durable.retention import PruneReport as PruneReport
    from ._durable.run_states import RUN_STATES as RUN_STATES
    from ._fleet.engine_port import Engine as Engine
    from ._fleet.engine_port import Ticket as Ticket
    from ._fleet.schedules import ScheduleInfo as ScheduleInfo
    from ._fleet.worker_loop import Worker as Worker
    from ._runtime.context.freeform import Context as Context
    from ._runtime.run.json_text import to_json as to_json
    from .page import HOST_APP as HOST_APP
    from .page import answer_form as answer_form
    from .page import event_app as event_app
    from .page import run_page as run_page
    from .stores._memory_store import MemoryStore as MemoryStore
    from .stores._store_port import Store as Store
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
            "__version__": "._api.version",
            "Context": "._runtime.context.freeform",
            "Backoff": "._core.retry_decisions",
            "Aborted": "._core.outcomes",
            "Chunk": "._core.outcomes",
            "ErrorInfo": "._core.outcomes",
            "Failure": "._core.outcomes",
            "Frame": "._core.outcomes:TracebackFrame",
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
            "Processors": "._dsl.declared_step",
            "Pipeline": "._dsl.pipeline",
            "Processing": "._dsl.output_options",
            "Step": "._dsl.step_declaration",
            "step": "._dsl.step_declaration",
            "Add": "._core.reducers",
            "AgentStep": "._dsl.agent_step",
            "Append": "._core.reducers",
            "AsyncRunClient": "._api.async_client",
            "AssembledContext": "._core.records.assembled",
            "Belief": "._core.policies.selection",
            "Budget": "._core.usage",
            "LoopGuard": "._core.policies.loop_detection",
            "Votes": "._core.policies.selection",
            "ByBudget": "._core.policies.selection",
            "Choice": "._core.policies.selection:Selection",
            "Collection": "._dsl.retrieval_collections",
            "Comparison": "._api.evaluation.comparison",
            "Delta": "._api.evaluation.comparison",
            "Difference": "._api.rehearsal.verdicts",
            "Rehearsal": "._api.rehearsal.verdicts",
            "RehearsedRun": "._api.rehearsal.verdicts",
            "Replay": "._api.rehearsal.verdicts",
            "GateResult": "._api.evaluation.gates",
            "CaseResult": "._api.evaluation.evaluation_results",
            "Evaluation": "._api.evaluation.evaluation_results",
            "Compensate": "._dsl.compensation_options",
            "ContextFormat": "._dsl.context_format",
            "ContextSegment": "._core.records.assembled",
            "ContextSources": "._dsl.context_sources",
            "Decision": "._core.policies.approval_policy",
            "Dropped": "._core.records.assembled",
            "Engine": "._fleet.engine_port",
            "Finding": "._blueprint.parser.findings",
            "Flujo": "._api.flujo",
            "HOST_APP": ".page",
            "HookPayload": "._core.failure_info",
            "InMemoryRetriever": "._agents.retrieval.memory_retriever",
            "LeftRun": "._core.records.records:AbandonedRun",
            "LightRecord": "._core.views.record_summaries:RecordSummary",
            "LiteralSegment": "._core.records.assembled",
            "MemoryStore": ".stores._memory_store",
            "Merge": "._core.reducers",
            "OnPause": "._core.failure_info",
            "OnStepFailure": "._core.failure_info",
            "Option": "._core.policies.approval_policy",
            "Outline": "._core.views.run_tree:RunTree",
            "PostRun": "._core.failure_info",
            "PostStep": "._core.failure_info",
            "PostgresRetriever": "._agents.retrieval.postgres_retriever",
            "PostgresStore": ".stores.postgres._store",
            "PreRun": "._core.failure_info",
            "PreStep": "._core.failure_info",
            "Price": "._core.settings_model",
            "Projector": "._core.records.run_state",
            "Prompt": "._api.client",
            "Question": "._durable.pause_lookup",
            "QueueInfo": "._api.run_info",
            "RunCheck": "._durable.operations.run_check",
            "Webhook": "._durable.operations.webhooks",
            "WebhookInfo": "._api.run_info",
            "EventInfo": "._core.records.sent_events",
            "Sent": "._core.records.sent_events",
            "Steered": "._core.records.sent_events",
            "Wait": "._api.run_info",
            "PruneReport": "._durable.retention",
            "ExportReport": "._durable.operations.run_files",
            "ImportReport": "._durable.operations.run_files",
            "BulkReport": "._durable.operations.bulk_actions",
            "RunFilter": "._durable.operations.bulk_actions",
            "TotalsRow": "._durable.operations.run_totals",
            "RUN_STATES": "._durable.run_states",
            "Recovered": "._core.failure_info",
            "RecoveryReport": "._core.records.records",
            "Redirect": "._dsl.output_options",
            "RetrievalResult": "._core.records.assembled",
            "RetrievalSegment": "._core.records.assembled",
            "Retrieved": "._core.records.assembled",
            "Retriever": "._agents.retrieval.retriever_port",
            "RunClient": "._api.client",
            "RunHandle": "._api.handle",
            "RunInfo": "._api.run_info",
            "Settings": "._core.settings_model",
            "Skipped": "._core.records.assembled",
            "SqliteRetriever": "._agents.retrieval.sqlite_retriever",
            "SqliteStore": ".stores.sqlite._store",
            "StateSegment": "._core.records.assembled",
            "StepFailure": "._core.failure_info",
            "Store": ".stores._store_port",
            "ThompsonSampling": "._core.policies.selection",
            "Ticket": "._fleet.engine_port",
            "ToolCall": "._core.failure_info:CompensatedToolCall",
            "Undo": "._core.failure_info",
            "Worker": "._fleet.worker_loop",
            "WorkerInfo": "._api.run_info",
            "provider_errors": "._core.retry_decisions",
            "ScheduleInfo": "._fleet.schedules",
            "RateLimit": "._core.policies.rate_limits",
            "RateInfo": "._core.policies.rate_limits",
            "BudgetInfo": "._core.policies.shared_budgets",
            "Cache": "._dsl.output_options",
            "abandoned_threads": "._bridge.threads",
            "answer_form": ".page",
            "compact_history": "._agents.compaction",
            "current_unit": "._agents.granular.units",
            "dump_blueprint": "._api.blueprints",
            "ensure_object": ".structured._builtins",
            "extract_from_text": ".structured._extract",
            "from_history": "._dsl.context_sources",
            "from_json": "._core.records.json_codec",
            "from_literal": "._dsl.context_sources",
            "from_retrieval": "._dsl.context_sources",
            "from_state": "._dsl.context_sources",
            "known_citations": "._dsl.retrieval_collections",
            "lint": "._api.blueprints",
            "load_blueprint": "._api.blueprints",
            "load_settings": "._api.settings_loader",
            "conversations": "._api.wiring",
            "make_agent_async": "._agents.agent_factory",
            "normalize_json_text": ".structured._reader",
            "parse_and_validate": ".structured._reader",
            "register_type": "._core.type_registry",
            "event_app": ".page",
            "run_page": ".page",
            "to_json": "._runtime.run.json_text",
            "wrap_dict": ".structured._builtins",
        },
    )

_hide_secrets_in_log()

__all__ = [
    "HOST_APP",
    "RUN_STATES",
    "AbortRun",
    "Aborted",
    "Add",
    "AgentStep",
    "AlreadyAnswered",
    "AmbiguousStep",
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
    "CorruptRecord",
    "Decision",
    "DeclarationError",
    "Delta",
    "Difference",
    "Diverged",
    "Dropped",
    "Engine",
    "ErrorInfo",
    "Evaluation",
    "EvaluationMismatch",
    "EventInfo",
    "Expired",
    "ExportReport",
    "Failure",
    "Finding",
    "FingerprintMismatch",
    "Flujo",
    "FlujoDeprecationWarning",
    "FlujoError",
    "Frame",
    "GateError",
    "GateResult",
    "HookPayload",
    "ImportReport",
    "InMemoryRetriever",
    "InfiniteRedirectError",
    "InvalidAnswer",
    "InvalidEvent",
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
    "NotRetryable",
    "NotSerializable",
    "NotSteerable",
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
    "Prompt",
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
    "Rehearsal",
    "RehearsedRun",
    "Rejected",
    "Replay",
    "RetrievalError",
    "RetrievalResult",
    "RetrievalSegment",
    "Retrieved",
    "Retriever",
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
    "Steered",
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
    "abandoned_threads",
    "answer_form",
    "compact_history",
    "conversations",
    "current_unit",
    "dump_blueprint",
    "ensure_object",
    "event_app",
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
    "provider_errors",
    "register_type",
    "run_page",
    "step",
    "to_json",
    "wrap_dict",
]

_leave_out(__all__, {"HOST_APP", "answer_form", "event_app", "run_page"}, without="sse_starlette")  # extra `page`
