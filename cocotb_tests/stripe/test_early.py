"""`hdl.stripe.rows.early.Early`: rows whose blocks land in any order, between passes of others."""

import os
import random
from collections import deque

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    pack,
    sample,
    start,
    wait_until,
)
from hdl.config import PIECES, Config, board
from hdl.flow.parity_pass import StepKind, pass_done, step
from hdl.flow.piece import PIECE_CYCLES, piece
from hdl.stripe.rows import early as early_module
from hdl.stripe.rows import piece_count as count_module
from hdl.stripe.rows.early import Early

SEATS = 4
CONFIG = Config(data_width=64, ports=8, rows=32, operations=64, early_rows=SEATS)
ROWS = 60
WHOLE = 40
PATIENCE = 20_000
MOST_CYCLES = 5
"""Cycles that a piece takes to be offered and taken, at most."""


class Row:
    """A row that holds a seat: what it reads, and how far it is."""

    def __init__(self, *, slot: int, chance: random.Random):
        self.slot = slot
        self.seat = -1  # not yet claimed
        self.blocks = chance.randrange(1, CONFIG.ports)
        self.good = chance.random() < 0.7
        self.landed = [0] * self.blocks
        self.faulty = self.good and chance.random() < 0.2
        self.passes = 0
        self.settled = False
        number = lambda bits: chance.getrandbits(bits)  # noqa: E731
        self.steps = [
            {"kind": StepKind.RECOVER, "erased": number(32), "parities": number(4)},
            *(
                {"kind": StepKind.DATA, "role": number(5), "line": number(CONFIG.line_bits)}
                for _ in range(self.blocks)
            ),
            {"kind": StepKind.OUTPUT, "role": 0, "line": number(CONFIG.line_bits), "last": 1},
        ]

    def whole_pieces(self) -> int:
        """Pieces that all blocks have."""
        return min(self.landed)


