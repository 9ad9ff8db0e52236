"""Runs one point of a load profile on the simulated card."""

from dataclasses import dataclass, replace

from hdl.config import Config, board
from hdl.flow.geometry import Level
from sim.native.parameters import DriveParameters, LinkParameters, Ssd
from sw.characterise.predict import Prediction, predict
from sw.characterise.record import Record
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.workload.generator import Generator, Load
from sw.workload.profiles import Profile
from sw.workload.statistics import Result

UNIT = "MB/s"
NEAR = 0.9
"""A predicted limit, or a busy resource, is named as the limit from this share on."""
BUSY_COUNTERS = ("out_busy_ps", "in_busy_ps", "medium_busy_ps")
HOST_LINK, DRIVES, CONTROLLER = "host link", "drives", "controller"


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
        The load on the array.
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

    @property
    def profile(self) -> Profile:
        """The load profile."""
        return self.load.profile


async def _run(card: SimulatedCard, point: Point) -> tuple[Result, dict[str, int]]:
    """The measurement, and how long (ps) each possible limit was busy meanwhile."""
    nvme = card.nvme
    # As few queues as hold all accesses.
    held = card.config.queue_depth - 1
    await nvme.start(queue_pairs=-(-point.load.outstanding // held))
    array = await raid.create_array(
        nvme,
        point.level,
        range(point.drives),
        strip_kib=point.strip_kib,
        assume_consistent=True,
    )
    namespace = await raid.create_volume(nvme, array)
    size = await nvme.namespace(namespace)
    generator = Generator(nvme, namespace, size.blocks, point.load, lambda: _busy(card, point))
    return await generator.run(), generator.probed


def _busy(card: SimulatedCard, point: Point) -> dict[str, int]:
    """Busy time so far, in picoseconds: the host link each way, drives' links each way and media.

    For drives it is the average over all. The medium of an SSD is the average of its dies.
    """
    link = card.harness.statistics()
    drives = [card.harness.drive_statistics(port) for port in range(point.drives)]
    busy = {name: link[name] for name in ("up_busy_ps", "down_busy_ps")}
    for name in BUSY_COUNTERS:
        busy[name] = sum(drive[name] for drive in drives) // point.drives
    if isinstance(point.drive, Ssd):
        busy["medium_busy_ps"] //= point.drive.dies
    return busy


def card_for(drives: int) -> Config:
    """The card that so many drives are characterised with. The drives keep no data, so they hold no
    superblocks either. With metadata the write buffers would also have been emptied in part by the
    time that the array is there."""
    return replace(board(max(drives, 8)), metadata=False)


def measure(point: Point) -> Record:
    """Runs ``point`` from reset on a card of its own and returns the measurement."""
    config = card_for(point.drives)
    drive = point.drive.changed(keep_data=False)
    if isinstance(drive, Ssd) and point.profile.read_share < 1:
        # The published figures are of the steady state, so begin with the write buffers full.
        drive = drive.changed(
            dirty_blocks=drive.cache_blocks, dirty_random=point.profile.random
        )
    drives = [drive] * point.drives + [None] * (config.ports - point.drives)
    with SimulatedCard(config, drives, link=point.link) as card:
        result, busy = card.run(_run(card, point))
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
        binds=binding(result, prediction, busy),
    )


def binding(result: Result, prediction: Prediction, busy: dict[str, int]) -> str:
    """The limit of a point: the predicted one if it is nearly reached, else the resource that was
    busy all the time.

    ``busy`` is the busy time in the measurement, as `_busy` counts it. If neither is decisive, the
    limit is the controller.
    """
    if NEAR * prediction.mb_s <= result.mb_s <= prediction.mb_s / NEAR:
        return prediction.binds
    share = {name: value * 1e-12 / result.seconds for name, value in busy.items()}
    if max(share["up_busy_ps"], share["down_busy_ps"]) >= NEAR:
        return HOST_LINK
    if max(share[name] for name in BUSY_COUNTERS) >= NEAR:
        return DRIVES
    return CONTROLLER
