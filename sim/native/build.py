"""Builds the shared libraries of the native tier, once per content, under ``build/native``.

`build_controller`: verilated controller, models and harness for one configuration.
`build_tuned`: the same, compiled by a profile (``tools/tune.py`` makes one).
`build_models`: the models alone, for fitting drives and testing the link.
"""

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from amaranth.hdl import Shape
from amaranth.lib import wiring

from hdl.config import TIME_BITS, Config
from hdl.flow.pcie_status import PcieStatus
from sim import verilator
from sim.checkout import BUILD, ROOT
from sim.verilog import Netlist, converter, digest, to_verilog, write_atomically

TOP = "controller"
PREFIX = "Vcontroller"
SOURCES = Path(__file__).resolve().parent
OWN = Path(__file__).read_text()  # as it was loaded
MODELS = ("rules", "pcie", "straddle", "drive", "ideal", "hdd", "ssd", "direct", "checks")
MODEL_API = ("bench", "models_api")
HARNESS = ("axis", "port", "harness", "api")
WARNINGS = ("-Wall", "-Wextra", "-Werror")
OPTIMISATION = ("-O2", "-march=native")
VERILATED = ("-O1", "-march=native")
"""Of the verilated model. Builds take a third less time than with ``-O2``, and simulations the same
within 5 %. What a profile has counted is put to use by ``-O2``."""
ONCE = "-O0"
"""Optimisation of what a simulation does once, at its beginning."""
COMPILE = ("-std=c++17", "-fPIC", *WARNINGS, *OPTIMISATION)
SANITIZE = (
    ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
     "-fno-sanitize-recover=all")
    if os.environ.get("SANITIZE")
    else ()
)
"""With ``SANITIZE=1`` the models are built with checks of addresses and of undefined behaviour. The
process that loads them must have the compiler's ``libasan`` loaded already."""
PROFILE = ("-fprofile-instr-generate",) if os.environ.get("PROFILE") else ()
"""With ``PROFILE=1`` the verilated model counts how often each of its branches is taken. The counts
are written whenever a simulation ends, to a file that ``LLVM_PROFILE_FILE`` names (clang only)."""
PICOSECONDS = 1_000_000_000_000
SHIM_WIDTHS = (64, 128, 256)
"""Widths at which the hard block's ``tuser`` fields lie where ``axis.cpp`` expects them."""

VERILATE = (
    "--cc",
    "--prefix", PREFIX,
    "--top-module", TOP,
    "--no-timing",
    "--assert",
    "-O3",
    "--x-assign", "1",
    "--x-initial", "fast",
    "-Wno-fatal",
    "-Wno-lint",
    "-Wno-style",
    "-CFLAGS", "-fPIC",
    "--compiler-include", "assertions.hpp",
)  # fmt: skip

REPLACED = {
    r"vlSelfRef\.__VicoFirstIteration = 1U;": "vlSelfRef.__VicoFirstIteration = !vlSelfRef.clk;",
    r"vlSymsp->_vm_contextp__->assertOnGet\(\d+, \d+\)": "true",
}
"""What is put in place of some text of the verilated model.

Verilator computes everything that depends on inputs in each evaluation. The harness changes inputs
only while the clock is low. So the evaluation of the rising edge need not do that. And nobody
switches assertions off, so none has to ask.
"""

_PORT = re.compile(r"VL_(?:IN|OUT|INOUT)\w*\(&(\w+),")

STREAMS = ("command", "grant", "write_data", "read_data", "completion")
AXI = {"data": "tdata", "keep": "tkeep", "last": "tlast", "user": "tuser", "valid": "tvalid",
       "ready": "tready"}  # fmt: skip
STATUS_BITS = 8
"""Widest input of ``PcieStatus`` that `pins.hpp` has room for."""


@cache
def build_controller(
    config: Config, component: Callable[[], wiring.Component] | None = None
) -> Path:
    """The shared library of the harness around ``component()`` (default: the controller).

    For the controller, the sources under ``hdl/`` name the result, so nothing is converted twice.
    One that `build_tuned` has left is preferred.
    """
    if component is not None:
        return _build(config, component)
    for tuned in (True, False):
        library = _remembered(config, tuned=tuned)
        if library is not None:
            return library
    library = _build(config, _controller(config), PROFILE)
    _remember(config, library, tuned=False)
    return library


def is_built(config: Config) -> bool:
    """Whether `build_controller` has the controller already. Else it takes minutes."""
    return any(_remembered(config, tuned=tuned) is not None for tuned in (True, False))


def build_tuned(config: Config, profile: Path) -> Path:
    """The same library for the controller, compiled by what ``profile`` has counted.

    ``profile`` is what ``llvm-profdata merge`` makes of the counts of a `PROFILE` build of this
    controller.
    """
    options = (*OPTIMISATION, f"-fprofile-instr-use={profile}", "-Wno-profile-instr-unprofiled")
    library = _build(config, _controller(config), options, digest(profile.read_bytes().hex()))
    _remember(config, library, tuned=True)
    return library


