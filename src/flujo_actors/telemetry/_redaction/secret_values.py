"""The secrets a program holds: what its environment and its deps keep under secret-like names.

Only data is looked at: dicts, sequences and the stored attributes of objects. No property is read and no
method called, so gathering has no effects; it stops at a depth and a number of objects, so it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from urllib.parse import unquote, unquote_plus

from .assignments import Assignments
from .credential_shapes import url_passwords
from .secret_names import Words, is_secret_name, words_of

SHORTEST_SECRET = 8
"""A shorter value would be found by chance inside ordinary words."""
_DEEPEST = 6
MOST_OBJECTS = 10_000
"""How many objects are looked at when secrets are gathered."""
# The working directory, not a password.
_NOT_SECRET_VARIABLES = frozenset({"PWD", "OLDPWD"})
# Placeholders that stand for themselves in so many texts that hiding them would say more than it hides.
_PLACEHOLDERS = frozenset(
    {"password", "postgres", "changeme", "disabled", "required", "undefined", "username", "localhost"}
)
_NOT_DATA = (type, FunctionType, MethodType, ModuleType)
# `sort_key` and `first_pass` are fields, but a variable that ends so (`STRIPE_KEY`, `DB_PASS`) is set for a service.
_SERVICE_ENDINGS = ("key", "pass")
_RUN_TOGETHER = ("password", "passwd", "apikey", "secret")
_assignments = Assignments()


def environment_secrets(environ: Mapping[str, str], more: frozenset[Words] = frozenset()) -> Iterator[str]:
    """The values of secret-like variables, and the passwords in the addresses any variable holds."""
    for name, value in environ.items():
        if _is_secret_variable(name, more):
            yield value
        yield from _passwords(value)


def _is_secret_variable(name: str, more: frozenset[Words]) -> bool:
    if name in _NOT_SECRET_VARIABLES:
        return False
    last = "".join(words_of(name)[-1:])
    return last in _SERVICE_ENDINGS or last.endswith(_RUN_TOGETHER) or is_secret_name(name, more)


def _passwords(text: str) -> Iterator[str]:
    """The passwords of URLs and of `password=…` in a text, as they are written and as a driver uses them."""
    announced = (text[start:end] for start, end in _assignments.spans(text))
    for written in (*url_passwords(text), *announced):
        yield from (written, unquote(written), unquote_plus(written))


def deps_secrets(deps: object, more: frozenset[Words] = frozenset(), *, most: int = MOST_OBJECTS) -> Iterator[str]:
    """The texts that `deps` hold under secret-like names, the nearest first, and the passwords of their URLs."""
    waiting: deque[tuple[object, bool, int]] = deque([(deps, False, 0)])
    seen: set[int] = set()
    while waiting and len(seen) < most:
        value, secret, depth = waiting.popleft()
        if isinstance(value, str | bytes):
            yield from _texts(value, secret)
        elif id(value) not in seen and depth < _DEEPEST:
            seen.add(id(value))
            waiting += ((part, secret or is_secret_name(name, more), depth + 1) for name, part in _parts(value))


def _texts(value: str | bytes, secret: bool) -> Iterator[str]:
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    if secret:
        yield text
    yield from _passwords(text)


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """The named parts of a container or object; the items of a sequence have no name of their own."""
    if isinstance(value, dict):
        yield from ((name if isinstance(name, str) else "", part) for name, part in tuple(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (("", part) for part in value)
    elif not isinstance(value, _NOT_DATA):
        yield from _attributes(value)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from tuple(getattr(value, "__dict__", {}).items())
    for owner in type(value).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                yield slot, getattr(value, slot)


def worth_hiding(values: Iterable[str]) -> frozenset[str]:
    """The gathered values without those that are too short or too common to be told from ordinary text."""
    stripped = (value.strip() for value in values)
    return frozenset(
        value for value in stripped if len(value) >= SHORTEST_SECRET and value.lower() not in _PLACEHOLDERS
    )
