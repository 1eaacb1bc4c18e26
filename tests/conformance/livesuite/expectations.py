"""Which of the suite's tests cannot pass here and why, which are slow, and which stand for the rest in a short run.

Data, in ``expectations.toml``. Test names are the suite's node ids without parameters, or with them where only one
parameter is meant.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "expectations.toml"


@dataclass(frozen=True, slots=True)
class Expectations:
    """``exceptions``: node id → reason; ``slow``: node ids, slowest first; ``representative``: node ids."""

    exceptions: dict[str, str]
    slow: tuple[str, ...]
    representative: tuple[str, ...]

    @classmethod
    def read(cls) -> "Expectations":
        data = tomllib.loads(DATA.read_text())
        exceptions = {test: kind["reason"] for kind in data["exceptions"].values() for test in kind["tests"]}
        return cls(exceptions, tuple(data["slow"]), tuple(data["representative"]))

    def exception_for(self, node_id: str) -> str | None:
        """Why the test must fail, or None if it must pass."""
        return self.exceptions.get(node_id) or self.exceptions.get(_without_parameters(node_id))

    def is_slow(self, node_id: str) -> bool:
        return _without_parameters(node_id) in self.slow

    def rank(self, node_id: str) -> int:
        """The place of a slow test: smaller runs earlier."""
        return self.slow.index(_without_parameters(node_id))


def _without_parameters(node_id: str) -> str:
    return node_id.partition("[")[0]
