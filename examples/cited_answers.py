"""Answers from documents, with citations. Run it: `python examples/cited_answers.py`.

It needs no network: passages are found by their words, and the model is a stand-in. It quotes the first passage it
is shown, with its id. With a real one, only `MODEL` would change. A filter hides the documents of other tenants.
"""

import re
from collections.abc import AsyncIterator

import trio
from pydantic_ai.messages import ModelMessage, ModelRequest, TextContent, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flujo_actors import (
    Chunk,
    Collection,
    ContextFormat,
    ContextSources,
    Failure,
    Flujo,
    InMemoryRetriever,
    Step,
    Success,
    from_literal,
    from_retrieval,
    from_state,
    known_citations,
    make_agent_async,
)


class Manual(Collection, name="manual"):
    tenant: str


PAGES = {
    "pump-1": "Error E-1042 means that the pump lost prime. Bleed the intake line, then restart the pump.",
    "pump-2": "The pump is cleaned once a year. Close the intake line before you open the housing of the pump.",
    "pump-3": "A pump that hums and does not turn is blocked: look for stones in its housing, not for an error code.",
    "tea-1": "Green tea is brewed with water of 80 degrees. Hotter water makes it bitter.",
    "kiln-1": "The kiln is opened when it is colder than 60 degrees, which takes nine hours.",
}
manual = InMemoryRetriever(Manual).add_many([(text, {"id": name, "tenant": "acme"}) for name, text in PAGES.items()])
manual.add("Our pump shows error E-1042 on purpose, once a month.", id="secret-1", tenant="rival")


async def read_out(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """The stand-in: the first sentence of the first passage, word by word, with its id; once it gets an id wrong."""
    shown = "".join(_texts(messages))
    found = re.search(r'<retrieved_passage id="([^"]+)"[^>]*>(.+?[.!?])', shown)
    if found is None:
        yield "The manual says nothing about that."
        return
    source, sentence = found.groups()
    known = "not accepted" in shown or "kiln" not in shown
    for word in f"{sentence[:-1]} [{source if known else 'kiln-9'}].".split(" "):
        yield f"{word} "


def _texts(messages: list[ModelMessage]) -> list[str]:
    parts = [part for each in messages if isinstance(each, ModelRequest) for part in each.parts]
    prompts = [part.content for part in parts if isinstance(part, UserPromptPart)]
    pieces = [piece for content in prompts for piece in ([content] if isinstance(content, str) else content)]
    return [piece.content if isinstance(piece, TextContent) else str(piece) for piece in pieces]


MODEL = FunctionModel(stream_function=read_out, model_name="stand-in")

answer = Step(
    "answer",
    make_agent_async(MODEL, "Answer from the context only, and cite the passages you used by their ids, like [id]."),
    context_sources=ContextSources(
        [
            from_literal("Temperatures are in Celsius."),
            from_retrieval(Manual, top_k=3, filters={"tenant": from_state("tenant")}),
        ],
        max_tokens=90,
        format=ContextFormat.cited(),
    ),
    validators=known_citations,
    max_retries=1,
)
flujo = Flujo(answer, retrievers={Manual: manual})


async def ask(question: str, tenant: str | None = "acme") -> None:
    print(f"\n? {question}")
    attempt = 1
    async for outcome in flujo.run_async(question, context={"tenant": tenant}):
        match outcome:
            case Chunk(data=piece, attempt=number):
                if number != attempt:
                    print("\n  (refused, asked again)")
                    attempt = number
                print(piece, end="", flush=True)
            case Success(step_result=result):
                shown = result.metadata["context"]
                used = ", ".join(f"{name} ({score:.2f})" for _, name, score in shown["sources"]) or "nothing"
                print(f"\n  shown: {used}; {shown['tokens']} tokens")
                for _, name, score in shown["dropped"]:
                    print(f"  dropped, over the token budget: {name} ({score:.2f})")
            case Failure(feedback=feedback):
                print(f"  failed: {feedback}")


async def main() -> None:
    await ask("The pump shows error E-1042, what now?")
    await ask("When may I open the kiln?")
    await ask("How do I train a dog?")
    await ask("The pump shows error E-1042, what now?", tenant=None)


if __name__ == "__main__":
    trio.run(main)
