"""Sidecar process of DBOS for a worker; run by `python -m`."""

from __future__ import annotations

import datetime
import os
import threading
import uuid
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig
from outcome import Error, capture

from flujo_actors._fleet.sidecar_process import SidecarHost

WORKFLOW = "flujo.play"
APPLICATION = "flujo-actors"
VERSION = "1"
"""Version of this module, independent of any pipeline."""

KEPT_S = 5.0
"""Interval between deletions of executed workflows."""


FORGOTTEN_AFTER = datetime.timedelta(days=1)
"""Age for deleting claimed, unexecuted tickets; polling finds their runs."""


def main() -> None:
    host = SidecarHost()
    got = capture(_launched, host)
    if isinstance(got, Error):
        host.failed(got.error)
    host.begin()
    while not host.stopping.wait(KEPT_S):
        capture(_delete_executed)
    DBOS.destroy(workflow_completion_timeout_sec=3600)  # a running one ends when its worker reports
    os._exit(0)


def _launched(host: SidecarHost) -> None:
    config = host.config
    DBOS(config=_settings(config))

    @DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)
    def play(run: str, queue: str) -> None:
        """Execute without steps, so that there is no second journal."""
        delivered = threading.Event()
        host.play(run, queue, delivered.set)
        delivered.wait()

    _register_queues(config)
    DBOS.listen_queues(config["queues"])
    DBOS.launch()


def _register_queues(config: dict[str, Any]) -> None:
    """Register the queues before DBOS polls, once a second."""
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
        executor_id=uuid.uuid4().hex,  # no owner: tickets of a dead worker are requested again, not recovered
        run_migrations=False,
        log_level="CRITICAL",
    )


def _delete_executed() -> None:
    """Delete executed workflows, and old tickets of dead workers."""
    long_ago = datetime.datetime.now(datetime.UTC) - FORGOTTEN_AFTER
    ended = _workflow_ids(status=["SUCCESS", "ERROR", "CANCELLED"])
    dead = _workflow_ids(status="PENDING", dequeued_before=long_ago.isoformat())
    if ended or dead:
        DBOS.delete_workflows([*ended, *dead])


def _workflow_ids(**by: Any) -> list[str]:
    found = DBOS.list_workflows(name=WORKFLOW, limit=1000, load_input=False, load_output=False, **by)
    return [each.workflow_id for each in found]


if __name__ == "__main__":
    main()
