"""The AXI4-Stream side of the Xilinx 7-series PCIe block (PG054), in front of cocotbext-pcie.

What is behind the streams (link, configuration space, flow control) is cocotbext-pcie's model of
the UltraScale+ block; TLPs are packed and unpacked by its `Tlp`. Only how they lie on the two
streams is written here: raw headers, byte order, straddling, and BAR hits.
"""

import logging
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest.mock import patch

import cocotb
from cocotb.queue import Queue
from cocotb.triggers import RisingEdge
from cocotbext.pcie.core.tlp import Tlp, TlpFmt
from cocotbext.pcie.xilinx.us import usp_model
from cocotbext.pcie.xilinx.us.tlp import Tlp_us

from cocotb_tests.pcie.axis_rules import Series7Rules, check_request
from cocotb_tests.pcie.pcie_host import PcieHost
from cocotb_tests.streams import sample

WORD_BYTES = 4
WAITING = 2
"""TLPs that wait for the receive stream, in each direction."""

STRADDLES = 0.7
"""How often a TLP begins where the one before it ended, if it can."""

MESSAGES = (12, 13, 14)
"""Request types of messages in the UltraScale+ block's descriptor."""

MESSAGE = 0b001_10100 << 24
"""Format and type of a message without data, terminated at its receiver."""

FOUR_WORD_HEADERS = (TlpFmt.FOUR_DW, TlpFmt.FOUR_DW_DATA)


def to_words(raw: bytes) -> list[int]:
    """A packed TLP as words: byte 0 of each is in bits 31:24."""
    return [word for (word,) in struct.iter_unpack(">L", raw)]


def to_bytes(words: list[int]) -> bytes:
    """The reverse."""
    return b"".join(struct.pack(">L", word) for word in words)


@dataclass
class Bus:
    """Stands for a stream of the UltraScale+ block: its width and what carries it here."""

    streams: "Streams"
    tdata: list[None] = field(default_factory=list)


@dataclass
class Packet:
    """A TLP for the receive stream."""

    words: list[int]
    bar_hit: int
    poisoned: bool


class Streams:
    """Drives ``rx_*`` and takes ``tx_*``; TLPs of either kind in order of arrival."""

    def __init__(self, dut, seed: int, pause: float):
        self.dut = dut
        self.width = len(dut.rx_tdata)
        self.straddled = 0
        self.sent = 0
        self.received: Queue[Packet] = Queue(maxsize=WAITING)
        self.requests: Queue[Tlp] = Queue()
        self.completions: Queue[Tlp] = Queue()
        self._rng = random.Random(f"{seed}/series7")
        self._pause = pause
        self.stalled = False
        self._words: list[int] = []
        self.limits: Callable[[], tuple[int, int, bool]]
        self._current: Packet | None = None
        self._place = 0
        dut.rx_tvalid.value = 0
        dut.tx_tready.value = 0
        cocotb.start_soon(self._drive())
        cocotb.start_soon(self._take())

    @property
    def idle(self) -> bool:
        """Nothing is on the receive stream, nor waits for it."""
        return self._current is None and self.received.empty()

    def forget(self) -> None:
        """The link is reset: what is on the streams, or waits for them, is lost."""
        self._words.clear()
        for queue in (self.received, self.requests, self.completions):
            while not queue.empty():
                queue.get_nowait()

    def _next(self) -> bool:
        if self._current is None and not self.received.empty():
            self._current, self._place = self.received.get_nowait(), 0
        return self._current is not None

    def _fill(self, words: list[int], at: int) -> int | None:
        """Puts words of the current TLP from place ``at`` on; where it ended, if it did."""
        assert self._current is not None
        part = self._current.words[self._place : self._place + len(words) - at]
        words[at : at + len(part)] = part
        self._place += len(part)
        if self._place < len(self._current.words):
            return None
        self._current = None
        return at + len(part) - 1

    def _beat(self) -> tuple[int, int, int, int]:
        """The next beat: data, tuser, tlast, tkeep."""
        width = self.width // 32
        words = [self._rng.getrandbits(32) for _ in range(width)]
        packet = self._current
        assert packet is not None
        begins = self._place == 0
        end = self._fill(words, 0)
        user = packet.poisoned << 1 | packet.bar_hit << 2
        keep = (1 << WORD_BYTES * (width if end is None else end + 1)) - 1
        last = int(end is not None)
        if width == 4:
            user |= begins << 14
            if end is not None:
                user |= 1 << 21 | (WORD_BYTES * end + 3) << 17
            if (
                end is not None
                and end < 2
                and self._rng.random() < STRADDLES
                and self._next()
            ):
                assert self._current is not None
                self.straddled += 1
                user = user & ~(0xFF << 2 | 1 << 1) | 1 << 14 | 8 << 10
                user |= self._current.poisoned << 1 | self._current.bar_hit << 2
                assert self._fill(words, 2) is None
            keep, last = self._rng.getrandbits(16), self._rng.getrandbits(1)  # not used
        data = sum(word << 32 * place for place, word in enumerate(words))
        return data, user, last, keep

    async def _drive(self) -> None:
        dut = self.dut
        while True:
            if self._rng.random() < self._pause or not self._next():
                dut.rx_tvalid.value = 0
                await RisingEdge(dut.clk)
                continue
            data, user, last, keep = self._beat()
            dut.rx_tdata.value = data
            dut.rx_tuser.value = user
            dut.rx_tlast.value = last
            dut.rx_tkeep.value = keep
            dut.rx_tvalid.value = 1
            await RisingEdge(dut.clk)
            while not sample(dut.rx_tready):
                await RisingEdge(dut.clk)

    async def _take(self) -> None:
        dut = self.dut
        words = self._words
        while True:
            ready = self._rng.random() >= self._pause and not self.stalled
            dut.tx_tready.value = int(ready)
            await RisingEdge(dut.clk)
            if not ready or not sample(dut.tx_tvalid) or sample(dut.rst):
                continue
            data, keep = sample(dut.tx_tdata), sample(dut.tx_tkeep)
            last = sample(dut.tx_tlast)
            count = keep.bit_length() // WORD_BYTES
            assert keep == (1 << WORD_BYTES * count) - 1, f"tkeep {keep:#x}"
            assert count == self.width // 32 or (last and count), "a beat with a gap"
            words += [data >> 32 * place & 0xFFFF_FFFF for place in range(count)]
            if last:
                self._took(words)
                words.clear()

    def _took(self, words: list[int]) -> None:
        tlp = Tlp.unpack(to_bytes(words))
        assert tlp.get_size_dw() == len(words), f"{tlp} came in {len(words)} words"
        assert tlp.get_payload_size_dw() == (tlp.length if tlp.has_data() else 0), f"{tlp}"
        own = sample(self.dut.id)
        if tlp.is_completion():
            assert int(tlp.completer_id) == own
            self.completions.put_nowait(tlp)
            return
        assert int(tlp.requester_id) == own
        payload, read_request, extended = self.limits()
        check_request(
            write=tlp.has_data(),
            address=tlp.address,
            dwords=tlp.length,
            tag=tlp.tag,
            first_enable=tlp.first_be,
            last_enable=tlp.last_be,
            max_payload=payload,
            max_read_request=read_request,
            extended_tag=extended,
        )
        assert (tlp.fmt in FOUR_WORD_HEADERS) == (tlp.address >= 1 << 32), f"{tlp}"
        self.sent += 1
        self.requests.put_nowait(tlp)


