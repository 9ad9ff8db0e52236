"""Tracker against a model of what is due: random outcomes of every block, in random order."""

import os
import random
from dataclasses import dataclass, field

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.fields import ANY, Fields, check_fields
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, sample, start, wait_until
from hdl.array.tracker import Tracker
from hdl.config import ERA_BITS, Config, small
from hdl.flow.extent import expected
from hdl.flow.host_command import HostOpcode, Status, command, completion
from hdl.flow.host_data import delivered
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished
from hdl.flow.row import committed

CONFIGS = {"board": Config(), "small": small()}
COMMANDS = 400
EVENT_CYCLES = 6
BAD_DRIVE = (DriveStatus.MEDIUM_ERROR, DriveStatus.ABORTED, DriveStatus.GONE)
ROUNDS = 2
"""A block is an unrecovered read error once every copy has been asked or passed over twice
(docs/guarantees.md)."""
FIRST = {"again": 0, "tried": 0, "copy": 0}
SECTORS = ("head", "tail")
EVENTS = {
    "host_command": command,
    "rejected": completion,
    "expected": expected,
    "flushed": finished,
    "read_failed": finished,
    "committed": committed,
    "recover_failed": committed,
    "delivered": delivered,
}


def flush_rounds(config: Config) -> int:
    """Each drive is aborted, reset, and given up at last (docs/guarantees.md)."""
    return config.ports * (config.drive_resets + 2) + 1


@dataclass
class Slot:
    """What the model knows of a command."""

    fields: Fields
    due: int
    status: Status = Status.SUCCESS
    retries: dict[int, dict[str, int]] = field(default_factory=dict)
    mapped: bool = False
    aborted: bool = False
    rounds: int = 0
    again: bool = False

    def end(self, status: Status) -> None:
        """A block or a flush has ended."""
        assert self.due > 0
        self.due -= 1
        if self.status == Status.SUCCESS:
            self.status = status
        if not self.due and self.aborted and self.status == Status.SUCCESS:
            # Every drive has answered, and one of them asks for another try.
            self.aborted, self.again = False, True
            self.rounds += 1

DELIVERIES = (Status.COMPARE_FAILURE, Status.DATA_TRANSFER_ERROR)
"""How a block may end that was compared with the host's."""


