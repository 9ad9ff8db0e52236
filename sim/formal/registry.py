"""Finds the proofs that ``sim/formal/prove_*.py`` list in ``PROOFS``."""

from importlib import import_module
from pathlib import Path

from sim.formal.runner import Proof


def registered() -> dict[str, Proof]:
    """Every proof by name, in the order of files and lists."""
    proofs: dict[str, Proof] = {}
    for path in sorted(Path(__file__).parent.glob("prove_*.py")):
        for proof in import_module(f"sim.formal.{path.stem}").PROOFS:
            if proof.name in proofs:
                raise ValueError(f"{path.name}: a proof called {proof.name} exists already")
            proofs[proof.name] = proof
    return proofs
