"""A model of the line store, as `hdl.drive.drives.Drives` sees it."""

import random
from collections import deque
from collections.abc import Iterator, Sequence

from cocotb_tests.streams import every_cycle, sample, unpack
from hdl.config import BLOCK_BYTES, Config
from hdl.flow.line import write_beat
from hdl.memory.store import READ_LATENCY

STORE_DELAY = 11
"""Cycles from a write of the controller's line store to the first read that must see it: it waits
for four other writers at most, behind one of its own port that does so, and passes three registers.
"""


class StoreModel:
    """Lines as bytes, behind the ports that `Drives` sees; ``stall`` is a chance per cycle."""

    def __init__(self, dut, config: Config, *, stall: float, seed: int):
        self.config = config
        self.lines = [bytes(BLOCK_BYTES)] * config.lines
        self.beats: dict[int, list[int]] = {}
        self.written: dict[tuple[int, int], int] = {}
        self.moved = [0, 0, 0, 0]
        self.last_write_cycle = 0
        self.writable: set[int] = set()
        self.readable: set[int] = set()
        self.stall = stall
        self.cycle = 0
        self._random = random.Random(f"{seed}/store")
        self._dut = dut
        every_cycle(dut.clk, self._run())

    def fill(self, line: int, content: bytes) -> None:
        """Sets the contents of a line."""
        size = self.config.beat_bytes
        self.beats[line] = [
            int.from_bytes(content[n * size : (n + 1) * size], "little")
            for n in range(self.config.beats)
        ]

    def content(self, line: int) -> bytes:
        """The contents of a line."""
        return b"".join(
            beat.to_bytes(self.config.beat_bytes, "little") for beat in self.beats[line]
        )

    def _run(self) -> Iterator[None]:
        dut, count = self._dut, self.config.beats
        layout = write_beat(self.config)
        reads = [
            [
                getattr(dut, f"line_read__{path}__{part}")
                for part in (
                    "request__valid",
                    "request__ready",
                    "request__payload",
                    "response_valid",
                    "response",
                )
            ]
            for path in range(2)
        ]
        writes = [
            [getattr(dut, f"line_write__{path}__{part}") for part in ("valid", "ready", "payload")]
            for path in range(2)
        ]
        answers = [deque([None] * (READ_LATENCY - 1)) for _ in range(2)]
        readies = [path[1] for path in (*reads, *writes)]
        shown: Sequence[bool | None] = [None] * len(readies)
        answered: list[bool | None] = [None, None]
        while True:
            ready = [self._random.random() >= self.stall for _ in readies]
            for number, now in enumerate(ready):
                if now != shown[number]:
                    readies[number].value = int(now)
            shown = ready
            yield
            self.cycle += 1
            for path in range(2):
                taken = None
                if ready[path] and sample(reads[path][0]):
                    line, beat = divmod(sample(reads[path][2]), count)
                    assert line in self.readable, f"line {line} is read but not being written out"
                    taken = self.beats[line][beat]
                    self.moved[path] += 1
                answers[path].append(taken)
                answer = answers[path].popleft()
                if answered[path] != (answer is not None):
                    answered[path] = answer is not None
                    reads[path][3].value = int(answer is not None)
                if answer is not None:
                    reads[path][4].value = answer
                if ready[2 + path] and sample(writes[path][0]):
                    beat = unpack(layout, sample(writes[path][2]))
                    line, place = divmod(beat.address, count)
                    assert line in self.writable, f"line {line} is written without an owner"
                    assert beat.mask == (1 << self.config.beat_dwords) - 1, "partial beat"
                    self.beats.setdefault(line, [0] * count)[place] = beat.data
                    self.written[line, place] = self.cycle
                    self.moved[2 + path] += 1
                    self.last_write_cycle = self.cycle
