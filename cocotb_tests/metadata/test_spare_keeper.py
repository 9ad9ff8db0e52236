"""`hdl.metadata.spare_keeper.SpareKeeper`: drives say that they are hot spares while they are."""

import random
from collections import Counter
from dataclasses import dataclass, field
from os import environ
from typing import Any

import cocotb
import pytest
from amaranth.hdl import Const, Module, Value
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    TableServer,
    cycles_pass,
    pack,
    sample,
    start,
    unpack,
)
from hdl.config import DATA_OFFSET_BLOCKS, MAX_DRIVES, Config
from hdl.flow.geometry import Level, geometry
from hdl.flow.manage import ManageOpcode, ManageStatus, manage_request, manage_response
from hdl.flow.operation import DriveStatus
from hdl.metadata.records import record
from hdl.metadata.spare_keeper import GLOBAL, SpareKeeper, known_spare
from hdl.metadata.superblock_facts import SuperblockFacts
from hdl.metadata.superblock_writer import Edit
from hdl.metadata.superblocks import member_edit

CONFIG = Config(ports=5, arrays=8, metadata=True)
PORTS, ARRAYS = range(CONFIG.ports), range(6)
IDENTITY = 0x1122_3344_5566_7788
ROWS = 64
CAPACITY = DATA_OFFSET_BLOCKS + ROWS
NESTED, LONG, LINUX, ORPHAN = 2, 3, 4, 5
"""Arrays that a superblock cannot express, that end beyond the drives, that Linux has made, and
that Linux has made and of which no superblock is kept."""

FORGOTTEN = (LONG, ORPHAN)
"""Arrays whose spares are not written."""

CHANGES = 320
SETTLE = 4
"""Cycles in which the block hears of what has just happened."""

READ = 20
"""Cycles after which it is known what a drive says that has come."""

MOST_CYCLES = 4_000
"""For an answer."""

LONGEST = 400
"""Cycles after which a drive says what it is."""

REQUEST, RESPONSE = manage_request(CONFIG), manage_response(CONFIG)


@dataclass(eq=False)
class Drive:
    """A drive. ``page`` is what its superblock says: the set that it is a spare of, or None.
    ``asked``: the host has made it a spare at some time, or it was one already. ``made``: that page
    says so, and the block knows."""

    page: int | None = None
    asked: bool = False
    made: bool = False


@dataclass
class Port:
    """A port, and what the tables and the supervisor know of it. ``home`` is the array that its
    spare is for. ``was`` is what it has been since the block began to write. ``calm`` counts cycles
    since something happened to it, and ``wrong`` those in which its drive has not said what is so.
    In cycle ``owned_at`` it was the keeper's for the last time. A ``broken`` drive has been given
    up."""

    drive: Drive = field(default_factory=Drive)
    present: bool = True
    used: bool = False
    spare: bool = False
    home: int | None = None
    refuses: bool = False
    broken: bool = False
    failed: bool = False
    owned: bool = False
    was: set[bool] = field(default_factory=set)
    calm: int = 0
    owned_at: int = -1
    wrong: int = 0

    @property
    def is_others(self) -> bool:
        """It is not the host's to clear."""
        return self.used or self.spare or self.owned

    @property
    def is_known(self) -> bool:
        """It has been read what its drive says."""
        return self.present and self.calm > READ

    @property
    def is_blank(self) -> bool:
        """It says nothing."""
        return self.is_known and self.drive.page is None

    @property
    def is_kept(self) -> bool:
        """It is a spare, and its drive has to say so."""
        kept = self.spare and self.present and not (self.used or self.failed or self.owned)
        return kept and self.home not in FORGOTTEN