class _Adapter:
    """What cocotbext-pcie's model wants of a stream of the UltraScale+ block."""

    def __init__(self, bus: Bus, clock, reset, **_):
        self.streams = bus.streams
        self.width = bus.streams.width
        self.log = logging.getLogger(__name__)
        self.queue_occupancy_limit_frames = WAITING


class _RequestSink(_Adapter):
    async def recv(self):
        return Tlp_us(await self.streams.requests.get()).pack_us_rq()

    def empty(self) -> bool:
        return self.streams.requests.empty()


class _CompletionSink(_Adapter):
    async def recv(self):
        tlp = Tlp_us(await self.streams.completions.get())
        return tlp.pack_us_cc()


class _Source(_Adapter):
    def idle(self) -> bool:
        return self.streams.idle


class _CompletionSource(_Source):
    async def send(self, frame) -> None:
        tlp = Tlp_us.unpack_us_rc(frame)
        await self.streams.received.put(Packet(to_words(tlp.pack()), 0, bool(tlp.ep)))


class _RequestSource(_Source):
    async def send(self, frame) -> None:
        if frame.data[2] >> 11 & 0xF in MESSAGES:
            payload = frame.data[4:]
            header = MESSAGE | (1 << 30 if payload else 0) | len(payload)
            await self.streams.received.put(Packet([header, 0, 0, 0, *payload], 0, False))
            return
        tlp = Tlp_us.unpack_us_cq(frame)
        tlp.ep = bool(frame.discontinue)
        hit = 1 << tlp.bar_id
        await self.streams.received.put(Packet(to_words(tlp.pack()), hit, bool(tlp.ep)))


class Series7Host(PcieHost):
    """The host, for a device with a `hdl.pcie.phy.series7.Series7Shim`."""

    TRACKS = False

    def __init__(self, dut, *, seed: int = 1, pause: float = 0.1, **options):
        self.streams = Streams(dut, seed, pause)
        dut.id.value = 0
        with patch.multiple(
            usp_model,
            RqSink=_RequestSink,
            RcSource=_CompletionSource,
            CqSource=_RequestSource,
            CcSink=_CompletionSink,
        ):
            super().__init__(dut, seed=seed, **options)
        self.streams.limits = self.limits
        cocotb.start_soon(self._identify())

    def _watch(self) -> Series7Rules:
        return Series7Rules(self.dut, reset=self.resetting)

    def stall_requests(self, stalls: bool) -> None:
        """The block takes nothing, until it does again."""
        self.streams.stalled = stalls

    def _forget_streams(self) -> None:
        self.streams.forget()

    def _bus(self, prefix: str) -> Bus:
        return Bus(self.streams, [None] * self.streams.width)

    def _beats_left(self) -> int:
        sent, self.streams.sent = self.streams.sent, 0
        return sent

    async def _identify(self) -> None:
        while True:
            await RisingEdge(self.dut.clk)
            self.dut.id.value = int(self.function.pcie_id)
