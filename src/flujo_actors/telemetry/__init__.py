"""What a run tells while it happens: sinks for typed events, behind one redactor.

Most runs tell nobody anything, and do without: see `lazy_names`.
"""

from typing import TYPE_CHECKING

from .._lazy_names import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .._core.events import AgentInput as AgentInput
    from .._core.events import AgentResponse as AgentResponse
    from .._core.events import AgentSystem as AgentSystem
    from .._core.events import AgentUsage as AgentUsage
    from .._core.events import ArosFallbackStage as ArosFallbackStage
    from .._core.events import ArosRepairFailed as ArosRepairFailed
    from .._core.events import ArosRepairStarted as ArosRepairStarted
    from .._core.events import ArosRepairSuccess as ArosRepairSuccess
    from .._core.events import AttemptEnded as AttemptEnded
    from .._core.events import AttemptStarted as AttemptStarted
    from .._core.events import Event as Event
    from .._core.events import HandlerFailed as HandlerFailed
    from .._core.events import HookFailed as HookFailed
    from .._core.events import ModelEnded as ModelEnded
    from .._core.events import ModelStarted as ModelStarted
    from .._core.events import RunEnded as RunEnded
    from .._core.events import RunPaused as RunPaused
    from .._core.events import RunResumed as RunResumed
    from .._core.events import RunStarted as RunStarted
    from .._core.events import RunTaken as RunTaken
    from .._core.events import StepEnded as StepEnded
    from .._core.events import StepFallback as StepFallback
    from .._core.events import StepRecovered as StepRecovered
    from .._core.events import StepRetry as StepRetry
    from .._core.events import StepStarted as StepStarted
    from .._core.events import StepUnstoppable as StepUnstoppable
    from .._core.events import ToolEnded as ToolEnded
    from .._core.events import ToolStarted as ToolStarted
    from .._core.events import UndoEnded as UndoEnded
    from .._core.events import UndoStarted as UndoStarted
    from ._redaction.redactor import REPLACEMENT as REPLACEMENT
    from ._redaction.redactor import Redactor as Redactor
    from ._silence import SILENT as SILENT
    from ._silence import Silence as Silence
    from ._sinks import LogSink as LogSink
    from ._sinks import MemorySink as MemorySink
    from ._sinks import Sink as Sink
    from ._sinks import Telemetry as Telemetry
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "AgentInput": ".._core.events",
            "AgentResponse": ".._core.events",
            "AgentSystem": ".._core.events",
            "AgentUsage": ".._core.events",
            "ArosFallbackStage": ".._core.events",
            "ArosRepairFailed": ".._core.events",
            "ArosRepairStarted": ".._core.events",
            "ArosRepairSuccess": ".._core.events",
            "AttemptEnded": ".._core.events",
            "AttemptStarted": ".._core.events",
            "Event": ".._core.events",
            "HandlerFailed": ".._core.events",
            "StepRecovered": ".._core.events",
            "UndoStarted": ".._core.events",
            "UndoEnded": ".._core.events",
            "HookFailed": ".._core.events",
            "LogSink": "._sinks",
            "MemorySink": "._sinks",
            "ModelEnded": ".._core.events",
            "ModelStarted": ".._core.events",
            "REPLACEMENT": "._redaction.redactor",
            "Redactor": "._redaction.redactor",
            "RunEnded": ".._core.events",
            "RunPaused": ".._core.events",
            "RunResumed": ".._core.events",
            "RunStarted": ".._core.events",
            "RunTaken": ".._core.events",
            "SILENT": "._silence",
            "Silence": "._silence",
            "Sink": "._sinks",
            "StepEnded": ".._core.events",
            "StepFallback": ".._core.events",
            "StepRetry": ".._core.events",
            "StepStarted": ".._core.events",
            "StepUnstoppable": ".._core.events",
            "Telemetry": "._sinks",
            "ToolEnded": ".._core.events",
            "ToolStarted": ".._core.events",
        },
    )
