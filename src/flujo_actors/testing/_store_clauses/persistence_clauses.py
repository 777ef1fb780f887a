"""Clauses: names, long bodies, deletion, damage and versions."""

from __future__ import annotations

import json
import random

import attrs
import pytest

from ..._core.labels import Labels
from ..._core.outcomes import RunId
from ..._core.records.records import Append, OpenPause, Record, RecordKind, RunQuery, StoredRun
from ..._core.step_paths import ROOT, StepPath
from ...errors import CorruptRecord, RunExists, RunNotFound, StoreVersionError
from ...stores._store_port import Store
from .store_target import LEASE_S, STEP, StorePlace, admission, admit, bodies, claim, record, write

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
    """Storage, retention and damage."""

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
    def test_every_name_comes_back_as_it_was(self, store: Store, name: str) -> None:
        """Names and bodies may hold any character, at any length."""
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
        """Case, blanks, normal forms and escape-like texts make different runs."""
        names = ["a", "A", "a ", "\u00e9", "e\u0301", "\x1a0000", "\0", "\ud83e\udd8a", "🦊", "a\0", "%61"]
        for name in names:
            admit(store, name)
        assert {run.run_id for run in store.find(RunQuery())} == set(names)

    def test_a_long_body_comes_back_and_is_kept_once(self, store: Store, place: StorePlace) -> None:
        """Large payloads are stored separately, equal ones only once."""
        first, second = admit(store, "first"), admit(store, "second")
        write(store, first, record(LONG), record("short"), record(LONG))
        write(store, second, record(LONG))
        assert bodies(store, "first") == [record(LONG).body, record("short").body, record(LONG).body]
        assert bodies(store, "second") == [record(LONG).body]
        assert place.count_blobs() == 1

    @pytest.mark.parametrize("millions", [1, 3])
    def test_a_body_of_megabytes_comes_back(self, store: Store, millions: int) -> None:
        """More than a socket accepts at once, alone or in a batch."""
        first, second = admit(store, "first"), admit(store, "second")
        huge = [record(f"{number} " + "é" * 1_000_000 * millions) for number in range(2)]
        batch = [Append(lease=first, records=tuple(huge)), Append(lease=second, records=(record("small"), huge[0]))]
        assert store.append(batch) == [None, None]
        assert bodies(store, "first") == [each.body for each in huge]
        assert bodies(store, "second") == [record("small").body, huge[0].body]

    def test_a_blob_goes_with_the_last_run_that_uses_it(self, store: Store, place: StorePlace) -> None:
        """Deleting one run keeps blobs that another one needs."""
        for run_id in ("first", "second"):
            write(store, admit(store, run_id), record(LONG), release=True)
        assert store.delete([RunId("first")]) == 1
        assert bodies(store, "second") == [record(LONG).body]
        assert store.delete([RunId("second")]) == 1
        assert place.count_blobs() == 0

    def test_a_deleted_run_is_gone_with_all_it_wrote(self, store: Store) -> None:
        """Its id is free again, and a new run begins empty."""
        lease = admit(store)
        asked = OpenPause(path=StepPath("a"), token="t", message="m", body="{}")
        store.append([Append(lease=lease, records=(record("a"),), pauses=(asked,), status="paused", release=True)])
        assert store.delete([RunId("run"), RunId("nobody"), RunId("run")]) == 1
        with pytest.raises(RunNotFound):
            store.get(RunId("run"))
        admit(store)
        assert (bodies(store), store.get(RunId("run")).pauses) == ([], ())

    def test_a_leased_run_is_not_deleted(self, store: Store, place: StorePlace) -> None:
        """Retention skips a run until its lease has expired."""
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
        """A typed error names the record; other runs are readable."""
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
        """An earlier version neither reads nor writes a later database."""
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


HOSTILE = RunId("run \0\udc00")
LONG_BODY = "x" * 100_000


def records() -> list[Record]:
    """Return the records of an exported run, one of them long."""
    first = Record(kind="admitted", path=ROOT, body='{"v": 1, "input": "hello"}')
    kept = [first, record(LONG_BODY), record("\udc00")]
    return [attrs.evolve(each, seq=seq, at=1_700_000_000.5 + seq) for seq, each in enumerate(kept, start=1)]


def exported(**changes: object) -> StoredRun:
    run = StoredRun(
        run_id=HOSTILE,
        pipeline="pipeline \0",
        status="paused",
        created_at=1_700_000_000.25,
        updated_at=1_700_000_009.75,
        started_at=1_700_000_001.5,
        worked_s=2.5,
        epoch=3,
        leased=False,
        records=3,
        pauses=(OpenPause(path=STEP, token="token", message="May I? \0", body='{"v": 1}', due_at=9e9),),
        queue="queue \udc00",
        tokens=7,
        cost_usd=0.1,
        retries=2,
        fingerprint="3f2a91",
        labels=Labels({"tenant": "7 \0"}),
    )
    return attrs.evolve(run, **changes)  # type: ignore[arg-type]


