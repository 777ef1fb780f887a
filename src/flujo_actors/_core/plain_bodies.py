"""The records that most steps and runs write, by hand: a plain value, at the first attempt, and nothing used.

They are letter for letter what `record_bodies` writes for the same, at a tenth of the time. Whatever has to be looked
at (other types, long texts, large numbers, metadata, usage) is left to that.
"""

from __future__ import annotations

import math
from json.encoder import encode_basestring as _quoted

from .outcomes import PipelineResult, StepResult, Success, TerminalOutcome
from .records import RECORD_VERSION
from .usage import NO_USAGE

_LONG = 4 * 1024
_LARGE = 1 << 53
_COMPLETED = f'{{"v":{RECORD_VERSION},"status":"completed"}}'


def plain_body(outcome: TerminalOutcome) -> str | None:
    """The body of a step that settled like most; `None` for every other outcome."""
    if type(outcome) is not Success or not _is_plain(outcome.step_result):
        return None
    result = outcome.step_result
    output = plain_text(result.output)
    if output is None:
        return None
    latency = f',"latency_s":{round(result.latency_s, 6)!r}' if result.latency_s else ""
    return f'{{"v":{RECORD_VERSION},"success":{{"name":{_quoted(result.name)},"output":{output}{latency}}}}}'


def plain_end(result: PipelineResult) -> str | None:
    """The body of a run's last record where there is nothing to say but that it completed; `None` elsewhere."""
    used = result.total_tokens or result.total_cost_usd or result.feedback
    return _COMPLETED if result.status == "completed" and not used else None


def plain_text(value: object) -> str | None:
    """The JSON text of a plain value; `None` of any other."""
    if type(value) is str:
        return _quoted(value) if len(value) < _LONG else None
    if type(value) is int:
        return repr(value) if -_LARGE < value < _LARGE else None
    if value is True or value is False:
        return "true" if value else "false"
    return "null" if value is None else None


def _is_plain(result: StepResult) -> bool:
    """Whether there is nothing to say of a result but its name, its output and its time."""
    if result.usage is not NO_USAGE or result.metadata or result.step_history or result.feedback is not None:
        return False
    used = result.token_counts or result.cost_usd or result.attempts != 1 or not result.success
    return not used and type(result.latency_s) is float and math.isfinite(result.latency_s)
