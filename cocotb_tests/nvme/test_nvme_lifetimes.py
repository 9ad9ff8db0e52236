"""Volumes that are deleted and created again while commands wait: none finds another volume."""

import os

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import pack, sample, unpack, wait_until
from hdl.flow.manage import ManageOpcode, ManageStatus
from hdl.flow.reference import answer, command_begin, telling
from hdl.nvme.commands.lifetimes import Lifetimes
from sim.golden import nvme

SPAN = 16
"""Blocks of a volume that its commands use; those of the next volume use the next ones."""

VOLUME_BLOCKS = 4096
VICTIM, BESIDE = 0, 2
IN_SECTORS = 1 << 8
"""LBA format 1 in CDW10 of Create Volume."""


class Host(Bench):
    """The tables as they are: a change of a volume waits for the commands inside.

    The nth volume created is used in the nth `SPAN` blocks only. So a command that lands in a
    volume that it was not meant for is seen.
    """

    def __init__(self, dut, config, seed: int):
        super().__init__(dut, config, seed)
        self.inside: dict[int, int] = {}
        self.life: dict[int, int] = {}
        self.sectors: dict[int, bool] = {}
        self.created = 0
        self.to_create = 0
        self.late: dict[int, int] = {}
        self.seen_late: dict[tuple[int, int], int] = {}
        self.flushed = 0

    async def watch(self) -> None:
        """Follows who has a slot."""
        dut, layout = self.dut, command_begin(self.config)
        while True:
            await RisingEdge(dut.clk)
            if sample(dut.slots__begun__valid):
                begun = unpack(layout, sample(dut.slots__begun__payload))
                self.inside[begun.slot] = begun.volume
                self.late[begun.slot] = begun.late
            if sample(dut.slots__ended__valid):
                del self.inside[sample(dut.slots__ended__payload)]

    def _manage(self, request) -> None:
        self._check_change(request)
        cocotb.start_soon(self._change(request))

    async def _change(self, request) -> None:
        creates = request.opcode == ManageOpcode.CREATE_VOLUME
        volume = self.to_create if creates else request.volume
        if not creates:
            del self.volumes[volume], self.life[volume], self.sectors[volume]
            await ClockCycles(self.dut.clk, 2)
        before = [slot for slot, number in self.inside.items() if number == volume]
        while any(slot in self.inside for slot in before):
            await RisingEdge(self.dut.clk)
            before = [slot for slot in before if slot in self.inside]
        if creates:
            self.life[volume] = self.created
            self.created += 1
            self.volumes[volume] = {"valid": 1, "array": 0, "start": 0, "blocks": VOLUME_BLOCKS}
        self.manage_response.send(status=ManageStatus.DONE, index=volume)

    def _command(self, request) -> None:
        life = self.life.get(request.volume)
        if life is not None:
            assert request.block // SPAN == life % (VOLUME_BLOCKS // SPAN), (
                f"block {request.block} of volume {request.volume}, which is number {life}"
            )
        self.seen_late[request.volume, request.block] = self.late[request.slot]
        super()._command(request)

    async def create(self, volume: int, *, sectors: bool = False) -> None:
        self.to_create = volume
        await self.good(opcode=nvme.CREATE_VOLUME, dwords=(IN_SECTORS * sectors,))
        self.sectors[volume] = sectors

    async def delete(self, volume: int) -> None:
        await self.good(opcode=nvme.DELETE_VOLUME, dwords=(volume,))

    def access(self, queue: int, volume: int) -> int:
        """Places a write or a read in the blocks of the volume that is there now."""
        block = self.life[volume] % (VOLUME_BLOCKS // SPAN) * SPAN + self.random.randrange(SPAN - 1)
        count = 1
        if self.sectors[volume]:
            block, count = 8 * block + self.random.randrange(4), 4
        opcode = self.random.choice((nvme.WRITE, nvme.WRITE, nvme.READ))
        fields = nvme.read_write(opcode, volume + 1, block, count)
        return self.place(self.queues[queue], **fields, prp1=self.shared)


async def bench(dut) -> Host:
    config = bench_config(int(os.environ["DATA_WIDTH"]))
    host = Host(dut, config, int(os.environ["SEED"]))
    await host.reset()
    cocotb.start_soon(host.watch())
    host.shared = host.page()
    await host.enable()
    for number in (1, 2):
        await host.create_pair(number, 64)
    return host


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def old_commands_find_no_new_volume(dut):
    """All slots are taken by commands that hang, others wait in the inbox and in their queue.
    Their volume is deleted and created again. None of them finds the new one; those do that were
    submitted since, behind them."""
    host = await bench(dut)
    await host.create(BESIDE)
    formats = (False, True) if host.config.sector_emulation else (False,)
    for waiting in (10, 50):
        for old_sectors in formats:
            for new_sectors in formats:
                await host.create(VICTIM, sectors=old_sectors)
                host.hold = True
                hung = [host.access(1, BESIDE) for _ in range(host.config.commands)]
                await host.ring(host.queues[1])
                await ClockCycles(dut.clk, 2000)
                assert len(host.inside) == host.config.commands
                old = [host.access(2, VICTIM) for _ in range(waiting)]
                beside = host.access(2, BESIDE)
                await host.ring(host.queues[2])
                await ClockCycles(dut.clk, 1000)
                await host.delete(VICTIM)
                await host.create(VICTIM, sectors=new_sectors)
                new = [host.access(2, VICTIM) for _ in range(5)]
                await host.ring(host.queues[2])
                await ClockCycles(dut.clk, 1000)
                host.hold = False
                for queue, placed, code in (
                    (1, hung, nvme.SUCCESS),
                    (2, old, nvme.INVALID_FIELD),
                    (2, [beside, *new], nvme.SUCCESS),
                ):
                    for identifier in placed:
                        answer = await host.result(host.queues[queue], identifier)
                        assert answer.code == code, answer
                await host.delete(VICTIM)
    await host.settle()


@cocotb.test(timeout_time=16, timeout_unit="ms")
async def volumes_come_and_go(dut):
    """Volumes are deleted and created at any moment, commands held up at others. What is submitted
    to a volume succeeds unless that is deleted before it ends; a volume beside is never refused."""
    host = await bench(dut)
    volumes = [n for n in range(host.config.volumes) if n != BESIDE]
    for volume in range(host.config.volumes):
        await host.create(volume)
    ended = {nvme.SUCCESS: 0, nvme.INVALID_FIELD: 0, nvme.NAMESPACE_NOT_READY: 0}
    waiting: list[tuple[int, int, int, int]] = []
    gone: set[int] = set()

    def look() -> None:
        for entry in list(waiting):
            queue, identifier, volume, life = entry
            answer = host.queues[queue].done.pop(identifier, None)
            if answer is not None:
                waiting.remove(entry)
                assert answer.code in ended, f"volume {volume}, number {life}: {answer}"
                ended[answer.code] += 1
                if answer.code == nvme.INVALID_FIELD:
                    assert life in gone, f"refused by a volume that is there: {answer}"
                assert answer.code == nvme.SUCCESS or volume != BESIDE, answer

    async def submit() -> None:
        for queue in (1, 2):
            room = 62 - len(host.queues[queue].waiting)
            for _ in range(host.random.randint(0, max(0, min(room, 24)))):
                volume = host.random.choice([n for n in host.life if n in host.sectors])
                waiting.append((queue, host.access(queue, volume), volume, host.life[volume]))
            await host.ring(host.queues[queue])

    for round_number in range(240):
        if round_number >= 60 and min(ended.values()) > 5:
            break
        host.hold = host.random.random() < 0.7
        await submit()
        await ClockCycles(dut.clk, host.random.choice((1, 40, 400)))
        for _ in range(host.random.randint(0, 3)):
            volume = host.random.choice(volumes)
            if volume in host.life:
                gone.add(host.life[volume])
                task = cocotb.start_soon(host.delete(volume))
                await ClockCycles(dut.clk, 600)
                if volume in host.inside.values():
                    host.hold = False
                await task
            else:
                sectors = host.config.sector_emulation and host.random.random() < 0.5
                await host.create(volume, sectors=sectors)
            if host.random.random() < 0.5:
                await submit()
        look()
        if host.random.random() < 0.3:
            host.hold = False
            await ClockCycles(dut.clk, 3000)
    host.hold = False
    for queue, identifier, *_ in list(waiting):
        pair = host.queues[queue]
        if identifier in pair.waiting:
            await pair.waiting[identifier].ended.wait()
    await ClockCycles(dut.clk, 10)
    look()
    assert not waiting
    assert min(ended.values()) > 5, f"one-sided: {ended}"
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def late_commands_are_known(dut):
    """Volumes are told something, one or several at once, one of them as another volume comes.
    Those commands are late that were submitted to them before, whatever they wait for; those of
    other volumes, and those that come after, are not."""
    host = await bench(dut)
    others = [n for n in range(host.config.volumes) if n != BESIDE]
    for volume in range(host.config.volumes - 1):
        await host.create(volume)
    newest = host.config.volumes - 1

    def place(queue: int, volume: int, block: int) -> tuple[int, int, tuple[int, int]]:
        first = host.life[volume] * SPAN + block
        fields = nvme.read_write(nvme.WRITE, volume + 1, first, 1)
        return queue, host.place(host.queues[queue], **fields, prp1=host.shared), (volume, first)

    for round_number in range(12):
        host.hold = True
        placed = [place(1, BESIDE, 15) for _ in range(host.config.commands)]
        await host.ring(host.queues[1])
        await ClockCycles(dut.clk, 1500)
        assert len(host.inside) == host.config.commands
        there = sorted(host.life)
        told = {n for n in there if n in others and host.random.random() < 0.5} or {others[0]}
        expected: dict[tuple[int, int], int] = {}
        for late in (1, 0):
            for number in range(host.random.randint(1, 20)):
                volume = host.random.choice(there)
                entry = place(2, volume, (number % 5) + 5 * late)
                placed.append(entry)
                expected[entry[2]] = int(late and volume in told)
            await host.ring(host.queues[2])
            await ClockCycles(dut.clk, host.random.choice((30, 500)))
            if late:
                comes = newest not in host.life and round_number > 4
                task = cocotb.start_soon(host.create(newest)) if comes else None
                if comes:
                    await wait_until(
                        dut, lambda: newest in host.volumes, cycles=4000, what="the new volume"
                    )
                dut.tellings__told.value = sum(1 << volume for volume in told)
                await RisingEdge(dut.clk)
                dut.tellings__told.value = 0
                # The host knows some time after that.
                await ClockCycles(dut.clk, 10)
                if task is not None:
                    await task
        host.hold = False
        for queue, identifier, _ in placed:
            answer = await host.result(host.queues[queue], identifier)
            assert answer.code == nvme.SUCCESS, answer
        seen = {one: host.seen_late[one] for one in expected}
        assert seen == expected, f"round {round_number}, told {told}"
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def answers_are_posted(dut):
    """Ends that tell something, while the host takes writes or takes none and disables the
    controller: of each it is said whether it has a completion queue entry."""
    host = await bench(dut)
    await host.create(VICTIM)
    shape, told = telling(host.config), answer(host.config)
    answered: list[int] = []
    posts = host.sinks[2]
    both = 0

    async def watch() -> None:
        while True:
            await RisingEdge(dut.clk)
            if sample(dut.tellings__hearing__answered__valid):
                seen = unpack(told, sample(dut.tellings__hearing__answered__payload))
                assert seen.volume == VICTIM
                answered.append(seen.posted)

    cocotb.start_soon(watch())
    for wait in (0, 5, 20, 40, 80, 1000):
        answered.clear()
        host.hold = True
        placed = [host.place(host.queues[1], opcode=nvme.FLUSH, nsid=VICTIM + 1) for _ in range(6)]
        await host.ring(host.queues[1])
        await ClockCycles(dut.clk, 1000)
        assert len(host.inside) == len(placed)
        dut.tellings__tells.value = pack(shape, any=1, volume=VICTIM)
        posts.active = 0.5
        host.hold = False
        await ClockCycles(dut.clk, wait)
        posts.active = 0.0
        await ClockCycles(dut.clk, 40)
        await host.write32(nvme.CC, 0)
        await ClockCycles(dut.clk, 200)
        posts.active = 1.0
        await host.wait_status(0)
        dut.tellings__tells.value = 0
        await ClockCycles(dut.clk, 2 * host.latency)
        entries = [one for one in placed if one in host.queues[1].done]
        assert len(answered) == len(placed), answered
        assert len(entries) == sum(answered), f"{wait}: {answered}, {len(entries)} entries"
        both += 0 < len(entries) < len(placed)
        await host.enable()
        for number in (1, 2):
            await host.create_pair(number, 64)
    assert both, "each time all were answered, or none"


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def what_the_host_has_taken_is_known(dut):
    """Some ends tell something, and the host takes any number of entries at a time: it is said of a
    completion queue when the last of those that tell has been taken, and when the queue goes."""
    host = await bench(dut)
    await host.create(VICTIM)
    shape = telling(host.config)
    heard: list[int] = []
    unheard: list[int] = []
    untaken: dict[int, list[bool]] = {1: [], 2: []}
    entries = {1: 5, 2: 9}

    async def watch() -> None:
        while True:
            await RisingEdge(dut.clk)
            for name, seen in (("heard", heard), ("unheard", unheard)):
                bits = sample(getattr(dut, f"tellings__hearing__{name}"))
                if bits:
                    seen.append(bits)

    async def begin() -> None:
        for number, count in entries.items():
            await host.create_pair(number, 64, cq_entries=count)
            host.completions[number].automatic = False
            untaken[number].clear()

    async def delete(number: int) -> None:
        await host.good(opcode=nvme.DELETE_SQ, dwords=(number,))
        await host.good(opcode=nvme.DELETE_CQ, dwords=(number,))

    async def take(number: int, count: int) -> None:
        queue = host.completions[number]
        queue.head = (queue.head + count) % queue.entries
        await host.write32(nvme.DOORBELLS + 8 * number + 4, queue.head)
        await ClockCycles(dut.clk, 30)
        tells = untaken[number]
        expected = [1 << number] if any(tells) and not any(tells[count:]) else []
        assert heard == expected, f"{count} of {tells} of queue {number}: {heard}"
        heard.clear()
        del tells[:count]

    async def submit(number: int) -> None:
        tells = host.random.random() < 0.3
        dut.tellings__tells.value = pack(shape, any=tells, volume=VICTIM)
        queue = host.queues[number]
        identifier = host.place(queue, opcode=nvme.FLUSH, nsid=VICTIM + 1)
        await host.ring(queue)
        await host.result(queue, identifier)
        untaken[number].append(tells)

    for number in entries:
        await delete(number)
    cocotb.start_soon(watch())
    await begin()
    wrapped = 0
    for _ in range(3):
        for _ in range(150):
            number = host.random.choice(tuple(entries))
            room = entries[number] - 1 - len(untaken[number])
            if room and host.random.random() < 0.7:
                await submit(number)
                wrapped += host.completions[number].tail == 0
            elif untaken[number]:
                await take(number, host.random.randint(1, len(untaken[number])))
        assert not unheard
        dut.tellings__tells.value = 0
        for number in entries:
            await delete(number)
        assert not heard and unheard == [1 << number for number in entries], unheard
        unheard.clear()
        # What lay in a queue that has gone says nothing about the next one.
        await begin()
        for number in entries:
            await submit(number)
            await take(number, 1)
        await host.write32(nvme.CC, 0)
        await host.wait_status(0)
        assert unheard == [(1 << host.config.queue_pairs + 1) - 1], unheard
        unheard.clear()
        await host.enable()
        await begin()
    assert wrapped > 20
    dut.tellings__tells.value = 0


@pytest.mark.parametrize("data_width", [pytest.param(64, marks=pytest.mark.slow), 256])
def test_nvme_lifetimes(data_width):
    run_front_end(__name__, data_width=data_width)


class TakesAnyone(Lifetimes):
    """A planted bug: a command finds the volume that there is."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.read.belongs.eq(self.read.there)
        return m


class ForgetsWhoIsTold(Lifetimes):
    """A planted bug: nothing is known of commands that were submitted before."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.read.late.eq(0)
        return m


@pytest.mark.parametrize(
    ("bug", "testcase"),
    [
        (TakesAnyone, "old_commands_find_no_new_volume"),
        (ForgetsWhoIsTold, "late_commands_are_known"),
    ],
)
@pytest.mark.slow
def test_planted_bugs_are_caught(bug, testcase, monkeypatch):
    monkeypatch.setattr("hdl.nvme.front_end.Lifetimes", bug)
    with pytest.raises(SimulationError, match=testcase):
        run_front_end(__name__, name=f"nvme_{bug.__name__}", testcase=testcase)
