"""Clauses: names, long bodies, deletion, damage and versions."""

from __future__ import annotations

import json
import random

import pytest

from ..._core.outcomes import RunId
from ..._core.paths import StepPath
from ..._core.records import Append, OpenPause, Record, RunQuery
from ...errors import CorruptRecord, RunNotFound, StoreVersionError
from ...stores._port import Store
from .place import StorePlace
from .samples import LEASE_S, admission, admit, bodies, claim, record, write

NAMES = {
    "quotes": """Robert'); DROP TABLE "runs";--`'""",
    "NUL": "a\0b\0",
    "long": "".join(random.Random(5).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=10_000)),
    "emoji": "🦊 naïve ☃ \u202e",
    "surrogates": "\ud800 lone \udfff \x1a001a",
    "path": "../../etc/passwd\\..",
    "lines": "a\r\nb\tc %s %(x)s :x ?1 {} $1",
    "empty": "",
}
LONG = "long " * 40_000


class KeepingClauses:
    """What is kept, for how long, and what happens when it was not."""

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
    def test_every_name_comes_back_as_it_was(self, store: Store, name: str) -> None:
        """Run ids, pipelines, paths, tokens, messages and bodies may hold any character, at any length."""
        run_id, path = RunId(f"r{name}"), StepPath(name)
        lease = store.admit(admission(run_id, pipeline=name), owner=name, lease_s=LEASE_S)
        body = json.dumps({"v": 1, "name": name}, ensure_ascii=False)
        asked = OpenPause(path=path, token=name, message=name, body=body)
        sent = Record(kind="paused", path=path, body=body)
        batch = [Append(lease=lease, records=(sent,), pauses=(asked,), status="paused", release=True)]
        assert store.append(batch) == [None]
        run = store.get(run_id)
        assert (run.run_id, run.pipeline, run.pauses) == (run_id, name, (asked,))
        assert store.find(RunQuery(pipeline=name)) == [run]
        store.answer(run_id, path, token=name, record=Record(kind="answered", path=path, body=body))
        assert [(each.path, each.body) for each in store.read(run_id, after=1)] == [(path, body)] * 2
        assert claim(store, run_id).run_id == run_id

    def test_names_that_differ_little_are_different(self, store: Store) -> None:
        """Case, blanks, normal forms and what escapes may look like make different runs."""
        names = ["a", "A", "a ", "\u00e9", "e\u0301", "\x1a0000", "\0", "\ud83e\udd8a", "🦊", "a\0", "%61"]
        for name in names:
            admit(store, name)
        assert {run.run_id for run in store.find(RunQuery())} == set(names)

    def test_a_long_body_comes_back_and_is_kept_once(self, store: Store, place: StorePlace) -> None:
        """Large payloads are stored apart, the same one only once, whoever wrote it."""
        first, second = admit(store, "first"), admit(store, "second")
        write(store, first, record(LONG), record("short"), record(LONG))
        write(store, second, record(LONG))
        assert bodies(store, "first") == [record(LONG).body, record("short").body, record(LONG).body]
        assert bodies(store, "second") == [record(LONG).body]
        assert place.count_blobs() == 1

    @pytest.mark.parametrize("millions", [1, 3])
    def test_a_body_of_megabytes_comes_back(self, store: Store, millions: int) -> None:
        """More than a socket takes at once, alone and among others of its batch."""
        first, second = admit(store, "first"), admit(store, "second")
        huge = [record(f"{number} " + "é" * 1_000_000 * millions) for number in range(2)]
        batch = [Append(lease=first, records=tuple(huge)), Append(lease=second, records=(record("small"), huge[0]))]
        assert store.append(batch) == [None, None]
        assert bodies(store, "first") == [each.body for each in huge]
        assert bodies(store, "second") == [record("small").body, huge[0].body]

    def test_a_blob_goes_with_the_last_run_that_uses_it(self, store: Store, place: StorePlace) -> None:
        """Deleting one run leaves what another one still needs."""
        for run_id in ("first", "second"):
            write(store, admit(store, run_id), record(LONG), release=True)
        assert store.delete([RunId("first")]) == 1
        assert bodies(store, "second") == [record(LONG).body]
        assert store.delete([RunId("second")]) == 1
        assert place.count_blobs() == 0

    def test_a_deleted_run_is_gone_with_all_it_wrote(self, store: Store) -> None:
        """Its id is free again, and a new run under it begins with nothing."""
        lease = admit(store)
        asked = OpenPause(path=StepPath("a"), token="t", message="m", body="{}")
        store.append([Append(lease=lease, records=(record("a"),), pauses=(asked,), status="paused", release=True)])
        assert store.delete([RunId("run"), RunId("nobody"), RunId("run")]) == 1
        with pytest.raises(RunNotFound):
            store.get(RunId("run"))
        admit(store)
        assert (bodies(store), store.get(RunId("run")).pauses) == ([], ())

    def test_a_leased_run_is_not_deleted(self, store: Store, place: StorePlace) -> None:
        """Work in progress is safe from retention, until its lease has run out."""
        admit(store, "alive")
        write(store, admit(store, "done"), status="completed", release=True)
        assert store.delete([RunId("alive"), RunId("done")]) == 1
        assert [run.run_id for run in store.find(RunQuery())] == ["alive"]
        place.advance(LEASE_S + 1)
        assert store.delete([RunId("alive")]) == 1

    @pytest.mark.parametrize(
        "damage",
        [{"body": '{"v": 1, "te'}, {"body": "[1]"}, {"body": ""}, {"kind": "unheard-of"}],
        ids=["cut off", "not an object", "empty", "unknown kind"],
    )
    def test_a_damaged_record_is_named_and_others_are_unharmed(
        self, store: Store, place: StorePlace, damage: dict[str, object]
    ) -> None:
        """Reading the run is a typed error that says which record; it is left as it is, and other runs can be read."""
        write(store, admit(store), record("a"), record("b"))
        write(store, admit(store, "other"), record("c"))
        place.damage(RunId("run"), 3, **damage)
        before = place.dump()
        with pytest.raises(CorruptRecord, match=r"record 3 of run 'run'"):
            store.read(RunId("run"))
        assert bodies(store, "other") == [record("c").body]
        assert len(store.find(RunQuery())) == 2
        assert place.dump() == before

    @pytest.mark.parametrize("delete", [True, False], ids=["missing", "truncated"])
    def test_a_damaged_blob_is_named(self, store: Store, place: StorePlace, delete: bool) -> None:
        """A long body is checked against its hash before anybody sees it."""
        write(store, admit(store), record("a"), record(LONG))
        place.damage_blobs(delete=delete)
        with pytest.raises(CorruptRecord, match=r"record 3 of run 'run'"):
            store.read(RunId("run"))
        assert [each.seq for each in store.read(RunId("run"), after=3)] == []

    def test_a_newer_schema_is_refused_and_left_alone(self, place: StorePlace) -> None:
        """A database of a later version is not touched by an earlier one, reading or writing."""
        store = place.open()
        admit(store)
        store.close()
        place.set_version(place.version() + 1)
        before = place.dump()
        newcomer = place.open()
        for use in (lambda: admit(newcomer, "other"), lambda: newcomer.find(RunQuery()), lambda: _transact(newcomer)):
            with pytest.raises(StoreVersionError):
                use()
        assert place.dump() == before

    def test_opening_again_changes_nothing(self, place: StorePlace) -> None:
        """A schema that is up to date stays as it is."""
        admit(place.open())
        before, version = place.dump(), place.version()
        assert place.open().get(RunId("run")).records == 1
        assert (place.dump(), place.version()) == (before, version)


def _transact(store: Store) -> None:
    with store.transaction():
        raise AssertionError("a transaction was opened")
