"""The audit on real Spark: ledgers made by hand, one situation each, and the verdict they must get."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import Row, SparkSession

from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Outcome, Role, Route
from pairbus.ledger.records import hashed_id
from pairbus.pipeline.audit import KEY, Look, audit, unread_ids
from pairbus.pipeline.report import Summary, summarise
from pairbus.pipeline.silver import quarantine, read_lines, silver

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine

QUEUE = "contoso/x-servicebus-transfer/0"
OTHER_QUEUE = "contoso/x-servicebus-transfer/1"


class Story:
    """Writes what clients, syphons and receivers would have written about messages."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer

    def sent(self, message_id: str, outcome: Outcome = Outcome.OK) -> None:
        self._writer.record(
            CompletedOperation(
                Operation.SEND, "contoso", "orders", message_ids=[message_id], route=Route.PRIMARY, outcome=outcome
            )
        )

    def diverted(self, message_id: str, outcome: Outcome = Outcome.OK, queue: str = QUEUE) -> None:
        self._writer.record(
            CompletedOperation(
                Operation.DIVERT,
                "fabrikam",
                queue,
                destination="orders",
                message_ids=[message_id],
                route=Route.BACKLOG,
                outcome=outcome,
            )
        )

    def spooled(self, message_id: str) -> None:
        self._writer.record(
            CompletedOperation(Operation.SPOOL, "contoso", "orders", message_ids=[message_id], route=Route.SPOOL)
        )

    def unspooled(self, message_id: str, *, home: bool, outcome: Outcome = Outcome.OK) -> None:
        if home:
            self._writer.record(
                CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=[message_id], route=Route.SPOOL)
            )
        else:
            self._writer.record(
                CompletedOperation(
                    Operation.DIVERT,
                    "fabrikam",
                    QUEUE,
                    destination="orders",
                    message_ids=[message_id],
                    route=Route.SPOOL,
                    outcome=outcome,
                )
            )

    def restored(self, message_id: str, outcome: Outcome = Outcome.OK, queue: str = QUEUE) -> None:
        self._writer.record(
            CompletedOperation(
                Operation.RESTORE,
                "contoso",
                "orders",
                source=queue,
                message_ids=[message_id],
                route=Route.SYPHON,
                role=Role.SYPHON,
                outcome=outcome,
            )
        )

    def settled(self, operation: Operation, message_id: str, queue: str = QUEUE) -> None:
        self._writer.record(
            CompletedOperation(
                operation, "fabrikam", queue, destination="orders", message_ids=[message_id], role=Role.SYPHON
            )
        )

    def received(self, message_id: str, entity: str = "Orders") -> None:
        self._writer.record(
            CompletedOperation(Operation.COMPLETE, "contoso", entity, message_ids=[message_id], role=Role.RECEIVER)
        )


def direct(story: Story) -> None:
    story.sent("m")
    story.received("m")


def home_again(story: Story) -> None:
    story.diverted("m")
    story.restored("m")
    story.settled(Operation.COMPLETE, "m")
    story.received("m")


def still_there(story: Story) -> None:
    story.diverted("m")


def dead_lettered(story: Story) -> None:
    story.diverted("m")
    story.settled(Operation.DEAD_LETTER, "m")


def expired(story: Story) -> None:
    story.diverted("m")
    story.settled(Operation.EXPIRE, "m")


def removed_without_restoring(story: Story) -> None:
    story.diverted("m")
    story.settled(Operation.COMPLETE, "m")


def restored_twice(story: Story) -> None:
    story.diverted("m")
    story.restored("m")
    story.restored("m")
    story.settled(Operation.COMPLETE, "m")


def in_doubt_then_diverted(story: Story) -> None:
    """The primary took it but did not answer: two copies reach the receivers."""
    story.sent("m", Outcome.UNKNOWN)
    story.diverted("m")
    story.restored("m")
    story.settled(Operation.COMPLETE, "m")
    story.received("m")
    story.received("m")


def in_doubt_merged(story: Story) -> None:
    story.sent("m", Outcome.UNKNOWN)
    story.diverted("m")
    story.restored("m")
    story.settled(Operation.COMPLETE, "m")
    story.received("m")


