"""Random layouts that a controller supports."""

import math
import random

from hdl.config import Config
from sim.card.layouts import random_layout
from sim.golden.layout import LEAST_DRIVES, PARITIES, Layout

LONGEST_STRIP = 16
WEIGHTS = {"JBOD": 1, "RAID0": 2, "RAID1": 3, "RAID10": 3, "RAID5": 5, "RAID6": 5, "RAIDTP": 3}
"""How often a level is drawn, among those with enough drives."""


def turn_rows(layout: Layout) -> int:
    """Rows after which copies begin at the same drive again. Within them all drives that can hold
    copies of one strip do so, and the controller judges by that."""
    return layout.strip_blocks * layout.copies // math.gcd(layout.width, layout.copies)


def fits(layout: Layout, config: Config) -> bool:
    """Whether the controller takes the layout, and its strips are short enough for a few rows."""
    return turn_rows(layout) <= LONGEST_STRIP and layout.parities <= config.parities


def layout_of_most(choose: random.Random, config: Config, drives: int) -> Layout:
    """Any layout of at most so many members."""
    possible = [
        level
        for level, weight in WEIGHTS.items()
        for _ in range(weight)
        if LEAST_DRIVES[level] <= drives and PARITIES[level] <= config.parities
    ]
    level = choose.choice(possible)
    while True:
        layout = random_layout(choose, drives=drives)
        if layout.level == level and fits(layout, config):
            return layout


def layout_for(
    choose: random.Random, config: Config, drives: int, strip_blocks: int, rows: int
) -> Layout:
    """Any layout of exactly so many members, strips of this size, and so many rows."""
    while True:
        layout = random_layout(choose, drives=max(drives, 2))
        # Only background work gives redundancy to what is on the drives.
        plain = layout.parities == 0 and layout.copies == 1
        if layout.drives == drives and fits(layout, config) and (config.background or plain):
            shape = Layout(
                layout.level,
                drives,
                strip_blocks,
                layout.copies,
                layout.spans,
                layout.rotation,
            )
            if turn_rows(shape) <= rows:
                return shape
