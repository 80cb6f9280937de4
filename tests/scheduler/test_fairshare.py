"""Fair-share division: examples that read like rules, then the promises as properties."""

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.scheduler.fairshare import Claim, divide

GPU = 1000


def gpus(amount: float) -> int:
    return round(amount * GPU)


def claim(name: str, **fields: object) -> Claim:
    return Claim(name, **{"request": gpus(100), **fields})  # type: ignore[arg-type]


def shares(claims: Sequence[Claim], total: float, usage_weight_milli: int = 0) -> dict[str, float]:
    return {name: share / GPU for name, share in divide(claims, gpus(total), GPU, usage_weight_milli).items()}


# ---------------------------------------------------------------------------------------------------- what is owed


def test_everyone_gets_what_it_is_owed_first() -> None:
    assert shares([claim("a", quota=gpus(3)), claim("b", quota=gpus(1))], 4) == {"a": 3, "b": 1}


def test_who_asks_for_less_than_its_quota_lends_the_rest() -> None:
    assert shares([claim("a", quota=gpus(3), request=gpus(1)), claim("b", quota=gpus(1))], 4) == {"a": 1, "b": 3}


def test_quotas_are_not_scaled_down_when_they_exceed_the_cluster() -> None:
    assert shares([claim("a", quota=gpus(3)), claim("b", quota=gpus(3))], 4) == {"a": 3, "b": 3}


def test_an_unlimited_quota_means_all_it_asks_for() -> None:
    assert shares([claim("a", quota=None, request=gpus(3)), claim("b", quota=gpus(0))], 4) == {"a": 3, "b": 1}


def test_a_limit_caps_the_share() -> None:
    assert shares([claim("a", limit=gpus(2)), claim("b")], 8) == {"a": 2, "b": 6}


# ----------------------------------------------------------------------------------------------------- the surplus


def test_the_surplus_follows_the_weights() -> None:
    assert shares([claim("a", weight_milli=1000), claim("b", weight_milli=3000)], 8) == {"a": 2, "b": 6}


def test_a_queue_of_weight_zero_gets_no_surplus() -> None:
    assert shares([claim("a", quota=gpus(1), weight_milli=0), claim("b", request=gpus(2))], 8) == {"a": 1, "b": 2}


def test_a_higher_class_is_served_before_a_lower_one() -> None:
    assert shares([claim("high", priority=200, request=gpus(6)), claim("low")], 8) == {"high": 6, "low": 2}


def test_what_one_does_not_want_goes_to_the_others_of_its_class() -> None:
    small, large, low = claim("small", request=gpus(1)), claim("large"), claim("low", priority=1)
    assert shares([small, large, low], 9) == {"small": 1, "large": 8, "low": 0}


def test_a_fraction_that_is_wanted_is_given_exactly() -> None:
    assert shares([claim("a", request=gpus(0.5)), claim("b")], 4) == {"a": 0.5, "b": 3.5}


def test_the_indivisible_rest_goes_to_who_lost_most_by_rounding() -> None:
    assert shares([claim("a", weight_milli=1000), claim("b", weight_milli=2000)], 4) == {"a": 1, "b": 3}


def test_the_older_of_equals_gets_the_indivisible_rest() -> None:
    assert shares([claim("young", order=2), claim("old", order=1)], 3) == {"young": 1, "old": 2}


def test_the_name_decides_between_equals_of_one_age() -> None:
    assert shares([claim("b"), claim("a")], 3) == {"b": 1, "a": 2}


def test_past_use_lowers_the_part_of_the_surplus() -> None:
    heavy, light = claim("heavy", usage_ppm=500_000), claim("light")
    assert shares([heavy, light], 8) == {"heavy": 4, "light": 4}
    assert shares([heavy, light], 8, usage_weight_milli=1000) == {"heavy": 3, "light": 5}


def test_where_all_have_used_too_much_the_weights_decide() -> None:
    greedy = [claim("a", usage_ppm=5_000_000), claim("b", usage_ppm=5_000_000)]
    assert shares(greedy, 8, usage_weight_milli=1000) == {"a": 4, "b": 4}


# -------------------------------------------------------------------------------------------------------- the tree


def test_children_divide_the_share_of_their_parent() -> None:
    tree = [claim("d1", quota=gpus(6)), claim("d2", quota=gpus(2)), claim("a", parent="d1"), claim("b", parent="d1")]
    assert shares(tree, 8) == {"d1": 6, "d2": 2, "a": 3, "b": 3}


def test_a_tree_may_be_deep() -> None:
    tree = [claim("top"), *(claim(f"q{n}", parent=f"q{n - 1}" if n else "top") for n in range(30))]
    assert set(shares(tree, 8).values()) == {8}


def test_a_queue_whose_parent_is_unknown_gets_nothing() -> None:
    assert shares([claim("a", parent="nobody"), claim("b")], 8) == {"a": 0, "b": 8}