def two_backlog_queues(story: Story) -> None:
    """No answer from the first backlog queue, so it went to a second one as well."""
    story.diverted("m", Outcome.UNKNOWN)
    story.diverted("m", queue=OTHER_QUEUE)
    for queue in (QUEUE, OTHER_QUEUE):
        story.restored("m", queue=queue)
        story.settled(Operation.COMPLETE, "m", queue=queue)


def buried_in_two_backlog_queues(story: Story) -> None:
    story.diverted("m", Outcome.UNKNOWN)
    story.diverted("m", queue=OTHER_QUEUE)
    for queue in (QUEUE, OTHER_QUEUE):
        story.settled(Operation.DEAD_LETTER, "m", queue=queue)


def resubmitted_and_home(story: Story) -> None:
    dead_lettered(story)
    story.settled(Operation.RESUBMIT, "m")
    story.restored("m")
    story.settled(Operation.COMPLETE, "m")


def resubmitted_unrecorded_and_home(story: Story) -> None:
    dead_lettered(story)
    story.restored("m")
    story.settled(Operation.COMPLETE, "m")


def resubmitted_and_waiting(story: Story) -> None:
    dead_lettered(story)
    story.settled(Operation.RESUBMIT, "m")


def resubmitted_and_buried_again(story: Story) -> None:
    dead_lettered(story)
    story.settled(Operation.RESUBMIT, "m")
    story.settled(Operation.EXPIRE, "m")


def expired_after_it_was_home(story: Story) -> None:
    """The lock was lost before it could be completed, so it was delivered again, too late."""
    story.diverted("m")
    story.restored("m")
    story.settled(Operation.EXPIRE, "m")


def spooled_and_waiting(story: Story) -> None:
    story.spooled("m")


def spooled_then_backlog(story: Story) -> None:
    story.spooled("m")
    story.unspooled("m", home=False)
    story.restored("m")
    story.settled(Operation.COMPLETE, "m")


def spooled_then_home(story: Story) -> None:
    story.spooled("m")
    story.unspooled("m", home=True)


def spooled_then_stuck(story: Story) -> None:
    story.spooled("m")
    story.unspooled("m", home=False)


def never_accepted(story: Story) -> None:
    story.sent("m", Outcome.UNKNOWN)
    story.received("m")


def removed_and_nobody_told(story: Story) -> None:
    """The client died before its record was written: that it was in a backlog proves that it was accepted."""
    story.settled(Operation.COMPLETE, "m")


def home_and_nobody_told(story: Story) -> None:
    story.restored("m")
    story.settled(Operation.COMPLETE, "m")


def unspooled_and_nobody_told(story: Story) -> None:
    """Killed between the spool's journal and the record of it; the next start found it there."""
    story.unspooled("m", home=False)
    story.settled(Operation.COMPLETE, "m")


def resubmitted_and_nobody_told(story: Story) -> None:
    story.settled(Operation.RESUBMIT, "m")


def could_not_go_home_and_nobody_told(story: Story) -> None:
    story.restored("m", Outcome.FAILED)


def forwarded_at_the_second_try(story: Story) -> None:
    """The spool's own attempt had no answer: the application was told that its message is accepted before that."""
    story.unspooled("m", home=False, outcome=Outcome.UNKNOWN)
    story.unspooled("m", home=False)
    story.settled(Operation.COMPLETE, "m")


def refused_and_nobody_told(story: Story) -> None:
    """Its first attempt is recorded, its divert is not."""
    story.sent("m", Outcome.FAILED)
    story.settled(Operation.COMPLETE, "m")


def not_accepted_but_there(story: Story) -> None:
    """The application was told that nobody answered: it holds the message still."""
    story.sent("m", Outcome.FAILED)
    story.diverted("m", Outcome.UNKNOWN)
    story.settled(Operation.COMPLETE, "m")


