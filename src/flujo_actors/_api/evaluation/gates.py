"""Gates: conditions on metrics that decide whether a change passes.

Grammar:

    gate = term ("and" term)*
    term = METRIC [".total" | ".p95" | ".min" | ".max"] OP NUMBER ["x"]  |  METRIC "not" "worse"
    OP   = ">=" | "<=" | ">" | "<" | "=="

Rules:

1. A metric is the mean over its cases, or the named aggregate; `errors` is a count.
2. `1.1x` is a multiple of the baseline's value. Both sides are then taken over the paired cases.
3. A metric of a family, such as `score.tone`, is checked after the run, when the names are known.
4. Gates are parsed before anything runs. Nothing is evaluated as code.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import attrs

from ...errors import GateError
from .comparison import PAIRS_OF_AN_INTERVAL, Comparison, Metrics, mean, paired, total

_MAX_LENGTH = 1_000

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[\w-]+")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_OPERATOR = re.compile(r">=|<=|==|>|<")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DOT = re.compile(r"\.")
_TIMES = re.compile(r"x\b")
_ANYTHING = re.compile(r"[\w-]+|\S")


@attrs.frozen(kw_only=True)
class GateResult:
    """Result of one gate: its text, whether it holds, and the values."""

    text: str
    """Condition as written."""
    holds: bool
    """Whether the condition is met."""
    measured: float | str
    """Value of the metric; a text for `not worse` and several terms."""
    wanted: float | str
    """Bound of the metric; a text for `not worse` and several terms."""

    def __str__(self) -> str:
        verb = "holds" if self.holds else "does not hold"
        return f'gate "{self.text}" {verb}: {_shown(self.measured)}'


@attrs.frozen(kw_only=True)
class Vocabulary:
    """Metrics that gates of one kind of result can name."""

    plain: tuple[str, ...]
    """Metrics with a name of one word."""
    families: Mapping[str, str] = attrs.field(factory=dict)
    """Families of named metrics, with the noun of one: `{"score": "score"}`."""


@attrs.frozen(kw_only=True)
class Measured:
    """Values that gates are checked against."""

    subject: str
    """Owner of the values in messages: `evaluation 'v2'`."""
    values: Metrics
    """Values of this result; repeated cases have one value each."""
    before: Metrics | None = None
    """Values of the baseline, repeats averaged."""
    after: Metrics | None = None
    """Values of this result, repeats averaged."""
    comparison: Comparison | None = None
    counts: frozenset[str] = frozenset({"errors"})
    """Metrics whose value is their sum unless the gate names an aggregate."""
    partial: bool = False
    """Whether cases have no judgement: then a metric may be absent."""


@attrs.frozen(kw_only=True)
class _TermResult:
    """Result of one term."""

    holds: bool
    measured: float | str
    wanted: float | str


@attrs.frozen(kw_only=True)
class Term:
    """One condition of a gate."""

    family: str | None
    name: str
    aggregate: str | None = None
    operator: str | None = None
    """`None` for `not worse`."""
    number: float = 0.0
    times: bool = False

    @property
    def metric(self) -> str:
        """Return the key of the metric: `cost`, `score.tone`."""
        return self.name if self.family is None else f"{self.family}.{self.name}"

    @property
    def value(self) -> str:
        """Return the compared value: `cost`, `cost.total`."""
        return self.metric if self.aggregate is None else f"{self.metric}.{self.aggregate}"

    @property
    def needs_baseline(self) -> bool:
        """Return whether the term compares with a baseline."""
        return self.times or self.operator is None

    @property
    def bound(self) -> str:
        """Return the condition without its metric."""
        return "not worse" if self.operator is None else f"{self.operator} {self.number:g}{'x' if self.times else ''}"


@attrs.frozen(kw_only=True)
class Gate:
    """A parsed gate; `check` compares it with measured values."""

    text: str
    terms: tuple[Term, ...]
    vocabulary: Vocabulary

    @property
    def needs_baseline(self) -> bool:
        """Return whether a term compares with a baseline."""
        return any(term.needs_baseline for term in self.terms)

    def check(self, measured: Measured) -> GateResult:
        """Return the result; raise `GateError` for a metric without values."""
        for term in self.terms:
            self._refuse_unknown(term, measured)
        checks = [_checked(term, measured) for term in self.terms]
        holds = all(check.holds for check in checks)
        if len(checks) == 1:
            return GateResult(text=self.text, holds=holds, measured=checks[0].measured, wanted=checks[0].wanted)
        each = zip(self.terms, checks, strict=True)
        return GateResult(
            text=self.text,
            holds=holds,
            measured=", ".join(f"{term.value} {_shown(check.measured)}" for term, check in each),
            wanted=" and ".join(f"{term.value} {term.bound}" for term in self.terms),
        )

    def _refuse_unknown(self, term: Term, measured: Measured) -> None:
        if term.family is None or term.metric in measured.values or measured.partial:
            return
        start = f"{term.family}."
        known = sorted(each.removeprefix(start) for each in measured.values if each.startswith(start))
        raise GateError(
            f'gate "{self.text}": there is no {self.vocabulary.families[term.family]} {term.name!r} in '
            f"{measured.subject}; it has {', '.join(map(repr, known)) or 'none'}"
        )


def parse_gates(texts: Iterable[str] | str, vocabulary: Vocabulary, *, baseline: bool) -> tuple[Gate, ...]:
    """Return the parsed gates; raise `GateError` for the first that is wrong."""
    if not isinstance(texts, Iterable):
        raise GateError(f"gates must be a list of texts, not {texts!r:.100}")
    gates = tuple(_parsed(text, vocabulary) for text in ([texts] if isinstance(texts, str) else texts))
    for gate in gates:
        if gate.needs_baseline and not baseline:
            raise GateError(f'gate "{gate.text}" needs a baseline')
    return gates


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


# --- checks -------------------------------------------------------------------------------------------------


def _checked(term: Term, measured: Measured) -> _TermResult:
    if term.operator is None:
        return _not_worse(term.metric, measured.comparison)
    now, bound = _sides(term, measured)
    if not now or not bound:
        missing = "no case has a value" if not now else "no paired case has a value"
        return _TermResult(holds=False, measured=missing, wanted=term.bound)
    value = _aggregate(term, measured)(now)
    wanted = term.number * _aggregate(term, measured)(bound) if term.times else term.number
    return _TermResult(holds=_OPERATORS[term.operator](value, wanted), measured=value, wanted=wanted)


def _sides(term: Term, measured: Measured) -> tuple[list[float], list[float]]:
    """Return the values, and the baseline's for a multiple (rule 2)."""
    if not term.times:
        values = list(measured.values.get(term.metric, {}).values())
        return values, values
    pairs = paired((measured.before or {}).get(term.metric, {}), (measured.after or {}).get(term.metric, {}))
    return [pair[1] for pair in pairs.values()], [pair[0] for pair in pairs.values()]


