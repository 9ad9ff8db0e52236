"""`hdl.metadata.assembler.Assembler` against the model of how md assembles drives."""

import os
import random
from collections import Counter
from dataclasses import dataclass, replace

import cocotb
import pytest
from amaranth.hdl import Cat, Const, Mux, Signal
from cocotb.triggers import RisingEdge

from cocotb_tests.metadata.array_drives import ALL_LAYOUTS, DATA_OFFSET, SIZE, drives
from cocotb_tests.metadata.superblock_pages import kept_words
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, TableServer, cycles_pass, sample, start, wait_until
from hdl.config import MAX_DRIVES, Config
from hdl.flow.geometry import WIDTH_BITS, Level, Rotation
from hdl.metadata.assembler import Assembler
from hdl.metadata.found_set import Hindrance, found_set
from hdl.metadata.superblock import KEPT_WORDS, MOST_DEVICES, SPARE, Word
from sim.golden.assembly import ALIKE, PARITIES, judge
from sim.golden.spans import divided, made_as, of_span
from sim.golden.superblock import CLEAN, Feature, Superblock

ASSEMBLERS = {one for one in Hindrance if one.value <= Hindrance.AWAITED.value}
ASSEMBLERS |= {Hindrance.RENUMBERED}
"""The hindrances that it finds."""

SIZES = Config(data_width=128, ports=16, lines=256)

REFUSED = (
    Feature.BAD_BLOCKS,
    Feature.RESHAPE,
    Feature.REPLACEMENT,
    Feature.RESHAPE_BACKWARDS,
    Feature.NEW_OFFSET,
    Feature.CLUSTERED,
    Feature.JOURNAL,
    Feature.PPL,
    Feature.MULTIPLE_PPLS,
)

NEAR = 1
"""Bits 31:8 of the layout of a RAID 10 that the card has."""

ROTATIONS = {
    0: Rotation.LEFT_ASYMMETRIC,
    1: Rotation.RIGHT_ASYMMETRIC,
    2: Rotation.LEFT_SYMMETRIC,
    3: Rotation.RIGHT_SYMMETRIC,
    4: Rotation.PARITY_FIRST,
    5: Rotation.PARITY_LAST,
    8: Rotation.DDF_ZERO_RESTART,
    9: Rotation.DDF_N_RESTART,
    10: Rotation.DDF_N_CONTINUE,
}
"""By md's layouts (`drivers/md/raid5.h`)."""

STRIPS = {8 << shift: shift for shift in range(9)}
"""log2 of the blocks of a strip, by its sectors."""

LEAST_DISKS = {0: 2, 1: 1, 4: 3, 5: 3, 6: 4, 7: 5, 10: 2}


SHAPE = ("level", "strip_shift", "copies", "rotation", "rows", "data_offset")
"""What is said of an array that the card has."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What has to be found of drives with one identity, by their ports."""

    hindrance: Hindrance
    place: tuple[int, int]
    group: int
    freshest: int
    drives: int
    left_out: int
    spares: int
    members: dict[int, int]
    rebuilding: dict[int, int]
    width: int
    dirty: bool
    shape: tuple | None


@dataclass(frozen=True, kw_only=True)
class Set:
    """Drives of one array or span, by their ports in ascending order."""

    found: dict[int, Superblock]
    seed: int
    """The lowest port of a drive of the array."""
    first: Superblock
    """What that says."""
    span: int = 0
    last: int = 0
    group: int = 0
    """A bit a port: those of all spans."""


def sets_of(there: dict[int, Superblock]) -> list[Set]:
    """The sets of these drives, in the order of their lowest ports. Spans follow each other."""
    left, sets = dict(there), []
    while left:
        seed, first = next(iter(left.items()))
        own, last = divided(first.ctime)
        groups = []
        for span in range(last + 1):
            uuid = of_span(first.set_uuid, own ^ span)
            groups.append({port: one for port, one in left.items() if one.set_uuid == uuid})
        uuids = {of_span(first.set_uuid, span) for span in range(16 if last else 1)}
        everybody = bits(port for port, one in left.items() if one.set_uuid in uuids)
        for span, found in enumerate(groups):
            agreed = replace(first, set_uuid=of_span(first.set_uuid, own ^ span))
            if last:
                agreed = replace(agreed, ctime=made_as(span, last))
            sets.append(
                Set(found=found, seed=seed, first=agreed, span=span, last=last, group=everybody)
            )
            left = {port: one for port, one in left.items() if port not in found}
    return sets


