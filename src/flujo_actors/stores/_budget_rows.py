"""Budgets as rows of a database: plain numbers, and limits as JSON text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs

from .._core.quota import Amount, Held
from .._core.shared_budgets import BudgetShare
from .._core.usage import UsageLimits
from ._rows import storable


def share_row(share: BudgetShare) -> dict[str, Any]:
    """A share as the columns of its row."""
    spent, reserved, largest = share.spent, share.reserved, share.largest
    return {
        "holder": storable(share.holder),
        "version": share.version,
        "tokens": spent.tokens,
        "cost_usd": spent.cost_usd,
        "requests": spent.requests,
        "tool_calls": spent.tool_calls,
        "steps": spent.steps,
        "reserved_tokens": reserved.tokens,
        "reserved_usd": reserved.cost_usd,
        "reserved_requests": reserved.requests,
        "under_way": share.under_way,
        "largest_tokens": None if largest is None else largest.tokens,
        "largest_usd": None if largest is None else largest.cost_usd,
    }


def held_in(row: Sequence[Any]) -> Held:
    """What others have of a budget, by the sums over their rows."""
    tokens, cost_usd, requests, tool_calls, steps, *rest = row
    held_tokens, held_usd, held_requests, under_way, largest_tokens, largest_usd = rest
    return Held(
        spent=Amount(
            tokens=tokens, cost_usd=cost_usd, requests=int(requests), tool_calls=int(tool_calls), steps=int(steps)
        ),
        reserved=Amount(tokens=held_tokens, cost_usd=held_usd, requests=int(held_requests)),
        under_way=int(under_way),
        largest=None if largest_tokens is None else Amount(tokens=largest_tokens, cost_usd=largest_usd),
    )


def limits_text(limits: UsageLimits | None) -> str | None:
    """Limits as JSON text."""
    return None if limits is None else json.dumps(attrs.asdict(limits))


def limits_in(text: str | None) -> UsageLimits | None:
    """The limits that were written so."""
    return None if text is None else UsageLimits(**json.loads(text))