def _controller(config: Config) -> Callable[[], wiring.Component]:
    from hdl.controller import Controller  # late: tests bring their own component

    return partial(Controller, config=config)


def _build(
    config: Config,
    component: Callable[[], wiring.Component],
    options: Sequence[str] = (),
    profile: str = "",
) -> Path:
    """The library. ``options`` are those of the compiler for the verilated model, ``profile`` says
    what a profile among them holds."""
    if config.data_width not in SHIM_WIDTHS:
        raise ValueError(f"data_width must be one of {SHIM_WIDTHS}, not {config.data_width}")
    model = _verilate(to_verilog(component(), top=TOP), options, profile)
    header = _header(config, model)
    target = BUILD / "native" / f"controller-{digest(model.name, header, _sources())}"
    with verilator.build_once(target) as draft:
        if draft is not None:
            (draft / "dut.hpp").write_text(header)
            runtime = verilator.executable().parent.parent / "include"
            system = ("-I", str(draft), "-isystem", str(model), "-isystem", str(runtime),
                      "-isystem", str(runtime / "vltstd"))
            objects = [*_model_objects(), *_compile(draft, HARNESS, system)]
            archives = [str(path) for path in sorted(model.glob("*.a"), reverse=True)]
            _link(draft / "library.so", [*objects, *archives], model, options)
    return target / "library.so"


def _stamp(config: Config, *, tuned: bool) -> Path:
    """The file that names the library of the controller."""
    name = digest(repr(config), DESIGN, _tools(), _sources(),
                  *(["tuned"] if tuned else PROFILE))
    return BUILD / "native" / "index" / name


def _remembered(config: Config, *, tuned: bool) -> Path | None:
    """The library of the controller, if it has been built."""
    stamp = _stamp(config, tuned=tuned)
    if (tuned and PROFILE) or not stamp.exists():
        return None
    library = BUILD / "native" / stamp.read_text()
    return library if verilator.intact(library.parent) else None


def _remember(config: Config, library: Path, *, tuned: bool) -> None:
    write_atomically(_stamp(config, tuned=tuned), str(library.relative_to(BUILD / "native")))


def build_models() -> Path:
    """The shared library of the link and drive models without a controller."""
    target = BUILD / "native" / f"models-{digest(_tools(), _sources())}"
    with verilator.build_once(target) as draft:
        if draft is not None:
            objects = [*_model_objects(), *_compile(draft, MODEL_API, ())]
            _link(draft / "library.so", objects)
    return target / "library.so"


def _model_objects() -> list[str]:
    """The link and drive models, compiled. No controller is part of them."""
    target = BUILD / "native" / f"objects-{digest(_tools(), _sources())}"
    with verilator.build_once(target) as draft:
        if draft is not None:
            _compile(draft, MODELS, ())
    return [str(target / f"{name}.o") for name in MODELS]


def _text_of(directory: Path, suffix: str) -> str:
    files = sorted(directory.rglob(f"*.{suffix}"))
    return "\0".join(f"{file.relative_to(directory)}\0{file.read_text()}" for file in files)


DESIGN = digest(_text_of(ROOT / "hdl", "py"))
"""The sources as they were loaded. Those that somebody edits meanwhile are not what is built."""


def _sources() -> str:
    return digest(_text_of(SOURCES, "cpp"), _text_of(SOURCES, "hpp"), OWN, *SANITIZE)


def _tools() -> str:
    flags = re.search(r"^(?:flags|Features)\s*:.*", Path("/proc/cpuinfo").read_text(), re.M)
    return digest(verilator.toolchain().identity, converter(), flags[0] if flags else "",
                  *COMPILE, *VERILATE, *VERILATED, ONCE,
                  *(part for pair in REPLACED.items() for part in pair))


