"""`>>`: what steps and pipelines have in common, with the types that flow along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from .._core.type_parameters import Generic, In, Out

if TYPE_CHECKING:
    from .pipeline import Pipeline, StepLike
    from .typed_parts import Answers, I, Returns, Streams, T, TypedStep


class Chained(Generic[In, Out]):
    """Something that takes its place in a row of steps; whatever follows must take what comes out of it."""

    __slots__ = ()

    @overload
    def __rshift__(self, following: TypedStep[Out, T]) -> Pipeline[In, T]: ...
    @overload
    def __rshift__(self, following: Streams[Out, str]) -> Pipeline[In, str]: ...  # type: ignore[overload-overlap]
    @overload
    def __rshift__(self, following: Streams[Out, bytes]) -> Pipeline[In, bytes]: ...  # type: ignore[overload-overlap]
    @overload
    def __rshift__(self, following: Streams[Out, T]) -> Pipeline[In, list[T]]: ...
    @overload
    def __rshift__(self, following: Answers[Out, T]) -> Pipeline[In, T]: ...
    @overload
    def __rshift__(self, following: Returns[Out, T]) -> Pipeline[In, T]: ...
    def __rshift__(self, following: StepLike) -> Pipeline[In, Any]:
        from .pipeline import chain  # the one cycle of the DSL: a step can make a pipeline of itself

        return chain(self, following)

    @overload
    def __rrshift__(self, preceding: Streams[I, Any]) -> Pipeline[I, Out]: ...
    @overload
    def __rrshift__(self, preceding: Answers[I, In]) -> Pipeline[I, Out]: ...
    @overload
    def __rrshift__(self, preceding: Returns[I, In]) -> Pipeline[I, Out]: ...
    def __rrshift__(self, preceding: StepLike) -> Pipeline[Any, Out]:
        from .pipeline import chain  # the same

        return chain(preceding, self)
