"""What drives that begin anew have lost is told, by a Flush that is refused, once."""


import cocotb
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.background.background_bench import Assembly, Bench, begin
from cocotb_tests.runner import simulate
from cocotb_tests.streams import pack, sample, unpack
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.manage import ManageOpcode
from hdl.flow.reference import answer, command_begin, telling


async def begins(host: Bench, slot: int, volume: int, *, late: bool = False) -> None:
    """A command of a volume gets a slot."""
    dut, layout = host.dut, command_begin(host.config)
    dut.slots__begun__payload.value = pack(layout, slot=slot, volume=volume, late=late)
    dut.slots__begun__valid.value = 1
    await RisingEdge(dut.clk)
    dut.slots__begun__valid.value = 0
    await ClockCycles(dut.clk, 2)


async def ends(
    host: Bench, slot: int, *, posted: bool = True, cycles: int = 0, queue: int = 0
) -> None:
    """Its command leaves a slot; if that is to tell, the answer comes ``cycles`` later, in the
    completion queue ``queue``."""
    dut = host.dut
    dut.slots__ended__payload.value, dut.slots__ended__valid.value = slot, 1
    await RisingEdge(dut.clk)
    told = unpack(telling(host.config), sample(dut.tellings__tells))
    dut.slots__ended__valid.value = 0
    await ClockCycles(dut.clk, 2 + cycles)
    if told.any:
        layout = answer(host.config)
        fields = {"volume": told.volume, "posted": posted, "queue": queue}
        dut.tellings__hearing__answered__payload.value = pack(layout, **fields)
        dut.tellings__hearing__answered__valid.value = 1
        await RisingEdge(dut.clk)
        dut.tellings__hearing__answered__valid.value = 0
        await ClockCycles(dut.clk, 2)


