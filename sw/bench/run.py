"""One load on a fresh card, for a row of the bench."""

import resource
from dataclasses import dataclass

from hdl.config import Config, board
from hdl.flow.geometry import Level
from sim.native.parameters import NANOSECOND, DriveParameters, Ideal, LinkParameters
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.workload.generator import Generator, Load
from sw.workload.profiles import Profile
from sw.workload.statistics import Result

LINK = LinkParameters()
STRIP_KIB = 64
DRIVE_BLOCKS = 1 << 20
WARM_UP_NS = 600_000
MEASURE_NS = 1_200_000
DRIVE_COUNTERS = ("latency_sum_ps", "reads")


@dataclass(frozen=True)
class Measurement:
    """The results of a run, and the speed of its simulation.

    ``counted`` is of the measured time. ``drained`` is of the whole run, in which every command
    that was sent to a drive has ended.
    """

    result: Result
    counted: dict[str, int]
    drained: dict[str, int]
    cycles: int
    cpu_seconds: float


def _cpu_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def load_card(
    ports: int,
    level: Level,
    profile: Profile,
    outstanding: int,
    share: float,
    *,
    latency_ns: int = 0,
    drive: DriveParameters | None = None,
    members: int = 0,
    spans: int = 1,
    pulled: int = 0,
    config: Config | None = None,
) -> Measurement:
    """Runs a profile on an array over the first ``members`` ports (0: all) of a fresh card.

    The card is that of ``config``. By default it is `board` with so many ports.

    ``drive`` is at every port. By default it is an ideal one. The first ``pulled`` drives are
    removed once the array is there.
    """
    drive = drive or Ideal(capacity=DRIVE_BLOCKS, latency_ps=latency_ns * NANOSECOND)
    config = config or board(ports)
    drives = [drive] * config.ports  # there may be a flash as well
    load = Load(
        profile,
        outstanding,
        warm_up_ns=WARM_UP_NS * share,
        measure_ns=MEASURE_NS * share,
    )
    with SimulatedCard(config, drives, link=LINK) as card:

        def count() -> dict[str, int]:
            totals = card.harness.statistics()
            drives = [card.harness.drive_statistics(port) for port in range(ports)]
            for name in DRIVE_COUNTERS:
                totals[name] = sum(drive[name] for drive in drives)
            return totals

        async def main() -> tuple[Result, dict[str, int], dict[str, int], int, float]:
            nvme = card.nvme
            await nvme.start(queue_pairs=4 if profile.random else 1)
            array = await raid.create_array(
                nvme,
                level,
                range(members or ports),
                strip_kib=STRIP_KIB,
                spans=spans,
                assume_consistent=True,
            )
            namespace = await raid.create_volume(nvme, array)
            blocks = (await nvme.namespace(namespace)).blocks
            for port in range(pulled):
                card.harness.remove(port)
            before, cpu = count(), _cpu_seconds()
            generator = Generator(nvme, namespace, blocks, load, count)
            result = await generator.run()
            cpu = _cpu_seconds() - cpu
            drained = {name: value - before[name] for name, value in count().items()}
            return result, generator.probed, drained, drained["cycles_evaluated"], cpu

        return Measurement(*card.run(main()))
