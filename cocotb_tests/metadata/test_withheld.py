"""`hdl.metadata.withheld.Withheld`: completions that wait, and writes that must not end well."""

import random
from collections import Counter, deque
from os import environ

import cocotb
import pytest
from amaranth.hdl import Const, Signal
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, TableServer, pack, sample, start
from hdl.config import Config
from hdl.flow.host_command import HostOpcode, Status, command, completion
from hdl.flow.table_read import volume
from hdl.metadata.withheld import Withheld

CONFIG = Config(
    ports=8, lines=256, commands=16, rows=32, arrays=4, volumes=8, transfer_blocks=8, metadata=True
)
COMMAND, VOLUME = command(CONFIG), volume(CONFIG)
CYCLES = 24_000


class Bench:
    """Commands that begin and end, and what the host is told."""

    def __init__(self, dut, active: float):
        self.dut = dut
        self.random = random.Random(environ["SEED"])
        self.arrays = [self.random.randrange(CONFIG.arrays) for _ in range(CONFIG.volumes)]
        self.free = list(range(CONFIG.commands))
        self.inside: deque[int] = deque()
        """Slots whose commands have not ended."""
        self.of: dict[int, tuple[HostOpcode, int]] = {}
        self.waiting: dict[int, Status] = {}
        """Completions that the host has not been told, by slot."""
        self.lost: set[int] = set()
        """Those of an array that was forsaken while they waited."""
        self.perhaps: set[int] = set()
        """Those that have come right after their array was forsaken."""
        self.since: dict[int, int] = {}
        """For each of them: since when it may be told."""
        self.patience = round((6 * CONFIG.commands + 20) / active**2)
        """Cycles within which what may be told is told."""
        self.held, self.forsaken = Levels(self.random), Levels(self.random)
        self.quiet = False
        """No array is held or forsaken, nor will it be soon."""
        self.calm = 0
        """Cycles since the last one was, or something waited."""
        self.seen: Counter = Counter()
        self.cycle = 1
        self.taken = 0
        self.came: set[int] = set()
        """Slots of completions that have come, and have not been offered."""
        self.offers: list[tuple[int, Status]] = []
        self.told_of: list[tuple[int, Status]] = []
        TableServer(dut, "volume_read", lambda number: pack(VOLUME, array=self.arrays[number]))
        self.ended = StreamSource(dut, "ended", layout=completion(CONFIG), active=active)
        self.told = StreamSink(
            dut,
            "told",
            layout=completion(CONFIG),
            active=active,
            callback=lambda told: self.told_of.append((told.slot, told.status)),
        )
        others = dut.begun__valid, dut.holds, dut.forsaken
        self.watch = BusyWatch(
            dut, ["ended"], ["told"], others=lambda: tuple(sample(other) for other in others)
        )

    def _offer(self, slot: int, status: Status) -> None:
        """The host is offered the end of a command."""
        opcode, array = self.of[slot]
        told = self.waiting[slot]
        assert not all(self.held.lately(array)), f"commands of {array} are held"
        counts = opcode != HostOpcode.READ and told == Status.SUCCESS
        lately = self.forsaken.lately(array)
        allowed = {Status.WRITE_FAULT if counts and forsaken else told for forsaken in lately}
        if counts and slot in self.lost:
            allowed = {Status.WRITE_FAULT}
            self.seen["writes that waited"] += not any(lately)
        elif counts and slot in self.perhaps:
            allowed.add(Status.WRITE_FAULT)
        elif counts:
            self.seen["writes that end well again"] += array in self.forsaken.last
        assert status in allowed, f"{opcode} of {array} ends with {status}, not {allowed}"
        self.seen["told"] += 1
        self.seen["writes that must not end well"] += counts and all(lately)
        self.seen["reads of forsaken arrays"] += all(lately) and opcode == HostOpcode.READ
        self.seen["passed the others"] += any(
            self.of[other][1] != array and all(self.held.lately(self.of[other][1]))
            for other in self.waiting
        )

    def _tell(self, slot: int) -> None:
        """The host takes what it is offered."""
        for known in self.waiting, self.since, self.of:
            del known[slot]
        self.lost.discard(slot)
        self.perhaps.discard(slot)
        self.taken += 1
        self.free.append(slot)

    def _begin_and_end(self) -> None:
        """A command begins, or one ends."""
        dut, choose = self.dut, self.random
        if self.free and choose.random() < 0.1:
            slot = self.free.pop(choose.randrange(len(self.free)))
            number, opcode = choose.randrange(CONFIG.volumes), choose.choice([*HostOpcode])
            self.of[slot] = opcode, self.arrays[number]
            self.inside.append(slot)
            dut.begun__valid.value = 1
            dut.begun__payload.value = pack(
                COMMAND, slot=slot, opcode=opcode, volume=number, block=choose.getrandbits(40)
            )
        elif self.inside and choose.random() < 0.15:
            self.inside.rotate(choose.randrange(4))
            slot = self.inside.popleft()
            status = choose.choice((Status.SUCCESS, Status.SUCCESS, *Status))
            self.waiting[slot], self.since[slot] = status, self.cycle
            self.ended.send(slot=slot, status=status)

    async def run(self) -> None:
        """Everything happens at random."""
        dut, choose = self.dut, self.random
        was_valid = 0
        for _ in range(CYCLES):
            dut.begun__valid.value = 0
            self._begin_and_end()
            if choose.random() < 0.003:
                self.quiet = not self.quiet
            for levels, port in (self.held, dut.holds), (self.forsaken, dut.forsaken):
                port.value = levels.step(self.cycle, quiet=self.quiet)
            for slot in self.since:
                if self.held.now >> self.of[slot][1] & 1:
                    self.since[slot] = self.cycle
            await RisingEdge(dut.clk)
            # What is offered as an array is forsaken has been judged before.
            lost = [slot for slot in self.came if self.forsaken.now >> self.of[slot][1] & 1]
            valid = sample(dut.told__valid)
            offered = completion(CONFIG).from_bits(sample(dut.told__payload))
            if valid and not was_valid:
                self.offers.append((offered.slot, Status(offered.status)))
                self._offer(*self.offers[-1])
                self.came.discard(offered.slot)
            self.lost |= self.came & {*lost}
            if sample(dut.ended__valid):
                slot = completion(CONFIG).from_bits(sample(dut.ended__payload)).slot
                if slot in self.waiting and slot != (offered.slot if valid else None):
                    self.came.add(slot)
                    since = self.cycle - self.forsaken.last.get(self.of[slot][1], -self.patience)
                    if since < self.patience:
                        self.perhaps.add(slot)
            self._check_pace(valid)
            was_valid = valid and not sample(dut.told__ready)
            if valid and not was_valid:
                self._tell(offered.slot)
            self.cycle += 1
        dut.begun__valid.value = 0
        dut.holds.value = 0

    def _check_pace(self, valid: int) -> None:
        """Nothing waits without a reason, and it passes at once while nothing is held."""
        late = [slot for slot, since in self.since.items() if self.cycle > since + self.patience]
        assert not late, f"the ends of {late} may be told, and are not"
        self.calm += 1
        if self.held.now or self.forsaken.now or len(self.waiting) > 1:
            self.calm = 0
        elif self.calm > 2 and sample(self.dut.ended__valid):
            assert valid, "the end of a command waits for nobody"
            self.seen["passed at once"] += 1


