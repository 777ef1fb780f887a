"""The database of a store: status, check, migration, record formats, schemas and roles."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from flujo_actors import Flujo, RunClient, RunFilter, Step, UsageLimits
from flujo_actors._api.cli.entry import main
from flujo_actors._api.cli.store_commands import store as store_command
from flujo_actors._core.settings_model import Settings
from flujo_actors._fleet.health_probe import HealthPort, health_place
from flujo_actors.errors import DeclarationError, StoreError, StoreVersionError
from flujo_actors.stores import MemoryStore, PostgresStore, SqliteStore, open_store
from flujo_actors.stores.postgres import _schema as postgres_schema
from flujo_actors.stores.sqlite import _schema as sqlite_schema
from kit.durable_places import Place, PostgresPlace, SqlitePlace

pytestmark = pytest.mark.empty_database


def upper(text: str) -> str:
    return text.upper()


def fail(_: object) -> None:
    raise ValueError("no")


def url_of(place: Place) -> str:
    return place.url if isinstance(place, PostgresPlace) else f"sqlite:///{place.path}"


def called(place: Place, *arguments: str) -> Result:
    return CliRunner().invoke(store_command, [*arguments, "--store", url_of(place)])


def filled(place: Place) -> Place:
    """A store with a long record, an open question and a label."""
    store = place.open()
    Flujo(Step("upper", upper), store=store).run("x" * 70_000, run_id="done", labels={"tenant": "7"})
    Flujo(Step.human_in_the_loop("ask", "May I?"), store=store).run("x", run_id="open")
    return place


def test_the_status_shows_versions_tables_and_the_oldest_run(place: Place) -> None:
    """As JSON, and nothing is created by asking."""
    kind = "postgres" if isinstance(place, PostgresPlace) else "sqlite"
    empty = json.loads(called(place, "status", "--json").stdout)
    assert (empty["kind"], empty["schema"]["store"], empty["tables"], empty["migration_waits"]) == (kind, 0, {}, True)
    filled(place)
    found = json.loads(called(place, "status", "--json").stdout)
    assert found["schema"]["store"] == found["schema"]["code"]
    assert (found["record_format"], found["migration_waits"], found["oldest_open"]) == (3, False, "open")
    assert found["tables"]["flujo_runs"]["rows"] == 2
    assert found["tables"]["flujo_blobs"]["bytes"] > 70_000 or kind == "postgres"
    assert (found["missing_indexes"], found["invalid_indexes"]) == ([], [])
    assert found["pool_size"] == (8 if kind == "postgres" else None)
    place.query("DROP INDEX flujo_runs_ended")
    assert "missing index flujo_runs_ended" in called(place, "status").stdout


def test_a_check_names_each_defect_and_changes_nothing(place: Place) -> None:
    """One line each, and exit code 1."""
    filled(place)
    done = called(place, "check")
    assert (done.exit_code, done.stdout) == (0, "")
    run = "(SELECT id FROM flujo_runs WHERE run_id = 'open')"
    place.query("DELETE FROM flujo_blobs")
    place.query(f"DELETE FROM flujo_records WHERE run = {run} AND kind = 'started'")
    place.query(f"UPDATE flujo_records SET body = '{{\"v\": 99}}' WHERE run = {run} AND kind = 'paused'")
    place.query(f"UPDATE flujo_records SET body = 'no' WHERE run = {run} AND kind = 'ended'")
    place.query("INSERT INTO flujo_labels (name, value, run) VALUES ('a', 'b', 99)")
    lines = called(place, "check").stdout.splitlines()
    for part in (
        "record 1 of run 'done' cannot be read: its blob is missing",
        "record 2 of run 'open' cannot be read: it is missing",
        "record 3 of run 'open' has format 99, newer than 3",
        "record 4 of run 'open' cannot be read: its body is not JSON",
        "1 rows of flujo_labels have no run",
    ):
        assert [part in line for line in lines].count(True) == 1, part
    assert called(place, "check").stdout.splitlines() == lines


def test_a_dry_run_and_sql_change_nothing(place: Place) -> None:
    """The migration of an empty store is all statements of the schema."""
    assert called(place, "migrate", "--dry-run").exit_code == 0
    sql = called(place, "migrate", "--sql").stdout
    assert "CREATE TABLE" in sql
    assert "flujo_runs" in sql
    assert json.loads(called(place, "status", "--json").stdout)["schema"]["store"] == 0
    assert called(place, "migrate").exit_code == 0
    assert called(place, "migrate", "--sql").stdout == ""


# --- record formats -------------------------------------------------------------------------------------------------


def test_a_migrated_store_keeps_its_record_format_until_it_is_finalized(place: Place) -> None:
    """Contexts are stored in full, and a retry names the command; processes of the former release read all."""
    filled(place)
    place.close()
    place.query("UPDATE flujo_schema SET record_format = 2")
    store = place.open()
    flujo = Flujo(Step("a", upper) >> Step("fail", fail), store=store)
    flujo.run("x", run_id="failed")
    with pytest.raises(StoreVersionError, match="store migrate --finalize"):
        RunClient(store).retry("failed")
    place.close()
    assert called(place, "migrate").exit_code == 0
    assert place.query("SELECT record_format FROM flujo_schema") == [(2,)]
    assert called(place, "migrate", "--finalize").exit_code == 0
    assert place.query("SELECT record_format FROM flujo_schema") == [(3,)]
    RunClient(place.open()).retry("failed")
    assert [
        json.loads(body)["v"] for (body,) in place.query("SELECT body FROM flujo_records WHERE kind = 'retried'")
    ] == [3]


def growing(store: Any) -> Flujo[Any, Any]:
    async def note(text: str, *, context: Any) -> str:
        context.notes = [*getattr(context, "notes", []), text * 400]
        return text

    return Flujo(Step("a", note) >> Step("b", note) >> Step("c", note), store=store)


def test_the_former_format_has_no_context_patches(place: Place) -> None:
    """Every record has format 2, and the run resumes from them."""
    growing(place.open()).run("x", run_id="new")
    assert 3 in versions(place, "new")
    place.close()
    place.query("UPDATE flujo_schema SET record_format = 2")
    result = growing(place.open()).run("x", run_id="old")
    assert versions(place, "old") == {2}
    assert RunClient(place.open()).state("old").context == result.final_context


def test_the_former_format_has_no_compacted_turns(place: Place) -> None:
    """A loop with `keep_history` keeps all records, and is resumed from them."""
    asked = Step.branch_on("which", lambda n, _: n == 7, {True: Step.human_in_the_loop("ask", "ok?")}, default=add)
    loop = Step.loop_until("turns", asked, lambda n, _: n >= 12, max_loops=None, keep_history=2)
    Flujo(add, store=place.open()).run(1)
    place.close()
    place.query("UPDATE flujo_schema SET record_format = 2")
    flujo = Flujo(loop, store=place.open(), usage_limits=UsageLimits())
    paused = flujo.run(0, run_id="run")
    result = flujo.resume(paused.state_token, 8)
    assert (result.status, result.output) == ("completed", 12)
    rows = place.query("SELECT kind, count(*) FROM flujo_records GROUP BY kind")
    assert "compacted" not in dict(rows)
    assert versions(place, "run") == {2}


add = Step("add", lambda n: n + 1)


def versions(place: Place, run_id: str) -> set[int]:
    rows = place.query(
        "SELECT body FROM flujo_records WHERE run = (SELECT id FROM flujo_runs WHERE run_id = %s)", run_id
    )
    return {json.loads(body)["v"] for (body,) in rows if body}


# --- migrate="never" ------------------------------------------------------------------------------------------------


def former(place: Place) -> int:
    """Let the store seem two versions older; return that version."""
    place.query("UPDATE flujo_schema SET version = version - 2")
    [(number,)] = place.query("SELECT version FROM flujo_schema")
    return int(number)


def test_a_flujo_that_never_migrates_refuses_another_schema(place: Place) -> None:
    """By argument, URL and setting; an empty store is one, too."""
    flujo = Flujo(Step("upper", upper), store=place.open(migrate="never"))
    with pytest.raises(StoreVersionError, match="the store has schema 0, this process needs"):
        flujo.run("x")
    filled(place)
    place.close()
    before = former(place)
    said = f"the store has schema {before}, this process needs {before + 2}: run `flujo-actors store migrate"
    mark = "&" if "?" in url_of(place) else "?"
    for store, settings in (
        (place.open(migrate="never"), {}),
        (f"{url_of(place)}{mark}flujo.migrate=never", {}),
        (url_of(place), {"store_migrate": "never"}),
    ):
        with pytest.raises(StoreVersionError, match=said):
            Flujo(Step("upper", upper), store=store, settings=Settings(**settings)).run("x")  # type: ignore[arg-type]
    assert place.query("SELECT version FROM flujo_schema") == [(before,)]
    with pytest.raises(DeclarationError, match="store_migrate must be 'auto' or 'never', not 'always'"):
        Settings(store_migrate="always")


def test_a_newer_schema_is_refused(place: Place) -> None:
    """By readers and writers, and the store is left as it is."""
    filled(place)
    place.close()
    place.query("UPDATE flujo_schema SET version = 99")
    for look in (lambda: RunClient(url_of(place)).list(), lambda: Flujo(Step("a", upper), store=place.open()).run("x")):
        with pytest.raises(StoreVersionError, match=r"the store has schema 99, this process needs .*: upgrade"):
            look()
    assert place.query("SELECT version FROM flujo_schema") == [(99,)]


def test_unknown_options_of_a_url_name_the_nearest(tmp_path: Path) -> None:
    """A SQLite URL has one option."""
    with pytest.raises(
        DeclarationError, match=r"a SQLite URL has no option 'flujo.migrat': did you mean 'flujo.migrate'"
    ):
        open_store(f"sqlite:///{tmp_path}/a.db?flujo.migrat=never")
    with pytest.raises(DeclarationError, match=r"no option 'flujo.schem': did you mean 'flujo.schema'"):
        open_store("postgresql://nowhere/db?flujo.schem=runs")
    with pytest.raises(DeclarationError, match="migrate must be 'auto' or 'never', not 'maybe'"):
        open_store(f"sqlite:///{tmp_path}/a.db?flujo.migrate=maybe")
    with pytest.raises(DeclarationError, match="schema must be a name"):
        PostgresStore("postgresql://nowhere/db", schema='a"; DROP')


# --- Postgres -------------------------------------------------------------------------------------------------------


def downgraded(place: PostgresPlace, runs: int) -> None:
    """Undo the last migration of a store with so many ended runs."""
    filled(place)
    place.close()
    for table in ("runs", "records", "pauses", "labels", "duties", "schema"):
        place.query(f"DROP TABLE flujo_{table} CASCADE")
    for (table,) in place.query("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"):
        place.query(f"DROP TABLE {table} CASCADE")
    for statement in [each for part in postgres_schema.MIGRATIONS[:-1] for each in part]:
        place.query(statement)
    place.query("CREATE TABLE flujo_schema (version bigint NOT NULL)")
    place.query("INSERT INTO flujo_schema VALUES (%s)", len(postgres_schema.MIGRATIONS) - 1)
    place.query(
        """INSERT INTO flujo_runs (run_hash, run_id, pipeline, status, created_at, updated_at, epoch, lease_until,
                                   next_seq, ended_at)
        SELECT sha256(i::text::bytea), i::text, 'p', 'completed', 1, 1, 1, 0, 1, 1 FROM generate_series(1, %s) AS i""",
        runs,
    )


@pytest.mark.slow
def test_a_large_migration_is_left_to_the_command(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be repeated after an interruption, and leaves no invalid index."""
    monkeypatch.setattr(postgres_schema, "MOST_ROWS", 1_000)
    downgraded(postgres_place, 2_000)
    with pytest.raises(
        StoreVersionError, match="touches more than 1,000 rows of flujo_runs: run `flujo-actors store mig"
    ):
        Flujo(Step("a", upper), store=postgres_place.open()).run("x")
    postgres_place.close()
    done = postgres_schema.repeatable(len(postgres_schema.MIGRATIONS) - 1)
    for statement in done[: len(done) // 2]:
        postgres_place.query(statement.replace("%", "%%"))
    assert called(postgres_place, "migrate").exit_code == 0
    found = json.loads(called(postgres_place, "status", "--json").stdout)
    assert (found["missing_indexes"], found["invalid_indexes"], found["record_format"]) == ([], [], 2)
    assert found["schema"]["store"] == found["schema"]["code"]
    assert called(postgres_place, "migrate").exit_code == 0
    assert Flujo(Step("a", upper), store=postgres_place.open()).run("x").output == "X"


def test_a_store_uses_its_schema_whatever_the_search_path(postgres_place: PostgresPlace) -> None:
    """It creates it with the tables; a reader does not."""
    mark = "&" if "?" in postgres_place.url else "?"
    url = f"{postgres_place.url}{mark}flujo.schema=Runs_7"
    assert RunClient(url).list() == []
    schemas = "SELECT nspname FROM pg_namespace WHERE nspname = 'Runs_7'"
    assert postgres_place.query(schemas) == []
    try:
        store = PostgresStore(postgres_place.url, schema="Runs_7")
        assert Flujo(Step("a", upper), store=store).run("x", run_id="r").output == "X"
        assert [run.run_id for run in RunClient(url).list()] == ["r"]
        assert RunClient(postgres_place.url).list() == []
        assert postgres_place.query('SELECT run_id FROM "Runs_7".flujo_runs') == [("r",)]
        store.close()
    finally:
        postgres_place.query('DROP SCHEMA IF EXISTS "Runs_7" CASCADE')


def as_role(url: str, role: str) -> str:
    return f"{url}%20-crole%3D{role}"


def test_a_role_without_ddl_is_told_how_the_tables_of_the_engine_are_created(postgres_place: PostgresPlace) -> None:
    """The error names the command and the owner, instead of a missing privilege alone."""
    assert called(postgres_place, "migrate").exit_code == 0
    if not postgres_place.query("SELECT 1 FROM pg_roles WHERE rolname = 'flujo_app'"):
        postgres_place.query("CREATE ROLE flujo_app")
    for statement in called(postgres_place, "migrate", "--grants", "flujo_app").stdout.splitlines():
        postgres_place.query(statement)
    app = PostgresStore(as_role(postgres_place.url, "flujo_app"))
    flujo = Flujo(Step("a", upper), store=app, engine="postgres", settings={"store_migrate": "never"})
    with pytest.raises(
        StoreError, match=r"run `flujo-actors store migrate --engine postgres --store URL` with the URL"
    ):
        flujo.submit_sync("x")


def test_roles_need_no_more_than_they_use(postgres_place: PostgresPlace) -> None:
    """An application role executes and deletes runs; a reading role lists and exports them."""
    filled(postgres_place)
    queued = {"pipeline": Step("a", upper), "engine": "postgres"}
    assert called(postgres_place, "migrate", "--engine", "postgres").exit_code == 0
    [(schema,)] = postgres_place.query("SELECT current_schema()")
    for role in ("flujo_app", "flujo_reader"):
        if not postgres_place.query("SELECT 1 FROM pg_roles WHERE rolname = %s", role):
            postgres_place.query(f"CREATE ROLE {role}")
    printed = called(postgres_place, "migrate", "--grants", "flujo_app").stdout
    for statement in printed.splitlines():
        postgres_place.query(statement)
    postgres_place.query(f'GRANT USAGE ON SCHEMA "{schema}" TO flujo_reader')
    postgres_place.query(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO flujo_reader')
    app = PostgresStore(as_role(postgres_place.url, "flujo_app"))
    assert Flujo(Step("a", upper), store=app, settings={"store_migrate": "never"}).run("x", run_id="r").output == "X"
    assert RunClient(app).prune({"completed": "0s", "rules": [{"pipeline": "upper"}]}).runs == 1
    assert app.take_duty("retention", owner="me", for_s=1.0)
    submitting = Flujo(**queued, store=app, settings={"store_migrate": "never"})
    for run_id in ("first", "second"):
        submitting.submit_sync("x", run_id=run_id, queue="none")
    assert postgres_place.query("SELECT count(*) FROM procrastinate_jobs WHERE queue_name = 'none'") == [(2,)]
    assert app.delete(["first", "second"]) == 2
    reader = RunClient(as_role(postgres_place.url, "flujo_reader"))
    assert {run.run_id for run in reader.list()} == {"done", "open"}
    assert [question.run_id for question in reader.questions()] == ["open"]
    assert [len(reader.records("open")), reader.queues(), reader.workers()] == [4, [], []]
    assert reader.export(["done", "open"], io.BytesIO()).runs == 2
    [totals] = reader.totals(by=("status",), where=RunFilter(status="completed"))
    assert (totals.runs, trio.run(watched, reader, "done")[-1]) == (1, "ended")
    app.close()


async def watched(client: RunClient, run_id: str) -> list[str]:
    """Return the kinds of the records that a watcher of an ended run gets."""
    return [record.kind async for record in client.watch(run_id)]


def test_grants_are_for_postgres(sqlite_place: SqlitePlace, capsys: pytest.CaptureFixture[str]) -> None:
    """A file has permissions of its own."""
    assert main(["store", "migrate", "--grants", "x", "--store", url_of(sqlite_place)]) == 2
    assert "--grants is for Postgres" in capsys.readouterr().err
    assert main(["store", "vacuum", "--store", url_of(filled(sqlite_place))]) == 0
    assert "bytes of free disk" in capsys.readouterr().err


def test_a_store_without_the_methods_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing method."""
    assert not hasattr(MemoryStore(), "status")
    assert sqlite_schema.MIGRATIONS
    assert SqliteStore(":memory:").migration().found == len(sqlite_schema.MIGRATIONS)


# --- workers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (":8080", "health: http://127.0.0.1:8080 (this machine only; 0.0.0.0:8080 for probes from outside)"),
        ("0.0.0.0:8080", "health: http://0.0.0.0:8080"),
        ("*:8080", "health: http://0.0.0.0:8080"),
        ("[::]:8080", "health: http://[::]:8080"),
    ],
)
def test_the_start_line_of_a_worker_names_its_health_address(given: str, address: str) -> None:
    """A port alone is of this machine only."""
    place = health_place(given)
    assert isinstance(place, HealthPort)
    assert place.address(None) == address


@pytest.mark.trio
async def test_a_worker_leaves_a_run_with_newer_records_to_others(place: Place) -> None:
    """The run is blocked as unreadable, with the reason; other runs are executed."""
    store = place.open()
    flujo = Flujo(Step("upper", upper), store=store)
    client = RunClient(store, allow_blocking=True)
    for run_id in ("newer", "plain"):
        await flujo.submit("x", run_id=run_id)
    run = "(SELECT id FROM flujo_runs WHERE run_id = 'newer')"
    place.query(f"UPDATE flujo_records SET body = '{{\"v\": 99}}' WHERE run = {run}")
    with trio.fail_after(120):
        async with flujo.worker():
            while client.get("plain").status != "completed" or client.get("newer").blocked != "unreadable":
                await trio.sleep(0.05)
            info = client.get("newer")
    assert (info.state, info.status) == ("blocked", "running")
    assert info.reason is not None
    assert "has format 99, this process reads up to 3" in info.reason
