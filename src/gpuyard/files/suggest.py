"""What a person may have meant by a word that is not known here."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

MAX_WORD: Final = 100
"""Characters of a word that is compared; a longer one is no slip of the pen."""
MAX_COMPARED: Final = 2_000
"""Known words it is compared with: each comparison takes a while."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence: `; did you mean "vision"?`, or nothing where no known word is close."""
    if len(word) > MAX_WORD:
        return ""
    words = list(islice(known, MAX_COMPARED))
    close = get_close_matches(word, words, n=1) or get_close_matches(word.replace("-", "_"), words, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
