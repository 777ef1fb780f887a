"""Write a completed, a paused and a crashed run into a store: `python write_store.py URL`."""

from __future__ import annotations

import os
import subprocess
import sys

from corpus_app import PIPELINE

from flujo_actors import Flujo


def main(url: str) -> None:
    """Write the three runs with the installed version of the library."""
    flujo = Flujo(PIPELINE, store=url)
    if os.environ.get("CORPUS_CRASH"):
        flujo.run(3, run_id="crashed")
    flujo.run(1, run_id="completed")
    flujo.resume(token_of(url, "completed"), 40)
    flujo.run(2, run_id="paused")
    subprocess.run([sys.executable, __file__, url], env={**os.environ, "CORPUS_CRASH": "1"}, check=False)


def token_of(url: str, run_id: str) -> str:
    """Return the token of a paused run."""
    from flujo_actors import RunClient

    token = RunClient(url).get(run_id).state_token
    assert token is not None
    return token


if __name__ == "__main__":
    main(sys.argv[1])
