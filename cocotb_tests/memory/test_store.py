"""`hdl.memory.store.LineStore` under random and sequential users, against a dictionary."""

import os
import random
from collections import deque

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.memory.store_model import STORE_DELAY
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import pack, sample, start
from hdl.config import Config
from hdl.flow.line import write_beat
from hdl.kit.cut import Relay
from hdl.memory.store import DWORD_BITS, LineStore

READ_LATENCY = 3
READERS = 4
WRITERS = 5
MEETING_PLACES = 100
"""Addresses of random users: few, so that what is written is read."""

CROWDED_CYCLES = 10_000

LEAST_WRITE_CYCLES = 4
"""Cycles after a write was taken in the last of which it is stored, if nobody else has its bank."""

MOST_READ_WAIT = READERS - 1
MOST_WRITE_WAIT = WRITERS - 1


def sizes(width: int) -> Config:
    """Few lines, so that users meet."""
    return Config(data_width=width, lines=16, banks=8)


class History:
    """Words as written, and what a read may return of each (`LineStore`)."""

    def __init__(self):
        self.writes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self.delay = STORE_DELAY

    def write(self, cycle: int, user: int, address: int, beat: int, mask: int) -> None:
        for word in range(mask.bit_length()):
            if mask >> word & 1:
                value = beat >> DWORD_BITS * word & (1 << DWORD_BITS) - 1
                self.writes.setdefault((address, word), []).append((cycle, user, value))

    def allowed(self, cycle: int, address: int, word: int) -> set[int] | None:
        """Values that a read taken in ``cycle`` may return; None: any."""
        writes = self.writes.get((address, word), [])
        certain = [write for write in writes if write[0] + self.delay <= cycle]
        if not certain or len(certain) < len(writes):
            return None

        def after(later, write):
            return later[0] >= write[0] + self.delay or (
                later[1] == write[1] and later[0] > write[0]
            )

        writes[:] = [w for w in writes if not any(after(later, w) for later in certain)]
        return {value for _, _, value in writes}


