"""What a run tells while it happens: sinks for typed events, behind one redactor.

Most runs tell nobody anything, and do without: see `late_names`.
"""

from typing import TYPE_CHECKING

from ..late_names import late_names as _late_names

if TYPE_CHECKING:
    from .redaction import REPLACEMENT as REPLACEMENT
    from .redaction import Redactor as Redactor
    from .silence import SILENT as SILENT
    from .silence import Silence as Silence
    from .sinks import LogSink as LogSink
    from .sinks import MemorySink as MemorySink
    from .sinks import Sink as Sink
    from .sinks import Telemetry as Telemetry
else:
    __getattr__, __dir__ = _late_names(
        __name__,
        {
            "LogSink": ".sinks",
            "MemorySink": ".sinks",
            "REPLACEMENT": ".redaction",
            "Redactor": ".redaction",
            "SILENT": ".silence",
            "Silence": ".silence",
            "Sink": ".sinks",
            "Telemetry": ".sinks",
        },
    )
