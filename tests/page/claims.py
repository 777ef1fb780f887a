"""A claims service to look at: retrieval, parallel checks, an approved tool, an approval, a letter."""

from __future__ import annotations

import datetime as dt
import enum
from decimal import Decimal
from typing import Any

import anyio
import attrs
from pydantic import BaseModel
from pydantic_ai import Tool
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from flujo_actors import (
    Collection,
    ContextSources,
    Flujo,
    InMemoryRetriever,
    Pipeline,
    RunClient,
    Step,
    from_literal,
    from_retrieval,
    make_agent_async,
)
from flujo_actors.testing import Billed, Delayed, scripted_model

PRICED = {"usage": {"prices": {"scripted": {"input_usd": 3.0, "output_usd": 15.0}}}}


class Claim(BaseModel):
    claim: str
    policy: str
    text: str
    claimed: Decimal
    documents: list[str] = []


class Method(enum.Enum):
    TRANSFER = "bank transfer"
    CHECK = "check"


class Share(BaseModel):
    payee: str
    amount: Decimal


class Wording(Collection, name="policy_wording"):
    section: str


SECTIONS = {
    "§4.2 Escape of water": "Damage by water that escapes from fixed pipes is covered, with the cost to find the leak.",
    "§7.1 Exclusions": "Loose floor coverings such as carpets are not covered by the insurance of the building.",
    "§2.5 Excess": "The insured bears the first $250.00 of each claim, also of a pipe that bursts.",
    "§9.3 Reserve": "A reserve is made for each claim that is likely to be paid.",
}
wording = InMemoryRetriever(Wording).add_many(
    [(text, {"id": name, "section": name}) for name, text in SECTIONS.items()]
)

STORY = "Pipe burst in the kitchen on 14 Nov, floor and one wall wet, carpet ruined."
LETTER = (
    "Dear Ms Brandt,\n\nThank you for your claim C-20418 about the burst pipe of 14 November. Your policy covers this "
    "damage. We pay $1,640.00 to the account you gave us; it arrives within three working days.\n\nThe carpet "
    "($220.00) is not covered (§7.1), and your excess of $250.00 has been deducted."
)
WHY = (
    "The burst pipe is covered by §4.2 (escape of water). The drying invoice is within the limit. I deduct the $250.00 "
    "excess and the $220.00 for the carpet, which §7.1 excludes."
)


def story_of(claim: Claim, context: Any) -> str:
    """Return the text of a claim, which may be JSON."""
    return claim.text if isinstance(claim, Claim) else str(claim["text"])


class PaymentRefused(Exception):
    """The bank refused a transfer."""


async def remember(facts: str, *, context: Any) -> str:
    context.facts = facts
    context.reserve = "2000.00"
    return facts


async def duplicates(facts: str) -> int:
    await anyio.sleep(0.14)
    return 0


async def fraud_model(facts: str) -> float:
    await anyio.sleep(0.3)
    raise TimeoutError("the fraud model did not answer within 2 s")


async def fraud_rules(facts: str) -> float:
    return 0.08


async def reserve(checks: dict[str, Any]) -> str:
    await anyio.sleep(0.04)
    return f"Settle claim C-20418, policy P-7731: {STORY} Claimed: $2,310.00. Reserve: $2,000.00."


async def policy_limit(policy: str) -> str:
    """Limit of a policy."""
    await anyio.sleep(0.07)
    return "5000.00"


def payments(refused: bool) -> Any:
    async def issue_payment(
        policy: str,
        payee: str,
        amount: Decimal,
        method: Method = Method.TRANSFER,
        pay_on: dt.date | None = None,
        reference: str | None = None,
        split: list[Share] = [],  # noqa: B006 - a schema's default
    ) -> str:
        """Pay an amount to a payee."""
        await anyio.sleep(0.2)
        if refused:
            raise PaymentRefused("The bank refused the transfer: account DE89…3000 is closed.")
        return "pay_58Qd1"

    return issue_payment


SPLIT = [{"payee": "Rohr & Co. (plumber)", "amount": "1040.00"}, {"payee": "DryFast (drying)", "amount": "800.00"}]


def said(text: str, tool: str, arguments: dict[str, Any], tokens: int, written: int) -> Any:
    """A reply of the model: its reasoning, then a tool call."""
    parts = [TextPart(text), ToolCallPart(tool, arguments)]
    return Delayed(0.25, Billed(ModelResponse(parts=parts), input_tokens=tokens, output_tokens=written))


