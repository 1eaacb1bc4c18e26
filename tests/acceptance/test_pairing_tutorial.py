"""The tutorial, done as it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from pairbus.testing.namespace import embedded_pair

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "outage.py").write_text("\n".join(blocks), encoding="utf-8")
    with embedded_pair(tmp_path / "data") as pair:
        for namespace, name in ((pair.primary, "contoso.json"), (pair.secondary, "standby.json")):
            ready = {"connection_string": namespace.connection_string, "ca_file": namespace.ca_file}
            (tmp_path / name).write_text(json.dumps(ready), encoding="utf-8")
        reader = subprocess.Popen(
            [sys.executable, "-u", "outage.py"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            told = read_until(reader, "Break the primary now")
            assert "sent one, the entity is healthy" in told
            pair.primary.fault("drop", entity="orders")
            reader.stdin.write("\n")
            reader.stdin.flush()
            told = read_until(reader, "Repair the primary now")
            assert told.count("healthy -> failed over") == 1
            assert "sent three more, the entity is failed over" in told
            pair.primary.clear_faults()
            reader.stdin.write("\n")
            reader.stdin.flush()
            rest = reader.stdout.read()
            assert reader.wait(60) == 0
        received = re.findall(r"received (\w+) with id", rest)
        assert list(dict.fromkeys(received)) == ["one", "two", "three", "four"]


def read_until(process: subprocess.Popen[str], prompt: str) -> str:
    assert process.stdout is not None
    told = ""
    while prompt not in told:
        character = process.stdout.read(1)
        assert character, f"the script ended before it asked: {told}"
        told += character
    return told
