"""What can be told of an exception when the object itself cannot be kept."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator

from outcome import Error

from .foreign_code import tried
from .outcomes import ErrorInfo, Frame

_LONGEST_CAUSE_CHAIN = 20

FRAMES_KEPT = 20
"""How many frames of a traceback are kept, of its end."""

_MEMBERS_KEPT = 50
"""How many members of a group are kept; its message counts the others."""

_LONGEST_MESSAGE = 10_000_000
"""How many characters of a message are told. Texts of any ordinary length, megabytes included, are told as they are."""

_LEAVES_TOLD = 5
"""How many members of a group its message tells; the others are counted."""

_THIS_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_INSTALLED = ("site-packages", "dist-packages")


# --- what it says -------------------------------------------------------------------------------------------


def message_of(error: BaseException) -> str:
    """The text of an exception, also of one whose `__str__` is broken; a group tells what its members say."""
    if not isinstance(error, BaseExceptionGroup):
        return _own_message_of(error)
    told = "; ".join(said_by(leaf) for leaf in itertools.islice(leaves_of(error), _LEAVES_TOLD))
    others = sum(1 for _ in leaves_of(error)) - _LEAVES_TOLD
    return f"{_own_message_of(error)}: {told}" + (f"; and {others} more" if others > 0 else "")


def said_by(error: BaseException) -> str:
    """The type of an exception and its text."""
    return f"{type(error).__name__}: {message_of(error)}"


def _own_message_of(error: BaseException) -> str:
    text = tried(str, error)  # an exception class may do anything here
    if isinstance(text, Error):
        return f"<no message: its __str__ raised {type(text.error).__name__}>"
    more = len(text.value) - _LONGEST_MESSAGE
    return text.value if more <= 0 else f"{text.value[:_LONGEST_MESSAGE]}… and {more} more characters"


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """The exception, or the members of a group that are no groups themselves, however deep they lie."""
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
    """What an exception was raised from; its class may have made something else of `__cause__`."""
    return BaseException.__cause__.__get__(error)  # type: ignore[no-any-return, union-attr]


# --- where it was raised ------------------------------------------------------------------------------------


def frames_of(error: BaseException) -> tuple[Frame, ...]:
    """The end of the traceback, where it was raised last."""
    return tuple(deque(_traceback(error), maxlen=FRAMES_KEPT))


def _traceback(error: BaseException) -> Iterator[Frame]:
    step = BaseException.__traceback__.__get__(error)  # type: ignore[union-attr]
    while step is not None:
        code = step.tb_frame.f_code
        yield Frame(file=code.co_filename, line=step.tb_lineno or 0, function=code.co_qualname)
        step = step.tb_next


def place_of(error: BaseException) -> Frame | None:
    """The line to look at first: the last of the user's own code, else the last that is not this library's."""
    frames = [frame for leaf in leaves_of(error) for frame in reversed(list(_traceback(leaf)))]
    foreign = [frame for frame in frames if not frame.file.startswith(_THIS_PACKAGE)]
    return next(filter(_is_own_code, foreign), next(iter(foreign), None))


def _is_own_code(frame: Frame) -> bool:
    installed = any(folder in frame.file for folder in _INSTALLED)
    return not installed and not frame.file.startswith((_STANDARD_LIBRARY, "<frozen"))


# --- notes --------------------------------------------------------------------------------------------------


def put_note(error: BaseException, kind: str, text: str) -> None:
    """Leave a note on an exception, in the place of an earlier one of its kind: some are raised again and again.

    It goes past `add_note` and `__setattr__`, which an exception class may refuse.
    """
    tried(_put_note, error, kind, text)


def _put_note(error: BaseException, kind: str, text: str) -> None:
    notes = vars(error).setdefault("__notes__", [])
    if isinstance(notes, list):
        notes[:] = [*(note for note in notes if not str(note).startswith(kind)), f"{kind}{text}"]


# --- what is kept -------------------------------------------------------------------------------------------


def describe_error(error: BaseException) -> ErrorInfo:
    """What can be kept of an exception: type name, message, notes, frames and what stands behind it."""
    described = tried(_described, error, ())  # its class may have made anything of what it carries
    if isinstance(described, Error):
        return ErrorInfo(type_name=type(error).__name__, message=message_of(error))
    return described.value


def _described(error: BaseException, above: tuple[BaseException, ...]) -> ErrorInfo:
    # Causes may go in a circle: an exception is not told again below itself.
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
    """The notes that are text; `add_note` allows no others, but the attribute can be set to anything."""
    notes = getattr(error, "__notes__", ())
    return tuple(note for note in notes if isinstance(note, str)) if isinstance(notes, list | tuple) else ()
