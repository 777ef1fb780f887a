"""The parameters of generic types: what goes in, what comes out, and the context.

They are for type checkers. At run time a subscript changes nothing (`PipelineResult[int]` is `PipelineResult`), so that
messages cost nothing more, annotations can be read back, and isinstance goes on working.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

NOTHING: Any = None
"""Stands where there is no value of whatever type it should have."""

if TYPE_CHECKING:
    from typing import Generic as Generic

    from typing_extensions import TypeVar

    In = TypeVar("In", contravariant=True, default=Any)
    """What a step is given."""
    Out = TypeVar("Out", covariant=True, default=Any)
    """What a step gives."""
    Ctx = TypeVar("Ctx", covariant=True, default=Any)
    """The context of a run."""
else:
    In = Out = Ctx = Any

    class Generic:
        """What stands at run time for `typing.Generic`, which would make a new object of every subscript."""

        __slots__ = ()

        def __class_getitem__(cls, _: object) -> type:
            return cls
