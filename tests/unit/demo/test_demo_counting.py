"""The accounts of the demo: a loss, a stray message, a refused send or a contradiction is said, and fails."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import pytest

from pairbus.demo.counting import Cost, DemoResult, DestinationCount, conclude, count
from pairbus.demo.fleet import DESTINATIONS, ENTITIES, PRICES, DemoDestination, Parcel, parcel
from pairbus.drill.census import Census
from pairbus.drill.scenario import DrillEntity
from pairbus.drill.senders import SESSIONS
from pairbus.pipeline.report import Summary

FREE = Cost(40, 10, Decimal(0), "USD")


def summary(accepted: int, delivered: int, waiting: int = 0, lost: int = 0) -> Summary:
    nothing = dict.fromkeys(Summary.__dataclass_fields__, 0)
    return Summary(**{**nothing, "accepted": accepted, "delivered": delivered, "waiting": waiting, "lost": lost})


def counted(name: str, accepted: str, seen: str, misdirected: str = "") -> DestinationCount:
    """One letter is one message; each letter of `seen` is a copy."""
    account, lost = Census({name: Counter(seen)}).account(name, accepted)
    return DestinationCount(name, frozenset(accepted), account, frozenset(lost), frozenset(misdirected))


def concluded(result: DemoResult, ledger: Summary, cost: Cost = FREE) -> tuple[int, list[str]]:
    said: list[str] = []
    return conclude(said.append, result, ledger, cost), said


@pytest.mark.parametrize(
    ("delivered", "ledger", "code", "said"),
    [
        ("abc", summary(3, 3), 0, "orders: accepted 3 = delivered 3, lost 0, duplicates 1"),
        ("ab", summary(3, 2, waiting=1), 1, "orders: accepted 3 ≠ delivered 2, lost 1, duplicates 1"),
        ("ab", summary(3, 2, lost=1), 1, "orders: accepted 3 ≠ delivered 2, lost 1, duplicates 1"),
        ("ab", summary(3, 3), 1, "The ledger disagrees: accepted 3 = delivered 3, lost 0, duplicates 0"),
        ("abc", summary(3, 2, waiting=1), 1, "The ledger disagrees: accepted 3: delivered 2, waiting 1, "),
        ("abc", summary(4, 3, lost=1), 1, "The ledger disagrees: accepted 4: delivered 3, lost 1, "),
    ],
)
def test_a_loss_or_a_contradiction_is_said_and_fails(delivered: str, ledger: Summary, code: int, said: str) -> None:
    one = counted("orders", "abc", delivered + delivered[0])
    exit_code, sentences = concluded(DemoResult(frozenset("abc"), 0, (one,)), ledger)
    assert exit_code == code
    assert any(sentence.startswith(said) for sentence in sentences), sentences


def test_the_last_sentence_says_it_all() -> None:
    one = counted("orders", "abc", "abcab")
    code, said = concluded(DemoResult(frozenset("abc"), 0, (one,)), summary(3, 3))
    assert code == 0
    assert said[-1] == (
        "Sent 3 messages: delivered 3, lost 0, duplicated 2; it would have cost 40 operations, 10 of them because of "
        "the outages, for 0.00 USD beyond the base charge."
    )


def test_a_message_for_two_subscriptions_is_one_message_and_lost_if_one_lacks_it() -> None:
    europe = counted("prices/europe", "ab", "ab")
    large = counted("prices/large", "b", "")
    result = DemoResult(frozenset("abc"), 0, (europe, large))
    assert (result.delivered, result.lost) == (2, frozenset("b"))
    code, said = concluded(result, summary(3, 2, lost=1))
    assert code == 1
    assert said[-1].startswith(
        "Sent 3 messages: delivered 2 (1 of them matched no subscription's filter), lost 1, duplicated 0; "
    )


def test_a_message_where_it_does_not_belong_fails() -> None:
    one = counted("orders", "a", "ax", misdirected="x")
    code, said = concluded(DemoResult(frozenset("a"), 0, (one,)), summary(1, 1))
    assert code == 1
    assert said[0] == "orders: accepted 1 = delivered 1, lost 0, duplicates 0, misdirected 1"
    assert "misdirected 1" in said[-1]


def test_a_refused_send_fails() -> None:
    one = counted("orders", "a", "a")
    code, said = concluded(DemoResult(frozenset("a"), 2, (one,)), summary(1, 1))
    assert code == 1
    assert "refused 2" in said[-1]


@pytest.mark.parametrize(("amount", "shown"), [("0", "0.00"), ("1.5", "1.50"), ("0.000012", "0.000012")])
def test_an_amount_is_never_rounded_away(amount: str, shown: str) -> None:
    assert f"for {shown} USD " in Cost(1, 1, Decimal(amount), "USD").sentence


def test_the_cost_is_the_sum_of_the_causes() -> None:
    rows = [
        {"billed": 4, "amount": "0.5", "currency": "USD"},
        {"billed": 6, "amount": "0.25", "currency": "USD"},
    ]
    told = Summary(**{**dict.fromkeys(Summary.__dataclass_fields__, 0), "billed_operations": 30})
    assert Cost.of(told, rows, 12) == Cost(42, 10, Decimal("0.75"), "USD")


def test_a_destination_expects_what_its_filter_selects_of_what_was_accepted() -> None:
    europe = DemoDestination(PRICES, "europe", "region = 'europe'", lambda parcel: parcel.region == "europe")
    planned = [
        Parcel("accepted", PRICES, "europe", 1, None),
        Parcel("in doubt", PRICES, "europe", 1, None),
        Parcel("elsewhere", PRICES, "asia", 1, None),
        Parcel("other entity", "orders", "europe", 1, None),
    ]
    accepted = [planned[0], *planned[2:]]
    one = count(europe, accepted, planned, Counter({"accepted": 2, "in doubt": 1, "elsewhere": 1}))
    assert (one.accepted, one.account.duplicates, one.lost) == (frozenset({"accepted"}), 1, frozenset())
    assert one.misdirected == {"elsewhere"}


def test_a_seed_decides_what_is_sent() -> None:
    def first(seed: int, entity: DrillEntity) -> list[Parcel]:
        return [parcel(seed, entity, number) for number in range(1, 51)]

    for entity in ENTITIES:
        assert first(7, entity) == first(7, entity)
        assert [one.amount for one in first(7, entity)] != [one.amount for one in first(8, entity)]
        assert {one.session for one in first(7, entity)} == (set(SESSIONS) if entity.sessions else {None})


def test_the_filters_select_some_overlap_and_leave_some() -> None:
    (prices,) = (entity for entity in ENTITIES if entity.name == PRICES)
    sent = [parcel(1, prices, number) for number in range(1, 201)]
    europe, large = (one for one in DESTINATIONS if one.entity == PRICES)
    chosen = Counter((europe.takes(one), large.takes(one)) for one in sent)
    assert all(chosen[both] for both in ((True, True), (True, False), (False, True), (False, False)))
