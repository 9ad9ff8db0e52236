"""`hdl.parity.runner.ParityPass` on a modelled line store, against golden model and ISA-L."""

import os
import random
from collections import deque
from collections.abc import Iterator

import cocotb
import pytest

from cocotb_tests.parity.parity_config import config_of
from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    every_cycle,
    sample,
    start,
    wait_until,
)
from hdl.config import BLOCK_BYTES, PIECES
from hdl.flow.line import write_beat
from hdl.flow.parity_pass import StepKind, pass_done, step
from hdl.memory.store import READ_LATENCY
from hdl.parity import engine as engine_module
from hdl.parity import fetcher as fetcher_module
from hdl.parity import solver as solver_module
from hdl.parity.engine import BANKS
from hdl.parity.galois import power_table
from hdl.parity.runner import ParityPass
from sim import isal
from sim.golden.parity import UnsolvableError, generate, recover, weight

PASSES_AHEAD = 4
"""Passes that the random test sends before it waits for the oldest to be done."""

TURNAROUND = 3
"""Idle cycles before a pass when the passes have as many outputs as inputs: the end of the drain
that the pass in between does not hide."""

DATA_ROLES = 28


class Lines:
    """The line store as `ParityPass` sees it, with random refusals."""

    def __init__(self, dut, config, *, active: float, seed: int):
        self.dut = dut
        self.config = config
        self.active = active
        self.random = random.Random(f"{seed}/lines")
        self.content: dict[int, bytearray] = {}
        self.asked: list[int] = []
        self.writes = 0
        self.cycle = 0
        StreamSink(
            dut,
            "line_write",
            layout=write_beat(config),
            active=active,
            callback=self._write,
        )
        every_cycle(dut.clk, self._read())

    def _write(self, beat) -> None:
        assert beat.mask == (1 << self.config.beat_dwords) - 1
        line, place = self._locate(beat.address)
        size = self.config.beat_bytes
        self.content[line][place : place + size] = beat.data.to_bytes(size, "little")
        self.writes += 1

    def _locate(self, address: int) -> tuple[int, int]:
        line, beat = divmod(address, self.config.beats)
        return line, beat * self.config.beat_bytes

    def _read(self) -> Iterator[None]:
        dut = self.dut
        valid = dut.line_read__request__valid
        payload = dut.line_read__request__payload
        ready = dut.line_read__request__ready
        response, response_valid = dut.line_read__response, dut.line_read__response_valid
        response_valid.value = 0
        answers: deque[int | None] = deque([None] * (READ_LATENCY - 1))
        while True:
            go = self.active >= 1 or self.random.random() < self.active
            ready.value = int(go)
            yield
            self.cycle += 1
            answer = None
            if go and sample(valid):
                line, place = self._locate(sample(payload))
                beat = self.content[line][place : place + self.config.beat_bytes]
                answer = int.from_bytes(beat, "little")
                self.asked.append(self.cycle)
            answers.append(answer)
            answer = answers.popleft()
            response_valid.value = int(answer is not None)
            if answer is not None:
                response.value = answer


