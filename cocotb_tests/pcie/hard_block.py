"""Root complex and UltraScale+ block of cocotbext-pcie, with what real ones may do besides."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles, Event, RisingEdge, Timer
from cocotb.utils import get_sim_time
from cocotbext.pcie.core import RootComplex
from cocotbext.pcie.core.tlp import CplStatus, Tlp, TlpAttr, TlpType
from cocotbext.pcie.core.utils import PcieId
from cocotbext.pcie.xilinx.us import UltraScalePlusPcieDevice

from cocotb_tests.streams import every_cycle, unpack
from hdl.pcie.phy.sideband import user_shape

CLOCK_HZ = 250e6
HIGH_MEMORY, HIGH_MEMORY_BYTES = 1 << 40, 1 << 30
"""Host memory that only addresses of 64 bits reach."""
PAGE_BYTES = 4096
CREDITS = {"tfc_nph_av": 15, "fc_nph": 0x80}
"""Ports that tell the credits for reads, and the most that they tell."""
TOLD_CYCLES = {"tfc_nph_av": 1, "fc_nph": 24}
"""How long they do not tell of a read that the block has taken, at most."""
CREDIT_CYCLES = 300
"""How long the host keeps a credit, at most."""
FAULTS = (
    "unsupported",
    "abort",
    "poisoned",
    "lost",
    "refused",
    "short",
    "long",
    "duplicated",
    "misdirected",
    "mismatched",
    "discontinued",
)
"""What the host can do to a read: bad status at once or in the middle, poisoned data, a last
completion that never comes, no completion at all, one with a word too little or too much, one that
comes twice, or with another tag, or with other attributes than the request's; or the hard block
reads one wrongly from its own memory."""
UNANSWERED = ("lost", "refused", "short", "misdirected", "mismatched")
"""Faults after which the read is never completed."""
HARMLESS = "repeated"
"""The only completion of a read came twice: the second is nobody's."""
FORGETTING_NS = 2000
"""From the last completion of a read that will not be answered until the hard block's model may
take its tag for another: longer than a completion's way, shorter than any timeout."""
NO_TAG = 255
"""A tag that no request has."""


@dataclass
class ReadBehaviour:
    """How the host answers memory reads.

    Parameters
    ----------
    latency_ns
        Shortest and longest time until the first completion.
    shuffle
        Completions of different reads overtake each other (those of one read never do).
    split
        ``largest``: completions as long as the maximum payload size allows. ``smallest``: cut at
        every read completion boundary. ``random``: cut at some of them.
    fault
        Called with each read's TLP; returns one of `FAULTS`, or None.
    """

    latency_ns: tuple[int, int] = (0, 0)
    shuffle: bool = False
    split: str = "largest"
    fault: Callable[[Tlp], str | None] | None = None
    planted: list[tuple[str, int]] = field(default_factory=list)


