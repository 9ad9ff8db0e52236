"""A record of a characterisation."""

from sw.characterise.record import Record
from sw.workload.statistics import Latency

RECORD = Record(
    id="R1",
    setup="RAID 0, 8 <drives>",
    profile="Streaming",
    outstanding=8,
    unit="MB/s",
    published=5900,
    predicted=6000.0,
    simulated=5800.0,
    mb_s=5800.0,
    io_s=92_800.0,
    latency=Latency(80.0, 79.0, 99.0, 120.0),
    cycles=1_000_000,
    seed=1,
    binds="host link",
)
