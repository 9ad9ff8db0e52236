"""Debian's packages for the guest. Programs are installed, and the kernel is only unpacked.

As root missing packages are installed. Otherwise the message names the one command that does so.
"""

import fcntl
import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "nvme": "nvme-cli",
    "fio": "fio",
    "busybox": "busybox-static",
    "mkfs.ext4": "e2fsprogs",
}
KERNEL = "linux-image-amd64"
ROOT_PATH = "/usr/sbin:/sbin"


class MissingPackagesError(Exception):
    """A package is not installed, and cannot be installed from here."""


@dataclass(frozen=True)
class Kernel:
    """A kernel that lies unpacked in a directory."""

    image: Path
    modules: Path


def program(name: str) -> str:
    """The path of an installed program."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{ROOT_PATH}")
    if path is None:
        raise MissingPackagesError(f"{name} is not installed")
    return path


def _missing() -> list[str]:
    path = f"{os.environ.get('PATH', os.defpath)}:{ROOT_PATH}"
    return [package for name, package in PROGRAMS.items() if not shutil.which(name, path=path)]


def _run(*command: str, directory: Path | None = None) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        result = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        raise MissingPackagesError(f"{command[0]} is needed: this is no Debian") from None
    if result.returncode:
        reason = (result.stderr.strip() or "no reason given").splitlines()[-1]
        raise MissingPackagesError(f"{' '.join(command[:2])}: {reason}")
    return result.stdout


def prepare(directory: Path) -> tuple[list[str], Kernel]:
    """The packages that had to be installed, and the kernel below ``directory``.

    One process at a time. Raises `MissingPackagesError`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return install(), kernel(directory)


def install() -> list[str]:
    """Installs missing packages and returns them. Raises `MissingPackagesError`."""
    missing = _missing()
    if not missing:
        return []
    if os.geteuid() != 0:
        packages = " ".join(missing)
        raise MissingPackagesError(
            f"packages are missing, install them with: sudo apt-get install -y {packages}"
        )
    _run("apt-get", "update", "-qq")
    _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)
    return missing


def kernel(directory: Path) -> Kernel:
    """Debian's kernel, unpacked below ``directory`` (once a version), not installed.

    Without a network it is the one that was unpacked last.
    """
    try:
        target = _unpacked(directory)
    except MissingPackagesError:
        if os.geteuid() == 0:
            with suppress(MissingPackagesError):
                _run("apt-get", "update", "-qq")
        try:
            target = _unpacked(directory)
        except MissingPackagesError:
            earlier = list(directory.glob("linux-image-*"))
            if not earlier:
                raise
            target = max(earlier, key=lambda path: path.stat().st_mtime)
    (image,) = target.glob("boot/vmlinuz-*")
    (modules,) = target.glob("lib/modules/*")
    return Kernel(image, modules)


def _unpacked(directory: Path) -> Path:
    found = re.search(r"Depends: (linux-image-\S+)", _run("apt-cache", "depends", KERNEL))
    if found is None:
        raise MissingPackagesError(
            f"apt does not know {KERNEL}, bring its lists up to date with: sudo apt-get update"
        )
    package = found[1]
    target = directory / package
    if not target.exists():
        draft = directory / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        _run("apt-get", "download", "-qq", package, directory=draft)
        (archive,) = draft.glob("*.deb")
        _run("dpkg", "-x", str(archive), str(draft))
        archive.unlink()
        draft.rename(target)
    return target
