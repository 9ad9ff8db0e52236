"""`tools.same`: what leaves the hardware as it was, and what does not."""

import subprocess
import sys

import pytest
from amaranth import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from sim.checkout import ROOT
from tools.same.compare import Comparison, compare
from tools.same.constants import without_constants
from tools.same.logic import logic_of

WORD = 4


class Counters(Elaboratable):
    """Counts what it is told to, beside what it has counted at most."""

    def __init__(self, name: str, *, words: bool, other: bool, init: int = 0) -> None:
        self.words, self.other, self.init = words, other, init
        self.prefix = name
        self.step = Signal(WORD)
        self.total = Signal(WORD)
        self.most = Signal(WORD)

    def _more(self, total: Value, most: Value) -> Value:
        return most <= total if self.other else most < total

    def elaborate(self, platform) -> Module:
        m = Module()
        total = Signal(WORD, init=self.init, name=f"{self.prefix}t")
        most = Signal(WORD, name=f"{self.prefix}m")
        if self.words:
            layout = data.StructLayout({"total": WORD, "most": WORD})
            both = Signal(layout, init={"total": self.init})
            m.d.sync += both.total.eq(both.total + self.step)
            with m.If(both.total > both.most):
                m.d.sync += both.most.eq(both.total)
            m.d.comb += [self.total.eq(both.total), self.most.eq(both.most)]
        else:
            m.d.sync += [
                total.eq(self.step + total),
                most.eq(Mux(self._more(total, most), total, most)),
            ]
            m.d.comb += [self.total.eq(total), self.most.eq(most)]
        return m


class Top(wiring.Component):
    """A counter, a memory of what it had, and some logic."""

    step: In(WORD)
    write: In(1)
    read: In(1)
    address: In(WORD)
    total: Out(WORD)
    most: Out(WORD)
    kept: Out(WORD)
    flag: Out(1)

    def __init__(self, variant: str = "") -> None:
        self.variant = variant
        super().__init__()

    def elaborate(self, platform) -> Module:
        m = Module()
        variant = self.variant
        name = "r" if variant == "renamed" else "c"  # shorter than any other of their names
        if variant == "other names":
            name = "_u"
        counters = Counters(
            name,
            words=variant == "words",
            other=variant == "other names",
            init=variant == "init",
        )
        if variant == "renamed":
            m.submodules.outer = outer = Module()
            outer.submodules.inner = counters
        else:
            m.submodules.counters = counters
        m.d.comb += [
            counters.step.eq(self.step),
            self.total.eq(counters.total),
            self.most.eq(counters.most),
        ]
        self._memory(m, counters)
        self._flag(m)
        return m

    def _memory(self, m: Module, counters: Counters) -> None:
        init = [3] if self.variant == "contents" else []
        m.submodules.memory = memory = Memory(shape=WORD, depth=1 << WORD, init=init)
        writer, reader = memory.write_port(), memory.read_port()
        # What is written where nothing is written matters to nobody.
        value = Mux(self.write, counters.total, 5) if self.variant == "unused" else counters.total
        m.d.comb += [
            writer.en.eq(self.write),
            writer.addr.eq(self.address + (self.variant == "address")),
            writer.data.eq(value),
            reader.en.eq(self.read),
            reader.addr.eq(self.address),
            self.kept.eq(reader.data),
        ]

    def _flag(self, m: Module) -> None:
        a, b, c, d = Cat(*self.step)
        flag = Signal()
        match self.variant:
            case "factored":
                m.d.sync += flag.eq(a & (b | c) | d)
            case "nearly":
                # Another value of one of sixteen inputs only.
                m.d.sync += flag.eq(a & b | a & c | d & (self.step != 8))
            case "twice":
                other = Signal()
                m.d.sync += [flag.eq(a & b | a & c | d), other.eq(a & b | a & c | d)]
                m.d.comb += self.flag.eq(flag & other)
                return
            case _:
                m.d.sync += flag.eq(a & b | a & c | d)
        m.d.comb += self.flag.eq(flag)


def found(variant: str) -> Comparison:
    return compare(logic_of(Top()), logic_of(Top(variant)))


@pytest.mark.parametrize("variant", ["", "renamed", "words"])
def test_names_modules_and_words_do_not_count(variant):
    assert found(variant).alike


@pytest.mark.parametrize("variant", ["factored", "unused"])
def test_other_gates_are_proved_equal(variant):
    result = found(variant)
    assert not result.alike and result.proved
    assert result.changed.total() > 0 and not +result.different


def test_what_is_renamed_and_made_otherwise_is_proved_equal():
    before, after = logic_of(Top()), logic_of(Top("other names"))
    assert not compare(before, after).proved
    assert compare(before, after, {"ct": "ut", "cm": "um"}).proved
    assert not compare(before, after, {"ct": "um", "cm": "ut"}).proved


