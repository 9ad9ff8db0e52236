"""Writes a file to a RAID 6 volume of the simulated card, cuts the power, pulls two drives, reads
it back.

    .venv/bin/python -m sw.demo FILE [--drives N] [--rotation NAME] [--pull A,B] [--seed N]

Power goes without a warning once the file has been flushed, and comes back. P and Q of every row
that the file touches are checked in the drives themselves, with Intel ISA-L.
"""

import argparse
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, board
from hdl.flow.geometry import Level
from sim import isal
from sim.cli import BAD_ARGUMENTS, Parser, program, reason, seed
from sim.golden.layout import ROTATIONS, Layout
from sim.native.build import is_built
from sim.native.presets import SAS_12G_SSD
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import NvmeError

STRIP_KIB = 64
TRANSFER_BLOCKS = 16
POLL_NS = 100_000
OUTSTANDING = 64
LARGEST_FILE = 128 << 20
DRIVE = replace(SAS_12G_SSD, capacity=2 * LARGEST_FILE // BLOCK_BYTES)
"""A small one: rows that may be torn are marked in thousandths of an array."""


class Demo:
    """The demonstration.

    Parameters
    ----------
    card
        A card of its own, or after a power cut the same one. Its first ``drives`` ports have
        drives.
    drives
        Members of the RAID 6 array.
    rotation
        How parity moves, by mdadm's name.
    content
        The file.
    """

    def __init__(self, card: SimulatedCard, drives: int, rotation: str, content: bytes):
        self.card = card
        self._drives = drives
        self._rotation = rotation
        self._content = content
        self._blocks = -(-len(content) // BLOCK_BYTES)
        self._namespace = 0

    async def write(self) -> None:
        """Creates the volume and writes the file."""
        nvme = self.card.nvme
        await nvme.start()
        array = await raid.create_array(
            nvme,
            Level.RAID6,
            range(self._drives),
            strip_kib=STRIP_KIB,
            rotation=raid.rotation_named(self._rotation),
            # The drives hold only zeros, so the array is consistent.
            assume_consistent=True,
        )
        self._namespace = await raid.create_volume(nvme, array)
        room = (await nvme.namespace(self._namespace)).blocks
        if self._blocks > room:
            raise ValueError(f"the file needs {self._blocks} blocks, the volume has {room}")
        await self._move(write=True)
        await nvme.flush(self._namespace)

    async def find(self) -> float:
        """After a power cut: finds the volume, and waits until its rows are in sync. Returns how
        long the card took to be ready, in milliseconds."""
        nvme = self.card.nvme
        await nvme.start()
        ready_ns = self.card.transport.now_ns
        (volume,) = await raid.volumes(nvme)
        self._namespace = volume.namespace
        while not all(array.in_sync for array in await raid.arrays(nvme)):
            await self.card.transport.sleep(POLL_NS)
        return ready_ns / 1e6

    async def read(self) -> bytes:
        """Reads the file back."""
        return await self._move(write=False)

    async def _move(self, *, write: bool) -> bytes:
        transport = self.card.transport
        starts = iter(range(0, self._blocks, TRANSFER_BLOCKS))
        result = bytearray(self._blocks * BLOCK_BYTES)
        done = transport.event()
        running = OUTSTANDING
        failures: list[NvmeError] = []

        async def work() -> None:
            nonlocal running
            address = transport.memory.allocate(TRANSFER_BLOCKS * BLOCK_BYTES)
            for start in starts:
                count = min(TRANSFER_BLOCKS, self._blocks - start)
                first, length = start * BLOCK_BYTES, count * BLOCK_BYTES
                try:
                    if write:
                        piece = self._content[first : first + length].ljust(length, b"\0")
                        transport.memory.write(address, piece)
                        await self.card.nvme.write(self._namespace, start, count, address)
                    else:
                        await self.card.nvme.read(self._namespace, start, count, address)
                        result[first : first + length] = transport.memory.read(address, length)
                except NvmeError as error:
                    failures.append(error)
                    break
            running -= 1
            if running == 0:
                done.set()

        for _ in range(OUTSTANDING):
            transport.spawn(work())
        await done.wait()
        if failures:
            raise failures[0]
        return bytes(result[: len(self._content)])

    def check_parity(self) -> tuple[int, int]:
        """Rows that the file touches, and how many of them have a P or Q that ISA-L disputes."""
        strip_blocks = STRIP_KIB * 1024 // BLOCK_BYTES
        layout = Layout("RAID6", self._drives, strip_blocks, rotation=self._rotation)
        rows = sorted({layout.map(block).row for block in range(self._blocks)})
        wrong = 0
        for row in rows:
            members = [
                self.card.harness.read_drive(position, DATA_OFFSET_BLOCKS + row)
                for position in range(self._drives)
            ]
            weighed = [bytes(BLOCK_BYTES)] * self._drives
            for place, exponent in zip(layout.roles(0, row), layout.exponents(row), strict=False):
                weighed[exponent] = members[place]
            found = [members[place] for place in layout.parity_places(row)]
            wrong += list(isal.pq(weighed)) != found
        return len(rows), wrong


def _rotation(name: str) -> str:
    if name not in ROTATIONS:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(ROTATIONS)}, not {name}")
    return name


def _arguments() -> argparse.Namespace:
    parser = Parser(
        prog="demo",
        description="Writes a file to a simulated RAID 6, cuts the power, pulls two drives, reads "
        "it back.",
    )
    parser.add_argument("file", type=Path, help="the file to write, up to 128 MiB")
    parser.add_argument("--drives", type=int, default=8, help="drives of the array, 4..8 (8)")
    parser.add_argument(
        "--rotation",
        type=_rotation,
        default=ROTATIONS[0],
        metavar="NAME",
        help=f"how parity moves: {', '.join(ROTATIONS)} ({ROTATIONS[0]})",
    )
    parser.add_argument("--pull", default="", help="two ports to pull, as A,B (drawn at random)")
    parser.add_argument("--seed", type=seed, default=1, help="of the draw (1)")
    return parser.parse_args()


def _pulled(arguments: argparse.Namespace) -> list[int]:
    if not arguments.pull:
        return sorted(random.Random(arguments.seed).sample(range(arguments.drives), 2))
    try:
        ports = sorted({int(text) for text in arguments.pull.split(",")})
    except ValueError:
        ports = []
    if len(ports) != 2 or not all(0 <= port < arguments.drives for port in ports):
        raise ValueError(f"--pull takes two ports of 0..{arguments.drives - 1}, such as 1,4")
    return ports


def _content(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if not file.is_file() or not 0 < size <= LARGEST_FILE:
            raise ValueError(f"{file} is no file of 1 byte to 128 MiB")
        return file.read_bytes()
    except OSError as error:
        raise ValueError(reason(error)) from None


def run(arguments: argparse.Namespace) -> int:
    """Runs the demonstration and returns the exit status."""
    if not 4 <= arguments.drives <= 8:
        raise ValueError(f"--drives must be 4..8, not {arguments.drives}")
    pulled = _pulled(arguments)
    content = _content(arguments.file)
    config = board(8)
    drives = [DRIVE] * arguments.drives + [None] * (config.ports - arguments.drives)
    print(f"{arguments.file}: {len(content)} bytes to a RAID 6 of {arguments.drives} drives")
    if not is_built(config):
        print("building the controller, which takes minutes", flush=True)
    begin = time.monotonic()
    with SimulatedCard(config, drives) as card:
        demo = Demo(card, arguments.drives, arguments.rotation, content)
        card.run(demo.write())
        print(f"written and flushed after {card.harness.now_ns / 1e6:.3f} ms of simulated time")
        card.harness.power_loss()
        images = [card.harness.image(port) for port in range(arguments.drives)]
        identity = card.harness.identity
    with SimulatedCard(config, drives, identity=identity) as card:
        demo.card = card
        for port, image in enumerate(images):
            card.harness.put_image(port, image)
        ready_ms = card.run(demo.find())
        sync_ms = card.harness.now_ns / 1e6
        print(
            f"power cut; the volume is there again after {ready_ms:.3f} ms, "
            f"in sync after {sync_ms:.3f} ms"
        )
        rows, wrong = demo.check_parity()
        print(f"ISA-L: P and Q of {rows} rows checked, {wrong} wrong")
        for port in pulled:
            card.harness.remove(port)
        print(f"drives {pulled[0]} and {pulled[1]} pulled")
        begin_ns = card.harness.now_ns
        same = card.run(demo.read()) == content
        read_ms = (card.harness.now_ns - begin_ns) / 1e6
        print(f"read back degraded in {read_ms:.3f} ms: {'same' if same else 'DIFFERENT'}")
    print(f"{time.monotonic() - begin:.1f} s of wall time")
    return 0 if same and not wrong else 1


def main() -> int:
    """Command line."""
    try:
        return run(_arguments())
    except (ValueError, isal.MissingLibraryError, NvmeError) as error:
        print(f"demo: {error}", file=sys.stderr)
    return BAD_ARGUMENTS


if __name__ == "__main__":
    sys.exit(program("demo", main))
