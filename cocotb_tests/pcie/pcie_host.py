"""A host around a device under test: root complex and UltraScale+ block of cocotbext-pcie.

    host = PcieHost(dut)
    await host.start()
    address, memory = host.allocate(1 << 20)
    await host.write_register(0x14, 1, 4)

The device under test has the ports of `hdl.pcie.phy.ultrascale.UltrascaleShim` (``rq_``, ``rc_``,
``cq_``, ``cc_``), ``status__*`` of `hdl.flow.pcie_status.PcieStatus`, ``now``, ``clk`` and ``rst``.
The model drives clock and reset.
"""

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles, Event, RisingEdge, Timer
from cocotb.utils import get_sim_time
from cocotbext.axi import AxiStreamBus
from cocotbext.pcie.core import RootComplex
from cocotbext.pcie.core.tlp import CplStatus, Tlp, TlpAttr, TlpType
from cocotbext.pcie.core.utils import PcieId
from cocotbext.pcie.xilinx.us import UltraScalePlusPcieDevice
from cocotbext.pcie.xilinx.us.tlp import ErrorCode, Tlp_us

from cocotb_tests.pcie.axis_rules import UltrascaleRules
from cocotb_tests.streams import every_cycle, sample, unpack
from hdl.config import STRADDLE_WIDTH, TIME_BITS
from hdl.flow.pcie_status import PcieStatus
from hdl.flow.register_bus import BAR_BITS
from hdl.pcie.phy.sideband import user_shape

CLOCK_HZ = 250e6
STATUS_PERIOD = 4
"""Cycles between updates of the status inputs that the model does not drive itself."""

DRAIN_CYCLES = 64
"""Cycles in which a TLP that has begun to leave has left, and the hard block has sent it."""

LINK_CYCLES = 250
"""Longer than a TLP is on the link."""

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

SPLIT_TIMEOUT = (round(50e-6 * CLOCK_HZ), round(50e-3 * CLOCK_HZ))
"""The default range of the completion timeout (PCIe base specification 7.8.16)."""

POLL_CYCLES = 16

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
        cocotb.start_soon(self._tell_credits())
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

    async def _tell_credits(self) -> None:
        # UltraScale+ tells up to 15 credits, the 7 series up to 127, and 128 if there is no end.
        name = next((name for name in CREDITS if hasattr(self._dut, name)), None)
        if name is None:
            return
        port, most = getattr(self._dut, name), CREDITS[name]
        taken = deque([0] * TOLD_CYCLES[name], maxlen=TOLD_CYCLES[name])
        while True:
            # Reads of a while ago are told of, others perhaps.
            told = self._rng.choice((taken[0], self.reads_in))
            self._reads_told = max(self._reads_told, told)
            taken.append(self.reads_in)
            left = self.most_reads + self._returned - self._reads_told
            free = min(left, most) if self.most_reads else most
            port.value = 0 if self.lacks_credits else free
            await RisingEdge(self.user_clk)

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

    async def _run_rq_seq_num_logic(self) -> None:
        dut = self._dut
        places = (0, 1) if self.dw == 512 else (0,)
        names = [name for name in ("rq_seq_num0", "rq_seq_num1") if hasattr(dut, name)]
        waits = 0
        shown = [False, False]
        for place in range(len(names)):
            getattr(dut, f"rq_seq_num{place}").value = 0
            getattr(dut, f"rq_seq_num_vld{place}").value = 0
        while True:
            await RisingEdge(self.user_clk)
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