class Levels:
    """A bit an array that is on for a while, again and again."""

    def __init__(self, random: random.Random):
        self.random = random
        self.now = self.before = 0
        self.last: dict[int, int] = {}
        """By array: the last cycle in which it was on."""

    def step(self, cycle: int, *, quiet: bool) -> int:
        """What they are in ``cycle``. While it is ``quiet`` none begins."""
        self.before = self.now
        for array in range(CONFIG.arrays):
            on = self.now >> array & 1
            if (on or not quiet) and self.random.random() < 0.01:
                self.now ^= 1 << array
            if self.now >> array & 1:
                self.last[array] = cycle
        return self.now

    def lately(self, array: int) -> tuple[bool, bool]:
        """Whether it was on in the cycle before this one, and whether it is on."""
        return bool(self.before >> array & 1), bool(self.now >> array & 1)


@cocotb.test(timeout_time=2, timeout_unit="ms")
@cocotb.parametrize(active=[1.0, 0.3])
async def tells_what_may_be_told(dut, active):
    for port in dut.holds, dut.forsaken, dut.begun__valid:
        port.value = 0
    bench = Bench(dut, active)
    await start(dut)
    await bench.run()
    for _ in range(bench.patience):
        await RisingEdge(dut.clk)
    lost = set(bench.waiting) - {slot for slot, _ in bench.told_of[bench.taken :]}
    assert not lost, f"never told of the ends of {lost}"
    offers = len(bench.offers)
    assert bench.told_of[:offers] == bench.offers, "what was offered has changed"
    print(dict(bench.seen))
    for what in (
        "told",
        "writes that must not end well",
        "reads of forsaken arrays",
        "passed the others",
        "passed at once",
        "writes that waited",
    ):
        assert bench.seen[what] > 5, bench.seen
    assert bench.seen["writes that end well again"] or active < 1, bench.seen
    bench.watch.check()


