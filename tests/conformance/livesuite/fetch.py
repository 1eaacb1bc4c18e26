"""Get the live tests out of the SDK's source package: pinned by hash, fetched once by pip, kept in a cache folder."""

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
REQUIREMENT = HERE / "suite.txt"
CACHE = HERE / ".cache"


class SuiteUnavailableError(RuntimeError):
    """The suite is neither in the cache nor to be had from the package index."""


@dataclass(frozen=True, slots=True)
class Pin:
    """What ``suite.txt`` names: the version, and the only content that will do."""

    version: str
    sha256: str

    @classmethod
    def read(cls) -> "Pin":
        found = re.search(r"^azure-servicebus==(\S+) --hash=sha256:(\w+)$", REQUIREMENT.read_text(), re.MULTILINE)
        if found is None:
            raise SuiteUnavailableError(f"{REQUIREMENT} names no azure-servicebus; it must pin one with its hash.")
        return cls(found[1], found[2])


def fetch_suite() -> Path:
    """The folder with the suite's tests: what was published, nothing changed and nothing added."""
    pin = Pin.read()
    archive = CACHE / f"azure_servicebus-{pin.version}.tar.gz"
    if not archive.is_file():
        _download()
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != pin.sha256:
        raise SuiteUnavailableError(f"{archive} has the hash {found}, not the pinned {pin.sha256}; remove it.")
    unpacked = CACHE / f"azure-servicebus-{pin.version}"
    with tarfile.open(archive) as tar:
        if not _is_as_published(tar, unpacked):
            _unpack_tests(tar, unpacked)
    return unpacked / "tests"


def _download() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [
        *_pip(),
        *("download", "--no-deps", "--no-binary", "azure-servicebus", "--require-hashes"),
        *("--requirement", str(REQUIREMENT), "--dest", str(CACHE), "--disable-pip-version-check"),
    ]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode:
        reason = outcome.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise SuiteUnavailableError(
            f"pip could not fetch what {REQUIREMENT.name} pins ({reason[0]}); "
            f"connect to a package index once, or put the source package into {CACHE}."
        )


def _pip() -> list[str]:
    """A pip: the environment's, else the one of the interpreter it was made from, else through uv."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    base = Path(sys.base_prefix) / "bin" / "python3"
    if base.is_file() and not subprocess.run([str(base), "-m", "pip", "--version"], capture_output=True).returncode:
        return [str(base), "-m", "pip"]
    uv = shutil.which("uv")
    if uv is None:
        raise SuiteUnavailableError("No pip was found to fetch the suite with; install pip or uv.")
    return [uv, "tool", "run", "pip"]


def _tests_in(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """Only the tests: the package under test is the installed one."""
    return [member for member in tar.getmembers() if member.name.split("/")[1:2] == ["tests"]]


def _is_as_published(tar: tarfile.TarFile, folder: Path) -> bool:
    published = {member.name.partition("/")[2]: member for member in _tests_in(tar) if member.isfile()}
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    if present != set(published):
        return False
    for name, member in published.items():
        content = tar.extractfile(member)
        if content is None or content.read() != (folder / name).read_bytes():
            return False
    return True


def _unpack_tests(tar: tarfile.TarFile, destination: Path) -> None:
    half_done = Path(tempfile.mkdtemp(prefix=destination.name, dir=destination.parent))
    tar.extractall(half_done, members=_tests_in(tar), filter="data")
    (root,) = half_done.iterdir()
    shutil.rmtree(destination, ignore_errors=True)
    root.rename(destination)
    half_done.rmdir()
