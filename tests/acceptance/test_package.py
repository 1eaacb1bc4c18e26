"""The wheel and the source distribution: complete, and enough by themselves, far from the repository.

Nothing is downloaded: the empty environment borrows the locked packages, all but pairbus, which it has from the wheel.
`make install-check` does the same with packages from the index. The demo from the wheel is in test_demo.py.
"""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pairbus

ROOT = Path(__file__).parents[2]
PACKAGES = ("pairbus", "pyspark_pairbus")


def sources() -> set[str]:
    """Every file of the packages, as a wheel names them."""
    found = [path for package in PACKAGES for path in (ROOT / "src" / package).rglob("*") if path.is_file()]
    return {str(path.relative_to(ROOT / "src")) for path in found if path.suffix != ".pyc"}


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == sources()
    for data in ("py.typed", "costs/prices/azure-usd-2024-01.toml", "pipeline/log4j2.properties", "spool/schema.sql"):
        assert f"pairbus/{data}" in names


def test_the_wheel_says_what_it_is_and_what_it_starts(built: Path) -> None:
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        texts = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
        metadata = Parser().parsestr(wheel.read(texts["METADATA"]).decode())
        entry_points = configparser.ConfigParser()
        entry_points.read_string(wheel.read(texts["entry_points.txt"]).decode())
        assert "LICENSE" in texts
    assert (metadata["Name"], metadata["Version"]) == ("pairbus", pairbus.__version__)
    assert "all" in metadata.get_all("Provides-Extra", [])
    assert dict(entry_points["console_scripts"]) == {"pairbus": "pairbus.cli.__main__:main"}
    assert dict(entry_points["pytest11"]) == {"pairbus.testing.plugin": "pairbus.testing.plugin"}


def test_the_source_distribution_has_what_a_build_and_the_tests_need(built: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in sources()} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "mkdocs.yml"} <= names
    assert {"requirements/lock.txt", "scripts/setup.sh", "tests/acceptance/test_package.py"} <= names
    assert not [name for name in names if name.startswith((".venv", ".cache", "build", "demo-output"))]


def test_a_second_build_elsewhere_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    (source / "PKG-INFO").unlink()  # made by the first build
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "again"), str(source)]
    old_umask = os.umask(0o077)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    finally:
        os.umask(old_umask)
    assert done.returncode == 0, done.stdout + done.stderr
    for pattern in ("*.whl", "*.tar.gz"):
        assert only(tmp_path / "again", pattern).read_bytes() == only(built, pattern).read_bytes()


def run(*command: str | Path, cwd: Path, timeout: float = 120) -> str:
    """What a command prints in an empty folder, with an environment that knows nothing of the repository."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "JAVA_HOME") if name in os.environ}
    environment = kept | {"HOME": str(cwd), "TMPDIR": str(cwd), "XDG_RUNTIME_DIR": str(cwd)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_installed_command_is_that_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "pairbus", "--version", cwd=tmp_path) == f"pairbus {pairbus.__version__}\n"
    where = run(installed / "python", "-c", "import pairbus; print(pairbus.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_the_pytest_fixtures_come_with_it(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(pairbus_pair):\n"
        "    pairbus_pair.primary.admin().create_queue('orders')\n"
        "    assert [queue.name for queue in pairbus_pair.primary.admin().list_queues()] == ['orders']\n"
    )
    assert "1 passed" in run(installed / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
