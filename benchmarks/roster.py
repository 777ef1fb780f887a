"""Who takes part: a name for the table, the module that works, and what it needs installed.

Everything a peer depends on is pinned here and nowhere else. It goes into the peer's own environment, never into ours.
"""

import attrs

YARDSTICK = "raw trio"
"""The contender that ratios are taken to."""
OURS = "flujo-actors"


@attrs.frozen
class Contender:
    """A process that speaks `benchmarks.protocol`, started in the project's root directory."""

    name: str
    arguments: tuple[str, ...]
    """What its interpreter is started with."""
    requirements: tuple[str, ...] = ()
    """What is installed into its own environment; nothing means that it runs in ours."""
    environment: str = ""
    """What that environment is called; without a name, as the first of its requirements."""


def contender(name: str, module: str, *options: str, needs: tuple[str, ...] = ()) -> Contender:
    """A contender of this package."""
    return Contender(name, ("-m", f"benchmarks.contenders.{module}", *options), needs)


LOCAL = (
    contender(YARDSTICK, "raw_trio"),
    contender(YARDSTICK, "raw_sqlite"),
    contender(OURS, "ours"),
    contender(OURS, "ours_durable"),
    contender(f"{OURS} in asyncio", "ours_in_asyncio"),
    contender(f"{OURS} in asyncio, steps that wait", "ours_in_asyncio", "--waiting"),
    contender("agent.run", "ours_with_agent", "bare"),
    contender(f"{OURS} in asyncio", "ours_with_agent", "asyncio"),
    contender(OURS, "ours_with_agent", "trio"),
    contender(f"{OURS}, atomic step", "ours_with_agent", "atomic"),
    contender(f"{OURS}, granular step", "ours_with_agent", "granular"),
    contender("json_repair", "reader", "json_repair"),
    contender("fast_json_repair", "reader", "fast_json_repair"),
    contender(OURS, "reader", "flujo-actors"),
    contender(f"{OURS} with a schema", "reader", "flujo-actors-with-schema"),
    contender("Python", "ours_in_yaml", "python"),
    contender("blueprint", "ours_in_yaml", "yaml"),
)
"""Those that need nothing but this project. One name may stand for several processes, each with works of its own."""

BY_HAND = (
    contender("raw trio, awaited send", "raw_trio", "--awaited"),
    contender("raw asyncio", "raw_asyncio"),
    contender("raw anyio on asyncio", "raw_anyio"),
)
"""Other ways to write it by hand, for who wants to know everything."""

BURR = ("burr==0.42.0", "pydantic==2.14.3", "aiosqlite==0.22.1")

PEERS = (
    contender("burr", "burr", needs=BURR),
    contender("burr, blocking", "burr", "--blocking", needs=BURR),
    contender("pydantic-graph", "pydantic_graph", needs=("pydantic-graph==2.66.0",)),
    contender("haystack-ai", "haystack", needs=("haystack-ai==3.4.0",)),
    contender("langgraph", "langgraph", needs=("langgraph==1.2.20", "langgraph-checkpoint-sqlite==3.1.2")),
    contender("llama-index-workflows", "llama_index", needs=("llama-index-workflows==2.26.1",)),
    contender("dbos", "dbos", needs=("dbos==3.3.0",)),
    contender("agent-framework", "agent_framework", needs=("agent-framework-core==1.23.0",)),
    contender("autogen-core", "autogen", needs=("autogen-core==0.7.5",)),
    contender("flujo", "flujo", needs=("flujo==0.4.35", "sqlvalidator==0.0.20")),
    contender("instructor", "reader", "instructor", needs=("instructor==1.17.0",)),
    contender("langchain", "reader", "langchain", needs=("langchain-core==1.7.2",)),
)
"""What people would pick instead, each in its own environment."""
