"""Requests to the card, good, malformed and unsupported at random: the completer's answers.

The requests are cocotbext-pcie's, handed to its model of the hard block as if they had come over
the link; the completions are those that this model would send. What they must be is computed here
from the PCIe base specification (2.2.9, 2.3.1, 2.7.2).
"""

import cocotb
import pytest
from cocotbext.pcie.core.tlp import CplStatus, Tlp, TlpAttr, TlpTc, TlpType
from cocotbext.pcie.core.utils import PcieId
from cocotbext.pcie.xilinx.us.interface import UsPcieFrame
from cocotbext.pcie.xilinx.us.tlp import Tlp_us

from cocotb_tests.pcie.pcie_bench import SHIM, Bench, run_endpoint
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import cycles_pass, wait_until
from hdl.flow.register_bus import BAR_BITS
from hdl.pcie.phy.completer import NON_POSTED

REQUESTS = 600
BURST = 12
READS = (TlpType.MEM_READ, TlpType.MEM_READ_64)
WRITES = (TlpType.MEM_WRITE, TlpType.MEM_WRITE_64)
LOCKED = (TlpType.MEM_READ_LOCKED, TlpType.MEM_READ_LOCKED_64)
ATOMICS = (TlpType.FETCH_ADD, TlpType.SWAP, TlpType.CAS)
PORTS = (TlpType.IO_READ, TlpType.IO_WRITE)
MESSAGES = (12, 13, 14)
"""Request types of messages in the descriptor (PG213)."""

BYTES = 256
"""Registers that are accessed."""


