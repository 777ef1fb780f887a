"""What crosses the border besides data: the context variables that the user names, and the headers of a trace."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from ..errors import DeclarationError


def checked_carry(carry: Iterable[Any]) -> tuple[ContextVar[object], ...]:
    """The variables to carry, if they are such, and told apart by name."""
    variables = tuple(carry)
    for each in variables:
        if not isinstance(each, ContextVar):
            raise DeclarationError(f"carry must be a list of ContextVar(…), not {each!r}")
    names = [each.name for each in variables]
    if len(set(names)) < len(names):
        raise DeclarationError(f"carry: two variables share a name, and are known by it elsewhere: {names}")
    return variables


def carried_now(carry: Iterable[ContextVar[object]]) -> dict[str, object]:
    """The values of the variables, as JSON data; one that has none is left out."""
    return {each.name: _as_json(each, value) for each in carry if (value := each.get(_NOTHING)) is not _NOTHING}


_NOTHING: object = object()


def _as_json(variable: ContextVar[object], value: object) -> object:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise DeclarationError(f"carry: the value of {variable.name!r} is no JSON data ({error})") from error


def set_carried(carry: Iterable[ContextVar[object]], carried: Mapping[str, object]) -> None:
    """Give the variables their values in the current task; only those that both sides name."""
    for each in carry:
        if each.name in carried:
            each.set(carried[each.name])


def trace_headers() -> dict[str, str]:
    """The W3C headers of the current trace, if there is one."""
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:  # nobody has a trace without it
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(headers)
    return {name: value for name, value in headers.items() if len(value) <= 200}


@contextlib.contextmanager
def in_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """The block belongs to the trace of whoever asked for it, if that had one and this program tells of traces."""
    if not headers or "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(dict(headers)))
    try:
        yield
    finally:
        context.detach(token)
