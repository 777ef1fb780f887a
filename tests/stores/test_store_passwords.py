"""What is said about a store's address never has the password in it."""

from __future__ import annotations

import traceback

import pytest

from flujo_actors import Flujo, PostgresStore, Step, Store

PASSWORD = "hunter2-hunter2"

MISTYPED = [
    f"postgresq://app:{PASSWORD}@db/runs",
    f"mysql://app:{PASSWORD}@db/runs",
    f"postgresql:/app:{PASSWORD}@db/runs",
    f"postgres:app:{PASSWORD}@db/runs",
    f"app:{PASSWORD}@db/runs",
    f"redis://:{PASSWORD}@cache/0",
    f"mysql://app:p@{PASSWORD}/x#y@db/runs",
    f"mysql://app@db/runs?password={PASSWORD}&n=1",
    f"sqlite://app:{PASSWORD}@runs.db",
    f"sqlite:///runs.db?key={PASSWORD}",
    f"host=db password='{PASSWORD} and more' dbname=runs",
    f"host=db PASSWORD = {PASSWORD}",
    f"postgresql://app:{PASSWORD}@[::bad/runs",
    f"postgresql://app:%zz{PASSWORD}@127.0.0.1/runs",
    f"postgresql://app:{PASSWORD} x@127.0.0.1/runs",
    f"postgresql://app:x@{PASSWORD}@127.0.0.1:1/runs?connect_timeout=2",
]


def _said(store: str | Store) -> str:
    with pytest.raises(Exception) as caught:
        Flujo(Step("same", lambda data: data), store=store).run(1)
    return str(caught.value) + "".join(_chained(caught.value))


def _chained(error: BaseException) -> list[str]:
    """The error and all behind it, as an interpreter would print them; without the lines of this file."""
    printed = traceback.TracebackException.from_exception(error)
    return [line for line in printed.format() if __file__ not in line]


@pytest.mark.parametrize("address", MISTYPED)
def test_a_mistyped_address_is_named_without_its_password(address: str) -> None:
    """Neither the error nor one behind it quotes the password, whole or in part."""
    assert PASSWORD not in _said(address)


@pytest.mark.parametrize("address", [f"host=db password=x {PASSWORD}", f"host=127.0.0.1 password={PASSWORD} nonsense"])
def test_a_mistyped_connection_string_is_named_without_its_password(address: str) -> None:
    """A password with a space in it is read as two words, and the driver quotes the second."""
    assert PASSWORD not in _said(PostgresStore(address))


def test_the_rest_of_an_address_is_shown() -> None:
    """The error says which address it is about."""
    assert "'postgresq://app:[redacted]@db/runs' is not a store" in _said(MISTYPED[0])
    assert "'sqlite://runs.db' is not a store: a relative path takes three slashes" in _said("sqlite://runs.db")
