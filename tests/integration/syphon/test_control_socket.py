"""The control socket replaces a dead syphon's socket, and nothing else."""

import asyncio
import socket
from pathlib import Path
from typing import cast

import pytest

from pairbus.syphon.control import ControlSocketError, control_socket
from pairbus.syphon.service import Syphon


async def open_and_close(path: Path) -> None:
    async with control_socket(cast(Syphon, None), path):
        assert path.is_socket()


def test_a_file_that_is_not_a_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(ControlSocketError, match="is not a socket"):
        asyncio.run(open_and_close(path))
    assert path.read_text() == "precious"
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(ControlSocketError, match="is not a socket"):
        asyncio.run(open_and_close(link))
    assert link.is_symlink()


def test_the_socket_of_a_dead_syphon_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    asyncio.run(open_and_close(path))
    assert not path.exists()