def _not_worse(metric: str, comparison: Comparison | None) -> _TermResult:
    delta = None if comparison is None else comparison.delta(metric)
    if delta is None or delta.low is None or delta.high is None:
        n = 0 if delta is None else delta.n
        few = f"too few cases ({n}) for an interval: at least {PAIRS_OF_AN_INTERVAL}"
        return _TermResult(holds=False, measured=few, wanted="not worse")
    interval = f"{delta.difference:+.4g} [{delta.low:+.4g}, {delta.high:+.4g}]: {delta.verdict}"
    return _TermResult(holds=delta.verdict != "worse", measured=interval, wanted="not worse")


def _aggregate(term: Term, measured: Measured) -> Callable[[list[float]], float]:
    default = "total" if term.metric in measured.counts else "mean"
    return _AGGREGATES[term.aggregate or default]


def _p95(values: list[float]) -> float:
    """Return the 95th percentile, by nearest rank."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def _close(value: float, bound: float) -> bool:
    """Return whether two values are equal but for rounding errors of means."""
    return math.isclose(value, bound, rel_tol=1e-9, abs_tol=1e-12)


_AGGREGATES: Mapping[str, Callable[[list[float]], float]] = {
    "mean": mean,
    "total": total,
    "p95": _p95,
    "min": min,
    "max": max,
}
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": lambda value, bound: value >= bound or _close(value, bound),
    "<=": lambda value, bound: value <= bound or _close(value, bound),
    ">": lambda value, bound: value > bound and not _close(value, bound),
    "<": lambda value, bound: value < bound and not _close(value, bound),
    "==": _close,
}


# --- parser -------------------------------------------------------------------------------------------------


def _parsed(text: object, vocabulary: Vocabulary) -> Gate:
    if not isinstance(text, str):
        raise GateError(f"a gate is a text, not {text!r:.100}")
    if len(text) > _MAX_LENGTH:
        raise GateError(f'gate "{text[:100]}…" is too long: {len(text):,} characters of at most {_MAX_LENGTH:,}')
    return Gate(text=text, terms=_Parser(text, vocabulary).terms(), vocabulary=vocabulary)


class _Parser:
    """Recursive-descent parser of one gate."""

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self._text, self._vocabulary, self._at = text, vocabulary, 0

    def terms(self) -> tuple[Term, ...]:
        """Return the terms of the whole text."""
        found = [self._term()]
        while (word := self._next(_ANYTHING)) is not None:
            if word != "and":
                self._refuse(f"{word!r} is not known here; give several gates or use 'and'")
            found.append(self._term())
        return tuple(found)

    def _term(self) -> Term:
        family, name = self._metric()
        aggregate = self._aggregate_name() if self._next(_DOT) else None
        if (operator := self._next(_OPERATOR)) is None:
            self._not_worse()
            if aggregate is not None:
                self._refuse(f"'not worse' compares means; leave out '.{aggregate}'")
            return Term(family=family, name=name)
        number = self._next(_NUMBER)
        if number is None:
            self._refuse(f"a number is expected after {operator!r}, not {self._rest()}")
        times = self._next(_TIMES, spaced=False) is not None
        return Term(
            family=family, name=name, aggregate=aggregate, operator=operator, number=self._finite(number), times=times
        )

    def _metric(self) -> tuple[str | None, str]:
        word = self._next(_WORD)
        if word is None:
            self._refuse(f"a metric is expected, not {self._rest()}; metrics are {self._known()}")
        if word in self._vocabulary.plain:
            return None, word
        if word not in self._vocabulary.families:
            self._refuse(f"{word!r} is not known here; metrics are {self._known()}")
        if self._next(_DOT) is None:
            self._refuse(f"a name is expected after '{word}': '{word}.NAME'")
        return word, self._family_name(word)

    def _family_name(self, family: str) -> str:
        quoted = self._next(_QUOTED)
        if quoted is not None:
            return self._unquoted(quoted)
        name = self._next(_WORD)
        if name is None:
            self._refuse(f"a name is expected after '{family}.', not {self._rest()}; quote other characters")
        return name

    def _unquoted(self, quoted: str) -> str:
        try:
            name = json.loads(quoted, strict=False)
        except ValueError:
            self._refuse(f"{quoted} is no quoted name")
        return str(name)

    def _aggregate_name(self) -> str:
        word = self._next(_WORD)
        if word is None or word == "mean" or word not in _AGGREGATES:
            self._refuse(f"{word or self._rest()!r} is not known here; use .total, .p95, .min or .max")
        return word

    def _not_worse(self) -> None:
        start = self._at
        if self._next(_WORD) == "not" and self._next(_WORD) == "worse":
            return
        self._at = start
        self._refuse(f"{self._rest()} is not known here; use >=, <=, >, <, == or 'not worse'")

    def _finite(self, number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            self._refuse(f"{number} is too large")
        return value

    def _next(self, pattern: re.Pattern[str], *, spaced: bool = True) -> str | None:
        """Consume a token after optional space, and return it."""
        start = self._space() if spaced else self._at
        found = pattern.match(self._text, start)
        if found is None:
            return None
        self._at = found.end()
        return found.group()

    def _space(self) -> int:
        found = _SPACE.match(self._text, self._at)
        return self._at if found is None else found.end()

    def _rest(self) -> str:
        found = _ANYTHING.match(self._text, self._space())
        return "the end" if found is None else repr(found.group())

    def _known(self) -> str:
        return ", ".join((*self._vocabulary.plain, *(f"{family}.NAME" for family in self._vocabulary.families)))

    def _refuse(self, reason: str) -> NoReturn:
        raise GateError(f'gate "{self._text}": {reason}')
