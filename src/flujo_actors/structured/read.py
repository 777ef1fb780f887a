"""Readers of model text: the same names as in `flujo_actors.structured`."""

from ._reader import normalize_json_text as normalize_json_text
from ._reader import parse_and_validate as parse_and_validate
from ._reader import read_structured as read_structured
