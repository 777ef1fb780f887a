"""Every rule: what it finds, why that matters, an example of each, and what mends it.

The page of rules (docs/lint.md), `flujo-actors explain` and the tests of the rules are made of this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import rules_of_flow, rules_of_text, rules_of_values
from .rule import Rule

RULES: Mapping[str, Rule] = MappingProxyType(
    {rule.id: rule for rule in (*rules_of_text.RULES, *rules_of_values.RULES, *rules_of_flow.RULES)}
)
"""Every rule by its id."""
