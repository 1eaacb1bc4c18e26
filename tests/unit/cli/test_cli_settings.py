"""pairbus.toml: what it may say, what goes before it, and what it may not hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pairbus.cli import output
from pairbus.cli.__main__ import run


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "pairbus.toml"


ESTIMATE = ("cost", "estimate", "--outage-hours", "1")


def test_what_is_typed_goes_before_the_environment_and_that_before_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def estimated(*words: str) -> str:
        assert run([*words, "--explain"]) == 0
        return capsys.readouterr().out

    config.write_text("[cost.estimate]\nclients = 7\n")
    built_in = estimated(*ESTIMATE)
    by_file = estimated("--config", "pairbus.toml", *ESTIMATE)
    assert by_file == estimated(*ESTIMATE, "--config", "pairbus.toml") == estimated(*ESTIMATE, "--clients", "7")
    assert by_file != built_in
    monkeypatch.setenv("PAIRBUS_COST_ESTIMATE_CLIENTS", "5")
    by_environment = estimated("--config", "pairbus.toml", *ESTIMATE)
    typed = estimated("--config", "pairbus.toml", *ESTIMATE, "--clients", "3")
    monkeypatch.delenv("PAIRBUS_COST_ESTIMATE_CLIENTS")
    assert by_environment == estimated(*ESTIMATE, "--clients", "5")
    assert typed == estimated(*ESTIMATE, "--clients", "3")
    monkeypatch.setenv("PAIRBUS_CONFIG", "pairbus.toml")
    assert estimated(*ESTIMATE) == by_file


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("syphn = 1", "'syphn' is unknown: did you mean 'syphon'?"),
        ("primry = 'x'", "'primry' is unknown: did you mean 'primary'?"),
        ("[syphon]\nrat = 1", "syphon: 'rat' is unknown: did you mean 'rate'?"),
        ("[ledger.reprt]\n", "ledger: 'reprt' is unknown: did you mean 'report'?"),
        ("[ledger]\nplan = 'x'", "ledger: 'plan' is unknown: known are build, report."),
        ("[syphon]\nrate = 'fast'", "syphon: rate is 'fast': expected a number."),
        ("[syphon]\nonce = 1", "syphon: once is 1: expected true or false."),
        ("[serve]\nport = 5672.5", "serve: port is 5672.5: expected a whole number."),
        ("[serve]\nport = true", "serve: port is true: expected a whole number."),
        ("[deadletters.resubmit]\nreason = 'x'", "deadletters: resubmit: reason is 'x': expected a list of texts"),
        ("syphon = 3", "syphon is 3: expected a table, [syphon]."),
        ("[ledger]\nreport = 3", "ledger: report is 3: expected a table, [ledger.report]."),
        ('[syphon]\n"ra\\nte" = 3', "syphon: 'ra\\nte' is unknown: did you mean 'rate'?"),
        ("[syphon]\nprimary = 'env:X'", "'syphon.primary' is not an option of one command: write it at the top"),
        ("[syphon]\nconfig = 'x'", "'syphon.config' is not an option of one command: use it on the command line only."),
        ("primary = 3", "primary is 3: expected a text in quotes."),
        ("[serve", " is not TOML: "),
        ("x = '\xff'", " is not TOML: "),
        (f"x = {'1' * 5000}", "is not TOML: it has a whole number of more than 64 bits."),
        (f"[serve]\nport = 0x{'f' * 5000}", "is not TOML: it has a whole number of more than 64 bits."),
        (f"x = {'[' * 5000}", "is not TOML: it is nested too deeply."),
        (f"{'a.' * 500}a = 1", "is not TOML: it is nested too deeply."),
    ],
)
def test_a_file_is_right_or_refused_whichever_command_runs(
    config: Path, text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_bytes(text.encode("latin-1"))
    assert run(["--config", "pairbus.toml", *ESTIMATE]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("pairbus: pairbus.toml")
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_a_file_that_is_not_there_is_said(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", "pairbus.toml", *ESTIMATE]) == 2
    assert "Cannot read --config 'pairbus.toml': No such file or directory." in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        'primary = "Endpoint=sb://h/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"',
        'primary = "endpoint=sb://h/;sharedaccesskeyname=k;sharedaccesskey=c2VjcmV0"',
        'secondary = "Endpoint=sb://h/;SharedAccessSignature=SharedAccessSignature sr=h&sig=c2VjcmV0"',
        r'primary = "Endpoint\u003dsb://h/;SharedAccess\u004bey\u003dc2VjcmV0"',
        '# primary = "Endpoint=sb://h/;SharedAccessKey=c2VjcmV0"',
    ],
)
def test_a_connection_string_in_the_file_is_refused_and_not_shown(
    text: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(f"{text}\n")
    assert run(["--config", "pairbus.toml", *ESTIMATE]) == 2
    said = capsys.readouterr().err
    assert "contains a connection string: write where it is instead" in said
    assert "c2VjcmV0" not in said


def test_namespaces_of_the_file_are_named_in_what_goes_wrong(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PAIRBUS_SECONDARY", raising=False)
    words = ["--config", "pairbus.toml", "backlog", "list"]
    config.write_text('secondary = "env:NOT_SET_ANYWHERE"\nprimary-name = "contoso"\n')
    assert run(words) == 2
    assert "'NOT_SET_ANYWHERE', which is not set" in capsys.readouterr().err
    monkeypatch.setenv("PAIRBUS_SECONDARY", "nonsense")
    assert run(words) == 2
    assert "The connection string of 8 characters cannot be read" in capsys.readouterr().err
    (config.parent / "standby.txt").write_text("short")
    config.write_text('secondary = "standby.txt"\nprimary-name = "contoso"\n')
    monkeypatch.delenv("PAIRBUS_SECONDARY")
    monkeypatch.chdir("/")
    assert run(["--config", str(config), *words[2:]]) == 2
    assert "The connection string of 5 characters cannot be read" in capsys.readouterr().err


def test_without_any_name_the_three_ways_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PAIRBUS_SECONDARY", raising=False)
    assert run(["backlog", "list", "--primary-name", "contoso"]) == 2
    assert "--secondary is missing, and neither PAIRBUS_SECONDARY nor a --config names the namespace" in (
        capsys.readouterr().err
    )


def test_the_file_of_the_reference_is_a_good_one(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    config.write_text(text)
    assert run(["--config", "pairbus.toml", *ESTIMATE]) == 0, capsys.readouterr().err


def test_the_file_may_ask_for_silence_and_the_environment_may_break_it(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("quiet = true\n")
    words = ["--config", "pairbus.toml", *ESTIMATE]
    assert run(words) == 0 and output.is_quiet()
    monkeypatch.setenv("PAIRBUS_QUIET", "0")
    assert run(words) == 0 and not output.is_quiet()
    assert run([*words, "--quiet"]) == 0 and output.is_quiet()
    assert run(list(ESTIMATE)) == 0 and not output.is_quiet()
