"""What a block takes with other sizes, by synthesis alone: nothing is placed, and nothing is kept.

    python -m synth.count front_end queue_pairs=64 queue_depth=1024

Sizes are those of `hdl.config.small` but for the ones that are named. Prints cells of an ECP5.
"""

import argparse
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path

from hdl.config import Config, small
from sim.cli import Parser, program
from sim.verilog import to_rtlil
from synth.blocks import BLOCKS
from synth.flow import Enclosure, cells_of

CELLS = {
    "LUT4": "LUTs",
    "CCU2C": "carry pairs",
    "TRELLIS_DPR16X4": "LUT RAMs",
    "TRELLIS_FF": "flip-flops",
    "DP16KD": "block RAMs",
}
"""What is printed, by the library's name."""


def _size(text: str) -> tuple[str, int | bool]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    kinds = {field.name: field.type for field in fields(Config)}
    if name not in kinds:
        known = ", ".join(sorted(kinds))
        raise argparse.ArgumentTypeError(f"no size is called {name}; there are {known}")
    try:
        number = int(value, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name} must be a number, not {value!r}") from None
    return name, bool(number) if kinds[name] is bool else number


def count(block: str, config: Config) -> dict[str, int]:
    """Cells of ``block`` by the names of `CELLS`."""
    with tempfile.TemporaryDirectory() as directory:
        found = cells_of(to_rtlil(Enclosure(BLOCKS[block](config))), Path(directory))
    return {words: found[name] for name, words in CELLS.items()}


def main() -> int:
    """Command line."""
    parser = Parser(prog="count", description=__doc__)
    parser.add_argument("block", metavar="BLOCK", help=f"one of {', '.join(BLOCKS)}")
    parser.add_argument("sizes", metavar="NAME=VALUE", nargs="*", type=_size)
    arguments = parser.parse_args()
    if arguments.block not in BLOCKS:
        parser.error(f"no block is called {arguments.block}; there are {', '.join(BLOCKS)}")
    try:
        config = replace(small(), **dict(arguments.sizes))
    except ValueError as error:
        parser.error(str(error))
    found = count(arguments.block, config)
    print(", ".join(f"{number} {words}" for words, number in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(program("count", main))
