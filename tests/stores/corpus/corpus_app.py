"""The pipeline of the stored runs: two steps, a question, and a last step."""

from __future__ import annotations

import os
from typing import Any

from flujo_actors import Step


async def double(number: int, *, context: Any) -> int:
    """Double a number, and note it in the context."""
    context.doubled = [2 * number]
    return 2 * number


async def crash(number: int) -> int:
    """Return the number, unless this process is to die here."""
    if os.environ.get("CORPUS_CRASH"):
        os._exit(9)
    return number


async def add(answer: int) -> int:
    """Add one to the answer."""
    return answer + 1


PIPELINE = (
    Step("double", double) >> Step("crash", crash) >> Step.human_in_the_loop("ask", "How many?") >> Step("add", add)
)
