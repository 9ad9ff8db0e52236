"""Lists of volumes on drive ports: what is written, what is read, and that the newest one lasts."""

import os
import struct
import zlib
from collections import Counter
from dataclasses import replace

import cocotb
import pytest
from amaranth.hdl import Const
from cocotb.triggers import RisingEdge

from cocotb_tests.metadata.md_array import random_array, show
from cocotb_tests.metadata.page_bench import PageBench
from cocotb_tests.metadata.page_room import SIZES, SuperblocksRoom
from cocotb_tests.metadata.superblock_pages import SECTORS
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    pack,
    sample,
    start,
    wait_until,
)
from hdl.config import BLOCK_BYTES
from hdl.flow.operation import DriveStatus
from hdl.flow.table_read import volume
from hdl.flow.volume_facts import volume_facts
from hdl.metadata.superblock import BLOCK
from hdl.metadata.superblock_writer import Edit
from hdl.metadata.superblocks import Superblocks, edited, member_edit
from hdl.metadata.volume_list import ListWord, listed_volume
from hdl.metadata.volume_list_reader import VolumeListReader
from hdl.metadata.volume_list_writer import VolumeListWriter
from sim.golden.superblock import Superblock
from sim.golden.volume_list import BLOCKS, MOST_VOLUMES, Volume, VolumeList, newest

VOLUME, FACTS, LISTED = volume(SIZES), volume_facts(), listed_volume()


