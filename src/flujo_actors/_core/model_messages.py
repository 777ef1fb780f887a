"""Type of a model agent's messages, for type checkers.

The core loads no pydantic-ai, so that at run time it is any object.
"""

from __future__ import annotations

from typing import TypeAlias

ModelMessage: TypeAlias = object