SITUATIONS: list[tuple[Callable[[Story], None], str, dict[str, int]]] = [
    (direct, "delivered", {"accepted": 1, "delivered": 1}),
    (home_again, "delivered", {"accepted": 1, "delivered": 1, "restored": 1}),
    (still_there, "waiting", {"accepted": 1, "delivered": 0, "waiting": 1}),
    (dead_lettered, "dead-lettered", {"accepted": 1, "delivered": 0, "dead_lettered": 1}),
    (expired, "expired", {"accepted": 1, "delivered": 0, "expired": 1}),
    (removed_without_restoring, "lost", {"accepted": 1, "lost": 1, "waiting": 0}),
    (restored_twice, "duplicated", {"accepted": 1, "delivered": 1, "duplicates": 1}),
    (in_doubt_then_diverted, "duplicated", {"accepted": 1, "delivered": 1, "duplicates": 1, "in_doubt": 1}),
    (in_doubt_merged, "delivered", {"accepted": 1, "delivered": 1, "duplicates": 0}),
    (two_backlog_queues, "duplicated", {"accepted": 1, "delivered": 1, "duplicates": 1}),
    (buried_in_two_backlog_queues, "dead-lettered", {"accepted": 1, "delivered": 0, "dead_lettered": 1}),
    (resubmitted_and_home, "delivered", {"accepted": 1, "delivered": 1, "dead_lettered": 0, "resubmitted": 1}),
    (resubmitted_unrecorded_and_home, "delivered", {"accepted": 1, "delivered": 1, "dead_lettered": 0}),
    (resubmitted_and_waiting, "waiting", {"accepted": 1, "waiting": 1, "dead_lettered": 0}),
    (resubmitted_and_buried_again, "expired", {"accepted": 1, "expired": 1, "dead_lettered": 0}),
    (expired_after_it_was_home, "delivered", {"accepted": 1, "delivered": 1, "expired": 0}),
    (spooled_and_waiting, "waiting", {"accepted": 1, "waiting": 1}),
    (spooled_then_backlog, "delivered", {"accepted": 1, "delivered": 1}),
    (spooled_then_home, "delivered", {"accepted": 1, "delivered": 1}),
    (spooled_then_stuck, "waiting", {"accepted": 1, "waiting": 1}),
    (never_accepted, "never accepted", {"accepted": 0, "delivered": 0, "duplicates": 0}),
    (removed_and_nobody_told, "lost", {"accepted": 1, "inferred": 1, "lost": 1}),
    (home_and_nobody_told, "delivered", {"accepted": 1, "inferred": 1, "delivered": 1}),
    (unspooled_and_nobody_told, "lost", {"accepted": 1, "inferred": 1, "lost": 1}),
    (resubmitted_and_nobody_told, "waiting", {"accepted": 1, "inferred": 1, "waiting": 1}),
    (could_not_go_home_and_nobody_told, "waiting", {"accepted": 1, "inferred": 1, "waiting": 1}),
    (forwarded_at_the_second_try, "lost", {"accepted": 1, "inferred": 1, "lost": 1, "refused": 0}),
    (refused_and_nobody_told, "lost", {"accepted": 1, "inferred": 1, "lost": 1}),
    (not_accepted_but_there, "never accepted", {"accepted": 0, "inferred": 0, "lost": 0}),
]


@pytest.fixture(scope="module")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """What the audit says of all situations, each with its name as the message's id."""
    folder = tmp_path_factory.mktemp("ledger")
    everything(folder)
    rows = audit(silver(read_lines(spark, sorted(folder.iterdir())))).collect()
    assert len(rows) == len(SITUATIONS)
    return {row["message_id"]: row for row in rows}


@pytest.mark.parametrize(("situation", "verdict", "counts"), SITUATIONS, ids=lambda v: getattr(v, "__name__", ""))
def test_verdicts(
    judged: dict[str, Row], situation: Callable[[Story], None], verdict: str, counts: dict[str, int]
) -> None:
    row = judged[situation.__name__]
    assert row["verdict"] == verdict
    assert {name: row[name] for name in counts} == counts
    assert (row["primary"], row["target"]) == ("contoso", "orders")
    fates = ("delivered", "dead_lettered", "expired", "waiting", "lost")
    assert row["accepted"] == sum(row[fate] for fate in fates)
    assert min(row[fate] for fate in fates) >= 0