async def late_ones(host: Bench, *slots: int) -> set[int]:
    """Those whose command was submitted before its volume was told."""
    found = set()
    for slot in slots:
        host.dut.late__address.value = slot
        await ClockCycles(host.dut.clk, 2)
        if sample(host.dut.late__data):
            found.add(slot)
    return found


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def what_is_lost_is_told(dut):
    """A drive restarts while the array needs it, as another one is rebuilt: the loss stays to be
    told, though the array is optimal by then, and though the drive goes."""
    host = await begin(dut)
    other = await host.create(Level.JBOD, 7)
    for gone in (False, True):
        array = await host.create(Level.RAID5, 0, 1, 2)
        volumes = [
            await host.good(ManageOpcode.CREATE_VOLUME, array=number, start=start, blocks=4)
            for number, start in ((array, 0), (other, 0), (array, 4), (array, 8))
        ]
        await host.good(ManageOpcode.DELETE_VOLUME, volume=volumes[3])
        indebted = 1 << volumes[0] | 1 << volumes[2]
        await host.write(array, 3)
        host.paused = True
        await host.restart(1)
        await host.until(lambda: bool(host.out), "rows")
        assert not sample(dut.arrays__indebted)
        await host.restart(2)
        await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=200)
        assert sample(dut.drives__suspect) == 4
        # If it does so again, it is looked at again.
        await host.restart(2)
        assert sample(dut.drives__suspect) == sample(dut.doubted) == 4
        await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=200)
        assert sample(dut.drives__suspect) == 4
        host.paused = False
        lost, rests = [], cocotb.start_soon(host.rest())
        while not rests.done():
            lost.append((sample(dut.drives__failed) | sample(dut.drives__stale)) & 4)
            await RisingEdge(dut.clk)
        assert host.state(array) == ArrayState.OPTIMAL
        # It was flushed for the jobs, so it is suspect no longer.
        assert not sample(dut.drives__suspect)
        assert not any(lost), "the drive is brought up to date from what it lost"
        assert sample(dut.arrays__indebted) == indebted
        if gone:
            host.pull(2)
            await host.rest()
            assert not sample(dut.drives__suspect)
            assert sample(dut.arrays__indebted) == indebted
        # Each volume is told by its own flush; one that is new has nothing to be told.
        late = await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=8, blocks=4)
        await begins(host, 1, volumes[2])
        await begins(host, 2, volumes[0])
        owed = indebted
        for slot, volume in enumerate((volumes[2], volumes[0]), 3):
            await begins(host, slot, volume)
            dut.blamed.value, dut.blame__volume.value, dut.blame__blames.value = 4, volume, 1
            dut.blame__slot.value = slot
            await RisingEdge(dut.clk)
            dut.blamed.value = dut.blame__blames.value = 0
            await ClockCycles(dut.clk, 2)
            assert not sample(dut.drives__suspect) and sample(dut.arrays__indebted) == owed
            # The host does not know until that has ended, whatever ends before.
            await begins(host, 5, volume)
            await ends(host, 2)
            assert sample(dut.arrays__indebted) == owed and not await late_ones(host, 2, slot, 5)
            # Nor if it gets no completion: then the next Flush tells.
            await ends(host, slot, posted=False)
            await begins(host, slot, volume)
            await ends(host, slot)
            assert sample(dut.arrays__indebted) == owed and not await late_ones(host, 2, slot, 5)
            await begins(host, slot, volume)
            dut.blame__volume.value, dut.blame__blames.value = volume, 1
            await RisingEdge(dut.clk)
            dut.blame__blames.value = 0
            cocotb.start_soon(ends(host, slot))
            await host.until(lambda: bool(sample(dut.tellings__told)), "the news", cycles=10)
            assert sample(dut.tellings__told) == 1 << volume
            await ClockCycles(dut.clk, 3)
            owed &= ~(1 << volume)
            assert sample(dut.arrays__indebted) == owed
            await begins(host, 6, volume)
            await begins(host, 7, volume, late=True)
            assert await late_ones(host, 5, 6, 7) == {5, 7}
        assert await late_ones(host, 1, 2, 6, 7) == {1, 2, 7}
        await host.rest()
        assert not sample(dut.drives__suspect) and not sample(dut.arrays__indebted)
        # The next array in its place owes nothing for it.
        if not gone:
            await host.restart(0)
            await host.restart(1)
            await host.rest()
            assert sample(dut.arrays__indebted) == 1 << volumes[0] | 1 << volumes[2] | 1 << late
        host.plug(2)
        for volume in (*volumes[:3], late):
            await host.good(ManageOpcode.DELETE_VOLUME, volume=volume)
        assert not sample(dut.arrays__indebted), "volumes are gone"
        await host.good(ManageOpcode.DELETE_ARRAY, array=array)
    assert await host.create(Level.RAID1, 0, 1) == 1
    assert not sample(dut.arrays__indebted) and not sample(dut.drives__suspect)


