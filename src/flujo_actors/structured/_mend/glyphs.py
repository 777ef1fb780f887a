"""The characters that play a part outside strings, and the patterns built from them."""

from __future__ import annotations

import re

OPENERS = {"{": "{", "｛": "{", "[": "[", "［": "[", "(": "(", "（": "("}
CLOSERS = {"}": "{", "｝": "{", "]": "[", "］": "[", ")": "(", "）": "("}
COMMAS = frozenset(",，、;；")
COLONS = frozenset(":：=")

QUOTES = {
    '"': '"',
    "'": "'",
    "“": '”“"',
    "”": '”"',
    "„": '“”"',
    "‟": '”"',
    "＂": '＂"',
    "″": '″"',
    "‘": "’‘'",
    "’": "’'",
    "‚": "‘’'",
    "＇": "＇'",
    "`": "`´'",
    "´": "´`'",
    "「": "」",
    "『": "』",
    "«": "»",
}
"""Opening quote -> the characters that may close it."""

WS = r"[\s\u200b-\u200f\u2060\ufeff\u180e\u202a-\u202e\u2066-\u2069\u00ad]"
"""White space as people paste it: every Unicode space, plus the invisible marks."""

_OPEN = "".join(re.escape(c) for c in QUOTES)
_ANY = "".join(sorted({re.escape(c) for q, closing in QUOTES.items() for c in q + closing}))

QUOTED_KEY = rf"[{_OPEN}]{{1,2}}[^{_ANY}\\\n]{{0,200}}[{_ANY}]{{1,2}}{WS}*[:：=]"
BARE_NAME = rf"[^\W\d][\w.$-]*\"?{WS}*[:：](?!//)"
KEYLIKE = rf"(?:{QUOTED_KEY}|{BARE_NAME})"
COMMENT = r"(?://|/\*|\#|<!--)"
STOP = rf"(?:\Z|[}}\]｝］)）]|{COMMENT})"
ELLIPSIS_TEXT = r"(?:\.\.\.+|…)"

SKIP_BETWEEN = re.compile(rf"(?:{WS}++|//[^\n]*+|/\*.*?(?:\*/|\Z)|\#[^\n]*+|<!--.*?(?:-->|\Z))*+", re.S)
SKIP_BEFORE_VALUE = re.compile(rf"(?:{WS}++|//[^\n]*+|/\*.*?(?:\*/|\Z)|\#(?!\w)[^\n]*+|<!--.*?(?:-->|\Z))*+", re.S)
ELLIPSIS = re.compile(ELLIPSIS_TEXT)
KEY_AHEAD = re.compile(rf"{WS}*{KEYLIKE}")
PROSE_TAIL = re.compile(r"[^\S\n]*\n[^\"{}\[\]]*\Z")
"""A line end, then only prose: the value before it was never closed."""
LEFTOVER_CLOSERS = re.compile(rf"{WS}*[}}\]]")
ONLY_CLOSERS = re.compile(rf"(?:{WS}|[}}\]｝］)）,;`])*\Z")
TORN = re.compile(rf"{WS}*(?:{QUOTED_KEY}|[,，]{WS}*[{{\[\"])")
"""More data right behind what should have been the end."""
MEMBER_AFTER_COMMA = re.compile(rf"{WS}*[,，]{WS}*{QUOTED_KEY}")

AFTER_COMMA_IN_OBJECT = re.compile(
    rf"{WS}*(?:{STOP}|[,，]|{KEYLIKE}|{ELLIPSIS_TEXT}|\w+{WS}+{QUOTED_KEY}|[^\"\n,:={{}}\[\]]{{1,60}}[:：=]|\{{)"
)
"""What may follow a comma between members; anything else means the comma belonged to a value."""

FAST_MEMBER = re.compile(
    r"""([\s,]*)"([^"\\\x00-\x1f]*)"\s*:\s*(?:
        (-?(?:0|[1-9]\d{0,17})(?:\.\d{1,18})?|true|false|null)(?=\s*(?:,\s*["}\]]|[}\]]))
        |("[^"\\\x00-\x1f]*")(?=\s*(?:,\s*(?:"[^"\\\x00-\x1f]*"\s*:|[}\]])|[}\]]))
        |([{\[]))""",
    re.X,
)
"""One whole well-formed member, so that damage elsewhere does not slow the healthy part down."""

FAST_ELEMENT = re.compile(
    r"""([\s,]*)(?:
        (-?(?:0|[1-9]\d{0,17})(?:\.\d{1,18})?|true|false|null)(?=\s*(?:,\s*[-"\d{\[\]tfn]|\]))
        |("[^"\\\x00-\x1f]*")(?=\s*(?:,\s*["\d{\[\]]|\]))
        |([{\[]))""",
    re.X,
)

_GAP = rf"(?:{WS}++|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/|\#[^\n]*+)*+"
_LEAD = rf"((?:{WS}++|[,，]|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/|\#[^\n]*+)*+)"
_NAME = r"[^\W\d][\w$-]*+"
_CLEAN_STRING = r"\"([^\"\\\x00-\x1f]*)\"|'([^'\"\\\x00-\x1f]*)'|“([^“”\"\\\x00-\x1f]*)”"
_SCALAR = r"(-?(?:0|[1-9]\d{0,17})(?:\.\d{1,18})?|(?i:true|false|null)|None|undefined)"
_NEXT_KEY = rf"(?:[\"'“][^\"'“”\\\n]*[\"'”]|{_NAME}){WS}*[:：]"
_MEMBER_ENDS = rf"(?={_GAP}(?:[}}\]｝］]|[,，]{_GAP}(?:{_NEXT_KEY}|[}}\]｝］])))"
_ELEMENT_ENDS = rf"(?={_GAP}(?:[\]］]|[,，]{_GAP}(?:[\"'“\d\-{{\[\]｛［］]|(?i:true|false|null|none)\b)))"

MEMBER = re.compile(
    rf"{_LEAD}(?:{_CLEAN_STRING}|({_NAME})){WS}*([:：]){WS}*(?:{_SCALAR}{_MEMBER_ENDS}|(?:{_CLEAN_STRING}){_MEMBER_ENDS}|([{{\[｛［]))"
)
ELEMENT = re.compile(rf"{_LEAD}(?:{_SCALAR}{_ELEMENT_ENDS}|(?:{_CLEAN_STRING}){_ELEMENT_ENDS}|([{{\[｛［]))")
"""As the fast ones, for text that is consistently odd: other quotes, bare keys, comments, wide punctuation."""
