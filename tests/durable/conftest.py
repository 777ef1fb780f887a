"""A database of each kind, and what steps did in them."""

from importlib.util import find_spec

from kit.database_fixtures import effects as effects
from kit.database_fixtures import place as place
from kit.database_fixtures import postgres_place as postgres_place
from kit.database_fixtures import postgres_server as postgres_server
from kit.database_fixtures import sqlite_place as sqlite_place

collect_ignore_glob = [] if find_spec("pydantic_ai.conversation_store") else ["*conversations.py"]
"""Stored conversations need pydantic-ai 2.66, and the lowest allowed release is older."""