class Bench:
    """The card around the block, and the host."""

    def __init__(self, dut, active: float):
        self.random = random.Random(environ["SEED"])
        self.dut = dut
        self.seen: Counter = Counter()
        self.ports = [Port() for _ in PORTS]
        self.sets = [self.random.getrandbits(128) for _ in ARRAYS]
        self.host = StreamSource(dut, "changes__request", active=active)
        self.answers = StreamSink(dut, "changes__response", layout=RESPONSE, active=active)
        self.made = StreamSource(dut, "passed__response", layout=RESPONSE, active=active)
        self.asked = StreamSink(dut, "passed__request", active=active, callback=self._begin)
        self.edits = StreamSink(
            dut, "edit", layout=member_edit(CONFIG), active=active, callback=self._edit,
            ignores={"array": "no list is written", "superblock.page": "only those of ERASE"},
        )
        self.done = StreamSource(dut, "done", active=active)
        TableServer(dut, "geometry_read", self._geometry)
        TableServer(dut, "record_read", self._record)
        self.watch = BusyWatch(
            dut,
            ["changes__request", "passed__response", "done"],
            ["changes__response", "passed__request", "edit"],
            others=lambda: (sample(dut.spares), sample(dut.yields), sample(dut.holds),
                            sample(dut.tries), sample(dut.drives__present),
                            sample(dut.drives__used), sample(dut.found__valid),
                            sample(dut.owned), sample(dut.known), sample(dut.blank)),
        )
        # Where superblocks are kept that those of spares may be like.
        self.models = self.random.choices(PORTS, k=CONFIG.arrays)
        sound = self.random.getrandbits(CONFIG.ports) | 1 << self.models[LINUX]
        has_model = self.random.getrandbits(CONFIG.arrays) | 1 << LINUX
        self.models[ORPHAN] = next((n for n in PORTS if not sound >> n & 1), 0)
        if sound >> self.models[ORPHAN] & 1:
            has_model &= ~(1 << ORPHAN)
        dut.sound.value, dut.has_model.value = sound, has_model
        TableServer(dut, "model_read", lambda array: self.models[array])
        self.quiet = False  # nothing happens by itself any more
        self._change: Any = None  # the host's change that is being made
        self._asked = 0  # it, as it was asked for
        self._stay = False  # no drive goes
        # The port of which the host has the drive cleared, and the drive that was there; how often
        # the block said that one has been.
        self._clears: Port | None = None
        self._cleared: Drive | None = None
        self._pulses = 0
        self._exchanges: Port | None = None  # whose drive is exchanged as it is to be cleared
        self._told: tuple = ()  # how it ended, and what else was told
        self._cycles = 0
        self._edits = False
        self._gone = False  # the drive of an edit that is offered
        self._pauses = False
        dut.identity.value = IDENTITY
        dut.kept.value = (1 << CONFIG.arrays) - 1
        for port in PORTS:
            getattr(dut, f"capacity__{port}").value = CAPACITY
        cocotb.start_soon(self._watch())

    # What the block reads and writes

    def _geometry(self, array: int) -> int:
        spans = 2 if array == NESTED else 1
        data_offset = DATA_OFFSET_BLOCKS + (ROWS if array == LONG else array)
        return pack(geometry(CONFIG), valid=1, level=Level.RAID5, width=3 + array, spans=spans,
                    parities=1, copies=1, strip_shift=4, rows=ROWS - array,
                    data_offset=data_offset)  # fmt: skip

    def _record(self, array: int) -> int:
        made_by_md = array in (LINUX, ORPHAN)
        return pack(record(), set_uuid=self.sets[array], events=99, made_by_md=made_by_md)

    def _set(self, home: int | None) -> int:
        """The set that a spare must say it belongs to."""
        return IDENTITY | GLOBAL << 64 if home is None else self.sets[home]

    def _edit(self, edit) -> None:
        """The block writes."""
        assert not self._edits and sample(self.dut.pauses), "nobody lets it write"
        assert not edit.lists
        block = edit.superblock
        port = self.ports[block.port]
        makes = block.edit == Edit.MAKE
        assert makes or block.edit == Edit.ERASE
        forgotten = port.spare and port.home in FORGOTTEN
        assert makes in port.was or (forgotten and not makes), f"{port} is not to be written"
        # A drive that has come since the edit is offered is not written.
        clears = port is self._clears and port.drive is self._cleared
        assert port.drive.asked or self._gone or clears, f"{port} holds what nobody knows"
        self.seen["cleared"] += clears
        assert not (port.used or port.owned), f"{port} is the keeper's"
        facts = unpack(SuperblockFacts, sample(self.dut.facts))
        if makes:
            home = next((n for n in ARRAYS if self.sets[n] == facts.set_uuid), None)
            assert facts.set_uuid == self._set(home)
            assert facts.events == 0 and block.role >= facts.width
            assert block.role - facts.width == block.port
            if home is not None:
                shape = unpack(geometry(CONFIG), self._geometry(home))
                assert (facts.level, facts.width, facts.rows) == (5, shape.width, shape.rows)
                assert facts.data_offset == shape.data_offset
                assert (facts.place.span, facts.place.last) == (0, shape.spans - 1)
                assert home not in FORGOTTEN, "it is forgotten anyway"
            assert block.like == (home == LINUX)
            if home == LINUX:
                assert block.model == self.models[LINUX], "it is like another drive"
                self.seen["like those of Linux"] += 1
            self.seen["made"] += 1
        self.seen["erased"] += not makes
        self._edits = True
        cocotb.start_soon(self._write(port, facts.set_uuid if makes else None))
        if not self.quiet and self.random.random() < 0.1:
            cocotb.start_soon(self._exchange(port))

    async def _write(self, port: Port, page: int | None) -> None:
        """The drive stores a page, or does not."""
        drive, gone = port.drive, self._gone or not port.present
        for _ in range(self.random.choice((0, 1, 5, 60))):
            await RisingEdge(self.dut.clk)
            gone = gone or not port.present or port.drive is not drive
        status = DriveStatus.GOOD
        if gone:
            status = DriveStatus.GONE
            self.seen["gone"] += 1
        elif port.refuses or port.broken:
            status = DriveStatus.MEDIUM_ERROR
            port.failed = True
            self.seen["refused"] += 1
        else:
            drive.page, drive.made, port.failed = page, page is not None, False
        self.done.send(status.value)
        self._edits = False

    # What the host asks for, and the supervisor does

    def _begin(self, change: int) -> None:
        assert self._change is None and change == self._asked, "nobody has asked for that"
        assert self._clears is None, "the tables do not clear drives"
        self._change = unpack(REQUEST, change)

    async def _make(self) -> None:
        """Makes a change."""
        change, ports = self._change, self.ports
        await cycles_pass(self.dut.clk, self.random.choice((0, 0, 2, 30)))
        status, port = ManageStatus.DONE, ports[change.port % CONFIG.ports]
        if change.opcode == ManageOpcode.ADD_SPARE:
            if port.used or port.spare or not port.present:
                status = ManageStatus.DRIVE_UNAVAILABLE
            else:
                port.spare, port.drive.asked = True, True
                port.home = change.array if change.dedicated else None
        elif change.opcode == ManageOpcode.REMOVE_SPARE:
            if not port.spare:
                status = ManageStatus.NO_ENTRY
            port.spare = False
        elif change.opcode == ManageOpcode.DELETE_ARRAY:
            for one in ports:
                if one.spare and one.home == change.array:
                    one.spare = False
        await cycles_pass(self.dut.clk, self.random.choice((0, 1, 3)))
        index = self.random.getrandbits(8)
        self.made.send(status=status, index=index)
        self._change, self._told = None, (status, index)

    async def _joins(self, port: Port) -> None:
        """A spare steps in, or is not taken. Its drive gets zeros before."""
        dut, drive = self.dut, port.drive
        port.spare, self._tries = False, True
        await cycles_pass(dut.clk, self.random.randrange(5))
        await self._table_change()
        wiped = port.present and self.random.random() < 0.7
        if wiped:
            dut.wiped__payload.value = self.ports.index(port)
            dut.wiped__valid.value = 1
            port.drive.page, port.drive.made = None, False
            await RisingEdge(dut.clk)
            dut.wiped__valid.value = 0
        await cycles_pass(dut.clk, self.random.randrange(4))
        if port.present and wiped and self.random.random() < 0.5:
            port.used = True
            self.seen["stepped in"] += 1
        elif port.present and port.drive is drive and port.calm > SETTLE:
            port.spare = True
            self.seen["not taken"] += 1
        await cycles_pass(dut.clk, 2)
        self._tries = self._changes = False

    async def _leaves(self, port: Port) -> None:
        """A member leaves its array. Its drive has zeros then, and may become a spare."""
        await self._table_change()
        port.used, port.owned = False, True
        if port.present and self.random.random() < 0.5:
            port.spare, port.home, port.drive.asked = True, None, True
            self.seen["left as a spare"] += 1
        await cycles_pass(self.dut.clk, 2)
        self._changes = False
        cocotb.start_soon(self._gives_up(port))

    async def _gives_up(self, port: Port) -> None:
        """The keeper may keep what the drive of a former member says, for as long as it likes."""
        await cycles_pass(self.dut.clk, self.random.choice((0, 10, 300)))
        port.drive.page, port.drive.made = None, False
        port.owned = False

    async def _table_change(self) -> None:
        """The tables begin a change, which waits while the block writes."""
        self._changes = True
        while True:
            await RisingEdge(self.dut.clk)
            if not sample(self.dut.pauses) and not sample(self.dut.yields):
                return

    async def _exchange(self, port: Port) -> None:
        """The drive goes. It comes back, or another one does, which may say anything."""
        if port.used or not port.present or self._stay:
            return
        port.present, port.calm = False, 0
        await cycles_pass(self.dut.clk, 2)
        port.spare = False
        await cycles_pass(self.dut.clk, self.random.choice((0, 3, 40)))
        if self.random.random() < 0.5:
            sets = (self._set(None), self.sets[0], self.sets[LINUX])
            page = self.random.choice((None, *sets, *sets, 1234))
            port.drive = Drive(page=page)
            self.seen["other drives"] += 1
        port.refuses = port.failed = port.broken = port.drive.made = False
        port.present, port.calm = True, 0

    async def _look(self) -> None:
        """Drives that have come are looked at. Those that say that they are spares become that."""
        dut = self.dut
        if self._change is not None:
            await self._make()
        for number, port in enumerate(self.ports):
            await cycles_pass(dut.clk, 2)
            claimed = sample(dut.claimed) >> number & 1
            home = {self._set(home): home for home in (None, *ARRAYS)}.get(port.drive.page, -1)
            calm = port.calm > SETTLE and port.present and not (port.used or port.spare)
            if claimed or home == -1 or not calm or port.owned:
                continue
            port.spare, port.home, port.drive.asked = True, home, True
            await cycles_pass(dut.clk, 2)
            if port.spare and port.calm > SETTLE:
                dedicated = home is not None
                dut.found__payload.value = pack(
                    known_spare(CONFIG), port=number, dedicated=dedicated, array=home or 0
                )
                dut.found__valid.value = 1
                self.seen["found"] += 1
                port.drive.made = True
                await RisingEdge(dut.clk)
                dut.found__valid.value = 0

    async def happen(self) -> None:
        """Things happen by themselves, one after the other."""
        choose = self.random
        self._tries = self._changes = self._holds = False
        while True:
            await RisingEdge(self.dut.clk)
            if self._change is not None and not self._changes:
                await self._make()
            elif self.quiet:
                continue
            elif (what := choose.random()) < 0.01:
                port = choose.choice(self.ports)
                if port.spare and port.present:
                    await self._joins(port)
                elif port.used:
                    await self._leaves(port)
            elif what < 0.014:
                self._holds = True
                await cycles_pass(self.dut.clk, 2)
                await self._look()
                self._holds = False
            elif what < 0.018:
                choose.choice(self.ports).refuses ^= True
            elif what < 0.019:
                port = choose.choice(self.ports)
                port.broken |= not port.is_others
            elif port := self._exchanges:
                # The drive is exchanged while drives are being looked at.
                self._holds, self._exchanges = True, None
                await cycles_pass(self.dut.clk, choose.choice((8, 20)))
                await self._exchange(port)
                await cycles_pass(self.dut.clk, READ + 5)
                self._holds = False

    async def exchange(self) -> None:
        """Drives go and come, whatever else happens."""
        while not self.quiet:
            await cycles_pass(self.dut.clk, self.random.randrange(600))
            await self._exchange(self.random.choice(self.ports))

    async def _watch(self) -> None:
        """Shows the block what is so, and looks at when it begins to write."""
        dut, shown = self.dut, {}
        self._tries = self._changes = self._holds = False

        def show(name: str, value: int) -> None:
            if shown.get(name) != value:
                shown[name] = value
                getattr(dut, name).value = value

        for name in ("wiped__valid", "wiped__payload", "found__valid", "found__payload"):
            show(name, 0)
        while True:
            show("spares", sum(port.spare << n for n, port in enumerate(self.ports)))
            show("drives__used", sum(port.used << n for n, port in enumerate(self.ports)))
            show(
                "drives__failed",
                sum((not p.present or p.broken) << n for n, p in enumerate(self.ports)),
            )
            show("drives__present", sum(port.present << n for n, port in enumerate(self.ports)))
            show("owned", sum(port.owned << n for n, port in enumerate(self.ports)))
            show("known", sum(port.is_known << n for n, port in enumerate(self.ports)))
            show("blank", sum(port.is_blank << n for n, port in enumerate(self.ports)))
            show("tries", int(self._tries))
            show("holds", int(self._holds))
            show("yields", int(not self._changes and (self.quiet or self.random.random() < 0.7)))
            self.asked.paused = self._holds or self._changes
            await RisingEdge(dut.clk)
            self._cycles += 1
            # An edit is for the drive that is there as it is offered.
            offered = unpack(member_edit(CONFIG), sample(dut.edit__payload)).superblock.port
            gone = self._gone or not self.ports[offered % CONFIG.ports].present
            self._gone = bool(sample(dut.edit__valid)) and gone
            self._pulses += sample(dut.cleared)
            pauses = bool(sample(dut.pauses))
            if pauses and not self._pauses:
                assert shown["yields"] and not shown["holds"] and not shown["tries"], shown
            for port in self.ports:
                port.calm += 1
                if port.owned:
                    port.owned_at = self._cycles
                if not pauses:
                    port.was.clear()
                port.was.add(port.spare)
                is_wrong = port.is_kept and port.drive.page != self._set(port.home)
                if not self._tries:
                    port.wrong = port.wrong + 1 if is_wrong else 0
                assert port.wrong < LONGEST, f"{port} is not written"
            self._pauses = pauses

    async def ask(self) -> None:
        """The host asks for a change, and is answered once that is so."""
        choose = self.random
        opcode = choose.choices(
            (ManageOpcode.ADD_SPARE, ManageOpcode.REMOVE_SPARE, ManageOpcode.DELETE_ARRAY,
             ManageOpcode.CREATE_VOLUME, ManageOpcode.FOREIGN),
            (5, 3, 1, 1, 3),
        )[0]  # fmt: skip
        number, array = choose.choice(PORTS), choose.choice(ARRAYS)
        self._asked = pack(
            REQUEST, opcode=opcode, port=number, array=array, dedicated=choose.random() < 0.5,
            volume=choose.randrange(CONFIG.volumes), drives=choose.getrandbits(32),
            clear=opcode == ManageOpcode.FOREIGN,
        )  # fmt: skip
        if opcode == ManageOpcode.FOREIGN:
            free = [n for n in PORTS if not self.ports[n].is_others]
            says = [n for n in free if self.ports[n].drive.page]
            await self._clear(choose.choice([*says, *says, number]))
            return
        self.host.send(self._asked)
        before = self._cycles
        answer = await self.answers.receive(cycles=MOST_CYCLES)
        port = self.ports[number]
        done = answer.status == ManageStatus.DONE
        self.seen[f"{opcode.name} {answer.status.name}"] += 1
        status, index = self._told
        assert answer.index == index
        if port.calm <= self._cycles - before + SETTLE or self._changes:
            return
        if answer.status != status:
            assert answer.status == ManageStatus.DRIVE_UNAVAILABLE
            assert port.failed or port.owned_at >= before, port
        if opcode == ManageOpcode.ADD_SPARE and done and not port.used and port.spare:
            forgotten = port.home in FORGOTTEN
            assert forgotten or port.drive.page == self._set(port.home), port
        if opcode == ManageOpcode.REMOVE_SPARE and done and not port.spare:
            assert not port.drive.made, port
        if opcode == ManageOpcode.REMOVE_SPARE and port.failed and not port.is_others:
            self.seen["a spare cleared that had refused"] += 1
            await self._clear_again(number)

    async def _clear(self, number: int) -> None:
        """The host has a drive cleared, or is told why not. A port may be none."""
        port = self.ports[number]
        self._asked = pack(REQUEST, opcode=ManageOpcode.FOREIGN, port=number, clear=1)
        if self.random.random() < 0.1:
            number = self.random.choice((CONFIG.ports, 7, number + 8, number + 16, number + 248))
            self._asked = pack(REQUEST, opcode=ManageOpcode.FOREIGN, port=number, clear=1)
        beyond = number >= CONFIG.ports
        self._clears = None if beyond else port
        before, drive, was_kept = self._cycles, port.drive, port.is_others
        self._cleared, page, cleared = drive, drive.page, self.seen["cleared"]
        pulses = self._pulses
        if self.random.random() < 0.1 and not self._stay:
            port.refuses = True
        if self.random.random() < 0.15 and not self._stay:
            self._exchanges = port
            while not self._holds:
                await RisingEdge(self.dut.clk)
            self.seen["exchanged before it was cleared"] += 1
        self.host.send(self._asked)
        answer = await self.answers.receive(cycles=MOST_CYCLES)
        self._clears = None
        status = answer.status
        self.seen[f"clear {status.name}"] += 1
        assert answer.index == answer.drives == 0
        assert self._pulses - pulses == (status == ManageStatus.DONE)
        written = self.seen["cleared"] > cleared
        if beyond:
            assert status == ManageStatus.DRIVE_UNAVAILABLE
            return
        if port.calm <= self._cycles - before + SETTLE or port.drive is not drive:
            return
        away = not port.present
        if status == ManageStatus.IN_USE:
            assert was_kept or port.is_others or port.owned_at >= before, port
        elif status == ManageStatus.DRIVE_UNAVAILABLE:
            assert away or port.failed or port.broken or port.owned_at >= before, port
            if port.failed and self.random.random() < 0.7:
                await self._clear_again(number)
        else:
            assert status in (ManageStatus.DONE, ManageStatus.NO_ENTRY)
            assert not away and not (was_kept and port.is_others) and drive.page is None, port
            blank = page is None and not written
            assert written or blank, f"{port} has been written by others"
            assert (status == ManageStatus.NO_ENTRY) == blank, port

    async def _clear_again(self, number: int) -> None:
        """The host has a drive cleared that has refused what was to be written."""
        self.ports[number].refuses, self._stay = False, True
        self.seen["cleared once more"] += 1
        await self._clear(number)
        self._stay = False

    async def check_rest(self) -> None:
        """Once nothing happens any more each drive says what it is, unless it has refused that."""
        self.quiet = True
        await cycles_pass(self.dut.clk, 1_000)
        for port in self.ports:
            port.refuses = False
            if port.is_kept:
                assert port.drive.page == self._set(port.home), port
                self.seen["spares in the end"] += 1
            elif not (port.spare or port.failed or port.used or port.owned) and port.present:
                assert not port.drive.made, port
        assert not sample(self.dut.pauses) and not sample(self.dut.busy)


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(active=[1.0, 0.5])
async def drives_say_what_they_are(dut, active):
    bench = Bench(dut, active)
    await start(dut)
    cocotb.start_soon(bench.happen())
    cocotb.start_soon(bench.exchange())
    for _ in range(CHANGES):
        await bench.ask()
        await cycles_pass(dut.clk, bench.random.randrange(80))
    await bench.check_rest()
    bench.watch.check()
    print(dict(bench.seen))
    wanted = ("made", "erased", "gone", "refused", "stepped in", "not taken", "left as a spare",
              "other drives", "found", "like those of Linux", "ADD_SPARE DRIVE_UNAVAILABLE",
              "REMOVE_SPARE DONE", "cleared", "clear DONE", "clear IN_USE", "clear NO_ENTRY",
              "clear DRIVE_UNAVAILABLE", "cleared once more",
              "exchanged before it was cleared")  # fmt: skip
    assert not [what for what in wanted if not bench.seen[what]], bench.seen


