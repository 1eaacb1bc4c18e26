"""The syphon killed with -9 at every step: nothing is lost, and only what was in doubt comes twice.

In each round new messages wait, a syphon in a child process dies at a step drawn from a seed (printed), and the locks
it held run out, because the test owns the backlog's time. At the end another syphon carries the rest home. The records
of all of them together know every message that left the backlog.
`PAIRBUS_KILL_SEED` repeats a seed, `PAIRBUS_KILL_ROUNDS` sets the number of kills.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from tests.support.backlogs import backlog_form, ids, make_backlog, put, take_from
from tests.support.dying import STEPS, Death, Diary, run_until_death

from pairbus import envelope
from pairbus.syphon import Syphon
from pairbus.testing import EmbeddedNamespace, ManualClock

ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "27"))
SEED = int(os.environ.get("PAIRBUS_KILL_SEED", random.SystemRandom().randrange(2**32)))
LOCK_SECONDS = 60


@pytest.mark.timeout(max(900, ROUNDS * 20))
def test_killed_at_every_step_it_loses_nothing(tmp_path: Path) -> None:
    print(f"PAIRBUS_KILL_SEED={SEED}")
    draw = random.Random(SEED)
    clock = ManualClock(time.time_ns() // 1_000_000)  # the SDK compares the ends of locks with its own clock
    wanted = max(len(STEPS), ROUNDS)
    with EmbeddedNamespace("contoso") as primary, EmbeddedNamespace("standby", clock=clock) as secondary:
        with primary.admin() as admin:
            admin.create_queue("plain")
            admin.create_queue("careful", requires_duplicate_detection=True)
        (backlog,) = make_backlog(secondary, "contoso")
        options = {
            "primary": primary.connection_string,
            "secondary": secondary.connection_string,
            "primary_name": "contoso",
            "queues": [0],
            "ledger": tmp_path / "ledger",
        }
        accepted: dict[str, list[str]] = {"plain": [], "careful": []}
        in_doubt: Counter[str] = Counter()
        kills = 0
        for number in range(2 * wanted):
            if kills == wanted:
                break
            raws = []
            for index in range(24):
                destination = ("plain", "careful")[index % 2]
                name = f"{number}-{index}"
                accepted[destination].append(name)
                form = backlog_form(ServiceBusMessage(bytes(index * 50), message_id=name), destination)
                split = envelope.split(form, destination, f"part-of-{name}", 700) if index in (20, 21) else [form]
                raws += split
            put(secondary, backlog, raws)
            step = STEPS[kills % len(STEPS)]
            diary = tmp_path / f"diary-{number}"
            kills += run_until_death(options, Death(step, draw.randint(1, 2)), diary)
            in_doubt.update(name for what, name in Diary.read(diary) if what == "sending")
            clock.advance(LOCK_SECONDS + 1)
        report = Syphon(**options).run_blocking(once=True)  # type: ignore[arg-type]
        assert report.dead_lettered == 0, "no part is left behind by a message that went home"
        with secondary.admin() as admin:
            assert admin.get_queue_runtime_properties(backlog).total_message_count == 0
        assert kills == wanted, "the steps are reached"
        home = {
            name: Counter(ids(take_from(primary, name, 10 * len(names), wait=3))) for name, names in accepted.items()
        }
    assert set(home["plain"]) == set(accepted["plain"]), "nothing is lost, nothing invented"
    twice = {name: count for name, count in home["plain"].items() if count > 1}
    assert all(count <= in_doubt[str(name)] + 1 for name, count in twice.items()), "only what was sent comes twice"
    assert home["careful"] == Counter(accepted["careful"]), "duplicate detection removes the second"
    assert _restored(tmp_path / "ledger") == {*accepted["plain"], *accepted["careful"]}, "what is gone is recorded"


def _restored(ledger: Path) -> set[str]:
    """The ids of all messages that the records say the primary took; a record torn by a kill is none."""
    lines = [line for file in ledger.iterdir() for line in file.read_bytes().splitlines(keepends=True)]
    records = [json.loads(line) for line in lines if line.endswith(b"\n")]
    taken = [one for one in records if one["operation"] == "restore" and one.get("outcome", "ok") == "ok"]
    return {one["message_id"] for one in taken}
