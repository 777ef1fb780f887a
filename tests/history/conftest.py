"""Databases of the tests of histories."""

from __future__ import annotations

from kit.database_fixtures import place as place
from kit.database_fixtures import postgres_place as postgres_place
from kit.database_fixtures import postgres_server as postgres_server
from kit.database_fixtures import sqlite_place as sqlite_place
