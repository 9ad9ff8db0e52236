"""``python -m synth [BLOCK ...]``: area and clock frequency of blocks of `hdl.config.small`.

Prints a table, writes build/synth.json. Fails when a block is slower than the target, does not fit,
reads a memory without a clock, or makes a large memory of flip-flops. The placement is tried with
several seeds, until the target is reached. What has not changed since it was built is not built
again, and its row says so.
"""

import json
import sys
from dataclasses import asdict

from hdl.config import small
from sim.checkout import BUILD
from sim.cli import Parser, program
from sim.verilog import write_atomically
from synth.blocks import BLOCKS
from synth.flow import SEEDS, Result, synthesise
from synth.remembered import recall

ROW = "{:<12} {:>7} {:>7} {:>5} {:>5} {:>9} {:>7} {}"


def main() -> int:
    """Returns the number of blocks that failed."""
    parser = Parser(prog="synth", description=__doc__)
    parser.add_argument("blocks", metavar="BLOCK", nargs="*", help="default: all")
    parser.add_argument(
        "--fresh", action="store_true", help="run the tools even where results are kept in build/"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.blocks) - set(BLOCKS)
    if unknown:
        names, known = ", ".join(sorted(unknown)), ", ".join(BLOCKS)
        parser.error(f"no block is called {names}; there are {known}")
    results: list[Result] = []
    print(ROW.format("block", "LUT4", "FF", "EBR", "DSP", "Fmax MHz", "s", "").rstrip())
    for name in arguments.blocks or BLOCKS:
        result = recall(
            name,
            lambda name=name: synthesise(name, BLOCKS[name](small()), fresh=arguments.fresh),
            fresh=arguments.fresh,
        )
        results.append(result)
        print(
            ROW.format(
                name,
                result.luts,
                result.registers,
                result.rams,
                result.multipliers,
                f"{result.hertz / 1e6:.1f}",
                f"{result.seconds:.0f}",
                " ".join(
                    [f"(seed {result.seed})"] * (result.seed != SEEDS[0])
                    + ["(kept from an earlier run)"] * result.kept
                ),
            ).rstrip(),
            flush=True,
        )
        for fault in result.faults:
            print(f"    {fault}")
    write_atomically(BUILD / "synth.json", json.dumps([asdict(r) for r in results], indent=2))
    return sum(bool(result.faults) for result in results)


if __name__ == "__main__":
    sys.exit(program("synth", main))
