"""The desk on LangGraph, with LangChain's OpenAI client and LangGraph's own checkpointers."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy, interrupt
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.service.serving import serve
from benchmarks.service.support import (
    MODEL,
    TO_DRAFT,
    TO_FEEL,
    TO_TRIAGE,
    Ticket,
    Triage,
    articles_on,
    mail,
    order_status,
    question,
)


class Notes(TypedDict, total=False):
    """What the run knows."""

    ticket: Ticket
    triage: Triage
    articles: list[str]
    sentiment: str
    messages: Annotated[list[AnyMessage], add_messages]
    draft: str
    approved: bool
    sent: str


MODEL_CLIENT = ChatOpenAI(model=MODEL, max_retries=0)
SHOP = tool(order_status)
TRIAGING = MODEL_CLIENT.with_structured_output(Triage, method="json_schema")
DRAFTING = MODEL_CLIENT.bind_tools([SHOP])


async def classify(notes: Notes) -> Notes:
    asked = [SystemMessage(TO_TRIAGE), HumanMessage(notes["ticket"].model_dump_json())]
    return {"triage": await TRIAGING.ainvoke(asked)}


async def articles(notes: Notes) -> Notes:
    return {"articles": await articles_on(notes["triage"])}


async def sentiment(notes: Notes) -> Notes:
    said = await MODEL_CLIENT.ainvoke([SystemMessage(TO_FEEL), HumanMessage(notes["ticket"].text)])
    return {"sentiment": str(said.content)}


async def draft(notes: Notes) -> Notes:
    history = notes.get("messages") or []
    if not history:
        asked = question(notes["ticket"], notes["articles"], notes["sentiment"])
        history = [SystemMessage(TO_DRAFT), HumanMessage(asked)]
    said = await DRAFTING.ainvoke(history)
    new = [said] if notes.get("messages") else [*history, said]
    return {"messages": new, "draft": str(said.content)}


def after_draft(notes: Notes) -> str:
    if notes["messages"][-1].tool_calls:
        return "shop"
    return "approve" if notes["triage"].risk == "high" else "send"


async def approve(notes: Notes) -> Notes:
    return {"approved": bool(interrupt(f"Send this to {notes['ticket'].customer}?\n{notes['draft']}"))}


async def send(notes: Notes) -> Notes:
    return {"sent": await mail(notes["draft"]) if notes.get("approved", True) else "not sent"}


def graph() -> StateGraph[Any, Any, Any, Any]:
    """The desk, without a checkpointer."""
    desk = StateGraph(Notes)
    desk.add_node(classify, retry_policy=RetryPolicy(max_attempts=2))
    for node in (articles, sentiment, draft, approve, send):
        desk.add_node(node)
    desk.add_node("shop", ToolNode([SHOP]))
    desk.add_edge(START, "classify")
    desk.add_edge("classify", "articles")
    desk.add_edge("classify", "sentiment")
    desk.add_edge(["articles", "sentiment"], "draft")
    desk.add_conditional_edges("draft", after_draft, ["shop", "approve", "send"])
    desk.add_edge("shop", "draft")
    desk.add_edge("approve", "send")
    desk.add_edge("send", END)
    return desk


class Desk:
    """The compiled graph; with a checkpointer, each step is stored before the next begins, as ours is."""

    def __init__(self, compiled: CompiledStateGraph[Any, Any, Any, Any], **options: str) -> None:
        self._graph, self._options = compiled, options

    async def awaited(self, number: int) -> str:
        notes = await self._graph.ainvoke({"ticket": Ticket.number(number)}, _thread(), **self._options)
        return str(notes["sent"])

    async def watched(self, number: int) -> tuple[str, int]:
        sent, pieces = "", 0
        begun = {"ticket": Ticket.number(number)}
        modes = ["updates", "messages"]
        async for mode, seen in self._graph.astream(begun, _thread(), stream_mode=modes, **self._options):
            if mode == "messages":
                pieces += 1
            else:
                sent = seen.get("send", {}).get("sent", sent)
        return sent, pieces


def _thread() -> dict[str, Any]:
    return {"configurable": {"thread_id": uuid.uuid4().hex}}


@asynccontextmanager
async def in_memory(store: str) -> AsyncIterator[Desk]:
    """No checkpointer."""
    yield Desk(graph().compile())


@asynccontextmanager
async def on_sqlite(path: str) -> AsyncIterator[Desk]:
    """WAL, which the saver sets up, and an fsync at every commit."""
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        await saver.setup()
        await saver.conn.execute("PRAGMA synchronous = FULL")
        yield Desk(graph().compile(checkpointer=saver), durability="sync")


@asynccontextmanager
async def on_postgres(url: str) -> AsyncIterator[Desk]:
    """A pool of connections, as the saver's documentation asks for."""
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=4, max_size=16, kwargs=options, open=False) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield Desk(graph().compile(checkpointer=saver), durability="sync")


if __name__ == "__main__":
    serve(
        {"memory": in_memory, "sqlite": on_sqlite, "postgres": on_postgres},
        [
            "langgraph",
            "langchain-openai",
            "openai",
            "langgraph-checkpoint-sqlite",
            "langgraph-checkpoint-postgres",
            "psycopg",
        ],
    )
