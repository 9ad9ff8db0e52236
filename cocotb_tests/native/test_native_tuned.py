"""``make tune``: the controller of the native tier, compiled by what its branches have counted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from campaign.sizes import USUAL
from sim.checkout import ROOT
from sim.native.build import build_controller
from tools.tune import TRAININGS, TuneError, profile_tool

RUN = ("-m", "campaign", "--runs", "1", "--seed", "5", "--processes", "1", "--without", "sizes",
       "--verbose")  # fmt: skip
SPEED = re.compile(r"in \d+ s \(.* runs/min\)")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in the checkout."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env={**os.environ, **environment},
                          capture_output=True, text=True, check=False)


def what_happens(**environment: str) -> str:
    """What a run of the campaign prints, but for its speed."""
    result = python(*RUN, **environment)
    assert result.returncode == 0, result.stderr
    assert SPEED.search(result.stdout)
    return SPEED.sub("", result.stdout)


def test_names_what_is_missing(tmp_path: Path):
    """One line, and nothing is built."""
    compiler = tmp_path / "g++"
    compiler.touch(mode=0o755)
    result = python("-m", "tools.tune", CXX=str(compiler))
    assert result.returncode == 2 and not result.stdout
    assert result.stderr.startswith(f"tune: {compiler} is no clang: ")
    assert result.stderr.count("\n") == 1
    result = python("-m", "tools.tune", "nothing")
    assert result.returncode == 2
    known = ", ".join(TRAININGS)
    assert result.stderr == f"tune: no controller is called nothing; there are {known}\n"


@pytest.mark.slow
def test_tuned_controller_does_the_same(tmp_path: Path):
    """Programs run the tuned controller, and a run of the campaign is the same to every count."""
    try:
        profile_tool()
    except TuneError as error:
        pytest.skip(str(error))
    counted = what_happens(PROFILE="1", LLVM_PROFILE_FILE=str(tmp_path / "%p.profraw"))
    result = python("-m", "tools.tune", "campaign")
    assert result.returncode == 0, result.stderr
    assert str(build_controller(USUAL).relative_to(ROOT)) in result.stdout
    assert what_happens() == counted
