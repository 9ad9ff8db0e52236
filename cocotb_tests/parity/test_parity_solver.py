"""`hdl.parity.solver.Solver` against the golden model, answer by answer, and its latencies."""

import os
import random
from itertools import combinations

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import pack, sample, start, unpack
from hdl.config import MAX_DRIVES, Config
from hdl.flow.parity_pass import StepKind
from hdl.parity import solver as solver_module
from hdl.parity.solver import Solver, solver_answer, solver_request
from sim.golden.parity import UnsolvableError, recovery_matrix, recovery_weight, weight

GENERATE_CYCLES = 1
KEPT_CYCLES = 1
INPUT_CYCLES = 2


class Bench:
    """Asks, and compares each answer and how long it took."""

    def __init__(self, dut):
        self.dut = dut
        self.parities = int(os.environ["PARITIES"])
        self.config = Config(parities=self.parities)
        self._request, self._answer = solver_request(self.config), solver_answer(self.config)
        self.random = random.Random(int(os.environ["SEED"]))
        self.kept: tuple | None = None
        dut.request__valid.value = 0
        dut.answer__ready.value = 1

    async def ask(self, **fields):
        """The answer to a request, and the cycles from the request taken to the answer offered."""
        dut = self.dut
        dut.request__payload.value = pack(self._request, **fields)
        dut.request__valid.value = 1
        await RisingEdge(dut.clk)
        while not sample(dut.request__ready):
            await RisingEdge(dut.clk)
        dut.request__valid.value = 0
        cycles = 0
        while True:
            await RisingEdge(dut.clk)
            cycles += 1
            if sample(dut.answer__valid):
                return unpack(self._answer, sample(dut.answer__payload)), cycles

    async def generate(self) -> None:
        """A GENERATE and some of its inputs."""
        answer, cycles = await self.ask(kind=StepKind.GENERATE)
        assert (answer.unsolvable, cycles) == (0, GENERATE_CYCLES)
        role = self.random.randrange(MAX_DRIVES)
        answer, cycles = await self.ask(kind=StepKind.DATA, role=role)
        assert answer.coefficients == [weight(j, role) for j in range(self.parities)]
        assert cycles == INPUT_CYCLES
        role = self.random.randrange(self.parities)
        answer, _ = await self.ask(kind=StepKind.PARITY, role=role)
        assert answer.coefficients == [int(j == role) for j in range(self.parities)]

    async def recover(self, erased: tuple, used: tuple) -> None:
        """A RECOVER, and if it can be solved every parity and some data inputs."""
        answer, cycles = await self.ask(
            kind=StepKind.RECOVER,
            erased=sum(1 << role for role in erased),
            parities=sum(1 << j for j in used),
        )
        pattern = f"roles {erased} from syndromes {used}"
        try:
            inverse = recovery_matrix(erased, used)
            assert max(used) < self.parities
        except (UnsolvableError, AssertionError):
            assert answer.unsolvable, pattern
            self.kept = None
            return
        assert not answer.unsolvable, pattern
        size = len(erased)
        kept = self.kept == (erased, used)
        assert cycles == (KEPT_CYCLES if kept else size * size + 5 * size + 1)
        self.kept = (erased, used)
        rest = [0] * (self.parities - size)
        for a, j in enumerate(used):
            answer, _ = await self.ask(kind=StepKind.PARITY, role=j)
            assert answer.coefficients == [inverse[b][a] for b in range(size)] + rest, pattern
        for role in self.random.sample(range(MAX_DRIVES), 2):
            answer, cycles = await self.ask(kind=StepKind.DATA, role=role)
            wanted = [recovery_weight(inverse, used, b, role=role) for b in range(size)]
            assert answer.coefficients == wanted + rest, f"{pattern}, role {role}"
            assert cycles == INPUT_CYCLES + size


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def solves_as_the_reference(dut):
    await start(dut)
    bench = Bench(dut)
    patterns = []
    for size in range(1, bench.parities + 1):
        erasures = list(combinations(range(MAX_DRIVES), size))
        erasures = bench.random.sample(erasures, min(len(erasures), int(os.environ["PATTERNS"])))
        for used in combinations(range(bench.parities), size):
            patterns += [(erased, used) for erased in erasures]
    bench.random.shuffle(patterns)
    patterns += [((), (0,)), ((0,), ()), ((0, 1), (0,)), ((4,), (0, 1)), ((), ())]
    if bench.parities < 4:
        patterns += [((3,), (bench.parities,)), ((1, 2), (0, bench.parities))]
    else:
        patterns += [((0, 10, 21), (0, 1, 3)), ((3, 4, 28), (0, 1, 3)), ((0, 11, 21), (0, 2, 3))]
    for erased, used in patterns:
        await bench.recover(erased, used)
        if bench.random.random() < 0.2:
            await bench.generate()
            await bench.recover(erased, used)
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    assert not sample(dut.busy)


def _simulate(parities: int, patterns: int, name: str = "solver") -> None:
    simulate(
        Solver(config=Config(parities=parities)),
        name=f"parity_{name}_p{parities}",
        module=__name__,
        testcase="solves_as_the_reference",
        parameters={"PARITIES": str(parities), "PATTERNS": str(patterns)},
    )


@pytest.mark.parametrize(("parities", "patterns"), [(1, 32), (2, 496), (3, 150), (4, 60)])
def test_solves_as_the_reference(parities, patterns):
    _simulate(parities, patterns)


def test_wrong_inverse_is_caught(monkeypatch):
    def wrong(field):
        table = right(field)
        table[3] ^= 1
        return table

    right = solver_module.inverse_table
    monkeypatch.setattr(solver_module, "inverse_table", wrong)
    with pytest.raises(SimulationError, match=r"roles \("):
        _simulate(2, 496, name="mutant_inverse")
