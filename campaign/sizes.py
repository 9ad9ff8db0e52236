"""The controllers that a campaign runs. They are small, so that they are quick and short of
everything.

One of them is usual. Each of the others is short of something else, or has something left out. One
more is drawn at random for each `DRAWN_SEEDS` seeds. Controllers that are too small for shares of
several arrays run one array. Times are milliseconds, since simulated drives take microseconds.
"""

import random
from dataclasses import replace

from hdl.config import Config, small
from sim.native.build import SHIM_WIDTHS

USUAL = Config(
    data_width=256,
    ports=8,
    lines=128,
    banks=4,
    commands=64,
    rows=64,
    operations=256,
    drive_tags=8,
    read_tags=32,
    queue_pairs=2,
    queue_depth=32,
    arrays=4,
    volumes=8,
    parities=3,
    transfer_blocks=8,
    walk_window=8,
    command_timeout_ms=3,
    abort_timeout_ms=1,
    slow_read_ms=1,
    intent_chunks=32,
    array_shares=True,
)

SIZES = {
    "usual": USUAL,
    "narrow": replace(
        small(), parities=3, queue_pairs=2, command_timeout_ms=3, abort_timeout_ms=1, lines=16
    ),
    "starved": replace(
        USUAL, lines=32, commands=16, queue_depth=64, rows=4, operations=32, drive_tags=2,
        early_rows=2, walk_window=2, transfer_blocks=32, array_shares=False,
    ),
    "wide": replace(USUAL, ports=32, lines=512, operations=512),
    "deep": replace(
        USUAL, lines=512, rows=256, commands=512, drive_tags=32, operations=1024, walk_window=64,
        intent_chunks=64, transfer_blocks=32, queue_depth=256,
    ),
    "kept": replace(USUAL, lines=256, operations=512, metadata=True),
    "plain": replace(
        USUAL, data_width=128, queue_depth=64, array_shares=False, intent_chunks=0, slow_read_ms=0,
        early_rows=0, gather_reads=False, sector_emulation=False, drive_resets=0,
    ),
}  # fmt: skip
"""The controllers by name."""

OTHERS = 0.2
"""Share of runs on another controller than the usual one."""


DRAWN = "drawn"
"""The name of a controller whose sizes are drawn."""

DRAWN_SEEDS = 200
"""Seeds, one after the other, that have the drawn controller in common: to build one takes minutes.
"""


def size_of(seed: int, *, others: bool) -> str:
    """The name of the controller of a run."""
    choose = random.Random(f"{seed}/sizes")
    if not others or choose.random() >= OTHERS:
        return "usual"
    return choose.choice([*(name for name in SIZES if name != "usual"), DRAWN])


def config_of(seed: int, *, others: bool) -> Config:
    """The controller of a run."""
    size = size_of(seed, others=others)
    return drawn(seed // DRAWN_SEEDS) if size == DRAWN else SIZES[size]


def drawn(number: int) -> Config:
    """A controller with random sizes and options, one for each ``number``."""
    choose = random.Random(f"{number}/drawn")

    def power(least: int, most: int) -> int:
        return 1 << choose.randint(least, most)

    while True:
        background = choose.random() < 0.8
        try:
            return replace(
                USUAL,
                data_width=choose.choice(SHIM_WIDTHS),
                ports=choose.randint(4, 12),
                lines=power(5, 9),
                banks=power(1, 3),
                commands=power(4, 7),
                rows=power(2, 7),
                operations=power(5, 9),
                drive_tags=choose.randint(1, 16),
                read_tags=power(3, 6),
                queue_pairs=choose.randint(1, 3),
                queue_depth=power(5, 7),
                arrays=power(1, 3),
                parities=choose.randint(1, 4),
                transfer_blocks=power(2, 5),
                walk_window=power(1, 4),
                drive_resets=choose.randint(0, 3),
                background=background,
                intent_chunks=power(3, 6) if background else 0,
                slow_read_ms=int(background and choose.random() < 0.5),
                gather_reads=background and choose.random() < 0.5,
                early_rows=choose.choice((0, 1, 2, 8)),
                sector_emulation=choose.random() < 0.5,
                array_shares=choose.random() < 0.5,
            )
        except ValueError:
            continue  # what does not fit together
