"""One bot, with Temporal. Run it: `pip install temporalio`, start `temporal server start-dev`, then this file.

The first argument is the address of the server, `localhost:7233` by default.
"""

import asyncio
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker


@activity.defn
async def draft(question: str) -> str:
    return f"Dear customer, about {question}: within 30 days."


@activity.defn
async def send(approved: bool) -> str:
    return "sent" if approved else "kept"


@workflow.defn
class Bot:
    def __init__(self) -> None:
        self.question: str | None = None
        self.approved: bool | None = None

    @workflow.run
    async def run(self, question: str) -> str:
        limit, three_times = timedelta(minutes=1), RetryPolicy(maximum_attempts=3)
        text = await workflow.execute_activity(draft, question, start_to_close_timeout=limit, retry_policy=three_times)
        self.question = f"Send {text!r}?"
        await workflow.wait_condition(lambda: self.approved is not None)
        return await workflow.execute_activity(send, self.approved, start_to_close_timeout=limit)

    @workflow.signal
    def approve(self, approved: bool) -> None:
        self.approved = approved

    @workflow.query
    def asked(self) -> str | None:
        return self.question


async def main() -> None:
    client = await Client.connect(sys.argv[1] if len(sys.argv) > 1 else "localhost:7233")
    async with Worker(client, task_queue="bot", workflows=[Bot], activities=[draft, send]):
        handle = await client.start_workflow(Bot.run, "returns", id="ticket-1", task_queue="bot")
        while (question := await handle.query(Bot.asked)) is None:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.05)
        print(question)
        await handle.signal(Bot.approve, True)
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main())
