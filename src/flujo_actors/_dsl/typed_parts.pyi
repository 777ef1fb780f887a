"""Types accepted for a step or an agent, for type checkers only.

`I` is the input, `O` the output. User code may take further keywords (`context`, `resources`, …), so all signatures are
open.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Concatenate, Protocol, TypeAlias, TypeVar, overload

from pydantic_ai.agent import AbstractAgent

from .._core.type_parameters import In, Out
from .declared_step import Declared
from .pipeline import Pipeline
from .step_declaration import Step

I = TypeVar("I")
O = TypeVar("O")
K = TypeVar("K")
T = TypeVar("T")

Streams: TypeAlias = Callable[Concatenate[I, ...], AsyncIterator[T]]
"""An async generator."""

Answers: TypeAlias = Callable[Concatenate[I, ...], Awaitable[O]]
"""An async function."""

Returns: TypeAlias = Callable[Concatenate[I, ...], O]
"""A function that runs in a thread."""

TypedStep: TypeAlias = Declared[I, O] | Pipeline[I, O]
"""A step or a pipeline."""

class RunsAgent(Protocol[In, Out]):
    """An object with `async run(data)`."""

    @property
    def run(self) -> Callable[Concatenate[In, ...], Awaitable[Out]]:
        """Callable that takes the data."""

ModelAgent: TypeAlias = AbstractAgent[Any, O]
"""pydantic-ai agent; it takes any prompt."""

class StepMaker(Protocol):
    """Decorator returned by `@step(…)`."""

    @overload
    def __call__(self, fn: Streams[I, str], /) -> Step[I, str]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Streams[I, bytes], /) -> Step[I, bytes]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Streams[I, T], /) -> Step[I, list[T]]: ...
    @overload
    def __call__(self, fn: Answers[I, O], /) -> Step[I, O]: ...
    @overload
    def __call__(self, fn: Returns[I, O], /) -> Step[I, O]: ...
