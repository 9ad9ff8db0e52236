"""Runs jobs of `sim.md.guest` in user-mode Linux."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROGRAM = "linux.uml"
MEMORY = "256M"
MOST_DRIVES = 16
"""Block devices that user-mode Linux has."""

TIMEOUT_S = 300
HERE = Path(__file__).resolve().parent


class MissingLinuxError(RuntimeError):
    """User-mode Linux or mdadm is not installed."""


class GuestError(RuntimeError):
    """The guest did not do all its jobs."""


@dataclass(kw_only=True)
class Job:
    """What `sim.md.guest` calls a job; ``arrays`` are arguments of mdadm."""

    name: str
    arrays: list[list[str]]
    device: str
    data: list[tuple[str, int]]
    bytes: int
    drives: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)


def missing() -> str:
    """What to do before this can run, in one line; empty when all is there."""
    found = {
        "user-mode-linux": shutil.which(PROGRAM),
        "mdadm": shutil.which("mdadm", path="/usr/sbin:/sbin:/usr/bin:/bin"),
    }
    packages = [package for package, path in found.items() if path is None]
    return f"install them with: apt-get install {' '.join(packages)}" if packages else ""


def drive(number: int) -> str:
    """The guest's device of a drive."""
    return f"/dev/ubd{chr(ord('a') + number)}"


def _environment(work: Path) -> dict[str, str]:
    """With `xstate.c` preloaded where the processor has more state than user-mode Linux expects."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(work)}
    if "amx_tile" in Path("/proc/cpuinfo").read_text():
        library = work / "xstate.so"
        build = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "xstate.c")]
        subprocess.run(build, check=True)
        environment["LD_PRELOAD"] = str(library)
    return environment


def run(work: Path, jobs: Sequence[Job]) -> None:
    """Runs ``jobs`` one after the other; ``work`` holds their data and gets their images.

    Each takes as many drives as it has images, from the first on. A run is about 3 s and what md
    needs. Raises `GuestError` with the guest's log when a job fails.
    """
    if missing():
        raise MissingLinuxError(f"user-mode Linux is missing; {missing()}")
    work = work.resolve()
    drives = max(len(job.images) for job in jobs)
    if drives > MOST_DRIVES:
        raise ValueError(f"at most {MOST_DRIVES} drives, not {drives}")
    for job in jobs:
        job.drives = [drive(number) for number in range(len(job.images))]
    disks = []
    for number in range(drives):
        disk = work / f"drive{number}.disk"
        with disk.open("wb") as file:
            file.truncate(max(job.bytes for job in jobs if number < len(job.images)))
        disks.append(f"{drive(number).removeprefix('/dev/')}={disk}")
    (work / "jobs.json").write_text(json.dumps([asdict(job) for job in jobs]))
    python = Path(sys.executable).resolve()
    command = [
        PROGRAM, f"mem={MEMORY}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
        "quiet", "con=null", "con0=null,fd:1", *disks, f"init={python}",
        "--", "-SEB", str(HERE / "guest.py"), str(work),
    ]
    try:
        done = subprocess.run(
            command, cwd=work, env=_environment(work), timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise GuestError(f"the guest did not end within {TIMEOUT_S} s") from None
    finally:
        for number in range(drives):
            (work / f"drive{number}.disk").unlink()
    if not (work / "done").exists():
        log = work / "log.txt"
        said = log.read_text() if log.exists() else done.stdout + done.stderr
        raise GuestError(f"the guest ended with {done.returncode}:\n{said[-2000:]}")
