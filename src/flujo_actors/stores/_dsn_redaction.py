"""Store addresses and driver messages with passwords hidden.

An unparsable address is quoted in errors, so its password is found without parsing: any text in the position of a
password is hidden.

Sections:

- Options of a store in its URL: `?flujo.schema=runs&flujo.pooler=transaction&flujo.pool_size=4&flujo.migrate=never`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from .._core.validators import brief_repr, is_count, nearest
from ..errors import DeclarationError

HIDDEN = "[redacted]"

_USER_AND_PASSWORD = re.compile(r"\A((?:[\w.+-]*:/+)?+[^:/@]*):.*@", re.DOTALL)
_ANNOUNCED = re.compile(r"(?i)\b(\w*(?:password|passwd|pwd|passphrase|secret|token|key)\s*=\s*)")
_QUOTED = re.compile(r"(?P<quote>[\"'])(?P<piece>.+?)(?P=quote)")


def without_password(address: str) -> str:
    """Return a URL or a connection string as it may be shown."""
    shown = _USER_AND_PASSWORD.sub(rf"\g<1>:{HIDDEN}@", address)
    return _announced_hidden(shown, to="&" if "://" in shown else "")


def _announced_hidden(text: str, *, to: str) -> str:
    """Hide `password=…` up to the next parameter or the text's end."""
    parts = _ANNOUNCED.split(text)
    kept = [parts[0]]
    for name, value in zip(parts[1::2], parts[2::2], strict=True):
        kept += [name, HIDDEN, *value.partition(to)[1:]] if to else [name, HIDDEN]
    return "".join(kept)


def message_without_password(text: str, address: str) -> str:
    """Return a driver's message about an address without its password.

    Drivers quote the whole address, its unparsable part, or a wrong part.
    """
    text = text.replace(address, without_password(address))
    return _QUOTED.sub(lambda found: f"{found['quote']}{_piece(found['piece'], address)}{found['quote']}", text)


def _piece(piece: str, address: str) -> str:
    if piece in without_password(address):
        return piece
    _, at, host = piece.rpartition("@")
    return HIDDEN if piece in address else f"{HIDDEN}{at}{host}" if at else piece


# --- Options of a store in its URL -----------------------------------------------------------------------


Pooler: TypeAlias = Literal["transaction"]
"""Mode of a pooler (PgBouncer, Supavisor) between this process and the database."""

_PREFIX = "flujo."
_SHORT_NUMBER = re.compile(r"[0-9]{1,18}")
_KNOWN = ("migrate", "pool_size", "pooler", "schema")
_OF_SQLITE = ("migrate",)
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")


def sqlite_options(query: str) -> dict[str, Any]:
    """Return the options of a SQLite URL; `DeclarationError` for others."""
    pairs = parse_qsl(query, keep_blank_values=True)
    for name, _ in pairs:
        if not name.startswith(_PREFIX):
            raise DeclarationError(f"a SQLite URL has no option {name!r}: write sqlite:///runs.db?flujo.migrate=never")
    return {
        name.removeprefix(_PREFIX): _checked(name.removeprefix(_PREFIX), value, _OF_SQLITE, "SQLite")
        for name, value in pairs
    }


def checked_schema(schema: object) -> str | None:
    """Return a valid name of a Postgres schema, or None."""
    if schema is None or (isinstance(schema, str) and _SCHEMA.fullmatch(schema)):
        return schema
    raise DeclarationError(f"schema must be a name of letters, digits and underscores, not {schema!r}")


def in_schema(url: str, schema: str | None) -> str:
    """Return a URL whose sessions use a schema, whatever else it sets."""
    if schema is None:
        return url
    base, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    before = "".join(f"{value} " for name, value in pairs if name == "options")
    rest = [(name, value) for name, value in pairs if name != "options"]
    options = [*rest, ("options", f'{before}-csearch_path="{schema}"')]
    return f"{base}?{urlencode(options, quote_via=quote)}"


def url_options(url: str) -> tuple[str, dict[str, Any]]:
    """Return the URL for the driver, and the options that are ours."""
    base, mark, query = url.partition("?")
    if _PREFIX not in query:
        return url, {}
    pairs = parse_qsl(query, keep_blank_values=True)
    ours = {name.removeprefix(_PREFIX): value for name, value in pairs if name.startswith(_PREFIX)}
    rest = [(name, value) for name, value in pairs if not name.startswith(_PREFIX)]
    checked = {name: _checked(name, value, _KNOWN, "Postgres") for name, value in ours.items()}
    return (f"{base}{mark}{urlencode(rest, quote_via=quote)}" if rest else base), checked


def _checked(name: str, value: str, known: Sequence[str], kind: str) -> Any:
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean 'flujo.{near}'?" if near else f"there are {', '.join(_PREFIX + each for each in known)}"
        raise DeclarationError(f"a {kind} URL has no option 'flujo.{name}': {hint}")
    if name != "pool_size":
        return value
    return checked_pool_size(int(value) if _SHORT_NUMBER.fullmatch(value) else value, subject="flujo.pool_size")


def checked_pool_size(size: object, *, subject: str) -> int:
    """Return the number of connections; refuse other values."""
    if not is_count(size):
        raise DeclarationError(f"{subject} must be a whole number of at least 1, not {brief_repr(size)}")
    return size


def checked_pooler(pooler: object) -> Pooler | None:
    """Return the pooler's mode; raise `DeclarationError` for an unknown name."""
    if pooler is None or pooler == "transaction":
        return None if pooler is None else "transaction"
    raise DeclarationError(f"pooler must be 'transaction' or None, not {pooler!r}")
