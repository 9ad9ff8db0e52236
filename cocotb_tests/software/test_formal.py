"""Every registered proof holds, and finds every bug planted in its design."""

import pytest
from amaranth.hdl import Assert, Cover, Elaboratable, Module, Signal

from sim.formal.registry import registered
from sim.formal.runner import Proof, ProofError, Refuted, any_constant, any_sequence, prove

PROOFS = registered()


def _marks(proof: Proof, mutant: int = 0):
    """The first bug of each proof shows that it can fail; the others belong to ``make mutants``."""
    return [pytest.mark.slow] if proof.slow or mutant else []


@pytest.mark.parametrize("name", [pytest.param(n, marks=_marks(p)) for n, p in PROOFS.items()])
def test_proof(name: str):
    PROOFS[name].check()


@pytest.mark.parametrize(
    ("name", "index"),
    [
        pytest.param(name, index, marks=_marks(proof, index))
        for name, proof in PROOFS.items()
        for index in range(len(proof.mutants))
    ],
)
def test_mutant_is_refuted(name: str, index: int):
    PROOFS[name].check_mutant(index)


class Saturating(Elaboratable):
    """Counts what the solver lets through, up to ``limit``; claims to stay below ``claim``."""

    def __init__(self, *, limit: int, claim: int):
        self._limit = limit
        self._claim = claim

    def elaborate(self, platform) -> Module:
        m = Module()
        count = Signal(8)
        step = any_constant(2)
        with m.If(any_sequence(1) & (count + step <= self._limit)):
            m.d.sync += count.eq(count + step)
        m.d.comb += [Assert(count < self._claim), Cover(count == self._limit)]
        return m


class Combinational(Elaboratable):
    """Has no register, and claims that a byte is never ``forbidden`` (None: nothing is)."""

    def __init__(self, *, forbidden: int | None):
        self._forbidden = forbidden

    def elaborate(self, platform) -> Module:
        m = Module()
        byte = any_sequence(8)
        claim = (byte ^ byte) == 0 if self._forbidden is None else byte != self._forbidden
        m.d.comb += Assert(claim)
        return m


ENGINES = [("prove", "abc pdr"), ("bmc", "abc bmc3"), ("bmc", "smtbmc yices"), ("bmc", "smtbmc z3")]


@pytest.mark.parametrize(("mode", "engine"), ENGINES)
def test_engines_tell_true_from_false(mode, engine):
    prove(Saturating(limit=6, claim=7), "saturating", mode=mode, depth=9, engine=engine)
    with pytest.raises(Refuted, match=r"trace\.vcd"):
        prove(Saturating(limit=6, claim=6), "saturating", mode=mode, depth=9, engine=engine)


@pytest.mark.parametrize(("mode", "engine"), [("prove", "abc pdr"), ("bmc", "abc bmc3")])
def test_designs_without_registers(mode, engine):
    prove(Combinational(forbidden=None), "combinational", mode=mode, engine=engine)
    with pytest.raises(Refuted):
        prove(Combinational(forbidden=7), "combinational", mode=mode, engine=engine)


def test_cover():
    prove(Saturating(limit=6, claim=7), "saturating", mode="cover", depth=9)
    with pytest.raises(ProofError):
        prove(Saturating(limit=60, claim=61), "saturating", mode="cover", depth=9)


def test_mutant_that_survives_is_an_error():
    proof = Proof(
        name="survivor",
        build=lambda: Saturating(limit=6, claim=7),
        mutants=[lambda: Saturating(limit=5, claim=7)],
        depth=9,
    )
    with pytest.raises(ProofError, match="not found"):
        proof.check_mutant(0)
