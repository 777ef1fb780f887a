"""A finished run as text."""

from __future__ import annotations

from .._core.outcomes import PipelineResult
from .._core.result_tree import drawn, in_color


def draw(result: PipelineResult, *, color: bool = False) -> str:
    """The run as a tree: how each step ended, how long it took, and what is worth knowing about it.

    More than eight equal siblings are one line with counts, and the first failures below it.
    """
    return drawn(result, paint=in_color) if color else drawn(result)
