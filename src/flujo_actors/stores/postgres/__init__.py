"""A store in a Postgres database, for any number of machines. Needs `pip install flujo-actors[postgres]`."""

from ._store import PostgresStore as PostgresStore
