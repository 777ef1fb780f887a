"""Retrievers: in memory, in SQLite, in Postgres. They are strangers to one another."""
