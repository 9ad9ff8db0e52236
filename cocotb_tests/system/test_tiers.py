"""The two simulation tiers agree on the PCIe throughput of the controller.

The same load runs on the same controller behind cocotbext-pcie and in the native harness. The
functional link model has neither DLLPs nor SKP ordered sets and 20 bytes around every payload, so
the native link is set to the same: none, and 32-bit addresses. The rate is the payload that went
over the link in the measured time, entries of the queues and interrupts included. With eight lanes
the hard block's stream is the bound; in a slot with four the link is.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import cocotb
import pytest
from cocotbext.pcie.core.tlp import Tlp, TlpType

from cocotb_tests.drive.drive_model import IDEAL
from cocotb_tests.runner import simulate
from cocotb_tests.system.controller_bench import CONFIG, Bench, ObservedController
from hdl.config import DATA_OFFSET_BLOCKS, Config
from hdl.flow.geometry import Level
from sim.checkout import BUILD
from sim.native.parameters import Ideal, LinkParameters
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.driver.nvme import Nvme
from sw.workload.generator import Generator, Load
from sw.workload.profiles import KIB, Profile

PORTS = 4
LARGE = Config(
    ports=PORTS, lines=1024, commands=64, rows=512, operations=512, queue_pairs=1, queue_depth=64
)
"""The link is the bound of each load on it. On the controller of the other tests, parity at eight
lanes is bound by the rows."""
SIZES = {"small": CONFIG, "large": LARGE}
STRIP_KIB = 64
ROWS = 1 << 13
COMMAND_BYTES = 64 * KIB
OUTSTANDING = 24
WARM_UP_NS = 60_000
MEASURE_NS = 120_000
AGREE = 0.03
NOISE = 0.01
"""Of the measured interval: buffers that are fuller at its end than at its beginning."""

MPS, MRRS = 256, 512
PACKET_BEATS = {"read": 9, "write": 8.5}
"""A descriptor and 256 bytes; completions, which a host's write asks for, straddle."""
STREAM_LIMIT = {way: MPS * CONFIG.clock_hz / beats for way, beats in PACKET_BEATS.items()}
LANE_RATE = 8e9 * 128 / 130 / 8
"""PCIe 3.0, bytes a second."""
TLP_OVERHEAD = 20
WRITES = (TlpType.MEM_WRITE, TlpType.MEM_WRITE_64)


def link(lanes: int, **changes) -> LinkParameters:
    """The functional tier's link."""
    overheads = {"ack_every": 0, "update_every": 0, "skip": False}
    sizes = {"max_payload": MPS, "max_read_request": MRRS}
    return LinkParameters(lanes=lanes, memory_base=1 << 28, **(sizes | overheads | changes))


async def measure(nvme: Nvme, level: Level, direction: str, count: Callable) -> float:
    """Payload bytes a second over the link in the direction of the data."""
    array = await raid.create_array(
        nvme, level, range(PORTS), strip_kib=STRIP_KIB, assume_consistent=True
    )
    namespace = await raid.create_volume(nvme, array)
    blocks = (await nvme.namespace(namespace)).blocks
    reads = direction == "read"
    profile = Profile(f"sequential {direction}", False, float(reads), COMMAND_BYTES)
    load = Load(profile, OUTSTANDING, warm_up_ns=WARM_UP_NS, measure_ns=MEASURE_NS)
    generator = Generator(nvme, namespace, blocks, load, count)
    result = await generator.run()
    payload = generator.probed["up_payload_bytes" if reads else "down_payload_bytes"]
    return payload / result.seconds


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def measures(dut):
    bench = Bench(
        dut,
        config=SIZES[os.environ["SIZE"]],
        timing=IDEAL,
        rows=ROWS,
        max_payload=MPS,
        max_read_request=MRRS,
        slot_lanes=int(os.environ["LANES"]),
    )
    counted = {"up_payload_bytes": 0, "down_payload_bytes": 0}
    rc = bench.host.rc
    send, receive = rc.send, rc.handle_mem_write_tlp

    async def count_down(tlp: Tlp) -> None:
        counted["down_payload_bytes"] += len(tlp.data)
        await send(tlp)

    async def count_up(tlp: Tlp) -> None:
        counted["up_payload_bytes"] += len(tlp.data)
        await receive(tlp)

    rc.send = count_down
    for kind in WRITES:
        rc.register_rx_tlp_handler(kind, count_up)
    await bench.start()
    level = Level[os.environ["LEVEL"]]
    rate = await measure(bench.nvme, level, os.environ["DIRECTION"], lambda: dict(counted))
    await bench.finish()
    Path(os.environ["RESULT"]).write_text(json.dumps(rate))


def native(level: Level, direction: str, size: str, parameters: LinkParameters) -> float:
    """The rate on the native tier."""
    config = SIZES[size]
    drives = [Ideal(capacity=DATA_OFFSET_BLOCKS + ROWS)] * PORTS
    drives += [None] * (config.ports - PORTS)
    with SimulatedCard(config, drives, link=parameters) as card:

        async def main() -> float:
            await card.nvme.start(config.queue_pairs, config.queue_depth)
            return await measure(card.nvme, level, direction, card.harness.statistics)

        return card.run(main())


def functional(level: Level, direction: str, lanes: int, size: str) -> float:
    """The rate on the functional tier."""
    result = BUILD / "tiers" / f"{level.name}-{direction}-x{lanes}.json"
    result.parent.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    simulate(
        ObservedController(config=SIZES[size]),
        name=f"controller_{size}",
        module=__name__,
        testcase="measures",
        parameters={
            "LEVEL": level.name,
            "DIRECTION": direction,
            "LANES": str(lanes),
            "SIZE": size,
            "RESULT": str(result),
        },
    )
    return json.loads(result.read_text())


@pytest.mark.parametrize(
    ("level", "direction", "lanes", "size"),
    [
        pytest.param(Level.RAID0, "read", 8, "large", marks=pytest.mark.slow),
        pytest.param(Level.RAID0, "write", 8, "large", marks=pytest.mark.slow),
        pytest.param(Level.RAID5, "write", 8, "large", marks=pytest.mark.slow),
        pytest.param(Level.RAID0, "read", 4, "small", marks=pytest.mark.slow),
        pytest.param(Level.RAID5, "write", 4, "large", marks=pytest.mark.slow),
    ],
)
def test_tiers_agree(level, direction, lanes, size):
    slow = functional(level, direction, lanes, size)
    fast = native(level, direction, size, link(lanes))
    wire = lanes * LANE_RATE * MPS / (MPS + TLP_OVERHEAD)
    stream = STREAM_LIMIT[direction]
    bound = min(stream, wire)
    print(
        f"{level.name} {direction} x{lanes}: functional {slow / 1e6:.0f} MB/s, native"
        f" {fast / 1e6:.0f} MB/s, ratio {slow / fast:.4f}; bound {bound / 1e6:.0f} MB/s"
        f" (stream {stream / 1e6:.0f}, link {wire / 1e6:.0f})"
    )
    assert abs(slow / fast - 1) <= AGREE
    assert max(slow, fast) <= bound * (1 + NOISE)
    if bound == wire:
        # What the comparison would say of a link with DLLPs for every TLP.
        other = native(level, direction, size, link(lanes, ack_every=1, update_every=1))
        print(f"with an ACK and an UpdateFC for every TLP {other / 1e6:.0f} MB/s")
        other = native(level, direction, size, link(lanes, max_payload=128))
        assert abs(slow / other - 1) > AGREE, "the comparison would not notice smaller TLPs"