class TellsAtOnce(Withheld):
    """A planted bug: nothing waits."""

    def elaborate(self, platform):
        self.holds = Const(0, CONFIG.arrays)
        return super().elaborate(platform)


class HoldsAll(Withheld):
    """A planted bug: commands of all arrays wait for one."""

    def elaborate(self, platform):
        holds, self.holds = self.holds, Signal(CONFIG.arrays)
        m = super().elaborate(platform)
        m.d.comb += self.holds.eq(holds.any().replicate(CONFIG.arrays))
        return m


class LooksOnce(Withheld):
    """A planted bug: what was put aside is not looked at again."""

    def _count_again(self, m):
        pass


class ForgetsWhatWaits(Withheld):
    """A planted bug: what waits while an array is forsaken is looked at later."""

    @property
    def _begins(self):
        return Const(0)


class EndsTooSoon(Withheld):
    """A planted bug: what is looked at when the array is forsaken no more ends well."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.sync += self._failed_before.eq(self.forsaken)
        return m


class TellsOfSuccess(Withheld):
    """A planted bug: writes of a forsaken array end well."""

    def elaborate(self, platform):
        self.forsaken = Const(0, CONFIG.arrays)
        return super().elaborate(platform)


class ForsakesOne(Withheld):
    """A planted bug: reads count as well."""

    def _note(self, m):
        super()._note(m)
        m.d.comb += self._commands.write.data.writes.eq(1)


class NeverPasses(Withheld):
    """A planted bug: each completion is looked at."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self._passes.eq(0)
        return m


class TakesBack(Withheld):
    """A planted bug: what has been offered is taken back as an array is held."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.sync += self._offered.eq(0)
        return m


def run(component, name: str) -> None:
    simulate(component, name=name, module=__name__)


def test_withheld():
    run(Withheld(config=CONFIG), "withheld")


SLOW = (
    TellsAtOnce,
    HoldsAll,
    LooksOnce,
    ForsakesOne,
    NeverPasses,
    TakesBack,
    ForgetsWhatWaits,
    EndsTooSoon,
)


@pytest.mark.parametrize(
    "bug", [TellsOfSuccess, *(pytest.param(bug, marks=pytest.mark.slow) for bug in SLOW)]
)
def test_planted_bugs_are_found(bug):
    with pytest.raises(SimulationError, match="failed: tells_what_may_be_told"):
        run(bug(config=CONFIG), f"withheld_{bug.__name__}")
