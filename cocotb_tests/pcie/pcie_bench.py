"""Endpoint, shim and line store under cocotbext-pcie: what their tests drive them with."""

import os
import random
from dataclasses import replace
from itertools import pairwise

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.pcie.hard_block import CREDITS, PAGE_BYTES
from cocotb_tests.pcie.pcie_host import PcieHost
from cocotb_tests.pcie.series7_model import Series7Host
from cocotb_tests.runner import converted, simulate
from cocotb_tests.streams import StreamSink, StreamSource, sample, wait_until
from hdl.config import TIME_BITS, Config
from hdl.flow.host_memory import (
    HostAccess,
    Kind,
    inbox_beat,
    read_done,
    read_request,
    write_request,
)
from hdl.flow.pcie_status import PcieStatus
from hdl.flow.post import post
from hdl.flow.register_bus import RegisterBus
from hdl.memory.store import LineStore
from hdl.pcie.endpoint import Endpoint
from hdl.pcie.phy.series7 import Series7Shim
from hdl.pcie.phy.ultrascale import UltrascaleShim


def config_of(width: int, shim: str = "ultrascale", straddle: bool = True) -> Config:
    """The configuration that is tested at a data width, behind a hard block."""
    config = Config(
        data_width=width,
        lines=64,
        banks=8,
        commands=64,
        read_tags=64,
        transfer_blocks=8,
        completion_straddle=straddle,
    )
    if shim == "series7":
        config = replace(
            config, completion_address_bits=7, completion_headers=36, completion_bytes=461 * 16
        )
    return config