def _run(command: Sequence[str], directory: Path) -> None:
    result = subprocess.run(command, cwd=directory, env=verilator.environment(), check=False,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{result.stdout[-8000:]}")


def _verilate(netlist: Netlist, options: Sequence[str], profile: str) -> Path:
    """A directory with the verilated model's headers and archives."""
    assertions = (SOURCES / "assertions.hpp").read_text()
    # What a profile holds counts, not where it lies.
    name = digest(netlist.digest, _tools(), assertions, *([profile] if profile else options))
    target = BUILD / "native" / f"verilated-{name}"
    with verilator.build_once(target) as draft:
        if draft is not None:
            (draft / "controller.v").write_text(netlist.text)
            (draft / "assertions.hpp").write_text(assertions)
            _run([str(verilator.executable()), *VERILATE, "--Mdir", str(draft), "controller.v"],
                 draft)
            for source in draft.glob(f"{PREFIX}___024root__*.cpp"):
                text = source.read_text()
                for pattern, replacement in REPLACED.items():
                    text = re.sub(pattern, replacement, text)
                source.write_text(text)
            fast = " ".join((*VERILATED, *options))
            arguments = verilator.toolchain().make_arguments(fast=fast, slow=ONCE, library=fast)
            # Others often wait for it, on processors that are idle then.
            make = ["make", f"-j{os.cpu_count() or 1}", "-f", f"{PREFIX}.mk"]
            _run([*make, *arguments, f"lib{PREFIX}"], draft)
    return target


def _compile(directory: Path, names: Sequence[str], options: Sequence[str]) -> list[str]:
    objects = []
    compiler = [verilator.toolchain().compiler, *COMPILE, *SANITIZE]
    for name in names:
        result = str(directory / f"{name}.o")
        _run([*compiler, *options, "-I", str(SOURCES), "-c", str(SOURCES / f"{name}.cpp"), "-o",
              result], directory)
        objects.append(result)
    return objects


def _link(
    library: Path, parts: Sequence[str], model: Path | None = None, options: Sequence[str] = ()
) -> None:
    toolchain = verilator.toolchain()
    more = ["-pthread", *(["-latomic"] if toolchain.is_clang else [])] if model else []
    _run([toolchain.compiler, "-shared", *SANITIZE, *options, "-o", str(library), *parts, *more],
         library.parent)


def _header(config: Config, model: Path) -> str:
    """``dut.hpp``: the model as class ``Dut``, and the places of its ports."""
    text = (model / f"{PREFIX}.h").read_text()
    members = {name.replace("___05F", "__"): name for name in _PORT.findall(text)}

    def pointer(port: str, kind: str = "uint8_t") -> str:
        if port not in members:
            raise ValueError(f"the controller has no port {port}")
        return f"reinterpret_cast<{kind}*>(&top_.{members[port]})"

    binds = [
        f"pins.clock = {pointer('clk')};",
        f"pins.reset = {pointer('rst')};",
        f"pins.reset_done = {pointer('reset_done')};",
        f"pins.now = {pointer('now', 'uint64_t')};",
        f"pins.quiet = {pointer('quiet')};",
        f"pins.deadline = {pointer('deadline', 'uint64_t')};",
    ]
    for port in ("identity", "nonce"):
        if port in members:  # a stand-in has no name
            binds.append(f"pins.{port} = {pointer(port, 'uint64_t')};")
    if config.backup_blocks:
        binds += [
            f"pins.power_fail = {pointer('backup__power_fail')};",
            f"pins.energy_blocks = {pointer('backup__energy_blocks', 'uint32_t')};",
            f"pins.saved = {pointer('backup__saved')};",
        ]
    for bus in ("rq", "rc", "cq", "cc"):
        binds += [f"pins.{bus}.{pin} = {pointer(f'{bus}_{port}')};" for pin, port in AXI.items()]
    status = {name: Shape.cast(member.shape) for name, member in PcieStatus().members.items()}
    for index, (name, shape) in enumerate(status.items()):
        if shape.width > STATUS_BITS:
            raise ValueError(f"status {name} has {shape.width} bits, more than {STATUS_BITS}")
        most = (1 << shape.width) - 1
        pin = pointer(f"status__{name}")
        binds.append(f'pins.status[{index}] = {{"{name}", {pin}, {most}}};')
    binds.append(f"pins.status_count = {len(status)};")
    for place in range(2):
        binds += [
            f"pins.sequence[{place}].number = {pointer(f'rq_seq_num{place}')};",
            f"pins.sequence[{place}].valid = {pointer(f'rq_seq_num_vld{place}')};",
        ]
    binds.append(f"pins.read_credits = {pointer('tfc_nph_av')};")
    for port in range(config.ports):
        for stream in STREAMS:
            binds += [
                f"pins.drives[{port}].{stream}.{pin} = "
                f"{pointer(f'drives__{port}__{stream}__{pin}')};"
                for pin in ("payload", "valid", "ready")
            ]
        binds += [
            f"pins.drives[{port}].{pin} = {pointer(f'drives__{port}__{pin}')};"
            for pin in ("abort", "abort_tag", "reset", "restarted")
        ]
        binds += [
            f"pins.drives[{port}].present = {pointer(f'drives__{port}__present')};",
            f"pins.drives[{port}].capacity = {pointer(f'drives__{port}__capacity', 'uint64_t')};",
        ]
        if config.intent_chunks:
            identity = pointer(f"drives__{port}__identity", "uint64_t")
            binds.append(f"pins.drives[{port}].identity = {identity};")
    body = "\n        ".join(binds)
    clock_ps = PICOSECONDS // config.clock_hz
    return f"""// Generated by sim/native/build.py.
#pragma once
#include "{PREFIX}.h"
#include "pins.hpp"

namespace striata {{

constexpr Shape kShape = {{{config.ports}, {config.beat_bytes}, {config.tag_bits}, {clock_ps},
                          {TIME_BITS}, {str(config.straddles).lower()}}};

class Dut {{
public:
    ~Dut() {{ top_.final(); }}
    void eval() {{ top_.eval(); }}
    void bind(Pins& pins) {{
        {body}
    }}

private:
    VerilatedContext context_;
    {PREFIX} top_{{&context_, "{TOP}"}};
}};

}}  // namespace striata
"""