class Bench:
    """The rest of the controller: takes commands, invents what becomes of them."""

    def __init__(self, dut, config: Config, generator: random.Random):
        self.dut = dut
        self.config = config
        self.generator = generator
        self.sources = {
            name: StreamSource(dut, name, layout=layout(config)) for name, layout in EVENTS.items()
        }
        self.commands = StreamSink(
            dut, "command", layout=command(config), callback=self._take_command
        )
        self.completions = StreamSink(
            dut, "completion", layout=completion(config), callback=self._complete
        )
        self.free = StreamSink(dut, "free", callback=self._free)
        self.queued: dict[str, list[Fields]] = {name: [] for name in EVENTS}
        self.slots: dict[int, Slot] = {}
        self.lines: list[int] = []
        self.unsent: list[tuple[str, dict]] = []
        self.completed = 0
        self.statuses: set[Status] = set()
        self.trouble = 0.2
        cocotb.start_soon(self._watch())

    def send(self, name: str, **fields) -> None:
        self.sources[name].send(**fields)
        self.queued[name].append(Fields(fields))

    async def _watch(self) -> None:
        """Applies each event to the model in the cycle in which the tracker takes it."""
        handshakes = {
            name: (getattr(self.dut, f"{name}__valid"), getattr(self.dut, f"{name}__ready"))
            for name in EVENTS
        }
        while True:
            await RisingEdge(self.dut.clk)
            if sample(self.dut.rst):
                continue
            for name, (valid, ready) in handshakes.items():
                if sample(valid) and sample(ready):
                    getattr(self, f"_on_{name}")(self.queued[name].pop(0))

    def _on_host_command(self, event: Fields) -> None:
        assert event.slot not in self.slots
        flush = event.opcode == HostOpcode.FLUSH
        self.slots[event.slot] = Slot(event, due=0 if flush else event.blocks + 1)

    def _on_rejected(self, event: Fields) -> None:
        slot = self.slots[event.slot]
        slot.due = slot.due if slot.mapped and slot.due else 1
        slot.end(event.status)

    def _on_expected(self, event: Fields) -> None:
        slot = self.slots[event.slot]
        slot.due = event.count
        for _ in range(event.count):
            status = DriveStatus.GOOD
            if self.generator.random() < self.trouble / 4:
                status = self.generator.choice(BAD_DRIVE)
            self.unsent.append(
                (
                    "flushed",
                    {
                        "index": event.slot,
                        "opcode": Opcode.FLUSH,
                        "status": status,
                        "recover": {"copy": self.generator.getrandbits(1)},
                    },
                )
            )

    def _on_flushed(self, event: Fields) -> None:
        slot = self.slots[event.index]
        good = event.status == DriveStatus.GOOD
        undone = event.status in (DriveStatus.ABORTED, DriveStatus.GONE)
        excused = False
        if undone and slot.rounds < flush_rounds(self.config) - 1:
            slot.aborted = excused = True
        slot.end(Status.SUCCESS if good or excused else Status.WRITE_FAULT)

    def _on_read_failed(self, event: Fields) -> None:
        slot = self.slots[event.index]
        assert event.place not in slot.retries
        reached = event.status != DriveStatus.UNREACHED
        tried = event.recover["tried"] + reached
        again = {"again": 1, "tried": tried}
        if self.config.background:
            again["medium"] = int(event.status == DriveStatus.MEDIUM_ERROR)
            again |= {name: event.recover.get(name, 0) for name in ("ordered", "era")}
        slot.retries[event.place] = {**event.recover, **again}

    def _on_committed(self, event: Fields) -> None:
        self.slots[event.slot].end(event.status)

    _on_recover_failed = _on_committed

    def _on_delivered(self, event: Fields) -> None:
        self.lines.append(event.line)
        self.slots[event.slot].end(event.status)

    def _take_command(self, seen) -> None:
        slot = self.slots[seen.slot]
        if seen.recover.again:
            assert seen.offset in slot.retries, f"nobody asked to retry {seen}"
            wanted = slot.retries.pop(seen.offset)
            again = {
                "slot": seen.slot,
                "opcode": HostOpcode.READ,
                "fua": slot.fields.fua,
                "recover": wanted,
                "volume": slot.fields.volume,
                "block": slot.fields.block + seen.offset,
                "offset": seen.offset,
            }
            # A block is read whole.
            check_fields(seen, {**again, **dict.fromkeys(SECTORS, ANY)}, "retry")
            if self.generator.random() < 0.05:
                # The volume was deleted meanwhile.
                self.unsent.append(
                    ("rejected", {"slot": seen.slot, "status": Status.INVALID_NAMESPACE})
                )
            else:
                self._read_block(seen.slot, seen.offset, recover=dict(seen.recover))
            return
        wanted = dict(slot.fields)
        if slot.rounds:
            # They say nothing of a flush.
            wanted |= dict.fromkeys(("fua", *SECTORS), ANY)
        check_fields(seen, wanted, "command")
        assert not slot.mapped or slot.again, f"{seen} is sent once too often"
        slot.again = False
        if self.generator.random() < self.trouble / 4:
            status = self.generator.choice((Status.INVALID_NAMESPACE, Status.LBA_OUT_OF_RANGE))
            self.unsent.append(("rejected", {"slot": seen.slot, "status": status}))
            return
        slot.mapped = True
        if seen.opcode == HostOpcode.FLUSH:
            count = self.generator.choice((0, 1, 4, 32))
            self.unsent.append(("expected", {"slot": seen.slot, "count": count}))
            return
        for offset in range(seen.blocks + 1):
            if seen.opcode == HostOpcode.READ:
                self._read_block(seen.slot, offset, recover=seen.recover)
            else:
                status = Status.SUCCESS
                if self.generator.random() < self.trouble / 4:
                    status = self.generator.choice((Status.WRITE_FAULT, Status.DATA_TRANSFER_ERROR))
                self.unsent.append(("committed", {"slot": seen.slot, "status": status}))

    def _read_block(self, slot: int, offset: int, recover: dict[str, int]) -> None:
        if self.generator.random() >= self.trouble:
            self.unsent.append(
                (
                    "delivered",
                    {
                        "slot": slot,
                        "line": self.generator.randrange(self.config.lines),
                        "status": self.generator.choice(DELIVERIES)
                        if self.generator.random() < self.trouble / 8
                        else Status.SUCCESS,
                    },
                )
            )
            return
        asked = {**recover} | {"copy": self.generator.randrange(self.config.ports)}
        if self.config.background:
            asked["ordered"] = self.generator.getrandbits(1)
            asked["era"] = self.generator.getrandbits(ERA_BITS)
        choice = self.generator.randrange(4)
        if choice == 0 or recover["tried"] == ROUNDS * self.config.ports:
            self.unsent.append(("committed", {"slot": slot, "status": Status.UNRECOVERED_READ}))
        elif choice == 1 and recover["tried"]:
            self.unsent.append(
                ("recover_failed", {"slot": slot, "status": Status.UNRECOVERED_READ})
            )
        else:
            self.unsent.append(
                (
                    "read_failed",
                    {
                        "port": self.generator.randrange(32),
                        "opcode": Opcode.READ,
                        "recover": asked,
                        "owner": Owner.COMMAND,
                        "index": slot,
                        "place": offset,
                        "status": self.generator.choice((*BAD_DRIVE, DriveStatus.UNREACHED)),
                    },
                )
            )

    def _complete(self, seen) -> None:
        slot = self.slots.pop(seen.slot)
        assert slot.due == 0, f"completed {seen} with {slot.due} blocks due"
        assert not slot.retries and not slot.again
        assert seen.status == slot.status, f"{seen} should end with {slot.status}"
        self.statuses.add(seen.status)
        self.completed += 1

    def _free(self, line: int) -> None:
        assert line == self.lines.pop(0)

    def issue(self) -> bool:
        """Sends a random host command if a slot is free."""
        taken = {event.slot for event in self.queued["host_command"]} | set(self.slots)
        free = [slot for slot in range(self.config.commands) if slot not in taken]
        if not free:
            return False
        generator, config = self.generator, self.config
        opcode = generator.choice(
            (HostOpcode.READ, HostOpcode.READ, HostOpcode.WRITE, HostOpcode.FLUSH)
        )
        most = config.transfer_blocks
        blocks = 1 if opcode == HostOpcode.FLUSH else generator.choice((1, 1, most))
        sectors = {}
        if config.sector_emulation:
            sectors = {name: generator.randrange(8) for name in SECTORS}
        self.send(
            "host_command",
            **sectors,
            slot=generator.choice(free),
            opcode=opcode,
            fua=generator.getrandbits(1),
            volume=generator.randrange(config.volumes),
            block=generator.getrandbits(40) >> 1,
            blocks=generator.randint(0, blocks - 1),
        )
        return True

    def pass_on(self, most: int) -> None:
        """Reports up to ``most`` outcomes, picked at random."""
        for _ in range(min(most, len(self.unsent))):
            index = self.generator.randrange(len(self.unsent))
            self.unsent[index], self.unsent[-1] = self.unsent[-1], self.unsent[index]
            name, fields = self.unsent.pop()
            self.send(name, **fields)

    @property
    def drained(self) -> bool:
        return all(source.idle for source in self.sources.values())

    async def settled(self) -> None:
        """Waits until nothing is due, which includes every line; then nothing may be left over."""
        await wait_until(
            self.dut,
            lambda: not (self.slots or self.unsent or self.lines) and self.drained,
            cycles=10_000,
            what="rest",
        )
        await cycles_pass(self.dut.clk, 4)
        assert sample(self.dut.busy) == 0, "busy at rest"
        for name in ("command", "completion", "free"):
            assert not sample(getattr(self.dut, f"{name}__valid")), f"{name} left over"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def completes_every_command_once(dut):
    generator = random.Random(int(os.environ["SEED"]))
    bench = Bench(dut, CONFIGS[os.environ["CONFIG"]], generator)
    watch = BusyWatch(dut, list(EVENTS), ["command", "completion", "free"])
    await start(dut)
    left = COMMANDS
    while left or bench.slots or bench.unsent or not bench.drained:
        if generator.random() < 0.01:
            for sink in (bench.commands, bench.completions, bench.free):
                sink.active = generator.choice((1.0, 0.3, 0.05))
            bench.trouble = generator.choice((0.0, 0.2, 0.8))
        if left and generator.random() < 0.05 and bench.issue():
            left -= 1
        if generator.random() < 0.3:
            bench.pass_on(generator.choice((1, 1, 5)))
        await RisingEdge(dut.clk)
    await bench.settled()
    assert bench.completed == COMMANDS
    watch.check()
    dut._log.info("statuses seen: %s", sorted(status.name for status in bench.statuses))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def takes_events_while_its_outputs_are_blocked(dut):
    """Every direct read fails while neither a command nor a completion is taken."""
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config, random.Random(1))
    bench.trouble = 0.0
    await start(dut)
    count, most = min(config.commands, 16), config.transfer_blocks
    for slot in range(count):
        bench.send(
            "host_command",
            slot=slot,
            opcode=HostOpcode.READ,
            fua=0,
            volume=1,
            block=slot * most,
            blocks=most - 1,
        )
    await wait_until(dut, lambda: bench.commands.received == count, cycles=1000, what="commands")
    bench.unsent.clear()
    bench.commands.paused = bench.completions.paused = True
    for slot in range(count):
        for offset in range(most - 1):
            failed = {"index": slot, "place": offset, "recover": FIRST}
            bench.send("read_failed", **failed, status=DriveStatus.GONE)
        bench.send("committed", slot=slot, status=Status.UNRECOVERED_READ)
    events = count * most
    cycles = await wait_until(
        dut, lambda: bench.drained, cycles=EVENT_CYCLES * events + 20, what="events"
    )
    dut._log.info("%.1f cycles an event", cycles / events)
    bench.commands.paused = bench.completions.paused = False
    while bench.slots:
        bench.pass_on(8)
        await RisingEdge(dut.clk)
    await bench.settled()
    assert bench.commands.received == count * most
    assert bench.statuses == {Status.UNRECOVERED_READ}


