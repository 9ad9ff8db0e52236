"""Drives that hang, the time that passes meanwhile, and the ports that are given up."""

import os
from collections.abc import Iterator
from dataclasses import replace

from cocotb_tests.drive.drive_model import Timing
from cocotb_tests.drive.drives_bench import OF_A_LINE, Bench, sizes
from cocotb_tests.streams import cycles_pass, every_cycle, sample
from hdl.config import TIME_BITS, Config
from hdl.flow.operation import DriveStatus, Opcode, Owner

PORTS = 4
CONFIG = replace(
    sizes(PORTS),
    clock_hz=1_000_000,
    command_timeout_ms=6,
    abort_timeout_ms=1,
    drive_resets=1,
    drive_reset_window_s=1,
)
TICK = 256
SLACK = 600
QUICK = Timing(latency=(0, 100), ending=(0, 20), read=0.8, write=0.8, grant=0.5)


class Ladders(Bench):
    """A bench in which time passes, and the ports that are given up are failed."""

    def __init__(self, dut, *, timing: Timing = QUICK, config: Config = CONFIG):
        seed = int(os.environ["SEED"])
        print(f"SEED={seed}")
        super().__init__(dut, config, seed=seed, timing=timing, active=0.7, stall=0.2)
        self.given_up: list[int] = []
        self.time = 0
        every_cycle(dut.clk, self._pass())

    def _pass(self) -> Iterator[None]:
        dut = self.dut
        while True:
            yield
            self.time += 1
            dut.now.value = self.time & ((1 << TIME_BITS) - 1)
            if sample(dut.fail__valid):
                self.given_up.append(sample(dut.fail__payload))
                dut.failed.value = sum(1 << gone for gone in self.given_up)

    def some(self, port: int, count: int) -> None:
        """Short operations of every kind, each command by itself."""
        for _ in range(count):
            opcode = self.random.choice((Opcode.READ, Opcode.WRITE, Opcode.READ, Opcode.FLUSH))
            owner = self.random.choice((*OF_A_LINE, Owner.COMMAND))
            if opcode is Opcode.WRITE:
                owner = self.random.choice(OF_A_LINE)
            elif opcode is Opcode.FLUSH:
                owner = self.random.choice(list(Owner))
            self.submit(
                port=port,
                opcode=opcode,
                owner=owner,
                block=2 * self.random.randrange(2000),
                place=self.random.randrange(8),
                alone=1,
            )

    def stop(
        self, port: int, hang: int = 1, *, deaf: bool = False, lasting: bool = False
    ) -> None:
        """The drive hangs, and so this port's operations may fail; those of no other port may."""
        drive = self.drives[port]
        drive.hang, drive.deaf, drive.lasting = hang, deaf, lasting
        self.may_fail.add(port)

    def mend(self, port: int) -> None:
        """The drive is well, and is told to work again if it was given up."""
        self.drives[port].hang, self.drives[port].lasting = 0, False
        if port in self.given_up:
            self.given_up.remove(port)
        self.dut.failed.value = sum(1 << gone for gone in self.given_up)

    def write(self, port: int) -> bool:
        """A row's write of a block, a command by itself."""
        return self.submit(
            port=port,
            opcode=Opcode.WRITE,
            owner=Owner.ROW,
            block=2 * self.random.randrange(2000),
            place=self.random.randrange(8),
            alone=1,
        )

    async def reaches(self, time: int) -> None:
        """Nothing happens until then."""
        await self.drain()
        await self.passes(20)
        assert self.time <= time
        self.time = time
        await self.passes(20)

    async def passes(self, cycles: int) -> None:
        """That much time."""
        await cycles_pass(self.dut.clk, cycles)

    def ended(self, status: DriveStatus) -> int:
        """How many operations have ended so since the last time."""
        count, self.statuses[status] = self.statuses[status], 0
        return count
