"""Addresses of stores, and what drivers say about them, without the passwords in them.

An address that cannot be read is quoted to say which one it is, so its password has to be found without reading it:
it is whatever stands where one could.
"""

from __future__ import annotations

import re

HIDDEN = "[redacted]"

_USER_AND_PASSWORD = re.compile(r"\A((?:[\w.+-]*:/+)?+[^:/@]*):.*@", re.DOTALL)
_ANNOUNCED = re.compile(r"(?i)\b(\w*(?:password|passwd|pwd|passphrase|secret|token|key)\s*=\s*)")
_QUOTED = re.compile(r"(?P<quote>[\"'])(?P<piece>.+?)(?P=quote)")


def without_password(address: str) -> str:
    """A URL or a connection string as it may be shown."""
    shown = _USER_AND_PASSWORD.sub(rf"\g<1>:{HIDDEN}@", address)
    return _announced_hidden(shown, to="&" if "://" in shown else "")


def _announced_hidden(text: str, *, to: str) -> str:
    """`password=…` hidden up to the next parameter; in a string of words, where a value may have spaces, to its end."""
    parts = _ANNOUNCED.split(text)
    kept = [parts[0]]
    for name, value in zip(parts[1::2], parts[2::2], strict=True):
        kept += [name, HIDDEN, *value.partition(to)[1:]] if to else [name, HIDDEN]
    return "".join(kept)


def said_without_password(text: str, address: str) -> str:
    """What a driver says about an address: it quotes the whole of it, the part it could not read, or a wrong part."""
    text = text.replace(address, without_password(address))
    return _QUOTED.sub(lambda found: f"{found['quote']}{_piece(found['piece'], address)}{found['quote']}", text)


def _piece(piece: str, address: str) -> str:
    if piece in without_password(address):
        return piece
    _, at, host = piece.rpartition("@")
    return HIDDEN if piece in address else f"{HIDDEN}{at}{host}" if at else piece
