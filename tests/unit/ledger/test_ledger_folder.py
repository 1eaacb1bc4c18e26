"""A ledger folder that cannot be made: one sentence that names it and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.cli.__main__ import run
from pairbus.ledger import LedgerWriter

KEY = "SharedAccessKeyName=a;SharedAccessKey=b"


@pytest.mark.parametrize("below", ["", "ledger"])
def test_a_file_in_the_way_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / below
    with pytest.raises(
        OSError, match=r"Cannot use the ledger folder .*Give a folder that this process may write to"
    ) as raised:
        LedgerWriter(folder)
    assert str(raised.value).startswith(f"Cannot use the ledger folder {str(folder)!r}")


def test_the_syphon_refuses_such_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAIRBUS_PRIMARY", f"Endpoint=sb://contoso.servicebus.windows.net;{KEY}")
    monkeypatch.setenv("PAIRBUS_SECONDARY", f"Endpoint=sb://standby.servicebus.windows.net;{KEY}")
    (tmp_path / "file").touch()
    assert run(["syphon", "--once", "--ledger", str(tmp_path / "file" / "ledger")]) == 2
    assert f"Cannot use the ledger folder '{tmp_path / 'file' / 'ledger'}'" in capsys.readouterr().err