class Bench:
    """Sends passes and checks what each leaves in its lines when it says that it is done."""

    def __init__(self, dut, *, active: float):
        self.config = config_of(os.environ)
        seed = int(os.environ["SEED"])
        self.dut = dut
        self.random = random.Random(seed)
        self.lines = Lines(dut, self.config, active=active, seed=seed)
        self.step = StreamSource(dut, "step", layout=step(self.config), active=active)
        self.done = StreamSink(dut, "done", layout=pass_done(self.config), active=active)
        self.free = list(range(self.config.lines))
        self.random.shuffle(self.free)
        self.pieces: bool | None = False
        self.running: deque[tuple[int, bool, int, dict, dict[int, bytes], list[int]]] = deque()
        self.index = 0

    def block(self) -> bytes:
        """A random block."""
        return self.random.randbytes(BLOCK_BYTES)

    def line(self, content: bytes | None = None) -> int:
        """A free line, now holding ``content``."""
        line = self.free.pop()
        self.lines.content[line] = bytearray(self.block() if content is None else content)
        return line

    def send(self, begin, inputs, outputs: dict[int, bytes], *, error: bool = False) -> None:
        """Sends a pass: ``inputs`` are (kind, role, block), ``outputs`` what each must become.

        Every output goes to a line of its own or, at random, to the line of an input. At random, or
        if ``pieces`` says so, the pass is about one piece of the lines only, or is sent as one pass
        for each piece of all.
        """
        if self.pieces is None:
            parts = self.random.choice([[None], [self.random.randrange(PIECES)], range(PIECES)])
        else:
            parts = range(PIECES) if self.pieces else [None]
        inputs = [(kind, role, self.line(content)) for kind, role, content in inputs]
        used = [line for _, _, line in inputs]
        expected = {line: bytes(self.lines.content[line]) for line in used}
        reusable = list(used)
        self.random.shuffle(reusable)
        lines = {}
        for role in outputs:
            if reusable and self.random.random() < 0.3:
                lines[role] = reusable.pop()
            else:
                lines[role] = self.line()
                used.append(lines[role])
            expected[lines[role]] = bytes(self.lines.content[lines[role]])
        for part in parts:
            index = self.index = (self.index + 1) % self.config.rows
            size = BLOCK_BYTES // PIECES
            place = slice(0, BLOCK_BYTES)
            piece = {"any": 0, "number": self.random.randrange(PIECES)}
            if part is not None:
                place = slice(part * size, (part + 1) * size)
                piece = {"any": 1, "number": part}
            self.random.shuffle(inputs)
            self.step.send(**begin, piece=piece)
            for kind, role, line in inputs:
                self.step.send(kind=kind, role=role, line=line)
            nonzero = 0
            for role, content in outputs.items():
                last, line = role == list(outputs)[-1], lines[role]
                self.step.send(
                    kind=StepKind.OUTPUT, role=role, line=line, last=int(last), index=index
                )
                nonzero |= any(content[place]) << role
                if not error:
                    old = expected[line]
                    expected[line] = old[: place.start] + content[place] + old[place.stop :]
            ends = part is None or part == parts[-1]
            self.running.append(
                (index, error, nonzero, piece, expected if ends else {}, used if ends else [])
            )

    async def finish_one(self) -> None:
        """Waits for the oldest pass and compares all its lines at once."""
        answer = await self.done.receive(cycles=200_000)
        index, error, nonzero, piece, expected, used = self.running.popleft()
        assert (answer.index, answer.error) == (index, int(error))
        assert answer.piece == piece, f"pass {index} is about {answer.piece}, not {piece}"
        assert error or answer.nonzero == nonzero, f"nonzero is {answer.nonzero}, not {nonzero}"
        for line, content in expected.items():
            assert self.lines.content[line] == content, f"pass {index}: line {line} is wrong"
        self.free += used
        self.random.shuffle(self.free)

    async def finish(self) -> None:
        """Waits for all passes; nothing may be left over."""
        while self.running:
            await self.finish_one()
        await wait_until(self.dut, lambda: not sample(self.dut.busy), cycles=50, what="idle")
        writes = self.lines.writes
        await cycles_pass(self.dut.clk, 4 * READ_LATENCY)
        assert not sample(self.dut.busy)
        assert self.step.idle
        assert self.done.idle
        assert self.lines.writes == writes
        assert len(self.free) == self.config.lines

    # Kinds of passes.

    def generate_all(self, width: int, wanted: list[int]) -> None:
        """A full stripe: the syndromes ``wanted`` of ``width`` data blocks."""
        blocks = [self.block() for _ in range(width)]
        parity = generate(blocks, self.config.parities)
        if width > 1:
            assert list(isal.pq(blocks))[: self.config.parities] == parity[:2]
        self.send(
            {"kind": StepKind.GENERATE},
            [(StepKind.DATA, role, block) for role, block in enumerate(blocks)],
            {j: parity[j] for j in wanted},
        )

    def update(self, width: int, count: int, wanted: list[int]) -> None:
        """Read-modify-write: old parity, old and new data of ``count`` of ``width`` blocks."""
        old = [self.block() for _ in range(width)]
        new = list(old)
        changed = self.random.sample(range(width), count)
        inputs = [
            (StepKind.PARITY, j, block)
            for j, block in enumerate(generate(old, self.config.parities))
            if j in wanted
        ]
        for role in changed:
            new[role] = self.block()
            inputs += [(StepKind.DATA, role, old[role]), (StepKind.DATA, role, new[role])]
        parity = generate(new, self.config.parities)
        self.send({"kind": StepKind.GENERATE}, inputs, {j: parity[j] for j in wanted})

    def check_row(self, width: int) -> None:
        """The syndromes of a consistent row are zero, and those of a damaged one are not."""
        blocks = [self.block() for _ in range(width)]
        parity = generate(blocks, self.config.parities)
        role = self.random.randrange(width)
        damage = bytes(100) + bytes([self.random.randrange(1, 256)]) + bytes(BLOCK_BYTES - 101)
        damaged = self.random.random() < 0.5
        syndromes = [bytes(BLOCK_BYTES)] * self.config.parities
        if damaged:
            blocks[role] = bytes(a ^ b for a, b in zip(blocks[role], damage, strict=True))
            syndromes = generate([bytes(BLOCK_BYTES)] * role + [damage], self.config.parities)
        inputs = [(StepKind.DATA, role, block) for role, block in enumerate(blocks)]
        inputs += [(StepKind.PARITY, j, block) for j, block in enumerate(parity)]
        self.send({"kind": StepKind.GENERATE}, inputs, dict(enumerate(syndromes)))

    def recover_row(self, width: int, erased: list[int], used: list[int]) -> None:
        """Lost roles from the others and the syndromes ``used``; some of them, or all."""
        blocks = [self.block() for _ in range(width)]
        parity = generate(blocks, max(4, self.config.parities))
        data = {role: block for role, block in enumerate(blocks) if role not in erased}
        inputs = [(StepKind.DATA, role, block) for role, block in data.items()]
        inputs += [(StepKind.PARITY, j, parity[j]) for j in used]
        outputs = {
            number: blocks[role]
            for number, role in enumerate(erased)
            if self.random.random() < 0.7 or number == 0
        }
        error = max(used, default=0) >= self.config.parities
        try:
            found = recover(data, {j: parity[j] for j in used}, erased)
            assert found == [blocks[role] for role in erased]
            matrix = isal.invert([[weight(j, role) for role in erased] for j in used])
            assert matrix is not None
        except UnsolvableError:
            error = True
        begin = {
            "kind": StepKind.RECOVER,
            "erased": sum(1 << role for role in erased),
            "parities": sum(1 << j for j in used),
        }
        self.send(begin, inputs, outputs or {0: bytes(BLOCK_BYTES)}, error=error)

    def random_recovery(self, width: int) -> None:
        """Some lost roles, mostly with as many syndromes."""
        count = self.random.randrange(1, min(width, self.config.parities) + 1)
        used = sorted(self.random.sample(range(self.config.parities), count))
        self.recover_row(width, sorted(self.random.sample(range(width), count)), used)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def passes_are_exact(dut):
    await start(dut)
    bench = Bench(dut, active=float(os.environ["ACTIVE"]))
    bench.pieces = {"no": False, "mixed": None}[os.environ["PIECES"]]
    parities = bench.config.parities
    roles = list(range(parities))
    for _ in range(int(os.environ["PASSES"])):
        width = bench.random.choice([1, 2, 3, 4, 6])
        wanted = bench.random.sample(roles, bench.random.randrange(1, parities + 1))
        kind = bench.random.randrange(6)
        if kind == 0:
            bench.generate_all(width, wanted)
        elif kind == 1:
            bench.update(width + 20, 1 + (width > 2), wanted)
        elif kind == 2:
            bench.check_row(width)
        else:
            bench.random_recovery(width)
        while len(bench.running) > PASSES_AHEAD:
            await bench.finish_one()
    await bench.finish()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def unsolvable_passes_are_refused(dut):
    await start(dut)
    bench = Bench(dut, active=0.9)
    parities = bench.config.parities
    for erased, used in [
        ([0, 10, 21], [0, 1, 3]),
        ([0, 11, 21], [0, 2, 3]),
        ([0, 1], [0]),
        ([1], [0, 1]),
        ([], [0]),
        ([0], []),
        ([0, 1, 2, 3, 4], [0, 1, 2, 3]),
        ([3], [parities]),
    ]:
        if max(used, default=0) > 3:
            continue
        bench.recover_row(22 if len(erased) == 3 else 5, erased, used)
        bench.generate_all(2, [0])
        bench.recover_row(3, [1], [0])
    await bench.finish()


