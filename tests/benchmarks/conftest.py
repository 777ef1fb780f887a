"""A database server for the benchmarks of stores."""

from kit.database_fixtures import postgres_server as postgres_server
