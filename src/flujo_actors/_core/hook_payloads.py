"""What hooks are told: one payload type for each moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import attrs

from .outcomes import Failure, Paused, PipelineResult, TerminalOutcome


@attrs.frozen(kw_only=True)
class PreRun:
    """A run is about to start."""

    kind: ClassVar[Literal["pre_run"]] = "pre_run"
    run_id: str
    input: Any = None
    context: Any = None


@attrs.frozen(kw_only=True)
class PreStep:
    """A step is about to start."""

    kind: ClassVar[Literal["pre_step"]] = "pre_step"
    run_id: str
    step_name: str
    path: str = ""
    input: Any = None
    context: Any = None


@attrs.frozen(kw_only=True)
class PostStep:
    """A step settled, however it ended."""

    kind: ClassVar[Literal["post_step"]] = "post_step"
    run_id: str
    step_name: str
    outcome: TerminalOutcome
    path: str = ""


@attrs.frozen(kw_only=True)
class OnStepFailure:
    """A step settled as a failure; told exactly once for each failed step."""

    kind: ClassVar[Literal["on_step_failure"]] = "on_step_failure"
    run_id: str
    step_name: str
    outcome: Failure
    path: str = ""


@attrs.frozen(kw_only=True)
class OnPause:
    """A step paused the run."""

    kind: ClassVar[Literal["on_pause"]] = "on_pause"
    run_id: str
    step_name: str
    outcome: Paused
    path: str = ""


@attrs.frozen(kw_only=True)
class PostRun:
    """The run ended or paused; `result` is what the caller is about to get."""

    kind: ClassVar[Literal["post_run"]] = "post_run"
    run_id: str
    result: PipelineResult


HookPayload: TypeAlias = PreRun | PreStep | PostStep | OnStepFailure | OnPause | PostRun
"""Everything a hook can be told."""

PAYLOAD_TYPES: Mapping[str, type[Any]] = {payload_type.kind: payload_type for payload_type in get_args(HookPayload)}
"""Every payload by its kind."""
