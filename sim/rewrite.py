"""Rewrites what Amaranth emits, so that a simulation of it has less to do. The meaning stays.

`without_empty_cases` takes RTLIL, `clocked` takes the Verilog that Yosys makes of it. Neither knows
more of the two than the forms that Amaranth writes. What has another form stays as it is.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_SWITCH = "    switch "
"""How the outermost switch of a process begins. Processes stand in modules, two columns deeper."""

_PATTERN = re.compile(r"\d+'([01xzm-]+)")


@dataclass(kw_only=True)
class _Case:
    """A case of a switch: its line, and what it does. No patterns: it is the default."""

    line: str
    body: "list[str | _Switch]" = field(default_factory=list)

    @property
    def patterns(self) -> list[str]:
        return _PATTERN.findall(self.line)


@dataclass(kw_only=True)
class _Switch:
    line: str
    cases: list[_Case] = field(default_factory=list)


def without_empty_cases(rtlil: str) -> str:
    """Removes cases that do nothing from processes, where nothing else would be done then.

    Amaranth writes a process for each signal. It has all cases of a switch up to the last that
    drives the signal, so one signal of a state machine with 40 states has up to 40 cases, most of
    them empty. Verilator makes a comparison of each.

    A case goes if no case stands behind it, or if all cases of the switch are different constants
    and there is no default. A switch without cases goes.
    """
    lines = iter(rtlil.split("\n"))
    return "\n".join(
        part
        for line in lines
        for part in (_shortened(line, lines) if line.startswith(_SWITCH) else (line,))
    )


def _shortened(line: str, lines: Iterator[str]) -> Iterator[str]:
    """The lines of the switch that begins with ``line``. What it has is taken from ``lines``."""
    switch = _parse(line, lines)
    _shorten(switch)
    return _emit(switch) if switch.cases else iter(())


def _parse(line: str, lines: Iterator[str]) -> _Switch:
    switch = _Switch(line=line)
    for inner in lines:
        word = inner.split(maxsplit=1)[0]
        if word == "end":
            return switch
        if word == "case":
            switch.cases.append(_Case(line=inner))
        else:
            switch.cases[-1].body.append(_parse(inner, lines) if word == "switch" else inner)
    raise ValueError(f"a switch has no end: {line.strip()}")


def _shorten(switch: _Switch) -> None:
    for case in switch.cases:
        for part in case.body:
            if isinstance(part, _Switch):
                _shorten(part)
        case.body = [part for part in case.body if isinstance(part, str) or part.cases]
    while switch.cases and not switch.cases[-1].body:
        switch.cases.pop()
    patterns = [pattern for case in switch.cases for pattern in case.patterns]
    if (
        all(case.patterns for case in switch.cases)
        and len({*patterns}) == len(patterns)
        and not any({*pattern} - {"0", "1"} for pattern in patterns)
    ):
        switch.cases = [case for case in switch.cases if case.body]


def _emit(switch: _Switch) -> Iterator[str]:
    yield switch.line
    for case in switch.cases:
        yield case.line
        for part in case.body:
            if isinstance(part, str):
                yield part
            else:
                yield from _emit(part)
    indent = switch.line.index("switch")
    yield " " * indent + "end"


_MODULE = re.compile(r"^module .*?^endmodule$", re.MULTILINE | re.DOTALL)

_NAME = re.compile(r"\\\S+|[A-Za-z_][\w$]*")

_REGISTER = re.compile(
    r"^  always @\(posedge clk\)\n"
    rf"    (?P<register>{_NAME.pattern}) *<= (?P<next>{_NAME.pattern}) *;\n",
    re.MULTILINE,
)
"""A register without enable that takes all of another variable."""

_NEXT = re.compile(
    r"^  always @\* begin\n"
    r"    if \(\\\$auto\$verilog_backend\S* \) begin end\n"
    r"(?P<body>.*?)"
    r"^  end\n",
    re.MULTILINE | re.DOTALL,
)
"""A process, with the trigger that makes Yosys' Verilog run it once at the beginning."""

_ASSIGNMENT = re.compile(
    rf"^(?P<indent> +)(?P<target>{_NAME.pattern})(?P<bits> ?\[[\d:]+\])? *= (?P<value>.*);$"
)


def clocked(verilog: str) -> str:
    """Makes one clocked process of a register and of the process that works out its next value.

    Amaranth writes the two apart. Verilator works a process out at the clock's edge, and once more
    when inputs change, if any has a part in it; and the reset is an input that has a part in all.
    A clocked process is only run at the edge, and copies nothing where the register keeps what it
    has.
    """
    return _MODULE.sub(lambda module: _clocked(module[0]), verilog)


def _clocked(module: str) -> str:
    uses = Counter(_NAME.findall(module))
    registers = {match["next"]: match for match in _REGISTER.finditer(module)}
    edits: list[tuple[int, int, str]] = []
    for process in _NEXT.finditer(module):
        first = _first_target(process["body"])
        register = registers.get(first)
        if register is None:
            continue
        own = _NAME.findall(process["body"]).count(first)
        body = _nonblocking(process["body"], first, register["register"])
        # Besides it has a declaration, and the register takes it.
        if body is None or uses[first] != own + 2:
            continue
        edits.append((*register.span(), ""))
        edits.append((*process.span(), f"  always @(posedge clk) begin\n{body}  end\n"))
    for begin, end, text in sorted(edits, reverse=True):
        module = module[:begin] + text + module[end:]
    return module


def _first_target(body: str) -> str:
    match = _ASSIGNMENT.match(body.partition("\n")[0])
    return match["target"] if match else ""


def _nonblocking(body: str, variable: str, register: str) -> str | None:
    """``body`` with ``register`` in place of ``variable``, or None where more than that is
    assigned, or ``variable`` is read."""
    result: list[str] = []
    for line in body.splitlines():
        assignment = _ASSIGNMENT.match(line)
        if assignment is None:
            statement = line.endswith(";") and "/* empty */" not in line
            if statement or variable in _NAME.findall(line):
                return None
            result.append(line)
            continue
        value, bits = assignment["value"], assignment["bits"] or ""
        if assignment["target"] != variable or variable in _NAME.findall(value):
            return None
        if not result and not bits and value.strip() == register:
            continue  # it keeps what it has
        result.append(f"{assignment['indent']}{register} {bits} <= {value};")
    return "".join(f"{line}\n" for line in result)
