"""What a run tells while it happens: sinks for typed events, behind one redactor."""

from .redaction import REPLACEMENT as REPLACEMENT
from .redaction import Redactor as Redactor
from .sinks import SILENT as SILENT
from .sinks import LogSink as LogSink
from .sinks import MemorySink as MemorySink
from .sinks import Sink as Sink
from .sinks import Telemetry as Telemetry
