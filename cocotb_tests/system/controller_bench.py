"""A host, its driver and drives around the whole controller, for its tests."""

import os
import random
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import cocotb
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out
from cocotb.task import Task
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.drive.drive_model import RANDOM, DriveModel, Timing
from cocotb_tests.pcie.pcie_host import PcieHost
from cocotb_tests.runner import TEST_TIMEOUT, TOP, simulate
from cocotb_tests.streams import sample
from cocotb_tests.system.transport import CocotbTransport
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, TIME_BITS, Config
from hdl.controller import Controller
from hdl.flow.geometry import Level
from sim.card.row_check import checked_row
from sim.card.volume_model import VolumeModel
from sim.golden import parity
from sim.golden.layout import Layout
from sim.verilog import Netlist, to_verilog
from sw.driver import raid
from sw.driver.commands import Command, NvmeError
from sw.driver.nvme import Nvme
from sw.driver.transport import PAGE_BYTES

CONFIG = Config(
    ports=6, lines=128, commands=32, rows=32, operations=128, queue_pairs=2, queue_depth=64
)
"""Small enough to build quickly, large enough for several of everything."""

LIMIT = {"timeout_time": 60, "timeout_unit": "ms"}
"""How long a test may take, of simulated time."""

NEVER = (1 << TIME_BITS) - 1
QUIET_CYCLES = 64
"""Longer than anything inside the PCIe models takes between two beats."""

MOST_CYCLES = 200_000
JUMPS = 8
GUARD = b"\xa5"


class ObservedController(Controller):
    """The controller with the number of free lines as one more output, ``available``."""

    def __init__(self, *, config: Config, **options):
        super().__init__(config=config, **options)
        self.available = Signal(range(config.lines + 1))

    @property
    def signature(self) -> wiring.Signature:
        """The controller's, and ``available``."""
        more = {"available": Out(self.available.shape())}
        return wiring.Signature({**super().signature.members, **more})

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        core: Any = m.submodules.core
        elaborate = core.elaborate

        def observe(platform) -> Module:
            inner = elaborate(platform)
            inner.d.comb += self.available.eq(inner.submodules.allocator.available)
            return inner

        core.elaborate = observe
        return m


@dataclass(kw_only=True)
class Volume:
    """A volume over the whole of an array of its own, and its golden contents."""

    namespace: int
    array: int
    layout: Layout
    ports: list[int]
    rows: int
    model: VolumeModel


def layout_of(level: Level, drives: int, strip_blocks: int, copies: int, spans: int) -> Layout:
    """The golden layout of an array."""
    return Layout(level.name, drives, strip_blocks, copies=copies, spans=spans)


