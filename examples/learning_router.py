"""A router that learns which of two models to ask. Run it: `python examples/learning_router.py [chart.svg]`.

Both models answer questions; one is right more often, and the program does not know which. `Step.select_agent` asks
each about as often as it is probably the better one, and learns from the answers. Halfway the better one becomes worse,
silently, as models do. The regret, the loss against always asking the better one, is compared with asking them in turn,
and drawn as an SVG.
"""

import logging
import random
import sys
from collections.abc import Sequence
from typing import Any

import attrs
import trio

from flujo_actors import Belief, Choice, Flujo, Step, ThompsonSampling

ROUNDS = 400
QUALITY = {"small": (0.55, 0.55), "large": (0.85, 0.35)}
"""How often each model is right, before and after halfway."""


@attrs.define
class World:
    """Two models whose answers are right by chance."""

    chance: random.Random
    round: int = 0

    def quality(self, model: str) -> float:
        """How often a model is right now."""
        return QUALITY[model][self.round >= ROUNDS // 2]

    def model(self, name: str) -> Any:
        """A model as an agent: it is right, or it fails."""

        async def answer(question: str) -> str:
            if self.chance.random() >= self.quality(name):
                raise ValueError(f"{name} was wrong")
            return f"{name} knows"

        return answer


@attrs.define
class InTurn:
    """Asks one after the other, whatever comes back."""

    asked: int = 0

    def choose(self, candidates: Sequence[str], beliefs: dict[str, Belief], budget: object, rng: object) -> Choice:
        """The next one."""
        self.asked += 1
        return Choice(arm=candidates[self.asked % len(candidates)])


async def regret_of(by: Any) -> list[float]:
    """What a rule has lost after each round."""
    world = World(random.Random(7))
    models = {name: world.model(name) for name in QUALITY}
    flujo = Flujo(Step.select_agent("answer", models, by=by))
    lost, total = [], 0.0
    for world.round in range(ROUNDS):
        result = await flujo.run_async("why?", run_id=f"round {world.round}")
        arm = result.step_history[0].metadata["selection"]["arm"]
        total += max(map(world.quality, QUALITY)) - world.quality(arm)
        lost.append(total)
    return lost


def drawn(curves: dict[str, list[float]]) -> str:
    """The regret of each rule, round by round, as an SVG."""
    highest = max(max(curve) for curve in curves.values())
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 320" font-family="sans-serif" font-size="14">']
    parts.append('<text x="16" y="24">What is lost against always asking the better model</text>')
    for color, (name, curve) in zip(("#1971c2", "#d9480f"), curves.items(), strict=True):
        points = [(16 + 480 * place / ROUNDS, 300 - 250 * lost / highest) for place, lost in enumerate(curve, 1)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="504" y="{points[-1][1]:.1f}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>"])


async def main() -> None:
    """Both rules, and the chart."""
    curves = {"Thompson sampling": await regret_of(ThompsonSampling(seed=1)), "in turn": await regret_of(InTurn())}
    for name, curve in curves.items():
        print(f"{name:18} lost {curve[ROUNDS // 2 - 1]:5.1f} answers by halfway, {curve[-1]:5.1f} in all")
    if len(sys.argv) > 1:
        await trio.Path(sys.argv[1]).write_text(drawn(curves), encoding="utf-8")
        print(f"the chart is in {sys.argv[1]}")


if __name__ == "__main__":
    logging.getLogger("flujo_actors").setLevel(logging.ERROR)  # wrong answers are expected here
    trio.run(main)
