"""Runs one point of a load profile on the simulated card."""

from dataclasses import dataclass

from hdl.array.interface import Level
from hdl.config import board
from sim.native.parameters import DriveParameters, LinkParameters, Ssd
from sw.characterise.predict import Prediction, predict
from sw.characterise.record import Record
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.workload.generator import Generator, Load
from sw.workload.profiles import Profile
from sw.workload.statistics import Result

UNIT = "MB/s"
BUSY = 0.9
"""A resource that is busy for this share of the time binds."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point: a setup, a profile and a number of outstanding accesses.

    Parameters
    ----------
    id, setup, published
        As in `Record`.
    level, drives, drive, strip_kib
        The array: RAID level, number of drives, their parameters, strip in KiB.
    link
        PCIe link of the card.
    load
        What is run on it.
    queue_pairs
        I/O queue pairs that share the accesses.
    """

    id: str
    setup: str
    published: float | None
    level: Level
    drives: int
    drive: DriveParameters
    strip_kib: int
    link: LinkParameters
    load: Load
    queue_pairs: int = 1

    @property
    def profile(self) -> Profile:
        """The load profile."""
        return self.load.profile


async def _run(card: SimulatedCard, point: Point) -> tuple[Result, dict[str, int], dict[str, int]]:
    nvme = card.nvme
    await nvme.start(queue_pairs=point.queue_pairs)
    array = await raid.create_array(
        nvme, point.level, range(point.drives), strip_kib=point.strip_kib
    )
    namespace = await raid.create_volume(nvme, array)
    size = await nvme.namespace(namespace)
    before = card.harness.statistics()
    result = await Generator(nvme, namespace, size.blocks, point.load).run()
    return result, before, card.harness.statistics()


def measure(point: Point) -> Record:
    """Runs ``point`` from reset on a card of its own; what was measured."""
    config = board(max(point.drives, 8))
    drive = point.drive.changed(keep_data=False)
    if isinstance(drive, Ssd) and point.profile.read_share < 1:
        # The steady state is what is published: begin with the write buffers full.
        drive = drive.changed(
            dirty_blocks=drive.cache_blocks, dirty_random=point.profile.random
        )
    drives = [drive] * point.drives + [None] * (config.ports - point.drives)
    with SimulatedCard(config, drives, link=point.link) as card:
        result, _, after = card.run(_run(card, point))
        cycles = round(card.harness.now_ns * 1e-9 * config.clock_hz)
    prediction = predict(point.level, point.drives, point.drive, point.link, point.load)
    return Record(
        id=point.id,
        setup=point.setup,
        profile=point.profile.name,
        outstanding=point.load.outstanding,
        unit=UNIT,
        published=point.published,
        predicted=prediction.mb_s,
        simulated=result.mb_s,
        mb_s=result.mb_s,
        io_s=result.io_s,
        latency=result.latency,
        cycles=cycles,
        seed=point.load.seed,
        binds=_binds(result, prediction, after),
    )


def _binds(result: Result, prediction: Prediction, after: dict[str, int]) -> str:
    """The limit nearest to the simulated throughput, when it is near; else the controller."""
    return prediction.binds if result.mb_s >= BUSY * prediction.mb_s else "controller"
