"""Turns and shares: a user who asks for much does not keep one who asks for little waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest

from gpuyard.errors import RefusedError
from gpuyard.service.turns import Shares, Turns


class Work:
    """Asks for turns, and notes in which order they were given."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.order: list[str] = []

    async def of(self, user: str, ms: float = 1) -> None:
        async with self.turns.turn(user):
            self.order.append(user)
            await asyncio.sleep(ms / 1000)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_users_take_turns_whatever_each_of_them_asks_for() -> None:
    work = Work(Turns(1, "a test"))

    async def all_at_once() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(work.of("greedy", 3))
            await asyncio.sleep(0)
            for user in ("ann", "bob"):
                group.create_task(work.of(user))

    run(all_at_once())
    assert set(work.order[1:3]) == {"ann", "bob"}
    assert work.order.count("greedy") == 20


def test_what_counts_is_the_time_that_was_used_not_the_number_of_turns() -> None:
    work = Work(Turns(1, "a test"))

    async def all_at_once() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(work.of("long", 80))
                group.create_task(work.of("short", 1))

    run(all_at_once())
    assert work.order[:8].count("short") == 6


def test_a_long_turn_is_not_forgotten_between_two_requests_of_a_user() -> None:
    work = Work(Turns(1, "a test"))

    async def one_after_the_other(user: str, ms: float, times: int) -> None:
        for _ in range(times):
            await work.of(user, ms)

    async def all_at_once() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(one_after_the_other("long", 200, 3))
            for _ in range(4):
                group.create_task(one_after_the_other("short", 1, 5))

    run(all_at_once())
    assert work.order[:12].count("long") == 1


def test_of_one_user_only_so_many_requests_wait() -> None:
    turns = Turns(1, "a test", queued_per_user=2)
    work = Work(turns)
    refused: list[str] = []

    async def one(user: str) -> None:
        try:
            await work.of(user, 5)
        except RefusedError as error:
            refused.append(f"{user}: {error.reason}")

    async def all_at_once() -> None:
        await asyncio.gather(*(one(user) for user in ("a", "a", "a", "a", "b", "b")))

    run(all_at_once())
    assert refused == ["a: Busy"]
    assert sorted(work.order) == ["a", "a", "a", "b", "b"]
    assert turns.queued == 0


@pytest.mark.parametrize("admitted", [False, True])
def test_a_request_that_is_given_up_gives_its_turn_back(admitted: bool) -> None:
    turns = Turns(1, "a test")
    work = Work(turns)

    async def give_up() -> None:
        held = asyncio.create_task(work.of("first", 10))
        await asyncio.sleep(0)
        given_up = asyncio.create_task(work.of("second"))
        await asyncio.sleep(0)
        if admitted:
            turns._end("first", 0.0)
            turns._free -= 1
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        await held
        await asyncio.wait_for(work.of("third"), 1)

    run(give_up())
    assert work.order == ["first", "third"]


def test_nobody_is_remembered_once_nobody_waits() -> None:
    turns = Turns(1, "a test")

    async def many() -> None:
        for number in range(2_500):
            async with turns.turn(f"user-{number}"):
                pass

    run(many())
    assert not turns._begins


def test_there_is_always_something_left_for_one_more_user() -> None:
    shares = Shares(512, "requests at once")
    for user in range(20):
        with suppress(RefusedError):
            while True:
                shares.take(f"greedy-{user}", 1)
    shares.take("one more", 1)


def test_what_was_taken_is_given_back() -> None:
    shares = Shares(100, "bytes")
    shares.take("a", 20)
    with pytest.raises(RefusedError, match="share of 100 bytes"):
        shares.take("a", 1)
    shares.give_back("a", 20)
    assert shares.taken == 0
    shares.take("b", 25)