class Bench:
    """Drives every port each cycle; the scoreboard holds the beats as the store must."""

    def __init__(self, dut, config: Config, *, seed: int, active: float, sequential: bool):
        self.dut = dut
        self.config = config
        self.random = random.Random(f"{seed}/store")
        self.active = active
        self.sequential = sequential
        self.history = History()
        self.taken = {"read": [0] * READERS, "write": [0] * WRITERS}
        self.longest = {"read": 0, "write": 0}
        self.answered = 0
        self.checked = 0

    def _port(self, name: str, *parts: str):
        return [getattr(self.dut, f"{name}__{part}") for part in parts]

    async def run(self, cycles: int) -> None:
        """``cycles`` of traffic, then enough to see every answer."""
        config, layout = self.config, write_beat(self.config)
        total = config.lines * config.beats
        reads = [
            self._port(
                f"read__{n}",
                "request__valid",
                "request__ready",
                "request__payload",
                "response_valid",
                "response",
            )
            for n in range(READERS)
        ]
        writes = [self._port(f"write__{n}", "valid", "ready", "payload") for n in range(WRITERS)]
        offers: dict[tuple[str, int], tuple[int, int, int]] = {}
        waited: dict[tuple[str, int], int] = {}
        position = {("read", n): self.random.randrange(total) for n in range(READERS)}
        position |= {("write", n): self.random.randrange(total) for n in range(WRITERS)}
        expected = [deque([None] * READ_LATENCY) for _ in range(READERS)]
        stored_at = 0
        meeting = [self.random.randrange(total) for _ in range(MEETING_PLACES)]
        words = range(config.beat_dwords)
        for cycle in range(cycles + READ_LATENCY + STORE_DELAY):
            for kind, ports in (("read", reads), ("write", writes)):
                for n, port in enumerate(ports):
                    if (kind, n) in offers:
                        continue
                    if cycle >= cycles or self.random.random() >= self.active:
                        port[0].value = 0
                        continue
                    if self.sequential:
                        address = position[kind, n] = (position[kind, n] + 1) % total
                    else:
                        address = self.random.choice(meeting)
                    beat = self.random.getrandbits(config.data_width)
                    full = (1 << config.beat_dwords) - 1
                    mask = self.random.choice((full, self.random.randint(0, full)))
                    port[0].value = 1
                    port[2].value = (
                        address
                        if kind == "read"
                        else pack(layout, address=address, data=beat, mask=mask)
                    )
                    offers[kind, n] = (address, beat, mask)
            await RisingEdge(self.dut.clk)
            moving = cycle < stored_at or any(any(answers) for answers in expected)
            assert sample(self.dut.busy) or not moving, "not busy although beats move"
            stored = []
            for kind, ports in (("read", reads), ("write", writes)):
                for n, port in enumerate(ports):
                    offer = offers.get((kind, n))
                    taken = offer is not None and sample(port[1])
                    if offer is None:
                        pass
                    elif taken:
                        del offers[kind, n]
                        waited[kind, n] = 0
                        self.taken[kind][n] += 1
                    else:
                        waited[kind, n] = waited.get((kind, n), 0) + 1
                        self.longest[kind] = max(self.longest[kind], waited[kind, n])
                    if kind == "read":
                        answer = None
                        if taken:
                            assert offer is not None
                            address = offer[0]
                            answer = (
                                address,
                                [self.history.allowed(cycle, address, word) for word in words],
                            )
                        expected[n].append(answer)
                        due = expected[n].popleft()
                        assert sample(port[3]) == (due is not None), f"reader {n}: latency"
                        if due is not None:
                            self.answered += 1
                            for word, values in enumerate(due[1]):
                                value = sample(port[4]) >> DWORD_BITS * word
                                value &= (1 << DWORD_BITS) - 1
                                assert values is None or value in values, (
                                    f"reader {n}: word {word} of {due[0]:#x} is {value:#x}, "
                                    f"not in {values}"
                                )
                                self.checked += values is not None
                    elif taken:
                        stored.append((n, offer))
            if stored:
                stored_at = cycle + LEAST_WRITE_CYCLES
            for n, offer in stored:
                self.history.write(cycle, n, *offer)
        assert not offers, f"never taken: {offers}"
        assert self.answered == sum(self.taken["read"]), "answers are missing"
        if not self.sequential:
            assert self.checked > self.answered // 4, "too few reads saw what was written"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def random_users(dut):
    """Every user at random addresses and times: contents, latency, nobody starves."""
    seed = int(os.environ["SEED"])
    print(f"SEED={seed}")
    config = sizes(int(os.environ["WIDTH"]))
    for active in (1.0, 0.4):
        bench = Bench(dut, config, seed=seed, active=active, sequential=False)
        await start(dut)
        await bench.run(2500)
        assert bench.longest["read"] <= MOST_READ_WAIT, bench.longest
        assert bench.longest["write"] <= MOST_WRITE_WAIT, bench.longest
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        assert not sample(dut.busy), "busy at rest"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def sequential_users(dut):
    """Users that move lines in order fall into step: a beat a cycle each."""
    seed = int(os.environ["SEED"])
    bench = Bench(dut, sizes(int(os.environ["WIDTH"])), seed=seed, active=1.0, sequential=True)
    await start(dut)
    cycles = 1500
    await bench.run(cycles)
    rates = {kind: [count / cycles for count in taken] for kind, taken in bench.taken.items()}
    print(f"beats a cycle: {rates}")
    lost = READERS * WRITERS
    assert all(min(taken) >= cycles - lost for taken in bench.taken.values()), rates


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def the_delay_is_the_longest(dut):
    """All writers crowd two banks, each in lines of its own. What one of them has written is
    read as soon as it may be, and is there."""
    config = sizes(int(os.environ["WIDTH"]))
    layout = write_beat(config)
    rng = random.Random(int(os.environ["SEED"]))
    await start(dut)
    rows = config.lines * config.beats // config.banks // WRITERS
    request, answer = dut.read__0__request__payload, dut.read__0__response
    asked: deque[tuple[int, int] | None] = deque([None] * READ_LATENCY)
    to_read: dict[int, tuple[int, int]] = {}
    offers: dict[int, tuple[int, int]] = {}
    number, checked = 0, 0
    for cycle in range(CROWDED_CYCLES):
        for writer in range(WRITERS):
            if writer not in offers:
                number += 1
                row = writer * rows + rng.randrange(rows)
                address = config.banks * row + rng.randrange(2)
                offers[writer] = address, number
                port = getattr(dut, f"write__{writer}__payload")
                port.value = pack(layout, address=address, data=number, mask=1)
                getattr(dut, f"write__{writer}__valid").value = 1
        wanted = to_read.pop(cycle, None)
        dut.read__0__request__valid.value = wanted is not None
        if wanted is not None:
            request.value = wanted[0]
        await RisingEdge(dut.clk)
        asked.append(wanted)
        due = asked.popleft()
        if due is not None:
            _, written = due
            found = sample(answer) & (1 << DWORD_BITS) - 1
            assert found >= written, f"{written}: not there {STORE_DELAY} cycles later"
            checked += 1
        for writer, (address, written) in list(offers.items()):
            if sample(getattr(dut, f"write__{writer}__ready")):
                del offers[writer]
                if writer == 0:
                    to_read[cycle + STORE_DELAY] = address, written
    assert checked > CROWDED_CYCLES // 4


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reads_after_writes(dut):
    """A write; ``LATER`` cycles later its beat is read, or (``OTHER``) written at another port."""
    config = sizes(64)
    layout = write_beat(config)
    await start(dut)
    beat = pack(layout, address=77, data=5, mask=1)
    later, other = int(os.environ["LATER"]), int(os.environ["OTHER"])
    if other:
        late_valid, late_payload, what = dut.write__3__valid, dut.write__3__payload, beat
    else:
        late_valid, late_payload, what = (
            dut.read__2__request__valid,
            dut.read__2__request__payload,
            77,
        )
    dut.write__1__payload.value, late_payload.value = beat, what
    for cycle in range(later + 20):
        dut.write__1__valid.value = int(cycle == 0)
        late_valid.value = int(cycle == later)
        await RisingEdge(dut.clk)


