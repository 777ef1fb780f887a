"""Engine on a Ray cluster: tickets in one actor (extra `ray`).

Rules:

1. A run is queued at most once. Only its name is there.
2. Ray runs in a sidecar process: it can be initialized once per process, and ends it when the head is away for a
   minute.
3. Ray places workers (`ray job submit --entrypoint-num-gpus 1 -- flujo-actors worker …`, say), the ticket queue gives
   them runs. Tickets lost with a node, or with the head, are requested again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from ...errors import DeclarationError
from ..engine_port import ExecuteTicket, Ticket
from ..sidecar_process import Sidecar, SidecarGone, serve_in_sidecar

if importlib.util.find_spec("ray") is None:
    raise ImportError("No module named 'ray'")  # here, where the caller gets the error, and not in the sidecar

CLIENT_PORT = "10001"
"""Default port of a head for clients outside the cluster."""

logger = logging.getLogger("flujo_actors")


class RayEngine:
    """Ticket queue in a Ray cluster; see the module's rules."""

    def __init__(
        self, address: str = "auto", *, prefix: str = "", patience_s: float = 20.0, retry_s: float = 1.0
    ) -> None:
        self._addresses = _readings(address)
        self._prefix, self._patience_s, self._retry_s = prefix, patience_s, retry_s
        self._sidecar: Sidecar | None = None
        self._lock = threading.Lock()

    @classmethod
    def at(cls, url: str) -> RayEngine:
        """Return the engine behind `ray`, the cluster of this machine, or `ray://host:port`."""
        address = url.removeprefix("ray").removeprefix("://")
        if address and not address.rpartition(":")[2].isdecimal():
            raise DeclarationError(
                f"{url!r:.100} names no Ray cluster: use ray://host:6379, the address of its head, "
                f"ray://host:{CLIENT_PORT}, its port for Ray clients, or 'ray', the cluster of this machine"
            )
        return cls(address or "auto")

    def prepare(self) -> None:
        self._check_port()
        for _ in self._addresses[1:]:
            with contextlib.suppress(ConnectionError):
                return self._request("put", [])
        return self._request("put", [])

    def submit(self, tickets: Sequence[Ticket], connection: Any = None) -> None:
        if tickets:
            self._request("put", [self._as_data(ticket) for ticket in tickets])

    def again(self, tickets: Sequence[Ticket]) -> None:
        self.submit(tickets)  # a waiting worker waits once

    def withdraw(self, run_ids: Sequence[str]) -> None:
        if run_ids:
            self._request("drop", [_name(run_id) for run_id in run_ids])

    def _as_data(self, ticket: Ticket) -> tuple[str, str, int, float | None]:
        return _name(ticket.run_id), self._prefix + ticket.queue, ticket.priority, ticket.not_before

    def _request(self, do: str, arguments: Sequence[Any]) -> None:
        sidecar, address = self._open(), self._address
        try:
            sidecar.request(do, arguments, within_s=self._patience_s)
            self._addresses = self._addresses[:1]  # it was the right one
        except (SidecarGone, TimeoutError) as error:
            self._drop(sidecar)
            raise ConnectionError(f"the Ray cluster at {address} does not answer: {error!r}") from error

    def _open(self) -> Sidecar:
        with self._lock:
            if self._sidecar is None or self._sidecar.gone.is_set():
                self._check_port()
                self._sidecar = Sidecar("contrib.ray_sidecar", {"address": self._address})
                weakref.finalize(self, self._sidecar.close)  # the thread that listens to it would keep it
            return self._sidecar

    def _check_port(self) -> None:
        """Fail at once without a listener: Ray itself would wait for minutes."""
        host, _, port = self._address.removeprefix("ray://").rpartition(":")
        try:
            if host:
                socket.create_connection((host, int(port)), self._patience_s).close()
        except OSError as error:
            raise ConnectionError(f"the Ray cluster at {self._address} does not answer: {error}") from error

    def _drop(self, sidecar: Sidecar) -> None:
        with self._lock:
            if self._sidecar is sidecar:
                self._sidecar = None
            if not sidecar.ready.done() or sidecar.ready.exception() is not None:
                self._read_otherwise()
        sidecar.close()

    # --- which address it is ---

    @property
    def _address(self) -> str:
        return self._addresses[0]

    def _read_otherwise(self) -> None:
        """Interpret the port otherwise: the head's own, or the clients'."""
        self._addresses = [*self._addresses[1:], self._addresses[0]]

    # --- the worker's side ---

    def serve(self, queues: Sequence[str], slots: int, play: ExecuteTicket, stopping: threading.Event) -> None:
        named, warned = [self._prefix + queue for queue in queues], ""
        while not stopping.is_set():
            config = {"address": self._address, "queues": named, "slots": slots}
            try:
                self._check_port()
                left = serve_in_sidecar("contrib.ray_sidecar", config, slots, play, stopping, start_s=self._patience_s)
                self.again([Ticket(run_id=each.run_id, queue=each.queue.removeprefix(self._prefix)) for each in left])
            except ConnectionError as error:
                if str(error) != warned:
                    logger.warning("the Ray cluster is out of reach (%s); trying again", error)
                warned = str(error)
                stopping.wait(self._retry_s)


def _readings(address: str) -> list[str]:
    """Return the interpretations of an address, likelier first."""
    if ":" not in address:
        return [address]
    both = [address, f"ray://{address}"]
    return both[::-1] if address.endswith(f":{CLIENT_PORT}") else both


def _name(run_id: str) -> str:
    """Return a run id as sendable text, for any characters."""
    return json.dumps(run_id)
