"""Results by source text: what has not changed since it was built need not even be elaborated."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from sim.checkout import BUILD, ROOT
from sim.verilog import digest, write_atomically
from synth.flow import Result, tools

SOURCES = ("hdl/**/*.py", "synth/*.py", "sim/verilog.py")
"""Everything that a result depends on, but for the tools."""


def recall(name: str, build: Callable[[], Result], *, fresh: bool = False) -> Result:
    """The result of block ``name``: the one of equal sources, else what ``build`` returns.

    Records lie under build/, are never committed, and say that they are ``kept``. ``fresh``
    ignores them.
    """
    sources = _sources()
    path = BUILD / "synth" / "results" / f"{name}-{sources}.json"
    if path.exists() and not fresh:
        return replace(Result(**json.loads(path.read_text())), kept=True)
    result = build()
    # Sources edited meanwhile may or may not be in the result.
    if _sources() == sources:
        write_atomically(path, json.dumps(asdict(result)))
    return result


def _sources() -> str:
    files: list[Path] = sorted(file for pattern in SOURCES for file in ROOT.glob(pattern))
    parts = [part for file in files for part in (str(file.relative_to(ROOT)), file.read_text())]
    return digest(*tools(), *parts)
