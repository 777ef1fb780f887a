"""LLM-agent pipelines as supervised trio actors.

What is imported from here is the public API. What every pipeline needs is loaded with the package; names that need
pydantic-ai, pydantic or a driver, or that only some programs use, are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .context.freeform import Context as Context
from .core.backoff import Backoff as Backoff
from .core.outcomes import Aborted as Aborted
from .core.outcomes import Chunk as Chunk
from .core.outcomes import ErrorInfo as ErrorInfo
from .core.outcomes import Failure as Failure
from .core.outcomes import Frame as Frame
from .core.outcomes import Paused as Paused
from .core.outcomes import PipelineResult as PipelineResult
from .core.outcomes import StepOutcome as StepOutcome
from .core.outcomes import StepResult as StepResult
from .core.outcomes import Success as Success
from .core.usage import Usage as Usage
from .core.usage import UsageLimits as UsageLimits
from .dsl.declared import Processors as Processors
from .dsl.pipeline import Pipeline as Pipeline
from .dsl.processing import Processing as Processing
from .dsl.step import Step as Step
from .dsl.step import step as step
from .errors import AbortRun as AbortRun
from .errors import AlreadyAnswered as AlreadyAnswered
from .errors import ContextError as ContextError
from .errors import ControlError as ControlError
from .errors import CorruptRecord as CorruptRecord
from .errors import DeclarationError as DeclarationError
from .errors import FingerprintMismatch as FingerprintMismatch
from .errors import FlujoError as FlujoError
from .errors import InfiniteRedirectError as InfiniteRedirectError
from .errors import InvalidAnswer as InvalidAnswer
from .errors import LeaseLost as LeaseLost
from .errors import LoopAlreadyRunning as LoopAlreadyRunning
from .errors import MaxTurnsReached as MaxTurnsReached
from .errors import MergeConflict as MergeConflict
from .errors import MissingAgentError as MissingAgentError
from .errors import MockDetectionError as MockDetectionError
from .errors import NoOutput as NoOutput
from .errors import NotAwaited as NotAwaited
from .errors import NotPaused as NotPaused
from .errors import NotSerializable as NotSerializable
from .errors import PricingNotConfiguredError as PricingNotConfiguredError
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
from .handle import RunHandle as RunHandle
from .late_names import late_names as _late_names
from .runner import Flujo as Flujo
from .telemetry.log_records import hide_secrets_in_log as _hide_secrets_in_log

if TYPE_CHECKING:
    from .agents.compaction import compact_history as compact_history
    from .agents.factory import make_agent_async as make_agent_async
    from .agents.units import current_unit as current_unit
    from .bridge.threads import abandoned_threads as abandoned_threads
    from .client import RunClient as RunClient
    from .client import RunInfo as RunInfo
    from .core.known_models import register_type as register_type
    from .core.payloads import HookPayload as HookPayload
    from .core.payloads import OnPause as OnPause
    from .core.payloads import OnStepFailure as OnStepFailure
    from .core.payloads import PostRun as PostRun
    from .core.payloads import PostStep as PostStep
    from .core.payloads import PreRun as PreRun
    from .core.payloads import PreStep as PreStep
    from .core.recovery import LeftRun as LeftRun
    from .core.recovery import RecoveryReport as RecoveryReport
    from .core.reducers import Add as Add
    from .core.reducers import Append as Append
    from .core.reducers import Merge as Merge
    from .core.settings import Price as Price
    from .core.settings import Settings as Settings
    from .core.wire import from_json as from_json
    from .dsl.redirect import Redirect as Redirect
    from .json_text import to_json as to_json
    from .settings import load_settings as load_settings
    from .stores.memory import MemoryStore as MemoryStore
    from .stores.port import Store as Store
    from .stores.postgres import PostgresStore as PostgresStore
    from .stores.sqlite import SqliteStore as SqliteStore
    from .structured.builtins import ensure_object as ensure_object
    from .structured.builtins import wrap_dict as wrap_dict
    from .structured.extract import extract_from_text as extract_from_text
    from .structured.read import normalize_json_text as normalize_json_text
    from .structured.read import parse_and_validate as parse_and_validate
else:
    __getattr__, __dir__ = _late_names(
        __name__,
        {
            "Add": ".core.reducers",
            "Append": ".core.reducers",
            "HookPayload": ".core.payloads",
            "Merge": ".core.reducers",
            "LeftRun": ".core.recovery",
            "MemoryStore": ".stores.memory",
            "OnPause": ".core.payloads",
            "OnStepFailure": ".core.payloads",
            "PostRun": ".core.payloads",
            "PostStep": ".core.payloads",
            "PostgresStore": ".stores.postgres",
            "PreRun": ".core.payloads",
            "PreStep": ".core.payloads",
            "Price": ".core.settings",
            "RecoveryReport": ".core.recovery",
            "Redirect": ".dsl.redirect",
            "RunClient": ".client",
            "RunInfo": ".client",
            "Settings": ".core.settings",
            "SqliteStore": ".stores.sqlite",
            "Store": ".stores.port",
            "abandoned_threads": ".bridge.threads",
            "compact_history": ".agents.compaction",
            "current_unit": ".agents.units",
            "ensure_object": ".structured.builtins",
            "extract_from_text": ".structured.extract",
            "from_json": ".core.wire",
            "load_settings": ".settings",
            "make_agent_async": ".agents.factory",
            "normalize_json_text": ".structured.read",
            "parse_and_validate": ".structured.read",
            "register_type": ".core.known_models",
            "to_json": ".json_text",
            "wrap_dict": ".structured.builtins",
        },
    )

_hide_secrets_in_log()

__all__ = [
    "AbortRun",
    "Aborted",
    "Add",
    "AlreadyAnswered",
    "Append",
    "Backoff",
    "Chunk",
    "Context",
    "ContextError",
    "ControlError",
    "CorruptRecord",
    "DeclarationError",
    "ErrorInfo",
    "Failure",
    "FingerprintMismatch",
    "Flujo",
    "FlujoError",
    "Frame",
    "HookPayload",
    "InfiniteRedirectError",
    "InvalidAnswer",
    "LeaseLost",
    "LeftRun",
    "LoopAlreadyRunning",
    "MaxTurnsReached",
    "MemoryStore",
    "Merge",
    "MergeConflict",
    "MissingAgentError",
    "MockDetectionError",
    "NoOutput",
    "NotAwaited",
    "NotPaused",
    "NotSerializable",
    "OnPause",
    "OnStepFailure",
    "Paused",
    "Pipeline",
    "PipelineResult",
    "PostRun",
    "PostStep",
    "PostgresStore",
    "PreRun",
    "PreStep",
    "Price",
    "PricingNotConfiguredError",
    "Processing",
    "Processors",
    "RecoveryReport",
    "Redirect",
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
    "SqliteStore",
    "Step",
    "StepOutcome",
    "StepResult",
    "StepTimeout",
    "Store",
    "StoreError",
    "StoreVersionError",
    "StreamLimitExceeded",
    "StructuredOutputError",
    "Success",
    "TransactionLost",
    "TransactionRefused",
    "UncertainUnit",
    "UnknownOption",
    "Usage",
    "UsageLimitExceededError",
    "UsageLimits",
    "abandoned_threads",
    "compact_history",
    "current_unit",
    "ensure_object",
    "extract_from_text",
    "from_json",
    "load_settings",
    "make_agent_async",
    "normalize_json_text",
    "parse_and_validate",
    "register_type",
    "step",
    "to_json",
    "wrap_dict",
]