class Host(RootComplex):
    """A root complex whose reads take time, overtake, split and fail as `ReadBehaviour` says."""

    def __init__(self, *args, seed: int = 1, **kwargs):
        super().__init__(*args, **kwargs)
        self.reads = ReadBehaviour()
        self.on_lost: Callable[[int], None] = lambda tag: None
        self.on_discontinued: Callable[[int], None] = lambda tag: None
        self._rng = random.Random(f"{seed}/host")
        self._pending: list[tuple[float, list[Tlp]]] = []
        self._leaving: dict[int, int] = {}  # tag to be forgotten after a completion, by its id
        self._forgetting = 0
        self._arrived = Event()
        cocotb.start_soon(self._answer())

    @property
    def reads_pending(self) -> int:
        """Reads not answered completely."""
        return len(self._pending) + self._forgetting

    async def handle_mem_read_tlp(self, tlp: Tlp) -> None:
        """Prepares the completions of a read; they leave later."""
        low, high = self.reads.latency_ns
        due = get_sim_time("ns") + self._rng.uniform(low, high)
        completions = await self._completions(tlp)
        if completions:
            self._pending.append((due, completions))
            self._arrived.set()

    def forget(self) -> None:
        """Nothing that has not been answered will be."""
        self._pending.clear()

    async def _completions(self, tlp: Tlp) -> list[Tlp]:
        fault = self.reads.fault(tlp) if self.reads.fault else None
        size = 4 * tlp.length
        readable = bool(self.mem_address_space.find_regions(tlp.address, size))
        assert tlp.address % PAGE_BYTES + size <= PAGE_BYTES, "a read crosses 4 KiB"
        if fault == "refused":
            self.reads.planted.append((fault, tlp.address))
            self.on_lost(tlp.tag)
            return []
        if not readable:
            return [Tlp.create_ur_completion_for_tlp(tlp, PcieId(0, 0, 0))]
        data = bytes(await self.mem_address_space.read(tlp.address, size))
        result = []
        first = tlp.address + tlp.get_first_be_offset()
        due = tlp.get_be_byte_count()
        for start, stop in self._cuts(tlp.address, tlp.address + size):
            completion = Tlp.create_completion_data_for_tlp(tlp, PcieId(0, 0, 0))
            completion.byte_count = due - (max(start, first) - first)
            completion.lower_address = max(start, first) & 0x7F
            completion.set_data(data[start - tlp.address : stop - tlp.address])
            result.append(completion)
        return self._spoil(tlp, result, fault) if fault else result

    def _cuts(self, start: int, end: int) -> list[tuple[int, int]]:
        rcb = 128 if self.read_completion_boundary else 64
        most = 128 << self.max_payload_size
        result = []
        while start < end:
            limit = min(end, start - start % rcb + most)
            inner = range(start - start % rcb + rcb, limit, rcb)
            if self.reads.split == "smallest":
                stop = inner[0] if inner else limit
            elif self.reads.split == "random":
                stop = self._rng.choice([*inner, limit])
            else:
                stop = limit
            result.append((start, stop))
            start = stop
        return result

    def _spoil(self, tlp: Tlp, completions: list[Tlp], fault: str) -> list[Tlp]:
        if fault == "duplicated" and len(completions) == 1:
            self.reads.planted.append((HARMLESS, tlp.address))
            return [completions[0], Tlp(completions[0])]
        self.reads.planted.append((fault, tlp.address))
        spoiled = self._spoiled(tlp, completions, fault)
        if fault in UNANSWERED and spoiled:
            self._leaving[id(spoiled[-1])] = tlp.tag
            self._forgetting += 1
        elif fault in UNANSWERED:
            self.on_lost(tlp.tag)
        return spoiled

    def _spoiled(self, tlp: Tlp, completions: list[Tlp], fault: str) -> list[Tlp]:
        place = self._rng.randrange(len(completions))
        victim, last = completions[place], completions[-1]
        if fault == "poisoned":
            victim.ep = True
            return completions
        if fault == "discontinued":
            self.on_discontinued(tlp.tag)
            return completions
        if fault == "lost":
            return completions[:-1]
        if fault == "short":
            last.set_data(bytes(last.data[:-4]) or bytes(4))
            last.byte_count += 4 if last.byte_count == 4 else 0
            return completions
        if fault == "long":
            last.set_data(bytes(last.data) + bytes(4))
            last.byte_count += 4
            return completions
        if fault == "duplicated":
            place = min(place, len(completions) - 2)
            return [*completions[: place + 1], Tlp(completions[place]), *completions[place + 1 :]]
        if fault == "misdirected":
            victim.tag = NO_TAG
            return completions
        if fault == "mismatched":
            victim.attr ^= TlpAttr.RO
            return completions
        status = CplStatus.UR if fault == "unsupported" else CplStatus.CA
        bad = Tlp.create_completion_for_tlp(tlp, PcieId(0, 0, 0), False, status)
        bad.byte_count = completions[place].byte_count
        bad.lower_address = completions[place].lower_address
        return [*completions[:place], bad]

    async def _answer(self) -> None:
        while True:
            if not self._pending:
                self._arrived.clear()
                await self._arrived.wait()
            now = get_sim_time("ns")
            ready = [place for place, (due, _) in enumerate(self._pending) if due <= now]
            if not self.reads.shuffle:
                ready = ready[:1] if ready and ready[0] == 0 else []
            if not ready:
                due = min(due for due, _ in self._pending)
                if not self.reads.shuffle:
                    due = self._pending[0][0]
                await Timer(max(1, round(due - now)), "ns")
                continue
            place = self._rng.choice(ready) if self.reads.shuffle else ready[0]
            completions = self._pending[place][1]
            completion = completions.pop(0)
            if not completions:
                self._pending.pop(place)
            await self.send(completion)
            if id(completion) in self._leaving:
                cocotb.start_soon(self._forget(self._leaving.pop(id(completion))))

    async def _forget(self, tag: int) -> None:
        await Timer(FORGETTING_NS, "ns")
        self.on_lost(tag)
        self._forgetting -= 1


