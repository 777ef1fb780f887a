"""From what the command line names to a `Flujo` with the store and the limits that the command line says."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from .call import Call
from .targets import DEFAULT, is_python, object_of, pipeline_of

if TYPE_CHECKING:
    from .. import Flujo, UsageLimits
    from .run import RunOptions


def flujo_of(call: Call, target: str | None, options: RunOptions) -> Flujo:
    """The `Flujo` that a target names, or one made of the pipeline that it names."""
    from .. import Flujo

    named = target or DEFAULT
    found = object_of(named) if is_python(named) else None
    settings = call.settings()
    if isinstance(found, Flujo):
        url = options["store"] or (settings.store if found._store is None else None)
        return _varied(found, url, limits_of(options))
    pipeline = pipeline_of(target, allow=options["allow"], config=call.config)
    return Flujo(pipeline, store=options["store"] or settings.store, usage_limits=limits_of(options), settings=settings)


def _varied(flujo: Flujo, store: str | None, limits: UsageLimits | None) -> Flujo:
    """The same with another store or other limits, where they are given: what the command line says comes last."""
    from .._wiring import beliefs_of, store_of
    from .._wiring import limits_of as checked

    other = copy.copy(flujo)
    if store is not None:
        other._store = store_of(store, flujo.pipeline, flujo._first_context.model)
        other._beliefs = beliefs_of(other._store, flujo.pipeline)
    if limits is not None:
        other._limits = checked(limits, flujo.pipeline)
    return other


def limits_of(options: RunOptions) -> UsageLimits | None:
    """What the command line allows the run to use; `None` if it does not say."""
    from .. import UsageLimits

    cost, tokens = options["limit_usd"], options["limit_tokens"]
    if cost is None and tokens is None:
        return None
    return UsageLimits(total_cost_usd_limit=cost, total_tokens_limit=tokens)