async def refuse(dut, host, slot: int, volume: int) -> None:
    """A command of an indebted volume on port 3 begins, and ends as it is refused."""
    await begins(host, slot, volume)
    dut.blamed.value, dut.blame__volume.value, dut.blame__blames.value = 8, volume, 1
    dut.blame__slot.value = slot
    await RisingEdge(dut.clk)
    dut.blamed.value = dut.blame__blames.value = 0
    await ClockCycles(dut.clk, 2)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def what_is_lost_later_is_told_later(dut):
    """A drive restarts again before the Flush that tells has ended, or before its completion is
    posted: the host learns nothing of that by it. The next one tells."""
    host = await begin(dut)
    array = await host.create(Level.JBOD, 3)
    volume = await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=0, blocks=4)

    await host.restart(3)
    await host.rest()
    await refuse(dut, host, 1, volume)
    await host.restart(3)
    await host.rest()
    await begins(host, 2, volume)
    await ends(host, 1)
    assert sample(dut.arrays__indebted) == 1 << volume and not await late_ones(host, 2)
    await refuse(dut, host, 3, volume)
    # Its slot may be another's before its completion is posted.
    end = cocotb.start_soon(ends(host, 3, cycles=400))
    await ClockCycles(dut.clk, 20)
    await host.restart(3)
    await host.rest()
    await refuse(dut, host, 3, volume)
    await ends(host, 3)
    assert not end.done() and sample(dut.arrays__indebted) == 1 << volume
    await end
    assert sample(dut.arrays__indebted) == 1 << volume and not await late_ones(host, 2)
    await refuse(dut, host, 3, volume)
    await ends(host, 3)
    assert not sample(dut.arrays__indebted) and await late_ones(host, 2) == {2}


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_is_lost_as_it_is_told_is_told_too(dut):
    """A drive restarts again, which counts as a loss in any of the cycles around that in which the
    host is told of the loss before. The next Flush tells of this one."""
    host = await begin(dut)
    array = await host.create(Level.JBOD, 3)
    volume = await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=0, blocks=4)

    await host.restart(3)
    judged = 0
    while not sample(dut.arrays__indebted):
        await RisingEdge(dut.clk)
        judged += 1
        assert judged < 1000, "no verdict"
    await host.rest()
    before = after = 0
    for wait in range(max(0, judged - 40), judged + 10):
        await refuse(dut, host, 1, volume)
        again = cocotb.start_soon(host.restart(3))
        await ClockCycles(dut.clk, wait)
        told = cocotb.start_soon(ends(host, 1))
        news = 0
        while not told.done():
            news += bool(sample(dut.tellings__told))
            await RisingEdge(dut.clk)
        await again
        await host.rest()
        # Nothing is told if more has been lost by then.
        before, after = before + (not news), after + (news != 0)
        assert sample(dut.arrays__indebted) == 1 << volume, f"{wait}: the second loss is forgotten"
    assert before and after, f"told {after} times, in vain {before} times"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_is_not_heard_is_told_again(dut):
    """The entry that tells a volume lies in a completion queue. If the queue goes before the host
    has taken the entry, the volume is indebted again; if it goes after that, it is not."""
    host = await begin(dut)
    array = await host.create(Level.JBOD, 3)
    volumes = [
        await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=start, blocks=4)
        for start in (0, 4)
    ]
    last = host.config.queue_pairs
    every = (1 << last + 1) - 1

    async def pulse(name: str, bits: int) -> int:
        getattr(dut, f"tellings__hearing__{name}").value = bits
        await RisingEdge(dut.clk)
        getattr(dut, f"tellings__hearing__{name}").value = 0
        await ClockCycles(dut.clk, 2)
        return sample(dut.arrays__indebted)

    def untaken() -> int:
        return sample(dut.arrays__untaken)

    async def tell(volume: int, queue: int) -> None:
        await begins(host, 1, volume)
        dut.blamed.value, dut.blame__volume.value, dut.blame__blames.value = 8, volume, 1
        dut.blame__slot.value = 1
        await RisingEdge(dut.clk)
        dut.blamed.value = dut.blame__blames.value = 0
        await ClockCycles(dut.clk, 2)
        await ends(host, 1, queue=queue)

    first, second = (1 << volume for volume in volumes)
    for _ in range(2):
        await host.restart(3)
        await host.rest()
        assert sample(dut.arrays__indebted) == first | second
        await tell(volumes[0], 1)
        await tell(volumes[1], last)
        assert not sample(dut.arrays__indebted)
        # Other queues go, or are read, and nothing follows.
        others = every & ~(1 << 1) & ~(1 << last)
        assert await pulse("heard", others) == await pulse("unheard", others) == 0
        assert untaken() == first | second
        assert await pulse("unheard", 1 << 1) == first and untaken() == second
        assert await pulse("unheard", 1 << 1) == first and untaken() == second
        # It is told again, in another queue: only that counts from then on.
        await tell(volumes[0], 0)
        assert sample(dut.arrays__indebted) == 0
        assert await pulse("heard", 1 << 1) == await pulse("unheard", 1 << 1) == 0
        assert untaken() == first | second
        assert await pulse("heard", 1 << last) == 0 and untaken() == first
        assert await pulse("unheard", every) == first and not untaken()
        await tell(volumes[0], 2)
        assert await pulse("heard", 1 << 2) == await pulse("unheard", every) == 0
        # Those that were told hear of nothing else by it.
        assert await pulse("heard", every) == 0 and not untaken()
    await host.restart(3)
    await host.rest()
    await tell(volumes[0], 1)
    await tell(volumes[1], 1)
    await host.good(ManageOpcode.DELETE_VOLUME, volume=volumes[0])
    again = await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=0, blocks=4)
    assert again == volumes[0] and await pulse("unheard", every) == second, "of another volume"
    # It is on its way as the volume goes and another one comes.
    await host.restart(3)
    await host.rest()
    await refuse(dut, host, 1, again)
    end = cocotb.start_soon(ends(host, 1, cycles=1000, queue=1))
    await ClockCycles(dut.clk, 20)
    await host.good(ManageOpcode.DELETE_VOLUME, volume=again)
    await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=0, blocks=4)
    await begins(host, 2, again)
    assert not end.done(), "too late"
    await end
    assert not await late_ones(host, 2), "another volume was told"
    assert await pulse("unheard", every) == second, "of another volume"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_was_inside_is_told_again(dut):
    """Writes are inside as a drive restarts. The volume is told again if one ends with success
    after that has been told, or while it is on its way. It is not if the write has ended before, or
    was not inside then."""
    host = await begin(dut)
    array, other = await host.create(Level.JBOD, 3), await host.create(Level.JBOD, 7)
    # No volume has the number of its array.
    foreign = await host.good(ManageOpcode.CREATE_VOLUME, array=other, start=0, blocks=4)
    volume = await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=0, blocks=4)
    assert volume != array and foreign != other
    owes = 1 << volume

    async def cached(slot: int) -> int:
        """The write in a slot ends with success. Returns what is owed."""
        dut.slots__cached__payload.value, dut.slots__cached__valid.value = slot, 1
        await RisingEdge(dut.clk)
        dut.slots__cached__valid.value = 0
        await ClockCycles(dut.clk, 3)
        return sample(dut.arrays__indebted)

    async def lose() -> None:
        for slot in range(10, 14):
            await begins(host, slot, volume)
        await begins(host, 14, foreign)
        await host.restart(3)
        await host.rest()
        assert sample(dut.arrays__indebted) == owes
        for slot in range(20, 22):
            await begins(host, slot, volume)
        # All arrays are judged again, and nothing more is lost.
        host.pull(6)
        await host.rest()
        host.plug(6)
        await host.rest()
        assert sample(dut.drives__suspect) == 1 << 3

    for _ in range(2):
        await lose()
        # What ends before the Flush does is told by it.
        assert await cached(10) == owes
        await refuse(dut, host, 1, volume)
        assert await cached(11) == owes
        await ends(host, 1)
        assert not sample(dut.arrays__indebted)
        assert await cached(20) == await cached(14) == 0
        assert await cached(12) == owes
        await refuse(dut, host, 1, volume)
        await ends(host, 1)
        assert not sample(dut.arrays__indebted)
        assert await cached(21) == 0
        # The Flush has ended, and the host has not been told yet.
        await lose()
        for slot, told in ((10, False), (20, True), (14, True)):
            await refuse(dut, host, 1, volume)
            end = cocotb.start_soon(ends(host, 1, cycles=100))
            await ClockCycles(dut.clk, 20)
            assert await cached(slot) == owes
            await end
            assert sample(dut.arrays__indebted) == (0 if told else owes), slot
            # Another one that was inside ends later.
            assert await cached(11) == owes


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_ends_as_it_is_told_is_told_again(dut):
    """A write that was inside as a drive restarted ends in any of the cycles around that in which
    the host is told. Its completion has left behind that of the Flush, so the next one tells."""
    host = await begin(dut)
    array = await host.create(Level.JBOD, 3)
    volume = await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=0, blocks=4)
    outcomes: set[bool] = set()
    for wait in range(1, 16):
        await begins(host, 10, volume)
        await host.restart(3)
        await host.rest()
        await refuse(dut, host, 1, volume)
        end = cocotb.start_soon(ends(host, 1, cycles=4))
        told = False
        for cycle in range(30):
            dut.slots__cached__payload.value = 10
            dut.slots__cached__valid.value = int(cycle == wait)
            await RisingEdge(dut.clk)
            told |= bool(sample(dut.tellings__told))
        assert end.done()
        outcomes.add(told)
        assert sample(dut.arrays__indebted) == 1 << volume, f"{wait}: nobody is told of it"
    assert outcomes == {False, True}


def test_told():
    simulate(Assembly(), name="told", module=__name__)