@cocotb.test(timeout_time=4, timeout_unit="us")
async def a_block_ends_too_often(dut):
    """Planted bug of the blocks around: three blocks of a command of two have been written."""
    sources = {
        name: StreamSource(dut, name, layout=EVENTS[name](small()))
        for name in ("host_command", "committed")
    }
    StreamSink(dut, "command", layout=command(small()))
    StreamSink(dut, "completion", layout=completion(small()))
    await start(dut)
    sources["host_command"].send(slot=0, opcode=HostOpcode.WRITE, blocks=1)
    await ClockCycles(dut.clk, 30)
    for _ in range(3):
        sources["committed"].send(slot=0, status=Status.SUCCESS)
    await ClockCycles(dut.clk, 30)


@cocotb.test(timeout_time=4, timeout_unit="us")
async def a_slot_begins_twice(dut):
    """Planted bug of the front end: a slot is given out while its command is inside."""
    commands = StreamSource(dut, "host_command", layout=command(small()))
    StreamSink(dut, "command", layout=command(small()))
    await start(dut)
    for _ in range(2):
        commands.send(slot=2, opcode=HostOpcode.WRITE, blocks=1)
    await ClockCycles(dut.clk, 30)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def lets_host_commands_through(dut):
    """A command of the host is not behind all that is read once more."""
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config, random.Random(1))
    bench.trouble = 0.0
    await start(dut)
    count, most = min(config.commands, 16) - 1, config.transfer_blocks
    read = {"opcode": HostOpcode.READ, "fua": 0, "volume": 1, "blocks": most - 1}
    for slot in range(count):
        bench.send("host_command", slot=slot, block=slot * most, **read)
    await wait_until(dut, lambda: bench.commands.received == count, cycles=1000, what="commands")
    bench.unsent.clear()
    bench.commands.paused = True
    for slot in range(count):
        for offset in range(most):
            failed = {"index": slot, "place": offset, "recover": FIRST}
            bench.send("read_failed", **failed, status=DriveStatus.GONE)
    events = count * most
    await wait_until(dut, lambda: bench.drained, cycles=EVENT_CYCLES * events + 20, what="events")
    before = bench.commands.received
    bench.send("host_command", slot=count, block=0, **read)
    bench.commands.paused = False
    await wait_until(dut, lambda: count in bench.slots, cycles=100, what="the command")
    assert bench.commands.received - before <= 4, "others went first"
    while bench.slots:
        bench.pass_on(8)
        await RisingEdge(dut.clk)
    await bench.settled()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_flush_is_sent_so_often(dut):
    """A drive aborts it every time: it fails with the last one, and with none before."""
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config, random.Random(1))
    bench.trouble = 0.0
    await start(dut)
    bench.send("host_command", slot=3, opcode=HostOpcode.FLUSH, fua=0, volume=1, block=0, blocks=0)
    sent = 0
    while not bench.completed:
        await RisingEdge(dut.clk)
        if bench.unsent and bench.drained:
            name, fields = bench.unsent.pop()
            if name == "expected":
                fields["count"], sent = 1, sent + 1
            else:
                fields["status"] = DriveStatus.ABORTED
            bench.send(name, **fields)
    assert sent == flush_rounds(config) and bench.statuses == {Status.WRITE_FAULT}
    await bench.settled()


