"""The settings of a program that configures nothing, and where others are looked for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from .settings import Settings

CONFIG_FILE = "flujo.toml"
"""The file of settings, in the current directory."""

Backend: TypeAlias = Literal["trio", "asyncio"]
"""The library of a loop, by the name that anyio gives it."""

BACKEND: Backend = "trio"
"""What `run()` runs steps on."""

SYNC_STEP_THREADS = 40
"""How many synchronous steps run at once."""

UNDO_GRACE_S = 30.0
"""How long undoing may take after the caller has left, where nobody could resume the run."""

PREFIX = "FLUJO_"
"""How the environment variables begin that are settings."""


@functools.cache
def default_settings() -> Settings:
    """All settings as they are by default, made when somebody first asks for one of them."""
    from .settings import Settings  # its classes take a tenth of a plain import to build, and most runs ask for nothing

    return Settings()
