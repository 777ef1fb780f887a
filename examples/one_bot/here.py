"""One bot, with flujo-actors. Run it: `python examples/one_bot/here.py`.

It drafts a reply, waits for a person, and sends. The process may end while the bot waits.
"""

import tempfile

from flujo_actors import Flujo, Step

STORE = f"sqlite:///{tempfile.mkdtemp()}/bot.db"


async def draft(question: str) -> str:
    return f"Dear customer, about {question}: within 30 days."  # a model call in production


async def send(approved: bool) -> str:
    return "sent" if approved else "kept"


bot = (
    Step("draft", draft, max_retries=2)
    >> Step.human_in_the_loop("approve", lambda text, context: f"Send {text!r}?", input_schema=bool)
    >> Step("send", send)
)


def main() -> None:
    paused = Flujo(bot, store=STORE).run("returns", run_id="ticket-1")
    print(paused.feedback)
    print(Flujo(bot, store=STORE).resume(paused.state_token, True).output)  # later, in any process


if __name__ == "__main__":
    main()
