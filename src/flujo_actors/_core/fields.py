"""What attrs tells a validator of the field it checks; read by type checkers only."""

from __future__ import annotations

from typing import Protocol, TypeVar

V = TypeVar("V")
"""What a field is of: a validator takes the values of every one."""


class Field(Protocol):
    """A field of whatever class, with values of whatever type."""

    name: str


class Owner(Protocol):
    """What has the field, where its name is told: a step."""

    @property
    def name(self) -> str: ...