def test_spare_keeper():
    simulate(SpareKeeper(config=CONFIG), name="spare_keeper", module=__name__)


class AnswersAtOnce(SpareKeeper):
    """Planted bug: an answer does not wait for the drive."""

    @property
    def _is_written(self) -> Value:
        return Const(1)


class ForgetsNothing(SpareKeeper):
    """Planted bug: a drive is taken for the one that was there before."""

    @property
    def _stays(self) -> Value:
        return Const((1 << MAX_DRIVES) - 1, MAX_DRIVES)


class Disturbs(SpareKeeper):
    """Planted bug: a spare that is about to become a member is taken for none."""

    @property
    def _is_open(self) -> Value:
        return self.holds | self._notes


class WritesOverTheKeeper(SpareKeeper):
    """Planted bug: a superblock is written that is the keeper's."""

    @property
    def _is_free(self) -> Value:
        return self.drives.present & ~self.drives.used


class NeverErases(SpareKeeper):
    """Planted bug: a drive that is no spare any more says that it is one."""

    def _watch(self, m: Module) -> None:
        super()._watch(m)
        m.d.comb += self._erases.eq(0)


class TrustsWiped(SpareKeeper):
    """Planted bug: a drive that has got zeros, and was not taken, is taken to say what it said."""

    def _hear_wiped(self, m: Module) -> None:
        pass


