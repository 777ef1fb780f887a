"""The result of a run on standard output, and nothing else there."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from .._core.outcomes import PipelineResult
from .._core.safe_text import in_lines
from ..errors import NotSerializable
from .stored import SCHEMA_VERSION

if TYPE_CHECKING:
    from .run import RunOptions
    from .run_views import RunView


def print_result(view: RunView, result: PipelineResult, options: RunOptions) -> None:
    """What a run came to, for people and pipes; what else there is to say goes to standard error."""
    if options["as_json"]:
        _write(json_result(result))
    elif result.status == "completed" and not view.streamed_all:
        _write(output_text(result.output))
    view.tell_end(result)


def json_result(result: PipelineResult) -> str:
    """The result as one document."""
    from .._json_text import to_json

    data = json.loads(to_json(result, plain=True))
    data.pop("kind", None)
    return json.dumps({"schema_version": SCHEMA_VERSION, **data}, ensure_ascii=False, indent=2)


def output_text(output: object) -> str:
    """A text as it is, anything else as JSON."""
    if isinstance(output, str):
        return output
    from .._json_text import to_json

    try:
        return json.dumps(json.loads(to_json(output, plain=True)), ensure_ascii=False, indent=2)
    except NotSerializable:
        return repr(output)


def write_text(text: str) -> None:
    """Text for standard output: as it is, but for a terminal without what it would obey."""
    shown = in_lines(text) if sys.stdout.isatty() else text
    sys.stdout.write(shown.encode("utf-8", "backslashreplace").decode("utf-8"))
    sys.stdout.flush()


def _write(text: str) -> None:
    write_text(text if text.endswith("\n") else f"{text}\n")
