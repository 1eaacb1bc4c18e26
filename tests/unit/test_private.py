"""What belongs to others, or can be changed by others, is not used."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pairbus.embedded.running import RunningServer
from pairbus.ledger import LedgerWriter
from pairbus.pipeline.java import Java, JavaMissingError, home_for_spark
from pairbus.pipeline.store import TablesError, TableStore
from pairbus.private import (
    NotPrivateError,
    open_private,
    private_folder,
    read_private,
    refusal,
    replace_private,
)
from pairbus.spool import SpoolJournal


def status(mode: int, user: int) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, user, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "user", "reason"),
    [
        (stat.S_IFDIR | 0o700, 1000, None),
        (stat.S_IFDIR | 0o755, 1000, None),
        (stat.S_IFREG | 0o600, 1000, None),
        (stat.S_IFLNK | 0o777, 1000, None),  # a link always has this mode
        (stat.S_IFSOCK | 0o775, 1000, None),
        (stat.S_IFDIR | 0o700, 1001, "it belongs to user 1001, not to user 1000"),
        (stat.S_IFREG | 0o600, 0, "it belongs to user 0, not to user 1000"),
        (stat.S_IFLNK | 0o777, 1001, "it belongs to user 1001, not to user 1000"),
        (stat.S_IFDIR | 0o1777, 1000, "other users can write to it"),
        (stat.S_IFDIR | 0o720, 1000, "other users can write to it"),
        (stat.S_IFREG | 0o602, 1000, "other users can write to it"),
    ],
)
def test_whom_to_trust(mode: int, user: int, reason: str | None) -> None:
    said = refusal(status(mode, user), 1000)
    assert said is None if reason is None else said is not None and said.startswith(reason)


def test_a_new_folder_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private_folder(tmp_path / "a" / "b")
        private_folder(tmp_path / "a" / "b")
        os.close(open_private(tmp_path / "a" / "b" / "file", os.O_RDWR | os.O_CREAT))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "b" / "file").stat().st_mode) == 0o600


def test_a_link_of_this_user_to_a_private_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    private_folder(tmp_path / "data")
    (tmp_path / "disk").chmod(0o777)
    with pytest.raises(NotPrivateError, match="other users can write to it"):
        private_folder(tmp_path / "data")


def test_a_link_a_pipe_and_a_large_file_are_not_read(tmp_path: Path) -> None:
    replace_private(tmp_path / "file", b"12345")
    assert read_private(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_private(tmp_path / "file", 4)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(NotPrivateError, match="symbolic link"):
        read_private(tmp_path / "link", 5)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(NotPrivateError, match="not a file"):
        read_private(tmp_path / "pipe", 5)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"kept")
    (tmp_path / "file").symlink_to(tmp_path / "victim")
    replace_private(tmp_path / "file", b"new", mode=0o644, durable=True)
    assert (tmp_path / "victim").read_bytes() == b"kept"
    assert not (tmp_path / "file").is_symlink()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "victim"]


def build(folder: Path) -> None:
    with TableStore(folder).locked():
        pass


@pytest.mark.parametrize(
    "use",
    [lambda folder: SpoolJournal(folder, limit_bytes=1000).close(), lambda folder: LedgerWriter(folder).close(), build],
    ids=["spool", "ledger", "tables"],
)
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, use: Callable[[Path], None]) -> None:
    folder = tmp_path / "folder"
    use(folder)
    folder.chmod(0o777)
    with pytest.raises(Exception, match=r"other users can write to it .*Use a folder of your own, for example"):
        use(folder)


@pytest.mark.parametrize("name", ["journal.sqlite", "journal.sqlite-wal", "owner.lock"])
def test_a_link_in_a_spool_is_refused(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / name).symlink_to(victim)
    with pytest.raises(Exception, match=f"do not trust '{name}' in it: it is a symbolic link"):
        SpoolJournal(tmp_path / "spool", limit_bytes=1000)
    assert victim.read_bytes() == b"kept"


def test_only_the_files_of_the_product_are_checked(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir(mode=0o700)
    (tmp_path / "spool" / "notes").symlink_to(tmp_path)
    for folder in ("lost+found", "owner.locks"):
        (tmp_path / "spool" / folder).mkdir()
        (tmp_path / "spool" / folder).chmod(0o777)
    SpoolJournal(tmp_path / "spool", limit_bytes=1000).close()
    (tmp_path / "spool" / "journal.sqlite").chmod(0o666)
    with pytest.raises(Exception, match=r"do not trust 'journal\.sqlite' in it: other users can write to it"):
        SpoolJournal(tmp_path / "spool", limit_bytes=1000)


def test_a_link_in_the_place_of_the_tables_lock_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "LOCK").symlink_to(victim)
    with pytest.raises(TablesError, match="'LOCK' in it is a symbolic link"):
        build(tmp_path / "tables")
    assert victim.read_bytes() == b"kept"


def test_javas_start_script_is_never_run_from_a_folder_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a home folder the script goes to the temporary folder, where anybody could have prepared its place."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    java = Java(Path("/bin/true"), 17, "PATH")
    home = home_for_spark(java, {})
    script = home / "bin" / "java"
    assert home_for_spark(java, {}) == home
    for folder in (home.parent, home, script.parent):
        folder.chmod(0o777)
        with pytest.raises(JavaMissingError, match="XDG_CACHE_HOME"):
            home_for_spark(java, {})
        folder.chmod(0o700)
    script.rename(tmp_path / "planted")
    script.symlink_to(tmp_path / "planted")
    with pytest.raises(JavaMissingError):
        home_for_spark(java, {})


def test_the_description_of_a_server_that_others_can_change_is_not_used(tmp_path: Path) -> None:
    server = RunningServer("contoso", 5671, "Endpoint=sb://localhost", "ca.pem", os.getpid())
    RunningServer.write_all([server], tmp_path / "server.json")
    assert RunningServer.read(tmp_path / "server.json") == server
    (tmp_path / "server.json").chmod(0o666)
    with pytest.raises(NotPrivateError):
        RunningServer.read(tmp_path / "server.json")
