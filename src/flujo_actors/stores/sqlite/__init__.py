"""A store in one SQLite file, for any number of processes of one machine."""

from ._store import SqliteStore as SqliteStore