@pytest.mark.parametrize("config", CONFIGS)
def test_tracker(config):
    simulate(
        Tracker(config=CONFIGS[config]),
        name=f"tracker_{config}",
        module=__name__,
        testcase=[
            "completes_every_command_once",
            "takes_events_while_its_outputs_are_blocked",
            "lets_host_commands_through",
            "a_flush_is_sent_so_often",
        ],
        parameters={"CONFIG": config},
    )


@pytest.mark.parametrize(
    ("testcase", "message"),
    [
        ("a_block_ends_too_often", "a command has ended twice"),
        ("a_slot_begins_twice", "a command begins in a slot that is in use"),
    ],
)
@pytest.mark.slow
def test_what_must_never_be_is_found(testcase, message):
    with pytest.raises(SimulationError, match=message):
        simulate(
            Tracker(config=CONFIGS["small"]),
            name="tracker_small",
            module=__name__,
            testcase=testcase,
            parameters={"CONFIG": "small"},
        )


class WrongLine(Tracker):
    """Planted bug: line 0 is given back."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.sync += self.free.payload.eq(0)
        return m


class LongRetry(Tracker):
    """Planted bug: a retry asks for two blocks."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.command.payload.recover.again & ~self.command.valid):
            m.d.sync += self.command.payload.blocks.eq(1)
        return m