def expected(group: Set) -> Expected:
    """Of one set."""
    found = group.found
    freshest = max(found, key=lambda port: found[port].events, default=group.seed)
    one = found.get(freshest, group.first)
    agreed = {name: getattr(one, name) for name in ALIKE}
    like = {port: replace(other, **agreed) for port, other in found.items()}
    judgement = judge(like or {-1: one})
    if not found:
        judgement = replace(judgement, members={}, rebuilding={}, left_out=frozenset())
    roles = [*judgement.members.items(), *judgement.rebuilding.items()]
    seated = [port for _, port in roles]
    shape = shape_of(found, one, [found[port] for port in seated], spans=group.last > 0)
    fits = one.level in PARITIES and one.raid_disks * (group.last + 1) <= MAX_DRIVES
    if group.last and not fits:
        shape = None
    hindrance = Hindrance.NOTHING
    alike = {name: getattr(group.first, name) for name in ALIKE}
    if any(getattr(other, name) != alike[name] for other in found.values() for name in ALIKE):
        hindrance = Hindrance.DIFFERENT
    elif shape is None:
        hindrance = Hindrance.UNSUPPORTED
    elif not found:
        hindrance = Hindrance.INCOMPLETE
    elif not judgement.starts:
        hindrance = missing(found)
    doubt = (Hindrance.NOTHING, Hindrance.DOUBTFUL, Hindrance.AWAITED)
    if hindrance in doubt and is_renumbered(found, one, roles):
        hindrance = Hindrance.RENUMBERED
    return Expected(
        hindrance=hindrance,
        place=(group.span, group.last),
        group=group.group,
        freshest=freshest,
        drives=bits(found),
        left_out=bits(judgement.left_out),
        spares=bits(port for port, each in found.items() if is_spare(each, one.raid_disks)),
        members=dict(judgement.members),
        rebuilding=dict(judgement.rebuilding),
        width=one.raid_disks % (1 << WIDTH_BITS),
        dirty=one.resync_offset != CLEAN,
        shape=shape,
    )


def is_renumbered(
    found: dict[int, Superblock], freshest: Superblock, roles: list[tuple[int, int]]
) -> bool:
    """Whether a drive could be taken for another, while devices get the numbers of their roles."""
    seated = {port for _, port in roles}
    late = any(found[port].events != freshest.events for port in seated)
    odd = any(found[port].device_number != role for role, port in roles)
    others = [one for port, one in found.items() if port not in seated]
    near = [one for one in others if one.events >= freshest.events - 1]
    return (late and odd) or any(
        one.device_number < freshest.raid_disks and one.role != one.device_number for one in near
    )


def is_spare(drive: Superblock, disks: int) -> bool:
    """Whether a drive says that it is a spare of an array with so many roles. The number of one
    that was a member is below that."""
    return drive.role == SPARE and disks <= drive.device_number < MOST_DEVICES


def with_spares(found: dict[int, Superblock], generator: random.Random) -> dict[int, Superblock]:
    """The same drives and some that say that they are spares, or that were members once."""
    more = {}
    for number in range(generator.randint(1, 2)):
        one = generator.choice([*found.values()])
        device = generator.choice((one.raid_disks, 40, 127, 128)) + number
        events = generator.choice((0, one.events, one.events))
        roles = one.roles
        if generator.random() < 0.3:
            device = generator.randrange(max(one.raid_disks, 1))
            roles = (*roles[:device], SPARE, *roles[device + 1 :])
        more[1000 + number] = replace(one, device_number=device, events=events, roles=roles)
    return {**found, **more}


def missing(found: dict[int, Superblock]) -> Hindrance:
    """Why md does not start drives that the card could bring up."""
    calm = {port: replace(one, resync_offset=CLEAN) for port, one in found.items()}
    if judge(found).enough:
        return Hindrance.AWAITED
    return Hindrance.DOUBTFUL if judge(calm).enough else Hindrance.INCOMPLETE