def test_no_queue_no_share() -> None:
    assert divide([], 8, 1) == {}


# ------------------------------------------------------------------------------------------------------ properties

amounts = st.integers(0, 40)
totals = st.integers(0, 200)


@st.composite
def siblings(draw: st.DrawFn, unit: int = 1) -> list[Claim]:
    return [
        Claim(
            f"q{number}",
            quota=draw(st.none() | amounts.map(lambda amount: amount * unit)),
            limit=draw(st.none() | amounts.map(lambda amount: amount * unit)),
            weight_milli=draw(st.integers(0, 5000)),
            request=draw(st.integers(0, 40 * unit)),
            usage_ppm=draw(st.sampled_from([0, 0, 100_000, 900_000])),
            priority=draw(st.sampled_from([50, 100, 150])),
            order=draw(st.integers(0, 3)),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


@st.composite
def trees(draw: st.DrawFn) -> list[Claim]:
    """Siblings, some of which become children of an earlier one."""
    claims = draw(siblings())
    parents = [draw(st.sampled_from([None, *claims[:number]])) for number in range(len(claims))]
    return [replace(c, parent=parent.name if parent else None) for c, parent in zip(claims, parents, strict=True)]


@given(trees(), totals, st.sampled_from([0, 1000]), st.randoms(use_true_random=False))
def test_the_order_of_the_claims_means_nothing(
    claims: list[Claim], total: int, usage_weight: int, random: Random
) -> None:
    shuffled = random.sample(claims, len(claims))
    assert divide(shuffled, total, 1, usage_weight) == divide(claims, total, 1, usage_weight)


@given(trees(), totals, st.sampled_from([0, 1000]))
def test_nobody_gets_more_than_it_asked_for_or_may_hold(claims: list[Claim], total: int, usage_weight: int) -> None:
    given_ = divide(claims, total, 1, usage_weight)
    assert all(0 <= given_[c.name] <= c.requestable for c in claims)


@given(siblings(), totals, st.sampled_from([0, 1000]))
def test_the_total_is_kept_unless_quotas_alone_exceed_it(claims: list[Claim], total: int, usage_weight: int) -> None:
    owed = sum(min(total if c.quota is None else c.quota, c.requestable) for c in claims)
    assert sum(divide(claims, total, 1, usage_weight).values()) <= max(total, owed)


@given(siblings(), totals)
def test_everyone_gets_at_least_what_it_is_owed(claims: list[Claim], total: int) -> None:
    given_ = divide(claims, total, 1)
    assert all(given_[c.name] >= min(total if c.quota is None else c.quota, c.requestable) for c in claims)


@given(siblings(), totals)
def test_nothing_wanted_stays_in_the_store(claims: list[Claim], total: int) -> None:
    given_ = divide(claims, total, 1)
    wanting = [c for c in claims if c.weight_milli and given_[c.name] < c.requestable]
    assert not wanting or sum(given_.values()) >= total


@given(siblings(), totals)
def test_weight_zero_gets_no_surplus(claims: list[Claim], total: int) -> None:
    given_ = divide(claims, total, 1)
    assert all(given_[c.name] <= (total if c.quota is None else c.quota) for c in claims if not c.weight_milli)


@given(siblings(), totals)
def test_a_lower_class_has_surplus_only_where_rounding_alone_holds_the_higher_back(
    claims: list[Claim], total: int
) -> None:
    given_ = divide(claims, total, 1)
    surplus = {c.name: given_[c.name] - min(total if c.quota is None else c.quota, c.requestable) for c in claims}
    for low in (c for c in claims if surplus[c.name]):
        higher = [c for c in claims if c.priority > low.priority and c.weight_milli]
        missing = [c for c in higher if given_[c.name] < c.requestable]
        # The rest of a round is smaller than one unit for each member of the class.
        below = sum(surplus[c.name] for c in claims if missing and c.priority < missing[0].priority)
        assert not missing or below < len(higher)


@given(siblings(), totals)
def test_more_to_divide_never_divides_less(claims: list[Claim], total: int) -> None:
    assert sum(divide(claims, total + 1, 1).values()) >= sum(divide(claims, total, 1).values())


@given(siblings(), totals)
def test_without_history_the_weight_of_history_changes_nothing(claims: list[Claim], total: int) -> None:
    fresh = [replace(c, usage_ppm=0) for c in claims]
    assert divide(fresh, total, 1, 1000) == divide(fresh, total, 1, 0)


@given(siblings(unit=GPU), totals)
def test_at_most_one_queue_gets_a_broken_unit_of_surplus(claims: list[Claim], total: int) -> None:
    broken = 0
    for c, share in zip(claims, divide(claims, total * GPU, GPU).values(), strict=True):
        owed = min(total * GPU if c.quota is None else c.quota, c.requestable)
        broken += share != c.requestable and (share - owed) % GPU != 0
    assert broken <= 1