class Requests:
    """Makes random requests and keeps what must come of them."""

    def __init__(self, bench: Bench):
        self.rng = bench.rng
        self.memory: dict[int, int] = {}
        self.expected: list[tuple[Tlp_us, CplStatus, dict[int, int]]] = []
        self._tag = 0

    def message(self) -> UsPcieFrame:
        """A message with up to 8 words of data: dropped."""
        frame = UsPcieFrame()
        words = self.rng.randrange(8)
        kind = self.rng.choice(MESSAGES)
        frame.data = [0, 0, words | kind << 11, 0, *(self._word() for _ in range(words))]
        frame.byte_en = [0] * 4 + [0xF] * words
        frame.update_parity()
        return frame

    def request(self) -> Tlp_us:
        """Any other request; ``expected`` and ``memory`` follow."""
        rng = self.rng
        kinds = (READS, WRITES, LOCKED, ATOMICS, PORTS)
        (kinds_of,) = rng.choices(kinds, weights=(5, 4, 1, 1, 1))
        tlp = Tlp_us()
        tlp.fmt_type = rng.choice(kinds_of)
        tlp.completer_id = PcieId(0, 0, rng.randrange(8))
        tlp.requester_id = PcieId(rng.randrange(256), rng.randrange(32), rng.randrange(8))
        tlp.tc, tlp.attr = TlpTc(rng.randrange(8)), TlpAttr(rng.randrange(8))
        tlp.tag = self._tag = (self._tag + 1) % 256
        tlp.bar_id = rng.choice((0, 0, 0, 0, 0, 0, 1, 2, 6))
        tlp.bar_aperture = BAR_BITS
        tlp.address = 4 * rng.randrange(BYTES // 4)
        tlp.length = self._length(tlp)
        tlp.first_be = rng.randrange(16)
        tlp.last_be = rng.randrange(1, 16) if tlp.length > 1 else 0
        if tlp.length > 1:
            tlp.first_be = tlp.first_be or 15
        if tlp.fmt_type in (*WRITES, *ATOMICS, TlpType.IO_WRITE):
            tlp.data = bytearray(rng.randbytes(4 * tlp.length))
        if tlp.fmt_type in WRITES:
            tlp.discontinue = rng.random() < 0.1
            self._write(tlp)
        else:
            self._answer(tlp)
        return tlp

    def _word(self) -> int:
        return self.rng.getrandbits(32)

    def _length(self, tlp: Tlp_us) -> int:
        if tlp.fmt_type in PORTS:
            return 1
        if tlp.fmt_type == TlpType.CAS:
            return self.rng.choice((2, 4, 8))
        if tlp.fmt_type in ATOMICS:
            return self.rng.choice((1, 2))
        return self.rng.choice((1, 1, 1, 2, 2, 2, 3, 4, 5, 16, 64, self.rng.randint(1, 64)))

    def _enabled(self, tlp: Tlp_us) -> list[int]:
        """Places in the payload whose bytes are enabled."""
        last = 4 * (tlp.length - 1)
        return [
            place
            for place in range(4 * tlp.length)
            if (
                tlp.first_be >> place & 1
                if place < 4
                else tlp.last_be >> place - last & 1
                if place >= last
                else True
            )
        ]

    def _write(self, tlp: Tlp_us) -> None:
        if tlp.bar_id == 0 and tlp.length <= 2 and not tlp.discontinue:
            for place in self._enabled(tlp):
                self.memory[tlp.address + place] = tlp.data[place]

    def _answer(self, tlp: Tlp_us) -> None:
        status, data = CplStatus.UR, {}
        if tlp.fmt_type in READS and tlp.bar_id == 0:
            status = CplStatus.CA
            if tlp.length <= 2:
                status = CplStatus.SC
                data = {
                    place: self.memory.get(tlp.address + place, 0) for place in self._enabled(tlp)
                }
        self.expected.append((tlp, status, data))


def check(request: Tlp_us, status: CplStatus, data: dict[int, int], found: Tlp) -> None:
    """The completion of a request is the one that the specification asks for."""
    assert (found.tag, found.requester_id) == (request.tag, request.requester_id)
    if SHIM == "ultrascale":  # the 7-series block has one function
        assert found.completer_id.function == request.completer_id.function
    assert found.status is status, f"{found.status} for {request}"
    assert found.tc == request.tc
    assert found.attr == request.attr & 3, "relaxed ordering and no snoop are the request's"
    locked = request.fmt_type in LOCKED
    assert (found.fmt_type in (TlpType.CPL_LOCKED, TlpType.CPL_LOCKED_DATA)) == locked
    count, low = 4, 0
    if request.fmt_type in (*READS, *LOCKED):
        count = request.get_be_byte_count()
        low = request.address + (request.get_first_be_offset() if request.first_be else 0)
    elif request.fmt_type in ATOMICS:
        count = 4 * request.length // (2 if request.fmt_type == TlpType.CAS else 1)
    assert (found.byte_count, found.lower_address) == (count, low & 0x7F), f"{request}"
    assert found.length == (request.length if status is CplStatus.SC else 0)
    for place, value in data.items():
        assert found.data[place] == value, f"byte {place} of {request}"


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def requests(dut):
    """Requests of all kinds at random, in bursts, with pauses on every stream."""
    bench = Bench(dut, register_activity=0.7)
    await bench.start()
    device = bench.host.device
    found: list[Tlp] = []

    async def send(tlp: Tlp) -> None:
        found.append(tlp)

    device.send = send

    def pauses():
        while True:
            yield bench.rng.random() < 0.3

    assert device.cc_sink is not None
    assert device.cq_source is not None
    if SHIM == "ultrascale":
        device.cc_sink.set_pause_generator(pauses())
        device.cq_source.set_pause_generator(pauses())
    source = Requests(bench)
    left = REQUESTS
    while left:
        for _ in range(bench.rng.randint(1, BURST)):
            if bench.rng.random() < 0.1:
                await device.cq_source.send(source.message())
            else:
                device.cq_queue.put_nowait(source.request())
            left = max(0, left - 1)
        await wait_until(
            dut,
            lambda: len(found) == len(source.expected),
            cycles=5000,
            what="every request answered",
        )
        await cycles_pass(dut.clk, bench.rng.randrange(60))
    await bench.settle()
    for expected, answer in zip(source.expected, found, strict=True):
        check(*expected, answer)
    held = {place: value for place, value in bench.registers.items() if value}
    assert held == {place: value for place, value in source.memory.items() if value}
    statuses = [status for _, status, _ in source.expected]
    counts = {status.name: statuses.count(status) for status in sorted(set(statuses))}
    dut._log.info("%d requests answered: %s", len(found), counts)
    assert set(counts) == {"SC", "UR", "CA"}


@pytest.mark.parametrize(
    ("shim", "width"),
    [
        *(("ultrascale", width) for width in (64, 256, 512)),
        pytest.param("ultrascale", 128, marks=pytest.mark.slow),
        pytest.param("series7", 64, marks=pytest.mark.slow),
        ("series7", 128),
    ],
)
def test_requests(shim, width):
    run_endpoint("requests", module=__name__, width=width, shim=shim)


@pytest.mark.slow
def test_planted_bugs_are_found(monkeypatch):
    """Locked reads are not answered."""
    monkeypatch.setattr("hdl.pcie.phy.completer.NON_POSTED", NON_POSTED[:-1])
    with pytest.raises(SimulationError, match="every request answered"):
        run_endpoint("requests", module=__name__)
