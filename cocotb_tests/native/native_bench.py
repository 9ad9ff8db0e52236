"""The stand-in for a controller with its surroundings, and jobs for it to do."""

import random
from functools import partial

from cocotb_tests.native.native_stand_in import (
    BLOCK,
    BLOCKS,
    HOST_HIGH,
    HOST_LOW,
    JOB,
    JOB_FLUSH,
    JOB_READ,
    JOB_WRITE,
    PORT,
    StandIn,
)
from hdl.config import BLOCK_BYTES, Config
from sim.native.harness import Harness
from sim.native.parameters import (
    MICROSECOND,
    MILLISECOND,
    Hdd,
    Ideal,
    LinkParameters,
    Ssd,
    link_rate,
)

CONFIG = Config(ports=3, completion_straddle=False)
SIZES = {"max_payload": 4096, "max_read_request": 4096, "posted_data": 2048}
LINK = LinkParameters(**SIZES, check_vectors=False)
DRIVES = [
    Ideal(latency_ps=2 * MICROSECOND),
    Ssd(rate=link_rate(12)),
    Hdd(rate=link_rate(6), half_duplex=True, revolution_ps=8 * MILLISECOND),
]
MEDIUM_ERROR, GONE = 1, 3
CYCLE_NS = 4
GOOD = partial(StandIn, config=CONFIG)


def bench(drives=DRIVES, *, link=LINK, **more) -> Harness:
    """The stand-in with its surroundings."""
    return Harness(CONFIG, link=link, drives=drives, component=GOOD, **more)


def start(harness: Harness, job: int, *, port=0, block=0, blocks=1, offset=0) -> None:
    """Posts a job's registers."""
    host = harness.memory_base + offset
    for register, value in ((BLOCK, block), (BLOCKS, blocks - 1), (HOST_LOW, host & 0xFFFF_FFFF),
                            (HOST_HIGH, host >> 32), (PORT, port), (JOB, job)):
        harness.mmio_write32(register, value)


def do(harness: Harness, job: int, **arguments) -> int:
    """Runs a job to its end; returns the drive's status."""
    start(harness, job, **arguments)
    events = harness.run()
    assert len(events) == 1 and events[0][0] == "interrupt"
    assert events[0][1] & 0xFF == arguments.get("port", 0)
    return events[0][1] >> 8


def random_jobs(harness: Harness, *, seed: int, count: int) -> list[float]:
    """Random writes and reads on every drive, checked against what was written; end times."""
    rng = random.Random(seed)
    stored: dict[tuple[int, int], bytes] = {}
    times = []
    for _ in range(count):
        port, block, blocks = rng.randrange(3), rng.randrange(40), rng.randrange(1, 5)
        if rng.random() < 0.5:
            data = rng.randbytes(blocks * BLOCK_BYTES)
            harness.memory[: len(data)] = data
            assert do(harness, JOB_WRITE, port=port, block=block, blocks=blocks) == 0
            for index in range(blocks):
                start_byte = index * BLOCK_BYTES
                stored[port, block + index] = data[start_byte : start_byte + BLOCK_BYTES]
        else:
            assert do(harness, JOB_READ, port=port, block=block, blocks=blocks,
                      offset=1 << 20) == 0
            for index in range(blocks):
                place = (1 << 20) + index * BLOCK_BYTES
                expected = stored.get((port, block + index), bytes(BLOCK_BYTES))
                assert harness.memory[place : place + BLOCK_BYTES] == expected
        times.append(harness.now_ns)
    assert do(harness, JOB_FLUSH, port=2) == 0
    for (port, block), data in stored.items():
        assert harness.read_drive(port, block) == data
    assert harness.run(until_ns=harness.now_ns + 1_000_000) == [("time",)]
    return times
