"""A newsroom, offline: `make demo`, or `python examples/demo.py`.

Three researchers work at once, one of them loses its connection and is replaced by its notes; the headline is
shortened until it fits; the article is streamed while it is written. The run as a tree ends the show.
"""

import sys
import textwrap
from collections.abc import AsyncIterator

import trio

from flujo_actors import Chunk, Context, Failure, Flujo, PipelineResult, Step, StepOutcome, Success
from flujo_actors.terminal import draw

QUESTION = "Why do octopuses have three hearts?"

FACTS = {
    "archive": "Two hearts pump blood through the gills, the third through the body.",
    "lab": "Copper carries their oxygen: it makes the blood blue, thick and slow.",
    "web": "The third heart rests while they swim, so they prefer to crawl.",
}
HEADLINE = "Three hearts keep the octopus alive, in cold water, in the dark, far from any shore"
LONGEST_HEADLINE = 40

# --- the agents: plain async functions --------------------------------------------------------------------------


async def search_archive(question: str) -> str:
    await trio.sleep(0.35)
    return FACTS["archive"]


async def ask_lab(question: str) -> str:
    await trio.sleep(0.55)
    return FACTS["lab"]


async def browse_web(question: str) -> str:
    await trio.sleep(0.25)
    raise ConnectionError("the network is unreachable")


async def read_own_notes(question: str) -> str:
    await trio.sleep(0.15)
    return FACTS["web"]


async def shorten(headline: str) -> str:
    await trio.sleep(0.12)
    return headline.rpartition(",")[0]


async def write_article(headline: str, *, context: Context) -> AsyncIterator[str]:
    article = f"{headline}. {' '.join(context.facts)}"
    for word in article.split(" "):
        await trio.sleep(0.035)
        yield word + " "


# --- the pipeline -----------------------------------------------------------------------------------------------

PIPELINE = (
    Step.parallel(
        "research",
        {
            "archive": Step("archive", search_archive),
            "lab": Step("lab", ask_lab),
            "web": Step("web", browse_web, fallback=Step("own notes", read_own_notes)),
        },
    )
    >> Step("keep facts", lambda found: {"facts": list(found.values())}, updates_context=True)
    >> Step.loop_until(
        "headline",
        Step("shorten", shorten),
        until=lambda headline, context: len(headline) <= LONGEST_HEADLINE,
        input=HEADLINE,
    )
    >> Step("article", write_article)
)

# --- the show ---------------------------------------------------------------------------------------------------


class Show:
    """Prints a run while it happens."""

    def __init__(self) -> None:
        self.column = 0

    def see(self, outcome: StepOutcome) -> None:
        match outcome:
            case Chunk(data=word):
                self._type(word)
            case Success(step_result=step):
                self._say(f"✓ {step.name}: {textwrap.shorten(str(step.output), 76, placeholder='…')}")
            case Failure(feedback=feedback):
                self._say(f"✗ {feedback}")

    def _type(self, word: str) -> None:
        if self.column + len(word) > 92:
            print()
            self.column = 0
        print(word if self.column else f"    {word}", end="", flush=True)
        self.column += len(word)

    def _say(self, line: str) -> None:
        if self.column:
            print("\n")
            self.column = 0
        print(f"  {line}", flush=True)


async def main() -> PipelineResult:
    print(f"\n{QUESTION}\n")
    show = Show()
    async with Flujo(PIPELINE).run_async(QUESTION) as run:
        async for outcome in run:
            show.see(outcome)
        result = await run
    print(f"\n{draw(result, color=sys.stdout.isatty())}\n")
    return result


if __name__ == "__main__":
    sys.exit(not trio.run(main).success)
