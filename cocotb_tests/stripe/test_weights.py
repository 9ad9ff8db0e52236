"""How parity steps name roles, against the reference layouts: every rotation, all pairs lost."""

import os
import random
from itertools import combinations

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import Timer

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import Packing, sample, unpack
from hdl.config import Config
from hdl.flow.parity_pass import StepKind, step
from hdl.stripe.planning.weights import Weights
from sim.card.layouts import rotation_of
from sim.golden.layout import Layout, rotations

CONFIGS = {"board": Config(ports=8), "wide": Config(ports=32), "odd": Config(ports=6)}
LAYOUTS = 24


class Bench:
    """Gives rows of random layouts, and compares every kind of step."""

    def __init__(self, dut, config: Config):
        self.dut = dut
        self._shape = step(config)
        self._pack = Packing(self._shape)

    async def weigh(self, **fields) -> dict:
        """A step as the engine takes it; fields that a step does not use come back unchanged."""
        self.dut.plain.value = self._pack(**fields)
        await Timer(1, "ns")
        return unpack(self._shape, sample(self.dut.weighed))

    async def check(self, layout: Layout, row: int, lost: tuple[int, ...]) -> None:
        """A row with data roles ``lost``."""
        dut = self.dut
        exponents, syndromes = layout.exponents(row), layout.syndromes(row)
        dut.shift.value = layout.turned(row)[0]
        dut.data.value = layout.data
        dut.rotation.value = rotation_of(layout).value
        dut.erased.value = sum(1 << role for role in lost)
        for role, exponent in enumerate(exponents):
            found = await self.weigh(kind=StepKind.DATA, role=role, line=5)
            assert (found.role, found.line) == (exponent, 5), f"{layout} row {row} data {role}"
        for role, syndrome in enumerate(syndromes):
            for kind in (StepKind.PARITY, StepKind.OUTPUT):
                dut.recovering.value = 0
                found = await self.weigh(kind=kind, role=role)
                assert found.role == syndrome, f"{layout} row {row} parity {role}"
        used = random.Random(row).sample(range(layout.parities), len(lost))
        begin = {
            "kind": StepKind.RECOVER,
            "erased": sum(1 << role for role in lost),
            "parities": sum(1 << role for role in used),
        }
        dut.recovering.value = 1
        found = await self.weigh(**begin)
        order = sorted(exponents[role] for role in lost)
        assert found.erased == sum(1 << exponent for exponent in order), f"{layout} {row} {lost}"
        assert found.parities == sum(1 << syndromes[role] for role in used)
        for place, role in enumerate(lost):
            found = await self.weigh(kind=StepKind.OUTPUT, role=place, last=1, index=1)
            wanted = order.index(exponents[role]), 1, 1
            assert (found.role, found.last, found.index) == wanted, f"{layout} {row} {lost}"


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def names_roles_as_the_layouts_weigh_them(dut):
    generator = random.Random(int(os.environ["SEED"]))
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config)
    for rotation in rotations("RAID6"):
        for _ in range(LAYOUTS // 8 if config.ports > 8 else LAYOUTS // 4):
            drives = generator.randint(4, config.ports)
            layout = Layout("RAID6", drives, 1, rotation=rotation)
            for row in range(drives):
                pairs = list(combinations(range(layout.data), 2))
                pairs += [(role,) for role in range(layout.data)]
                for lost in generator.sample(pairs, min(12, len(pairs))):
                    await bench.check(layout, row, lost)


def weighs(component, config: str) -> None:
    simulate(
        component(config=CONFIGS[config]),
        name=f"weights_{component.__name__}_{config}",
        module=__name__,
        parameters={"CONFIG": config},
    )


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, marks=[pytest.mark.slow] if config == "wide" else [])
        for config in CONFIGS
    ],
)
def test_weights(config):
    weighs(Weights, config)


class NeverCrosses(Weights):
    """Planted bug: outputs of two lost roles stay in order where turning exchanges them."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.recovering & (self.plain.kind == StepKind.OUTPUT)):
            m.d.comb += self.weighed.role.eq(self.plain.role)
        return m


class NeverSwaps(Weights):
    """Planted bug: the first parity role is always P."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.plain.kind == StepKind.PARITY):
            m.d.comb += self.weighed.role.eq(self.plain.role)
        return m


@pytest.mark.parametrize(
    "bug", [pytest.param(NeverCrosses, marks=pytest.mark.slow), NeverSwaps]
)
def test_planted_bugs_are_found(bug):
    with pytest.raises(SimulationError, match="names_roles_as_the_layouts_weigh_them"):
        weighs(bug, "board")
