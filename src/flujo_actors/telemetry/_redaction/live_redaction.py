"""A redactor that looks secrets up when they are needed.

Rules:

1. The environment is looked at before every text: programs learn their secrets (`load_dotenv`, a vault) after their
   pipelines were made, and steps while they run.
2. What was known to be secret once stays hidden, whatever the environment says later.
3. Of deps and resources, everything is looked at in the beginning, and the nearest objects again for each text of
   an error: most are small, and some are a whole client with its pools. Of deps that are made for every attempt, the
   nearest objects are looked at once, and what they hold is hidden while they are among the latest.
4. What one pipeline has learned is hidden in everything that leaves the process outside of a run, too: its log, and
   outcomes as JSON.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from .redactor import Redactor
from .secret_values import environment_secrets, worth_hiding

_LATEST = 100
"""How many of the deps that were made for attempts are remembered: a service makes new ones for each request."""
_NEAREST = 200
"""How many objects of deps are looked at again."""
_MOST_LEARNED = 1_000
"""How many secrets of deps the process remembers: one that makes a pipeline for each request would never stop."""


class LiveRedactor:
    """Hides what the environment holds or has held, and what `deps` hold, under secret-like names."""

    def __init__(
        self, environ: Mapping[str, str], deps: Sequence[object] = (), *, began: Mapping[str, str] | None = None
    ) -> None:
        self._environ, self._deps = environ, tuple(deps)
        self._made: deque[frozenset[str]] = deque(maxlen=_LATEST)
        self._with_made: Redactor | None = None
        self._seen: object = None
        self._lock = threading.Lock()
        self._redactor = Redactor.from_environment(environ if began is None else began)
        for each in self._deps:
            self._redactor = self._redactor.knowing(each)
        _learned.add(self._redactor.known)

    def learn(self, deps: object) -> None:
        """Hide what deps hold that were made for an attempt."""
        with self._lock:
            secrets = self._redactor.knowing(deps, most=_NEAREST).known - self._redactor.known
            if secrets and secrets not in self._made:
                self._made.append(secrets)
                self._with_made = None
                _learned.add(secrets)

    def current(self) -> Redactor:
        """What hides the secrets there are now."""
        # The mapping below `os.environ` is compared in a microsecond; decoding all of it takes fifty times as long.
        held = getattr(self._environ, "_data", self._environ)
        if held != self._seen:
            with self._lock:
                self._seen = dict(held)
                self._hide(worth_hiding(environment_secrets(dict(self._environ))))
        return self._all()

    def _all(self) -> Redactor:
        if not self._made:
            return self._redactor
        if self._with_made is None:
            self._with_made = self._redactor.hiding(frozenset().union(*self._made))
        return self._with_made

    def text(self, text: str) -> str:
        """The text of an error without secrets, looked up afresh: the same object if there are none."""
        self.current()
        for each in self._deps:
            with self._lock:
                self._hide(self._redactor.knowing(each, most=_NEAREST).known)
        return self._all().text(text)

    def _hide(self, secrets: frozenset[str]) -> None:
        known = self._redactor
        self._redactor = known.hiding(secrets)
        if self._redactor is not known:
            self._with_made = None
            _learned.add(self._redactor.known)


class _Learned:
    """What the redactors of this process have come to know, the latest of it."""

    def __init__(self) -> None:
        self._secrets: dict[str, None] = {}
        self._lock = threading.Lock()

    def add(self, secrets: frozenset[str]) -> None:
        with self._lock:
            self._secrets |= dict.fromkeys(secrets)
            for oldest in list(self._secrets)[:-_MOST_LEARNED]:
                del self._secrets[oldest]

    def all(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._secrets)


_learned = _Learned()


class _Process:
    """What leaves the process outside of a run."""

    def __init__(self) -> None:
        self._environment: LiveRedactor | None = None
        self._redactor = Redactor()

    def text(self, text: str) -> str:
        if self._environment is None:
            self._environment = LiveRedactor(os.environ)
        known = self._environment.current().known | _learned.all()
        if known != self._redactor.known:
            self._redactor = Redactor(secrets=known)
        return self._redactor.text(text)


redacted = _Process().text
"""A text without anything that this process knows to be secret, for what leaves it outside of a run."""
