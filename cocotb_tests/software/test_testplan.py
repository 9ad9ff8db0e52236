"""docs/testplan.toml and the tests agree: each feature has tests, each test it names exists."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from sim.checkout import ROOT
from sim.formal.registry import registered

PLAN = ROOT / "docs" / "testplan.toml"
PAGE = ROOT / "docs" / "verification.md"


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


def unnamed(plan: dict, files: set[str], proofs: set[str]) -> list[str]:
    """Test files and proofs that serve no feature, and what to do about each."""
    tests = [test.partition("::") for entry in plan["feature"].values() for test in entry["tests"]]
    named = {file for file, _, _ in tests}
    proved = {name for file, _, name in tests if file == "proof"}
    return [
        f"no feature of docs/testplan.toml names a test of {file}.py: add \"{file}::<test>\" to the"
        " tests of the feature whose promise it holds"
        for file in sorted(files - named)
    ] + [
        f"no feature of docs/testplan.toml names the proof {name}: add \"proof::{name}\" to the"
        " tests of the feature whose promise it holds"
        for name in sorted(proofs - proved)
    ]


def test_plan_is_complete():
    found = problems(tomllib.loads(PLAN.read_text()))
    assert not found, "docs/testplan.toml: " + "; ".join(found)


def test_files_of_tests_have_names_of_their_own():
    """The plan names no folder."""
    names = Counter(path.name for path in (ROOT / "cocotb_tests").rglob("test_*.py"))
    twice = [name for name, count in names.items() if count > 1]
    assert not twice, f"rename all but one of {', '.join(twice)}: the test plan names no folder"


def test_every_test_file_and_proof_serves_a_feature():
    plan = tomllib.loads(PLAN.read_text())
    files = {path.stem for path in (ROOT / "cocotb_tests").rglob("test_*.py")}
    found = unnamed(plan, files, set(registered()))
    assert not found, "; ".join(found)


def unlisted(page: str, files: set[str]) -> list[str]:
    """Test files that the table *Files* of ``page`` does not have, or that it has in vain."""
    table = page.partition("\n## Files\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`(test_\w+)`", table))
    return [f"add {file} to the table" for file in sorted(files - listed)] + [
        f"there is no {file}.py" for file in sorted(listed - files)
    ]


def test_every_test_file_is_listed():
    files = {path.stem for path in (ROOT / "cocotb_tests").rglob("test_*.py")}
    found = unlisted(PAGE.read_text(), files)
    assert not found, "docs/verification.md, Files: " + "; ".join(found)


def test_what_is_not_listed_is_named():
    page = "`test_x`\n## Files\n| `test_a`, `test_b` | c |\n\n## Next\n`test_y`\n"
    assert unlisted(page, {"test_a", "test_b"}) == []
    found = unlisted(page, {"test_a", "test_y"})
    assert found == ["add test_y to the table", "there is no test_b.py"]


def test_what_serves_no_feature_is_named():
    plan = {"feature": {"x": {"promise": "p", "tests": ["test_a::f", "proof::b"]}}}
    assert unnamed(plan, {"test_a"}, {"b"}) == []
    file, proof = unnamed(plan, {"test_a", "test_c"}, {"b", "d"})
    assert '"test_c::<test>"' in file
    assert '"proof::d"' in proof


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
