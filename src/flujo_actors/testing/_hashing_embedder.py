"""Vectors without a model: the same on every machine, and enough to see that ranking works. They know no meaning."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence

from pydantic_ai.embeddings import Embedder, EmbeddingModel, EmbeddingResult, EmbeddingSettings
from pydantic_ai.embeddings.result import EmbedInputType
from pydantic_ai.usage import RequestUsage

from ..errors import DeclarationError

_WORD = re.compile(r"\w+")
_PIECE = 4


class HashingEmbedder(Embedder):
    """A pydantic-ai `Embedder` that hashes words and pieces of words into so many dimensions.

    Texts that share words are near each other, and nothing else is. Every text counts a token for each word, so that
    usage can be tested; `model.asked` keeps what was embedded.
    """

    def __init__(self, dimensions: int = 384) -> None:
        self.hashing: HashingModel = HashingModel(dimensions)
        super().__init__(self.hashing)


class HashingModel(EmbeddingModel):
    """The model behind a `HashingEmbedder`."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        if isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 1:
            raise DeclarationError(f"HashingEmbedder: dimensions must be at least 1, not {dimensions!r}")
        self._dimensions = dimensions
        self.asked: list[list[str]] = []
        """The texts of every call."""

    @property
    def model_name(self) -> str:
        """What is told in results."""
        return f"hashing-{self._dimensions}"

    @property
    def system(self) -> str:
        """The provider: none."""
        return "hashing"

    async def embed(
        self, inputs: str | Sequence[str], *, input_type: EmbedInputType, settings: EmbeddingSettings | None = None
    ) -> EmbeddingResult:
        texts, _ = self.prepare_embed(inputs, settings)
        self.asked.append(texts)
        return EmbeddingResult(
            embeddings=[self._vector(text) for text in texts],
            inputs=texts,
            input_type=input_type,
            model_name=self.model_name,
            provider_name=self.system,
            usage=RequestUsage(input_tokens=sum(len(_WORD.findall(text)) for text in texts)),
        )

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self._dimensions
        for piece in _pieces(text):
            number = int.from_bytes(hashlib.blake2b(piece.encode("utf-8", "replace"), digest_size=8).digest(), "big")
            vector[(number >> 1) % self._dimensions] += 1.0 if number & 1 else -1.0
        length = math.sqrt(sum(each * each for each in vector))
        return [each / length for each in vector] if length else vector


def _pieces(text: str) -> Iterator[str]:
    for word in _WORD.findall(text.casefold()):
        yield f"={word}"
        yield from (word[start : start + _PIECE] for start in range(len(word) - _PIECE + 1))