class Bench(PageBench):
    """Drives that may be members of one array, and the volumes of the card."""

    def __init__(self, dut, *, seed: int):
        super().__init__(dut, seed=seed, name="lists")
        self.edits = StreamSource(dut, "edit", layout=member_edit(SIZES))
        self.done = StreamSink(dut, "done", layout=edited(SIZES), active=0.3)
        self.looks = StreamSource(dut, "lists__look")
        self.entries = StreamSink(dut, "lists__entries", layout=LISTED, active=0.3)
        self.array = random_array(self.random)
        self.number = self.random.randrange(SIZES.arrays)
        self.identity = dut.identity.value = self.random.getrandbits(64)
        self.generation = 1 << self.random.randrange(3, 62)
        self.volumes: dict[int, tuple[int, Volume]] = {}
        self.detached = dut.detached.value = 0
        self.unsure: set[int] = set()  # ports of drives whose lists have not all been read
        self.seen: Counter = Counter()

    def some_volume(self) -> Volume:
        """Any."""
        wide = self.random.choice((10, 40))
        start, blocks, count = (self.random.getrandbits(wide) for _ in range(3))
        sectors = self.random.random() < 0.5
        own, coarse = self.random.getrandbits(64), sectors and self.random.random() < 0.5
        detached = self.random.random() < 0.5
        return Volume(start, blocks, own, count, sectors, coarse, detached)

    def some_list(self) -> VolumeList:
        """A list of this array from before, with volumes of any number."""
        numbers = self.random.sample(range(MOST_VOLUMES), self.random.choice((0, 1, 5, 64)))
        generation = self.random.randrange(self.generation - 6, self.generation)
        volumes = {number: self.some_volume() for number in numbers}
        return VolumeList(self.array.set_uuid, generation, self.random.getrandbits(64), volumes)

    def some_page(self) -> bytes:
        """A list of the array in most cases, else another, a damaged or a hostile one."""
        one = self.some_list()
        page = bytearray(one.pack())
        match self.random.randrange(11):
            case 0:
                return bytes(BLOCK_BYTES)
            case 1:
                return self.random.randbytes(BLOCK_BYTES)
            case 2:  # a bit has changed
                page[self.random.randrange(BLOCK_BYTES)] ^= 1 << self.random.randrange(8)
            case 3:  # another array's, by a single bit
                uuid = bytearray(one.set_uuid)
                uuid[self.random.randrange(16)] ^= 1 << self.random.randrange(8)
                return VolumeList(bytes(uuid), one.generation, one.owner, one.volumes).pack()
            case 4:  # another magic or version
                page[self.random.randrange(8)] ^= 1 << self.random.randrange(8)
                page[-4:] = struct.pack("<I", zlib.crc32(page[:-4]))
            case 6:  # it has had too many before it
                return replace(one, generation=one.generation | 1 << 63).pack()
            case 5:  # torn
                other = self.some_list().pack()
                at = 512 * self.random.randint(1, 7)
                return bytes(page[:at]) + other[at:]
        return bytes(page)

    async def change_volume(self) -> None:
        """A volume of the card comes, goes or becomes another."""
        number = self.random.randrange(SIZES.volumes)
        array, one = self.number, self.some_volume()
        if self.random.random() < 0.3:
            array = self.random.randrange(SIZES.arrays)
        valid = self.random.random() < 0.8
        self.volumes.pop(number, None)
        if valid:
            self.volumes[number] = array, one
        place = {"array": array, "start": one.start, "blocks": one.blocks}
        name = {"own": one.own, "count": one.count}
        dut = self.dut
        self.detached = self.detached & ~(1 << number) | one.detached << number
        dut.detached.value = self.detached
        for port, layout, fields in (
            (dut.volume__data, VOLUME, {"valid": valid} | place),
            (
                dut.volume_facts__data,
                FACTS,
                {"name": name, "sectors": one.sectors, "coarse": one.coarse},
            ),
        ):
            port.value = pack(layout, **fields)
        for table in ("volume", "volume_facts"):
            getattr(dut, f"{table}__address").value = number
            getattr(dut, f"{table}__enable").value = 1
            await RisingEdge(dut.clk)
            getattr(dut, f"{table}__enable").value = 0

    def expected(self) -> VolumeList:
        """The list of the array."""
        own = {n: one for n, (array, one) in self.volumes.items() if array == self.number}
        return VolumeList(self.array.set_uuid, self.generation, self.identity, own)

    def pages(self, port: int) -> list[bytes]:
        """Both copies of a drive."""
        return [self.drives[port].read_block(block) for block in BLOCKS]

    async def write(self, port: int) -> None:
        """The list is written to a drive, which may refuse it."""
        drive, choose = self.drives[port], self.random
        await wait_until(
            self.dut, lambda: sample(self.dut.known) >> port & 1, cycles=40_000, what="known"
        )
        before, held = self.pages(port), newest(self.pages(port), self.array.set_uuid)
        drive.bad_writes = {choose.choice((*BLOCKS, BLOCK))} if choose.random() < 0.3 else set()
        drive.error = DriveStatus.MEDIUM_ERROR
        self.array.happens(choose)
        show(self.dut, SIZES, self.array)
        self.generation += 1
        self.dut.generation.value = self.generation
        commands = drive.counts.commands
        edit = {"edit": Edit.MAKE, "port": port, "role": choose.randrange(self.array.width)}
        self.edits.send(superblock=edit, lists=1, array=self.number)
        end = await self.done.receive(cycles=60_000)
        assert end.port == port
        status = end.status
        after = self.pages(port)
        if held is not None:
            last = before.index(held.pack()) if before.count(held.pack()) == 1 else None
            lasts = last is None or after[last] == before[last]
            assert lasts or port in self.unsure, "the newest list is gone"
        done = drive.counts.history[commands:]
        assert all(what[0] == "READ" or what[3] for what in done), f"{done}: one without FUA"
        if status == DriveStatus.GOOD:
            found = newest(after, self.array.set_uuid)
            assert found == self.expected(), (found, self.expected())
            one = Superblock.unpack(drive.storage[BLOCK], sectors=SECTORS)
            assert found is not None and one.events == self.array.events
        else:
            assert drive.bad_writes
            self.seen["refused"] += 1
        drive.bad_writes = set()
        if status == DriveStatus.GOOD:
            self.unsure.discard(port)
            self.seen["written"] += 1

    async def look(self, ports: list[int]) -> None:
        """Drives are looked at, and the newest of their lists is given. Another one may come in the
        place of one of them, and its lists do not count."""
        dut, pages = self.dut, []
        known = sum(1 << port for port in ports)
        await wait_until(
            dut, lambda: sample(dut.known) & known == known, cycles=40_000, what="known"
        )
        gone = ports[0] if self.random.random() < 0.2 and ports else None
        mine: list[bytes] = []
        trouble = None
        await self._pulse(dut.lists__begin)
        dut.lists__set_uuid.value = int.from_bytes(self.array.set_uuid, "little")
        for port in ports:
            self.looks.send(port)
            bad = self.drives[port].bad_reads
            (self.unsure.add if bad or port == gone else self.unsure.discard)(port)
            good = zip(BLOCKS, self.pages(port), strict=True)
            (mine if port == gone else pages).extend(p for block, p in good if block not in bad)
        if gone is not None:
            trouble = cocotb.start_soon(self._exchange(gone))
        idle = dut.lists__look__ready
        await cycles_pass(dut.clk, 4)
        await wait_until(
            dut,
            lambda: sample(idle) and not sample(dut.lists__look__valid),
            cycles=60_000 * len(ports),
            what="all looked at",
        )
        if trouble is not None:
            await trouble
        told = bool(sample(dut.lists__seen)), sample(dut.lists__owner)
        await self._pulse(dut.lists__give)
        found: dict[int, Volume] = {}
        while (entry := await self.entries.receive(cycles=2000)).valid:
            facts = entry.facts
            assert entry.number not in found
            found[entry.number] = Volume(
                entry.start,
                entry.blocks,
                facts.name.own,
                facts.name.count,
                bool(facts.sectors),
                bool(facts.coarse),
                bool(entry.detached),
            )
        # Of a drive that has gone some lists may have been seen before that, as the first ones.
        seen = [[], mine, mine[:1]] if gone is not None else [[]]
        wanted = [newest(some + pages, self.array.set_uuid) for some in seen]
        fits = [
            one
            for one in wanted
            if found == (one.volumes if one else {})
            and told[0] == (one is not None)
            and (one is None or one.owner == told[1])
        ]
        assert fits, (found, told, wanted)
        self.seen["exchanged"] += gone is not None
        self.seen["volumes read"] += len(found)
        self.seen["no list"] += not any(wanted)

    async def _exchange(self, port: int) -> None:
        """A drive goes, and one with newer lists comes in its place."""
        drive, choose = self.drives[port], self.random
        await cycles_pass(self.dut.clk, 4 + choose.randrange(8_000))
        drive.remove()
        await cycles_pass(self.dut.clk, choose.randint(1, 4))
        await wait_until(self.dut, lambda: drive.idle, cycles=3000, what="its commands")
        for block in BLOCKS:
            one = replace(self.some_list(), generation=self.generation)
            drive.storage[block] = replace(one, volumes={7: self.some_volume()}).pack()
        drive.insert()

    async def _pulse(self, signal) -> None:
        signal.value = 1
        await RisingEdge(self.dut.clk)
        signal.value = 0
        await RisingEdge(self.dut.clk)