class Faulty(wiring.Component):
    """`LineStore` with one fault at its ports."""

    def __init__(self, *, config: Config, fault: str):
        self._inner = LineStore(
            config=config, readers=READERS, writers=WRITERS, strict=False
        )
        self._fault = fault
        super().__init__(self._inner.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = inner = self._inner
        for name in ("read", "write"):
            for ours, theirs in zip(getattr(self, name), getattr(inner, name), strict=True):
                if self._fault == "late" and ours is self.read[1]:
                    connect(m, flipped(ours.request), theirs.request)
                    m.d.comb += ours.response.eq(theirs.response)
                    m.d.sync += ours.response_valid.eq(theirs.response_valid)
                else:
                    connect(m, flipped(ours), theirs)
        if self._fault != "idle":
            m.d.comb += self.busy.eq(inner.busy)
        ours, theirs = self.write[2].payload, inner.write[2].payload
        if self._fault == "mask":
            m.d.comb += theirs.mask.eq(ours.mask | 1)
        elif self._fault == "address":
            m.d.comb += theirs.address.eq(ours.address ^ (ours.address[:4] == 7))
        elif self._fault == "lazy":
            # Writes of one port become visible later than promised.
            source = self.write[2]
            for stage in range(STORE_DELAY):
                relay = Relay(source.payload.shape())
                m.submodules[f"relay_{stage}"] = relay
                m.d.comb += [
                    relay.input.valid.eq(source.valid),
                    relay.input.payload.eq(source.payload),
                    source.ready.eq(relay.input.ready),
                ]
                source = relay.output
            last = inner.write[2]
            m.d.comb += [
                last.valid.eq(source.valid),
                last.payload.eq(source.payload),
                source.ready.eq(last.ready),
            ]
        elif self._fault == "starved":
            m.d.comb += [self.read[3].request.ready.eq(0), inner.read[3].request.valid.eq(0)]
        return m


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize(
    "testcase", ["random_users", "sequential_users", "the_delay_is_the_longest"]
)
def test_store(testcase, width):
    simulate(
        LineStore(config=sizes(width), readers=READERS, writers=WRITERS, strict=False),
        name=f"line_store_w{width}",
        module=__name__,
        testcase=testcase,
        parameters={"WIDTH": str(width)},
    )


@pytest.mark.parametrize(
    "fault",
    [
        "mask",
        *(
            pytest.param(fault, marks=pytest.mark.slow)
            for fault in ("address", "late", "starved", "lazy", "idle")
        ),
    ],
)
def test_faults_are_caught(fault):
    with pytest.raises(SimulationError):
        simulate(
            Faulty(config=sizes(64), fault=fault),
            name=f"line_store_{fault}",
            module=__name__,
            testcase="random_users",
            parameters={"WIDTH": "64"},
        )


@pytest.mark.slow
@pytest.mark.parametrize("other", [0, 1])
def test_users_are_held_to_the_delay(other):
    def run(later: int) -> None:
        simulate(
            LineStore(config=sizes(64), readers=READERS, writers=WRITERS),
            name="line_store_strict",
            module=__name__,
            testcase="reads_after_writes",
            parameters={"LATER": str(later), "OTHER": str(other)},
        )

    run(STORE_DELAY)
    for later in (0, 1, STORE_DELAY - 1):
        with pytest.raises(SimulationError, match="too soon after a write at port"):
            run(later)


def test_arguments():
    with pytest.raises(ValueError, match="readers must be at least 1, not 0"):
        LineStore(config=sizes(64), readers=0, writers=1)
