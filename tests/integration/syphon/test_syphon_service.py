"""`pairbus syphon`, `pairbus backlog` and `pairbus deadletters`, as a user runs them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.management import AccessRights, AuthorizationRule
from tests.support.backlogs import backlog_form, encoded, ids, make_backlog, put, take_from

from pairbus import envelope
from pairbus.syphon import Namespace
from pairbus.syphon.backlog import no_backlog
from pairbus.syphon.control import ControlSocketError, ask
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until

_numbers = itertools.count()
KEY = "bGlzdGVuaW5nIGlzIGFsbCB0aGF0IGl0IGdpdmVzIQ=="


@dataclass(frozen=True)
class Shop:
    """One test's own primary name, backlog queue and destination."""

    pair: EmbeddedPair
    name: str
    backlog: str
    orders: str
    environment: dict[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pairbus.cli", *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pairbus.cli", "syphon", "--primary-name", self.name, "--queues", "0", *words]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def put(self, *names: str) -> None:
        put(
            self.pair.secondary,
            self.backlog,
            (backlog_form(ServiceBusMessage(b"x", message_id=n), self.orders) for n in names),
        )

    def home(self, count: int) -> list[str | None]:
        return ids(take_from(self.pair.primary, self.orders, count, wait=30))


@pytest.fixture(scope="module")
def pair() -> Iterator[EmbeddedPair]:
    with embedded_pair() as running:
        yield running


@pytest.fixture
def shop(pair: EmbeddedPair) -> Shop:
    name = f"shop{next(_numbers)}"
    (backlog,) = make_backlog(pair.secondary, name)
    with pair.primary.admin() as admin:
        admin.create_queue(f"{name}-orders")
    environment = {
        **os.environ,
        "PAIRBUS_PRIMARY": pair.primary.connection_string,
        "PAIRBUS_SECONDARY": pair.secondary.connection_string,
        "PAIRBUS_CA_FILE": pair.secondary.ca_file,
    }
    return Shop(pair, name, backlog, f"{name}-orders", environment)


def test_once_carries_everything_and_exits_with_0(shop: Shop) -> None:
    shop.put(*(f"{n}" for n in range(250)))
    once = ("--once", "--queues", "0", "--json")
    done = shop.run("syphon", "--primary-name", shop.name, *once)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["restored"] == 250
    assert shop.home(250) == [f"{n}" for n in range(250)]


@pytest.mark.parametrize("refusing", ["primary", "secondary"])
def test_once_with_a_wrong_key_ends_with_one_sentence(shop: Shop, refusing: str) -> None:
    shop.put("a")
    variable = f"PAIRBUS_{refusing.upper()}"
    before, name, key = shop.environment[variable].partition("SharedAccessKey=")
    shop.environment["WRONG"] = before + name + ("B" if key[0] == "A" else "A") + key[1:]
    once = ("--once", "--queues", "0", "--log-level", "error")
    done = shop.run("syphon", "--primary-name", shop.name, f"--{refusing}", "env:WRONG", *once)
    assert done.returncode == 2
    assert f"The {refusing}, 127.0.0.1:" in done.stderr
    assert "refuses our credential" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


