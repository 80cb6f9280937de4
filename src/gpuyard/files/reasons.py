"""Reason tokens as words of a file."""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.files.place import Place
from gpuyard.files.suggest import did_you_mean
from gpuyard.model.reasons import Token


def read_token(word: str, place: Place, among: Iterable[Token] = Token) -> Token:
    """The token of that name; an error lists those that will do here."""
    tokens = tuple(among)
    if word in tokens:
        return Token(word)
    words = [token.value for token in tokens]
    other = word in tuple(Token)
    what = f'"{word}" is no reason for an eviction' if other else f'"{word}" is not a reason{did_you_mean(word, words)}'
    raise place.error(what, f"reasons: {', '.join(words)}")