class ForgetsHome(SpareKeeper):
    """Planted bug: all spares are for one array."""

    def _connect(self, m: Module) -> None:
        super()._connect(m)
        m.d.comb += self._homes.write.data.eq(0)


class IsLikeNone(SpareKeeper):
    """Planted bug: a spare of an array that Linux has made is like those of the card's own."""

    def _connect(self, m: Module) -> None:
        super()._connect(m)
        m.d.comb += self.edit.payload.superblock.like.eq(0)


class IsFresh(SpareKeeper):
    """Planted bug: what a spare says counts as much as what members say."""

    def _connect(self, m: Module) -> None:
        super()._connect(m)
        m.d.comb += self.facts.events.eq(self._record.events)


class ClearsMembers(SpareKeeper):
    """Planted bug: the host can have a drive cleared that is in an array."""

    @property
    def _is_kept(self) -> Value:
        return self.spares | self.owned


class ClearsAnother(SpareKeeper):
    """Planted bug: a drive is cleared that has come since the host asked for that."""

    @property
    def _stayed(self) -> Value:
        return self.drives.present.bit_select(self._changed.port, 1) & ~self._beyond


class NeverTriesAgain(SpareKeeper):
    """Planted bug: a drive that has refused what was to be written cannot be cleared."""

    @property
    def _may_clear(self) -> Value:
        return super()._may_clear & ~self._refused.bit_select(self._changed.port, 1)


BUGS = (
    AnswersAtOnce,
    ClearsMembers,
    ClearsAnother,
    NeverTriesAgain,
    ForgetsNothing,
    Disturbs,
    WritesOverTheKeeper,
    NeverErases,
    TrustsWiped,
    ForgetsHome,
    IsLikeNone,
    IsFresh,
)


@pytest.mark.parametrize(
    "bug", [BUGS[0], *(pytest.param(bug, marks=pytest.mark.slow) for bug in BUGS[1:])]
)
def test_planted_bugs_are_found(bug):
    with pytest.raises(SimulationError, match="drives_say_what_they_are"):
        simulate(bug(config=CONFIG), name=f"spare_keeper_{bug.__name__}", module=__name__)
