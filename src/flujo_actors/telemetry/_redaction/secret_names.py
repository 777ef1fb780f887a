"""Which names announce a secret.

A name is cut into words (`OPENAI_API_KEY`, `openaiApiKey` and `openai-api-key` all end in *api key*), and its
ending decides: `auth_token` holds a secret, `token_counts` and `input_tokens` do not.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeAlias

Words: TypeAlias = tuple[str, ...]

SECRET_ENDINGS: frozenset[Words] = frozenset(
    tuple(ending.split())
    for ending in (
        "password",
        "passwords",
        "passwd",
        "pwd",
        "passphrase",
        "secret",
        "secrets",
        "credential",
        "credentials",
        "authorization",
        "auth",
        "cookie",
        "cookies",
        "jwt",
        "token",
        "access tokens",
        "api tokens",
        "auth tokens",
        "bearer tokens",
        "refresh tokens",
        "accesstoken",
        "authtoken",
        "refreshtoken",
        "apitoken",
        "api key",
        "api keys",
        "apikey",
        "apikeys",
        "access key",
        "accesskey",
        "account key",
        "auth key",
        "client key",
        "encryption key",
        "master key",
        "private key",
        "privatekey",
        "secret key",
        "secretkey",
        "shared key",
        "signing key",
        "ssh key",
        "clientsecret",
    )
)

# `page_token` and `stop_token` are vocabulary of APIs and tokenizers, not credentials.
_HARMLESS_TOKENS = frozenset(
    {"next", "page", "continuation", "stop", "start", "end", "first", "last", "per", "max", "min", "num"}
    | {"eos", "bos", "pad", "cls", "sep", "unk", "mask", "special", "unexpected", "invalid", "every", "each"}
)
# What may follow the telling words without changing what is held: `secret_value`, `Authorization-Header`.
_TRAILING = frozenset({"value", "raw", "text", "string", "str", "header", "hash", "pem", "bytes"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
_LONGEST_NAME = 80


def words_of(name: str) -> Words:
    """The words of an identifier, in lower case: `("api", "key")` for `apiKey`, `API_KEY` and `api-key`."""
    return tuple(word.lower() for word in _WORD.findall(name[-_LONGEST_NAME:]))


@lru_cache(maxsize=4096)
def is_secret_name(name: str, more: frozenset[Words] = frozenset()) -> bool:
    """Whether a field, key or variable of this name holds a secret; `more` are endings to count as well."""
    words = words_of(name)
    if _ends_in(words, more):
        return True
    while words and words[-1] in _TRAILING:
        words = words[:-1]
    return _ends_in(words, SECRET_ENDINGS) and not _harmless_token(words)


def _ends_in(words: Words, endings: frozenset[Words]) -> bool:
    return any(words[start:] in endings for start in range(len(words)))


def _harmless_token(words: Words) -> bool:
    return words[-1] == "token" and len(words) > 1 and words[-2] in _HARMLESS_TOKENS
