"""Certificates that nobody vouches for: told at once, with what to do."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from pairbus.cli.__main__ import run
from pairbus.pipeline.servicebus.options import Access, check_names, write_options
from pairbus.pipeline.servicebus.wire import Wire, WireError
from pairbus.testing import EmbeddedNamespace


@pytest.fixture
def standby(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EmbeddedNamespace:
    monkeypatch.delenv("PAIRBUS_CA_FILE", raising=False)
    return EmbeddedNamespace("contoso-standby", data=tmp_path / "standby")


def test_the_syphon_on_spark_asks_before_spark_starts(
    standby: EmbeddedNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with standby:
        monkeypatch.setenv("STANDBY", standby.connection_string)
        ends = ["--primary", "env:STANDBY", "--secondary", "env:STANDBY", "--primary-name", "contoso"]
        assert run(["syphon", *ends, "--engine", "spark", "--once", "--master", "no such master"]) == 2
    said = capsys.readouterr().err
    assert "Trust its certificate" in said
    assert "--secondary contoso-standby" in said
    assert said.count("\n") == 1


def test_a_look_into_the_backlog_asks_before_spark_starts(
    standby: EmbeddedNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("PAIRBUS_SECONDARY", raising=False)
    (tmp_path / "ledger").mkdir()
    look = ["ledger", "report", str(tmp_path / "ledger"), "--look-into", "contoso", "--secondary"]
    with standby:
        monkeypatch.setenv("STANDBY", standby.connection_string)
        assert run([*look, "env:STANDBY"]) == 2
        said = capsys.readouterr().err
        assert "Trust its certificate" in said
        assert said.count("\n") == 1
        monkeypatch.setenv("PAIRBUS_CA_FILE", standby.ca_file)
        assert run([*look, "env:STANDBY"]) == 2
        said = capsys.readouterr().err
        assert "has no backlog queues of this primary" in said
        assert said.count("\n") == 1


def test_the_connector_does_not_try_an_untrusted_certificate_again() -> None:
    wire = Wire(Access(None, None, "Endpoint=sb://contoso/;SharedAccessKeyName=n;SharedAccessKey=k"))
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed")
    try:
        with pytest.raises(WireError, match=r"contoso is not trusted.*connectionVerify"):
            wire._raise_if_final("orders", error, "amqp:connection:forced")
    finally:
        wire.close()


def test_a_certificate_that_is_no_file_is_named() -> None:
    with pytest.raises(WireError, match=r"connectionVerify is 'nowhere/ca\.pem', but there is no such file"):
        Wire(Access(None, "nowhere/ca.pem", "Endpoint=sb://contoso/;SharedAccessKeyName=n;SharedAccessKey=k"))


def test_an_option_that_nobody_knows_is_refused_before_there_is_a_reader() -> None:
    check_names({"retrytimeout": "5", "maxmessagespertrigger": "1", "checkpointlocation": "here"})
    with pytest.raises(ValueError, match="Unknown option 'colour' for reading from or writing to servicebus"):
        check_names({"colour": "red"})
    with pytest.raises(ValueError, match="Unknown option 'colour' for writing to servicebus"):
        write_options({"colour": "red"})
