"""The models without a controller: a load on one drive, and a device that saturates the link."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from hdl.flow.drive_port import MERGE_BLOCKS
from sim.native.build import build_models
from sim.native.harness import field_array, int_array
from sim.native.parameters import SECOND, DriveParameters, LinkParameters, check

RESULT_VALUES = 5
PORT_DEPTH = 32
"""Most commands at a drive."""


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build_models()))
    library.striata_fields.restype = ctypes.c_char_p
    library.striata_fields.argtypes = [ctypes.c_char_p]
    library.striata_model_error.restype = ctypes.c_char_p
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, arguments in (
        ("load", [pointer, pointer, pointer]),
        ("bench_write", [pointer, number, number, pointer]),
        ("bench_read", [pointer, *[number] * 4, pointer]),
        ("check_straddled", [pointer, pointer, pointer, number]),
    ):
        function = getattr(library, f"striata_{name}")
        function.restype = number
        function.argtypes = arguments
    return library


@dataclass(frozen=True, kw_only=True)
class Load:
    """Commands on one drive, ``depth`` at a time (the port carries at most 32).

    Parameters
    ----------
    read_percent
        Reads among the commands.
    blocks
        Blocks a command, 1..64.
    sequential
        One command after the other through the range, otherwise at random blocks of it.
    first, range
        Blocks of the drive that are used.
    warm_up_ps, measure_ps
        Time before the measurement, and of the measurement.
    """

    depth: int
    read_percent: int
    blocks: int
    sequential: bool
    first: int
    range: int
    warm_up_ps: int = SECOND
    measure_ps: int = SECOND
    seed: int = 1

    def __post_init__(self) -> None:
        check("depth", self.depth, 1, PORT_DEPTH)
        check("read_percent", self.read_percent, 0, 100)
        check("blocks", self.blocks, 1, MERGE_BLOCKS)
        check("first", self.first, 0, 1 << 40)
        # At random a command begins at one of the blocks that leave it room.
        check("range", self.range, self.blocks + (not self.sequential), 1 << 40)
        check("warm_up_ps", self.warm_up_ps, 0, 1 << 60)
        check("measure_ps", self.measure_ps, 1, 1 << 60)


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """Commands a second and their mean latency."""

    iops: float
    latency_ps: int
    read_ahead_hits: int
    medium_busy_ps: int


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Payload rate and the results of the checks."""

    bytes_per_second: float
    errors: int
    completions: int
    out_of_order: int


def run_load(drive: DriveParameters, load: Load) -> LoadResult:
    """Runs a load on a drive alone."""
    if load.first + load.range > drive.capacity:
        raise ValueError(
            f"blocks {load.first}..{load.first + load.range - 1} are not all on a drive of"
            f" {drive.capacity}"
        )
    library = _library()
    result = int_array([0] * RESULT_VALUES)
    done = library.striata_load(
        int_array(field_array(library, "drive", drive)),
        int_array(field_array(library, "load", load)),
        result,
    )
    if not done:
        raise RuntimeError(library.striata_model_error().decode())
    return LoadResult(
        iops=result[0] * SECOND / load.measure_ps,
        latency_ps=result[1],
        read_ahead_hits=result[2],
        medium_busy_ps=result[3],
    )


def bench_write(link: LinkParameters, *, payload: int, count: int = 20_000) -> BenchResult:
    """Memory writes of ``payload`` bytes back to back."""
    return _bench("striata_bench_write", link, payload, count)


def bench_read(
    link: LinkParameters, *, length: int, offset: int = 0, outstanding: int = 64,
    count: int = 20_000,
) -> BenchResult:
    """Memory reads of ``length`` bytes at ``offset`` in their page, checked byte by byte."""
    return _bench("striata_bench_read", link, length, offset, outstanding, count)


@dataclass(kw_only=True)
class StraddledBeat:
    """A beat of 256 bits of RC with the straddle option; ``user`` is tuser without parity."""

    data: bytes
    user: int
    keep: int = 0xFF
    last: int = 0


def check_straddled(beats: Sequence[StraddledBeat]) -> None:
    """Checks beats by the rules of the native RC. The RuntimeError says which is broken."""
    library = _library()
    data = b"".join(beat.data for beat in beats)
    ends = bytes(value for beat in beats for value in (beat.keep, beat.last))
    users = (ctypes.c_uint64 * len(beats))(*(beat.user for beat in beats))
    if not library.striata_check_straddled(data, users, ends, len(beats)):
        raise RuntimeError(library.striata_model_error().decode())


def _bench(name: str, link: LinkParameters, *arguments: int) -> BenchResult:
    library = _library()
    result = int_array([0] * RESULT_VALUES)
    fields = int_array(field_array(library, "link", link))
    if not getattr(library, name)(fields, *arguments, result):
        raise RuntimeError(library.striata_model_error().decode())
    return BenchResult(
        bytes_per_second=result[0] * SECOND / result[1],
        errors=result[2],
        completions=result[3],
        out_of_order=result[4],
    )
