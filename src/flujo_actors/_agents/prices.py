"""Cost of a response: a configured price, or that of `genai-prices`.

Sections:

- Price cache: cost per token of a model, learned from `genai-prices`.
- Lower bound of a request's usage.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
from genai_prices import calc_price
from genai_prices.data_snapshot import DataSnapshot, get_snapshot
from genai_prices.types import ModelInfo, ModelPrice, PriceCalculation, Provider, TieredPrices
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_json

from .._core.quota import Amount
from .._core.settings_model import Price, UsageSettings
from .._core.usage import counted
from ..errors import PricingNotConfiguredError

# --- Price cache --------------------------------------------------------------------------------------------------
# `genai-prices` computes a price anew for every response: the model is searched, the units of its price are sorted,
# and
# all of it is checked. Here that is done once for each price. Rules:
#
# 1. An entry is learned from the prices of a few tokens, and kept only if it predicts a further one.
# 2. It holds for one price of one model on one list, and between two of its thresholds. A model has several prices if
#    they change with the date or the hour, and `genai-prices` selects the one in force; a new list clears the cache.
# 3. `genai-prices` is called directly where an entry would not do: for custom price and list classes, for
#    responses with their own price, such as those of a batch, and for usages of more than text.


Name = tuple[str | None, ...]
"""Lookup key of a model."""

_PARTS = ("cache_read_tokens", "cache_write_tokens", "output_reasoning_tokens")
_COUNTED = frozenset({"input_tokens", "output_tokens", *_PARTS})
_WITHOUT_PRICE = frozenset({"details", "cost", "unmeasured_requests"})
_FEWEST = 10
"""Minimum input sizes between two thresholds for learning an entry."""
_MOST_NAMES = 1000
"""Maximum number of cached names, since providers choose them."""


@attrs.frozen
class Tariff:
    """Price of a response: a fixed part, and a part per token."""

    fixed: Decimal
    input: Decimal
    output: Decimal
    parts: tuple[tuple[str, Decimal], ...]
    """Price of such a token, added to its input or output price."""

    def cost(self, usage: RequestUsage) -> Decimal:
        """Dollars for a usage of text."""
        total = self.fixed + self.input * usage.input_tokens + self.output * usage.output_tokens
        for name, price in self.parts:
            if count := getattr(usage, name):
                total += price * count
        return total


def learned(cost: Callable[[RequestUsage], Decimal], *, above: int = 0, up_to: int | None = None) -> Tariff | None:
    """Return the price entry behind `cost`, or None (rule 1)."""
    least, most = above + 1, above + 1_000_003 if up_to is None else up_to
    if most - above < _FEWEST:
        return None
    try:
        once = cost(_tokens(least, 1))
        each, said = cost(_tokens(least + 1, 1)) - once, cost(_tokens(least, 2)) - once
        parts = tuple((name, cost(_tokens(least, 1, **{name: 1})) - once) for name in _PARTS)
        tariff = Tariff(once - each * least - said, each, said, parts)
        test = _tokens(most, 70_001, **{name: 2 + place for place, name in enumerate(_PARTS)})
        return tariff if cost(test) == tariff.cost(test) else None
    except ValueError:
        return None


def _tokens(given: int, said: int, **parts: Any) -> RequestUsage:
    return RequestUsage(input_tokens=given, output_tokens=said, **parts)


def is_of_text(usage: RequestUsage) -> bool:
    """Return whether an entry covers the whole usage consistently."""
    if type(usage) is not RequestUsage:
        return False
    for name, value in vars(usage).items():
        if name in _COUNTED:
            if type(value) is not int or value < 0:
                return False
        elif value and name not in _WITHOUT_PRICE:
            return False
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    return cached <= usage.input_tokens and usage.output_reasoning_tokens <= usage.output_tokens


class _Price:
    """Price with its entries: one, or one per range between thresholds."""

    def __init__(self, price: ModelPrice) -> None:
        self._price, self._values = price, dict(vars(price))
        thresholds = {
            tier.start for each in self._values.values() if isinstance(each, TieredPrices) for tier in each.tiers
        }
        self._thresholds = sorted(thresholds)
        self._tariffs: dict[int, Tariff | None] = {}

    def holds(self) -> bool:
        """Return whether the price is unchanged."""
        return vars(self._price) == self._values

    def tariff(self, size: int, cost: Callable[[RequestUsage], Decimal]) -> Tariff | None:
        """Return the tariff for an input of that size."""
        place = bisect_left(self._thresholds, size)
        if place not in self._tariffs:
            self._tariffs[place] = self._learn(place, cost)
        return self._tariffs[place]

    def _learn(self, place: int, cost: Callable[[RequestUsage], Decimal]) -> Tariff | None:
        if type(self._price) is not ModelPrice:
            return None
        sizes = [0, *self._thresholds]
        return learned(cost, above=sizes[place], up_to=sizes[place + 1] if place + 1 < len(sizes) else None)


@attrs.frozen(eq=False)
class _Listed:
    """Listed model with the prices used so far."""

    _model: ModelInfo
    _provider: Provider
    _prices: dict[int, _Price] = attrs.field(factory=dict)
    """Entries by price identity; the stored price keeps its id valid."""

    def tariff(self, usage: RequestUsage, when: datetime | None, details: object) -> Tariff | None:
        """Return the entry in force for such a response, or None."""
        if details and self._has_price_of_its_own(details):
            return None
        when = when or datetime.now(tz=UTC)
        price = self._model.get_prices(when)
        kept = self._prices.get(id(price))
        if kept is None or not kept.holds():
            kept = self._prices[id(price)] = _Price(price)
        return kept.tariff(usage.input_tokens, functools.partial(self._asked, when))

    def _has_price_of_its_own(self, details: object) -> bool:
        if not isinstance(details, Mapping):
            return True
        for variant in self._model.price_variants or ():
            for key, value in variant.when.items():  # explicit loops: this runs for every response
                if details.get(key) != value:
                    break
            else:
                return True
        return False

    def _asked(self, when: datetime, usage: RequestUsage) -> Decimal:
        return self._model.calc_price(usage, self._provider, genai_request_timestamp=when).total_price


class PriceCache:
    """The tariffs of the list of prices in force."""

    def __init__(self) -> None:
        self._prices: DataSnapshot | None = None
        self._listed: dict[Name, _Listed] = {}

    def cost(
        self,
        name: Name,
        usage: RequestUsage,
        look: Callable[[], PriceCalculation],
        *,
        when: datetime | None = None,
        details: object = None,
    ) -> Decimal:
        """Return the dollars of a usage; `look` finds missing entries."""
        listed = self._in_force()
        known = listed.get(name)
        if known is not None and is_of_text(usage):
            tariff = known.tariff(usage, when, details)
            if tariff is not None:
                return tariff.cost(usage)
        found = look()
        if known is None and type(found.model) is ModelInfo:
            if len(listed) >= _MOST_NAMES:
                listed.clear()
            listed[name] = _Listed(found.model, found.provider)
        return found.total_price

    def _in_force(self) -> dict[Name, _Listed]:
        prices = get_snapshot()
        if prices is not self._prices:
            self._prices, self._listed = prices, {}
        # A custom list class may compute differently, so nothing of it is cached.
        return self._listed if type(prices) is DataSnapshot else {}

    def __len__(self) -> int:
        return len(self._listed)


# --- Cost of a response -------------------------------------------------------------------------------------------


_MILLION = 1_000_000
_STANDING_FOR_OTHERS = (FallbackModel, WrapperModel)
_ONE_TOKEN = RequestUsage(input_tokens=1, output_tokens=1)


@attrs.frozen
class Pricing:
    """Prices under one set of settings."""

    settings: UsageSettings

    def require(self, model: Model, *, why: str) -> None:
        """Raise `PricingNotConfiguredError` if a call to `model` could not be priced."""
        for each in _called(model):
            if self._configured(each.model_name) is None and _listed_cost(_ONE_TOKEN, each) is None:
                raise PricingNotConfiguredError(
                    f"no price is known for model {each.model_name!r} of {each.system!r}, but {why}; "
                    f"set one: settings={{'usage': {{'prices': {{{each.model_name!r}: "
                    "{'input_usd': …, 'output_usd': …}}}}, in dollars per million tokens"
                )

    def cost_of(self, response: ModelResponse, model: Model | None) -> float | None:
        """Dollars for a response of a model, or an unknown one."""
        estimate = estimated_cost(response)
        if self.settings.prices:
            asked = "" if model is None else model.model_name
            price = self._configured(response.model_name or "") or self._configured(asked)
            if price is not None:
                return _cost(price, response.usage)
        return _cost_by_name(response, model) if estimate is None and model is not None else estimate

    def cost_of_usage(self, usage: RequestUsage, model: Model) -> float | None:
        """Return the dollars by the most expensive possible model, or None."""
        costs = [self._cost_at(usage, each) for each in _called(model)]
        return max((cost for cost in costs if cost is not None), default=None)

    def _cost_at(self, usage: RequestUsage, model: Model) -> float | None:
        price = self._configured(model.model_name)
        return _listed_cost(usage, model) if price is None else _cost(price, usage)

    def _configured(self, model_name: str) -> Price | None:
        return self.settings.prices.get(model_name)


def _cost(price: Price, usage: RequestUsage) -> float:
    cached = price.input_usd if price.cached_usd is None else price.cached_usd
    fresh = max(0, usage.input_tokens - usage.cache_read_tokens)
    total = fresh * price.input_usd + usage.cache_read_tokens * cached + usage.output_tokens * price.output_usd
    return total / _MILLION


def estimated_cost(response: ModelResponse) -> float | None:
    """Return the dollars of a response, by its provider or `genai-prices`.

    They are stored in the response, where pydantic-ai would store them later, so the lookup happens once.
    """
    if response.usage.cost is None:
        response.usage.cost = _estimate(response)
    return None if response.usage.cost is None else float(response.usage.cost)


def _estimate(response: ModelResponse) -> Decimal | None:
    name = response.model_name, response.provider_name, response.provider_url
    if name in _unlisted or response.usage.unmeasured_requests:
        return None
    try:
        return _tariffs.cost(
            name, response.usage, response.cost, when=response.timestamp, details=response.provider_details
        )
    except LookupError as error:
        _unlisted.note(name, error)
        return None
    except (ValueError, AssertionError):
        return None


def _called(model: Model) -> Iterator[Model]:
    """Yield the models that a call may really go to."""
    match model:
        case FallbackModel(models=models):
            for each in models:
                yield from _called(each)
        case WrapperModel(wrapped=wrapped):
            yield from _called(wrapped)
        case _:
            yield model


def _cost_by_name(response: ModelResponse, model: Model) -> float | None:
    """Return the cost by the requested model name, not the response's."""
    if not isinstance(model, _STANDING_FOR_OTHERS):
        return _listed_cost(response.usage, model)
    asked = list(_called(model))
    answered = [each for each in asked if each.model_name == response.model_name] or asked
    costs = (_listed_cost(response.usage, each) for each in answered)
    return next((cost for cost in costs if cost is not None), None)


