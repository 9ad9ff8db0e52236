"""A backup unit in its room: its flash, drives with superblocks, and what is on its way to them."""

import os
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.drive.drive_model import IDEAL, RANDOM, DriveModel
from cocotb_tests.redo.redo_pages import (
    LIST_RECORDS,
    Head,
    Member,
    adds_up,
    pack_list,
    page,
    record_pages,
    unpack_list,
    words_of,
)
from cocotb_tests.redo.redo_pages import NAMED as NAMED_WORDS
from cocotb_tests.redo.redo_room import SIZES
from cocotb_tests.streams import (
    RESET_CYCLES,
    StreamSource,
    TableServer,
    cycles_pass,
    every_cycle,
    sample,
    unpack,
    wait_until,
)
from hdl.config import BLOCK_BYTES
from hdl.flow.line import write_beat
from hdl.flow.operation import Opcode, operation
from hdl.flow.recalled import recalled

FLASH = 3
"""The port of the flash."""

PORTS = range(3)
"""Those of drives."""

KEPT_WORDS = 128
"""Words that are kept of a superblock."""

BACKUP_BLOCKS = SIZES.backup_blocks
OVERHEAD, LEAST = {700: (4, 20), 24: (2, 18)}[BACKUP_BLOCKS]
"""Blocks of the flash before the first one with data, and least of energy."""

MOST_RECORDS, MOST_LISTS = BACKUP_BLOCKS - OVERHEAD, OVERHEAD - 1

UNLIMITED = 2047
"""What `most_unwritten` says if there is no limit."""

WAIT_CYCLES = 250_000_000
"""How long the flash is waited for: a second."""

LINES = 118
"""Lines that nobody keeps."""

REPLAYED_AT_ONCE = 32

RESTS = 100
"""Cycles that all is left alone before the power goes."""


class Flash(DriveModel):
    """A drive that loses all that it has not flushed as its power goes."""

    def power_off(self) -> None:
        for block, before in self._unflushed.items():
            self.storage.pop(block, None)
            if before is not None:
                self.storage[block] = before
        self._unflushed.clear()


@dataclass(kw_only=True, eq=False)
class Disk:
    """A drive, wherever it is: what is kept of its superblock."""

    words: list[int]

    @property
    def named(self) -> tuple[int, ...]:
        return tuple(self.words[number] for number in NAMED_WORDS)


@dataclass(kw_only=True)
class Wanted:
    """What a replay must do: blocks of each port, and the ports that are covered. For those of each
    array: the blocks of its drives that must be stored for that."""

    writes: dict[int, dict[int, bytes]] = field(
        default_factory=lambda: {port: {} for port in PORTS}
    )
    found: dict[int, Member] = field(default_factory=dict)
    spoilt: set[int] = field(default_factory=set)
    all_spoilt: bool = False
    arrays: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def covered(self) -> set[int]:
        return {
            port
            for port, member in self.found.items()
            if member.trusted and member.array not in self.spoilt and not self.all_spoilt
        }


