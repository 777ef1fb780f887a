"""What a sidecar sees of the program that started it; see `sidecar`."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from outcome import Error, capture


class Home:
    """The program, at the other end of two pipes."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints is not for the program
        self.config: dict[str, Any] = json.loads(sys.stdin.readline())
        self.stopping = threading.Event()
        """Set when nothing new is to be taken."""
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._playing: dict[int, Callable[[], None]] = {}
        self._do: Callable[[str, Sequence[object]], None] | None = None

    def begin(self, do: Callable[[str, Sequence[object]], None] | None = None) -> None:
        """Say that all is well, and hear what the program says; `do` is called for what it asks, in threads."""
        self._do = do
        threading.Thread(target=self._listen, daemon=True).start()
        self._tell(ready=True)

    def play(self, run: str, queue: str, then: Callable[[], None]) -> None:
        """Have a run played; `then` is called when that is over."""
        number = next(self._numbers)
        self._playing[number] = then
        self._tell(play=number, run=run, queue=queue)

    def playing(self) -> int:
        """How many runs are being played."""
        return len(self._playing)

    def failed(self, error: BaseException) -> None:
        """Say why this process cannot work, and end it, whatever its library is doing."""
        self._tell(failed=_said(error))
        os._exit(1)

    def _tell(self, **message: object) -> None:
        with self._lock:
            self._out.write(json.dumps(message) + "\n")
            self._out.flush()

    def _listen(self) -> None:
        for line in sys.stdin:
            match json.loads(line):
                case {"played": number}:
                    self._playing.pop(number)()
                case {"stop": True}:
                    self.stopping.set()
                case {"ask": number, "do": do, "what": what}:
                    threading.Thread(target=self._answer, args=(number, do, what), daemon=True).start()
        os._exit(0)  # the program has ended, or wants nothing more

    def _answer(self, number: int, do: str, what: Sequence[object]) -> None:
        assert self._do is not None
        got = capture(self._do, do, what)
        self._tell(answer=number, error=_said(got.error) if isinstance(got, Error) else None)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:1000]
