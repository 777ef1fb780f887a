"""One bot, with DBOS. Run it: `pip install dbos`, then this file."""

import tempfile

from dbos import DBOS, SetWorkflowID


@DBOS.step(retries_allowed=True, max_attempts=3)
def draft(question: str) -> str:
    return f"Dear customer, about {question}: within 30 days."


@DBOS.step()
def send(approved: bool) -> str:
    return "sent" if approved else "kept"


@DBOS.workflow()
def bot(question: str) -> str:
    DBOS.set_event("question", f"Send {draft(question)!r}?")
    return send(DBOS.recv("approve", timeout_seconds=7 * 24 * 3600))


def main() -> None:
    DBOS(config={"name": "bot", "system_database_url": f"sqlite:///{tempfile.mkdtemp()}/bot.db"})
    DBOS.launch()
    with SetWorkflowID("ticket-1"):
        handle = DBOS.start_workflow(bot, "returns")
    print(DBOS.get_event("ticket-1", "question"))
    DBOS.send("ticket-1", True, topic="approve")
    print(handle.get_result())
    DBOS.destroy()


if __name__ == "__main__":
    main()