class PcieHost:
    """Root complex, hard block and device under test, connected.

    ``TRACKS``: the hard block has a table of the reads that it waits for (PG213, "Tag Management
    for Non-Posted Transactions").

    Parameters
    ----------
    max_payload, max_read_request
        Bytes: the link's maximum payload and the device's maximum read request.
    rcb
        Read completion boundary, 64 or 128 bytes.
    generation, lanes
        Of the hard block.
    slot_lanes
        Lanes of the slot, if fewer: the link is as wide as the narrower of the two.
    straddle
        RC has the straddle option, at the widths that have it.
    drive_now
        Count clock cycles on the device's ``now``.
    split_timeout
        Shortest and longest time, in cycles of ``now``, from the last sign of a read until the hard
        block's own timer ends it.
    device_options
        More arguments of `UltraScalePlusPcieDevice`, for example its MSI-X table.

    Attributes
    ----------
    rc, device, function
        The models. ``rc.reads`` is the `ReadBehaviour`.
    rules
        What the streams are held to, always (`cocotb_tests.pcie.axis_rules`).
    """

    TRACKS = True

    def __init__(
        self,
        dut,
        *,
        seed: int = 1,
        max_payload: int = 256,
        max_read_request: int = 512,
        rcb: int = 64,
        generation: int = 3,
        lanes: int = 8,
        slot_lanes: int | None = None,
        straddle: bool = True,
        drive_now: bool = True,
        split_timeout: tuple[int, int] = SPLIT_TIMEOUT,
        **device_options,
    ):
        self.dut = dut
        self._straddled = straddle and hasattr(dut, "rc_tdata") and (
            len(dut.rc_tdata) >= STRADDLE_WIDTH
        )
        self.cycle = 0
        self._max_read_request = max_read_request
        self._drive_now = drive_now
        self._split_timeout = split_timeout
        self._bar: Any = None
        self.pci: Any = None
        self._withheld = False  # bus mastering is off for the device already
        self.request_beats = 0
        dut.now.value = 0
        # The models log every TLP (slower than simulating it), and warn of the faults planted.
        logging.getLogger("cocotb.pcie").setLevel(logging.ERROR)
        for name in PcieStatus().members:
            getattr(dut, f"status__{name}").value = 0
        self.rc = Host(seed=seed)
        high = self.rc.mem_address_space.create_pool(HIGH_MEMORY, HIGH_MEMORY_BYTES)
        self.pools = [self.rc.mem_pool, high]
        self._rng = random.Random(f"{seed}/pools")
        self.rc.max_payload_size = (max_payload // 128 - 1).bit_length()
        self.rc.read_completion_boundary = rcb == 128
        self.device = HardBlock(
            dut=dut,
            seed=seed,
            pcie_generation=generation,
            pcie_link_width=lanes,
            user_clk_frequency=CLOCK_HZ,
            alignment="dword",
            max_payload_size=max_payload,
            enable_client_tag=True,
            enable_extended_tag=True,
            user_clk=dut.clk,
            user_reset=dut.rst,
            rq_bus=self._bus("rq"),
            rc_bus=self._bus("rc"),
            cq_bus=self._bus("cq"),
            cc_bus=self._bus("cc"),
            rc_straddle=self._straddled,
            rc_4tlp_straddle=self._straddled and len(dut.rc_tdata) > STRADDLE_WIDTH,
            cfg_max_payload=dut.status__max_payload,
            cfg_max_read_req=dut.status__max_read_request,
            **device_options,
        )
        for bus in (
            self.device.rq_sink,
            self.device.rc_source,
            self.device.cq_source,
            self.device.cc_sink,
        ):
            assert bus is not None
            bus.log.setLevel(logging.WARNING)
        self.function = self.device.functions[0]
        self.function.configure_bar(0, 1 << BAR_BITS, ext=True)
        slot = self.rc.make_port()
        slot.downstream_port.max_link_width = slot_lanes
        slot.connect(self.device)
        self.rc.on_lost = self._forget
        self.rc.on_discontinued = self.device.discontinued.add
        self.rules = self._watch()

    def _watch(self) -> Any:
        """Begins to hold the streams to their rules."""
        return UltrascaleRules(
            self.dut, limits=self.limits, straddled=self._straddled, reset=self.resetting
        )

    def resetting(self) -> bool:
        """The link is down, or everything is being reset."""
        return bool(sample(self.dut.rst) or sample(self.dut.status__link_reset))

    def limits(self) -> tuple[int, int, bool]:
        """Maximum payload and read request in bytes, and whether extended tags are enabled."""
        control = self.function.pcie_cap
        return (
            128 << control.max_payload_size,
            128 << control.max_read_request_size,
            bool(control.extended_tag_field_enable),
        )

    def _bus(self, prefix: str) -> Any:
        return AxiStreamBus.from_prefix(self.dut, prefix)

    def _beats_left(self) -> int:
        """Beats of requests that left in the last cycle."""
        return sample(self.dut.rq_tvalid) & sample(self.dut.rq_tready)

    def _forget(self, tag: int) -> None:
        """No answer comes any more. A block that keeps a table of tags has the tag until its own
        timer runs out, and says so."""
        request = self.device.active_request[tag]
        if self.TRACKS and request is not None:
            cocotb.start_soon(self._time_out(tag, request))
        else:
            self.device.active_request[tag] = None

    async def _time_out(self, tag: int, request) -> None:
        dut, mask = self.dut, (1 << TIME_BITS) - 1
        patience = self._rng.randrange(*self._split_timeout)
        began = sample(dut.now)
        while (sample(dut.now) - began) & mask < patience:
            await ClockCycles(dut.clk, POLL_CYCLES)
        # It has not been reset meanwhile, nor told of the tag.
        if self.device.active_request[tag] is request:
            self._terminate(tag, request, ErrorCode.TIMEOUT)

    async def start(self) -> None:
        """Leaves reset, enumerates, and allows bus mastering."""
        every_cycle(self.dut.clk, self._run())
        await RisingEdge(self.dut.rst)
        while sample(self.dut.rst):
            await RisingEdge(self.dut.clk)
        await self.rc.enumerate()
        device: Any = self.rc.find_device(self.function.pcie_id)
        await device.enable_device()
        await device.set_master()
        await device.set_readrq((self._max_read_request // 128 - 1).bit_length())
        self._bar = device.bar_window[0]
        self.pci = device
        for _ in range(2 * STATUS_PERIOD):
            await RisingEdge(self.dut.clk)

    async def withdraw_bus_master(self) -> None:
        """Ends bus mastering as the hard block does: it still sends what it has taken."""
        dut, device = self.dut, self.device
        self._withheld = True
        dut.status__bus_master.value = 0
        for _ in range(DRAIN_CYCLES):
            await RisingEdge(dut.clk)
        assert device.rq_sink is not None
        while not device.rq_sink.empty() or not device.rq_np_queue.empty():
            await RisingEdge(dut.clk)
        self.function.bus_master_enable = False
        self.request_beats = 0

    def hide_bus_master(self, hidden: bool) -> None:
        """The card sees bus mastering off, or as it is; the block sends what it takes."""
        self._withheld = hidden

    async def restore_bus_master(self) -> None:
        """Allows bus mastering again."""
        self.function.bus_master_enable = True
        self._withheld = False
        for _ in range(2 * STATUS_PERIOD):
            await RisingEdge(self.dut.clk)

    async def reset_function(self, *, terminate: bool) -> int:
        """A function level reset up to its end, without bus mastering; the cycles it took.

        ``terminate``: the hard block ends the outstanding reads by itself (PG213, error code 8 of
        the RC descriptor) and no completion is passed on; else they come in time.
        """
        dut, function, device = self.dut, self.function, self.device
        began = self.cycle
        dut.status__function_reset.value = 1
        await self.withdraw_bus_master()
        function.msix_cap.msix_enable = False
        function.msix_cap.msix_function_mask = False
        if terminate:
            for tag, request in enumerate(device.active_request):
                if request is not None:
                    self._terminate(tag, request, ErrorCode.FLR)
        while not sample(dut.reset_done):
            await RisingEdge(dut.clk)
        took = self.cycle - began
        assert not self.outstanding, "the reset was done with reads outstanding"
        for _ in range(DRAIN_CYCLES):
            await RisingEdge(dut.clk)
            assert sample(dut.reset_done), "done was taken back"
        dut.status__function_reset.value = 0
        return took

    def stall_requests(self, stalls: bool) -> None:
        """The block takes no request, until it does again."""
        assert self.device.rq_sink is not None
        self.device.rq_sink.pause = stalls

    async def reset_link(self, *, cycles: int, discard=None) -> None:
        """The link is reset: nothing that was on its way arrives, on either side.

        ``discard``: a signal that is to follow the reset, as `hdl.pcie.endpoint.Endpoint` asks.
        Bus mastering and MSI-X are off afterwards.
        """
        dut, device, function = self.dut, self.device, self.function
        self._withheld = True
        dut.status__link_reset.value = 1
        await RisingEdge(dut.clk)
        if discard is not None:
            discard.value = 1
        dut.status__bus_master.value = 0
        function.bus_master_enable = False
        function.msix_cap.msix_enable = False
        function.msix_cap.msix_function_mask = False
        # What the models hold is lost; completions that they have sent belong to nobody.
        await RisingEdge(dut.clk)
        self._forget_streams()
        self.rules.forget()
        device.active_request[:] = [None] * len(device.active_request)
        device.cpld_credit_count = 0
        for _ in range(cycles):
            await RisingEdge(dut.clk)
        sources: list[Any] = [device.rc_source, device.cq_source]
        while not all(source.idle() for source in sources):
            await RisingEdge(dut.clk)
        for _ in range(STATUS_PERIOD):
            await RisingEdge(dut.clk)
        dut.status__link_reset.value = 0
        # Reads that were on the link are answered by nobody.
        for _ in range(3):
            self.rc.forget()
            for _ in range(LINK_CYCLES):
                await RisingEdge(dut.clk)

    def _forget_streams(self) -> None:
        """What has come of a packet is no packet."""
        sink: Any = self.device.rq_sink
        if self.rules.rq.words:
            self.rules.rq.words.clear()
            end = sink._transaction_obj()
            end.tlast, end.tuser = 1, 1 << sink.discontinue_offset
            sink.sample_obj = end
            sink.sample_sync.set()

    def _terminate(self, tag: int, request, error: ErrorCode) -> None:
        """The block ends a read by itself."""
        self.device.active_request[tag] = None
        end = Tlp_us(Tlp.create_completion_for_tlp(request, PcieId(0, 0, 0), False, CplStatus.SC))
        end.error_code = error
        end.request_completed = True
        self.device.rx_buf_cplh_fc_count += 1
        self.device.rc_queue.put_nowait(end)

    def allocate(self, size: int) -> tuple[int, Any]:
        """Host memory: its bus address, and its contents as a mutable buffer.

        At random below 4 GiB or above.
        """
        memory = self._rng.choice(self.pools).alloc_region(size)
        address = memory.get_absolute_address(0)
        assert address is not None
        return address, memory

    async def read_register(self, address: int, size: int = 4) -> int:
        """An access to BAR 0."""
        return int.from_bytes(await self._bar.read(address, size), "little")

    async def write_register(self, address: int, value: int, size: int = 4) -> None:
        """An access to BAR 0."""
        await self._bar.write(address, value.to_bytes(size, "little"))

    async def request(self, tlp_type: TlpType, address: int, **fields) -> list[Tlp]:
        """Sends any request at a BAR 0 address and returns its completions (none if posted)."""
        tlp = Tlp()
        tlp.fmt_type = tlp_type
        tlp.requester_id = PcieId(0, 0, 0)
        tlp.address = self.bar_address + address
        for name, value in fields.items():
            if name == "data":
                tlp.set_data(value)
            else:
                setattr(tlp, name, value)
        if tlp_type in (TlpType.MEM_WRITE, TlpType.MEM_WRITE_64):
            await self.rc.perform_posted_operation(tlp)
            return []
        return await self.rc.perform_nonposted_operation(tlp, timeout=20_000, timeout_unit="ns")

    @property
    def bar_address(self) -> int:
        """Bus address of BAR 0."""
        return self.pci.bar_addr[0]

    @property
    def outstanding(self) -> int:
        """Reads of the device that the block still waits for."""
        return sum(request is not None for request in self.device.active_request)

    def _run(self) -> Iterator[None]:
        dut = self.dut
        while True:
            yield
            self.cycle += 1
            self.request_beats += self._beats_left()
            if self._drive_now:
                dut.now.value = self.cycle & ((1 << TIME_BITS) - 1)
            if self.cycle % STATUS_PERIOD == 0:
                function = self.function
                dut.status__bus_master.value = int(
                    function.bus_master_enable and not self._withheld
                )
                dut.status__rcb.value = int(self.rc.read_completion_boundary)
                dut.status__msix_enable.value = int(function.msix_cap.msix_enable)
                dut.status__msix_mask.value = int(function.msix_cap.msix_function_mask)
                control = function.pcie_cap
                dut.status__extended_tag.value = int(control.extended_tag_field_enable)
                dut.status__relaxed_ordering.value = int(control.enable_relaxed_ordering)
                dut.status__id_ordering.value = int(control.ido_request_enable)
                dut.status__id_completion.value = int(control.ido_completion_enable)
