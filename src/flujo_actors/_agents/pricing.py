"""What a response costs: the price of the settings, or the one `genai-prices` knows."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import attrs
from genai_prices import calc_price
from genai_prices.data_snapshot import DataSnapshot, get_snapshot
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.usage import RequestUsage

from .._core.settings import Price, UsageSettings
from ..errors import PricingNotConfiguredError
from .tariffs import Tariffs

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

    def cost_of(self, response: ModelResponse, model: Model) -> float | None:
        """Dollars for a response; `None` if no price is known."""
        estimate = estimated_cost(response)
        if self.settings.prices:
            price = self._configured(response.model_name or "") or self._configured(model.model_name)
            if price is not None:
                return _cost(price, response.usage)
        return _cost_by_name(response, model) if estimate is None else estimate

    def cost_of_usage(self, usage: RequestUsage, model: Model) -> float | None:
        """Dollars for a usage, by the dearest of the models that may be called; `None` if no price is known."""
        costs = [self._cost_at(usage, each) for each in _called(model)]
        return max((cost for cost in costs if cost is not None), default=None)

    def _cost_at(self, usage: RequestUsage, model: Model) -> float | None:
        price = self._configured(model.model_name)
        return _listed_cost(usage, model) if price is None else _cost(price, usage)

    def _configured(self, model_name: str) -> Price | None:
        return self.settings.prices.get(model_name)


def _cost(price: Price, usage: RequestUsage) -> float:
    cached = price.input_usd if price.cached_usd is None else price.cached_usd
    fresh = usage.input_tokens - usage.cache_read_tokens
    total = fresh * price.input_usd + usage.cache_read_tokens * cached + usage.output_tokens * price.output_usd
    return total / _MILLION


def estimated_cost(response: ModelResponse) -> float | None:
    """Dollars for a response as its provider reports them, or as `genai-prices` has them.

    They are noted in the response, where pydantic-ai notes the same when it comes to it: so they are looked up once.
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
    """The models that a call may really go to."""
    match model:
        case FallbackModel(models=models):
            for each in models:
                yield from _called(each)
        case WrapperModel(wrapped=wrapped):
            yield from _called(wrapped)
        case _:
            yield model


def _cost_by_name(response: ModelResponse, model: Model) -> float | None:
    """By the name the model was asked under: what answers may have a name, or an address, that nobody lists."""
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
    """Which models are not on the list of prices: it need not be searched for them with every response.

    A list that was loaded later may have them, so with a new list everything is forgotten.
    """

    def __init__(self) -> None:
        self._prices: DataSnapshot | None = None
        self._names: set[tuple[str | None, ...]] = set()

    def __contains__(self, name: tuple[str | None, ...]) -> bool:
        return name in self._names and self._prices is get_snapshot()

    def note(self, name: tuple[str | None, ...], error: LookupError) -> None:
        """The list was searched, and this came of it."""
        if type(error) is not LookupError:
            return  # a `KeyError` is about this one response, not about its model
        prices = get_snapshot()
        if self._prices is not prices:
            self._prices, self._names = prices, set()
        self._names.add(name)


_unlisted = _Unlisted()
_tariffs = Tariffs()
