"""Colors of the page: contrast in both themes, and states that people with color blindness tell apart."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from flujo_actors.page import _app

STATIC = Path(_app.__file__).with_name("static")

Color = tuple[float, float, float]

LOUD = ("ok", "run", "ask", "bad", "stuck")
STATES = (*LOUD, "nap", "calm")
GROUNDS = ("ground", "surface", "sunken", "hover", "chosen")

SIGHT: dict[str, tuple[Color, Color, Color]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
"""Simulation of color blindness on linear RGB: Machado, Oliveira and Fernandes, 2009, severity 1."""


def colors(theme: str) -> dict[str, str]:
    """The tokens of one theme by name."""
    found = re.findall(
        r"--([\w-]+):\s*light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", (STATIC / "tokens.css").read_text()
    )
    return {name: light if theme == "light" else dark for name, light, dark in found}


def linear(color: str) -> Color:
    red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return _expanded(red), _expanded(green), _expanded(blue)


def _expanded(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG."""
    lights = [0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in (linear(one), linear(other))]
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def lab(color: Color) -> Color:
    """A linear color in CIELAB, under daylight."""
    clipped = [max(0.0, min(1.0, part)) for part in color]
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    sums = [sum(k * part for k, part in zip(row, clipped, strict=True)) for row in rows]
    x, y, z = (_root(each / white) for each, white in zip(sums, (0.9505, 1.0, 1.089), strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _root(value: float) -> float:
    return value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116


def distance(one: str, other: str, sight: str) -> float:
    """How different two colors look to a kind of sight."""
    seen = [
        tuple(sum(k * part for k, part in zip(row, linear(each), strict=True)) for row in SIGHT[sight])
        for each in (one, other)
    ]
    first, second = (lab((each[0], each[1], each[2])) for each in seen)
    return sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) ** 0.5


def pairs() -> list[tuple[str, str, float]]:
    """Foreground, background and the contrast that is needed: 4.5 for text, 3 for fills."""
    text = [(ink, ground) for ink in ("ink", "ink-2", "ink-3", "accent") for ground in GROUNDS]
    text += [("danger", "surface"), ("on-accent", "accent"), ("on-accent", "accent-2")]
    text += [("on-danger", "danger"), ("on-danger", "danger-2")]
    text += [(f"{state}-i", ground) for state in STATES for ground in (f"{state}-t", *GROUNDS)]
    text += [(f"{kind}-i", ground) for kind in ("model", "tool") for ground in (f"{kind}-t", "surface", "sunken")]
    text += [("ink", ground) for ground in ("add-t", "del-t", "ask-t", "bad-t", "model-t")]
    fills = [(f"{name}-b", ground) for name in (*STATES, "step", "model", "tool") for ground in ("surface", "ground")]
    fills += [("edge", "surface"), ("edge", "ground")]
    fills += [(f"{state}-b", ground) for state in LOUD for ground in (f"{state}-t", "sunken", "hover", "chosen")]
    return [*((*each, 4.5) for each in text), *((*each, 3.0) for each in fills)]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_pair_of_colors_has_the_contrast_of_wcag_aa(theme: str):
    """Texts 4.5:1, bars and icons 3:1, on every ground they are drawn on."""
    known = colors(theme)
    low = [(ink, ground) for ink, ground, needed in pairs() if contrast(known[ink], known[ground]) < needed]
    assert low == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_loud_states_differ_for_every_kind_of_sight(theme: str, sight: str):
    """Their fills are at least 15 apart."""
    known = colors(theme)
    near = {
        (a, b): distance(known[f"{a}-b"], known[f"{b}-b"], sight)
        for a, b in itertools.combinations(LOUD, 2)
        if distance(known[f"{a}-b"], known[f"{b}-b"], sight) < 15
    }
    assert near == {}


def test_colors_come_from_tokens_alone():
    """No other file of the page has a color of its own."""
    rules = (STATIC / "style.css").read_text()
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|hsla?\(", rules) == []
    used = set(re.findall(r"var\(--([\w-]+)", rules))
    defined = set(re.findall(r"--([\w-]+):", (STATIC / "tokens.css").read_text() + rules))
    assert used - defined <= {"k", "x", "w"}  # set by the scripts of the page
