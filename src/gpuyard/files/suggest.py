"""What a person may have meant by a word that is not known here."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: `; did you mean "vision"?`, or nothing where no known word is close."""
    words = list(known)
    close = get_close_matches(word, words, n=1) or get_close_matches(word.replace("-", "_"), words, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
