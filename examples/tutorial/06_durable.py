"""Tutorial 6, a durable run. Run it twice: `python examples/tutorial/06_durable.py`. The first process kills itself."""

import os
import signal
from pathlib import Path

from flujo_actors import Flujo, Step


def draft(message: str) -> str:
    print("draft: one paid model call", flush=True)
    return f"Dear customer, about: {message}"


def send(text: str, *, idempotency_key: str) -> str:
    if not Path("crashed").exists():
        Path("crashed").touch()
        os.kill(os.getpid(), signal.SIGKILL)  # the same as `kill -9`
    print("send with key", idempotency_key)
    return "sent"


flujo = Flujo(Step("draft", draft) >> Step("send", send), store="sqlite:///desk.db")
result = flujo.resume("reply-1") if Path("crashed").exists() else flujo.run("a kettle", run_id="reply-1")
print(result.status, "-", result.output)
