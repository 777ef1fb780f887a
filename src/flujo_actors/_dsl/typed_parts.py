"""What may stand for a step or an agent, with the types that go in and come out; read by type checkers only.

`I` goes in, `O` comes out. Code may ask for more by keyword (`context`, `resources`, …), so all signatures are open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, TypeAlias, TypeVar, overload

from .._core.type_parameters import In, Out
from .declared import Declared
from .pipeline import Pipeline

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
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


class Runs(Protocol[In, Out]):
    """An object with `async run(data)`."""

    @property
    def run(self) -> Callable[Concatenate[In, ...], Awaitable[Out]]:
        """What is called with the data."""


if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent

    from .step import Step

    ModelAgent: TypeAlias = AbstractAgent[Any, O]
    """An agent of pydantic-ai: it takes whatever can be told to a model."""


class StepMaker(Protocol):
    """What `@step(…)` does to a function."""

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
