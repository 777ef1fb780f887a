"""From what a model wrote to a value that a schema accepts. Pure: no clock, no I/O, no event loop."""

from .limits import DEFAULT_LIMITS as DEFAULT_LIMITS
from .limits import Limits as Limits
from .limits import is_heavy as is_heavy
from .read import normalize_json_text as normalize_json_text
from .read import parse_and_validate as parse_and_validate
from .read import read_structured as read_structured
from .reading import Coercion as Coercion
from .reading import Flaw as Flaw
from .reading import Reading as Reading
from .schema import Schema as Schema
from .schema import compile_schema as compile_schema
