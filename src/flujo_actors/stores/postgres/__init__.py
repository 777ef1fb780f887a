"""Postgres store for any number of machines.

Needs `pip install 'flujo-actors[postgres]'`.
"""

from ._store import PostgresStore as PostgresStore
