"""The points that a characterisation runs, and their simulated times."""

from dataclasses import replace

from sim.native.parameters import Hdd, LinkParameters
from sim.native.presets import PRESETS
from sw.characterise.measure import Point
from sw.characterise.predict import predict
from sw.characterise.published import CASES, Case
from sw.workload.generator import Load
from sw.workload.profiles import OUTSTANDING, PROFILES
from sw.workload.statistics import MIB

LINK = LinkParameters(max_payload=128)
"""PCIe 3.0 x8 with payloads of 128 bytes, to which the published limits point."""

STRIP_KIB = 64
QUICK_OUTSTANDING = (8, 128)
QUICK_IDS = ("R1", "R5", "R14")
SSD_WARM_UP_NS = 500_000
SSD_MEASURE_NS = 2_000_000
HDD_WARM_UP_NS = 10_000_000
HDD_MEASURE_NS = 20_000_000
LEAST_ACCESSES = 50
LONGEST_TURN_NS = 20_000_000
TURNS = 2
"""A measurement lasts so many turns of all outstanding accesses at least. The result of a single
turn depends on where in it the measurement begins, by up to a tenth."""
LONGEST = 8
"""The measurement of a slow point is prolonged up to this many times."""


def _load(case: Case, outstanding: int, seed: int, share: float) -> Load:
    """The shortest times of the drive kind, or turns of all outstanding accesses if these are
    longer: one before the measurement, and `TURNS` of it."""
    drive = PRESETS[case.drive]
    slow = isinstance(drive, Hdd)
    load = Load(
        PROFILES[case.profile],
        outstanding,
        warm_up_ns=(HDD_WARM_UP_NS if slow else SSD_WARM_UP_NS) * share,
        measure_ns=(HDD_MEASURE_NS if slow else SSD_MEASURE_NS) * share,
        least_accesses=LEAST_ACCESSES,
        seed=seed,
    )
    mb_s = predict(case.level, case.drives, drive, LINK, load).mb_s
    turn = min(outstanding * load.profile.block_bytes / (mb_s * MIB) * 1e9, LONGEST_TURN_NS)
    measure = max(load.measure_ns, TURNS * turn)
    return replace(
        load,
        warm_up_ns=max(load.warm_up_ns, turn),
        measure_ns=measure,
        most_ns=measure * LONGEST,
    )


def points(*, quick: bool, seed: int, ids: list[str]) -> list[Point]:
    """The points of a run. ``ids`` restricts it to some results (empty: all)."""
    chosen = []
    for case in CASES:
        if (ids and case.id not in ids) or (quick and not ids and case.id not in QUICK_IDS):
            continue
        for outstanding in QUICK_OUTSTANDING if quick else OUTSTANDING:
            chosen.append(
                Point(
                    id=case.id,
                    setup=case.setup,
                    published=case.published,
                    level=case.level,
                    drives=case.drives,
                    drive=PRESETS[case.drive],
                    strip_kib=STRIP_KIB,
                    link=LINK,
                    load=_load(case, outstanding, seed, 0.5 if quick else 1.0),
                )
            )
    return chosen
