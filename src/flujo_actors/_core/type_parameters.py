"""Parameters of generic types: input, output and context.

They are for type checkers. At run time a subscript changes nothing (`PipelineResult[int]` is `PipelineResult`), so
messages cost nothing more, annotations can be read back, and isinstance works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

NOTHING: Any = None
"""Placeholder for an absent value of any type."""

if TYPE_CHECKING:
    from typing import Generic as Generic

    from typing_extensions import TypeVar

    In = TypeVar("In", contravariant=True, default=Any)
    """Input of a step."""
    Out = TypeVar("Out", covariant=True, default=Any)
    """Output of a step."""
    Ctx = TypeVar("Ctx", covariant=True, default=Any)
    """The context of a run."""
else:
    In = Out = Ctx = Any

    class Generic:
        """Runtime replacement of `typing.Generic`, which would create an object per subscript."""

        __slots__ = ()

        def __class_getitem__(cls, _: object) -> type:
            return cls