async def _time_passes(dut, add) -> tuple[int, int]:
    """Beats read, and cycles from the first to the last, of what ``add`` sends to ideal ports."""
    await start(dut)
    bench = Bench(dut, active=1.0)
    add(bench)
    await bench.finish()
    asked = bench.lines.asked
    cycles = asked[-1] - asked[0] + 1
    print(f"{len(asked)} beats in {cycles} cycles, {len(asked) / cycles:.4f} beats a cycle")
    return len(asked), cycles


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def no_cycle_is_lost(dut):
    def add(bench):
        bench.pieces = os.environ["PIECES"] != "no"
        parities = bench.config.parities
        roles = list(range(parities))
        for width in (parities + 1, parities + 2):
            bench.generate_all(width, roles)
            bench.update(20, 1, roles)
            # Another pattern every time, so each is solved while the pass before it is read.
            erased = sorted(bench.random.sample(range(2 * parities + 2), parities))
            bench.recover_row(2 * parities + 2, erased, roles)
        bench.generate_all(parities + 1, [0])

    beats, cycles = await _time_passes(dut, add)
    assert cycles == beats


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def narrow_passes_wait_only_for_their_drain(dut):
    passes = 6

    def add(bench):
        for _ in range(passes):
            bench.generate_all(bench.config.parities, list(range(bench.config.parities)))

    beats, cycles = await _time_passes(dut, add)
    assert cycles - beats == TURNAROUND * (passes - BANKS)


