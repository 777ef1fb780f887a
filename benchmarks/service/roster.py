"""Who takes part, and what is installed for each; what two desks share, they have in the same release."""

import re
from pathlib import Path

from benchmarks.roster import OURS, Contender

ROOT = Path(__file__).parents[2]
LANGGRAPH, BARE = "langgraph", "bare pydantic-ai"


def pinned(*names: str) -> tuple[str, ...]:
    """These packages, in the releases that this project was last tested with."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    releases = dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))
    return tuple(f"{name}=={releases[name.partition('[')[0]]}" for name in names)


CLIENT = pinned("openai", "pydantic", "httpx", "httpx2", "anyio")
POSTGRES = pinned("psycopg[binary]", "psycopg-pool")


def desk(name: str, module: str, *needs: str) -> Contender:
    """A contender of this package."""
    return Contender(name, ("-m", f"benchmarks.service.desks.{module}"), needs, f"service-{module}")


DESKS = (
    desk(
        OURS,
        "ours",
        f"--editable={ROOT}[openai,postgres]",
        f"--constraint={ROOT / 'build' / 'versions.txt'}",  # made by `make bench-service`
        *pinned("pydantic-ai-slim[openai]", "trio"),
        *CLIENT,
        *POSTGRES,
    ),
    desk(
        LANGGRAPH,
        "langgraph",
        "langgraph==1.2.20",
        "langchain-core==1.7.2",
        "langchain-openai==1.7.3",
        "langgraph-checkpoint-sqlite==3.1.2",
        "langgraph-checkpoint-postgres==3.2.0",
        *CLIENT,
        *POSTGRES,
    ),
    desk(BARE, "pydantic_ai", *pinned("pydantic-ai-slim[openai]"), *CLIENT),
)
