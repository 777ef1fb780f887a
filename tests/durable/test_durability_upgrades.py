"""Databases of other versions: readers leave them as they are, and only owners of runs migrate."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from flujo_actors import Flujo, RunClient, RunNotFound, Step, StoreVersionError
from flujo_actors._api.cli.store_commands import store as store_command
from flujo_actors.stores.postgres import _schema as postgres_schema
from flujo_actors.stores.sqlite import _schema as sqlite_schema
from kit.durable_places import Place, PostgresPlace

pytestmark = [pytest.mark.slow, pytest.mark.empty_database]

RUNS = "SELECT 1 FROM pg_class WHERE relname = 'flujo_runs' AND pg_table_is_visible(oid)"


async def double(data: int) -> int:
    return 2 * data


def url_of(place: Place) -> str:
    return place.url if isinstance(place, PostgresPlace) else f"sqlite:///{place.path}"


def version(place: Place) -> int:
    [(number,)] = place.query("SELECT version FROM flujo_schema")
    return int(number)


def tables(place: Place) -> list[str]:
    """Return the tables of a database."""
    if isinstance(place, PostgresPlace):
        names = place.query("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    else:
        names = place.query("SELECT name FROM sqlite_master WHERE type = 'table'")
    return [name for (name,) in names if name.startswith("flujo_")]


def columns(place: Place, table: str) -> list[str]:
    """Return the columns of a table, without computed ones."""
    if isinstance(place, PostgresPlace):
        listed = "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema()"
        return [name for (name,) in place.query(f"{listed} AND table_name = %s", table)]
    return [name for _, name, *_ in place.query(f"PRAGMA table_info({table})")]


def rebuild(place: Place, migrations: Sequence[Sequence[str]]) -> None:
    """Give a database the schema of these migrations, and leave its rows."""
    names = {table: columns(place, table) for table in tables(place)}
    rows = {table: (kept, place.query(f"SELECT {', '.join(kept)} FROM {table}")) for table, kept in names.items()}
    for table in rows:
        place.query(f"DROP TABLE {table}")
    for statement in itertools.chain(*migrations):
        place.query(statement)
    place.query("CREATE TABLE flujo_schema (version INTEGER NOT NULL)")
    place.query("INSERT INTO flujo_schema VALUES (%s)", len(migrations))
    for table in set(tables(place)) - {"flujo_schema"}:
        insert(place, table, *rows[table])


def insert(place: Place, table: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Insert rows into a table that may lack some of their columns."""
    kept = [name for name in names if name in columns(place, table)]
    always = "OVERRIDING SYSTEM VALUE" if isinstance(place, PostgresPlace) else ""
    values = ", ".join(["%s"] * len(kept))
    for row in rows:
        chosen = [value for name, value in zip(names, row, strict=True) if name in kept]
        place.query(f"INSERT INTO {table} ({', '.join(kept)}) {always} VALUES ({values})", *chosen)
    if isinstance(place, PostgresPlace) and table == "flujo_runs":
        place.query("SELECT setval(pg_get_serial_sequence('flujo_runs', 'id'), 100)")


@pytest.fixture
def former(place: Place) -> Place:
    """A database with one run, as the release before this one left it."""
    assert Flujo(Step("double", double), store=place.open()).run(20, run_id="run").output == 40
    place.close()
    migrations = postgres_schema.MIGRATIONS if isinstance(place, PostgresPlace) else sqlite_schema.MIGRATIONS
    rebuild(place, migrations[:-1])
    return place


def test_a_client_reads_the_former_schema_and_leaves_it(former: Place) -> None:
    """Workers of the release before this one can be restarted after somebody has listed runs."""
    before, client = version(former), RunClient(url_of(former))
    assert [info.run_id for info in client.list()] == ["run"]
    assert client.get("run").status == "completed"
    assert client.state("run").output == 40
    assert version(former) == before


def test_questions_of_the_former_schema_are_found_by_their_facts(place: Place) -> None:
    """By a client that only reads it, and after the migration; there are no messages to webhooks."""
    Flujo(Step.approval("boss", "Pay?", to="ada"), store=place.open()).run(1, run_id="asks")
    Flujo(Step.human_in_the_loop("ok", "Go?"), store=place.open()).run(1, run_id="plain")
    place.close()
    migrations = postgres_schema.MIGRATIONS if isinstance(place, PostgresPlace) else sqlite_schema.MIGRATIONS
    rebuild(place, migrations[:-1])
    for _ in range(2):
        client = RunClient(url_of(place))
        assert [each.run_id for each in client.questions(to="ada", kind="approval")] == ["asks"]
        assert [each.run_id for each in client.questions(kind="input")] == ["plain"]
        assert client.webhooks() == []
        Flujo(Step("double", double), store=url_of(place)).run(1)


def test_a_flujo_migrates_what_a_client_has_only_read(former: Place) -> None:
    """Also in one process, which has one store for both."""
    before, client = version(former), RunClient(url_of(former))
    assert client.get("run").status == "completed"
    assert Flujo(Step("double", double), store=url_of(former)).run(1, run_id="other").output == 2
    assert version(former) == before + 1
    assert {info.run_id for info in client.list()} == {"run", "other"}


def test_a_client_refuses_an_older_schema_and_names_the_command(former: Place) -> None:
    """The command migrates it; the client did not."""
    former.query("UPDATE flujo_schema SET version = version - 1")
    before = version(former)
    told = f"the store has schema {before}, this process needs {before + 2}: run `flujo-actors store migrate --store …`"
    with pytest.raises(StoreVersionError, match=told):
        RunClient(url_of(former)).list()
    assert version(former) == before


def test_the_command_migrates_the_former_schema(former: Place) -> None:
    """It can be repeated."""
    before = version(former)
    for _ in range(2):
        done = CliRunner().invoke(store_command, ["migrate", "--store", url_of(former)])
        assert done.exception is None or done.exit_code == 0, done.output
    assert version(former) == before + 1
    assert RunClient(url_of(former)).get("run").status == "completed"


def test_a_client_of_an_empty_database_finds_nothing_and_makes_nothing(place: Place) -> None:
    """No file, no table: whoever begins the first run makes them."""
    client = RunClient(url_of(place))
    assert client.list() == []
    assert client.workers() == []
    with pytest.raises(RunNotFound):
        client.get("run")
    if isinstance(place, PostgresPlace):
        assert place.query(RUNS) == []
    else:
        assert not place.path.exists()
    assert Flujo(Step("double", double), store=place.open()).run(20, run_id="run").output == 40
    assert [info.run_id for info in client.list()] == ["run"]


def test_a_flujo_that_never_migrates_refuses_the_former_schema(former: Place) -> None:
    """A client of the same store reads it."""
    before = version(former)
    store = former.open(migrate="never")
    assert RunClient(store).get("run").status == "completed"
    with pytest.raises(StoreVersionError, match=f"the store has schema {before}, this process needs {before + 1}"):
        Flujo(Step("double", double), store=store).run(1)
    assert version(former) == before
