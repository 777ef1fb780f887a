"""Rewriting damaged JSON into strict JSON, token by token, in linear time."""

from .repairer import RepairedJson as RepairedJson
from .repairer import repair_container as repair_container
from .strings import MEMBER_AFTER_COMMA as MEMBER_AFTER_COMMA
from .strings import NotJson as NotJson
from .strings import TooDeep as TooDeep