def _simulate(
    width: int, parities: int, testcase: str, *, name: str = "pass", component=ParityPass, **more
) -> None:
    parameters = {
        "DATA_WIDTH": str(width),
        "PARITIES": str(parities),
        "ACTIVE": "0.85",
        "PASSES": "12",
        "PIECES": "no",
        **more,
    }
    simulate(
        converted(component, config=config_of(parameters)),
        name=f"parity_{name}_w{width}_p{parities}",
        module=__name__,
        testcase=testcase,
        parameters=parameters,
    )


@pytest.mark.parametrize("active", [1.0, pytest.param(0.85, marks=pytest.mark.slow), 0.4])
@pytest.mark.parametrize(
    ("width", "parities", "passes"),
    [
        (64, 2, 10),
        pytest.param(256, 2, 40, marks=pytest.mark.slow),
        (256, 4, 40),
        (512, 1, 60),
    ],
)
def test_passes_are_exact(width, parities, passes, active):
    count = passes if active > 0.5 else passes // 2
    _simulate(width, parities, "passes_are_exact", ACTIVE=str(active), PASSES=str(count))


@pytest.mark.parametrize(
    ("width", "parities", "passes", "active"),
    [
        (256, 2, 20, 0.6),
        pytest.param(256, 2, 20, 1.0, marks=pytest.mark.slow),
        pytest.param(64, 2, 8, 0.6, marks=pytest.mark.slow),
        pytest.param(512, 4, 30, 0.6, marks=pytest.mark.slow),
    ],
)
def test_pieces_are_exact(width, parities, passes, active):
    """Passes over pieces of lines, one after the other and between passes over whole lines."""
    _simulate(
        width,
        parities,
        "passes_are_exact",
        ACTIVE=str(active),
        PASSES=str(passes),
        PIECES="mixed",
    )


@pytest.mark.parametrize("parities", [1, 2, 4])
def test_unsolvable_passes_are_refused(parities):
    width = 512 if parities == 1 else 256
    _simulate(width, parities, "unsolvable_passes_are_refused")


@pytest.mark.parametrize(
    ("width", "parities"),
    [(64, 2), (256, 2), (256, 4), pytest.param(512, 4, marks=pytest.mark.slow)],
)
def test_no_cycle_is_lost(width, parities):
    _simulate(width, parities, "no_cycle_is_lost")


def test_no_cycle_is_lost_between_pieces():
    _simulate(256, 1, "no_cycle_is_lost", PIECES="all")


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(engine_module, id="engine"),
        pytest.param(fetcher_module, id="fetcher", marks=pytest.mark.slow),
    ],
)
def test_first_piece_for_any_is_caught(module, monkeypatch):
    monkeypatch.setattr(module, "beat_number", lambda config, count, of: count)
    name = f"mutant_piece_{module.__name__.split('.')[-1]}"
    with pytest.raises(SimulationError, match="is wrong"):
        _simulate(512, 2, "passes_are_exact", name=name, PIECES="mixed")


@pytest.mark.parametrize(
    ("width", "parities"), [(256, 2), pytest.param(512, 4, marks=pytest.mark.slow)]
)
def test_narrow_passes_wait_only_for_their_drain(width, parities):
    _simulate(width, parities, "narrow_passes_wait_only_for_their_drain")


@pytest.mark.slow
def test_overrun_of_the_engine_is_caught(monkeypatch):
    monkeypatch.setattr(fetcher_module, "BANKS", BANKS + 1)
    with pytest.raises(SimulationError, match=r"is wrong|nothing within"):
        _simulate(512, 2, "passes_are_exact", name="mutant_overrun", ACTIVE="0.4", PASSES="30")


@pytest.mark.slow
def test_wrong_weights_are_caught(monkeypatch):
    def transposed(field, *, roles, parities):
        table = power_table(field, roles=roles, parities=parities)
        return [row[::-1] for row in table]

    monkeypatch.setattr(solver_module, "power_table", transposed)
    with pytest.raises(SimulationError, match="is wrong"):
        _simulate(512, 2, "passes_are_exact", name="mutant_weights")


class OverlooksQ(ParityPass):
    """A planted bug: whether Q came out as zeros is not looked at."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.sync += self.done.payload.nonzero[1].eq(0)
        return m


@pytest.mark.slow
def test_overlooked_syndrome_is_caught():
    with pytest.raises(SimulationError, match="nonzero is"):
        _simulate(512, 2, "passes_are_exact", name="mutant_q", component=OverlooksQ)
