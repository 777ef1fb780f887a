"""A step that waits for a decision: options, a deadline, and what happens after no answer or a no."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

import attrs

from .._core.approvals import DEFAULT_OPTIONS, Decision, Option, as_options, option_of_kind
from .._core.paths import ESCALATION, REJECTION, Segment
from .._core.seconds import checked_seconds
from .._core.type_parameters import In, Out
from .._type_registry import register_type
from ..errors import DeclarationError
from .call_plan import check_takes_pair
from .declared import EMPTY, Declared, checked_count, frozen_mapping
from .pipeline import AnyStep, StepLike, as_step, step_of

OnTimeout: TypeAlias = Literal["approve", "reject", "fail"]
"""What time decides, unless it is a step."""

register_type(Decision)


def _as_options(value: object) -> Any:
    return DEFAULT_OPTIONS if value is None else value


def _as_path(value: object) -> Any:
    if value is None or isinstance(value, str):
        return value
    return step_of(cast("StepLike", value))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Approval(Declared[In, Out]):
    """Pauses the run until somebody decides, or until their time is over; what is approved passes on."""

    message: str | Callable[..., str] = attrs.field(kw_only=False)
    """What is asked: a text, or a callable `(data, context) -> text`."""
    options: tuple[Option, ...] = attrs.field(default=DEFAULT_OPTIONS, converter=_as_options)
    to: str | None = None
    """Who is asked; the application knows what it means."""
    deadline_s: float | None = None
    """How long is waited, from the moment at which it is asked."""
    on_timeout: OnTimeout | AnyStep = attrs.field(default="fail", converter=_as_path)
    on_rejection: AnyStep | None = attrs.field(default=None, converter=_as_path)
    max_deferrals: int = attrs.field(default=3, validator=checked_count)
    metadata: Mapping[str, Any] = attrs.field(default=EMPTY, converter=frozen_mapping)
    """What else whoever decides shall see, as JSON data."""

    kind: ClassVar[str] = "approval"

    def _inside(self) -> Iterable[tuple[Segment, AnyStep]]:
        """The way after a no, and after no answer."""
        if self.on_rejection is not None:
            yield REJECTION, self.on_rejection
        if not isinstance(self.on_timeout, str):
            yield ESCALATION, self.on_timeout

    def deciding(self) -> Iterator[tuple[str, object]]:
        """What every step has, and what is asked."""
        yield from Declared.deciding(self)
        yield "message", self.message

    def lasting(self) -> Iterator[tuple[str, object]]:
        """What can be answered."""
        yield "options", [f"{option.name}: {option.kind}" for option in self.options]

    def _check(self) -> None:
        where = f"step {self.name!r}"
        if not isinstance(self.message, str) and not callable(self.message):
            raise DeclarationError(f"{where}: message must be a text or a callable")
        if callable(self.message):
            check_takes_pair(self.message, what=f"{where}: message", first="data")
        object.__setattr__(self, "options", as_options(self.options, where=where))
        if self.to is not None and not isinstance(self.to, str):
            raise DeclarationError(f"{where}: to must be a text, not {self.to!r}")
        self._check_ways(where)

    def _check_ways(self, where: str) -> None:
        if self.deadline_s is not None:
            checked_seconds(self.deadline_s, what=f"{where}: timeout_s")
        if self.on_rejection is not None:
            as_step(self.on_rejection, where=f"{where}: on_rejection")
        if isinstance(self.on_timeout, str):
            self._check_word(where)
        else:
            as_step(self.on_timeout, where=f"{where}: on_timeout")

    def _check_word(self, where: str) -> None:
        if self.on_timeout not in get_args(OnTimeout):
            allowed = ", ".join(map(repr, get_args(OnTimeout)))
            raise DeclarationError(f"{where}: on_timeout must be one of {allowed}, or a step, not {self.on_timeout!r}")
        if self.on_timeout == "reject" and option_of_kind("reject", self.options) is None:
            raise DeclarationError(f"{where}: on_timeout is 'reject', but no option rejects")
