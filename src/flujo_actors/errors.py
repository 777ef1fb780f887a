"""Every exception of the library: one class for each thing a caller can do differently.

Three families, and what each is for:

- `DeclarationError`: a pipeline was written wrongly; raised while it is built, never while it runs.
- `ControlError`: the run must stop now, whatever the step, its retries, its fallback or its siblings say;
  it reaches the caller from any depth and carries the partial `result`.
- everything else is about one request that cannot be granted (a resume, an answer, an id, a message).

A step that merely fails raises nothing: it is a `Failure` in the result.
"""

from __future__ import annotations

from typing import Any


class FlujoError(Exception):
    """Base of everything this library raises on purpose."""


# --- declarations -----------------------------------------------------------------------------------------


class DeclarationError(FlujoError):
    """A step, pipeline, hook or setting was declared in a way that cannot work."""


# --- control ----------------------------------------------------------------------------------------------


class ControlError(FlujoError):
    """The run stops here. `result` is what it had reached, filled in before the caller sees the error."""

    result: Any = None
    """The partial `PipelineResult`."""


class MissingAgentError(ControlError, DeclarationError):
    """A step has no agent to call."""


class MockDetectionError(ControlError):
    """A step's output is a `unittest.mock` object: a test double leaked into a run."""


class UsageLimitExceededError(ControlError):
    """A usage limit would be passed by the next call, or was passed by the last one."""


class PricingNotConfiguredError(ControlError):
    """A cost is needed and no price is known for the model."""


class InfiniteRedirectError(ControlError):
    """Redirects between agents came back to an agent that had its turn."""


# --- pausing, resuming, identity --------------------------------------------------------------------------


class NotPaused(FlujoError):
    """There is no paused run behind this token."""


class InvalidAnswer(FlujoError):
    """The answer does not fit the pause's `input_schema`; the run stays paused."""


class RunExists(FlujoError):
    """A run with this id has already been started."""


# --- steps ------------------------------------------------------------------------------------------------


class StepTimeout(FlujoError, TimeoutError):
    """An attempt took longer than the step's `timeout_s`."""


# --- structured output ------------------------------------------------------------------------------------


class StructuredOutputError(FlujoError, ValueError):
    """No value that the schema accepts could be read from the text."""
