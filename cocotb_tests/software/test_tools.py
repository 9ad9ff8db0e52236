"""Set-up and programs where something is wrong with what they are given: one line, at once."""

import multiprocessing
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import as_completed
from contextlib import suppress
from pathlib import Path

import pytest

import campaign.__main__ as campaign
import sw.characterise.__main__ as characterise
import sw.demo
import sw.example
from campaign.card import Outcome
from cocotb_tests.software.records import RECORD
from sim import wasm
from sim.checkout import ROOT
from sim.cli import (
    INTERRUPTED,
    MOST_SEED,
    READER_GONE,
    WIDE,
    Heartbeat,
    Parser,
    processes,
    program,
    seeds,
    terminal,
)
from sim.verilator import FILES, build_once

NOBODY = 65534
AT_ONCE_S = 1.0
LONG_S = 120.0
SHORT_S = 0.1

PYTHON = f"""#!/bin/sh
# Of python, what the set-up asks of it; notes when it begins and ends to install.
if [ "$1" = -m ] && [ "$2" = venv ]; then
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
elif [ "$1" = -m ] && [ "$2" = pip ]; then
    echo begin >> installs
    sleep 0.5
    echo end >> installs
else
    exec {sys.executable} "$@"
fi
"""

# Set-up


@pytest.fixture
def checkout() -> Iterator[Path]:
    """What the set-up needs of a checkout, in a directory that everybody may enter."""
    directory = Path(tempfile.mkdtemp())
    place = directory / "checkout"
    (place / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "setup.sh", place / "tools")
    shutil.copy(ROOT / "requirements.txt", place)
    shutil.copy(ROOT / "Makefile", place)
    (place / "python").write_text(PYTHON)
    for path in (directory, place / "tools" / "setup.sh", place / "python"):
        path.chmod(path.stat().st_mode | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    yield place
    for path in directory.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(directory)


def set_up(place: Path, *before: str) -> subprocess.Popen:
    """Begins a set-up."""
    environment = {**os.environ, "PYTHON": str(place / "python")}
    environment.pop("FULL", None)
    return subprocess.Popen(
        [*before, str(place / "tools" / "setup.sh")],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def refused(process: subprocess.Popen) -> str:
    """The one line with which it ended."""
    output, error = process.communicate(timeout=LONG_S)
    assert process.returncode == 1 and not output
    assert error.startswith("setup: ") and error.count("\n") == 1, error
    return error


def test_two_set_ups_at_once(checkout):
    """One installs; the other waits, and finds that all is there."""
    both = [set_up(checkout) for _ in range(2)]
    for process in both:
        output, error = process.communicate(timeout=LONG_S)
        assert process.returncode == 0, output + error
    assert (checkout / "installs").read_text() == "begin\nend\n"


@pytest.mark.parametrize("name", ["a b", "a\tb", "it's", "a:b", "a$b", "a#b", "a;b", "[a]", "a\\b"])
def test_directory_that_tools_cannot_name(checkout, name):
    """Refused before anything is installed."""
    place = checkout.rename(checkout.with_name(name))
    assert "without spaces" in refused(set_up(place))
    assert not (place / ".venv").exists()


@pytest.mark.parametrize("name", ["a-b_c.d+e@1,2~3=4", "größe"])
def test_directory_that_tools_can_name(checkout, name):
    """Other characters are as good as any."""
    place = checkout.rename(checkout.with_name(name))
    process = set_up(place)
    output, error = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, output + error


def test_checkout_that_cannot_be_written(checkout):
    """Somebody who may read it is told so."""
    checkout.chmod(0o555)
    before = ["setpriv", f"--reuid={NOBODY}", "--clear-groups"] if os.getuid() == 0 else []
    assert "cannot be written" in refused(set_up(checkout, *before))


@pytest.mark.parametrize("python", ["python9", "/bin/ls"])
def test_python_that_is_none(checkout, python):
    """Nothing is installed for it."""
    environment = {**os.environ, "PYTHON": python}
    setup = [str(checkout / "tools" / "setup.sh")]
    process = subprocess.Popen(
        setup, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert f"not {python}" in refused(process)


# Programs


def test_example(monkeypatch, capsys):
    """What docs/driver.md shows runs, and sees what it says."""
    monkeypatch.setattr(sys, "argv", ["example"])
    assert sw.example.main() == 0
    said = capsys.readouterr().out
    for line in (
        "event: type 7, log page C0h",
        "lost: drives [1]",
        "members are at ports [0, 4, 2, 3]",
        "patrol: 1 mended, 0 lost",
        "refused: delete array 0: In Use",
    ):
        assert line in said


def test_demo(tmp_path, monkeypatch, capsys):
    """The file is read back from the drives that are left after a power cut."""
    file = tmp_path / "file"
    file.write_bytes(random.Random(1).randbytes(100_001))
    monkeypatch.setattr(sys, "argv", ["demo", str(file), "--drives", "4", "--pull", "0,3"])
    assert sw.demo.main() == 0
    told = capsys.readouterr().out
    assert "16 rows checked, 0 wrong" in told and "drives 0 and 3 pulled" in told
    assert ": same\n" in told



def test_tables_are_whole_in_a_file(monkeypatch):
    """What is no terminal does not cut them."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert not sys.stdout.isatty()
    assert terminal().width == WIDE


# Arguments


def make(place: Path, *arguments: str, **environment: str) -> str:
    """The one line with which make refuses, before it does anything."""
    # Of a make that runs these tests nothing is handed on.
    outside = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    done = subprocess.run(
        ["make", "-C", str(place), "--no-print-directory", *arguments],
        env={**outside, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and not done.stdout, done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("value", ["abc", "1x", "-1", "1 2", "0x1", "'", "$(shell date)"])
@pytest.mark.parametrize("name", ["SEED", "PROCESSES"])
def test_number_that_is_none(checkout, name, value):
    """By its targets and from the environment."""
    given = f"{name}={value}".replace("$", "$$")
    assert f"{name} must be a number" in make(checkout, "test", **{name: value})
    assert f"{name} must be a number" in make(checkout, "campaign", given)


@pytest.mark.parametrize("target", ["characterise", "bench", "smoke", "campaign", "unit"])
def test_processes_are_those_asked_for(target):
    """Of every target that runs several; those that measure choose by themselves unless told."""
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", target, "PROCESSES=7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"(--processes|-n) 7\b", done.stdout)


@pytest.mark.parametrize("name", ["a$b", "a$(HOME)b", 'a"b', "a'b", "a b", "$$"])
def test_demo_takes_any_name(tmp_path, name):
    """A dollar sign, a quote or a space in the name of the file is part of it."""
    done = subprocess.run(
        ["make", "-o", ".venv/setup.stamp", "demo", f"FILE={tmp_path}/{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"demo: {tmp_path}/{name}: No such file or directory\n" in done.stderr


def test_make_in_a_directory_with_a_space(checkout):
    place = checkout.rename(checkout.with_name("a b"))
    assert "without spaces" in make(place, "test")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(("SEED", seed, "in 0..4294967295") for seed in ("abc", "-1", "1_0", str(1 << 32))),
        ("WAVES", "maybe", "must be 0 or 1, not 'maybe'"),
    ],
)
def test_variable_that_pytest_refuses(name, value, message):
    """Before the first test."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "cocotb_tests/software/test_testplan.py"],
        cwd=ROOT,
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4 and not done.stdout
    assert re.fullmatch(rf"ERROR: {name} must be .*, not '{value}'\n+", done.stderr)
    assert message in done.stderr


@pytest.mark.parametrize(
    "damage",
    [
        lambda directory: (directory / "inner" / "one").write_text("on"),
        lambda directory: (directory / "inner" / "one").unlink(),
        lambda directory: (directory / FILES).write_text(""),
        lambda directory: (directory / FILES).unlink(),
    ],
    ids=["short", "gone", "no_list", "list_gone"],
)
def test_damaged_build_is_built_again(tmp_path, damage):
    """What a full disk, or a power cut, has left of it. Files that were added are no damage."""
    directory = tmp_path / "built"

    def build() -> bool:
        with build_once(directory) as draft:
            if draft is None:
                return False
            (draft / "inner").mkdir()
            (draft / "inner" / "one").write_text("one")
        return True

    assert build() and not build()
    (directory / "more").touch()
    assert not build()
    damage(directory)
    assert build() and not build()
    assert (directory / "inner" / "one").read_text() == "one" and not (directory / "more").exists()


COMPILES = """#!/bin/sh
# A tool that compiles itself, as those that are WebAssembly do.
[ -e "$YOWASP_CACHE_DIR/compiled" ] || { echo once >> compilations; sleep 0.5; }
echo code > "$YOWASP_CACHE_DIR/compiled"
"""


def test_tools_are_compiled_once(tmp_path, monkeypatch):
    """By one process, while all others that need them wait, and use what it has made."""
    stub = tmp_path / "stub"
    stub.write_text(COMPILES)
    stub.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wasm, "COMPILED", tmp_path / "wasm")
    monkeypatch.setattr(wasm, "version", lambda name: "1")
    monkeypatch.setattr(wasm, "tool", lambda name: stub)
    fork = multiprocessing.get_context("fork")
    with fork.Pool(3) as pool:
        environments = pool.map(wasm.ready, ["stub"] * 3)
    assert all(one["YOWASP_CACHE_DIR"] == str(tmp_path / "wasm" / "stub-1") for one in environments)
    subprocess.run([stub], env=environments[0], check=True)
    assert (tmp_path / "compilations").read_text() == "once\n"


@pytest.mark.parametrize(
    "kind",
    [
        PermissionError(13, "no", "a/b"),
        OSError(30, "no", "a/b"),
        IsADirectoryError(21, "no", "a/b"),
    ],
)
def test_files_that_cannot_be_written(capsys, kind):
    """A line that names the file, whichever program."""

    def main() -> int:
        raise kind

    assert program("bench", main) == 2
    assert capsys.readouterr().err == "bench: a/b: no\n"


PRINTS = """
def prints(*_):
    for _ in range(100_000):
        print("a line")
"""
TOOL = """
import sys
from sim.cli import program

sys.exit(program("bench", prints))
"""
GUEST = """
import sys
from sim.cli import program
from sw.guest import __main__ as guest

sys.argv = ["guest"]
guest.packages.prepare = prints
sys.exit(program("guest", guest.main))
"""


@pytest.mark.parametrize("tool", [TOOL, GUEST], ids=["tool", "guest"])
def test_output_that_nobody_reads(tool):
    """No word about it: so ends ``... | head -1``. The guest has an eye on other pipes as well."""
    script = PRINTS + tool
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "a line\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == READER_GONE


def test_another_pipe_that_breaks():
    """Of a program that has ended too early, say: that is not kept secret."""

    def main() -> int:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        program("bench", main)


def test_checkout_in_which_nothing_can_be_built(monkeypatch, capsys, tmp_path):
    """Said before anything is run."""

    def main() -> int:
        raise AssertionError("it has run")

    file = tmp_path / "file"
    file.touch()
    for build in (file, file / "build"):
        monkeypatch.setattr("sim.checkout.BUILD", build)
        assert program("bench", main) == 2
        assert re.fullmatch(r"bench: nothing can be built in this.*\n", capsys.readouterr().err)
    monkeypatch.setattr("sim.checkout.ROOT", tmp_path / "a b")
    assert program("bench", main) == 2
    assert re.fullmatch(r"bench: .*without spaces.*a b'\n", capsys.readouterr().err)


# Ctrl-C


def interrupt_after(seconds: float, times: int = 1) -> None:
    """As a terminal does. Tests that run in the background may have been told to ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(seconds, interrupt).start()


def children() -> set[str]:
    """Processes of this one."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found.update((task / "children").read_text().split())
    return found


def work(seconds: float) -> float:
    """A task of so many seconds."""
    time.sleep(seconds)
    return seconds


def work_on(ended: list[float], tasks: Iterable[float]) -> None:
    """Does these tasks on two processes; ``ended`` has those that did."""
    with processes(2) as pool:
        for future in as_completed([pool.submit(work, seconds) for seconds in tasks]):
            ended.append(future.result())


@pytest.mark.parametrize("times", [1, 2, 10])
def test_processes_end_when_interrupted(times):
    """Within a second, and none is left; what had ended before counts."""
    before, ended = children(), []
    interrupt_after(1.0, times)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work_on(ended, (SHORT_S, LONG_S, LONG_S))
    assert ended == [SHORT_S]
    deadline = began + 1.0 + AT_ONCE_S
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not children() - before and time.monotonic() < deadline


AT_FORK = """
import os, signal, sys

from cocotb_tests.software.test_tools import work_on
from sim.cli import program

signal.signal(signal.SIGINT, signal.default_int_handler)
os.register_at_fork(**{sys.argv[1]: lambda: os.kill(os.getpid(), signal.SIGINT)})
sys.exit(program("test", lambda: work_on([], (0.0, float(sys.argv[2])))))
"""
"""Ctrl-C comes as the processes of a pool are started."""


@pytest.mark.parametrize("where", ["before", "after_in_parent", "after_in_child"])
def test_processes_are_interrupted_as_they_start(where):
    seconds = SHORT_S if where == "after_in_child" else LONG_S / 2
    command = [sys.executable, "-c", AT_FORK, where, str(seconds)]
    began = time.monotonic()
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG_S)
    if where == "after_in_child":
        # It reaches only the child, which ignores it.
        assert (ended.returncode, ended.stderr) == (0, "")
    else:
        assert (ended.returncode, ended.stderr) == (INTERRUPTED, "test: interrupted\n")
        assert time.monotonic() - began < seconds


@pytest.mark.parametrize("seconds", [0.0, 0.02, 1.0])
def test_interrupted_at_a_terminal(tmp_path, seconds):
    """Ctrl-C reaches all processes of the program, so many seconds after it has begun to measure.
    It ends, says so in a line, and leaves none behind."""
    command = [sys.executable, "-m", "sw.characterise", "--quick", "--processes", "2", "P2"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path)], cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout and any("2 at once" in line for line in process.stdout)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=LONG_S)
    assert (process.returncode, error) == (INTERRUPTED, "characterise: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    assert not list(tmp_path.iterdir())


FIRST = multiprocessing.Lock()


def slow_measure(_):
    """Stands in for a measurement. One is done at once; in the next, somebody loses patience."""
    if not FIRST.acquire(block=False):
        time.sleep(1.0)
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(LONG_S)
    return RECORD


def test_interrupted_characterisation(monkeypatch, capsys, tmp_path):
    """Ends at once, and writes what is finished."""
    monkeypatch.setattr(characterise, "measure", slow_measure)
    for name in ("build_models", "build_controller"):
        monkeypatch.setattr(characterise, name, lambda *_: None)
    arguments = ["--quick", "--processes", "2", "--out", str(tmp_path), "R1"]
    monkeypatch.setattr(sys, "argv", ["characterise", *arguments])
    began = time.monotonic()
    assert program("characterise", characterise.main) == INTERRUPTED
    # Predictions are worked out before, and a report of plots after: how soon the processes end is
    # what the test before says. Nobody has waited for those that slept.
    assert time.monotonic() - began < LONG_S / 2
    error = capsys.readouterr().err
    found = re.search(r"interrupted after (\d+) of (\d+) points\n$", error)
    assert found and found[1] == "1", error
    assert (tmp_path / "results.json").read_text().count('"id": "R1"') == 1


def test_characterisation_that_measured_nothing(monkeypatch, capsys, tmp_path):
    """What an earlier one has written stays."""

    def impatient(*_):
        raise KeyboardInterrupt

    for name in ("build_models", "build_controller"):
        monkeypatch.setattr(characterise, name, lambda *_: None)
    monkeypatch.setattr(characterise, "_measure", impatient)
    monkeypatch.setattr(sys, "argv", ["characterise", "--out", str(tmp_path), "R1"])
    (tmp_path / "results.json").write_text("earlier")
    assert program("characterise", characterise.main) == INTERRUPTED
    assert capsys.readouterr().err == "characterise: interrupted\n"
    assert (tmp_path / "results.json").read_text() == "earlier"


def test_seeds_end(capsys):
    """None is used that could not be asked for again."""
    parser = Parser(prog="many")
    assert seeds(parser, MOST_SEED - 1, 2) == range(MOST_SEED - 1, MOST_SEED + 1)
    with pytest.raises(SystemExit):
        seeds(parser, MOST_SEED - 1, 3)
    assert f"3 seeds from {MOST_SEED - 1} on go beyond" in capsys.readouterr().err


def test_long_programs_say_how_far_they_are(monkeypatch, capsys):
    """Every half minute."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    heartbeat = Heartbeat()
    for now in (100.0, 129.0, 131.0, 159.0, 162.0, 163.0):
        heartbeat.print(f"at {now:.0f}")
    assert capsys.readouterr().out == "at 131\nat 162\n"


def slow_attempt(_, seed: int):
    """Stands in for a run of a campaign: the first two are at once there."""
    time.sleep(LONG_S if seed > 2 else SHORT_S)
    return campaign.Ended(seed=seed, outcome=Outcome(title="a run", commands=10))


@pytest.mark.parametrize("count", ["1", "2"])
def test_interrupted_campaign(monkeypatch, capsys, count):
    """Ends at once, with the counts so far."""
    monkeypatch.setattr(campaign, "attempt", slow_attempt)
    monkeypatch.setattr(campaign, "build_controller", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["campaign", "--runs", "5", "--processes", count])
    interrupt_after(1.0)
    began = time.monotonic()
    assert program("campaign", campaign.main) == INTERRUPTED
    assert time.monotonic() - began < 1.0 + AT_ONCE_S
    output, error = capsys.readouterr()
    assert "2 runs, 20 commands" in output and "nothing lost" not in output
    assert error == "campaign: interrupted after 2 of 5 runs\n"
