"""Models of every kind, and strategies for values made of them."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import pydantic
from hypothesis import strategies as st

from flujo_actors import Context


class Color(enum.Enum):
    RED = "red"
    BLUE = (0, 0, 255)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Point(NamedTuple):
    x: Any
    y: Any = None


@attrs.frozen
class Leaf:
    value: Any
    _hidden: int = 0


@attrs.define
class Counter:
    """Keeps a count that its constructor does not take."""

    label: str
    count: int = attrs.field(init=False, default=0)
    lock: object = attrs.field(init=False, eq=False, factory=object)


@dataclass
class Note:
    text: Any
    tags: list[Any] = field(default_factory=list)
    length: int = field(init=False, default=0)


@dataclass(frozen=True, slots=True)
class Frozen:
    value: Any


class Animal(pydantic.BaseModel):
    name: str = ""


class Dog(Animal):
    tricks: list[str] = []


class Document(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    anything: Any = None
    titled: str = pydantic.Field(default="", alias="Title")
    animal: Animal = Animal()
    home: pydantic.HttpUrl | None = None
    raw: bytes = b""


class Numbers(pydantic.RootModel[list[int]]):
    pass


texts = st.text(st.characters(), max_size=12)
"""Any text, lone surrogates included."""

zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))

hashables = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**4999, max_value=10**5000).flatmap(lambda n: st.sampled_from([n, -n])),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=12),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.datetimes(),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.complex_numbers(allow_nan=False),
    st.sampled_from([*Color, *Level, *Access, Access.READ | Access.WRITE]),
    st.just(UUID(int=0)),
)


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = hashables | st.just("$") | st.tuples(hashables, hashables)
    some = st.lists(inner, max_size=3)
    return st.one_of(
        some,
        some.map(tuple),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(texts, inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Leaf, inner, hidden=st.integers()),
        st.builds(Note, inner, some),
        st.builds(Frozen, inner),
        st.builds(
            lambda value, title, animal: Document(anything=value, Title=title, animal=animal), inner, st.text(), animals
        ),
        st.lists(st.integers(), max_size=3).map(Numbers),
        st.dictionaries(texts.filter(bool) | st.just("$"), inner, max_size=3).map(lambda values: Context(**values)),
    )


animals = st.builds(Animal, name=st.text(max_size=5)) | st.builds(Dog, tricks=st.lists(st.text(max_size=5), max_size=2))
values = st.recursive(hashables, _grown, max_leaves=8)
"""Everything that a run may have to keep."""
