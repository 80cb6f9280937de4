"""Of several words about one subject the newest is written, and last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gpuyard.worlds.kubernetes.newest import Newest

Write = Callable[[], Awaitable[None]]


class Desk:
    """Writes as many as it likes side by side, and in any order."""

    def __init__(self) -> None:
        self.queue: list[Write] = []
        self.newest = Newest(self.queue.append)
        self.written: list[str] = []

    def say(self, subject: str, words: str, *, slow: bool = False) -> None:
        async def write() -> None:
            await asyncio.sleep(0.01 if slow else 0)
            self.written.append(words)

        self.newest.say(subject, write)

    async def work(self) -> None:
        while self.queue:
            work, self.queue[:] = list(reversed(self.queue)), []
            await asyncio.gather(*[each() for each in work])


def test_of_several_words_only_the_newest_is_written() -> None:
    desk = Desk()
    for number in range(5):
        desk.say("a", f"a{number}")
    desk.say("b", "b0")
    asyncio.run(desk.work())
    assert sorted(desk.written) == ["a4", "b0"]


def test_what_comes_while_an_older_word_is_under_way_is_written_after_it() -> None:
    desk = Desk()

    async def do() -> None:
        desk.say("a", "old", slow=True)
        working = asyncio.create_task(desk.work())
        await asyncio.sleep(0.002)
        desk.say("a", "new")
        assert desk.queue == []
        await working
        await desk.work()

    asyncio.run(do())
    assert desk.written == ["old", "new"]


def test_a_write_that_fails_does_not_keep_the_next_from_being_written() -> None:
    desk = Desk()

    async def fail() -> None:
        raise OSError

    async def do() -> None:
        desk.newest.say("a", fail)
        await asyncio.gather(*[each() for each in desk.queue], return_exceptions=True)
        desk.queue.clear()
        desk.say("a", "next")
        await desk.work()

    asyncio.run(do())
    assert desk.written == ["next"]


def test_after_everything_was_dropped_it_begins_anew() -> None:
    desk = Desk()
    desk.say("a", "dropped")
    desk.queue.clear()
    desk.newest.forget()
    desk.say("a", "said")
    asyncio.run(desk.work())
    assert desk.written == ["said"]