class Bench:
    """A backup unit with all that is around it."""

    def __init__(self, dut):
        seed = int(os.environ["SEED"])
        print(f"seed {seed}")
        self.dut = dut
        self.random = random.Random(f"{seed}/redo")
        self.flash = Flash(
            dut, FLASH, config=SIZES, timing=RANDOM, capacity=BACKUP_BLOCKS, seed=seed
        )
        self.drives = [
            DriveModel(dut, port, config=SIZES, timing=RANDOM, capacity=(1 << 40) - 1, seed=seed)
            for port in PORTS
        ]
        self.disks = [self._disk() for _ in PORTS]
        self.at: dict[int, Disk] = dict(zip(PORTS, self.disks, strict=True))
        self.lines: dict[int, bytes] = {}
        self.homes: dict[int, int] = {}
        self.known = 0
        self.now = 0
        self.takes = 0.5
        self.pauses = False
        self.seen: Counter = Counter()
        self.foul = StreamSource(dut, "foul", layout=write_beat(SIZES))
        self.recalled = StreamSource(dut, "recalled", layout=recalled(SIZES))
        TableServer(dut, "home_read", lambda port: self.homes.get(port, 0))
        self._defaults()
        self.watch = BusyWatch(dut, ["recalled"], ["operation"], others=self._levels)
        every_cycle(dut.clk, self._clock())

    def _levels(self) -> tuple:
        """What the unit acts upon beside streams."""
        dut = self.dut
        present = tuple(drive.present for drive in (*self.drives, self.flash))
        levels = (
            dut.surveyed, dut.known, dut.wanted, dut.pins__power_fail, dut.takes, dut.hung,
            dut.drives__3__present,
        )  # fmt: skip
        return (*present, *map(sample, levels), self.now > sample(dut.deadline))

    def _clock(self) -> Iterator[None]:
        dut, takes = self.dut, None
        while True:
            dut.now.value = self.now
            going = self.random.random() < self.takes and not self.pauses
            if going != takes:
                takes = dut.takes.value = int(going)
            yield
            self.now += 1
            present = sum(1 << port for port in PORTS if self.drives[port].present)
            if self.known & ~present:
                self.know(self.known & present)

    def _defaults(self) -> None:
        """Inputs as power comes."""
        dut = self.dut
        for name in (
            "pins__power_fail", "surveyed", "used", "wanted", "steady", "clean", "flushes",
            "stores", "exposes__valid", "unflushed__valid", "proven__valid", "hung", "sound",
            "plant__enable", "pins__energy_blocks",
        ):  # fmt: skip
            getattr(dut, name).value = 0
        self.know(0)

    def know(self, ports: int) -> None:
        self.known = self.dut.known.value = ports

    def _disk(self) -> Disk:
        """One that differs from an earlier one in a single word, in many cases."""
        words = [self.random.getrandbits(32) for _ in range(KEPT_WORDS)]
        old = getattr(self, "disks", [])
        if old and self.random.random() < 0.7:
            words = [*self.random.choice(old).words]
            words[self.random.choice(NAMED_WORDS)] ^= 1 << self.random.randrange(32)
        return Disk(words=words)

    # The power.

    async def power_comes(self) -> None:
        """The power has gone, and comes again."""
        dut, all_drives = self.dut, (*self.drives, self.flash)
        await wait_until(
            dut, lambda: all(one.idle for one in all_drives), cycles=20_000, what="idle drives"
        )
        await cycles_pass(dut.clk, RESTS)
        dut.rst.value = 1
        self._defaults()
        source = self.recalled
        source._queue.clear()
        source._offering = False
        dut.recalled__valid.value = 0
        self.flash.power_off()
        self.flash.bad_reads.clear()
        self.flash.bad_writes.clear()
        self.takes = self.random.choice((1.0, 0.5, 0.1))
        for drive in all_drives:
            drive.timing = self.random.choice((IDEAL, RANDOM))
            if not drive.present:
                drive.insert()
        for drive in self.drives:
            drive.storage.clear()
            drive.stored_fua.clear()
            drive.bad_writes.clear()
        self.flash.capacity = BACKUP_BLOCKS
        dut.drives__3__capacity.value = BACKUP_BLOCKS
        self.now = self.random.getrandbits(40)
        await cycles_pass(dut.clk, RESET_CYCLES)

    async def plant_all(self, at: dict[int, Disk]) -> None:
        """What is kept of the superblocks at ports. The reset does not matter for it."""
        for port in PORTS:
            for number in range(KEPT_WORDS):
                await self.plant(port, number, at[port].words[number] if port in at else None)

    async def plant(self, port: int, number: int, word: int | None) -> None:
        """A word of what is kept."""
        dut = self.dut
        dut.plant__address.value = port * KEPT_WORDS + number
        dut.plant__data.value = self.random.getrandbits(32) if word is None else word
        dut.plant__enable.value = 1
        await RisingEdge(dut.clk)
        dut.plant__enable.value = 0

    # A replay.

    def judge(self) -> Wanted:
        """What is to be replayed of the flash as it is, to the drives as they are."""
        wanted, flash = Wanted(), self.flash
        head = None
        if 0 not in flash.bad_reads:
            head = Head.unpack(
                flash.read_block(0), most_records=MOST_RECORDS, most_lists=MOST_LISTS
            )
        if head is None:
            return wanted
        now: dict[int, int] = {}
        for then, member in head.members.items():
            ports = [
                port for port, disk in self.at.items()
                if disk.named == member.named and self.drives[port].present
            ]  # fmt: skip
            if ports:
                now[then] = ports[0]
                wanted.found[ports[0]] = member
        first = 0
        for number, total in enumerate(head.sums):
            count = max(0, min(head.records - first, LIST_RECORDS))
            block = flash.read_block(1 + number)
            good = 1 + number not in flash.bad_reads
            if not good or not adds_up(block) or words_of(block)[-1] != total:
                wanted.all_spoilt = True
            else:
                for place, one in enumerate(unpack_list(block)[:count], first):
                    if one.port not in now:
                        continue
                    port = now[one.port]
                    wanted.arrays.setdefault(one.array, []).append((port, one.block))
                    content = flash.read_block(OVERHEAD + place)
                    bad = OVERHEAD + place in flash.bad_reads or zlib.crc32(content) != one.sum
                    if bad or one.block in self.drives[port].bad_writes:
                        wanted.spoilt.add(one.array)
                    if not bad and one.block not in self.drives[port].bad_writes:
                        wanted.writes[port][one.block] = content
            first += LIST_RECORDS
        wanted.all_spoilt |= first < head.records
        return wanted

    async def survey(self) -> None:
        """It becomes known what each drive holds."""
        clk = self.dut.clk
        for port in self.random.sample(PORTS, 3):
            await cycles_pass(clk, self.random.randrange(40))
            if self.drives[port].present:
                self.know(self.known | 1 << port)
        await cycles_pass(clk, self.random.randrange(40))
        self.dut.wanted.value = 0
        await cycles_pass(clk, 2)
        self.dut.surveyed.value = 1

    async def end_of_replay(self, *, cycles: int = 4_000_000) -> None:
        dut = self.dut
        await wait_until(dut, lambda: bool(sample(dut.done)), cycles=cycles, what="the replay")
        await cycles_pass(dut.clk, 2)
        assert not sample(dut.reads), "what is kept is still read"

    def check_replay(self, wanted: Wanted, *, exact: bool, away: frozenset[int]) -> None:
        """The drives hold what they should, and are covered only if they may be believed."""
        covered = {port for port in range(4) if sample(self.dut.covered) >> port & 1}
        for port in PORTS:
            drive = self.drives[port]
            done = [one for one in drive.counts.history if one[0] != "READ"]
            assert all(one[3] for one in done), f"port {port}: one without FUA"
            if port in away and drive.present:
                assert not drive.storage, f"port {port}: another drive is written to"
            due = wanted.writes[port]
            for block, content in drive.storage.items():
                assert due.get(block) == content, f"port {port}: block {block} is wrong"
            if exact:
                lost = due.keys() - drive.storage.keys()
                assert not lost, f"port {port} lacks {lost}"
        if exact:
            assert covered == wanted.covered, f"covered {covered}, not {wanted.covered}"
            return
        for port in covered:
            assert port not in away, f"port {port} has been away"
            assert port in wanted.covered, f"port {port} is covered: {wanted.covered}"
            for other, block in wanted.arrays.get(wanted.found[port].array, []):
                # What was to be written to who goes away can be worked out.
                stored = other in away or block in self.drives[other].storage
                assert stored, f"port {port} is covered, and port {other} lacks {block}"

    # A save.

    async def fill_lines(self, count: int) -> None:
        """Some lines get random contents."""
        beats, size = SIZES.beats, SIZES.beat_bytes
        self.lines = {
            line: self.random.randbytes(BLOCK_BYTES)
            for line in self.random.sample(range(LINES), count)
        }
        for line, content in self.lines.items():
            for beat in range(beats):
                word = content[beat * size : (beat + 1) * size]
                self.foul.send(
                    address=line * beats + beat, data=int.from_bytes(word, "little"),
                    mask=(1 << SIZES.beat_dwords) - 1,
                )  # fmt: skip
        await self.foul.drained()
        await cycles_pass(self.dut.clk, 20)

    def some_records(self, count: int) -> list[tuple[int, int, int, int]]:
        """Blocks on their way: array, port, block, line."""
        found: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        while len(found) < count:
            port = self.random.choice(PORTS)
            block = self.random.getrandbits(self.random.choice((4, 32, 39)))
            line = self.random.choice([*self.lines])
            found[port, block] = self.homes[port], port, block, line
        return [*found.values()]

    async def recall(self, records) -> None:
        """Tells the records again and again, as long as the power lasts."""
        dut = self.dut
        await wait_until(dut, lambda: bool(sample(dut.recalls)), cycles=100, what="recalls")
        while sample(dut.recalls):
            for array, port, block, line in records:
                self.recalled.send(array=array, port=port, block=block, line=line)
            self.recalled.send(last=1)
            while not self.recalled.idle:
                await cycles_pass(dut.clk, 20)
                if sample(dut.rst):
                    return

    def expected_pages(self, records, members: dict[int, Member]) -> dict[int, bytes]:
        blocks = [(array, port, block, self.lines[line]) for array, port, block, line in records]
        return record_pages(blocks, members, first_block=OVERHEAD)

    def members(self, sound: int, trusted: set[int]) -> dict[int, Member]:
        return {
            port: Member(
                array=self.homes[port],
                trusted=self.homes[port] in trusted,
                named=self.at[port].named,
            )
            for port in PORTS
            if sound >> port & 1
        }

    async def pulse(self, signal) -> None:
        signal.value = 1
        await RisingEdge(self.dut.clk)
        signal.value = 0

    async def expose(self, array: int, by: str = "exposes") -> None:
        """Something of an array may not be stored, or is (``proven``)."""
        getattr(self.dut, f"{by}__payload").value = array
        await self.pulse(getattr(self.dut, f"{by}__valid"))
        await cycles_pass(self.dut.clk, self.random.randint(1, 3))

    async def trusted(self) -> set[int]:
        """Arrays are written to, become clean, and are flushed. Which of them may be trusted."""
        dut, choose = self.dut, self.random
        arrays = range(SIZES.arrays)
        steady = choose.getrandbits(4) | choose.getrandbits(4)
        dut.steady.value = steady
        exposed: set[int] = set()
        walked: set[int] = set()
        for _ in range(choose.randrange(13)):
            array = choose.choice(arrays)
            match choose.randrange(6):
                case 0 | 1:
                    await self.expose(array)
                    exposed.add(array)
                case 4:
                    await self.expose(array, by="unflushed")
                    walked.add(array)
                case 5:
                    await self.expose(array, by="proven")
                    walked.discard(array)
                case 2:
                    dut.clean.value = 1 << array
                    await RisingEdge(dut.clk)
                    exposed.discard(array)
                    walked.discard(array)
                    if choose.random() < 0.3:
                        await self.expose(array)
                    await RisingEdge(dut.clk)
                    dut.clean.value = 0
                    await RisingEdge(dut.clk)
                case _:
                    exposed, walked = await self._flush(exposed, walked)
        return {array for array in arrays if steady >> array & 1} - exposed - walked

    async def _flush(self, exposed: set[int], walked: set[int]) -> tuple[set[int], set[int]]:
        """The host switches the cache off, while arrays are written to. Those that stay exposed,
        and those that walks have written to."""
        dut, choose = self.dut, self.random
        dut.flushes.value = 1
        await cycles_pass(dut.clk, choose.randint(1, 5))
        later = {one for one in range(SIZES.arrays) if choose.random() < 0.3}
        for one in later:
            await self.expose(one)
        walks = {one for one in range(SIZES.arrays) if choose.random() < 0.3}
        for one in walks:
            await self.expose(one, by="unflushed")
        stores = choose.random() < 0.7
        dut.stores.value = int(stores)
        await cycles_pass(dut.clk, choose.randint(1, 3))
        dut.flushes.value = 0
        if choose.random() < 0.5:
            dut.stores.value = 0
        await cycles_pass(dut.clk, 2)
        dut.stores.value = 0
        if stores:  # of an array that is written to meanwhile, nothing is known
            both = later | walks
            return exposed & both | later, walked & both | walks
        return exposed | later, walked | walks

    def limit(self, energy: int, *, there: bool) -> int:
        """How much may be on its way."""
        if not there or energy < LEAST:
            return UNLIMITED
        return min(energy, BACKUP_BLOCKS) - OVERHEAD

    async def check_limit(self, energy: int, *, there: bool = True) -> None:
        await cycles_pass(self.dut.clk, 4)
        found = sample(self.dut.most_unwritten)
        assert found == self.limit(energy, there=there), f"energy {energy}: {found}"
        failed = not there or energy < LEAST
        assert sample(self.dut.failed) == failed, f"energy {energy}: failed is not {failed}"

    async def until(self, condition: Callable[[], bool], what: str, cycles: int) -> None:
        await wait_until(self.dut, condition, cycles=cycles, what=what)


