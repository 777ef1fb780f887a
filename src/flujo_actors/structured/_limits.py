"""How much work one text may cost. Counted in characters and steps, never in seconds, so the answer is repeatable.

Why these numbers (one core of a slow two-core machine, worst input found for each):

- a step of the mender is one token and costs about 2 µs, so `max_steps` ends it after about 0.15 s;
- `fast_json_repair` is linear, 40 MB/s; `json_repair` is quadratic on stray braces (1.5 s for 4 kB), so it
  only ever sees `max_slow_repair_chars` of an extracted candidate: 0.1 s at worst;
- strict JSON costs by its values more than by its length: a million of them take about 0.5 s, one string of 64 MB
  0.05 s. So a text as long as a stream may bring is read if it is JSON of not too many values; it is never searched.
"""

from __future__ import annotations

import attrs


class TooMuchWork(Exception):
    """The limits were passed before the text was read."""


@attrs.frozen(kw_only=True)
class Limits:
    """The bounds under which a text is read; passing one of them is a refusal, never a cut."""

    max_chars: int = 64 * 1024 * 1024
    """Of JSON that needs no mending; as many as `aros.streaming.max_bytes` lets through unless it is changed."""
    max_searched_chars: int = 8_000_000
    """Of text in which JSON has to be found, or mended."""
    max_commas_beyond: int = 1_000_000
    """How many values a text longer than that may have, reckoned by its commas."""
    max_depth: int = 200
    max_steps: int = 60_000
    max_starts: int = 2_000
    max_fast_repair_chars: int = 200_000
    max_slow_repair_chars: int = 1_000


DEFAULT_LIMITS = Limits()
