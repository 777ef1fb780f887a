"""Rewriting damaged JSON into strict JSON, token by token, in linear time."""

from .glyphs import MEMBER_AFTER_COMMA as MEMBER_AFTER_COMMA
from .mender import Mended as Mended
from .mender import mend as mend
from .writer import NotJson as NotJson
from .writer import TooDeep as TooDeep
