"""Drives behind a room of `cocotb_tests.metadata.page_room`, and what is found on them."""

import random

from cocotb_tests.drive.drive_model import RANDOM, DriveModel, Timing
from cocotb_tests.metadata.page_room import SIZES
from cocotb_tests.metadata.superblock_pages import SECTORS, expected, kept_words
from cocotb_tests.streams import cycles_pass, sample, wait_until
from hdl.config import SECTORS_PER_BLOCK
from hdl.metadata.superblock import BLOCK, KEPT_WORDS, Finding


class PageBench:
    """A drive of `SECTORS` at each port. ``name`` makes its random choices its own."""

    def __init__(self, dut, *, seed: int, name: str, timing: Timing = RANDOM):
        self.dut = dut
        self.random = random.Random(f"{seed}/{name}")
        blocks = SECTORS // SECTORS_PER_BLOCK
        self.drives = [
            DriveModel(dut, port, config=SIZES, timing=timing, capacity=blocks, seed=seed)
            for port in range(SIZES.ports)
        ]
        dut.kept_read__address.value = 0

    async def kept(self, port: int) -> list[int]:
        """What is kept of the drive at a port."""
        words = []
        for number in range(KEPT_WORDS):
            self.dut.kept_read__address.value = port * KEPT_WORDS + number
            await cycles_pass(self.dut.clk, 2)
            words.append(sample(self.dut.kept_read__data))
        return words

    async def check(self) -> list[Finding]:
        """What is known of each drive, which must be what it holds."""
        await cycles_pass(self.dut.clk, 3)  # a drive that has just gone is known no more
        present = sum(1 << port for port, drive in enumerate(self.drives) if drive.present)
        known = self.dut.known
        await wait_until(self.dut, lambda: sample(known) == present, cycles=40_000, what="known")
        found = []
        for port, drive in enumerate(self.drives):
            if not drive.present:
                continue
            page = drive.storage[BLOCK]
            finding = Finding(sample(getattr(self.dut, f"findings__{port}")))
            wanted = Finding.UNREADABLE if drive.bad_reads else expected(page)
            assert finding == wanted, f"{port}: {finding}, not {wanted}"
            if finding == Finding.VALID:
                assert await self.kept(port) == kept_words(page), port
            found.append(finding)
        return found
