"""`tools.lint_order`: which imports it lets through, and which it complains of."""

from pathlib import Path

import pytest

from sim.checkout import ROOT
from tools.lint_order import ROOMS, complaints


def checkout(root: Path, files: dict[str, str]) -> Path:
    """A checkout with ``files``: path to contents."""
    for path, text in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


def test_imports_may_run_down(tmp_path):
    """From the own room, from those below it, and from elsewhere."""
    files = {
        "hdl/stripe/rows/a.py": "import os\nfrom hdl.stripe.gather.b import c\n",
        "hdl/stripe/gather/b.py": "from hdl.flow.row import row_state\nfrom hdl import flow\n",
        "hdl/core.py": "import hdl.background.background\n",
        "sw/a.py": "from sim.native.harness import Harness\nfrom hdl.core import Core\n",
        "cocotb_tests/array/test_a.py": "from cocotb_tests.array.bench import Bench\n",
    }
    assert complaints(checkout(tmp_path, files)) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("hdl/flow/a.py", "from hdl.pcie.tlp import request_beat\n"),
        ("hdl/array/tables/a.py", "import hdl.stripe.dispatch\n"),
        ("hdl/nvme/a.py", "from hdl import array\n"),
        ("hdl/stripe/a.py", "def f():\n    from hdl.cache.front import Front\n"),
        ("hdl/background/a.py", "from hdl.core import Core\n"),
        ("hdl/a.py", "from sim.verilog import ROOT\n"),
        ("sim/golden/a.py", "from sw.driver import Nvme\n"),
        ("sw/a.py", "from campaign.run import Run\n"),
        ("campaign/a.py", "import cocotb_tests.streams\n"),
        ("cocotb_tests/array/bench.py", "from cocotb_tests.array.test_a import Bench\n"),
        ("cocotb_tests/array/test_a.py", "from cocotb_tests.drive import test_drives\n"),
    ],
)
def test_flaws_are_found(tmp_path, path, text):
    """Each in the one line that has it."""
    found = complaints(checkout(tmp_path, {path: text}))
    line = 1 + text[: text.index("import")].count("\n")
    assert [entry.split(": ")[0] for entry in found] == [f"{path}:{line}"]


def test_rooms_are_folders():
    """Every folder of the design has its place."""
    folders = {f"hdl/{path.parent.name}" for path in (ROOT / "hdl").glob("*/__init__.py")}
    assert folders <= set(ROOMS)