def test_a_namespace_that_is_served_here_gives_its_own_name_to_its_backlog(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pairbus.cli"]
    served = [*command, "serve", "contoso", "--data", str(tmp_path / "contoso"), "--port", "0"]
    with (
        embedded_pair() as pair,
        subprocess.Popen(served, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
    ):
        try:
            ready = tmp_path / "contoso" / "server.json"
            wait_until(ready.exists)
            (backlog,) = make_backlog(pair.secondary, "contoso")
            put(pair.secondary, backlog, [encoded(ServiceBusMessage(b"x", message_id="no path"))])
            environment["PAIRBUS_SECONDARY"] = pair.secondary.connection_string
            words = ["syphon", "--primary", "contoso", "--once", "--queues", "0", "--json"]
            done = subprocess.run(
                [*command, *words], env=environment, capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["dead_lettered"] == 1
        finally:
            server.terminate()


@pytest.mark.parametrize("by", ["name", "ready file"])
def test_a_namespace_that_was_killed_still_gives_its_name(tmp_path: Path, by: str) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pairbus.cli"]
    ready = tmp_path / "ready.json"
    served = [*command, "serve", "contoso", "--data", str(tmp_path / "contoso"), "--port", "0"]
    with (
        embedded_pair() as pair,
        subprocess.Popen(
            [*served, "--ready-file", str(ready)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as server,
    ):
        try:
            wait_until(lambda: ready.exists() and list((tmp_path / "pairbus").glob("contoso.*.json")))
        finally:
            server.kill()
        server.wait()
        (backlog,) = make_backlog(pair.secondary, "contoso")
        put(pair.secondary, backlog, [encoded(ServiceBusMessage(b"x", message_id="no path"))])
        environment["PAIRBUS_SECONDARY"] = pair.secondary.connection_string
        primary = "contoso" if by == "name" else str(ready)
        words = ["syphon", "--primary", primary, "--once", "--queues", "0", "--json"]
        done = subprocess.run(
            [*command, *words], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["dead_lettered"] == 1


def test_on_a_terminal_once_shows_how_far_it_is_and_how_long_it_will_take(shop: Shop) -> None:
    shop.put(*(f"{n}" for n in range(40)))
    terminal, its_end = pty.openpty()
    words = ["syphon", "--primary-name", shop.name, "--once", "--queues", "0", "--rate", "20"]
    with (
        os.fdopen(terminal, "rb", buffering=0) as screen,
        subprocess.Popen(
            [sys.executable, "-m", "pairbus.cli", *words],
            env={**shop.environment, "COLUMNS": "100", "TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=its_end,
        ) as service,
    ):
        os.close(its_end)
        shown = bytearray()
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
            while piece := screen.read(65536):
                shown += piece
        assert service.wait(timeout=60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode("utf-8", "replace"))
    assert "carrying home" in text
    assert "40/40" in text
    assert re.search(r"0:00:0[0-9]", text), "the time left"


def test_secrets_are_never_shown(shop: Shop) -> None:
    done = shop.run("syphon", "--primary-name", shop.name, "--once", "--queues", "0", "--log-level", "debug")
    assert done.returncode == 0
    key = shop.pair.primary.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    assert key not in done.stdout + done.stderr


def test_a_service_is_paused_resumed_asked_and_stopped(shop: Shop, tmp_path: Path) -> None:
    socket = tmp_path / "control"
    with shop.start("--control", str(socket), "--http", "127.0.0.1:0") as service:
        assert service.stderr is not None
        lines = [service.stderr.readline(), service.stderr.readline()]
        (url,) = [line.split()[-1] for line in lines if "http://" in line]
        wait_until(socket.exists)
        assert oct(socket.stat().st_mode & 0o777) == "0o600"

        def state() -> dict[str, Any]:
            answer: dict[str, Any] = json.loads(
                shop.run("syphon", "--control", str(socket), "--state", "--json").stdout
            )
            return answer

        shop.put("first")
        assert shop.home(1) == ["first"]
        assert shop.run("syphon", "--control", str(socket), "--pause").returncode == 0
        assert state()["state"] == "paused"
        shop.put("second")
        assert state()["restored"] == 1
        assert shop.run("syphon", "--control", str(socket), "--resume").returncode == 0
        assert shop.home(1) == ["second"]
        with urllib.request.urlopen(f"{url}health") as answer:
            assert json.load(answer)["healthy"] is True
        with urllib.request.urlopen(f"{url}metrics") as answer:
            text = answer.read().decode()
        rebound = urllib.request.Request(f"{url}metrics", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(rebound)
        assert f'pairbus_syphon_restored_total{{queue="{shop.backlog}"}} 2.0' in text
        service.send_signal(signal.SIGTERM)
        out, _ = service.communicate(timeout=30)
        assert service.returncode == 0
        assert "2 messages restored" in out
        assert not socket.exists()


def test_a_second_signal_leaves_at_once_and_nothing_is_lost(shop: Shop, tmp_path: Path) -> None:
    socket = tmp_path / "control"
    shop.pair.primary.fault("slow", entity=shop.orders, delay=1000)
    shop.put("slow")
    with shop.start("--log-level", "error", "--control", str(socket)) as service:

        def told(what: str) -> Any:
            try:
                return ask(socket, "state")[what]
            except ControlSocketError:
                return None

        wait_until(lambda: (told("queues") or [{"in_hand": 0}])[0]["in_hand"], what="the message to be on its way")
        service.send_signal(signal.SIGTERM)
        wait_until(lambda: told("state") == "stopping", what="the syphon to finish what it holds")
        service.send_signal(signal.SIGTERM)
        assert service.wait(timeout=120) == 128 + signal.SIGTERM
    shop.pair.primary.clear_faults(shop.orders)
    with shop.pair.secondary.admin() as admin:
        assert admin.get_queue_runtime_properties(shop.backlog).active_message_count == 1


def test_backlog_list_shows_what_waits_and_prune_removes_only_empty_extra_queues(shop: Shop) -> None:
    part = envelope.split(
        backlog_form(ServiceBusMessage(bytes(5000), message_id="p"), shop.orders), shop.orders, "i", 3000
    )
    shop.put("a", "b")
    put(shop.pair.secondary, shop.backlog, part[:1])
    with shop.pair.secondary.admin() as admin:
        for number in (11, 12):
            admin.create_queue(f"{shop.name}/x-servicebus-transfer/{number}")
    full = f"{shop.name}/x-servicebus-transfer/12"
    put(shop.pair.secondary, full, [backlog_form(ServiceBusMessage(b"x", message_id="c"), "elsewhere")])
    listed = json.loads(shop.run("backlog", "list", "--primary-name", shop.name, "--json").stdout)
    assert [(one["queue"], one["active"], one["extra"], one["parts"]) for one in listed] == [
        (shop.backlog, 3, False, 1),
        (f"{shop.name}/x-servicebus-transfer/11", 0, True, 0),
        (full, 1, True, 0),
    ]
    assert listed[0]["destinations"] == {shop.orders: 3}
    assert listed[0]["oldest_enqueued_ms"] > 0
    seen = json.loads(shop.run("backlog", "peek", "--primary-name", shop.name, "--json").stdout)
    assert [(one["message_id"], one["destination"], one["part"]) for one in seen] == [
        ("a", shop.orders, None),
        ("b", shop.orders, None),
        ("i/1", shop.orders, "1/2"),
    ]
    table = shop.run("backlog", "list", "--primary-name", shop.name)
    assert full in table.stdout
    rehearsal = shop.run("backlog", "prune", "--primary-name", shop.name, "--dry-run")
    assert rehearsal.stdout == f"{shop.name}/x-servicebus-transfer/11 would be deleted\n"
    assert shop.run("backlog", "prune", "--primary-name", shop.name).returncode == 0
    left = json.loads(shop.run("backlog", "list", "--primary-name", shop.name, "--json").stdout)
    assert [one["queue"] for one in left] == [shop.backlog, full]


def test_dead_letters_are_listed_and_resubmitted_when_the_cause_is_mended(shop: Shop, tmp_path: Path) -> None:
    missing = f"{shop.name}-missing"
    put(
        shop.pair.secondary,
        shop.backlog,
        [
            encoded(ServiceBusMessage(b"x", message_id="no path")),
            backlog_form(ServiceBusMessage(b"lost", message_id="nowhere", session_id="s"), missing),
        ],
    )
    once = ("syphon", "--primary-name", shop.name, "--once", "--queues", "0", "--json")
    assert json.loads(shop.run(*once).stdout)["dead_lettered"] == 2
    listed = json.loads(shop.run("deadletters", "list", "--primary-name", shop.name, "--json").stdout)
    assert {one["message_id"]: one["reason"] for one in listed} == {
        "no path": "DestinationMissing",
        "nowhere": "DestinationNotFound",
    }
    assert missing in next(one["description"] for one in listed if one["message_id"] == "nowhere")
    words = ("deadletters", "resubmit", "--primary-name", shop.name, "--reason", "DestinationNotFound", "--json")
    assert [one["message_id"] for one in json.loads(shop.run(*words, "--dry-run").stdout)] == ["nowhere"]
    with shop.pair.primary.admin() as admin:
        admin.create_queue(missing, requires_session=True)
    recorded = (*words, "--ledger", str(tmp_path))
    assert [one["message_id"] for one in json.loads(shop.run(*recorded).stdout)] == ["nowhere"]
    lines = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    (resubmitted,) = [line for line in lines if line["operation"] == "resubmit"]
    assert (resubmitted["entity"], resubmitted["destination"]) == (shop.backlog, missing)
    assert (resubmitted["message_id"], resubmitted.get("outcome", "ok")) == ("nowhere", "ok")
    assert [line.get("message_id") for line in lines if line["operation"] == "receive"].count("nowhere") == 1
    again = shop.run("deadletters", "resubmit", "--primary-name", shop.name, "--message-id", "nope")
    assert again.returncode == 1
    assert "No dead letter has the id 'nope'." in again.stderr
    rehearsed = shop.run("deadletters", "resubmit", "--primary-name", shop.name, "--dry-run")
    assert rehearsed.returncode == 0
    assert "1 dead letter would be resubmitted." in rehearsed.stderr
    assert json.loads(shop.run(*once).stdout)["restored"] == 1
    (found,) = take_from(shop.pair.primary, missing, 1, session_id="s")
    assert found.message_id == "nowhere"
    assert not found.application_properties
    rest = take_from(shop.pair.secondary, shop.backlog, 2, wait=1, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert ids(rest) == ["no path"]


@pytest.mark.parametrize(
    "words",
    ["syphon --once --queues 0-2", "backlog list", "backlog peek", "backlog prune", "deadletters list"],
)
def test_a_name_that_has_no_backlog_is_not_taken_for_an_empty_one(shop: Shop, words: str) -> None:
    done = shop.run(*words.split(), "--primary-name", "shpo")
    assert done.returncode == 2
    assert not done.stdout
    said = done.stderr.splitlines()[-1]
    assert "No backlog queue of 'shpo' exists in the secondary; there are some of 'shop0'" in said


def test_without_the_right_to_manage_a_missing_backlog_is_told_without_a_hint(shop: Shop) -> None:
    rule = AuthorizationRule(rights=[AccessRights.LISTEN], key_name="listener", primary_key=KEY, secondary_key=KEY)
    with shop.pair.secondary.admin() as admin:
        admin.create_queue(f"{shop.name}-theirs", authorization_rules=[rule])
    before, _, after = shop.environment["PAIRBUS_SECONDARY"].partition("SharedAccessKeyName=")
    rest = after.partition(";")[2].partition(";")[2]
    listener = f"{before}SharedAccessKeyName=listener;SharedAccessKey={KEY};{rest}"

    async def said() -> str:
        namespace = Namespace.parse(listener, connection_verify=shop.pair.secondary.ca_file)
        return str(await no_backlog(namespace, "shpo", [0]))

    assert asyncio.run(said()) == "No backlog queue of 'shpo' exists in the secondary."


def test_a_backlog_queue_that_is_not_there_is_told_with_those_that_are(shop: Shop) -> None:
    sentence = "Backlog queue 7 does not exist; there is 0."
    for words in ("backlog peek --queue 7", "syphon --once --queues 7"):
        done = shop.run(*words.split(), "--primary-name", shop.name)
        assert done.returncode == 2
        assert sentence in done.stderr.splitlines()[-1]
    with shop.pair.secondary.admin() as admin:
        admin.create_queue(f"{shop.name}/x-servicebus-transfer/1")
    done = shop.run("backlog", "peek", "--queue", "7", "--primary-name", shop.name)
    assert "Backlog queue 7 does not exist; there are 0 and 1." in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("syphon --primary nowhere", "--primary 'nowhere' is not a namespace: use env:VARIABLE"),
        ("syphon --primary env:NO_SUCH", "--primary names the environment variable 'NO_SUCH', which is not set"),
        ("syphon --primary-name x --queues 9-0", "--queues '9-0' is out of range"),
        ("syphon --primary-name x --queues a", "--queues 'a' is not a list of numbers"),
        ("syphon --primary-name x --rate 0", "--rate '0' is not a rate: use messages per second, more than 0"),
        ("syphon --primary-name a/b", "--primary-name 'a/b' is not a namespace's name"),
        ("syphon --once", "does not contain the primary's name: add --primary-name"),
        ("syphon --pause", "--pause, --resume and --state need --control"),
        ("syphon --control /nowhere/at/all --state", "No syphon answers on /nowhere/at/all"),
        ("syphon --primary-name x --http 0.0.0.0:1", "'0.0.0.0' is not a loopback address"),
    ],
)
def test_what_cannot_run_is_told_in_a_sentence(shop: Shop, words: str, sentence: str) -> None:
    done = shop.run(*words.split())
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
