"""Small and fast drives for tests of the whole controller on the native tier."""

from hdl.config import DATA_OFFSET_BLOCKS
from sim.native.parameters import MICROSECOND, Ideal

ROWS = 48
CAPACITY = DATA_OFFSET_BLOCKS + ROWS
FAST = Ideal(capacity=CAPACITY, latency_ps=5 * MICROSECOND)
