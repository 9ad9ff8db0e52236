"""An initial RAM file system: a cpio archive (newc) of programs with their libraries, and modules.

Module dependencies are read from the modules themselves, so no ``depmod`` is needed.
"""

import re
import stat
import subprocess
from pathlib import Path, PurePosixPath

from sw.guest.packages import MissingPackagesError

MAGIC = "070701"
TRAILER = "TRAILER!!!"
DIRECTORY, REGULAR, LINK = 0o040755, 0o100000, 0o120777
_LIBRARY = re.compile(r"(/\S+) \(0x")
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


class Initramfs:
    """Collects files. Paths are absolute in the guest, and directories follow from them."""

    def __init__(self):
        self._entries: dict[str, tuple[int, bytes]] = {}

    def add(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """A file with ``content``. A path that is there stays as it is."""
        self._directories(path)
        self._entries.setdefault(path, (REGULAR | mode, content))

    def link(self, path: str, target: str) -> None:
        """A symbolic link."""
        self._directories(path)
        self._entries.setdefault(path, (LINK, target.encode()))

    def directory(self, path: str) -> None:
        """An empty directory."""
        self._directories(f"{path}/x")

    def copy(self, source: Path | str, path: str | None = None) -> None:
        """A file of the host, links followed."""
        source = Path(source)
        executable = 0o755 if source.stat().st_mode & stat.S_IXUSR else 0o644
        self.add(path or str(source), source.read_bytes(), executable)

    def program(self, source: str, path: str | None = None) -> None:
        """A program with the shared libraries that the host's loader finds for it."""
        self.copy(source, path)
        listing = subprocess.run(
            ["ldd", source], check=False, capture_output=True, text=True
        ).stdout
        if "not found" in listing:
            raise MissingPackagesError(f"{source} lacks a shared library: reinstall its package")
        for library in _LIBRARY.findall(listing):
            self.copy(library)

    def write(self, path: Path) -> int:
        """Writes the archive without compression. Returns its bytes."""
        with path.open("wb") as file:
            for number, (name, (mode, content)) in enumerate(sorted(self._entries.items()), 1):
                file.write(_record(name.lstrip("/"), number, mode, content))
            file.write(_record(TRAILER, 0, 0, b""))
            return file.tell()

    def _directories(self, path: str) -> None:
        for parent in PurePosixPath(path).parents:
            if str(parent) != "/":
                self._entries.setdefault(str(parent), (DIRECTORY, b""))


def _record(name: str, number: int, mode: int, content: bytes) -> bytes:
    encoded = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    header = MAGIC.encode() + b"".join(b"%08X" % field for field in fields) + encoded
    return _padded(header) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def modules(directory: Path, names: list[str]) -> list[Path]:
    """Kernel modules below ``directory`` with all their dependencies, in the order of loading.

    Names that are not there are taken to be built in.
    """
    files = {_module_name(path.stem): path for path in directory.rglob("*.ko")}
    order: list[Path] = []

    def add(name: str) -> None:
        path = files.get(_module_name(name))
        if path is None or path in order:
            return
        found = _DEPENDS.search(path.read_bytes())
        for other in found[1].decode().split(",") if found else []:
            add(other)
        order.append(path)

    for name in names:
        add(name)
    return order


def _module_name(name: str) -> str:
    return name.replace("-", "_")