class ForgetsAttempts(Tracker):
    """Planted bug: every retry is the first."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.sync += self.command.payload.recover.tried.eq(0)
        return m


class WrongSlot(Tracker):
    """Planted bug: slot 0 completes, whichever was due."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.completion.payload.slot.eq(0)
        return m


class LenientStatus:
    """Planted bug: a flush that a drive aborted counts as good."""

    GOOD = DriveStatus.ABORTED
    ABORTED = DriveStatus.UNREACHED
    GONE = DriveStatus.GONE
    UNREACHED = DriveStatus.UNREACHED
    MEDIUM_ERROR = DriveStatus.MEDIUM_ERROR


def refuses(tracker: Tracker, name: str) -> None:
    """The test of the tracker must fail on ``tracker``."""
    with pytest.raises(SimulationError, match="completes_every_command_once"):
        simulate(
            tracker,
            name=f"tracker_{name}",
            module=__name__,
            testcase="completes_every_command_once",
            parameters={"CONFIG": "small"},
        )


@pytest.mark.parametrize("bug", [WrongLine, LongRetry, ForgetsAttempts, WrongSlot])
@pytest.mark.slow
def test_planted_bugs_are_found(bug):
    refuses(bug(config=CONFIGS["small"]), bug.__name__)


@pytest.mark.slow
def test_planted_status_is_found(monkeypatch):
    monkeypatch.setattr("hdl.array.tracker.DriveStatus", LenientStatus)
    refuses(Tracker(config=CONFIGS["small"]), "lenient_status")


@pytest.mark.slow
def test_planted_rounds_are_found(monkeypatch):
    """A flush that is aborted is sent too few times."""
    monkeypatch.setattr("hdl.array.tracker.flush_rounds", lambda _: 1)
    refuses(Tracker(config=CONFIGS["small"]), "few_rounds")