class TransferClauses:
    """Runs of another store, as they were there."""

    @pytest.fixture(autouse=True)
    def _transfers(self, store: Store) -> None:
        if not hasattr(store, "put"):
            pytest.skip("this store does not import runs")

    def test_an_imported_run_is_as_it_was(self, store: Store) -> None:
        """Times, usage, open pauses and records; it has no owner."""
        store.put([(exported(), records())])
        run = store.get(HOSTILE)
        assert attrs.evolve(run, cursor="") == exported()
        assert store.read(HOSTILE) == records()
        assert [each.at for each in store.read(HOSTILE)] == [each.at for each in records()]
        assert [each.seq for each in store.scan(HOSTILE)] == [1, 2, 3]

    def test_an_imported_run_is_answered_claimed_and_continued(self, store: Store, place: StorePlace) -> None:
        """Under the token that it had, by a worker of its queue."""
        store.put([(exported(), records())])
        store.answer(HOSTILE, STEP, token="token", record=record("yes", kind="answered"))
        [wants] = store.wanting(pipeline="pipeline \0", queues=["queue \udc00"], host="nobody", limit=5)
        assert wants.run_id == HOSTILE
        lease = claim(place.open(), HOSTILE)
        assert lease.epoch == 4
        assert write(store, lease, record("more"), status="running") is None
        assert [each.seq for each in store.read(HOSTILE)] == [1, 2, 3, 4, 5]

    def test_an_import_is_all_or_nothing(self, store: Store) -> None:
        """A used id, or an interrupted source, leaves no run behind."""
        admit(store, "there")
        other = exported(run_id=RunId("there"), pauses=())
        with pytest.raises(RunExists):
            store.put([(exported(), records()), (other, records())])
        with pytest.raises(ZeroDivisionError):
            store.put((exported(), records()[: 1 // part]) for part in (1, 0))
        with pytest.raises(RunNotFound):
            store.get(HOSTILE)

    def test_records_are_read_in_pages(self, store: Store) -> None:
        """After a number, at most so many."""
        store.put([(exported(), records())])
        assert store.read_page(HOSTILE, after=0, limit=2) == records()[:2]
        assert store.read_page(HOSTILE, after=2, limit=2) == records()[2:]
        assert store.read_page(HOSTILE, after=3, limit=2) == []
        with pytest.raises(RunNotFound):
            store.read_page(RunId("gone"), after=0, limit=1)

    def test_long_runs_are_read_in_parts(self, store: Store) -> None:
        """Records outside items in order, those inside last first."""
        if not hasattr(store, "read_inside"):
            pytest.skip("this store reads runs as a whole")
        places = ["", "all", "all/~i0/x", "all/~i0", "all/~i1", "b/~0i1", "\udc00/~i7/y/~i1", "all"]
        settled: RecordKind = "settled"
        kinds: list[RecordKind] = ["admitted", "started", *[settled] * 4, "paused", settled]
        texts = ["\0\x1a", "\x1a", "x" * 100_000, *"abcde"]
        given = [
            Record(kind=kind, path=StepPath(path), body=json.dumps({"v": 1, "x": text}), seq=seq, at=1_700_000_000.5)
            for seq, (kind, path, text) in enumerate(zip(kinds, places, texts, strict=True), 1)
        ]
        store.put([(attrs.evolve(exported(pauses=()), records=len(given)), given)])
        inside = [each for each in reversed(given) if "/~i" in each.path]
        found = store.read_inside(HOSTILE, before=99, limit=3)
        found += store.read_inside(HOSTILE, before=found[-1][0], limit=3)
        assert [row[:4] for row in found] == [(each.seq, each.kind, each.path, each.body) for each in inside]
        assert [row[4] for row in found if row[1] == "paused"] == [1_700_000_000.5]
        assert store.read_outside(HOSTILE) == [each for each in given if each not in inside]
        assert sorted(store.repeated(HOSTILE)) == ["all", "\udc00"]
        assert store.read_inside(HOSTILE, before=1, limit=3) == []
        with pytest.raises(RunNotFound):
            store.read_outside(RunId("gone"))

    def test_imported_remote_steps_belong_to_their_run(self, store: Store) -> None:
        """They are not listed, and deleted with it."""
        step = exported(run_id=RunId("step"), parent=HOSTILE, pauses=(), status="completed", ended_at=1_700_000_009.75)
        store.put([(exported(), records()), (step, records())])
        assert store.children(HOSTILE) == ["step"]
        assert store.delete([HOSTILE]) == 1
        with pytest.raises(RunNotFound):
            store.get(RunId("step"))

    def test_a_due_question_of_an_imported_run_expires(self, store: Store) -> None:
        """Its deadline is that of the export."""
        if not hasattr(store, "expire"):
            pytest.skip("this store has no deadlines")
        asked = attrs.evolve(exported().pauses[0], due_at=1_700_000_005.0)
        store.put([(exported(pauses=(asked,)), records())])
        assert store.expire(body='{"v": 1}') == [HOSTILE]
        assert store.get(HOSTILE).expired
        assert store.get(HOSTILE).pauses == ()