def adjuster(refused: bool) -> Any:
    asked = {"policy": "P-7731", "payee": "Ada Brandt", "amount": "1840.00", "pay_on": "2026-11-20", "split": SPLIT}
    model = scripted_model(
        said("I need the limit of the policy first.", "policy_limit", {"policy": "P-7731"}, 1_600, 290),
        said(WHY, "issue_payment", asked, 1_950, 290),
        Delayed(0.2, Billed("Paid as pay_58Qd1.", input_tokens=2_400, output_tokens=210)),
    )
    tools = [policy_limit, Tool(payments(refused), requires_approval=not refused)]
    return make_agent_async(model, "You settle claims. Use the policy wording only.", tools=tools, name="adjuster")


def reply(text: str, seconds: float, tokens: int, written: int) -> Any:
    return Delayed(seconds, Billed(text, input_tokens=tokens, output_tokens=written))


def pipeline(*, refused: bool = False, approved: bool = True) -> Pipeline:
    """The steps of a claim."""
    facts = make_agent_async(
        scripted_model(reply(STORY, 0.3, 980, 220)), "Extract the facts of a claim.", name="extract"
    )
    cover = make_agent_async(
        scripted_model(reply("Covered by §4.2; §7.1 excludes the carpet.", 0.4, 4_700, 210)),
        "Judge cover.",
        name="cover",
    )
    letter = make_agent_async(
        scripted_model(reply(LETTER, 0.2, 1_000, 500)), "Write a letter to the insured.", name="letter"
    )
    sources = ContextSources([from_literal("Amounts are in US dollars."), from_retrieval(Wording, top_k=3)])
    checks = Step.parallel(
        "checks",
        {
            "duplicates": Step("duplicates", duplicates),
            "coverage": Step("coverage", cover, context_sources=sources),
            "fraud": Step("fraud", fraud_model, fallback=Step("fraud_rules", fraud_rules)),
        },
    )
    steps = (
        Step("extract", facts, input=story_of)
        >> Step("remember", remember)
        >> checks
        >> Step("reserve", reserve)
        >> Step.granular("adjust", adjuster(refused))
    )
    if approved:
        steps = steps >> Step.approval("approve", "Approve the settlement?", to="supervisors", timeout_s=7200)
    return attrs.evolve(steps >> Step("letter", letter), name="claims")


def service(store: Any, *, refused: bool = False, approved: bool = True) -> Flujo:
    """The claims service on a store; not `approved`, it has no approval by a supervisor."""
    return Flujo(
        pipeline(refused=refused, approved=approved), store=store, settings=PRICED, retrievers={Wording: wording}
    )


CLAIM = {
    "claim": "C-20418",
    "policy": "P-7731",
    "text": STORY,
    "claimed": "2310.00",
    "documents": ["invoice-1.pdf", "photo-1.jpg"],
}

COMPLETED, WAITING_FOR_APPROVAL, WAITING_FOR_TOOL, FAILED = (
    f"{short}01d2e84b6fa1b2c3d4e5f60718" for short in ("7f3a9c", "c81e07", "19bb42", "a94c13")
)
"""Ids of the seeded runs."""


def seeded(store: str) -> None:
    """Leave runs in several states: completed, failed, waiting, blocked."""
    _approved_by_tool(store, COMPLETED, "Pipe burst, kitchen", line="home", claim="C-20418")
    client, flujo = RunClient(store), service(store)
    (question,) = client.questions()
    client.answer(question.state_token, {"option": "approve", "comment": "Fine."}, by="jonas")
    flujo.resume(COMPLETED)
    _approved_by_tool(store, WAITING_FOR_APPROVAL, "Fire, warehouse", line="business")
    service(store).run(CLAIM, run_id=WAITING_FOR_TOOL, labels=_labels("Water damage, cellar", line="home"))
    service(store, refused=True).run(CLAIM, run_id=FAILED, labels=_labels("Theft abroad", line="travel"))
    flujo.submit_sync(CLAIM, run_id=FAILED.replace("a94c13", "4a11d8"), labels=_labels("Broken window", line="home"))


def _labels(title: str, **labels: str) -> dict[str, str]:
    return {"tenant": "acme", "title": title, **labels}


def _approved_by_tool(store: str, run_id: str, title: str, **labels: str) -> None:
    """Run a claim up to the approval of the settlement; the payment is approved with another amount."""
    client, flujo = RunClient(store), service(store)
    flujo.run(CLAIM, run_id=run_id, labels=_labels(title, **labels))
    (question,) = client.questions(run_id=run_id)
    assert question.tool is not None
    arguments = {**question.tool["arguments"], "amount": "1640.00"}
    client.answer(question.state_token, {"option": "approve", "arguments": arguments}, by="mira")
    flujo.resume(run_id)


def with_waits(told: dict[str, Any]) -> dict[str, Any]:
    """The records as if each answer had taken four minutes."""
    later = 0
    for row in told["rows"]:
        later += 240_000 if row[2] == "answered" else 0
        row[1] += later
    return told
