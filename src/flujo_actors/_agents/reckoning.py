"""What a request is sure to use, before it is made: the size of its prompt, and the answer it may ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from .._core.quota import Amount
from .pricing import Pricing

_BYTES_PER_TOKEN = 4
"""Of most texts a token is a bit less, so that what is reckoned here is seldom more than what will be billed."""


def sure_amount(
    messages: Sequence[ModelMessage], settings: ModelSettings | None, model: Model, pricing: Pricing
) -> Amount:
    """Tokens and dollars of the prompt, with `max_tokens` for the answer where that is set."""
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(messages))
    answer = (settings or {}).get("max_tokens") or 0
    usage = RequestUsage(input_tokens=size // _BYTES_PER_TOKEN, output_tokens=answer)
    return Amount(tokens=usage.total_tokens, cost_usd=pricing.cost_of_usage(usage, model) or 0.0)


def _texts(messages: Sequence[ModelMessage]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, ModelRequest) and message.instructions:
            yield message.instructions
        for part in message.parts:
            yield from _words(getattr(part, "content", None))


def _words(content: object) -> Iterator[str]:
    """The text in a part's content; what is no text has a price of its own, which nobody knows here."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list | tuple):
        yield from (each for each in content if isinstance(each, str))
