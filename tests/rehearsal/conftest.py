"""A Postgres database for tests of readers."""

from kit.database_fixtures import postgres_place as postgres_place
from kit.database_fixtures import postgres_server as postgres_server
