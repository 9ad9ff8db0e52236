"""Runs of the sequencer on its benches, and planted bugs that more than one must catch."""

from collections.abc import Sequence

import pytest

from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.stripe.sequencer_bench import CONFIG
from hdl.stripe.rows.sequencer import Sequencer


def run_rows(
    component: type[Sequencer],
    *,
    module: str,
    array: str,
    testcase: str | Sequence[str],
    active: float = 0.6,
) -> None:
    """Runs tests of ``module`` on ``component``, with an array that the module's bench knows.

    ``active``: of its streams, the part of the cycles in which they are ready or send.
    """
    simulate(
        converted(component, config=CONFIG),
        name=component.__name__,
        module=module,
        testcase=testcase,
        parameters={"ARRAY": array, "ACTIVE": str(active)},
    )


def must_catch(mutant: type, *, module: str, array: str, testcase: str, place: str = "") -> None:
    """The test finds the bug that is planted in ``mutant``, a sequencer, or what stands in its
    stead at ``place`` of `hdl.stripe`."""
    if place:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"hdl.stripe.{place}", mutant)
            sequencer = type(mutant.__name__, (Sequencer,), {})
            must_catch(sequencer, module=module, array=array, testcase=testcase)
        return
    with pytest.raises(SimulationError, match=f"failed: {testcase}"):
        run_rows(mutant, module=module, array=array, testcase=testcase)


class KeepsLines(Sequencer):
    """A planted bug: no line is given back."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.free.valid.eq(0)
        return m


class TrustsStaleDrives(Sequencer):
    """A planted bug: a drive that is being rebuilt is read as any other."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.planning.drives.stale.eq(0)
        return m
