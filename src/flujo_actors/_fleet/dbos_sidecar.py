"""The process in which DBOS lives, for a worker; see `sidecar` and `dbos_engine`. Run by `python -m`."""

from __future__ import annotations

import datetime
import os
import threading
import uuid
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig
from outcome import Error, capture

from flujo_actors._fleet.sidecar_home import Home

WORKFLOW = "flujo.play"
APPLICATION = "flujo-actors"
VERSION = "1"
"""Of this module, not of a pipeline: whether a worker can play a run is known by the run."""

KEPT_S = 5.0
"""How often what was played is deleted."""


FORGOTTEN_AFTER = datetime.timedelta(days=1)
"""After how long the ticket is deleted that a worker has taken and not played: the run is found by looking."""


def main() -> None:
    home = Home()
    got = capture(_launched, home)
    if isinstance(got, Error):
        home.failed(got.error)
    home.begin()
    while not home.stopping.wait(KEPT_S):
        capture(_delete_played)
    DBOS.destroy(workflow_completion_timeout_sec=3600)  # what is being played ends when its worker says so
    os._exit(0)


def _launched(home: Home) -> None:
    config = home.config
    DBOS(config=_settings(config))

    @DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)
    def play(run: str, queue: str) -> None:
        """Without steps, so that there is no second journal."""
        played = threading.Event()
        home.play(run, queue, played.set)
        played.wait()

    _register_queues(config)
    DBOS.listen_queues(config["queues"])
    DBOS.launch()


def _register_queues(config: dict[str, Any]) -> None:
    """Before DBOS looks for them, which it does once a second."""
    client = DBOSClient(
        system_database_url=config["url"], dbos_system_schema=config["schema"], application_name=APPLICATION
    )
    for queue in config["queues"]:
        client.register_queue(
            queue,
            worker_concurrency=config["slots"],
            polling_interval_sec=config["polling_s"],
            on_conflict="always_update",
        )
    client.destroy()


def _settings(config: dict[str, Any]) -> DBOSConfig:
    return DBOSConfig(
        name=APPLICATION,
        system_database_url=config["url"],
        dbos_system_schema=config["schema"],
        application_version=VERSION,
        executor_id=uuid.uuid4().hex,  # nobody's: what a dead worker took is asked for again, and not recovered
        run_migrations=False,
        log_level="CRITICAL",
    )


def _delete_played() -> None:
    """Forget what was played, since the store says what became of it, and what dead workers took long ago."""
    long_ago = datetime.datetime.now(datetime.UTC) - FORGOTTEN_AFTER
    ended = _found(status=["SUCCESS", "ERROR", "CANCELLED"])
    dead = _found(status="PENDING", dequeued_before=long_ago.isoformat())
    if ended or dead:
        DBOS.delete_workflows([*ended, *dead])


def _found(**by: Any) -> list[str]:
    found = DBOS.list_workflows(name=WORKFLOW, limit=1000, load_input=False, load_output=False, **by)
    return [each.workflow_id for each in found]


if __name__ == "__main__":
    main()