@pytest.mark.parametrize(
    ("variant", "blocks"),
    [
        ("init", {"counters"}),
        ("contents", {"top"}),
        ("address", {"top"}),
        ("nearly", {"top"}),
    ],
)
def test_differences_are_found_where_they_are(variant, blocks):
    result = found(variant)
    assert not result.proved
    named = set(+result.different) | set(+result.only_before)
    assert named >= blocks, named


def test_a_register_twice_is_seen_in_the_size():
    result = found("twice")
    assert result.proved
    assert result.sizes[1][1] == result.sizes[0][1] + 1


class Optional(wiring.Component):
    """Counts, and with an option adds what it has kept."""

    step: In(WORD)
    total: Out(WORD)

    def __init__(self, *, option: str = "") -> None:
        self.option = option
        super().__init__()

    def elaborate(self, platform) -> Module:
        m = Module()
        total = Signal(WORD)
        m.d.sync += total.eq(total + self.step)
        m.d.comb += self.total.eq(total)
        if self.option:
            # A chain of registers that begins with a constant, and a memory that none writes.
            wanted, first, second = Signal(), Signal(), Signal(WORD)
            m.submodules.memory = memory = Memory(shape=WORD, depth=4, init=[])
            writer, reader = memory.write_port(), memory.read_port()
            m.d.comb += [
                wanted.eq(self.option == "on"),
                reader.addr.eq(total),
                writer.data.eq(self.step),
                writer.en.eq(wanted),
                self.total.eq(total + Mux(first, second, 0) + reader.data),
            ]
            m.d.sync += [first.eq(first | wanted), second.eq(second + self.step)]
        return m


def test_what_an_option_leaves_behind_is_left_out():
    without, off, on = (
        without_constants(logic_of(Optional(option=option))) for option in ("", "off", "on")
    )
    assert len(without.states) == len(off.states) == WORD
    assert compare(without, off).alike
    assert len(on.states) == 3 * WORD + 1
    assert not compare(without, on).proved


@pytest.mark.parametrize("variant", ["", "contents", "init", "twice"])
def test_nothing_else_is_left_out(variant):
    logic = logic_of(Top(variant))
    kept = without_constants(logic)
    assert len(kept.states) == len(logic.states)
    assert compare(logic, kept).alike


class Twins(wiring.Component):
    """Two registers of which one is called as the other, with an underscore."""

    step: In(WORD)
    total: Out(WORD)
    most: Out(WORD)

    def __init__(self, name: str, *, other: bool) -> None:
        self._name, self._other = name, other
        super().__init__()

    def elaborate(self, platform) -> Module:
        m = Module()
        hidden, shown = Signal(WORD, name="_t"), Signal(WORD, name=self._name)
        more = shown <= hidden if self._other else shown < hidden
        m.d.sync += [hidden.eq(hidden + self.step), shown.eq(Mux(more, hidden, shown))]
        m.d.comb += [self.total.eq(hidden), self.most.eq(shown)]
        return m


def test_an_underscore_tells_two_registers_apart():
    """One of the two has another name now, and is made in another way."""
    before = without_constants(logic_of(Twins("t", other=False)))
    after = without_constants(logic_of(Twins("s_t", other=True)))
    found = compare(before, after, {"t": "s_t"})
    assert found.proved and not found.alike and not found.only_before


class Ports(wiring.Component):
    """A word and its negation, with ports that are called as the test says."""

    def __init__(self, *, asked: str, told: str) -> None:
        self._asked, self._told = asked, told
        super().__init__({asked: In(WORD), told: Out(WORD)})

    def elaborate(self, platform) -> Module:
        m = Module()
        m.d.comb += getattr(self, self._told).eq(~getattr(self, self._asked))
        return m


def test_ports_that_are_others_are_named():
    before, after = (
        logic_of(Ports(asked=asked, told=told))
        for asked, told in (("request", "answer"), ("ask", "tell"))
    )
    found = compare(before, after)
    assert not found.proved
    assert found.only_before == {"input request": WORD, "output answer": WORD}
    assert found.only_after == {"input ask": WORD, "output tell": WORD}
    assert not compare(before, after, {"request": "ask"}).proved
    assert compare(before, after, {"request": "ask", "answer": "tell"}).alike
    # Of the same name, but in the other direction.
    turned = logic_of(Ports(asked="answer", told="request"))
    assert compare(before, turned).only_after == {"input answer": WORD, "output request": WORD}


def test_the_program_imports_no_design():
    """It reads two designs of the same name, each in a process that has none."""
    code = (
        "import sys, tools.same.__main__ as same; from sim.cli import program;"
        " sys.exit(program('same', lambda: 'hdl' in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
