"""One context of each kind, all with the same keys, so that every rule is tested on all of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import attrs
import pydantic

from flujo_actors import Context


class PydanticContext(pydantic.BaseModel):
    number: int = 0
    notes: list[str] = []
    table: dict[str, Any] = {}


class FrozenPydanticContext(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)

    number: int = 0
    notes: list[str] = []
    table: dict[str, Any] = {}


@attrs.define
class AttrsContext:
    number: int = 0
    notes: list[str] = attrs.field(factory=list)
    table: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class FrozenAttrsContext:
    number: int = 0
    notes: list[str] = attrs.field(factory=list)
    table: dict[str, Any] = attrs.field(factory=dict)


@dataclasses.dataclass
class DataclassContext:
    number: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)
    table: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenDataclassContext:
    number: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)
    table: dict[str, Any] = dataclasses.field(default_factory=dict)


class FreeContext(Context):
    def __init__(self, /, **values: Any) -> None:
        super().__init__(**{"number": 0, "notes": [], "table": {}} | values)


KINDS: list[type[Any]] = [
    PydanticContext,
    FrozenPydanticContext,
    AttrsContext,
    FrozenAttrsContext,
    DataclassContext,
    FrozenDataclassContext,
    FreeContext,
]
