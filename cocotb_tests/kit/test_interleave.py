"""`hdl.kit.merge.Interleave`: two users of one write port, and no beat is lost."""

import random
from collections import deque
from os import environ

import cocotb
import pytest
from amaranth.hdl import Module, Mux, Signal
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, sample, start
from hdl.config import Config
from hdl.flow.line import write_beat
from hdl.kit.merge import Interleave

CONFIG = Config(data_width=64, lines=16, banks=8)
BEAT = write_beat(CONFIG)
BEATS = 300
LIMIT = 40 * BEATS
"""Cycles after which beats are stuck."""


class Bench:
    """Two users, a line store that refuses, and a look at each cycle."""

    def __init__(self, dut, active: tuple[float, float], ready: float, beats: tuple[int, int]):
        chance = random.Random(environ["SEED"])
        self.dut = dut
        self.wanted: list[deque[dict[str, int]]] = [deque(), deque()]
        for user, count in enumerate(beats):
            source = StreamSource(dut, f"inputs__{user}", layout=BEAT, active=active[user])
            for _ in range(count):
                # The top bit of the data is the user's number.
                data = chance.getrandbits(CONFIG.data_width - 1)
                beat = {
                    "address": chance.getrandbits(CONFIG.beat_address_bits),
                    "data": data | user << CONFIG.data_width - 1,
                    "mask": chance.getrandbits(CONFIG.beat_dwords),
                }
                self.wanted[user].append(beat)
                source.send(beat)
        # It fails if a beat that was refused is withdrawn or changes.
        StreamSink(dut, "output", layout=BEAT, active=ready, callback=self._write)
        self._passed = [0, 0]
        """Beats of the other that were taken since each user has begun to wait."""
        self.left = [0, 0]
        """Cycle in which the last beat of each user was taken."""
        self.cycle = 0

    def _write(self, seen) -> None:
        user = seen.data >> CONFIG.data_width - 1
        assert self.wanted[user], f"user {user}: {seen} was not sent"
        assert seen == self.wanted[user].popleft(), f"user {user}: {seen}"
        self.left[user] = self.cycle

    async def run(self) -> None:
        """Until all beats have been written, and nothing is offered any more."""
        dut = self.dut
        while any(self.wanted) or sample(dut.output__valid):
            await RisingEdge(dut.clk)
            self.cycle += 1
            assert self.cycle < LIMIT, "beats are stuck"
            self._look()

    def _look(self) -> None:
        """At a cycle: no time is lost, one beat is taken, and none waits for long."""
        dut = self.dut
        valids = [sample(getattr(dut, f"inputs__{user}__valid")) for user in (0, 1)]
        readies = [sample(getattr(dut, f"inputs__{user}__ready")) for user in (0, 1)]
        offered, taken = sample(dut.output__valid), sample(dut.output__ready)
        assert offered == any(valids), "a cycle is lost, or a beat is nobody's"
        moved = [valid & ready for valid, ready in zip(valids, readies, strict=True)]
        assert sum(moved) == (offered and taken), f"users move {moved}, the store {taken}"
        for user in (0, 1):
            waits = valids[user] and not moved[user]
            self._passed[user] = self._passed[user] + moved[not user] if waits else 0
            assert self._passed[user] <= 1, f"user {user} is passed over"


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(active=[(1.0, 1.0), (0.5, 0.8), (1.0, 0.1), (0.1, 1.0)], ready=[1.0, 0.4])
async def every_beat_is_written_once(dut, active, ready):
    bench = Bench(dut, active, ready, (BEATS, BEATS))
    await start(dut)
    await bench.run()
    if active == (1.0, 1.0) and ready == 1.0:
        # No cycle is lost, and neither waits for the other.
        left = bench.left
        assert max(left) <= 2 * BEATS + 4 and abs(left[0] - left[1]) <= 2, left


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(user=[0, 1])
async def one_alone_has_every_cycle(dut, user):
    beats = (BEATS, 0) if user == 0 else (0, BEATS)
    bench = Bench(dut, (1.0, 1.0), 1.0, beats)
    await start(dut)
    await bench.run()
    assert bench.left[user] <= BEATS + 4, bench.left


def test_interleave():
    simulate(Interleave(BEAT), name="interleave", module=__name__)


class Loses(Interleave):
    """Planted bug: a beat of the second user is taken as the first one's is written."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.inputs[1].ready.eq(self.output.ready)
        return m


class Prefers(Interleave):
    """Planted bug: the second user waits for as long as the first has beats."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        first, second = self.inputs
        held, holder = Signal(), Signal()
        chosen = Mux(held, holder, ~first.valid)
        m.d.comb += [
            self.output.payload.eq(Mux(chosen, second.payload, first.payload)),
            first.ready.eq(self.output.ready & ~chosen),
            second.ready.eq(self.output.ready & chosen),
        ]
        m.d.sync += [held.eq(self.output.valid & ~self.output.ready), holder.eq(chosen)]
        return m


class Pauses(Interleave):
    """Planted bug: nothing is offered in the cycle after a beat."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        rests = Signal()
        m.d.sync += rests.eq(self.output.valid & self.output.ready)
        with m.If(rests):
            m.d.comb += self.output.valid.eq(0)
            m.d.comb += [user.ready.eq(0) for user in self.inputs]
        return m


class Swaps(Interleave):
    """Planted bug: a mask is that of the first user while both offer a beat."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        first, second = self.inputs
        with m.If(first.valid & second.valid):
            m.d.comb += self.output.payload.mask.eq(first.payload.mask)
        return m


def forgetful(condition, one, other):
    """Planted bug, as `Mux`: it does not remember that it has been refused."""
    return other if condition.name == "held" else Mux(condition, one, other)


@pytest.mark.parametrize(
    "bug",
    [
        Loses,
        *(pytest.param(bug, marks=pytest.mark.slow) for bug in (Prefers, Pauses, Swaps)),
    ],
)
def test_interleave_planted_bugs_are_found(bug):
    with pytest.raises(SimulationError, match="every_beat_is_written_once"):
        simulate(bug(BEAT), name=f"interleave_{bug.__name__}", module=__name__)


def test_a_beat_that_changes_is_found(monkeypatch):
    monkeypatch.setattr("hdl.kit.merge.Mux", forgetful)
    with pytest.raises(SimulationError, match="every_beat_is_written_once"):
        simulate(Interleave(BEAT), name="interleave_forgets", module=__name__)
