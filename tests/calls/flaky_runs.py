"""Many seeded runs of structured steps against one flaky provider, over real sockets."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import attrs
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from typing_extensions import TypedDict

from flujo_actors import Flujo, PipelineResult, Step
from flujo_actors.testing.wire import ProviderStub
from flujo_actors.testing.wire.flaky import ByModel, FlakyProvider, Language

# Below this limit pydantic-ai asks Anthropic for a plain answer; without one it streams every request.
SHORT = ModelSettings(max_tokens=1000)
AT_ONCE = 50


class Item(BaseModel):
    name: str
    qty: int


class Order(BaseModel):
    title: str
    city: str
    items: list[Item]
    total: float
    paid: bool
    note: str | None


@dataclasses.dataclass
class Person:
    name: str
    age: int
    tags: list[str]


@attrs.frozen(kw_only=True)
class Place:
    name: str
    people: int
    river: str | None


class Film(TypedDict):
    title: str
    year: int
    cast: list[str]


NAMES = {
    Language.ENGLISH: ("O'Neil & Sons", "Lima", "It's {new}, [really]: yes", 'a "quoted" word'),
    Language.CHINESE: ("北京烤鸭", "上海市", "他说：好，谢谢。", "数量不多"),
    Language.ARABIC: ("مكتبة النور", "القاهرة", "قال: نعم، شكرا", "الكمية قليلة"),
    Language.HINDI: ("राम की दुकान", "दिल्ली", "उसने कहा: हाँ, धन्यवाद", "मात्रा कम है"),
}


def order(rng: Random, words: tuple[str, ...]) -> dict[str, Any]:
    items = [{"name": rng.choice(words), "qty": rng.randint(1, 99)} for _ in range(rng.randint(0, 3))]
    return {
        "title": words[0],
        "city": words[1],
        "items": items,
        "total": rng.randint(1, 99_999) / 100,
        "paid": rng.random() < 0.5,
        "note": rng.choice((None, words[2])),
    }


def person(rng: Random, words: tuple[str, ...]) -> dict[str, Any]:
    return {"name": words[0], "age": rng.randint(0, 110), "tags": list(words[: rng.randint(0, 4)])}


def place(rng: Random, words: tuple[str, ...]) -> dict[str, Any]:
    return {"name": words[1], "people": rng.randint(0, 10**7), "river": rng.choice((None, words[3]))}


def film(rng: Random, words: tuple[str, ...]) -> dict[str, Any]:
    return {"title": words[2], "year": rng.randint(1900, 2030), "cast": [words[0], words[3]]}


def people(rng: Random, words: tuple[str, ...]) -> list[dict[str, Any]]:
    return [person(rng, words) for _ in range(rng.randint(1, 3))]


FILM_SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "year": {"type": "integer"},
        "cast": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title", "year", "cast"],
    "additionalProperties": False,
}


@attrs.frozen(kw_only=True)
class Shape:
    """One way to declare a structured step."""

    name: str
    make: Callable[[Random, tuple[str, ...]], Any]
    output_type: Any = str
    schema: Any = None
    switch: str = "auto"
    envelope: str | None = None
    """The key under which pydantic-ai asks for what is no object."""

    def step(self, model: Model) -> Step:
        agent = Agent(model, output_type=self.output_type, system_prompt="Answer in JSON.")
        return Step("answer", agent, processing={"structured_output": self.switch, "schema": self.schema})


SHAPES = (
    Shape(name="model as a tool", make=order, output_type=Order),
    Shape(name="native model", make=order, output_type=NativeOutput(Order)),
    Shape(name="prompted model", make=order, output_type=PromptedOutput(Order)),
    Shape(name="dataclass as a tool", make=person, output_type=Person),
    Shape(name="typed dict as a tool", make=film, output_type=Film),
    Shape(name="list as a tool", make=people, output_type=list[Person], envelope="response"),
    Shape(name="text for a model", make=order, schema=Order),
    Shape(name="text for an attrs class", make=place, schema=Place),
    Shape(name="text for a dataclass", make=person, schema=Person),
    Shape(name="text for a typed dict", make=film, schema=Film),
    Shape(name="text for a JSON Schema", make=film, schema=FILM_SCHEMA),
    Shape(name="text for a list", make=people, schema=list[Person]),
    Shape(name="JSON mode for a model", make=order, schema=Order, switch="openai_json"),
)


@attrs.frozen(kw_only=True)
class Case:
    """One run: a declaration, a provider's client, streamed or not, in a language."""

    seed: int

    @property
    def rng(self) -> Random:
        return Random(f"case {self.seed}")

    @property
    def model(self) -> str:
        return f"{'claude-sonnet-5' if self.client == 'anthropic' else 'gpt-4o'}-case-{self.seed}"

    @property
    def shape(self) -> Shape:
        return SHAPES[self.seed % len(SHAPES)]

    @property
    def client(self) -> str:
        return ("openai-chat", "openai-responses", "anthropic")[self.seed // len(SHAPES) % 3]

    @property
    def streamed(self) -> bool:
        return self.rng.random() < 0.5

    @property
    def language(self) -> Language:
        return list(Language)[self.seed % len(Language)]

    @property
    def intended(self) -> Any:
        return self.shape.make(self.rng, NAMES[self.language])

    def provider(self) -> FlakyProvider:
        key = self.shape.envelope
        value = self.intended if key is None else {key: self.intended}
        return FlakyProvider(self.seed, value, language=self.language)


@attrs.frozen(kw_only=True)
class Ending:
    """How a run ended."""

    case: Case
    result: PipelineResult
    noises: tuple[str, ...]

    @property
    def right(self) -> bool:
        """The value is the intended one, whole and of the declared type."""
        return self.result.success and plain(self.result.output) == self.case.intended and not self.degraded

    @property
    def degraded(self) -> bool:
        return bool(self.result.step_history[-1].metadata.get("degraded"))

    @property
    def honest(self) -> bool:
        """The run did not end in the value, and says so, with the stage."""
        failed = not self.result.success and "at stage '" in (self.result.feedback or "")
        return failed or self.degraded


@attrs.define
class Clients:
    """One client of each kind for all cases."""

    openai: AsyncOpenAI
    anthropic: AsyncAnthropic

    def model(self, case: Case) -> Model:
        if case.client == "anthropic":
            return AnthropicModel(
                case.model, provider=AnthropicProvider(anthropic_client=self.anthropic), settings=SHORT
            )
        kind = OpenAIChatModel if case.client == "openai-chat" else OpenAIResponsesModel
        return kind(case.model, provider=OpenAIProvider(openai_client=self.openai), settings=SHORT)


@asynccontextmanager
async def clients(stub: ProviderStub) -> AsyncIterator[Clients]:
    async with (
        AsyncOpenAI(base_url=stub.openai_url, api_key="test", max_retries=0) as openai,
        AsyncAnthropic(base_url=stub.anthropic_url, api_key="test", max_retries=0) as anthropic,
    ):
        yield Clients(openai, anthropic)


def plain(value: Any) -> Any:
    """A value as JSON data."""
    match value:
        case BaseModel():
            return value.model_dump()
        case list():
            return [plain(item) for item in value]
        case _ if attrs.has(type(value)):
            return attrs.asdict(value)
        case _ if dataclasses.is_dataclass(value):
            return dataclasses.asdict(value)
    return value


async def finished(case: Case, model: Model, providers: dict[str, FlakyProvider]) -> Ending:
    run = Flujo(case.shape.step(model)).run_async("Go on.")
    result = await (watched(run) if case.streamed else run)
    noises = tuple(str(answer.kind) for answer in providers[case.model].history)
    return Ending(case=case, result=result, noises=noises)


async def watched(run: Any) -> PipelineResult:
    async for _outcome in run:
        pass
    return await run


async def endings(seeds: range) -> list[Ending]:
    """Run a case for each seed, many at a time."""
    providers = {case.model: case.provider() for case in (Case(seed=seed) for seed in seeds)}
    ended: list[Ending] = []
    with ProviderStub(ByModel(providers.__getitem__)) as stub:
        async with clients(stub) as opened, anyio.create_task_group() as group:
            limiter = anyio.CapacityLimiter(AT_ONCE)

            async def one(case: Case) -> None:
                async with limiter:
                    ended.append(await finished(case, opened.model(case), providers))

            for seed in seeds:
                group.start_soon(one, Case(seed=seed))
    return ended
