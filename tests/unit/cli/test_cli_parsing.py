"""What people type, how logs look, and how a server describes itself on disk."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from pairbus.cli.__main__ import run
from pairbus.cli.fault import Mode
from pairbus.cli.options import parse_duration_ms, parse_queues
from pairbus.cli.output import KeyValueFormatter, Refusal
from pairbus.embedded.faults import MODES, FaultControlError, RemoteSwitchboard
from pairbus.embedded.running import RunningServer, known_servers, run_file, running_servers

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("200ms", 200), ("30s", 30_000), ("1.5m", 90_000), ("1H", 3_600_000), (" 2s ", 2000)],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration_ms("--for", text) == milliseconds


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "1d", "1s2s", "١s"])
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(Refusal, match=r"--for '.*' is not a duration: use a number and a unit"):
        parse_duration_ms("--for", text)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("sevre", "'sevre' is not a command of 'pairbus': did you mean 'serve'? See 'pairbus --help'.\n"),
        ("xyzzy", "'xyzzy' is not a command of 'pairbus': known are backlog, c"),
        (
            "backlog lst",
            "'lst' is not a command of 'pairbus backlog': did you mean 'list'? See 'pairbus backlog --help'.",
        ),
        ("backlog zzz", "'zzz' is not a command of 'pairbus backlog': known are list, peek, prune. See 'pairbus b"),
        ("--quiet", "'pairbus' needs a command: demo, serve"),
        ("serve", "'pairbus serve' needs --data: the folder for entities, messages and the key. See 'pairbus serve"),
        ("serve a --data", "--data needs a value: write --data VALUE. See 'pairbus serve --help'."),
        ("serve a --prot 1", "--prot is not an option of 'pairbus serve': did you mean '--port'? See 'pairbus serve"),
        ("fault", "'pairbus fault' needs SERVER: the name of a running namespace, its ready file"),
        ("fault a b", "'pairbus fault' takes no argument 'b': leave it out, or put a value with spaces in quotes."),
        ("completion tcsh", "SHELL 'tcsh' is unknown: use one of bash, fish, zsh. See 'pairbus completion --help'."),
        ("serve a --data d --port 70000", "--port 70000 is not a port: use a number from 0"),
        (
            "serve a --data d --port x",
            "--port 'x' is not a whole number: write digits only. See 'pairbus serve",
        ),
        ("serve a --data d --log-level loud", "--log-level 'loud' is unknown: use one of debug, info"),
        ("serve a --data d --ready-file no/such/f", "Cannot write --ready-file 'no/such/f': create the folder"),
        ("fault a --mode drip", "--mode 'drip' is unknown: did you mean 'drop'? See 'pairbus fault --help'."),
        ("fault a --mode hang --for 0s", "--for '0s' is too short: use at least 1ms."),
        ("fault a --mode hang --for 9999h", "--for '9999h' is longer than 7 days: use less, such as 1h."),
        ("fault a --mode slow", "--mode slow needs --delay"),
        ("fault a --mode error", "--mode error needs --condition"),
        ("fault a --mode hang --rate 3", "--rate works only with --mode throttle"),
        ("fault a --mode hang --for ever", "--for 'ever' is not a duration"),
        ("fault a --for 3s", "--for needs a fault: add --mode."),
        ("fault a --clear --mode hang", "--clear and --mode exclude each other"),
        ("backlog peek --primary-name a --count 0", "--count 0 is out of range: use a whole number of 1 or more."),
        ("syphon --rate fast", "--rate 'fast' is not a number: write digits only."),
        ("fault nobody", "No server is called 'nobody'"),
        ("fault SharedAccessKey=x", "The connection string lacks Endpoint and SharedAccessKeyName"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"pairbus: {sentence}")
    assert said.err.count("\n") == 1


def test_the_command_knows_every_fault_of_the_server() -> None:
    assert get_args(Mode) == MODES


@pytest.mark.parametrize("words", ["", "backlog", "deadletters", "ledger", "cost"])
def test_a_group_without_a_command_shows_its_help(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"Usage: pairbus {words}".strip())
    assert "Examples:" in said.err


def test_the_reference_page_is_what_the_commands_say() -> None:
    script = ROOT / "scripts" / "generate_cli_reference.py"
    checked = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_help_loads_no_server_no_sdk_and_no_spark() -> None:
    heavy = {"azure", "aiohttp", "proton", "pyspark", "cryptography", "asyncio", "msgspec", "rich"}
    code = (
        "import sys\nfrom pairbus.cli.__main__ import run\nrun(['--help'])\n"
        f"print(*sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stderr.split() == []


def test_a_log_line_is_keys_and_values() -> None:
    record = logging.makeLogRecord(
        {"name": "pairbus.x", "levelname": "WARNING", "created": 0.25, "msg": 'a "slow" store', "took_ms": 412}
    )
    assert KeyValueFormatter().format(record) == (
        'time=1970-01-01T00:00:00.250Z level=warning logger=pairbus.x event="a \\"slow\\" store" took_ms=412'
    )


def test_a_log_line_stays_one_line() -> None:
    record = logging.makeLogRecord({"msg": "two\nlines", "cause": "more\nlines"})
    assert "\n" not in KeyValueFormatter().format(record)


def server(pid: int, name: str = "contoso") -> RunningServer:
    secret = "Endpoint=sb://127.0.0.1:5;SharedAccessKeyName=k;SharedAccessKey=secret"
    return RunningServer(name, 5, secret, "ca.pem", pid)


def test_a_description_is_private_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    RunningServer.write_all([server(1)], path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(json.loads(path.read_text())) == {"name", "port", "connection_string", "ca_file", "pid"}
    assert RunningServer.read(path) == server(1)
    assert list(tmp_path.iterdir()) == [path]


def test_a_description_replaces_one_that_others_could_read(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("old")
    path.chmod(0o644)
    RunningServer.write_all([server(1)], path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_description_does_not_show_its_key() -> None:
    assert "secret" not in repr(server(1))
    assert "secret" not in repr(RemoteSwitchboard(server(1).connection_string))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": 1}', "\x00"])
def test_what_is_no_description_is_said(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ready.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="does not describe a pairbus server"):
        RunningServer.read(path)


def test_the_list_of_servers_forgets_dead_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    alive, dead = server(os.getpid()), server(gone.pid)
    for each in (alive, dead):
        run_file(each).parent.mkdir(exist_ok=True)
        RunningServer.write_all([each], run_file(each))
    assert list(running_servers()) == [alive]
    assert not run_file(dead).exists()


def test_the_last_one_of_a_name_that_was_killed_is_known_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    killed = []
    for moment in (1, 2):
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        killed.append(server(gone.pid))
        run_file(killed[-1]).parent.mkdir(exist_ok=True)
        RunningServer.write_all(killed[-1:], run_file(killed[-1]))
        os.utime(run_file(killed[-1]), (moment, moment))
    assert not list(running_servers())
    assert known_servers() == killed[1:]
    assert not run_file(killed[0]).exists()
    RunningServer.write_all([server(os.getpid())], run_file(server(os.getpid())))
    assert known_servers() == [server(os.getpid())]
    assert not run_file(killed[1]).exists()


def test_two_servers_of_one_name_must_be_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for pid in (os.getpid(), os.getppid()):
        run_file(server(pid)).parent.mkdir(exist_ok=True)
        RunningServer.write_all([server(pid)], run_file(server(pid)))
    assert run(["fault", "contoso"]) == 2
    assert "Several servers are called 'contoso' (ports 5, 5)" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_said_without_its_key() -> None:
    with pytest.raises(FaultControlError, match=r"No pairbus server answers on 127\.0\.0\.1:5 .*pairbus serve") as said:
        RemoteSwitchboard(server(1).connection_string).list()
    assert "secret" not in str(said.value)


@pytest.mark.parametrize(
    ("missing", "words", "sentence"),
    [
        ("typer", "--help", "The command line needs packages that are not installed: pip install 'pairbus[cli]'."),
        *(
            (
                package,
                "backlog list --primary-name a --secondary b",
                f"This needs the package '{package}', which is not installed: pip install 'pairbus[all]",
            )
            for package in ("rich", "azure")
        ),
        (
            "rich",
            "deadletters resubmit --primary-name a --secondary b",
            "This needs the package 'rich', which is not installed: pip install 'pairbus[all]",
        ),
    ],
)
def test_a_package_that_is_missing_is_one_sentence(tmp_path: Path, missing: str, words: str, sentence: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from pairbus.cli.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"pairbus: {sentence}")


SECRET = "c2VjcmV0"


@pytest.mark.parametrize(
    "spelt",
    [
        f"sharedaccesskeyname=a;sharedaccesskey={SECRET}",
        f"endpoint=sb://x.example.org/;SharedAccesKeyName=a;SharedAccesKey={SECRET}",
        f"SharedAccessSignature={SECRET}",
        f"sharedaccesskey={SECRET};{'x' * 5000}",
        f"keyname=a;key={SECRET}",
    ],
)
@pytest.mark.parametrize("words", [("fault",), ("backlog", "list", "--primary-name", "x", "--secondary")])
def test_a_connection_string_is_never_shown_however_it_is_spelt(
    words: tuple[str, ...], spelt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, spelt]) == 2
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert "connection string" in said.err


def test_a_server_with_an_endless_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fault", "x" * 5000]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("text", ["1" * 5000, "0-" + "9" * 5000, "10000", "5-3", "9-10000"])
def test_queues_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(Refusal, match=r"--queues '.{1,60}' is out of range: use numbers from 0 to 9999"):
        parse_queues(text)


def test_queues_are_numbers() -> None:
    assert parse_queues("0,2,5-7,9999") == [0, 2, 5, 6, 7, 9999]
