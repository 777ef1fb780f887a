"""What all desks share: the ticket, what is known, and the work that no model does. It needs pydantic alone."""

import asyncio
from typing import Literal

from pydantic import BaseModel

MODEL = "gpt-4o-mini"
TO_TRIAGE = "You triage support tickets."
TO_FEEL = "Say the sentiment in one word."
TO_DRAFT = "You draft replies."
REPLY = "Dear customer, your order is on its way and we are sorry for the trouble. " * 2
"""What the provider drafts, and so what every desk must have sent in the end."""
WAIT_S = 0.01
"""How long the knowledge base, the shop and the mail server take."""
KNOWN = {"billing": ["Refund policy"], "howto": ["Getting started"], "bug": ["Known issues"]}


class Ticket(BaseModel):
    """What a customer wrote."""

    customer: str
    text: str

    @classmethod
    def number(cls, number: int) -> "Ticket":
        """One of the many, none of which needs an approval."""
        return cls(customer="someone", text=f"how do I open parcel {number}?")


class Triage(BaseModel):
    """What kind of ticket it is."""

    category: Literal["billing", "howto", "bug"]
    risk: Literal["low", "high"]
    summary: str


async def articles_on(triage: Triage) -> list[str]:
    """What the knowledge base has."""
    await asyncio.sleep(WAIT_S)
    return KNOWN[triage.category]


async def order_status(order_id: str) -> str:
    """Where an order is."""
    await asyncio.sleep(WAIT_S)
    return f"order {order_id}: shipped"


async def mail(draft: str) -> str:
    """Send the reply; what was sent comes back."""
    await asyncio.sleep(WAIT_S)
    return draft


def question(ticket: Ticket, articles: list[str], sentiment: str) -> str:
    """What the drafting model is asked."""
    return f"{ticket.text}\n{articles}\n{sentiment}"
