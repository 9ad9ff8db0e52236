"""The native models with checks of addresses and of undefined behaviour."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sim.checkout import ROOT

TESTS = ("link", "drives", "rules", "harness")
TOO_SLOW = "not everything_at_once"
"""Bounds the harness's own speed, which the checks cost."""
SETUP = """
import ctypes
from sim.native.harness import field_array, int_array
from sim.native.models import RESULT_VALUES, _library
from sim.native.parameters import LinkParameters
library = _library()
link = field_array(library, "link", LinkParameters())
"""
PLANTED = {
    # Too few link parameters: read past the end of the array that holds them.
    "AddressSanitizer": "library.striata_bench_write(int_array(link[:3]), 64, 1, int_array([0]))",
    # Offset and length have no sum in 64 bits.
    "runtime error: signed integer overflow": (
        "results = int_array([0] * RESULT_VALUES)\n"
        "library.striata_bench_read(int_array(link), (1 << 63) - 4, 4, 1, 1, results)"
    ),
}
"""What is found, and what plants it."""


def sanitized(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs Python with the checks built in and their run-time loaded."""
    compiler = shutil.which("g++")
    assert compiler, "install g++, with which the checks come: apt-get install g++"
    libraries = []
    for name in ("libasan.so", "libubsan.so"):
        found = subprocess.run([compiler, f"-print-file-name={name}"], check=True, text=True,
                               capture_output=True).stdout.strip()
        assert Path(found).is_absolute(), f"install {name} of g++: apt-get install libgcc-12-dev"
        libraries.append(found)
    environment = os.environ | {
        "SANITIZE": "1",
        "CXX": compiler,
        "LD_PRELOAD": " ".join(libraries),
        # Python keeps what it allocates, and WebAssembly tools handle SIGSEGV themselves.
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0:alloc_dealloc_mismatch=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, text=True,
                          check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.slow
def test_models_under_sanitizers():
    """The tests of the models and of the harness pass, and nothing is found."""
    files = [str(Path(__file__).with_name(f"test_native_{name}.py")) for name in TESTS]
    result = sanitized(["-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", TOO_SLOW])
    print(result.stdout[-4000:])
    assert result.returncode == 0
    assert "passed" in result.stdout and "runtime error" not in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("message", PLANTED, ids=["address", "undefined"])
def test_sanitizers_find_what_is_planted(message):
    """A read past the end of an array, and a sum that overflows, end the process."""
    result = sanitized(["-c", SETUP + PLANTED[message]])
    print(result.stdout[-4000:])
    assert result.returncode != 0
    assert message in result.stdout
