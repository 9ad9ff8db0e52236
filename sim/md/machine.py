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
    """A job of `sim.md.guest`. ``arrays`` are arguments of mdadm."""

    name: str
    arrays: list[list[str]]
    device: str
    data: list[tuple[str, int]]
    bytes: int
    drives: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Assembly:
    """A job of `sim.md.guest`: drives that hold these files are assembled. What has become of it is
    in ``NAME.json`` then, and what the array holds in ``NAME.data``, if it has started.

    ``attempts`` are arguments of mdadm, and each may fail. Then device-mapper gets ``tables``, each
    with a name. What such a device holds is in ``JOB.NAME.data``.
    """

    name: str
    given: list[str]
    attempts: list[list[str]]
    bytes: int
    tables: list[tuple[str, str]] = field(default_factory=list)
    drives: list[str] = field(default_factory=list)

    @property
    def images(self) -> list[str]:
        """One a drive."""
        return self.given


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """What md has made of drives. ``state`` is that of the array, or empty.

    ``roles`` are those of the drives that take part, by their number. ``said`` is what mdadm
    printed. There is ``data`` if the array has started.
    """

    state: str
    roles: dict[int, int]
    said: str
    data: bytes | None


def assembled(work: Path, job: Assembly) -> Assembled:
    """The outcome of a job that has been run."""
    found = json.loads((work / f"{job.name}.json").read_text())
    slots = {int(number): slot for number, slot in found["slots"].items()}
    data = work / f"{job.name}.data"
    return Assembled(
        state=found["state"],
        roles={number: int(slot) for number, slot in slots.items() if slot.isdigit()},
        said=found["said"],
        data=data.read_bytes() if data.exists() else None,
    )


def missing() -> str:
    """How to make this run, in one line. It is empty when everything is there."""
    found = {
        "user-mode-linux": shutil.which(PROGRAM),
        "mdadm": shutil.which("mdadm", path="/usr/sbin:/sbin:/usr/bin:/bin"),
    }
    if _needs_more_state():
        found["gcc"] = _compiler()
    packages = [package for package, path in found.items() if path is None]
    return f"install them with: apt-get install {' '.join(packages)}" if packages else ""


def drive(number: int) -> str:
    """The guest's device of a drive."""
    return f"/dev/ubd{chr(ord('a') + number)}"


def _needs_more_state() -> bool:
    """Whether the processor has more registers than user-mode Linux 6.1 expects."""
    return "amx_tile" in Path("/proc/cpuinfo").read_text()


def _compiler() -> str | None:
    """A C compiler."""
    found = (shutil.which(name) for name in ("cc", "gcc", "clang"))
    return next((path for path in found if path is not None), None)


def build_shim(folder: Path) -> Path:
    """`xstate.c` as a library to preload."""
    compiler = _compiler()
    if compiler is None:
        raise MissingLinuxError("a C compiler is missing; install it with: apt-get install gcc")
    library = folder / "xstate.so"
    source = str(HERE / "xstate.c")
    flags = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(library), source], check=True)
    return library


def _environment(work: Path, *, shim: bool) -> dict[str, str]:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(work)}
    if shim:
        environment["LD_PRELOAD"] = str(build_shim(work))
    return environment


def run(work: Path, jobs: Sequence[Job | Assembly], *, shim: bool | None = None) -> None:
    """Runs ``jobs`` one after the other. ``work`` holds their data and gets their images.

    ``shim``: preload `xstate.c`. By default it is preloaded where the processor makes it necessary.
    Each job takes as many drives as it has images, from the first on. A run takes about 3 s and the
    time of md. Raises `GuestError` with the guest's log when a job fails.
    """
    if missing():
        raise MissingLinuxError(f"user-mode Linux is missing; {missing()}")
    work = work.resolve()
    drives = max(len(job.images) for job in jobs)
    if drives > MOST_DRIVES:
        raise ValueError(f"at most {MOST_DRIVES} drives, not {drives}")
    for job in jobs:
        job.drives = [drive(number) for number in range(len(job.images))]
    environment = _environment(work, shim=_needs_more_state() if shim is None else shim)
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
            command, cwd=work, env=environment, timeout=TIMEOUT_S, check=False,
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
