"""SQLite store in one file, for all processes of one machine."""

from ._store import SqliteStore as SqliteStore
