"""A run of the guest: the card and its volumes, the machine, and steps one after the other.

A step is a function of a `Run`. It raises `StepError` when something is not as it should be. After
every step the kernel's console is searched for complaints.
"""

import hashlib
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hdl.config import Config, board
from hdl.flow.geometry import Level
from sim.checkout import ROOT
from sim.native.presets import SAS_12G_SSD
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import NvmeError
from sw.guest.card import BridgedCard
from sw.guest.machine import Machine, MachineError, write_initramfs
from sw.guest.nvme_cli import NvmeCli, NvmeCliError
from sw.guest.packages import Kernel

MIB = 1 << 20
BLOCKS_PER_MIB = MIB // 4096
MIRROR_PORTS, PARITY_PORTS = (6, 7), tuple(range(6))
MIRROR_MIB, PARITY_MIB = 64, 192
STRIP_KIB = 32
DRIVER_MEMORY_BYTES = 16 * MIB
LARGE_FILES, LARGE_FILE_BYTES = 2, MIB + 12_345
TREE_FOLDERS = ("docs", "hdl", "sw")
MANIFEST = "manifest.sha256"
LOAD_SECONDS = 600

MODULE_OPTIONS = {"nvme": "poll_queues=1 write_queues=1", "nvme-core": "io_timeout=300"}
"""The kernel gives up a command after 30 s. The simulated card needs about a second for a
millisecond of its own time, and several on a busy machine."""

COMPLAINT = re.compile(
    r"nvme.*([Tt]imeout(?! set to)|[Aa]bort|[Ff]ail|[Ee]rror|I/O \d+|[Rr]emoving)|I/O error"
    r"|EXT4-fs.*(error|warning)|BUG:|Oops:|WARNING:|blocked for more|Kernel panic",
)

INTERRUPTED = re.compile(r"nvme.*Identify \w+ failed \((-4|nsid=\d+, status=0xfffffffc)\)")
"""Message of a scan of the driver when the next reset takes its command away (EINTR)."""


ANYTHING = re.compile("")


class StepError(Exception):
    """A fault that a step has found."""


@dataclass(frozen=True)
class Step:
    """A step. It has ``name`` on the command line and ``title`` in the report."""

    name: str
    title: str
    action: Callable[["Run"], str]
    """Does the step. Returns a message about its success."""
    needs: tuple[str, ...] = ()
    """Steps that must have been done before."""
    complaints: re.Pattern | None = None
    """Complaints that the kernel may print."""


@contextmanager
def started(
    kernel: Kernel, directory: Path, seed: int, *, scale: int = 1, config: Config | None = None
) -> Iterator["Run"]:
    """A `Run` on a new card with a RAID 1 volume, made before the guest exists.

    ``directory`` takes the logs, and the initramfs as long as it is needed.
    """
    config = config or board(8)
    rng = random.Random(seed)
    tree = _tree(rng)
    initramfs = directory / "initramfs.cpio"
    write_initramfs(initramfs, kernel, tree, MODULE_OPTIONS)
    with SimulatedCard(
        config, [SAS_12G_SSD] * config.ports, memory_bytes=DRIVER_MEMORY_BYTES
    ) as card:
        card.run(_make_mirror(card))

        def bridge(deliver: Callable[[int, int], None]) -> BridgedCard:
            return BridgedCard(card.harness, vectors=config.queue_pairs + 1, deliver=deliver)

        try:
            with Machine(bridge, kernel, initramfs, directory) as machine:
                yield Run(machine, rng, scale)
        finally:
            initramfs.unlink()


async def _make_mirror(card: SimulatedCard) -> None:
    await card.nvme.start()
    array = await raid.create_array(
        card.nvme, Level.RAID1, MIRROR_PORTS, assume_consistent=True
    )
    await raid.create_volume(card.nvme, array, blocks=MIRROR_MIB * BLOCKS_PER_MIB)
    await card.nvme.stop()


def _tree(rng: random.Random) -> dict[str, bytes]:
    """Files to copy: this project's own, some larger ones, and the checksums of all."""
    tree = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for folder in TREE_FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix in (".py", ".md", ".toml")
    }
    for number in range(LARGE_FILES):
        tree[f"large/{number}"] = rng.randbytes(LARGE_FILE_BYTES)
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in tree.items()]
    tree[MANIFEST] = "".join(lines).encode()
    return tree


@dataclass(frozen=True)
class Traffic:
    """The traffic of fio."""

    written: int
    read: int
    """Reads, including those that verify the writes."""
    commands: int

    def __str__(self) -> str:
        return f"fio wrote {self.written / MIB:.1f} MiB, read {self.read / MIB:.1f} MiB"


