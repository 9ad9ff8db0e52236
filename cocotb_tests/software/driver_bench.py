"""The host driver on a functional card in plain Python."""

import random
from collections.abc import Coroutine
from typing import Any

from sim.golden import nvme as golden
from sim.golden.card import Card
from sw.driver.commands import (
    BLOCK_BYTES,
)
from sw.driver.native import BufferMemory, NativeTransport
from sw.driver.nvme import Nvme

MEMORY_BYTES = 4 << 20
MEMORY_BASE = 0x1_0000_0000
MSI_BASE = 0xFEE0_0000
COMMAND_NS = 100
PAIRS = 2
DEPTH = 8


class CardHarness:
    """The functional card in the place of the native harness; a command takes `COMMAND_NS`."""

    def __init__(self, *, seed: int = 1, **options: int):
        self.memory = memoryview(bytearray(MEMORY_BYTES))
        self.memory_base = MEMORY_BASE
        self.msi_address = MSI_BASE
        self.now_ns = 0.0
        self.status: dict[str, int] = {}
        self.vectors: dict[int, int] = {}
        self.doorbells: list[tuple[int, int]] = []
        self._events: list[tuple] = []
        self._random = random.Random(seed)
        options = {"queue_pairs": PAIRS, "queue_depth": DEPTH} | options
        self.card = Card(
            BufferMemory(self.memory, MEMORY_BASE), self._interrupt, seed=seed, **options
        )

    def _interrupt(self, vector: int) -> None:
        assert self.status.get("msix_enable") and self.vectors[16 * vector] == MSI_BASE
        event = ("interrupt", self.vectors[16 * vector + 8])
        if event not in self._events:
            self._events.append(event)

    def set_status(self, name: str, value: int) -> None:
        self.status[name] = value

    def mmio_read32(self, offset: int) -> int:
        return self.card.read32(offset)

    def mmio_write32(self, offset: int, value: int) -> None:
        if offset >= golden.MSIX_TABLE:
            self.vectors[offset - golden.MSIX_TABLE] = value
            return
        if offset >= golden.DOORBELLS:
            self.doorbells.append((offset - golden.DOORBELLS, value))
        self.card.write32(offset, value)

    def run(self, until_ns: float | None = None) -> list[tuple]:
        """Carries out a few commands at a time, so that completions come in batches."""
        for _ in range(self._random.randint(1, 4)):
            if until_ns is not None and self.now_ns + COMMAND_NS > until_ns:
                break
            if not self.card.step():
                break
            self.now_ns += COMMAND_NS
        if self._events:
            events, self._events = self._events, []
            return events
        if until_ns is None:
            return [("idle",)]
        self.now_ns = max(self.now_ns, until_ns)
        return [("time",)]


class Bench:
    """A driver on a functional card."""

    def __init__(self, **options: int):
        self.harness: Any = CardHarness(**options)
        self.card = self.harness.card
        self.transport = NativeTransport(self.harness, PAIRS + 1)
        self.memory = self.transport.memory
        self.nvme = Nvme(self.transport)
        self.run = self.transport.run

    def start(self, pairs: int = PAIRS, depth: int = DEPTH) -> "Bench":
        self.run(self.nvme.start(pairs, depth))
        return self

    async def together(self, coroutines: list[Coroutine[Any, Any, None]]) -> None:
        """Runs all of them at once, to the end."""
        done = self.transport.event()
        left = len(coroutines)

        async def one(coroutine: Coroutine[Any, Any, None]) -> None:
            nonlocal left
            await coroutine
            left -= 1
            if not left:
                done.set()

        for coroutine in coroutines:
            self.transport.spawn(one(coroutine))
        await done.wait()


def pattern(block: int) -> bytes:
    """What the tests store in a block."""
    return block.to_bytes(4, "little") * (BLOCK_BYTES // 4)


# Bringing up
