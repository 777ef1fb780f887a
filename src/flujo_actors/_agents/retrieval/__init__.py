"""Retrievers in memory, SQLite and Postgres, independent of one another."""
