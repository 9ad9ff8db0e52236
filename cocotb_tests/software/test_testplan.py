"""docs/testplan.toml and the tests agree: each feature has tests, each test it names exists."""

import ast
import tomllib
from pathlib import Path

import pytest

from sim.formal.registry import registered
from sim.verilog import ROOT

PLAN = ROOT / "docs" / "testplan.toml"


def problems(plan: dict, root: Path = ROOT) -> list[str]:
    """What is wrong with ``plan``: a table ``feature`` of feature to description and tests.

    A test is ``file::function`` (a pytest function or a cocotb coroutine in ``file.py`` of a folder
    of ``cocotb_tests``) or ``proof::name``.
    """
    found = []
    for feature, entry in plan["feature"].items():
        if not entry.get("promise"):
            found.append(f"{feature}: no promise")
        if not entry.get("tests"):
            found.append(f"{feature}: no tests")
        for test in entry.get("tests", []):
            file, _, name = test.partition("::")
            names = registered() if file == "proof" else _functions(root, file)
            if name not in names:
                found.append(f"{feature}: {test} does not exist")
    return found


def _functions(root: Path, file: str) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.name
        for path in (root / "cocotb_tests").rglob(f"{file}.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds)
    }


def test_plan_is_complete():
    assert problems(tomllib.loads(PLAN.read_text())) == []


def test_files_of_tests_have_names_of_their_own():
    """The plan names no folder."""
    names = [path.name for path in (ROOT / "cocotb_tests").rglob("test_*.py")]
    assert len(set(names)) == len(names)


def test_every_test_file_and_proof_serves_a_feature():
    plan = tomllib.loads(PLAN.read_text())
    tests = [test.partition("::") for entry in plan["feature"].values() for test in entry["tests"]]
    files = {path.stem for path in (ROOT / "cocotb_tests").rglob("test_*.py")}
    assert files - {file for file, _, _ in tests} == set()
    assert set(registered()) - {name for file, _, name in tests if file == "proof"} == set()


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"promise": "p", "tests": []}, "x: no tests"),
        ({"tests": ["test_testplan::problems"]}, "x: no promise"),
        ({"promise": "p", "tests": ["test_absent::f"]}, "x: test_absent::f does not exist"),
        ({"promise": "p", "tests": ["test_testplan::f"]}, "x: test_testplan::f does not exist"),
        ({"promise": "p", "tests": ["proof::absent"]}, "x: proof::absent does not exist"),
    ],
)
def test_flaws_are_found(entry, complaint):
    assert problems({"feature": {"x": entry}}) == [complaint]