def straddle_strictly(source: Any, rng: random.Random) -> None:
    """Makes a straddled RC interface of the model what PG213 says that it is.

    ``tkeep`` is all ones, what lies beside completions is anything, ``discontinue`` comes in the
    last beat of its completion only, and then no other starts in that beat.
    """
    drive, get, get_nowait, empty = (
        source._drive,
        source._get_frame,
        source._get_frame_nowait,
        source.empty,
    )
    shape = user_shape("rc", source.width)
    words = source.width // 32
    newest: Any = None
    inside = False

    async def get_frame():
        nonlocal newest
        newest = await get()
        return newest

    def get_frame_nowait():
        nonlocal newest
        newest = get_nowait()
        return newest

    def stands_alone() -> bool:
        """Whether the next completion may not begin behind another one in its beat."""
        following = source.queue._queue[0]
        return bool(
            (newest and newest.discontinue)
            or (following.discontinue and len(following) < words)
        )

    async def drive_beat(beat):
        nonlocal inside
        user = unpack(shape, beat.tuser)
        if words == 8:
            ends = sum(end.valid for end in user.end)
        else:
            ends = user.end.bit_count()
        starts = user.start.bit_count()
        inside = inside + starts > ends
        if inside or not newest.discontinue:
            beat.tuser &= ~(1 << source.discontinue_offset)
        for word in range(words):
            if not beat.tkeep >> word & 1:
                beat.tdata |= rng.getrandbits(32) << 32 * word
        beat.tkeep = (1 << words) - 1
        await drive(beat)

    source._drive = drive_beat
    source._get_frame = get_frame
    source._get_frame_nowait = get_frame_nowait
    source.empty = lambda: empty() or stands_alone()
    source.idle = lambda: empty() and not source.active


