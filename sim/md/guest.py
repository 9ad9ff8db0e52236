"""The init process inside user-mode Linux: creates md arrays, writes them, keeps their images.

    init=/usr/bin/python3 -- guest.py WORK

The root is the host's, read-only; WORK is mounted for writing. It holds `jobs.json`, a list of
jobs, and gets `log.txt` and at the end `done`. A job names ``arrays``, mdadm's arguments in turn
(the last array is written, and all are stopped), ``device``, ``data``, a list of [file, offset]
to write to it in that order, ``drives`` and their ``bytes``, which are zeros at first, and
``images``, the files that keep them. A job that names ``attempts``, mdadm's arguments in turn, puts
the files ``given`` on its drives first, and says what has become of the array. Device-mapper gets
its ``tables`` after that, [name, table] in turn. Only what a bare Python has is used.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

FINIT_MODULE = 313
"""The system call's number on x86-64."""

POWER_OFF = 0x4321FEDC
MOUNT = Path("/run/work")
MODULES = (
    "crypto/async_tx/async_tx",
    "crypto/async_tx/async_memcpy",
    "crypto/async_tx/async_xor",
    "crypto/async_tx/async_pq",
    "crypto/async_tx/async_raid6_recov",
    "drivers/md/md-mod",
    "drivers/md/raid0",
    "drivers/md/raid1",
    "drivers/md/raid10",
    "drivers/md/raid456",
)
MAPPER = ("drivers/md/dm-mod",)
PIECE = 1 << 20
TIMEOUT_S = 60
NO_ARRAY = ("", "clear")
"""States of an md device that is none, or has no drives."""

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raises an error if the last call of the C library failed."""
    if result:
        raise OSError(ctypes.get_errno(), what)


def mount(kind: str, place: str, options: str = "") -> None:
    """Mounts a file system."""
    check(libc.mount(b"none", place.encode(), kind.encode(), 0, options.encode()), place)


def load_modules(names: tuple[str, ...]) -> None:
    """Loads modules. Those that the kernel has built in are skipped."""
    folder = Path("/usr/lib/uml/modules", os.uname().release, "kernel")
    for name in names:
        path = folder / f"{name}.ko"
        if path.exists():
            with path.open("rb") as module:
                check(libc.syscall(FINIT_MODULE, module.fileno(), b"", 0), name)


def attempt(*arguments: str, program: str = "mdadm") -> tuple[int, str]:
    """Runs mdadm, or another program. Returns how it ended, and what it printed."""
    environment = {
        "MDADM_NO_UDEV": "1", "DM_DISABLE_UDEV": "1", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }  # fmt: skip
    done = subprocess.run(
        [program, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False, text=True, timeout=TIMEOUT_S,
    )
    print(done.stdout, end="")
    return done.returncode, done.stdout


def mdadm(*arguments: str) -> None:
    """Runs mdadm, which must not fail."""
    status, _ = attempt(*arguments)
    if status:
        raise RuntimeError(f"mdadm {' '.join(arguments)} ended with {status}")


def pieces(length: int):
    """(offset, bytes) of pieces of ``length`` bytes."""
    for offset in range(0, length, PIECE):
        yield offset, min(PIECE, length - offset)


def held(path: str) -> str:
    """A word of the kernel's, or nothing."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def assemble(job: dict) -> None:
    """One job that assembles what is on its drives, and says what has become of it."""
    for drive, name in zip(job["drives"], job["given"], strict=True):
        data = (MOUNT / name).read_bytes()
        with Path(drive).open("r+b", buffering=0) as device:
            for start, count in pieces(job["bytes"]):
                device.write(data[start : start + count].ljust(count, b"\0"))
            os.fsync(device.fileno())
    said = "".join(attempt(*arguments)[1] for arguments in job["attempts"])
    arrays = sorted(Path("/sys/block").glob("md*"))
    slots, state = {}, ""
    if arrays:
        place = arrays[0] / "md"
        state = held(f"{place}/array_state")
        for number, drive in enumerate(job["drives"]):
            slots[number] = held(f"{place}/dev-{Path(drive).name}/slot")
        if state not in (*NO_ARRAY, "inactive"):
            with Path("/dev", arrays[0].name).open("rb") as device:
                (MOUNT / f"{job['name']}.data").write_bytes(device.read())
    said += map_tables(job)
    for array in arrays:
        # One that could not run has no device any more.
        attempt("--stop", f"/dev/{array.name}")
        if held(f"{array}/md/array_state") not in NO_ARRAY:
            raise RuntimeError(f"{array.name} does not stop")
    outcome = {"state": state, "slots": slots, "said": said}
    (MOUNT / f"{job['name']}.json").write_text(json.dumps(outcome))


def map_tables(job: dict) -> str:
    """Has device-mapper make the devices of a job, and keeps what they hold. Returns what was
    said."""
    said = ""
    for name, table in job["tables"]:
        said += attempt("create", name, "--table", table, program="dmsetup")[1]
        device = Path("/dev/mapper", name)
        if device.exists():
            with device.open("rb") as file:
                (MOUNT / f"{job['name']}.{name}.data").write_bytes(file.read())
    for name, _ in reversed(job["tables"]):
        said += attempt("remove", name, program="dmsetup")[1]
    return said


def run(job: dict) -> None:
    """One job that creates arrays and writes to them."""
    for drive in job["drives"]:
        with Path(drive).open("r+b", buffering=0) as device:
            for _, count in pieces(job["bytes"]):
                device.write(bytes(count))
            os.fsync(device.fileno())
    for arguments in job["arrays"]:
        mdadm(*arguments)
    with Path(job["device"]).open("r+b", buffering=0) as device:
        for name, offset in job["data"]:
            data = (MOUNT / name).read_bytes()
            device.seek(offset)
            for start, count in pieces(len(data)):
                device.write(data[start : start + count])
            os.fsync(device.fileno())
    for arguments in reversed(job["arrays"]):
        mdadm("--stop", arguments[1])
    for drive, name in zip(job["drives"], job["images"], strict=True):
        with Path(drive).open("rb", buffering=0) as device, (MOUNT / name).open("wb") as image:
            for _, count in pieces(job["bytes"]):
                image.write(device.read(count))


def main(work: str) -> None:
    """Runs the jobs."""
    mount("proc", "/proc")
    mount("sysfs", "/sys")
    mount("tmpfs", "/run")
    MOUNT.mkdir()
    mount("hostfs", str(MOUNT), work)
    with (MOUNT / "log.txt").open("w", buffering=1) as log:
        sys.stdout = log
        try:
            load_modules(MODULES)
            jobs = json.loads((MOUNT / "jobs.json").read_text())
            if any(job.get("tables") for job in jobs):
                load_modules(MAPPER)
            for job in jobs:
                print("job", job["name"])
                (assemble if "attempts" in job else run)(job)
            (MOUNT / "done").touch()
        except Exception as error:
            print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    finally:
        libc.sync()
        libc.reboot(POWER_OFF)