class Run:
    """The tools of a step: the guest's shell and nvme-cli, fio, and the card from outside.

    Parameters
    ----------
    machine
        The guest.
    rng
        Of everything that is drawn.
    scale
        Factor of the sizes of loads.
    """

    def __init__(self, machine: Machine, rng: random.Random, scale: int = 1):
        self.machine = machine
        self.card = machine.card
        self.harness = machine.card.harness
        self.cli = NvmeCli(machine)
        self.rng = rng
        self.scale = scale

    def perform(self, step: Step) -> str:
        """Performs a step and returns its message. Raises `StepError`."""
        console = self.machine.console
        begin = len(console.text)
        try:
            said = step.action(self)
        except (MachineError, NvmeCliError, NvmeError) as error:
            raise StepError(" ".join(str(error).split())) from error
        for line in console.text[begin:].splitlines():
            expected = step.complaints and step.complaints.search(line)
            if COMPLAINT.search(line) and not expected:
                raise StepError(f"the kernel says: {line.strip()}")
        return said

    def shell(self, command: str, seconds: float = 300) -> str:
        """Output of a line in the guest's shell, which must succeed."""
        status, output = self.machine.run(command, seconds)
        if status:
            last = (output.strip() or "no output").splitlines()[-1]
            raise StepError(f"{command}: status {status}: {last[:200]}")
        return output

    def expect(self, condition: object, complaint: str) -> None:
        """Raises `StepError` with ``complaint`` unless ``condition``."""
        if not condition:
            raise StepError(complaint)

    def wait_for(self, condition: str, seconds: float = 30) -> None:
        """Returns once the shell's ``condition`` holds. It is tried five times a second."""
        tries = int(seconds * 5)
        self.shell(
            f"i=0; until {condition}; do i=$((i+1)); [ $i -lt {tries} ] || break; sleep 0.2; done; "
            f"{condition}",
            2 * seconds,
        )

    # File system

    def mount(self, device: str = "/dev/nvme0n2") -> None:
        """Mounts an ext4 file system on /mnt."""
        self.shell(f"mount -t ext4 {device} /mnt")

    def check_tree(self, folder: str = "/mnt/tree") -> int:
        """Compares every file with its checksum, from the device. Returns how many there are."""
        self.shell("sync; echo 3 > /proc/sys/vm/drop_caches")
        count = self.shell(f"cd {folder} && sha256sum -c {MANIFEST} > /tmp/sums && "
                           f"wc -l < {MANIFEST}; s=$?; cd /; [ $s = 0 ]")
        return int(count.split()[-1])

    def unmount_and_check(self, device: str = "/dev/nvme0n2") -> None:
        """Unmounts /mnt and checks the whole file system."""
        self.shell("umount /mnt")
        self.shell(f"e2fsck -f -n {device}")

    # Load

    def fio(self, size_mib: int, **options: object) -> str:
        """A command line of fio: random mixed accesses, every block verified by CRC-32C.

        ``size_mib`` is multiplied by the run's scale.
        """
        chosen = {
            "name": "load",
            "size": f"{size_mib * self.scale}m",
            "rw": "randrw",
            "bsrange": "4k-64k",
            "iodepth": 16,
            "ioengine": "libaio",
            "direct": 1,
            "verify": "crc32c",
            "verify_fatal": 1,
            "randseed": self.rng.randrange(1, 1 << 31),
            "output-format": "json",
            **options,
        }
        return "fio " + " ".join(f"--{name}={value}" for name, value in chosen.items())

    def load(self, size_mib: int, **options: object) -> Traffic:
        """Runs fio to its end."""
        return self.fio_result(*self.machine.run(self.fio(size_mib, **options), LOAD_SECONDS))

    @contextmanager
    def loaded(self, size_mib: int, **options: object) -> Iterator["Load"]:
        """Runs fio beside the body. The body begins once commands are on their way."""
        before = self.packets()
        self.shell(f"{self.fio(size_mib, **options)} > /tmp/fio.log 2>&1 & fio=$!")
        load = Load(self)
        self.machine.wait(
            lambda: self.packets() > before + Load.BEGUN_PACKETS, LOAD_SECONDS, "fio"
        )
        yield load
        if not load.finished:
            load.finish()

    def packets(self) -> int:
        """Packets that the card has received, which is a measure of traffic."""
        return self.harness.statistics()["down_tlps"]

    def fio_result(self, status: int, log: str) -> Traffic:
        """The traffic of fio, from its exit status and output. Raises `StepError` for errors."""
        before, _, _ = log.partition("{")
        try:
            jobs = json.loads(log[len(before) :])["jobs"]
        except ValueError:
            jobs = None
        if status or jobs is None or any(job["error"] for job in jobs):
            said = before.split("\n")[0] or "errors"
            raise StepError(f"fio: status {status}: {said}")
        read, written = (sum(job[way]["io_bytes"] for job in jobs) for way in ("read", "write"))
        commands = sum(job[way]["total_ios"] for job in jobs for way in ("read", "write"))
        return Traffic(written, read, commands)

    # The card from outside

    def settle(self) -> None:
        """Returns once the card has nothing left to do."""
        self.machine.wait(lambda: self.card.idle, 60, "the card does not come to rest")


class Load:
    """fio that runs in the guest's background."""

    BEGUN_PACKETS = 400
    """Packets to the card after which the load has certainly begun."""

    def __init__(self, run: Run):
        self._run = run
        self.finished = False

    def still_running(self, what: str) -> None:
        """Raises `StepError` when fio has ended, since the event then did not happen under load."""
        status, _ = self._run.machine.run("kill -0 $fio")
        self._run.expect(status == 0, f"fio had ended before {what}")

    def progress(self, packets: int = 2000) -> None:
        """Returns after some more traffic."""
        before = self._run.packets()
        self._run.machine.wait(
            lambda: self._run.packets() > before + packets, LOAD_SECONDS, "fio"
        )

    def finish(self) -> Traffic:
        """Waits for the end, which must be successful."""
        return self._run.fio_result(*self._wait())

    def fail(self) -> None:
        """Waits for the end, which must be a failure."""
        status, _ = self._wait()
        self._run.expect(status, "fio did not notice that the device was gone")

    def _wait(self) -> tuple[int, str]:
        self.finished = True
        line = "wait $fio; s=$?; cat /tmp/fio.log; ( exit $s )"
        return self._run.machine.run(line, LOAD_SECONDS)


class Reporter:
    """Prints one line for each step."""

    def __init__(self):
        self._begin = time.monotonic()

    def __call__(self, verdict: str, step: Step, said: str) -> None:
        elapsed = time.monotonic() - self._begin
        print(f"{verdict} {elapsed:6.1f} s  {step.title}: {said}", flush=True)
