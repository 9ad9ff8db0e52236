"""`hdl.nvme.commands.slots.SlotTable`: Abort names a command; its slot may be another's by then.
Slots are taken in any cycle, also of another command's next part."""

import os
import random

import cocotb
from cocotb.triggers import FallingEdge, RisingEdge

from cocotb_tests.fields import ANY, check_fields
from cocotb_tests.nvme.nvme_bench import bench_config
from cocotb_tests.runner import simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    pack,
    sample,
    start,
    unpack,
    wait_until,
)
from hdl.flow.host_command import HostOpcode, Status, completion
from hdl.nvme.codes import DATA_PATH_CODES, StatusCode, status_field
from hdl.nvme.commands.slots import SlotTable
from hdl.nvme.pages.health import note
from hdl.nvme.records import again, finish, rejected, stored, target

CONFIG = bench_config()
VICTIM, OTHER, ABORT = 0x1234, 0x4321, 0x5000
PARTS = 3
"""Parts of a command after its first."""
ABORTED = status_field(StatusCode.ABORT_REQUESTED, more=False)
ENDS = {status: status_field(DATA_PATH_CODES[status]) for status in Status}
"""What the host gets for each way in which the data path ends a command."""


class Bench:
    """Slots 0 and up are taken in order; what each carries is noted as it is stored."""

    def __init__(self, dut, generator: random.Random):
        self.dut = dut
        self.held: dict[int, tuple[int, int]] = {}
        self.cancels: list[tuple[int, int] | None] = []
        self.completion = StreamSource(dut, "completion", layout=completion(CONFIG))
        self.rejected = StreamSource(dut, "rejected", layout=rejected(CONFIG))
        self.abort = StreamSource(dut, "abort_access__command", layout=target(CONFIG))
        self.finished = StreamSink(
            dut, "finish", layout=finish(CONFIG), ignores={"tells.volume": "nothing is told"}
        )
        self.notes = StreamSink(dut, "note", layout=note(CONFIG), callback=self._note)
        self.carried: dict[tuple[int, int], dict] = {}
        dut.stop.value = dut.store__valid.value = dut.again__ready.value = 0
        dut.allocate__ready.value = dut.cancel__ready.value = 0
        dut.cancelled__valid.value = dut.cancelled__payload.value = 0
        self.generator = generator
        self.ends = 0

    def _note(self, seen) -> None:
        """How a command ended, with what its slot has carried."""
        carried = self.carried[seen.queue, seen.identifier]
        status = ABORTED if seen.status == ABORTED else carried["status"]
        wanted = {**carried, "status": status, "counts": 1}
        check_fields(seen, wanted, "note")

    async def cancel(self) -> None:
        """`Prp` takes some time; whatever the slot carries by then waits for its list, and ends."""
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            self.ends += sample(dut.abort_access__tried)
            if not sample(dut.cancel__valid):
                continue
            slot = sample(dut.cancel__payload)
            for _ in range(self.generator.randrange(4)):
                await RisingEdge(dut.clk)
                assert sample(dut.cancel__valid), "taken back"
            await FallingEdge(dut.clk)
            dut.cancel__ready.value = 1
            await RisingEdge(dut.clk)
            self.cancels.append(self.held.get(slot))
            await FallingEdge(dut.clk)
            dut.cancel__ready.value = 0
            dut.cancelled__valid.value = 1
            dut.cancelled__payload.value = int(slot in self.held)
            await RisingEdge(dut.clk)
            self.ends += sample(dut.abort_access__tried)
            await FallingEdge(dut.clk)
            dut.cancelled__valid.value = 0

    async def ends_are(self, wanted: list[tuple[int, int, int]]) -> None:
        """The next commands to end are of these queues and identifiers, with these statuses."""
        answers = await self.finished.receive_all(len(wanted))
        for end, (queue, identifier, status) in zip(answers, wanted, strict=True):
            fields = {"queue": queue, "identifier": identifier, "status": status, "post": 1}
            # Bit 0 of DW0 is 0, since the Abort has aborted its command (NVMe 1.4, 5.1).
            check_fields(end, fields | {"tells": {"volume": ANY}}, "finish")

    async def store(
        self,
        queue: int,
        identifier: int,
        *,
        parts: int = 0,
        cached: bool = False,
        status: Status = Status.SUCCESS,
    ) -> int:
        """A command gets the next slot, in this cycle if there is one. It is to end so."""
        dut = self.dut
        await FallingEdge(dut.clk)
        while not sample(dut.allocate__valid):
            await FallingEdge(dut.clk)
        slot = sample(dut.allocate__payload)
        dut.allocate__ready.value = dut.store__valid.value = 1
        fields = {
            "queue": queue,
            "identifier": identifier,
            "nsid": self.generator.getrandbits(32),
            "block": self.generator.getrandbits(40),
            "opcode": self.generator.choice(list(HostOpcode)),
            "blocks": self.generator.getrandbits(16),
            "sectors": self.generator.getrandbits(1),
        }
        self.carried[queue, identifier] = fields | {"status": ENDS[status]}
        dut.store__payload.value = pack(
            stored(CONFIG), slot=slot, parts=parts, command=fields | {"cached": cached}
        )
        await RisingEdge(dut.clk)
        self.held[slot] = (queue, identifier)
        await FallingEdge(dut.clk)
        dut.allocate__ready.value = dut.store__valid.value = 0
        return slot

    async def end(self, slot: int, status: Status = Status.SUCCESS) -> None:
        """The command of a slot ends, and the slot is free."""
        count = self.notes.received + self.finished.received
        self.completion.send(slot=slot, status=status)
        await wait_until(
            self.dut,
            lambda: self.notes.received + self.finished.received >= count + 2,
            cycles=200,
            what="the end",
        )
        del self.held[slot]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def aborts_hit_who_they_name(dut):
    """A command has ended, and its slot is another's in each of the cycles in which an Abort of the
    first one looks for it."""
    host = Bench(dut, random.Random(int(os.environ["SEED"])))
    await start(dut)
    cocotb.start_soon(host.cancel())
    slots = [await host.store(1, number) for number in range(CONFIG.commands - 1)]
    for wait in range(4 * CONFIG.commands + 24):
        # The last slot is the only one that is free.
        slot = await host.store(2, VICTIM)
        await host.end(slot)
        ends = host.ends
        host.abort.send(queue=2, identifier=VICTIM, by=ABORT)
        await cycles_pass(dut.clk, wait)
        assert await host.store(2, OTHER) == slot
        await wait_until(dut, lambda n=ends: host.ends > n, cycles=600, what="the Abort")
        assert (2, OTHER) not in host.cancels, f"{wait}: another command has been aborted"
        await host.end(slot)
    # One that is there is found, once; its Abort ends right after it, whatever ends meanwhile.
    for number in slots[:3]:
        for tries in range(2):
            ends = host.ends
            host.abort.send(queue=1, identifier=number, by=ABORT + number)
            await wait_until(dut, lambda n=ends: host.ends > n, cycles=600, what="the Abort")
            assert host.cancels == [(1, number)][tries:], f"try {tries}"
            host.cancels.clear()
    while host.finished:
        host.finished.receive_now()
    for number in (slots[3], *slots[:3], slots[4]):
        await host.end(number)
    wanted = [(1, slots[3], 0)]
    for number in slots[:3]:
        wanted += [(1, number, ABORTED), (0, ABORT + number, 0)]
    wanted += [(1, slots[4], 0)]
    await host.ends_are(wanted)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def parts_are_counted_whoever_begins(dut):
    """A command goes on as often as it has parts, the last of them being the lowest, whichever
    cycle another command gets its slot in."""
    host = Bench(dut, random.Random(int(os.environ["SEED"])))
    parts = StreamSink(dut, "again", layout=again(CONFIG))
    await start(dut)
    for wait in range(12):
        slot = await host.store(1, VICTIM, parts=PARTS)
        for left in reversed(range(PARTS)):
            host.completion.send(slot=slot, status=Status.SUCCESS)
            await cycles_pass(dut.clk, wait)
            other = await host.store(2, OTHER)
            part = await parts.receive(cycles=50)
            check_fields(part, {"slot": slot, "lowest": left == 0}, f"{wait}: {left} are left")
            await host.end(other)
        await host.end(slot)
        assert not parts, f"{wait}: a part too many"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def aborts_are_noted_whoever_begins(dut):
    """A command that an Abort has found ends as aborted, and the Abort behind it, whichever cycle
    another command gets its slot in."""
    host = Bench(dut, random.Random(int(os.environ["SEED"])))
    await start(dut)
    cocotb.start_soon(host.cancel())
    # The slot is marked some 9 cycles after the search has come to it; `cancel` takes up to 3 more.
    for wait in [*range(5, 14)] * 8:
        victim = await host.store(2, VICTIM)
        ends = host.ends
        host.abort.send(queue=2, identifier=VICTIM, by=ABORT)
        await cycles_pass(dut.clk, 4 * victim + wait)
        other = await host.store(1, OTHER)
        await wait_until(dut, lambda n=ends: host.ends > n, cycles=600, what="the Abort")
        await host.end(victim)
        await host.end(other)
        await host.ends_are([(2, VICTIM, ABORTED), (0, ABORT, 0), (1, OTHER, 0)])
        await cycles_pass(dut.clk, 20)
        assert not host.finished, f"{wait}: one end too many"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def writes_that_may_be_cached_are_told(dut):
    """A write that ends with success and may have left data in caches is told in the cycle in which
    its end is taken, whatever that waits for. No other command is."""
    generator = random.Random(int(os.environ["SEED"]))
    host = Bench(dut, generator)
    await start(dut)
    wanted: set[tuple[int, int]] = set()
    seen = 0

    async def watch() -> None:
        nonlocal seen
        while True:
            await RisingEdge(dut.clk)
            if not sample(dut.cached__valid):
                continue
            assert sample(dut.finish__valid) and sample(dut.finish__ready), "not as it ends"
            owner = host.held[sample(dut.cached__payload)]
            end = unpack(finish(CONFIG), sample(dut.finish__payload))
            assert (end.queue, end.identifier) == owner, "another's end"
            wanted.remove(owner)
            seen += 1

    cocotb.start_soon(watch())
    cocotb.start_soon(host.cancel())
    for number in range(120):
        cached, status = generator.random() < 0.5, Status.SUCCESS
        if generator.random() < 0.5:
            status = generator.choice([*Status])
        slot = await host.store(1, number, cached=cached, status=status)
        if cached and status == Status.SUCCESS:
            wanted.add((1, number))
        await host.end(slot, status)
        assert not wanted, "not told"
    # One that is aborted tells nothing.
    slot = await host.store(1, VICTIM, cached=True)
    ends = host.ends
    host.abort.send(queue=1, identifier=VICTIM, by=ABORT)
    await wait_until(dut, lambda: host.ends > ends, cycles=600, what="the Abort")
    await host.end(slot)
    assert seen > 5


def test_slots():
    simulate(SlotTable(config=CONFIG), name="slots", module=__name__)