class Bench:
    """The host, the drives, the driver, and what every volume should hold.

    Parameters
    ----------
    timing
        Of every drive.
    rows
        Blocks of each drive after `DATA_OFFSET_BLOCKS`.
    pauses
        Share of the cycles in which each stream of the UltraScale+ block stands still.
    host
        The hard block and what is behind it.
    """

    def __init__(
        self,
        dut,
        *,
        config: Config = CONFIG,
        timing: Timing = RANDOM,
        rows: int = 50,
        pauses: float = 0.0,
        memory_bytes: int = 1 << 24,
        host: type[PcieHost] = PcieHost,
        **host_options,
    ):
        self.dut = dut
        self.config = config
        self.seed = int(os.environ["SEED"])
        print(f"SEED={self.seed}")
        self.random = random.Random(f"{self.seed}/bench")
        self.drives = [
            DriveModel(
                dut,
                port,
                config=config,
                timing=timing,
                capacity=DATA_OFFSET_BLOCKS + rows,
                seed=self.seed,
            )
            for port in range(config.ports)
        ]
        vectors = config.queue_pairs + 1
        self.host = host(
            dut,
            seed=self.seed,
            pf0_msix_enable=True,
            pf0_msix_table_size=vectors - 1,
            pf0_msix_table_bir=0,
            pf0_msix_table_offset=0x2000,
            pf0_msix_pba_bir=0,
            pf0_msix_pba_offset=0x3000,
            **host_options,
        )
        if pauses:
            device = self.host.device
            for bus in (device.rq_sink, device.rc_source, device.cq_source, device.cc_sink):
                if bus is not None:
                    bus.set_pause_generator(self._pauses(pauses))
        self._memory_bytes = memory_bytes
        self.transport: CocotbTransport
        self.nvme: Nvme
        self.lines = 0
        self.failed: set[int] = set()
        self._workers: list[Task] = []

    def _pauses(self, share: float):
        chance = random.Random(f"{self.seed}/pauses/{self.random.random()}")
        while True:
            yield chance.random() < share

    async def start(self, *, queue_pairs: int | None = None) -> "Bench":
        """Enumerates the card, brings it up and creates its queues."""
        await self.host.start()
        self.transport = CocotbTransport(
            self.host.rc,
            self.host.pci,
            pools=self.host.pools,
            memory_bytes=self._memory_bytes,
            seed=self.seed,
        )
        self.nvme = Nvme(self.transport)
        await self.nvme.start(queue_pairs or self.config.queue_pairs, self.config.queue_depth)
        await self.settle()
        self.lines = sample(self.dut.available)
        return self

    # Arrays

    async def create(
        self,
        level: Level,
        ports: Iterable[int],
        *,
        strip_blocks: int = 4,
        copies: int = 0,
        spans: int = 1,
    ) -> Volume:
        """An array over drives full of random but consistent data, and a volume over all of it."""
        ports = sorted(ports)
        layout = layout_of(level, len(ports), strip_blocks, copies, spans)
        rows = layout.rows([self.drives[port].capacity for port in ports])
        contents = [self.random.randbytes(BLOCK_BYTES) for _ in range(layout.blocks(rows))]
        for block, data in enumerate(contents):
            for place in layout.copies_of(block):
                self.drives[ports[place.position]].storage[DATA_OFFSET_BLOCKS + place.row] = data
        if layout.parities:
            for span in range(spans):
                for row in range(rows):
                    roles = [ports[position] for position in layout.roles(span, row)]
                    block = DATA_OFFSET_BLOCKS + row
                    data = [self.drives[port].storage[block] for port in roles[: layout.data]]
                    syndromes = parity.generate(data, layout.parities)
                    for port, syndrome in zip(roles[layout.data :], syndromes, strict=True):
                        self.drives[port].storage[block] = syndrome
        strip_kib = strip_blocks * BLOCK_BYTES // 1024
        array = await raid.create_array(
            self.nvme,
            level,
            ports,
            strip_kib=strip_kib,
            copies=copies,
            spans=spans,
            assume_consistent=True,
        )
        namespace = await raid.create_volume(self.nvme, array)
        size = (await self.nvme.namespace(namespace)).blocks
        assert size == len(contents), f"{level.name}: {size} blocks, not {len(contents)}"
        return Volume(
            namespace=namespace,
            array=array,
            layout=layout,
            ports=ports,
            rows=rows,
            model=VolumeModel(contents),
        )

    def pull(self, port: int) -> None:
        """Removes a drive; from now on it counts as failed."""
        self.drives[port].remove()
        self.failed.add(port)

    # Accesses

    def buffer(self, blocks: int) -> int:
        """Host memory for the longest transfer of ``blocks`` blocks at any offset in a page."""
        return self.transport.memory.allocate((blocks + 1) * BLOCK_BYTES, PAGE_BYTES)

    async def write(
        self, volume: Volume, first: int, blocks: int, address: int, queue: int = 0, **options
    ) -> int:
        """Writes random data; the status (0: success). The golden model follows."""
        data = self.random.randbytes(blocks * BLOCK_BYTES)
        self.transport.memory.write(address, data)
        write = volume.model.begin_write(first, _blocks(data))
        try:
            await self.nvme.write(volume.namespace, first, blocks, address, queue, **options)
        except NvmeError as error:
            volume.model.end_write(write, done=False)
            return code(error)
        volume.model.end_write(write)
        return 0

    async def read(
        self, volume: Volume, first: int, blocks: int, address: int, queue: int = 0
    ) -> int:
        """Reads, and checks the data and that nothing around it changed; the status."""
        memory = self.transport.memory
        length = blocks * BLOCK_BYTES
        page = address - address % PAGE_BYTES
        end = -(-(address + length) // PAGE_BYTES) * PAGE_BYTES
        memory.write(page, GUARD * (end - page))
        read = volume.model.begin_read(first, blocks)
        try:
            await self.nvme.read(volume.namespace, first, blocks, address, queue)
        except NvmeError as error:
            volume.model.end_read(read, None)
            return code(error)
        finally:
            around = memory.read(page, address - page)
            around += memory.read(address + length, end - address - length)
            assert not around.strip(GUARD), f"bytes around a read at {address:#x} changed"
        volume.model.end_read(read, _blocks(memory.read(address, length)))
        return 0

    async def load(
        self,
        volume: Volume,
        commands: int,
        *,
        workers: int = 10,
        writes: float = 0.5,
        longest: int = 32,
        allowed: Iterable[int] = (0,),
    ) -> list[int]:
        """Random reads and writes over both queues, ``workers`` at once; their statuses.

        Half of them are short; some begin inside a page; writes may overlap anything.
        """
        left = commands
        statuses: list[int] = []

        async def work() -> None:
            nonlocal left
            memory = self.buffer(longest)
            while left > 0:
                left -= 1
                most = min(longest, len(volume.model))
                blocks = self.random.randint(1, 4 if self.random.random() < 0.5 else most)
                blocks = min(blocks, most)
                first = self.random.randint(0, len(volume.model) - blocks)
                address = memory
                if self.random.random() < 0.5:
                    address += 4 * self.random.randrange(PAGE_BYTES // 4)
                queue = self.random.randrange(len(self.nvme.queues))
                if self.random.random() < writes:
                    fua = self.random.random() < 0.2
                    status = await self.write(volume, first, blocks, address, queue, fua=fua)
                else:
                    status = await self.read(volume, first, blocks, address, queue)
                assert status in allowed, f"block {first}, {blocks} blocks: status {status:#x}"
                statuses.append(status)

        tasks = [cocotb.start_soon(work()) for _ in range(workers)]
        self._workers += tasks
        for task in tasks:
            await task
            self._workers.remove(task)
        return statuses

    async def jumping(self, *coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
        """Runs them all; when nothing moves any more, time jumps to the next deadline."""
        tasks = [cocotb.start_soon(coroutine) for coroutine in coroutines]
        while not all(task.done() for task in tasks):
            jumped = await self.jump()
            assert jumped or all(task.done() for task in tasks), f"nothing moves: {self.state()}"
        return [task.result() for task in tasks]

    def abandon(self, volume: Volume, tasks: Iterable[Task]) -> None:
        """After a reset: ends what waits for completions that will not come."""
        for task in [*tasks, *self._workers]:
            task.cancel()
        self._workers.clear()
        volume.model.abandon()

    async def io(self, command: Command, blocks: int = 1, queue: int = 0) -> int:
        """Sends any I/O command with a buffer of ``blocks`` blocks; the status."""
        pair = self.nvme.queues[queue]
        done = await pair.transfer(command, self.buffer(blocks), blocks * BLOCK_BYTES)
        return done.code | done.code_type << 8

    # The end

    async def settle(self) -> None:
        """Returns when nothing has moved for a while: no access, no read, no command."""
        calm = 0
        for _ in range(MOST_CYCLES):
            await RisingEdge(self.dut.clk)
            still = sample(self.dut.quiet) and not self.host.rc.reads_pending
            calm = calm + 1 if still and all(drive.idle for drive in self.drives) else 0
            if calm == QUIET_CYCLES:
                return
        raise AssertionError(f"not quiet within {MOST_CYCLES} cycles: {self.state()}")

    def state(self) -> str:
        """What is still under way, for messages."""
        busy = [f"drive {drive.index}: {drive.state()}" for drive in self.drives if not drive.idle]
        return (
            f"quiet {sample(self.dut.quiet)}, free lines {sample(self.dut.available)}, "
            f"reads out {self.host.outstanding}, reads pending {self.host.rc.reads_pending} {busy}"
        )

    async def jump(self) -> bool:
        """Lets time pass to the design's next deadline, as the native tier does; False: none."""
        await self.settle()
        deadline = sample(self.dut.deadline)
        if deadline == NEVER:
            return False
        self.host.cycle = max(self.host.cycle, deadline)
        await ClockCycles(self.dut.clk, QUIET_CYCLES)
        return True

    async def finish(self, *volumes: Volume) -> None:
        """Checks that nothing is left over, then what the drives hold."""
        for _ in range(JUMPS):
            if not await self.jump():
                break
        else:
            raise AssertionError(f"a timer still runs after {JUMPS} jumps: {self.state()}")
        assert not self.host.outstanding, f"{self.host.outstanding} PCIe reads are still out"
        for queue in self.nvme.queues:
            assert not queue.outstanding, f"queue {queue.identifier}: commands are outstanding"
        free = sample(self.dut.available)
        assert free == self.lines, f"{self.lines - free} lines are lost"
        await self.check_health()
        for volume in volumes:
            self.check(volume)

    async def check_health(self) -> None:
        """Checks that the card counts those drives as failed that should be, and no others."""
        members = {drive.port for drive in await raid.drives(self.nvme) if drive.array is not None}
        failed = {drive.port for drive in await raid.drives(self.nvme) if drive.failed}
        assert failed & members == self.failed & members, (
            f"failed drives: {sorted(failed)}, not {sorted(self.failed)}"
        )

    def check(self, volume: Volume) -> None:
        """Every block where the layout says, every row's parity as ISA-L computes it.

        Blocks of drives that are gone are recovered from the others.
        """
        assert volume.model.idle
        layout = volume.layout
        if layout.parities:
            for span in range(layout.spans):
                for row in range(volume.rows):
                    self._check_row(volume, span, row)
            return
        for block in range(len(volume.model)):
            held = [self._stored(volume, place) for place in layout.copies_of(block)]
            live = [data for data in held if data is not None]
            assert len(set(live)) <= 1, f"copies of block {block} differ"
            for data in live:
                volume.model.check(block, data, layout.level)

    def _stored(self, volume: Volume, place) -> bytes | None:
        return self._read_drive(volume.ports[place.position], place.row)

    def _read_drive(self, port: int, row: int) -> bytes | None:
        if port in self.failed:
            return None
        return self.drives[port].read_block(DATA_OFFSET_BLOCKS + row)

    def _check_row(self, volume: Volume, span: int, row: int) -> None:
        layout = volume.layout
        ports = volume.ports[span * layout.width : (span + 1) * layout.width]
        held = [self._read_drive(port, row) for port in ports]
        for block, data in checked_row(layout, span, row, held):
            volume.model.check(block, data, f"{layout.level} row {row}")


def _blocks(data: bytes) -> list[bytes]:
    return [data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES)]


def code(error: NvmeError) -> int:
    """Status code type and status code of a failed command, as `sim.golden.nvme` names them."""
    return error.completion.code | error.completion.code_type << 8


def run_controller(
    testcase: str,
    *,
    module: str,
    mutant: type | None = None,
    seed: int | None = None,
    timeout: float = TEST_TIMEOUT,
    **parameters,
) -> None:
    """Runs a cocotb test of ``module`` on the controller of `CONFIG`.

    ``mutant`` is what the caller has planted in the design; without it, the design is converted
    once for all tests.
    """
    simulate(
        _controller() if mutant is None else ObservedController(config=CONFIG),
        name="controller" if mutant is None else mutant.__name__,
        module=module,
        testcase=testcase,
        parameters={key.upper(): str(value) for key, value in parameters.items()},
        seed=seed,
        timeout=timeout,
    )


@cache
def _controller() -> Netlist:
    return to_verilog(ObservedController(config=CONFIG), top=TOP)
