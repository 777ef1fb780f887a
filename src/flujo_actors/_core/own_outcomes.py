"""Outcomes that user code makes itself, checked before anybody relies on them.

The runtime's own are right by construction; checking those would cost every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType

import attrs

from .outcomes import Aborted, ErrorInfo, Failure, Paused, StepResult, Success
from .usage import Usage

_FIELDS: dict[type, dict[str, tuple[type, ...]]] = {
    Success: {"step_result": (StepResult,)},
    Failure: {
        "error": (BaseException, ErrorInfo, NoneType),
        "feedback": (str, NoneType),
        "step_result": (StepResult, NoneType),
    },
    Paused: {"message": (str,)},
    Aborted: {"reason": (str,)},
    StepResult: {
        "success": (bool,),
        "token_counts": (int,),
        "cost_usd": (int, float),
        "feedback": (str, NoneType),
        "metadata": (Mapping,),
        "usage": (Usage,),
    },
}


def checked_outcome(outcome: object) -> object:
    """The outcome; `TypeError` or `ValueError` that names the field if it says something that no outcome can say."""
    for name, kinds in _FIELDS[type(outcome)].items():
        part = getattr(outcome, name)
        if not isinstance(part, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
            raise TypeError(f"the {name} of a {type(outcome).__name__} is a {type(part).__name__}, not a {wanted}")
        _check_amount(part, f"the {name} of a {type(outcome).__name__}")
        if isinstance(part, Usage):
            for field in attrs.fields(Usage):
                _check_amount(getattr(part, field.name), f"{field.name} in the usage of a {type(outcome).__name__}")
        if isinstance(part, StepResult):
            checked_outcome(part)
    return outcome


def _check_amount(part: object, what: str) -> None:
    """Tokens and dollars are counted against limits: what is no amount would take a limit away."""
    if isinstance(part, int | float) and not 0 <= part < math.inf:
        raise ValueError(f"{what} is {part}, not a number of at least 0")
