"""Rewriting damaged JSON into strict JSON, token by token, in linear time."""

from .repairer import Mended as Mended
from .repairer import mend as mend
from .strings import MEMBER_AFTER_COMMA as MEMBER_AFTER_COMMA
from .strings import NotJson as NotJson
from .strings import TooDeep as TooDeep
