"""The tables' manifest remembers every ledger file that was read, and does not grow with them."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, closed_files
from pairbus.pipeline.gold import Pricing
from pairbus.pipeline.servicebus.offsets import Pairs
from pairbus.pipeline.store import Manifest, Numbers, TableStore, covered, in_doubt


def name(number: int, process: str = "shop-4711-0badcafe") -> str:
    return f"{process}.{number:06d}.jsonl"


def test_names_are_those_that_a_writer_gives(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        writer.record(CompletedOperation(Operation.PING, "contoso", "orders"))
    (path,) = closed_files(tmp_path)
    assert Manifest().with_files({path.name: 7}, present=()).departed == {writer.process: ((1, 1),)}


def test_files_that_left_the_folder_are_remembered_as_spans() -> None:
    manifest = Manifest().with_files({name(n): n for n in range(1, 1441)}, present={name(1440)})
    assert manifest.files == {name(1440): 1440}
    assert manifest.departed == {"shop-4711-0badcafe": ((1, 1439),)}
    assert all(manifest.has_read(name(n)) for n in range(1, 1441))
    assert not manifest.has_read(name(1441))
    assert not manifest.has_read(name(0))
    assert not manifest.has_read(name(1, "shop-4711-deadbeef"))


def test_files_may_leave_in_any_order_and_none_is_forgotten() -> None:
    numbers = list(range(1, 201))
    random.Random(5).shuffle(numbers)
    manifest, present = Manifest(), {name(n) for n in numbers}
    for at in range(0, len(numbers), 7):
        some = numbers[at : at + 7]
        manifest = manifest.with_files({name(n): n for n in some}, present)
        present -= {name(n) for n in some[:3]}
        assert all(manifest.has_read(name(n)) for n in numbers[: at + 7])
        assert not any(manifest.has_read(name(n)) for n in numbers[at + 7 :])
    assert manifest.with_files({}, present=()).departed == {"shop-4711-0badcafe": ((1, 200),)}


def test_a_file_that_came_back_stays_read() -> None:
    manifest = Manifest().with_files({name(1): 10, name(2): 10}, present=())
    assert manifest.with_files({}, present={name(1)}).has_read(name(1))


def test_names_that_no_writer_gives_are_kept_as_they_are() -> None:
    strange = ("report (1).jsonl", "a.1.jsonl", ".000001.json", "a.٠٠٠٠٠١.jsonl", "a.00000²" + ".jsonl")
    manifest = Manifest().with_files(dict.fromkeys(strange, 1), present=())
    assert set(manifest.files) == set(strange)
    assert manifest.departed == {}
    assert not manifest.has_read("a.000001.jsonl")


def test_a_year_of_files_is_a_short_manifest_that_reads_back(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    files = {name(n, f"shop-{p}"): 1000 for p in range(3) for n in range(1, 20_000)}
    manifest = Manifest().with_files(files, present=())
    store.publish(manifest)
    assert store.manifest() == manifest
    assert (tmp_path / "CURRENT.json").stat().st_size < 2000


def test_the_numbers_of_a_process_are_covered_by_few_spans() -> None:
    """However many builds read them, in whatever order, with whatever gaps: what was read is always in some span."""
    chance = random.Random(11)
    known: dict[str, Pairs] = {}
    read: list[tuple[int, int]] = []
    for _ in range(300):
        first = chance.randrange(-(10**6), 10**6)
        read.append((first, first + chance.randrange(1000)))
        known = covered(known, {"shop": Numbers(*read[-1], records=1, distinct=1)})
        spans = known["shop"]
        assert len(spans) <= 8
        assert list(spans) == sorted(spans)
        assert all(any(low <= begin and end <= high for low, high in spans) for begin, end in read)


def test_records_that_follow_each_other_are_one_span_and_leave_no_doubt() -> None:
    known: dict[str, Pairs] = {}
    for first in range(1, 10_000, 100):
        found = {"shop": Numbers(first, first + 99, records=100, distinct=100)}
        assert in_doubt(found, known) == []
        known = covered(known, found)
    assert known == {"shop": ((1, 10_000),)}


def test_what_was_read_or_is_there_twice_is_in_doubt() -> None:
    known: dict[str, Pairs] = {"shop": ((1, 10), (20, 30))}
    found = {
        "shop": Numbers(10, 12, records=3, distinct=3),
        "till": Numbers(1, 10, records=11, distinct=10),
        "other": Numbers(1, 30, records=30, distinct=30),
    }
    assert in_doubt(found, known) == ["shop", "till"]
    assert in_doubt({"shop": Numbers(11, 19, records=9, distinct=9)}, known) == []
    assert in_doubt({"shop": Numbers(0, 40, records=2, distinct=2)}, known) == ["shop"]


def test_prices_and_numbers_read_back_as_they_were(tmp_path: Path) -> None:
    pricing = Pricing(plans={"contoso": "premium"}, connections={"contoso": 5_000, "fabrikam": Decimal("2.5")})
    written = Manifest(batch=1, numbers={"shop": ((-5, 7), (9, 2**63 - 1))}, prices=pricing.kept)
    TableStore(tmp_path).publish(written)
    assert TableStore(tmp_path).manifest() == written
    assert pricing.kept.tariffs == (), "shipped prices are those of the version that reads"
