"""One bot, with LangGraph. Run it: `pip install langgraph langgraph-checkpoint-sqlite`, then this file."""

import sqlite3
from typing import TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt


class Ticket(TypedDict, total=False):
    question: str
    text: str
    approved: bool
    result: str


def draft(state: Ticket) -> Ticket:
    return {"text": f"Dear customer, about {state['question']}: within 30 days."}


def approve(state: Ticket) -> Ticket:
    return {"approved": interrupt(f"Send {state['text']!r}?")}


def send(state: Ticket) -> Ticket:
    return {"result": "sent" if state["approved"] else "kept"}


graph = StateGraph(Ticket)
graph.add_node("draft", draft, retry_policy=RetryPolicy(max_attempts=3))
graph.add_node("approve", approve)
graph.add_node("send", send)
graph.add_edge(START, "draft")
graph.add_edge("draft", "approve")
graph.add_edge("approve", "send")
graph.add_edge("send", END)


def main() -> None:
    bot = graph.compile(checkpointer=SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False)))
    thread = {"configurable": {"thread_id": "ticket-1"}}
    paused = bot.invoke({"question": "returns"}, thread, durability="sync")
    print(paused["__interrupt__"][0].value)
    print(bot.invoke(Command(resume=True), thread, durability="sync")["result"])


if __name__ == "__main__":
    main()