def damage(bench: Bench, kind: str) -> None:
    """Something is wrong with the record on the flash."""
    flash, choose = bench.flash, bench.random
    if not adds_up(flash.read_block(0)):
        return
    head = Head.unpack(flash.read_block(0), most_records=MOST_RECORDS, most_lists=MOST_LISTS)
    if head is None:
        return
    lists, blocks = len(head.sums), head.records
    words = dict(enumerate(words_of(flash.read_block(0))[:-1]))
    places = {"head": [0], "list": [*range(1, 1 + lists)]}
    places["data"] = [*range(OVERHEAD, OVERHEAD + blocks)]
    places["unreadable"] = [place for some in places.values() for place in some]
    match kind:
        case "head" | "list" | "data":
            if places[kind]:
                where = choose.choice(places[kind])
                one = bytearray(flash.read_block(where))
                one[choose.randrange(BLOCK_BYTES)] ^= 1 << choose.randrange(8)
                flash.storage[where] = bytes(one)
        case "unreadable":
            flash.bad_reads = {choose.choice(places["unreadable"])}
        case "other list":
            if lists:  # an older one, that is good in itself
                where = choose.randint(1, lists)
                entries = unpack_list(flash.read_block(where))
                place = choose.randrange(min(blocks, LIST_RECORDS))
                entries[place] = replace(entries[place], block=entries[place].block ^ 1)
                flash.storage[where] = pack_list(entries)
        case "odd head":
            change = choose.choice(
                ({0: words[0] ^ 1}, {1: 2}, {2: MOST_RECORDS + 1}, {3: 4}, {2: 1 << 31})
            )
            flash.storage[0] = page(words | change)
        case "few lists":
            if lists:
                flash.storage[0] = page(words | {3: lists - 1})
        case "many records":
            flash.storage[0] = page(words | {2: min(blocks + LIST_RECORDS, MOST_RECORDS)})


