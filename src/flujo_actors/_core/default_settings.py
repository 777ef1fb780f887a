"""Default settings and the locations of configured ones."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal, TypeAlias

from .. import _core

if TYPE_CHECKING:
    from .settings_model import Settings

CONFIG_FILE = "flujo.toml"
"""The file of settings, in the current directory."""

Backend: TypeAlias = Literal["trio", "asyncio"]
"""The library of a loop, by the name that anyio gives it."""

BACKEND: Backend = "trio"
"""Default async backend of `run()`."""

SYNC_STEP_THREADS = 40
"""Maximum number of concurrent sync steps."""

UNDO_GRACE_S = 30.0
"""Timeout of compensation after the caller left an unresumable run."""

PREFIX = "FLUJO_"
"""Prefix of environment variables that are settings."""


@functools.cache
def default_settings() -> Settings:
    """Return the default settings, built on first use."""
    return _core.Settings()
