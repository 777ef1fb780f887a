"""Neither side of a Postgres connection waits for the other for ever: silent servers, and owners that are frozen."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

import psycopg
import pytest
from cutting_proxy import CuttingProxy

from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Append, RunQuery
from flujo_actors.errors import LeaseLost, StoreError
from flujo_actors.stores.postgres import _session as session
from flujo_actors.stores.postgres._store import PostgresStore
from flujo_actors.testing._store_clauses.store_target import LEASE_S, admission, admit, bodies, claim, record, write

RUN = RunId("run")


@pytest.fixture
def url(postgres_server):
    return postgres_server.fresh_url()


@pytest.fixture
def proxy(url, tmp_path_factory):
    proxy = CuttingProxy(url, tmp_path_factory.mktemp("p"))
    yield proxy
    proxy.close()


@pytest.fixture(autouse=True)
def _quiet_pool():
    """The pool reports every connection that a test takes from it."""
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("psycopg").setLevel(logging.NOTSET)


def _transact(store, lease):
    with store.transaction() as transaction:
        transaction.append(Append(lease=lease, records=(record("x"),)))


CALLS = {
    "admit": lambda store, lease: store.admit(admission("new"), owner="me", lease_s=LEASE_S),
    "claim": lambda store, lease: claim(store),
    "append": lambda store, lease: write(store, lease, record("x")),
    "renew": lambda store, lease: store.renew([lease], lease_s=LEASE_S),
    "answer": lambda store, lease: store.answer(RUN, lease.run_id, token="t", record=record("x")),
    "get": lambda store, lease: store.get(RUN),
    "read": lambda store, lease: store.read(RUN),
    "find": lambda store, lease: store.find(RunQuery()),
    "delete": lambda store, lease: store.delete([RUN]),
    "request_cancel": lambda store, lease: store.request_cancel(RUN, reason="enough"),
    "cancel_requests": lambda store, lease: store.cancel_requests([RUN]),
    "transaction": _transact,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_silent_server_is_an_error_when_the_time_is_up(proxy, name):
    """Whatever it is asked; and the store works again when the server speaks again."""
    store, lease = _impatient(proxy)
    proxy.speaks.clear()
    with pytest.raises(StoreError):
        CALLS[name](store, lease)
    assert not proxy.speaks.is_set()
    proxy.speaks.set()
    assert _until_it_works(lambda: store.renew([lease], lease_s=LEASE_S)) == [None]
    store.close()


def test_a_server_that_falls_silent_inside_a_transaction_is_an_error_at_its_append(proxy):
    """What the borrower does takes as long as it takes; what the store does has a bound."""
    store, lease = _impatient(proxy)

    def write_late():
        with store.transaction() as transaction:
            transaction.connection.execute("SELECT pg_sleep(1.5)")
            proxy.speaks.clear()
            transaction.append(Append(lease=lease, records=(record("x"),)))

    with pytest.raises(StoreError):
        write_late()
    proxy.speaks.set()
    store.close()


def test_a_server_that_accepts_and_says_nothing_is_an_error(proxy):
    """Also for those who wait while another thread tries to connect."""
    proxy.speaks.clear()
    store = PostgresStore(proxy.url, timeout_s=1)
    errors = []

    def ask():
        with pytest.raises(StoreError):
            store.get(RUN)
        errors.append(1)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == [1, 1, 1]
    assert not proxy.speaks.is_set()


class Stopping:
    """A record that stops its process when it is about to be written: the run's row is locked by then."""

    kind, path, seq, gist = "settled", "x", 0, None

    def __init__(self):
        self.looked_at = 0

    @property
    def body(self):
        self.looked_at += 1
        if self.looked_at == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        return '{"v":2}'


def _freeze_in_append(url):
    store = PostgresStore(url)
    lease = store.admit(admission("run"), owner="frozen", lease_s=1)
    [verdict] = store.append([Append(lease=lease, records=(Stopping(),))])
    assert isinstance(verdict, LeaseLost)


def _freeze_in_transaction(url):
    store = PostgresStore(url)
    lease = store.admit(admission("run"), owner="frozen", lease_s=1)

    def stop_before_the_end():
        with store.transaction() as transaction:
            transaction.append(Append(lease=lease, records=(record("x"),)))
            os.kill(os.getpid(), signal.SIGSTOP)

    with pytest.raises((LeaseLost, psycopg.Error, StoreError)):
        stop_before_the_end()


@pytest.mark.parametrize("knows_transaction_timeout", [True, False], ids=["new server", "old server"])
@pytest.mark.parametrize("freeze", [_freeze_in_append, _freeze_in_transaction])
def test_an_owner_frozen_inside_a_transaction_keeps_nobody_from_its_run(
    url, monkeypatch, freeze, knows_transaction_timeout
):
    """The server ends the transaction when the lease is over; the owner that wakes is refused, and wrote nothing."""
    if not knows_transaction_timeout:
        monkeypatch.setattr(session, "_HAS_TRANSACTION_TIMEOUT", 10**9)
    owner = _forked(lambda: freeze(url))
    _, status = os.waitpid(owner, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    store = PostgresStore(url)
    lease = _until_it_works(lambda: claim(store))
    assert lease.epoch == 2
    assert write(store, lease, record("mine")) is None
    os.kill(owner, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(owner, 0)[1]) == 0
    assert bodies(store) == [record("mine").body]
    store.close()


def _impatient(proxy):
    """A connected store that waits for a second, and a lease; the tables were made by one with more patience."""
    patient = PostgresStore(proxy.url)
    lease = admit(patient)
    patient.close()
    store = PostgresStore(proxy.url, timeout_s=1)
    _until_it_works(lambda: store.get(RUN))
    return store, lease


def _until_it_works(do):
    """What it returns, in the time that a slow machine needs; a frozen owner's lock would last for ever."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return do()
        except StoreError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _forked(work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child
