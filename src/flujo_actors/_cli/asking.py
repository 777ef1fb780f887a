"""`--ask`: the questions of a run, asked in the terminal where it runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .._core.outcomes import PipelineResult
from .._core.pause_tokens import parse_token
from .printing import printable
from .values import answers

if TYPE_CHECKING:
    from .._runner import Flujo


def asked(flujo: Flujo, result: PipelineResult) -> list[Any] | None:
    """What somebody answers, in whatever way it may be meant; `None` if nobody does."""
    sys.stderr.write(f"{printable(result.feedback or '', lines=True)}\n> ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        sys.stderr.write("\n")
        return None
    return answers(line.rstrip("\r\n"), _schema(flujo, str(result.state_token)))


def _schema(flujo: Flujo, token: str) -> object:
    """The JSON Schema of an answer, as far as the pipeline tells."""
    from .._dsl.tree import find_step

    step = find_step(flujo.pipeline, parse_token(token)[1])
    wanted = getattr(step, "input_schema", None)
    if wanted is None or isinstance(wanted, dict):
        return wanted
    from ..structured._schema import compile_schema  # loads pydantic

    return dict(compile_schema(wanted).json_schema)
