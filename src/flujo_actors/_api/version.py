"""Version of the installed package, from its metadata."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("flujo-actors")
"""Version of the installed package."""