@cocotb.test(timeout_time=400, timeout_unit="ms")
async def lists_are_what_they_were(dut):
    """Lists are written and read while drives refuse blocks, hold nonsense, and come and go."""
    bench = Bench(dut, seed=cocotb.RANDOM_SEED)
    choose = bench.random
    show(dut, SIZES, bench.array)
    await start(dut)
    await bench.look([0])
    for _ in range(int(os.environ["ROUNDS"])):
        for _ in range(choose.randint(0, 4)):
            await bench.change_volume()
        port = choose.randrange(SIZES.ports)
        drive = bench.drives[port]
        if choose.random() < 0.5:
            for block in BLOCKS:
                drive.storage[block] = bench.some_page()
            drive.bad_reads = {choose.choice(BLOCKS)} if choose.random() < 0.2 else set()
            ports = choose.sample(range(SIZES.ports), choose.randint(0, SIZES.ports))
            await bench.look(list({*ports, port}))
            drive.bad_reads = set()
        for _ in range(choose.randint(1, 3)):
            await bench.write(port)
        await bench.look([port])
    seen = bench.seen
    for what in ("refused", "written", "volumes read", "no list", "exchanged"):
        assert seen[what] or int(os.environ["ROUNDS"]) < 30, f"never seen: {what}"
    await wait_until(dut, lambda: not sample(dut.busy), cycles=40_000, what="rest")


class KeepsTheOldest(VolumeListReader):
    """A planted bug: of two lists the older one counts."""

    @property
    def _is_newer(self):
        return self._read_generation < self.generation


class BelievesTheDamaged(VolumeListReader):
    """A planted bug: a list with a wrong CRC counts."""

    @property
    def _sums_up(self):
        return Const(1)


class TakesAnyArray(VolumeListReader):
    """A planted bug: only the first word of the identity is looked at."""

    @property
    def _wanted(self):
        ignored = range(ListWord.SET_UUID + 1, ListWord.SET_UUID + 4)
        return {place: word for place, word in super()._wanted.items() if place not in ignored}


class BelievesTheExchanged(VolumeListReader):
    """A planted bug: the lists of a drive count that has come in the place of another."""

    @property
    def _leaves(self):
        return Const(0)


class ListsAll(VolumeListWriter):
    """A planted bug: volumes of all arrays are listed."""

    @property
    def _is_listed(self):
        return self._volume.valid


class WritesOver(Superblocks):
    """A planted bug: a list goes to the copy that holds the newest one."""

    def _connect_lists(self, m):
        super()._connect_lists(m)
        port = self.edit.payload.superblock.port
        m.d.comb += self._list_writer.edit.payload.copy.eq(self._newest.bit_select(port, 1))


class WritesTheSuperblockFirst(Superblocks):
    """A planted bug: a superblock is written though its list has not been."""

    @property
    def _list_is_stored(self):
        return Const(1)


def with_part(name: str, part) -> type:
    """`Superblocks` with another part."""

    class Other(Superblocks):
        def __init__(self, *, config):
            super().__init__(config=config)
            setattr(self, name, part(config=config))

    return Other


BUGS = {
    "KeepsTheOldest": with_part("_lists", KeepsTheOldest),
    "BelievesTheDamaged": with_part("_lists", BelievesTheDamaged),
    "TakesAnyArray": with_part("_lists", TakesAnyArray),
    "BelievesTheExchanged": with_part("_lists", BelievesTheExchanged),
    "ListsAll": with_part("_list_writer", ListsAll),
    "WritesOver": WritesOver,
    "WritesTheSuperblockFirst": WritesTheSuperblockFirst,
}


def run(component, name: str, *, rounds: int) -> None:
    simulate(component, name=name, module=__name__, parameters={"ROUNDS": str(rounds)})


def test_volume_lists():
    run(SuperblocksRoom(config=SIZES), "volume_lists", rounds=14)


@pytest.mark.slow
def test_volume_lists_for_long():
    run(SuperblocksRoom(config=SIZES), "volume_lists_long", rounds=400)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_volume_lists_planted_bugs_are_found(bug):
    room = SuperblocksRoom(config=SIZES, superblocks=BUGS[bug])
    with pytest.raises(SimulationError, match="failed: lists_are_what_they_were"):
        run(room, f"volume_lists_{bug}", rounds=60)
