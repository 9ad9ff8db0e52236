"""Small drives whose caches forget what was not flushed."""

from hdl.config import DATA_OFFSET_BLOCKS
from sim.native.parameters import MICROSECOND, Ideal

ROWS = 256
FORGETFUL = Ideal(
    capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=5 * MICROSECOND, volatile_cache=True
)
SLOWER = Ideal(
    capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=20 * MICROSECOND, volatile_cache=True
)
