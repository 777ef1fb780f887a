"""Telemetry: sinks for typed events, behind one redactor.

Most runs have no sink, and load none of this: see `lazy_names`.
"""

from typing import TYPE_CHECKING

from .._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .._core.telemetry_events import AgentInput as AgentInput
    from .._core.telemetry_events import AgentResponse as AgentResponse
    from .._core.telemetry_events import AgentSystem as AgentSystem
    from .._core.telemetry_events import AgentUsage as AgentUsage
    from .._core.telemetry_events import ArosFallbackStage as ArosFallbackStage
    from .._core.telemetry_events import ArosRepairFailed as ArosRepairFailed
    from .._core.telemetry_events import ArosRepairStarted as ArosRepairStarted
    from .._core.telemetry_events import ArosRepairSuccess as ArosRepairSuccess
    from .._core.telemetry_events import AttemptEnded as AttemptEnded
    from .._core.telemetry_events import AttemptStarted as AttemptStarted
    from .._core.telemetry_events import Event as Event
    from .._core.telemetry_events import EventDelivered as EventDelivered
    from .._core.telemetry_events import EventRefused as EventRefused
    from .._core.telemetry_events import HandlerFailed as HandlerFailed
    from .._core.telemetry_events import HookFailed as HookFailed
    from .._core.telemetry_events import ModelEnded as ModelEnded
    from .._core.telemetry_events import ModelStarted as ModelStarted
    from .._core.telemetry_events import RetentionDeleted as RetentionDeleted
    from .._core.telemetry_events import RunEndedEvent as RunEndedEvent
    from .._core.telemetry_events import RunPausedEvent as RunPausedEvent
    from .._core.telemetry_events import RunResumed as RunResumed
    from .._core.telemetry_events import RunRetried as RunRetried
    from .._core.telemetry_events import RunStarted as RunStarted
    from .._core.telemetry_events import RunTaken as RunTaken
    from .._core.telemetry_events import RunWaiting as RunWaiting
    from .._core.telemetry_events import RunWoken as RunWoken
    from .._core.telemetry_events import StepEnded as StepEnded
    from .._core.telemetry_events import StepFallback as StepFallback
    from .._core.telemetry_events import StepRecovered as StepRecovered
    from .._core.telemetry_events import StepRetry as StepRetry
    from .._core.telemetry_events import StepStarted as StepStarted
    from .._core.telemetry_events import StepUnstoppable as StepUnstoppable
    from .._core.telemetry_events import ToolEnded as ToolEnded
    from .._core.telemetry_events import ToolStarted as ToolStarted
    from .._core.telemetry_events import UndoEnded as UndoEnded
    from .._core.telemetry_events import UndoStarted as UndoStarted
    from ._null_telemetry import SILENT as SILENT
    from ._null_telemetry import NullTelemetry as NullTelemetry
    from ._redaction.redactor import REPLACEMENT as REPLACEMENT
    from ._redaction.redactor import Redactor as Redactor
    from ._sinks import LogSink as LogSink
    from ._sinks import MemorySink as MemorySink
    from ._sinks import Sink as Sink
    from ._sinks import Telemetry as Telemetry

    RunEnded = RunEndedEvent
    RunPaused = RunPausedEvent
    Silence = NullTelemetry
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "AgentInput": ".._core.telemetry_events",
            "AgentResponse": ".._core.telemetry_events",
            "AgentSystem": ".._core.telemetry_events",
            "AgentUsage": ".._core.telemetry_events",
            "ArosFallbackStage": ".._core.telemetry_events",
            "ArosRepairFailed": ".._core.telemetry_events",
            "ArosRepairStarted": ".._core.telemetry_events",
            "ArosRepairSuccess": ".._core.telemetry_events",
            "AttemptEnded": ".._core.telemetry_events",
            "AttemptStarted": ".._core.telemetry_events",
            "Event": ".._core.telemetry_events",
            "EventDelivered": ".._core.telemetry_events",
            "EventRefused": ".._core.telemetry_events",
            "HandlerFailed": ".._core.telemetry_events",
            "StepRecovered": ".._core.telemetry_events",
            "UndoStarted": ".._core.telemetry_events",
            "UndoEnded": ".._core.telemetry_events",
            "HookFailed": ".._core.telemetry_events",
            "LogSink": "._sinks",
            "MemorySink": "._sinks",
            "ModelEnded": ".._core.telemetry_events",
            "ModelStarted": ".._core.telemetry_events",
            "REPLACEMENT": "._redaction.redactor",
            "Redactor": "._redaction.redactor",
            "RunEndedEvent": ".._core.telemetry_events",
            "RunEnded": ".._core.telemetry_events:RunEndedEvent",
            "RunPausedEvent": ".._core.telemetry_events",
            "RunPaused": ".._core.telemetry_events:RunPausedEvent",
            "RunResumed": ".._core.telemetry_events",
            "RunRetried": ".._core.telemetry_events",
            "RunStarted": ".._core.telemetry_events",
            "RetentionDeleted": ".._core.telemetry_events",
            "RunTaken": ".._core.telemetry_events",
            "RunWaiting": ".._core.telemetry_events",
            "RunWoken": ".._core.telemetry_events",
            "SILENT": "._null_telemetry",
            "NullTelemetry": "._null_telemetry",
            "Silence": "._null_telemetry:NullTelemetry",
            "Sink": "._sinks",
            "StepEnded": ".._core.telemetry_events",
            "StepFallback": ".._core.telemetry_events",
            "StepRetry": ".._core.telemetry_events",
            "StepStarted": ".._core.telemetry_events",
            "StepUnstoppable": ".._core.telemetry_events",
            "Telemetry": "._sinks",
            "ToolEnded": ".._core.telemetry_events",
            "ToolStarted": ".._core.telemetry_events",
        },
    )
