"""Conversations of pydantic-ai in every store: as its own store in memory has them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationStore, InMemoryConversationStore
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.usage import RunUsage

from flujo_actors import DeclarationError, MemoryStore, conversations


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Any:
    """A store of each kind."""
    if request.param == "memory":
        return MemoryStore()
    return request.getfixturevalue(f"{request.param}_place").open()


def asked(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(content=text)])


def said(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(content=text)])


async def texts(at: ConversationStore, name: str, **options: Any) -> list[str] | None:
    found = await at.load(name, **options)
    return None if found is None else [str(part.content) for message in found.messages for part in message.parts]


async def story(at: ConversationStore) -> list[object]:
    """Save, extend, rewrite, branch, fork, list and delete; everything a caller sees of it."""
    seen: list[object] = []
    await at.save(Conversation(conversation_id="c \0", messages=[asked("a"), said("b")]), scope="me")
    loaded = await at.load("c \0")
    assert loaded is not None
    loaded.messages += [asked("c"), said("d")]
    loaded.usage += RunUsage(requests=3)
    seen.append(len(await at.save(loaded)))
    seen.append(await texts(at, "c \0", limit=3))
    branched = await at.branch("c \0", at=2, expected_revision=loaded.revision)
    branched.messages += [asked("e")]
    await at.save(branched)
    seen.append(await texts(at, "c \0"))
    fork = await at.fork("c \0", at=2, new_conversation_id="x" * 5_000, scope="you")
    fork.messages += [asked("f")]
    await at.save(fork)
    seen.append([len(each.conversation_id) for each in await at.list_conversations()])
    seen.append([each.forked_from for each in await at.list_conversations(scope="you")])
    seen.append((await at.list_conversations(limit=1))[0].usage.requests)
    for wrong in ({"at": 1, "expected_revision": "old"},):
        with pytest.raises(ConversationConflict):
            await at.branch("c \0", **wrong)
    with pytest.raises(ConversationConflict):
        await at.save(Conversation(conversation_id="c \0", messages=[asked("z")]))
    await at.delete("c \0", scope="another")
    seen.append(await texts(at, "c \0"))
    await at.delete("c \0")
    seen.append([await texts(at, "c \0"), await texts(at, "x" * 5_000)])
    await at.delete("x" * 5_000)
    seen.append(await at.list_conversations())
    return seen


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_every_operation_has_the_result_of_the_store_in_memory(store: Any, backend: str) -> None:
    """On asyncio and on trio."""
    expected = anyio.run(story, InMemoryConversationStore())
    assert anyio.run(story, conversations(store), backend=backend) == expected


def test_two_writers_of_a_conversation_lose_no_entry(store: Any) -> None:
    """One of them conflicts, loads again and saves."""

    async def main() -> None:
        at = conversations(store)
        await at.save(Conversation(conversation_id="c", messages=[asked("a")]))
        one, other = await at.load("c"), await at.load("c")
        assert one is not None
        assert other is not None
        one.messages.append(said("one"))
        other.messages.append(said("other"))
        await at.save(one)
        with pytest.raises(ConversationConflict):
            await at.save(other)
        again = await at.load("c")
        assert again is not None
        again.messages.append(said("other"))
        await at.save(again)
        assert await texts(at, "c") == ["a", "one", "other"]

    anyio.run(main)


def test_an_append_does_not_read_or_write_earlier_entries(sqlite_place: Any) -> None:
    """Bytes of an append are the same after many entries."""
    store = sqlite_place.open()

    async def main() -> list[int]:
        at, sizes = conversations(store), []
        conversation = Conversation(conversation_id="c", messages=[])
        for number in range(400):
            conversation.messages.append(asked(f"{number:04}"))
            added = await at.save(conversation)
            assert len(added) == 1
            sizes.append(len(sqlite_place.query("SELECT body FROM flujo_conversations")[0][0]))
        return sizes

    sizes = anyio.run(main)
    assert max(sizes[100:]) <= sizes[10] + 20
    assert sqlite_place.query("SELECT count(*) FROM flujo_entries") == [(400,)]


def test_entries_of_a_deleted_conversation_are_deleted(sqlite_place: Any) -> None:
    """Those of its branches too; entries that a fork shares stay."""

    async def main() -> None:
        await story(conversations(sqlite_place.open()))

    anyio.run(main)
    assert sqlite_place.query("SELECT count(*) FROM flujo_entries") == [(0,)]


def test_a_store_without_rows_is_named() -> None:
    """With the method that it lacks."""

    class Other:
        def admit_all(self) -> None: ...

    with pytest.raises(DeclarationError):
        conversations(Other())  # type: ignore[arg-type]