class HardBlock(UltraScalePlusPcieDevice):
    """The UltraScale+ block: memory writes can lie in it, and completions pass them.

    Sequence numbers come back once no completion can pass their request any more, after a random
    time of up to ``return_cycles``, in order. A write that the block drops has none.

    Attributes
    ----------
    posted_latency_ns
        Shortest and longest time that a memory write takes on its way through the block.
    holds_posted
        Memory writes stay in the block for now.
    lacks_credits
        The block says that the host gives no credit for reads.
    most_reads
        Credits for reads that the host gives, each anew some time after it was used; 0: no end. A
        read that the block takes without a credit is an error.
    reads_in
        Memory reads that the block has taken.
    posted_in, posted_out
        Memory writes that the block has taken, and those that have left it or have been dropped.
    discontinued
        Tags whose next completion with data the block reads wrongly from its own memory.
    """

    def __init__(self, *args, dut, seed: int, **options):
        self.posted_latency_ns: tuple[int, int] = (0, 0)
        self.holds_posted = False
        self.lacks_credits = False
        self.most_reads = 0
        self.reads_in = 0
        self._reads_told = 0
        self._returned = 0
        self.return_cycles = 6
        self.posted_in = 0
        self.posted_out = 0
        self.discontinued: set[int] = set()
        self._dut = dut
        self._rng = random.Random(f"{seed}/block")
        super().__init__(*args, **options)
        for name in CREDITS:
            if hasattr(self._dut, name):
                every_cycle(self.user_clk, self._tell_credits(name))
        if self.rc_straddle:
            straddle_strictly(self.rc_source, random.Random(f"{seed}/rc"))

    async def send(self, tlp) -> None:
        """A packet goes to the link."""
        posted = tlp.fmt_type in (TlpType.MEM_WRITE, TlpType.MEM_WRITE_64)
        if tlp.fmt_type in (TlpType.MEM_READ, TlpType.MEM_READ_64):
            self.reads_in += 1
            if self.most_reads:
                used = self.reads_in - self._returned
                assert used <= self.most_reads, f"{used} reads, {self.most_reads} credits"
                cocotb.start_soon(self._return_credit())
            else:
                self._returned += 1
        if posted:
            self.posted_in += 1
            low, high = self.posted_latency_ns
            if high:
                await Timer(self._rng.uniform(low, high), "ns", round_mode="round")
            while self.holds_posted:
                await RisingEdge(self.user_clk)
        await super().send(tlp)
        self.posted_out += posted

    def _tell_credits(self, name: str) -> Iterator[None]:
        # UltraScale+ tells up to 15 credits, the 7 series up to 127, and 128 if there is no end.
        shown = None
        port, most = getattr(self._dut, name), CREDITS[name]
        taken = deque([0] * TOLD_CYCLES[name], maxlen=TOLD_CYCLES[name])
        while True:
            # Reads of a while ago are told of, others perhaps.
            told = self._rng.choice((taken[0], self.reads_in))
            self._reads_told = max(self._reads_told, told)
            taken.append(self.reads_in)
            left = self.most_reads + self._returned - self._reads_told
            free = min(left, most) if self.most_reads else most
            tells = 0 if self.lacks_credits else free
            if tells != shown:
                port.value = shown = tells
            yield

    async def _return_credit(self) -> None:
        await ClockCycles(self.user_clk, self._rng.randint(1, CREDIT_CYCLES))
        self._returned += 1

    async def _run_rc_logic(self) -> None:
        queue, get = self.rc_queue, self.rc_queue.get

        async def get_one():
            tlp = await get()
            if tlp.tag in self.discontinued and tlp.get_payload_size():
                self.discontinued.remove(tlp.tag)
                tlp.discontinue = True
            return tlp

        queue.get = get_one
        await super()._run_rc_logic()

    async def _run_cfg_ctrl_logic(self) -> None:
        """Of this logic only the configuration space is used, which is enabled all the time."""
        self.config_space_enable = True

    async def _run_cfg_int_logic(self) -> None:
        """Nothing of it is wired: interrupts are memory writes."""

    async def _run_rq_seq_num_logic(self) -> None:
        every_cycle(self.user_clk, self._number_requests())

    def _number_requests(self) -> Iterator[None]:
        dut = self._dut
        places = (0, 1) if self.dw == 512 else (0,)
        names = [name for name in ("rq_seq_num0", "rq_seq_num1") if hasattr(dut, name)]
        waits = 0
        shown = [False, False]
        for place in range(len(names)):
            getattr(dut, f"rq_seq_num{place}").value = 0
            getattr(dut, f"rq_seq_num_vld{place}").value = 0
        while True:
            yield
            if self.rq_seq_num.empty() and not any(shown):
                waits = max(0, waits - 1)
                continue
            for place in places:
                valid = not self.rq_seq_num.empty() and not waits
                shown[place] = valid
                if names:
                    getattr(dut, f"rq_seq_num_vld{place}").value = int(valid)
                if not valid:
                    continue
                number = self.rq_seq_num.get_nowait()
                waits = self._rng.choice((0, 0, self._rng.randint(0, self.return_cycles)))
                if names:
                    getattr(dut, f"rq_seq_num{place}").value = number
            waits = max(0, waits - 1)
