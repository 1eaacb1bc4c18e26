"""The minimum versions that SECURITY.md promises are those in pyproject.toml, and the lock file keeps them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROMISED = re.findall(r"^\| `([a-z0-9-]+)` \| ([0-9.]+) \|", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.M)


def test_releases_with_known_vulnerabilities_are_excluded() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    requirements = [Requirement(text) for text in declared]
    locked = (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8")
    assert len(PROMISED) == 4
    for name, least in PROMISED:
        minima = {
            spec.version for one in requirements if one.name == name for spec in one.specifier if spec.operator == ">="
        }
        assert minima == {least}, name
        (version,) = re.findall(rf"^{name}==(\S+)", locked, re.M)
        assert Version(version) >= Version(least)