SHIMS = {"ultrascale": UltrascaleShim, "series7": Series7Shim}
HOSTS = {"ultrascale": PcieHost, "series7": Series7Host}
SHIM_WIDTH = {"ultrascale": 256, "series7": 64}
"""A width that each shim has."""
SHIM = os.environ.get("SHIM", "ultrascale")
CONFIG = config_of(
    int(os.environ.get("WIDTH", "256")), SHIM, bool(int(os.environ.get("STRADDLE", "1")))
)
TIMEOUT = 4000
PACKET_BEATS = -(-(64 + 4) // CONFIG.beat_dwords)
"""Beats of a 256-byte write with its descriptor."""

LANES = {64: 2, 128: 4, 256: 8, 512: 16}
"""Lanes at 8 GT/s for which the hard block has a data width at 250 MHz."""


CROWD = 3
"""Other readers of the line store."""


class EndpointTop(wiring.Component):
    """Endpoint, shim and line store; the controller's side is left to the test.

    ``crowd``: so many other readers, a bit each, read random beats of the line store all the time.
    """

    def __init__(self, *, config: Config = CONFIG, shim: str = "ultrascale"):
        self._config = config
        self._shim = SHIMS[shim](config=config)
        self._edge = {
            name: member
            for name, member in self._shim.signature.members.items()
            if name in ("id", *CREDITS)
            or name[:3] in ("rq_", "rc_", "cq_", "cc_", "rx_", "tx_")
        }
        super().__init__(
            {
                "host": In(HostAccess(config)),
                "register": Out(RegisterBus()),
                "status": Out(PcieStatus()),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "crowd": In(CROWD),
                "busy": Out(1),
                **self._edge,
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        m.submodules.endpoint = endpoint = Endpoint(config=config, timeout=TIMEOUT)
        m.submodules.shim = shim = self._shim
        # The crowd reads whatever is there, and nobody looks at it.
        m.submodules.store = store = LineStore(
            config=config, readers=1 + CROWD, writers=1, strict=False
        )
        chance = Signal(31, init=1)
        m.d.sync += chance.eq(Cat(chance[27] ^ chance[30], chance))
        for index, reader in enumerate(store.read[1:]):
            m.d.comb += reader.request.valid.eq(self.crowd[index])
            with m.If(reader.request.ready):
                m.d.sync += reader.request.payload.eq(chance[5 * index :])
        connect(m, endpoint.request, shim.request)
        connect(m, shim.progress, endpoint.progress)
        connect(m, flipped(self.host), endpoint.host)
        connect(m, shim.completion, endpoint.completion)
        connect(m, endpoint.line_read, store.read[0])
        connect(m, endpoint.line_write, store.write[0])
        connect(m, shim.register, endpoint.register)
        connect(m, endpoint.target, flipped(self.register))
        for name in self.status.signature.members:
            for block in (endpoint, shim):
                m.d.comb += getattr(block.status, name).eq(getattr(self.status, name))
        for name, port in self._edge.items():
            inner, outer = getattr(shim, name), getattr(self, name)
            m.d.comb += outer.eq(inner) if port.flow is Out else inner.eq(outer)
        m.d.comb += [
            endpoint.posted.eq(shim.posted),
            endpoint.now.eq(self.now),
            self.deadline.eq(endpoint.deadline),
            self.busy.eq(endpoint.busy | shim.busy | (store.busy & ~self.crowd.any())),
        ]
        return m


class Bench:
    """Drives the controller's side of an `EndpointTop` under a `PcieHost`."""

    def __init__(self, dut, *, register_activity: float = 1.0, **host_options):
        self.dut = dut
        self.seed = int(os.environ["SEED"])
        dut._log.info("SEED=%d", self.seed)
        self.rng = random.Random(self.seed)
        lanes = LANES[CONFIG.data_width]
        if SHIM == "ultrascale":
            host_options["straddle"] = CONFIG.straddles
        # The shortest time until a read is given up is to this range as 10 ms to 50 us .. 50 ms.
        host_options["split_timeout"] = TIMEOUT // 200, 5 * TIMEOUT
        self.host = HOSTS[SHIM](dut, seed=self.seed, lanes=lanes, **host_options)
        dut.host__discard.value = 0
        dut.crowd.value = 0
        dut.host__messages__withhold.value = 0
        self.registers: dict[int, int] = {}  # bytes
        self.accesses: list[tuple[int, bool, int]] = []
        self.read_request = StreamSource(dut, "host__read_request", layout=read_request(CONFIG))
        self.write_request = StreamSource(dut, "host__write_request", layout=write_request(CONFIG))
        self.post = StreamSource(dut, "host__post", layout=post())
        self.read_done = StreamSink(
            dut, "host__read_done", layout=read_done(CONFIG), callback=self._read_done
        )
        self.write_done = StreamSink(dut, "host__write_done", callback=self._write_done)
        self.inbox = StreamSink(dut, "host__inbox_write", layout=inbox_beat(CONFIG))
        request = RegisterBus().members["request"].signature.members["payload"].shape
        self.register_request = StreamSink(
            dut,
            "register__request",
            layout=request,
            callback=self._access,
            active=register_activity,
            ignores={"data": "of a write"},
        )
        self.register_response = StreamSource(
            dut, "register__response", active=register_activity
        )
        self.read: dict[int, bool] = {}
        self.written: list[int] = []

    async def start(self):
        await self.host.start()

    def _access(self, access):
        self.accesses.append((access.address, bool(access.write), access.enable))
        if access.write:
            for place in range(8):
                if access.enable >> place & 1:
                    self.registers[access.address + place] = access.data >> 8 * place & 0xFF
        else:
            value = sum(
                self.registers.get(access.address + place, 0) << 8 * place for place in range(8)
            )
            self.register_response.send(value)

    def _read_done(self, done):
        assert done.kind is Kind.BLOCK
        assert done.index not in self.read
        self.read[done.index] = bool(done.error)

    def _write_done(self, line):
        assert line not in self.written
        self.written.append(line)

    def pieces(self, base: int, line: int) -> list[tuple[int, int, int]]:
        """A block of host memory and a line in up to three pieces: address, dwords, word."""
        cuts = sorted({0, 1024, *(self.rng.randrange(1024) for _ in range(self.rng.randrange(3)))})
        result = []
        for start, stop in pairwise(cuts):
            address = base + 4 * start
            while start < stop:
                size = min(stop - start, (PAGE_BYTES - address % PAGE_BYTES) // 4)
                result.append((address, size, line * 1024 + start))
                address += 4 * size
                start += size
        return result

    def fetch(self, line: int, pieces):
        for number, (address, dwords, target) in enumerate(pieces):
            self.read_request.send(
                kind=Kind.BLOCK,
                index=line,
                last=number == len(pieces) - 1,
                address=address,
                dwords=dwords,
                target=target,
            )

    def deliver(self, line: int, pieces):
        for number, (address, dwords, source) in enumerate(pieces):
            self.write_request.send(
                line=line,
                last=number == len(pieces) - 1,
                address=address,
                dwords=dwords,
                source=source,
            )

    async def settle(self):
        await wait_until(
            self.dut,
            lambda: (
                not sample(self.dut.busy)
                and sample(self.dut.deadline) == (1 << TIME_BITS) - 1
                and not self.host.rc.reads_pending
            ),
            cycles=6 * TIMEOUT,
            what="endpoint quiet",
        )
        for _ in range(400):  # posted writes on their way
            await RisingEdge(self.dut.clk)
        assert self.host.outstanding == 0


async def copy(bench: Bench, lines: range, *, align: int = 4) -> None:
    """Host memory to lines and back to other host memory, everything compared."""
    span = (len(lines) + 2) * PAGE_BYTES
    source, source_memory = bench.host.allocate(span)
    target, target_memory = bench.host.allocate(span)
    data = bench.rng.randbytes(span)
    source_memory[:] = data
    target_memory[:] = bytes(span)
    expected = bytearray(span)
    skew_in = bench.rng.randrange(0, PAGE_BYTES, align)
    skew_out = bench.rng.randrange(0, PAGE_BYTES, align)
    bench.read.clear()
    bench.written.clear()
    for number, line in enumerate(lines):
        bench.fetch(line, bench.pieces(source + skew_in + number * PAGE_BYTES, line))
        expected[skew_out + number * PAGE_BYTES : skew_out + (number + 1) * PAGE_BYTES] = data[
            skew_in + number * PAGE_BYTES : skew_in + (number + 1) * PAGE_BYTES
        ]
    sent = set()

    def forward():
        for line in list(bench.read):
            if line not in sent:
                sent.add(line)
                assert not bench.read[line], f"line {line}: error"
                number = lines.index(line)
                bench.deliver(line, bench.pieces(target + skew_out + number * PAGE_BYTES, line))
        return len(bench.written) == len(lines)

    await wait_until(bench.dut, forward, cycles=60_000, what="all blocks copied")
    await bench.settle()
    assert bytes(target_memory[:]) == bytes(expected)


def run_endpoint(
    testcase,
    *,
    module,
    width=256,
    shim="ultrascale",
    mps=256,
    mrrs=512,
    rcb=64,
    offset=0,
    blocks=12,
    component=None,
    straddle=True,
    seed=1,
    **parameters,
):
    """Runs cocotb tests of ``module`` on an `EndpointTop`."""
    simulate(
        component
        or converted(EndpointTop, config=config_of(width, shim, straddle), shim=shim),
        name=f"pcie_{shim}_w{width}",
        module=module,
        testcase=testcase,
        parameters={
            "SEED": str(seed),
            "WIDTH": str(width),
            "SHIM": shim,
            "STRADDLE": str(int(straddle)),
            "MPS": str(mps),
            "MRRS": str(mrrs),
            "RCB": str(rcb),
            "OFFSET": str(offset),
            "BLOCKS": str(blocks),
            **{name.upper(): str(value) for name, value in parameters.items()},
        },
    )
