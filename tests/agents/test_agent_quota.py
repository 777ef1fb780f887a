"""The pure rules of quotas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors._core.quota import Amount, Quota
from flujo_actors._core.usage import NO_USAGE, Usage, UsageLimits


def tokens(limit, *, guess=2000):
    """A quota of that many tokens."""
    return Quota(UsageLimits(total_tokens_limit=limit), owner="run", guess=Amount(tokens=guess))


def dollars(limit):
    """A quota of that many dollars."""
    return Quota(UsageLimits(total_cost_usd_limit=limit), owner="run", guess=Amount(cost_usd=0.02))


def call(quota, caller, **used):
    """One call from beginning to end."""
    quota.settle(caller, quota.reserve(caller), Usage(**used))


def test_the_first_call_goes_alone():
    """Whoever comes second waits for a size to go by, however much room there is."""
    quota = tokens(10**9)
    assert quota.ask("a") == "granted"
    reserved = quota.reserve("a")
    assert quota.ask("a") == quota.ask("b") == "wait"
    quota.settle("a", reserved, Usage(input_tokens=10))
    assert quota.ask("a") == quota.ask("b") == "granted"


def test_a_first_call_without_an_answer_teaches_nothing():
    """After a failure the next one goes alone again."""
    quota = tokens(100)
    quota.settle("a", quota.reserve("a"), NO_USAGE)
    quota.reserve("a")
    assert quota.ask("b") == "wait"


def test_a_caller_of_known_size_is_refused_before_it_passes_the_limit():
    """Its largest call so far is what it is expected to use."""
    quota = tokens(250)
    call(quota, "a", input_tokens=60, output_tokens=40)
    assert quota.ask("a") == "granted"
    call(quota, "a", input_tokens=100)
    assert quota.ask("a") == "refused"
    assert quota.refuses("a")
    assert not quota.refuses("b")
    assert not quota.exceeded


def test_a_refusal_says_what_the_next_call_was_reckoned_at():
    """Spend and limit alone do not explain it: there is room left, only not enough."""
    quota = Quota(UsageLimits(total_cost_usd_limit=1.0, total_tokens_limit=250), owner="run", guess=Amount())
    call(quota, "a", input_tokens=60, output_tokens=40, cost_usd=0.25)
    call(quota, "a", input_tokens=90, cost_usd=0.5)
    assert quota.ask("a") == "refused"
    spend = "190 of 250 tokens (total_tokens_limit) and $0.75 of $1 (total_cost_usd_limit)"
    reckoned = "; the next call was reckoned at 100 tokens and $0.5"
    assert str(quota.error("a")) == f"usage limit reached: run has used {spend}{reckoned}"
    assert str(quota.error("b")) == str(quota.error("a"))
    assert str(quota.error()) == f"usage limit reached: run has used {spend}"


def test_a_limit_that_was_passed_explains_itself():
    """Once more was spent than allowed, the size of the next call does not matter."""
    quota = tokens(100)
    call(quota, "a", input_tokens=150)
    assert "reckoned" not in str(quota.error("a"))


def test_a_guess_refuses_nobody():
    """What is left may be enough, as long as nobody has used more."""
    quota = tokens(250)
    assert quota.ask("a") == "granted"
    call(quota, "a", input_tokens=100)
    call(quota, "b", input_tokens=50)
    assert quota.ask("c") == "granted"
    call(quota, "c", input_tokens=100)
    assert quota.ask("d") == "refused"
    assert quota.error().args[0] == "usage limit reached: run has used 250 of 250 tokens (total_tokens_limit)"


def test_a_caller_of_unknown_size_is_reckoned_at_the_largest_call_of_anybody():
    """It is refused if that does not fit, whatever it would have used."""
    quota = tokens(250)
    call(quota, "a", input_tokens=150)
    call(quota, "b", input_tokens=10)
    assert quota.ask("c") == "refused"
    assert quota.ask("b") == "granted"
    assert "the next call was reckoned at 150 tokens" in str(quota.error("c"))


def test_a_caller_of_unknown_size_is_reckoned_at_what_is_sure():
    """A prompt that does not fit is not sent to find out; a known size says more than the prompt's."""
    quota = tokens(250)
    assert quota.ask("a", Amount(tokens=251)) == "refused"
    assert "the next call was reckoned at 251 tokens" in str(quota.error("a", Amount(tokens=251)))
    assert quota.ask("a", Amount(tokens=250)) == "granted"
    call(quota, "a", input_tokens=100)
    assert quota.ask("a", Amount(tokens=250)) == "granted"


def test_sizes_that_are_known_from_before_count_from_the_start():
    """Of a caller, or of anybody."""
    quota = tokens(250)
    quota.learn("a", Amount(tokens=100))
    quota.learn(None, Amount(tokens=300))
    quota.learn("b", Amount())
    assert (quota.ask("a"), quota.ask("b")) == ("granted", "refused")


def test_an_unknown_caller_reserves_the_largest_call_of_anybody():
    """So that many newcomers at once do not all squeeze in."""
    quota = tokens(20_000)
    call(quota, "a", input_tokens=8_000)
    quota.reserve("b")
    assert quota.ask("c") == "wait"


def test_a_limit_of_nothing_refuses_the_first_call():
    """Zero is a limit, too."""
    assert tokens(0).ask("a") == "refused"
    assert dollars(0.0).ask("a") == "refused"


def test_dollars_that_do_not_add_up_exactly_still_reach_their_limit():
    """Eight times 0.1 is a bit less than 0.8 in binary; the ninth call is refused all the same."""
    quota = dollars(0.8)
    for number in range(8):
        assert quota.ask(f"caller {number}") == "granted"
        call(quota, f"caller {number}", cost_usd=0.1)
    assert quota.spent.cost_usd < 0.8
    assert quota.ask("caller 9") == quota.ask("caller 1") == "refused"
    assert "$0.8 of $0.8 (total_cost_usd_limit)" in quota.describe()


@pytest.mark.slow
@given(
    size=st.integers(1, 5000),
    limit=st.integers(0, 40_000),
    guess=st.integers(0, 4000),
    racers=st.integers(1, 12),
    same=st.booleans(),
    data=st.data(),
)
def test_racers_of_equal_size_consume_a_limit_exactly(size, limit, guess, racers, same, data):
    """In any interleaving: as many calls as fit, and one too many only if it was the very first."""
    quota = tokens(limit, guess=guess)
    under_way: list[tuple[str, Amount]] = []
    refused: set[str] = set()
    names = ["one"] if same else [f"racer {number}" for number in range(racers)]
    made = 0
    for _ in range(200):
        willing = [name for name in names if name not in refused and quota.ask(name) == "granted"]
        for name in names:
            if quota.ask(name) == "refused":
                refused.add(name)
        if willing and (not under_way or data.draw(st.booleans())):
            name = data.draw(st.sampled_from(willing))
            under_way.append((name, quota.reserve(name)))
            made += 1
        elif under_way:
            name, reserved = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            quota.settle(name, reserved, Usage(input_tokens=size))
        else:
            break
    fitting = limit // size
    assert made == quota.spent.tokens / size + len(under_way)
    assert made <= max(fitting, 1 if limit else 0)
    if not under_way and refused == set(names):
        assert made >= fitting
