"""Random layouts that a controller has."""

import random

from cocotb_tests.array_models import random_layout
from hdl.config import Config
from sim.golden.layout import LEAST_DRIVES, PARITIES, Layout

LONGEST_STRIP = 16
WEIGHTS = {"JBOD": 1, "RAID0": 2, "RAID1": 3, "RAID10": 3, "RAID5": 5, "RAID6": 5, "RAIDTP": 3}
"""How often a level is drawn, of those that there are drives for."""



def fits(layout: Layout, config: Config) -> bool:
    """Whether the controller takes it, and its strips are short enough for a few rows."""
    return layout.strip_blocks <= LONGEST_STRIP and layout.parities <= config.parities


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


def layout_for(choose: random.Random, config: Config, drives: int, strip_blocks: int) -> Layout:
    """Any layout of exactly so many members, and strips of this size."""
    while True:
        layout = random_layout(choose, drives=max(drives, 2))
        # Only background work gives redundancy to what is on the drives.
        plain = layout.parities == 0 and layout.copies == 1
        if layout.drives == drives and fits(layout, config) and (config.background or plain):
            return Layout(
                layout.level,
                drives,
                strip_blocks,
                layout.copies,
                layout.spans,
                layout.rotation,
            )