def everything(folder: Path) -> None:
    """All situations at once, each with an id of its own, spread over two processes' ledgers."""
    with LedgerWriter(folder) as one, LedgerWriter(folder) as two:
        for number, (situation, _, _) in enumerate(SITUATIONS):
            writer = _Renamed((one, two)[number % 2], situation.__name__)
            situation(Story(writer))  # type: ignore[arg-type]
        one.record(CompletedOperation(Operation.PING, "contoso", "orders", route=Route.PRIMARY))
        one.record(CompletedOperation(Operation.SEND, "contoso", "orders", route=Route.PRIMARY))


class _Renamed:
    def __init__(self, writer: LedgerWriter, name: str) -> None:
        self._writer, self._name = writer, name

    def record(self, completed: CompletedOperation) -> None:
        self._writer.record(msgspec.structs.replace(completed, message_ids=[self._name]))


def test_a_summary_adds_up(spark: SparkSession, tmp_path: Path) -> None:
    everything(tmp_path)
    summary = summarise(spark, tmp_path)
    assert summary == Summary(
        accepted=27,
        delivered=12,
        dead_lettered=2,
        expired=2,
        waiting=6,
        lost=5,
        duplicates=3,
        diverted=19,
        spooled=4,
        restored=12,
        pings=1,
        billed_operations=46,
        unidentified=1,
        unrecorded=0,
        broken_lines=0,
        died=0,
        inferred=7,
    )
    assert summary.sentence == "accepted 27: delivered 12, dead-lettered 2, expired 2, waiting 6, lost 5, duplicates 3"


def test_what_is_not_in_the_queues_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        for message_id in ("there", "deleted"):
            _tell(still_there, writer, message_id)
        _tell(home_again, writer, "home")
    look = looked(spark, "there")
    summary = summarise(spark, tmp_path, look=look)
    assert (summary.accepted, summary.delivered, summary.waiting, summary.lost) == (3, 1, 1, 1)
    assert verdicts(spark, tmp_path, look) == {"there": "waiting", "deleted": "lost", "home": "delivered"}


def looked(spark: SparkSession, *ids: str, at: datetime | None = None, salted: bool = False) -> Look:
    """A look into contoso's backlog that found these."""
    rows = [("contoso", "orders", one, "backlog") for one in ids]
    seen = spark.createDataFrame(rows, ", ".join(f"{name} string" for name in (*KEY, "place")))
    return Look(seen, frozenset({"contoso"}), at or datetime.now(UTC), salted=salted)


def verdicts(spark: SparkSession, folder: Path, look: Look) -> dict[str, str]:
    rows = audit(silver(read_lines(spark, sorted(folder.iterdir()))), look=look).collect()
    return {row["message_id"]: row["verdict"] for row in rows}