def shape_of(
    found: dict[int, Superblock], one: Superblock, members: list[Superblock], *, spans: bool
) -> tuple | None:
    """Level, strip, copies, rotation, rows and the first block of data of an array that the card
    has."""
    if any(other.features & bit for other in found.values() for bit in REFUSED):
        return None
    if not LEAST_DISKS.get(one.level, MAX_DRIVES + 1) <= one.raid_disks <= MAX_DRIVES:
        return None
    offsets = {member.data_offset for member in members} or {DATA_OFFSET}
    if len(offsets) > 1 or min(offsets) < DATA_OFFSET or max(offsets) >= 1 << 27:
        return None
    if min(offsets) % 8 or (spans and offsets != {DATA_OFFSET}):
        return None
    sizes = [member.data_size for member in members]
    least = min(sizes, default=1 << 44)
    if one.size >> 44 or (one.level and one.size > least):
        return None
    strip = 0 if one.level == 1 else STRIPS.get(one.chunk)
    if strip is None:
        return None
    if one.level and one.size % (8 << strip):
        return None
    if one.level == 0 and len({size // 8 >> strip for size in sizes}) > 1:
        return None
    rows = ((one.size if one.level else least) // 8 >> strip << strip) % (1 << 40)
    level, copies, rotation = f"RAID{one.level}", 1, Rotation.LEFT_SYMMETRIC
    if one.level == 7:
        level = "RAIDTP"
    if one.level == 1:
        copies = one.raid_disks
        level = "RAID1" if copies > 1 else "JBOD"
    if one.level == 10:
        copies = one.layout & 0xFF
        if one.layout >> 8 != NEAR or not 1 < copies <= one.raid_disks:
            return None
    if one.level == 4:
        level, rotation = "RAID5", Rotation.PARITY_LAST
    if one.level in (5, 6, 7):
        found_rotation = ROTATIONS.get(one.layout)
        if found_rotation is None or (one.level != 6 and one.layout >= 8):
            return None
        rotation = found_rotation
    return (Level[level], strip, copies, rotation.value, rows, min(offsets) // 8) if rows else None


def bits(numbers) -> int:
    """A bit each."""
    return sum(1 << number for number in numbers)


def strange(found: dict[int, Superblock], generator: random.Random) -> dict[int, Superblock]:
    """The same drives with something that the card has to refuse, or just not."""
    what = generator.choice(
        (
            {"level": 4},
            {"level": generator.choice((-4, -1, 2, 3, 7, 16, 21, 1 << 30))},
            {"layout": generator.choice((0x102, 0x101, 0x201, 0x10102, 0x1FF, 0x103, *range(12)))},
            {"layout": generator.choice((0, 1, 3, 4, 5, 8, 9, 10))},
            {"chunk": generator.choice((0, 4, 8, 16, 24, 128, 2048, 4096, 1 << 31))},
            {"data_offset": generator.choice((0, 2040, 2049, 2048 + (1 << 32), 1 << 27))},
            {"data_offset": generator.choice((2056, 4096, 264192, (1 << 27) - 8))},
            {"data_size": generator.choice((SIZE - 1, SIZE - 8, SIZE + 8, SIZE + (1 << 32), 15))},
            {"size": generator.choice((0, 7, 8, SIZE - 1, SIZE + 1, 1 << 44, SIZE + (1 << 44)))},
            {"raid_disks": generator.choice((1, 2, 31, 32, 33, 64, 128))},
            {"features": generator.choice([*Feature])},
        )
    )
    one_alone = {"features", "data_offset", "data_size"} & {*what}
    some = generator.random() < 0.3 and bool(found and one_alone)
    chosen = [generator.choice([*found])] if some else [*found]
    return {port: replace(one, **what) if port in chosen else one for port, one in found.items()}


def spanned(number: int, generator: random.Random) -> dict[int, Superblock]:
    """Drives of an array with spans, of which something may be wrong, and perhaps a whole span
    missing."""
    layouts = [generator.choice([one for one in ALL_LAYOUTS if one[1] in PARITIES])]
    count = generator.choice((2, 2, 2, 3, 4))
    if generator.random() < 0.1:
        layouts = ALL_LAYOUTS
    there = {}
    for span in range(count):
        if generator.random() < 0.1:
            continue
        for drive, one in drives(number, generator, layouts=layouts).found.items():
            uuid, ctime = one.set_uuid, made_as(span, count - 1)
            if generator.random() < 0.05:
                ctime += generator.choice((1, 1 << 40, 1 << 44, 1 << 48))
            there[span * 200 + drive] = replace(one, set_uuid=of_span(uuid, span), ctime=ctime)
    return there


class Bench:
    """Gives superblocks to the assembler, and holds its sets against the model."""

    def __init__(self, dut, *, seed: int, active: float):
        self.dut = dut
        self.random = random.Random(f"{seed}/assembler")
        nothing = "says nothing of a set that is UNSUPPORTED, else it is compared"
        self.found = StreamSink(
            dut,
            "found",
            layout=found_set(SIZES),
            active=active,
            ignores=dict.fromkeys(SHAPE, nothing),
        )
        self.words: dict[int, int] = {}
        self.spares = 0
        self.spans: Counter[Hindrance] = Counter()
        dut.start.value = 0
        dut.valid.value = 0
        dut.member_read__address.value = 0
        TableServer(dut, "kept_read", lambda address: self.words.get(address, 0))

    def fill(self) -> dict[int, Superblock]:
        """Drives of some arrays at random ports."""
        free = [*range(SIZES.ports)]
        self.random.shuffle(free)
        there: dict[int, Superblock] = {}
        for number in range(self.random.randint(0, 4)):
            found = drives(number + 1, self.random, layouts=ALL_LAYOUTS).found
            if self.random.random() < 0.3:
                found = spanned(number + 1, self.random)
            if self.random.random() < 0.4:
                found = strange(found, self.random)
            if self.random.random() < 0.2:
                far = self.random.choice(((1 << 32) - 1, 1 << 32, (1 << 64) - 60))
                found = {
                    role: replace(one, events=(one.events + far) % (1 << 64))
                    for role, one in found.items()
                }
            if found and self.random.random() < 0.3:
                found = with_spares(found, self.random)
            if len(found) > len(free):
                break
            there |= {free.pop(): one for one in found.values()}
        self.words = {
            port * KEPT_WORDS + number: word
            for port, one in there.items()
            for number, word in enumerate(kept_words(one.pack()))
        }
        return dict(sorted(there.items()))

    async def places(self, roles) -> dict[int, int]:
        """The ports of these roles."""
        ports = {}
        for role in roles:
            self.dut.member_read__address.value = role
            await cycles_pass(self.dut.clk, 2)
            ports[role] = sample(self.dut.member_read__data)
        return ports

    async def check(self) -> list[Hindrance]:
        """Why the sets of some drives are not brought up, which must be as expected."""
        there = self.fill()
        sets = sets_of(there)
        self.found.paused = True
        self.dut.valid.value = bits(there)
        self.dut.start.value = 1
        await RisingEdge(self.dut.clk)
        self.dut.start.value = 0
        await RisingEdge(self.dut.clk)  # it is not at rest any more
        outcomes = []
        for group in sets:
            await wait_until(
                self.dut, lambda: sample(self.dut.found__valid), cycles=20_000, what="a set"
            )
            wanted = expected(group)
            roles = {**wanted.members, **wanted.rebuilding}
            known = await self.places(roles)
            self.found.paused = False
            got = await self.found.receive(cycles=1000)
            self.found.paused = True
            await RisingEdge(self.dut.clk)  # it is not offered any more
            what = f"{wanted}, not {got}"
            assert Hindrance(got.hindrance) == wanted.hindrance, what
            assert (got.freshest, got.drives) == (wanted.freshest, wanted.drives), what
            assert (got.place.span, got.place.last) == wanted.place, what
            assert got.group == wanted.group, what
            outcomes.append(wanted.hindrance)
            self.spans[wanted.hindrance] += wanted.place[1] > 0
            assert (got.width, bool(got.dirty)) == (wanted.width, wanted.dirty), what
            assert got.members == bits(wanted.members), what
            assert got.rebuilding == bits(wanted.rebuilding), what
            assert (got.left_out, got.spares) == (wanted.left_out, wanted.spares), what
            self.spares += got.spares != 0
            if wanted.shape is not None:
                level, numbers = Level(got.level), (got.rotation, got.rows, got.data_offset)
                shape = level, got.strip_shift, got.copies, *numbers
                assert shape == wanted.shape, what
            assert known == roles, f"{known}: {what}"
        await wait_until(self.dut, lambda: sample(self.dut.done), cycles=100, what="the end")
        assert not sample(self.dut.found__valid), "one set too many"
        return outcomes


@cocotb.test(timeout_time=200, timeout_unit="ms")
async def judges_as_md(dut):
    """Arrays that are complete, degraded, dirty, mixed, strange or strangers to each other."""
    bench = Bench(dut, seed=cocotb.RANDOM_SEED, active=0.5)
    await start(dut)
    outcomes = Counter()
    for _ in range(int(os.environ["ROUNDS"])):
        outcomes.update(await bench.check())
    assert bench.spares
    never = ASSEMBLERS - set(bench.spans)
    assert not never, f"no span is ever {never}"
    assert set(outcomes) == ASSEMBLERS, f"never: {ASSEMBLERS - set(outcomes)}"


class BelievesTheFirst(Assembler):
    """A planted bug: the drive at the lowest port is the freshest."""

    def _subtract(self, m, upper):
        super()._subtract(m, upper)
        return Signal()


class BelievesTheLate(Assembler):
    """A planted bug: a drive that is one event behind has the role that it says."""

    def _seat(self, m):
        self._their_role, theirs = self._own_role, self._their_role
        super()._seat(m)
        self._their_role = theirs


class TakesTheLastOfTwo(Assembler):
    """A planted bug: of two drives for one role the one that comes later has it."""

    def _seat(self, m):
        super()._seat(m)
        role = Mux(self._late, self._their_role, self._own_role)
        with m.If(self._is_role(role) & (Cat(self._low, self._high) == self._late)):
            m.d.comb += self._places.store(address=role, data=self._port)


class LosesTheBorrow(Assembler):
    """A planted bug: the upper words of events are compared alone."""

    def _subtract(self, m, upper):
        return super()._subtract(m, upper & (self._held != self.kept_read.data))


class WaitsForNobody(Assembler):
    """A planted bug: a drive that is away without having failed is no reason to wait."""

    def _note(self, m, word, data):
        super()._note(m, word, data)
        m.d.sync += self._expected.eq(0)


class StartsInDoubt(Assembler):
    """A planted bug: rows that may be inconsistent are no reason to wait."""

    def _note(self, m, word, data):
        super()._note(m, word, Mux(word < Word.EVENTS, data, Mux(word < Word.ROLES, ~0, data)))


class ForgetsNumbers(Assembler):
    """A planted bug: nobody minds which numbers devices have."""

    @property
    def _is_renumbered(self):
        return Const(0)


class TakesAnySpare(Assembler):
    """A planted bug: a drive that was a member once is taken for a spare."""

    @property
    def _is_spare(self):
        return self._own_role == SPARE


class TakesSpansAlone(Assembler):
    """A planted bug: each span is an array."""

    def _note_span(self, m):
        super()._note_span(m)
        m.d.sync += self.found.payload.place.last.eq(0)


class ForgetsOtherSpans(Assembler):
    """A planted bug: drives of other spans are not of the array."""

    def _match(self, m):
        super()._match(m)
        m.d.sync += self._aside.eq(0)


class NeedsNoCopy(Assembler):
    """A planted bug: a RAID 10 does without both copies of a strip."""

    def _hindrance(self, m):
        found, self._all_there = self._all_there, Const(3)
        hindrance = super()._hindrance(m)
        self._all_there = found
        return hindrance


def run(component, name: str, *, rounds: int = 60) -> None:
    simulate(component, name=name, module=__name__, parameters={"ROUNDS": str(rounds)})


def test_assembler():
    run(Assembler(config=SIZES), "assembler")


@pytest.mark.parametrize(
    "bug",
    [
        BelievesTheFirst,
        *(
            pytest.param(bug, marks=pytest.mark.slow)
            for bug in (
                BelievesTheLate,
                ForgetsNumbers,
                ForgetsOtherSpans,
                LosesTheBorrow,
                NeedsNoCopy,
                StartsInDoubt,
                TakesAnySpare,
                TakesSpansAlone,
                TakesTheLastOfTwo,
                WaitsForNobody,
            )
        ),
    ],
)
def test_assembler_planted_bugs_are_found(bug):
    with pytest.raises(SimulationError, match="failed: judges_as_md"):
        run(bug(config=SIZES), f"assembler_{bug.__name__}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_assembler_for_long(seed: int):
    simulate(
        Assembler(config=SIZES),
        name="assembler_long",
        module=__name__,
        parameters={"ROUNDS": "600"},
        seed=seed,
    )
