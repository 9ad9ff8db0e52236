"""Plain-Python models of what is on the other side of the PCIe front end.

`CompletionModel` is a host that answers memory reads: late, in any order between tags, cut at the
read completion boundary, with errors on request. `LineMemory` answers a read port.
"""

import random
from collections import deque
from dataclasses import dataclass, field, replace

import cocotb
from cocotb.triggers import RisingEdge

from cocotb_tests.streams import pack, sample
from hdl.config import Config
from hdl.pcie.tlp import CompletionStatus, completion_beat

PAGE_BYTES = 4096

OLDEST = 0.2
"""Chance that a completion is one of the oldest read."""

FAULTS = (
    "unsupported",
    "abort",
    "poisoned",
    "byte_count",
    "lower_address",
    "no_data",
    "cut_short",
    "too_long",
    "lost",
    "duplicated",
)
"""What can go wrong with the completions of a read."""


def host_word(address: int) -> int:
    """The contents of host memory at a word address, different everywhere."""
    return (address // 4 * 0x9E3779B1 ^ (address >> 20)) & 0xFFFFFFFF


@dataclass
class Completion:
    """One completion TLP."""

    tag: int
    address: int
    dwords: int
    byte_count: int
    status: CompletionStatus = CompletionStatus.SC
    poisoned: bool = False
    completed: bool = False
    data: list[int] = field(default_factory=list)

    def beats(self, config: Config) -> list[int]:
        """The packed beats of the completion stream."""
        width = config.beat_dwords
        count = max(1, -(-len(self.data) // width))
        layout = completion_beat(config)
        return [
            pack(
                layout,
                tag=self.tag,
                status=self.status,
                poisoned=self.poisoned,
                dwords=self.dwords,
                byte_count=self.byte_count,
                lower_address=self.address % PAGE_BYTES,
                request_completed=self.completed,
                data=sum(
                    word << 32 * place
                    for place, word in enumerate(self.data[index * width : (index + 1) * width])
                ),
                first=index == 0,
                last=index == count - 1,
            )
            for index in range(count)
        ]


def split_completions(
    rng: random.Random, *, tag: int, address: int, dwords: int, rcb: int, most: int
) -> list[Completion]:
    """The completions of a read, cut at random multiples of ``rcb``, at most ``most`` bytes."""
    result = []
    end = address + 4 * dwords
    while address < end:
        limit = (address // most + 1) * most
        cuts = list(range((address // rcb + 1) * rcb, min(end, limit), rcb))
        stop = rng.choice([*cuts, min(end, limit)])
        result.append(
            Completion(
                tag=tag,
                address=address,
                dwords=(stop - address) // 4,
                byte_count=end - address,
                completed=stop == end,
                data=[host_word(place) for place in range(address, stop, 4)],
            )
        )
        address = stop
    return result


def spoil(rng: random.Random, completions: list[Completion], fault: str) -> list[Completion]:
    """Plants ``fault`` in the completions of a read."""
    # That the last one comes twice is no fault.
    place = rng.randrange(len(completions) - (fault == "duplicated"))
    victim = completions[place]
    if fault in ("unsupported", "abort"):
        victim.status = CompletionStatus.UR if fault == "unsupported" else CompletionStatus.CA
        victim.data, victim.dwords, victim.completed = [], 0, True
        return completions[: place + 1]
    if fault == "poisoned":
        victim.poisoned = True
    elif fault == "byte_count":
        victim.byte_count += rng.choice((-4, 4, 64))
    elif fault == "lower_address":
        victim.address += rng.choice((4, 64, -4))
    elif fault == "no_data":
        victim.data, victim.dwords = [], 0
    elif fault == "cut_short":
        victim.completed = True
        if place == len(completions) - 1:
            victim.dwords += 1
    elif fault == "too_long":
        victim.dwords += victim.byte_count // 4
    elif fault == "lost":
        return completions[:place] + completions[place + 1 :]
    elif fault == "duplicated":
        return [*completions[: place + 1], replace(victim), *completions[place + 1 :]]
    return completions


class CompletionModel:
    """Answers the reads given to `take`: `next_beats` is the next completion to send.

    ``depth``: reads that wait before one is answered (reordering needs some). ``fault_rate``:
    chance that a read goes wrong; the fault and the tag are noted in ``faults``. ``repeat_rate``:
    chance that the last completion of a read comes twice, at once; counted in ``repeated``.
    """

    def __init__(self, config: Config, rng: random.Random, *, rcb=64, most=256, fault_rate=0.0):
        self.config = config
        self.rng = rng
        self.rcb = rcb
        self.most = most
        self.fault_rate = fault_rate
        self.repeat_rate = 0.0
        self.repeated = 0
        self.faults: list[tuple[str, int]] = []
        self.headers_out = 0
        self.headers_most = 0
        self._queues: list[list[Completion]] = []

    def take(self, *, tag: int, address: int, dwords: int) -> str | None:
        """A read arrives; returns the fault planted, if any."""
        completions = split_completions(
            self.rng, tag=tag, address=address, dwords=dwords, rcb=self.rcb, most=self.most
        )
        fault = None
        if self.rng.random() < self.fault_rate:
            fault = self.rng.choice(FAULTS)
            alone = len(completions) == 1
            if alone and (fault == "duplicated" or (fault == "lost" and self.rng.random() < 0.5)):
                fault = "poisoned"
            completions = spoil(self.rng, completions, fault)
            self.faults.append((fault, tag))
        if completions:
            self._queues.append(completions)
        return fault

    @property
    def waiting(self) -> int:
        """Reads with completions still to be sent."""
        return len(self._queues)

    def next_beats(self) -> list[int] | None:
        """A completion of a read picked at random, those of one read in order. Each time the oldest
        read may be the one, so that none waits for ever."""
        if not self._queues:
            return None
        oldest = self.rng.random() < OLDEST
        queue = self._queues[0] if oldest else self.rng.choice(self._queues)
        completion = queue.pop(0)
        beats = completion.beats(self.config)
        if not queue:
            self._queues.remove(queue)
            if self.rng.random() < self.repeat_rate:
                self.repeated += 1
                return 2 * beats
        return beats


class LineMemory:
    """Answers a `hdl.flow.line.ReadPort` from a dictionary of words, after ``latency``."""

    def __init__(self, dut, name: str, config: Config, *, latency: int, seed, active: float = 1.0):
        self.words: dict[int, int] = {}
        self.reads = 0
        self.active = active
        self._config = config
        self._latency = latency
        self._rng = random.Random(f"{seed}/{name}")
        self._dut = dut
        self._valid = getattr(dut, f"{name}__request__valid")
        self._address = getattr(dut, f"{name}__request__payload")
        self._ready = getattr(dut, f"{name}__request__ready")
        self._response_valid = getattr(dut, f"{name}__response_valid")
        self._response = getattr(dut, f"{name}__response")
        self._ready.value = 0
        self._response_valid.value = 0
        cocotb.start_soon(self._run())

    def word(self, address: int) -> int:
        """The word at a word address; different everywhere unless written."""
        default = (address * 0x85EBCA6B ^ 0x5EED) & 0xFFFFFFFF
        return self.words.get(address, default)

    def beat(self, address: int) -> int:
        """The beat at a beat address."""
        width = self._config.beat_dwords
        return sum(self.word(address * width + place) << 32 * place for place in range(width))

    async def _run(self) -> None:
        pipeline: deque[int | None] = deque([None] * (self._latency - 1))
        while True:
            ready = self._rng.random() < self.active
            self._ready.value = int(ready)
            await RisingEdge(self._dut.clk)
            taken = ready and sample(self._valid) and not sample(self._dut.rst)
            pipeline.append(sample(self._address) if taken else None)
            self.reads += bool(taken)
            answer = pipeline.popleft()
            self._response_valid.value = int(answer is not None)
            if answer is not None:
                self._response.value = self.beat(answer)


def apply_beat(words: dict[int, int], config: Config, address: int, data: int, mask: int) -> None:
    """Writes a masked beat into a dictionary of words."""
    for place in range(config.beat_dwords):
        if mask >> place & 1:
            words[address * config.beat_dwords + place] = data >> 32 * place & 0xFFFFFFFF


