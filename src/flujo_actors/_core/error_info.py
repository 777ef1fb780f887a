"""Serializable description of an exception.

Sections:

- Calls into code of users' values: properties, copies, comparisons, texts, constructors.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from outcome import Error, Value

from .outcomes import ErrorInfo, TracebackFrame

# --- Calls into code of users' values -----------------------------------------------------------------------------
# User code that works for a step is called through the bridge's guard. Values carry code, too. Copying, comparing,
# storing or printing a value must not fail with it, so exceptions of such code are returned as values.


P = ParamSpec("P")
T = TypeVar("T")


def tried(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Value[T] | Error:
    """Return the result of `fn` or the exception that it raises.

    `KeyboardInterrupt` and other non-`Exception` errors propagate.
    """
    try:
        return Value(fn(*args, **kwargs))
    except Exception as error:  # user code: see above
        return Error(error)


# --- Serializable description of an exception ---------------------------------------------------------------------


_LONGEST_CAUSE_CHAIN = 20

FRAMES_KEPT = 20
"""Number of traceback frames kept, counted from the end."""

_MEMBERS_KEPT = 50
"""Number of group members kept; the group's message counts the rest."""

_LONGEST_MESSAGE = 10_000_000
"""Maximum length of a message in characters."""

_LEAVES_SHOWN = 5
"""Number of members quoted in a group's message; the rest are counted."""

_THIS_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_INSTALLED = ("site-packages", "dist-packages")


# --- message ------------------------------------------------------------------------------------------------


def message_of(error: BaseException) -> str:
    """Return the text of an exception, even if its `__str__` fails.

    The message of a group quotes its members.
    """
    if not isinstance(error, BaseExceptionGroup):
        return _own_message_of(error)
    texts = "; ".join(text_from(leaf) for leaf in itertools.islice(leaves_of(error), _LEAVES_SHOWN))
    others = sum(1 for _ in leaves_of(error)) - _LEAVES_SHOWN
    return f"{_own_message_of(error)}: {texts}" + (f"; and {others} more" if others > 0 else "")


def text_from(error: BaseException) -> str:
    """Return the type of an exception and its text."""
    return f"{type(error).__name__}: {message_of(error)}"


def _own_message_of(error: BaseException) -> str:
    text = tried(str, error)  # an exception class may do anything here
    if isinstance(text, Error):
        return f"<no message: its __str__ raised {type(text.error).__name__}>"
    more = len(text.value) - _LONGEST_MESSAGE
    return text.value if more <= 0 else f"{text.value[:_LONGEST_MESSAGE]}… and {more} more characters"


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception, or all non-group members of a group."""
    pending = [error]
    while pending:
        each = pending.pop()
        if isinstance(each, BaseExceptionGroup):
            pending.extend(reversed(_members_of(each)))
        else:
            yield each


def _members_of(group: BaseExceptionGroup[BaseException]) -> tuple[BaseException, ...]:
    return BaseExceptionGroup.exceptions.__get__(group)  # type: ignore[no-any-return]


def cause_of(error: BaseException) -> BaseException | None:
    """Return the cause of an exception; its class may override `__cause__`."""
    return BaseException.__cause__.__get__(error)  # type: ignore[no-any-return, union-attr]


# --- where it was raised ------------------------------------------------------------------------------------


def frames_of(error: BaseException) -> tuple[TracebackFrame, ...]:
    """Return the end of the traceback, where it was raised last."""
    return tuple(deque(_traceback(error), maxlen=FRAMES_KEPT))


def _traceback(error: BaseException) -> Iterator[TracebackFrame]:
    step = BaseException.__traceback__.__get__(error)  # type: ignore[union-attr]
    while step is not None:
        code = step.tb_frame.f_code
        yield TracebackFrame(file=code.co_filename, line=step.tb_lineno or 0, function=code.co_qualname)
        step = step.tb_next


def place_of(error: BaseException) -> TracebackFrame | None:
    """Return the innermost frame of user code, else outside this library."""
    frames = [frame for leaf in leaves_of(error) for frame in reversed(list(_traceback(leaf)))]
    foreign = [frame for frame in frames if not frame.file.startswith(_THIS_PACKAGE)]
    return next(filter(_is_own_code, foreign), next(iter(foreign), None))


def own_place_of(error: BaseException) -> TracebackFrame | None:
    """Return the innermost frame of user code; `None` without any."""
    place = place_of(error)
    return None if place is None or not _is_own_code(place) else place


def _is_own_code(frame: TracebackFrame) -> bool:
    return _is_not_installed(frame.file)


def _is_not_installed(file: str) -> bool:
    installed = any(folder in file for folder in _INSTALLED)
    return not installed and not file.startswith((_STANDARD_LIBRARY, "<frozen"))


def is_user_file(file: str) -> bool:
    """Return whether a file belongs to neither a library nor this package."""
    return _is_not_installed(file) and "/flujo_actors/" not in file


# --- notes --------------------------------------------------------------------------------------------------


def put_note(error: BaseException, kind: str, text: str) -> None:
    """Set a note on an exception, replacing one of its kind.

    Exceptions may be raised repeatedly. The note bypasses `add_note` and `__setattr__`, which a class may refuse.
    """
    tried(_put_note, error, kind, text)


def _put_note(error: BaseException, kind: str, text: str) -> None:
    notes = vars(error).setdefault("__notes__", [])
    if isinstance(notes, list):
        notes[:] = [*(note for note in notes if not str(note).startswith(kind)), f"{kind}{text}"]


# --- description --------------------------------------------------------------------------------------------


def error_type_of(error: BaseException | ErrorInfo | None) -> str | None:
    """Return the class name of an error of any process."""
    if error is None:
        return None
    return error.type_name if isinstance(error, ErrorInfo) else type(error).__name__


def describe_error(error: BaseException) -> ErrorInfo:
    """Return type name, message, notes, frames and causes of an exception."""
    described = tried(_described, error, ())  # the exception class may override its attributes
    if isinstance(described, Error):
        return ErrorInfo(type_name=type(error).__name__, message=message_of(error))
    return described.value


def _described(error: BaseException, above: tuple[BaseException, ...]) -> ErrorInfo:
    # Causes may form a cycle: an exception is not repeated below itself.
    above = (*above, error)
    behind = [each for each in _behind(error) if not any(each is other for other in above)]
    return ErrorInfo(
        type_name=type(error).__name__,
        message=message_of(error),
        notes=_notes_of(error),
        causes=tuple(_described(each, above) for each in behind) if len(above) <= _LONGEST_CAUSE_CHAIN else (),
        frames=frames_of(error),
    )


def _behind(error: BaseException) -> list[BaseException]:
    members = list(_members_of(error)[:_MEMBERS_KEPT]) if isinstance(error, BaseExceptionGroup) else []
    cause = cause_of(error)
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    return members if cause is None else [*members, cause]


def _notes_of(error: BaseException) -> tuple[str, ...]:
    """Return the notes that are strings; users may set anything."""
    notes = getattr(error, "__notes__", ())
    return tuple(note for note in notes if isinstance(note, str)) if isinstance(notes, list | tuple) else ()