def _listed_cost(usage: RequestUsage, model: Model) -> float | None:
    name = model.model_name, model.system
    if name in _unlisted:
        return None
    try:
        return float(_tariffs.cost(name, usage, lambda: calc_price(usage, model.model_name, provider_id=model.system)))
    except LookupError as error:
        _unlisted.note(name, error)
        return None
    except ValueError:
        return None


class _Unlisted:
    """Cache of models without a listed price, cleared with a new list."""

    def __init__(self) -> None:
        self._prices: DataSnapshot | None = None
        self._names: set[tuple[str | None, ...]] = set()

    def __contains__(self, name: tuple[str | None, ...]) -> bool:
        return name in self._names and self._prices is get_snapshot()

    def note(self, name: tuple[str | None, ...], error: LookupError) -> None:
        """Record the result of a search in the list."""
        if type(error) is not LookupError:
            return  # a `KeyError` is about this one response, not about its model
        prices = get_snapshot()
        if self._prices is not prices:
            self._prices, self._names = prices, set()
        self._names.add(name)


_unlisted = _Unlisted()
_tariffs = PriceCache()


# --- Lower bound of a request's usage -----------------------------------------------------------------------------


_BYTES_PER_TOKEN = 4
"""Bytes per token, slightly high, so estimates seldom exceed the bill."""


def sure_amount(
    messages: Sequence[ModelMessage], settings: ModelSettings | None, model: Model, pricing: Pricing
) -> Amount:
    """Return tokens and dollars of the prompt, plus `max_tokens` if set."""
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(messages))
    answer = counted((settings or {}).get("max_tokens"))
    usage = RequestUsage(input_tokens=size // _BYTES_PER_TOKEN, output_tokens=answer)
    return Amount(tokens=usage.total_tokens, cost_usd=pricing.cost_of_usage(usage, model) or 0.0)


def answer_tokens(response: ModelResponse) -> int:
    """Estimate the tokens of an answer by its size."""
    return len(to_json(response.parts, fallback=str)) // _BYTES_PER_TOKEN


def _texts(messages: Sequence[ModelMessage]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, ModelRequest) and message.instructions:
            yield message.instructions
        for part in message.parts:
            yield from _words(getattr(part, "content", None))


def _words(content: object) -> Iterator[str]:
    """Yield the text content of a part; other content has no price."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list | tuple):
        yield from (each for each in content if isinstance(each, str))