def test_a_look_says_nothing_of_what_it_cannot_see(spark: SparkSession, tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        _tell(spooled_and_waiting, writer, "in the spool")
        _tell(spooled_then_stuck, writer, "spooled, then deleted from the queue")
        other = "tailspin/x-servicebus-transfer/0"
        writer.record(
            CompletedOperation(
                Operation.DIVERT, "fabrikam", other, destination="orders", message_ids=["other"], route=Route.BACKLOG
            )
        )
        _tell(still_there, writer, "carried since")
    look = replace(looked(spark), unread=frozenset({"carried since"}))
    assert verdicts(spark, tmp_path, look) == {
        "in the spool": "waiting",
        "spooled, then deleted from the queue": "lost",
        "other": "waiting",
        "carried since": "waiting",
    }
    summary = summarise(spark, tmp_path, look=look)
    assert (summary.waiting, summary.unchecked, summary.unsure, summary.lost) == (3, 3, 0, 1)
    before = replace(look, at=datetime.now(UTC) - timedelta(hours=1))
    assert set(verdicts(spark, tmp_path, before).values()) == {"waiting"}, "all was diverted after that look"


def test_who_has_not_told_yet_may_have_carried_it(spark: SparkSession, tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        _tell(still_there, writer, "gone")
    long_ago = {"v": 1, "n": 1, "process": "elsewhere-1-abc", "at_us": 1_700_000_000_000_000, "role": "syphon"}
    syphon = tmp_path / "elsewhere-1-abc.000001.jsonl"
    syphon.write_text(json.dumps(long_ago | {"operation": "ledger-open"}) + "\n")
    look = looked(spark)
    assert verdicts(spark, tmp_path, look) == {"gone": "unsure"}
    summary = summarise(spark, tmp_path, look=look)
    assert (summary.waiting, summary.unsure, summary.lost) == (1, 1, 0)
    with syphon.open("a") as file:
        file.write(json.dumps(long_ago | {"n": 2, "operation": "ledger-close"}) + "\n")
    assert verdicts(spark, tmp_path, look) == {"gone": "lost"}


def test_hashed_ids_are_compared_only_with_their_salt(spark: SparkSession, tmp_path: Path) -> None:
    salt = b"0123456789abcdef"
    with LedgerWriter(tmp_path, id_salt=salt) as writer:
        for message_id in ("there", "deleted"):
            _tell(still_there, writer, message_id)
    there, deleted = hashed_id("there", salt), hashed_id("deleted", salt)
    assert verdicts(spark, tmp_path, looked(spark, "there")) == {there: "waiting", deleted: "waiting"}
    wrong = looked(spark, "there", hashed_id("there", b"another salt"), salted=True)
    assert verdicts(spark, tmp_path, wrong) == {there: "waiting", deleted: "waiting"}
    right = looked(spark, "there", there, salted=True)
    assert verdicts(spark, tmp_path, right) == {there: "waiting", deleted: "lost"}


def test_what_tables_have_not_read_is_known_by_its_ids(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        _tell(home_again, writer, "read")
    read = [path.name for path in tmp_path.iterdir()]
    with LedgerWriter(tmp_path) as published:
        _tell(direct, published, "direct")
        _tell(spooled_then_home, published, "published since")
    with LedgerWriter(tmp_path) as writing:
        writing.record(
            CompletedOperation(Operation.RESTORE, "contoso", "orders", source=QUEUE, message_ids=["being written"])
        )
        assert writing.flush()
        (tmp_path / "torn-1-abc.000001.jsonl.open").write_text('{"v":1,"message_id":"to')
        with LedgerWriter(tmp_path, role=Role.NAMESPACE) as secondary:
            secondary.record(CompletedOperation(Operation.PEEK, "fabrikam", QUEUE, message_ids=["looked at"]))
        assert unread_ids(tmp_path, read) == {"published since", "being written"}


def test_with_receipts_the_primary_taking_a_message_is_not_enough(spark: SparkSession, tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        _tell(direct, writer, "received")
        Story(writer).sent("taken only")
        _tell(home_again, writer, "home and received")
        for _ in range(2):
            Story(writer).sent("sent twice, merged by duplicate detection")
        Story(writer).received("sent twice, merged by duplicate detection")
    by_arrival, by_receipt = (summarise(spark, tmp_path, require_receipts=required) for required in (False, True))
    assert by_arrival.sentence == "accepted 5 = delivered 5, lost 0, duplicates 0"
    assert by_receipt.sentence == "accepted 5: delivered 4, waiting 1, lost 0, duplicates 0"


def test_each_subscription_of_a_topic_has_its_copy(spark: SparkSession, tmp_path: Path) -> None:
    """What receivers settle at subscriptions are receipts of the topic's message; a second one at the same is a copy
    too many.
    """
    with LedgerWriter(tmp_path) as writer:
        for message_id, receipts in {
            "once": ("europe", "large"),
            "twice": ("europe", "Europe", "large", "large"),
            "twice at one so far": ("europe", "europe", "large"),
            "not yet": (),
        }.items():
            writer.record(
                CompletedOperation(
                    Operation.SEND, "contoso", "Prices", message_ids=[message_id], outcome=Outcome.UNKNOWN
                )
            )
            writer.record(
                CompletedOperation(
                    Operation.DIVERT,
                    "fabrikam",
                    QUEUE,
                    destination="prices",
                    message_ids=[message_id],
                    route=Route.BACKLOG,
                )
            )
            writer.record(
                CompletedOperation(
                    Operation.RESTORE, "contoso", "prices", source=QUEUE, message_ids=[message_id], role=Role.SYPHON
                )
            )
            writer.record(
                CompletedOperation(
                    Operation.COMPLETE,
                    "fabrikam",
                    QUEUE,
                    destination="prices",
                    message_ids=[message_id],
                    role=Role.SYPHON,
                )
            )
            for name in receipts:
                Story(writer).received(message_id, f"prices/Subscriptions/{name}")
        writer.record(
            CompletedOperation(Operation.SEND, "contoso", "prices", message_ids=["directly sent"], route=Route.PRIMARY)
        )
        Story(writer).received("directly sent", "prices/subscriptions/europe")
        Story(writer).received("nobody told of", "prices/subscriptions/europe")
    lines = read_lines(spark, sorted(tmp_path.iterdir()))
    rows = {row["message_id"]: row for row in audit(silver(lines)).collect()}
    found = {name: (rows[name]["target"], rows[name]["received"], rows[name]["verdict"]) for name in rows}
    assert found == {
        "directly sent": ("prices", 1, "delivered"),
        "once": ("prices", 1, "delivered"),
        "twice": ("prices", 2, "duplicated"),
        "twice at one so far": ("prices", 2, "duplicated"),
        "not yet": ("prices", 0, "delivered"),
    }
    by_receipt = summarise(spark, tmp_path, require_receipts=True)
    assert by_receipt.sentence == "accepted 5: delivered 4, waiting 1, lost 0, duplicates 2"


def _tell(situation: Callable[[Story], None], writer: LedgerWriter, message_id: str) -> None:
    situation(Story(_Renamed(writer, message_id)))  # type: ignore[arg-type]


def test_an_open_ledger_and_a_torn_line_are_read(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "gone-1-abc.000001.jsonl.open").write_text('{"v":1,"n":1,"process":"gone-1-abc","at_us":17000')
    with LedgerWriter(tmp_path) as writer:
        direct(Story(writer))
        assert writer.flush()
        summary = summarise(spark, tmp_path)
    assert summary.broken_lines == 1
    assert (summary.accepted, summary.delivered) == (1, 1)


def test_lines_of_older_and_newer_writers_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """An older line lacks what was added later, a newer one has more; a version above ours is not guessed at."""
    lines = [
        {"v": 1, "n": 1, "process": "p", "at_us": 1_700_000_000_000_000, "role": "client", "operation": "send",
         "namespace": "contoso", "entity": "orders", "message_id": "old"},
        {"v": 1, "n": 2, "process": "p", "at_us": 1_700_000_000_000_001, "role": "client", "operation": "send",
         "namespace": "contoso", "entity": "orders", "message_id": "new", "colour": {"of": ["the", "sky"]}},
        {"v": 2, "n": 3, "process": "p", "at_us": 1_700_000_000_000_002, "role": "client", "operation": "send"},
        {"v": 1, "n": 4, "process": "p", "at_us": 1_700_000_000_000_003, "role": "client", "operation": "dance"},
        {"v": 1, "n": 5, "process": "p", "at_us": "noon", "role": "client", "operation": "send"},
        {"v": 1, "n": 6, "process": "p", "role": "client", "operation": "send"},
    ]  # fmt: skip
    path = tmp_path / "p.000001.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "\n[1, 2]\nnull\n\xff\n")
    read = read_lines(spark, [path])
    assert [row["message_id"] for row in silver(read).orderBy("n").collect()] == ["old", "new"]
    reasons = [row["reason"] for row in quarantine(read).collect()]
    assert sorted(reasons) == [
        "no time of this century",
        *["not a JSON object of the ledger's fields"] * 4,
        "unknown operation",
        "version newer than 1",
    ]


def test_an_empty_ledger_is_balanced(spark: SparkSession, tmp_path: Path) -> None:
    assert summarise(spark, tmp_path).sentence == "accepted 0 = delivered 0, lost 0, duplicates 0"


def test_a_missing_folder_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ledger folder .*nowhere does not exist"):
        summarise(spark, tmp_path / "nowhere")