async def trouble_flash(bench: Bench, kind: str) -> None:
    """The flash restarts, or goes, in the middle."""
    flash, choose, dut = bench.flash, bench.random, bench.dut
    await cycles_pass(dut.clk, choose.randrange(200, 40_000))
    if sample(dut.done):
        return
    if kind == "goes":
        bench.seen["the flash went"] += 1
        flash.remove()
    elif kind == "hangs":
        bench.seen["the flash hung"] += 1
        await bench.pulse(dut.hung)
    elif not flash.idle:
        await flash.restart()
        bench.seen["the flash restarted"] += 1


async def trouble_drive(bench: Bench, kind: str, away: set[int]) -> None:
    """A drive restarts, or goes, in the middle. Another one may come in its place."""
    choose, dut = bench.random, bench.dut
    port = choose.choice(PORTS)
    if kind == "exchanged" and choose.random() < 0.7:
        port = await offered_write(bench, port)
    elif choose.random() < 0.7:
        for _ in range(4000):
            if not bench.drives[port].idle or sample(dut.done):
                break
            await cycles_pass(dut.clk, 20)
        await cycles_pass(dut.clk, choose.choice((0, 0, choose.randrange(600))))
    else:
        await cycles_pass(dut.clk, choose.randrange(200, 40_000))
    drive = bench.drives[port]
    if not sample(dut.done) and drive.present:
        if kind == "restarts":
            if not drive.idle:
                bench.seen["a drive restarted"] += 1
                await drive.restart()
        else:
            bench.seen["a drive went"] += 1
            away.add(port)
            drive.remove()
            if kind == "exchanged":
                await exchange(bench, port)
    bench.pauses = False


