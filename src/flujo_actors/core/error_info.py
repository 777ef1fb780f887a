"""What can be told of an exception when the object itself cannot be kept."""

from __future__ import annotations

from .outcomes import ErrorInfo

_LONGEST_CAUSE_CHAIN = 20


def message_of(error: BaseException) -> str:
    """The text of an exception, also of one whose `__str__` is broken."""
    try:
        return str(error)
    except Exception as broken:  # user code: an exception class may do anything here
        return f"<no message: its __str__ raised {type(broken).__name__}>"


def describe_error(error: BaseException) -> ErrorInfo:
    """What can be kept of an exception: type name, message, notes and what stands behind it."""
    return _described(error, ())


def _described(error: BaseException, above: tuple[BaseException, ...]) -> ErrorInfo:
    # Causes may go in a circle: an exception is not told again below itself.
    above = (*above, error)
    behind = [each for each in _behind(error) if not any(each is other for other in above)]
    return ErrorInfo(
        type_name=type(error).__name__,
        message=message_of(error),
        notes=_notes_of(error),
        causes=tuple(_described(each, above) for each in behind) if len(above) <= _LONGEST_CAUSE_CHAIN else (),
    )


def _behind(error: BaseException) -> list[BaseException]:
    members = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    cause = error.__cause__
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    return members if cause is None else [*members, cause]


def _notes_of(error: BaseException) -> tuple[str, ...]:
    """The notes that are text; `add_note` allows no others, but the attribute can be set to anything."""
    notes = getattr(error, "__notes__", ())
    return tuple(note for note in notes if isinstance(note, str)) if isinstance(notes, list | tuple) else ()
