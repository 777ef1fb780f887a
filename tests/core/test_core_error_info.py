"""Exceptions to `ErrorInfo`: what is kept of them when they leave the process."""

from __future__ import annotations

from typing import Any

import pytest

from flujo_actors import ErrorInfo, Failure, StepResult, from_json, to_json
from flujo_actors._core.error_info import describe_error, message_of


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


def raised(make: Any) -> BaseException:
    try:
        make()
    except BaseException as error:
        return error
    raise AssertionError


def _chained() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


def _in_context() -> None:
    try:
        raise KeyError("inner")
    except KeyError:
        raise ValueError("outer")  # noqa: B904 - the implicit context is what is tested


def _hidden() -> None:
    try:
        raise KeyError("inner")
    except KeyError:
        raise ValueError("outer") from None


INNER = ErrorInfo(type_name="KeyError", message="'inner'")


@pytest.mark.parametrize(("make", "causes"), [(_chained, (INNER,)), (_in_context, (INNER,)), (_hidden, ())])
def test_the_cause_chain_is_kept_as_a_traceback_would_show_it(make: Any, causes: tuple[ErrorInfo, ...]) -> None:
    """An explicit cause and an implicit context are kept; a context hidden by `from None` is not."""
    assert describe_error(raised(make)) == ErrorInfo(type_name="ValueError", message="outer", causes=causes)


def test_a_failure_comes_back_with_an_error_info() -> None:
    """The exception itself stays in its process; type, message and notes travel."""
    error = ValueError("Internal error")
    error.add_note("while testing")
    failure = Failure(error=error, feedback="f", step_result=StepResult(name="a", success=False))
    back = from_json(to_json(failure), Failure)
    assert back.error == ErrorInfo(type_name="ValueError", message="Internal error", notes=("while testing",))
    assert back.error.type == "ValueError"
    assert str(back.error) == "ValueError: Internal error"
    assert from_json(to_json(back), Failure) == back


def test_an_exception_as_a_value_becomes_an_error_info() -> None:
    """A step may return exceptions among its data."""
    result = from_json(to_json(StepResult(name="a", output={"e": OSError(2, "gone")})), StepResult)
    assert result.output == {"e": ErrorInfo(type_name="FileNotFoundError", message="[Errno 2] gone")}


def test_the_members_of_a_group_are_its_causes() -> None:
    """Groups keep what is in them, nested groups too, and say what their members say."""
    group = ExceptionGroup("outer", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])
    info = describe_error(group)
    assert info.message == "outer (2 sub-exceptions): ValueError: a; KeyError: 'b'"
    assert [each.type_name for each in info.causes] == ["ValueError", "ExceptionGroup"]
    assert info.causes[1].causes[0].type_name == "KeyError"


def test_a_broken_str_does_not_hide_the_error() -> None:
    """An exception that cannot say what it is still has a type."""
    assert describe_error(Mute()) == ErrorInfo(
        type_name="Mute", message="<no message: its __str__ raised RuntimeError>"
    )


def test_a_message_is_told_as_it_is_unless_it_is_monstrous() -> None:
    """A few megabytes are; whoever quotes more is cut, and the rest is counted."""
    assert message_of(ValueError("x" * 3_000_000)) == "x" * 3_000_000
    assert message_of(ValueError("x" * 10_000_007)).endswith("x… and 7 more characters")


def test_a_cause_that_is_false_is_still_a_cause() -> None:
    """Exception classes may define truth as they like."""
    error = ValueError("outer")
    error.__cause__ = Falsy("inner")
    assert [each.type_name for each in describe_error(error).causes] == ["Falsy"]


@pytest.mark.parametrize("notes", [None, 5, [object()], "text"])
def test_strange_notes_are_left_out(notes: object) -> None:
    """`__notes__` can be set to anything; only texts in a list are notes."""
    error = ValueError("x")
    error.__notes__ = notes  # type: ignore[assignment]
    assert describe_error(error).notes == ()


def test_causes_in_a_circle_are_told_once() -> None:
    """An exception is not told again below itself."""
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert describe_error(first).causes == (ErrorInfo(type_name="KeyError", message="'second'"),)


def test_a_group_behind_its_own_members_is_told_once() -> None:
    """Circles through groups do not multiply: they would take three seconds for three members."""
    group = ExceptionGroup("g", [ValueError(str(n)) for n in range(20)])
    for member in group.exceptions:
        member.__cause__ = group
    assert [each.causes for each in describe_error(group).causes] == [()] * 20


def test_a_very_long_chain_is_cut() -> None:
    """The first twenty or so causes are kept, and the text stays readable."""
    error: BaseException = ValueError("0")
    for number in range(5000):
        error.__context__, error = None, _caused_by(error, number)
    depth, info = 0, describe_error(error)
    while info.causes:
        depth, info = depth + 1, info.causes[0]
    assert depth == 20


def _caused_by(cause: BaseException, number: int) -> BaseException:
    error = ValueError(str(number))
    error.__cause__ = cause
    return error
