"""The options of steps, spelled for type checkers: a misspelt one is an error in the editor.

A test holds that they are the ones that the steps have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Required, TypedDict

if TYPE_CHECKING:
    from .._core.backoff import Backoff
    from .._core.loops import LoopGuard
    from .._core.usage import UsageLimits
    from .compensation import Compensate
    from .context_sources import ContextSources, Source
    from .declared import Processors
    from .kinds import Merging, OnBranchFailure
    from .pipeline import StepLike
    from .processing import Processing


class Options(TypedDict, total=False):
    """What can be said of a step of any kind."""

    max_retries: int
    backoff: Backoff
    timeout_s: float | None
    fallback: StepLike | None
    validators: Callable[..., Any] | Iterable[Callable[..., Any]]
    updates_context: bool
    usage_limits: UsageLimits | None
    on_failure: StepLike | Iterable[StepLike] | None
    compensate: StepLike | Compensate | Mapping[str, StepLike | Compensate] | None
    min_confidence: float | None
    confidence: object
    on_low_confidence: StepLike | Iterable[StepLike] | None
    meta: Mapping[str, object]
    runs_on: str | None


class KindOptions(Options, total=False):
    """What can be said of a step that contains others, or waits for a person."""

    input: object
    processors: Processors | Mapping[str, object]


class LoopOptions(KindOptions, total=False):
    """What can be said of a loop, besides its body and when it ends."""

    guard: LoopGuard | None


class MapOptions(KindOptions, total=False):
    """What can be said of a map, besides its body and its items."""

    merge: Merging
    batch: int


class ParallelOptions(KindOptions, total=False):
    """What can be said of branches that run at once."""

    merge: Merging
    on_branch_failure: OnBranchFailure
    max_concurrency: int | None


class AgentOptions(Options, total=False):
    """What can be said of a step that calls an agent, apart from what changes the types of its data."""

    deps: Any
    message_history: object
    context_sources: ContextSources | Iterable[Source] | None
    mergeable_output: bool


class GivenInput(AgentOptions):
    """… with an input of its own: it does not matter what the step before hands over."""

    input: Required[object]


class DataOptions(AgentOptions, total=False):
    """… with what makes other types of the data: processors, or a schema of the step's own."""

    processors: Processors | Mapping[str, object]
    processing: Processing | Mapping[str, object]


class AllOptions(DataOptions, total=False):
    """Everything that can be said of a step that calls an agent."""

    input: object


class WithProcessors(AgentOptions, total=False):
    """… with processors, whose types nobody can follow."""

    processors: Required[Processors | Mapping[str, Any]]
    input: object
    processing: Processing | Mapping[str, object]


class WithProcessing(AgentOptions, total=False):
    """… with switches of structured output: a schema makes another type of what comes out."""

    processing: Required[Processing | Mapping[str, Any]]
    input: object