class Bench:
    """The sequencer, the drives and the parity engine around the seats."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(int(os.environ["SEED"]))
        active = float(os.environ["ACTIVE"])
        self.piece = StreamSource(dut, "piece", layout=piece(CONFIG), active=1.0)
        self.whole = StreamSource(dut, "whole", layout=step(CONFIG), active=active)
        self.answers = StreamSource(dut, "pass_done", layout=pass_done(CONFIG), active=active)
        StreamSink(dut, "step", layout=step(CONFIG), active=active, callback=self._step)
        StreamSink(
            dut,
            "done",
            layout=pass_done(CONFIG),
            active=active,
            callback=self._done,
            ignores={"piece.number": "of a pass for a piece"},
        )
        self.rows: dict[int, Row] = {}
        self.whole_steps: deque[dict] = deque()
        self.whole_done: deque[int] = deque()
        self.nonzero: deque[int] = deque()
        self.current: list = []
        self.engine: deque = deque()
        self.ended = 0
        self.slots = list(range(CONFIG.rows // 2))
        self.ending: Row | None = None  # whose last pieces are told of after its end
        for name in ("claim", "record", "settle"):
            getattr(dut, name).value = 0
        cocotb.start_soon(self._run_engine())

    # The parity engine.

    def _step(self, one) -> None:
        self.current.append(one)
        if not one.last:
            return
        passed, self.current = self.current, []
        begin = passed[0]
        if not begin.piece.any:
            for got in passed:
                wanted = self.whole_steps.popleft()
                assert pack(step(CONFIG), **got) == pack(step(CONFIG), **wanted), "another's step"
            self.engine.append((one.index, None, 0))
            return
        row = self.rows[one.index]
        assert len(passed) == len(row.steps)
        for got, wanted in zip(passed, row.steps, strict=True):
            fields = {"index": row.seat, "piece": begin.piece} | wanted
            assert pack(step(CONFIG), **got) == pack(step(CONFIG), **fields), "not what it recorded"
        self.engine.append((row.seat, begin.piece.number, row.faulty))

    async def _run_engine(self) -> None:
        """Reads a pass's lines some time after its steps were taken, and answers."""
        while True:
            await RisingEdge(self.dut.clk)
            if not self.engine:
                continue
            index, number, error = self.engine.popleft()
            if number is not None:
                row = self.rows[index]
                assert number == row.passes, f"piece {number}, not {row.passes}"
                assert number < row.whole_pieces(), f"piece {number} before all blocks have it"
                row.passes += 1
            await cycles_pass(self.dut.clk, self.random.choice((0, 3, 30)))
            mark = {"any": int(number is not None), "number": number or 0}
            nonzero = self.random.getrandbits(CONFIG.parities) if number is None else 0
            if number is None:
                self.nonzero.append(nonzero)
            self.answers.send(index=index, error=int(error), nonzero=nonzero, piece=mark)

    # What the rows are told.

    def _done(self, one) -> None:
        self.ended += 1
        assert not one.piece.any
        if one.index >= CONFIG.rows // 2:
            assert self.whole_done.popleft() == one.index
            assert self.nonzero.popleft() == one.nonzero
            return
        row = next(row for row in self.rows.values() if row.slot == one.index)
        assert row.settled, "a row that reads is over"
        assert not one.nonzero, "nobody asks which pieces were not zero"
        del self.rows[row.seat]
        self.slots.append(row.slot)
        assert one.error == (row.good and row.faulty)
        if row.good:
            assert row.passes == PIECES, f"{row.passes} pieces worked out"
        assert row.passes == row.whole_pieces(), "left while pieces were to be worked out"

    # The sequencer and the drives.

    async def _strobe(self, name: str, **fields) -> None:
        for field, value in fields.items():
            getattr(self.dut, field).value = value
        getattr(self.dut, name).value = 1
        await RisingEdge(self.dut.clk)
        getattr(self.dut, name).value = 0

    async def run_rows(self) -> None:
        """The sequencer does one thing at a time: claims, records and settles."""
        over: list[Row] = []
        begun = 0
        while begun < ROWS or self.rows:
            await cycles_pass(self.dut.clk, self.random.randrange(20))
            if over:
                row = over.pop()
                row.settled = True
                fields = {"settle_seat": row.seat, "good": int(row.good)}
                await self._strobe("settle", **fields)
            elif begun < ROWS and sample(self.dut.free):
                begun += 1
                slot = self.slots.pop(self.random.randrange(len(self.slots)))
                row = Row(slot=slot, chance=self.random)
                reads = sum(1 << n for n in self.random.sample(range(CONFIG.ports), row.blocks))
                await self._strobe("claim", slot=slot, reads=reads)
                # The seat of that cycle: another one may have become the next meanwhile.
                row.seat = sample(self.dut.seat)
                assert row.seat not in self.rows, "a seat is given twice"
                self.rows[row.seat] = row
                cocotb.start_soon(self._land(row, over))
                for one in row.steps:
                    await cycles_pass(self.dut.clk, self.random.randrange(4))
                    bits = pack(step(CONFIG), **one, index=slot)
                    await self._strobe("record", recorded=bits, record_seat=row.seat)

    async def _land(self, row: Row, over: list[Row]) -> None:
        """Blocks land at their own speeds; those of a row that is not good may break off, and its
        last pieces are told of when its reads have ended. Those must be taken in time, so no other
        row has pieces then."""
        await cycles_pass(self.dut.clk, 8)
        wanted = [PIECES] * row.blocks
        late = 0
        if not row.good:
            wanted = [self.random.randrange(PIECES + 1) for _ in range(row.blocks)]
            late = self.random.choice((0, 1, 2))
        chances = [self.random.random() for _ in range(row.blocks)]
        for left in reversed(range(sum(wanted))):
            while self.ending not in (None, row):
                await RisingEdge(self.dut.clk)
            if left + 1 == late:
                self.ending = row
                await self.piece.drained()
                await self._end(row, over)
                pause = self.random.randrange(PIECE_CYCLES - MOST_CYCLES * late)
                await cycles_pass(self.dut.clk, pause)
            lands = [n for n in range(row.blocks) if row.landed[n] < wanted[n]]
            block = self.random.choices(lands, [chances[n] + 0.01 for n in lands])[0]
            row.landed[block] += 1
            self.piece.send(seat=row.seat, number=row.landed[block] - 1)
            await self.piece.drained()
            await cycles_pass(self.dut.clk, 0 if left < late else self.random.choice((0, 0, 0, 20)))
        if self.ending is row:
            self.ending = None
        if sum(wanted) < late or not late:
            await cycles_pass(self.dut.clk, self.random.choice((len(row.steps) * 8, 400)))
            over.append(row)

    async def _end(self, row: Row, over: list[Row]) -> None:
        """Its reads have ended."""
        over.append(row)
        while not row.settled:
            await RisingEdge(self.dut.clk)

    async def run_whole(self) -> None:
        """Passes of other rows, in bursts."""
        for _ in range(WHOLE):
            index = self.random.randrange(CONFIG.rows // 2, CONFIG.rows)
            steps = [{"kind": StepKind.GENERATE, "index": index}]
            for _ in range(self.random.randrange(1, 9)):
                steps.append({"kind": StepKind.DATA, "line": self.random.randrange(64)})
            steps.append({"kind": StepKind.OUTPUT, "last": 1, "index": index})
            self.whole_steps.extend(steps)
            self.whole.send_all(steps)
            self.whole_done.append(index)
            await cycles_pass(self.dut.clk, self.random.choice((0, 0, 200, 400)))


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def pieces_are_worked_out_as_they_land(dut):
    bench = Bench(dut)
    strobes = (dut.claim, dut.record, dut.settle)
    watch = BusyWatch(
        dut,
        ["piece", "whole", "pass_done"],
        ["step", "done"],
        others=lambda: tuple(sample(one) for one in strobes),
    )
    await start(dut)
    others = cocotb.start_soon(bench.run_whole())
    await bench.run_rows()
    await others
    await wait_until(
        dut, lambda: bench.ended == ROWS + WHOLE, cycles=PATIENCE, what="the last answers"
    )
    await cycles_pass(dut.clk, PIECE_CYCLES)
    assert not bench.rows and not bench.whole_steps and not bench.engine
    assert not sample(dut.busy)
    watch.check()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def seats_are_shared(dut):
    """Of several arrays none has more than half of the seats; a single one may have all."""
    layouts = (("piece", piece), ("whole", step), ("pass_done", pass_done))
    for name, layout in layouts:
        StreamSource(dut, name, layout=layout(SHARED))
    for name in ("claim", "record", "settle"):
        getattr(dut, name).value = 0
    dut.reads.value = 3
    dut.several.value = 1
    await start(dut)

    async def claim(array: int) -> int:
        """Seats that it gets."""
        dut.array.value = array
        for got in range(SHARED.early_rows + 1):
            await RisingEdge(dut.clk)
            await RisingEdge(dut.clk)
            if not sample(dut.free):
                return got
            dut.claim.value = 1
            await RisingEdge(dut.clk)
            dut.claim.value = 0
        raise AssertionError("more seats than there are")

    assert await claim(5) == 4
    assert await claim(2) == 4
    assert await claim(5) == 0 and await claim(0) == 0
    dut.rst.value = 1
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    dut.several.value = 0
    assert await claim(5) == 8


SHARED = board()


def share_seats(kind: type[Early] = Early) -> None:
    simulate(
        kind(config=SHARED),
        name=f"early_shared_{kind.__name__}",
        module=__name__,
        testcase="seats_are_shared",
        parameters={"ACTIVE": "1"},
    )


def test_shared_seats():
    share_seats()


class FirstComeFirstSeated(Early):
    """A planted bug: an array may have all seats."""

    def _has_its_share(self, m):
        return super()._has_its_share(m) & 0


@pytest.mark.slow
def test_seats_that_are_not_shared_are_found():
    with pytest.raises(SimulationError, match="failed: seats_are_shared"):
        share_seats(FirstComeFirstSeated)


@pytest.mark.parametrize("active", [pytest.param(1.0, marks=pytest.mark.slow), 0.4])
def test_early(active):
    work_out(active)


def work_out(active: float, name: str = "early") -> None:
    simulate(
        Early(config=CONFIG),
        name=name,
        module=__name__,
        testcase="pieces_are_worked_out_as_they_land",
        parameters={"ACTIVE": str(active)},
    )


@pytest.mark.parametrize(
    ("name", "module", "function", "planted", "message"),
    [
        ("one_block_too_few", count_module, "ones", lambda mask: mask.any(), "before all blocks"),
        ("leaves_at_once", early_module, "_none", lambda passes: 1, "left while pieces"),
        ("waits_for_no_piece", early_module, "PIECE_CYCLES", 0, "a piece of a row that has left"),
        ("one_piece_too_few", early_module, "PIECES", PIECES - 1, "7 pieces worked out"),
    ],
)
@pytest.mark.slow
def test_planted_bug_is_caught(monkeypatch, name, module, function, planted, message):
    monkeypatch.setattr(module, function, planted)
    with pytest.raises(SimulationError, match=message):
        work_out(0.4, f"early_{name}")