async def offered_write(bench: Bench, port: int) -> int:
    """Waits until a write is offered, and is not taken. Returns its port, or ``port``."""
    dut, layout = bench.dut, operation(SIZES)
    valid, payload = dut.operation__valid, dut.operation__payload

    def offered() -> bool:
        return bool(sample(valid)) and unpack(layout, sample(payload)).opcode == Opcode.WRITE

    for _ in range(100_000):
        if sample(dut.done):
            return port
        if offered() and not sample(dut.takes):
            bench.pauses = True
            await cycles_pass(dut.clk, 3)
            if offered():
                bench.seen["a write waited"] += 1
                return unpack(layout, sample(payload)).port
            bench.pauses = False
        await RisingEdge(dut.clk)
    return port


async def exchange(bench: Bench, port: int) -> None:
    """Another drive comes in the place of one that has gone, or the same one."""
    dut, choose, drive = bench.dut, bench.random, bench.drives[port]
    await cycles_pass(dut.clk, choose.randint(2, 5))
    await wait_until(dut, lambda: drive.idle, cycles=20_000, what="its commands")
    # What the drive that went has stored is of no interest any more.
    drive.storage.clear()
    drive.insert()
    words = [choose.getrandbits(32) for _ in range(KEPT_WORDS)]
    if choose.random() < 0.3 and port in bench.at:
        words = bench.at[port].words
    for number, word in enumerate(words):
        await bench.plant(port, number, word)
    bench.know(bench.known | 1 << port)
    bench.seen["a drive was exchanged"] += 1


def shuffle_disks(bench: Bench) -> None:
    """Drives are at other ports now. One may be another one, or of another time, or missing."""
    choose = bench.random
    disks = [*bench.at.values()]
    choose.shuffle(disks)
    bench.at = dict(zip(PORTS, disks, strict=False))
    if choose.random() < 0.25:
        gone = choose.choice(PORTS)
        bench.drives[gone].remove()
        bench.seen["missing"] += 1
    if choose.random() < 0.25:
        port = choose.choice(PORTS)
        words = [*bench.at[port].words]
        words[choose.choice((*NAMED_WORDS, 50))] ^= 1 << choose.randrange(32)
        bench.at[port] = Disk(words=words)
        bench.seen["others"] += 1
    if choose.random() < 0.25:  # what else the superblock says does not matter
        port = choose.choice(PORTS)
        words = [*bench.at[port].words]
        words[choose.choice([one for one in range(KEPT_WORDS) if one not in NAMED_WORDS])] ^= 1
        bench.at[port] = Disk(words=words)
