"""A Postgres with pgvector for the tests of retrievers."""

from kit.database_fixtures import postgres_server as postgres_server
