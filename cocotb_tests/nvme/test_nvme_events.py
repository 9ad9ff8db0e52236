"""Asynchronous events that come at any moment of the reading of the log page that they name."""

import os
import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.fields import ANY, Fields, check_fields
from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, start, wait_until
from hdl.nvme.admin.admin import Admin
from hdl.nvme.admin.events import LOGS, report
from hdl.nvme.codes import EventType
from hdl.nvme.records import finish, sqe
from sim.golden import nvme, nvme_logs

SENDING = 24
"""Cycles that a page is being sent for."""

AROUND = 12
"""Cycles looked at before a command is given and after it has ended."""

AMID, REQUESTED = 120, 300
"""Cycles after a request in which it is taken, and after which it surely is."""

HELD = 4
TOLD_CYCLES = 40
"""Longest from an event that may be told to its report."""

EVENTS = {
    nvme_logs.ERROR_EVENT: ({nvme_logs.INVALID_DOORBELL_REGISTER}, nvme_logs.ERROR_LOG),
    nvme_logs.HEALTH_EVENT: (
        {nvme_logs.RELIABILITY, nvme_logs.TEMPERATURE}, nvme_logs.SMART_LOG
    ),
    nvme_logs.VENDOR_EVENT: ({0}, nvme_logs.ARRAYS_LOG),
}  # fmt: skip
"""Of each type: what it may tell here, and the log page that it names."""

WARNINGS = (nvme_logs.WARN_DEGRADED, nvme_logs.WARN_TEMPERATURE)


class AdminBench:
    """Drives `Admin` alone: entries, pages that take `SENDING` cycles, and events."""

    def __init__(self, dut):
        self.dut = dut
        self.cycle = 0
        self.began: int | None = None
        self.reports: list[tuple[int, int]] = []
        self.requests: list[int] = []
        """Identifiers of the requests that are held."""
        self.identifier = 0
        config = bench_config()
        for name in ("sources__misuse__valid", "sources__misuse__payload", "sources__warning",
                     "sources__news", "probe__allocated", "parameter_read__done",
                     "parameter_read__error", "abort_access__tried", "abort_access__found",
                     "reports__posted", "clear"):  # fmt: skip
            getattr(dut, name).value = 0
        dut.entry_sizes_good.value = dut.io_queues.value = 0
        self.entry = StreamSource(dut, "entry", layout=sqe())
        self.finish = StreamSink(
            dut, "finish", layout=finish(config), ignores={"tells.volume": "nothing is told"}
        )
        self.note = StreamSink(
            dut, "note", callback=lambda _: None, ignores="test_nvme_logs reads the error log"
        )
        self.report = StreamSink(dut, "reports__ended", layout=report(), callback=self._reported)
        self.send = StreamSink(
            dut,
            "pages__request",
            callback=lambda _: self._send(),
            ignores="test_nvme_logs reads the pages",
        )
        self.sent = StreamSource(dut, "pages__response")
        for name in ("table_changes__request", "queue_changes__request", "parameter_read__request"):
            StreamSink(dut, name, callback=lambda _: None)
        for name in ("table_changes__response", "queue_changes__response"):
            StreamSource(dut, name)
        self.warning = 0
        self.held = 0
        self.status = 0
        cocotb.start_soon(self._count())

    async def _count(self) -> None:
        while True:
            await RisingEdge(self.dut.clk)
            self.cycle += 1

    def _reported(self, answer) -> None:
        self.held -= 1
        assert not answer.aborted
        self.requests.remove(answer.identifier)
        kind = answer.result & 7
        told, page = EVENTS[kind]
        assert answer.result in {kind | one << 8 | page << 16 for one in told}, hex(answer.result)
        self.reports.append((self.cycle, kind))

    def _send(self) -> None:
        self.began = self.cycle
        cocotb.start_soon(self._answer())

    async def _answer(self) -> None:
        await ClockCycles(self.dut.clk, SENDING)
        self.sent.send(self.status)

    async def run(self, **fields) -> None:
        """One command."""
        self.identifier = (self.identifier + 0x1357) % (1 << 16)
        # A request that is held has no entry yet.
        holds = fields["opcode"] == nvme.ASYNC_EVENT
        if holds:
            self.requests.append(self.identifier)
        self.entry.send(**fields, identifier=self.identifier)
        assert (await self.ended(post=int(not holds))).status == 0

    async def ended(self, *, post: int = 1) -> Fields:
        """The end of the command that was sent last."""
        seen = await self.finish.receive(cycles=1000)
        wanted = {"identifier": self.identifier, "status": seen.status, "post": post}
        check_fields(seen, wanted | {"tells": {"volume": ANY}}, "finish")
        return seen

    async def hold(self) -> None:
        """Keeps enough Asynchronous Event Requests there."""
        while self.held < HELD:
            self.held += 1
            await self.run(opcode=nvme.ASYNC_EVENT)

    async def read(self, event: EventType, *, retain: bool = False, at: int = 0) -> None:
        """Reads some of the log page of a type, from byte ``at`` on."""
        dword = LOGS[event].value | retain << 15 | 3 << 16
        await self.run(opcode=nvme.GET_LOG, cdw10=dword, cdw12=at)

    async def read_later(self, event: EventType) -> None:
        """The same after `AROUND` cycles."""
        await ClockCycles(self.dut.clk, AROUND)
        await self.read(event)

    async def happen(self, event: EventType) -> None:
        """One event, in the next cycle."""
        dut = self.dut
        if event == EventType.HEALTH:
            # Another warning each time; those that go are no event.
            self.warning ^= sum(WARNINGS)
            dut.sources__warning.value = self.warning
            await ClockCycles(dut.clk, 1)
            return
        pulse = dut.sources__misuse__valid if event == EventType.ERROR else dut.sources__news
        pulse.value = 1
        await ClockCycles(dut.clk, 1)
        pulse.value = 0


async def admin_bench(dut) -> AdminBench:
    bench = AdminBench(dut)
    await start(dut)
    await bench.run(opcode=nvme.SET_FEATURES, cdw10=11, cdw11=sum(WARNINGS))
    bench.warning = WARNINGS[0]
    dut.sources__warning.value = bench.warning
    await bench.hold()
    await ClockCycles(dut.clk, TOLD_CYCLES)
    await bench.read(EventType.HEALTH)
    bench.reports.clear()
    return bench


async def reported(bench: AdminBench, event: EventType) -> int:
    """How many events of a type have been reported."""
    await ClockCycles(bench.dut.clk, TOLD_CYCLES)
    assert all(kind == event.value for _, kind in bench.reports)
    count = len(bench.reports)
    bench.reports.clear()
    await bench.hold()
    return count


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def no_event_is_forgotten(dut):
    """One event was told. The page is read, and in one of its cycles there is another."""
    bench = await admin_bench(dut)
    covered = kept = 0
    for event in (EventType.ERROR, EventType.HEALTH, EventType.VENDOR):
        for at in range(3 * AROUND + SENDING):
            await bench.happen(event)
            assert await reported(bench, event) == 1, "an event was not told"
            bench.began = None
            reading = cocotb.start_soon(bench.read_later(event))
            await ClockCycles(dut.clk, at + 1)
            before = bench.began is None
            await bench.happen(event)
            happened = bench.cycle
            await reading
            count = await reported(bench, event)
            assert bench.began is not None
            if happened > bench.began:
                assert count == 1, f"{event}: came {happened - bench.began} cycles into the page"
                kept += 1
            elif before and happened < bench.began - 1:
                assert count == 0, f"{event}: told although the page had it"
                covered += 1
            await bench.read(event)
            assert await reported(bench, event) == 0
    assert covered and kept > 3 * SENDING, f"{covered} covered, {kept} kept"


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def what_is_told_stays_masked(dut):
    """An event is told while the page is being read: it is masked until the page is read again."""
    bench = await admin_bench(dut)
    for event in (EventType.ERROR, EventType.HEALTH, EventType.VENDOR):
        for at in range(SENDING):
            bench.began = None
            reading = cocotb.start_soon(bench.read(event))
            await wait_until(dut, lambda: bench.began is not None, cycles=100, what="the page")
            await ClockCycles(dut.clk, at)
            await bench.happen(event)
            await reading
            assert await reported(bench, event) == 1, "an event was not told"
            await bench.happen(event)
            assert await reported(bench, event) == 0, "told twice before its page was read"
            await bench.read(event, retain=True)
            assert await reported(bench, event) == 0, "told although the page was retained"
            bench.status = 1 << 1
            bench.entry.send(
                opcode=nvme.GET_LOG,
                cdw10=LOGS[event].value | 3 << 16,
                identifier=bench.identifier,
            )
            assert (await bench.ended()).status
            bench.status = 0
            assert await reported(bench, event) == 0, "told although the page was not read"
            await bench.read(event)
            assert await reported(bench, event) == 0


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def pages_in_parts(dut):
    """A page is read by several commands, the last without Retain Asynchronous Event: what came
    after the first had been begun is told, and what it has is not."""
    bench = await admin_bench(dut)
    for event in (EventType.ERROR, EventType.HEALTH, EventType.VENDOR):
        for place in (None, 0, 1, 2):
            await bench.happen(event)
            assert await reported(bench, event) == 1, "an event was not told"
            if place == 0:
                await bench.happen(event)
            await bench.read(event, retain=True)
            if place == 1:
                await bench.happen(event)
            await bench.read(event, retain=True, at=16)
            if place == 2:
                await bench.happen(event)
            assert await reported(bench, event) == 0, "told although the page was retained"
            await bench.read(event, at=32)
            wanted = int(place in (1, 2))
            assert await reported(bench, event) == wanted, f"an event before part {place}"
            await bench.read(event)
            assert await reported(bench, event) == 0
        # Any part without Retain Asynchronous Event clears the event; it need not be the whole.
        await bench.happen(event)
        assert await reported(bench, event) == 1
        await bench.read(event, at=16)
        await bench.happen(event)
        assert await reported(bench, event) == 1, "a part that was read did not clear the event"
        await bench.read(event)
        assert await reported(bench, event) == 0


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def a_reset_forgets(dut):
    """What was told before a reset of the controller masks nothing after it, and what was not told
    then is not told any more; nor are requests of before it answered."""
    bench = await admin_bench(dut)

    async def reset() -> None:
        # A warning that is still there would be told again.
        dut.sources__warning.value = 0
        bench.warning = WARNINGS[1]
        dut.clear.value = 1
        await ClockCycles(dut.clk, 1)
        dut.clear.value = 0
        bench.held = 0
        bench.requests.clear()
        await bench.run(opcode=nvme.SET_FEATURES, cdw10=11, cdw11=sum(WARNINGS))

    for event in (EventType.ERROR, EventType.HEALTH, EventType.VENDOR):
        for waits in (False, True):
            await bench.happen(event)
            assert await reported(bench, event) == 1
            if waits:
                # Another one, which is masked.
                await bench.happen(event)
                assert await reported(bench, event) == 0
            await reset()
            if waits:
                await bench.happen(event)
                await ClockCycles(dut.clk, TOLD_CYCLES)
                assert not bench.reports, "a request of before the reset is answered"
            assert await reported(bench, event) == 0, "told what was before the reset"
            assert bench.held == HELD
            if waits:
                # Now there are requests.
                assert await reported(bench, event) == 1, "an event of before the requests is lost"
            else:
                await bench.happen(event)
                assert await reported(bench, event) == 1, "masked from before the reset"
            await bench.read(event)
            assert await reported(bench, event) == 0


@cocotb.test(timeout_time=16, timeout_unit="ms")
async def pages_and_events_agree(dut):
    """On the front end: what a page does not show is told after it, however they meet."""
    config = bench_config()
    host = Bench(dut, config, int(os.environ["SEED"]))
    await host.reset()
    await host.enable()
    generator = random.Random(host.random.random())
    admin = host.queues[0]
    told = shown = 0
    requests: list[int] = []

    async def request() -> None:
        while len(requests) < 2:
            requests.append(host.place(admin, opcode=nvme.ASYNC_EVENT))
            await host.ring(admin)
            await host.good(opcode=nvme.GET_FEATURES, dwords=(4,))

    async def events() -> int:
        await ClockCycles(dut.clk, 600)
        done = [identifier for identifier in requests if identifier in admin.done]
        for identifier in done:
            requests.remove(identifier)
            admin.done.pop(identifier)
        return len(done)

    size = config.error_log_entries * nvme_logs.ERROR_ENTRY_BYTES

    async def entries() -> int:
        raw = await host.page_of(
            opcode=nvme.GET_LOG, dwords=(nvme_logs.ERROR_LOG | size // 4 - 1 << 16,), length=size
        )
        return max((entry.count for entry in nvme_logs.error_entries(raw)), default=0)

    await request()
    errors = 0
    for _ in range(30):
        await host.write32(nvme.DOORBELLS + 0xFF0, 1)
        errors += 1
        assert await events() == 1
        await request()
        reading = cocotb.start_soon(entries())
        await ClockCycles(dut.clk, generator.randrange(generator.choice((80, 1200))))
        await host.write32(nvme.DOORBELLS + 0xFF0, 1)
        errors += 1
        seen = await reading
        count = await events()
        assert seen == errors or count == 1, f"error {errors} is not in the page, nor told"
        shown += seen == errors
        told += count
        await request()
        await entries()
        assert await events() == 0
    print(f"{shown} shown, {told} told")
    assert told > 5 and shown > 1
    host.queues[0].waiting.clear()
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def an_event_amid_a_request_is_told(dut):
    """The completion queue has one place, and another request has it for some cycles as the event
    comes. It gives the place back, and the host rings nothing that could help."""
    host = Bench(dut, bench_config(), int(os.environ["SEED"]))
    await host.reset()
    for delay in range(AMID):
        await host.enable(cq_entries=2)
        admin = host.queues[0]
        first = host.place(admin, opcode=nvme.ASYNC_EVENT)
        await host.ring(admin)
        await ClockCycles(dut.clk, REQUESTED)
        host.place(admin, opcode=nvme.ASYNC_EVENT)
        await host.ring(admin)
        await ClockCycles(dut.clk, delay)
        await host.write32(nvme.DOORBELLS + 0xFF0, 1)
        answer = await host.result(admin, first, cycles=3000)
        assert answer.code == nvme.SUCCESS, answer
        await host.write32(nvme.CC, 0)
        await host.wait_status(0)
        admin.done.clear()
    await host.settle()


def test_events_of_admin():
    simulate(
        Admin(config=bench_config()),
        name="nvme_events",
        module=__name__,
        testcase=[
            "no_event_is_forgotten",
            "what_is_told_stays_masked",
            "pages_in_parts",
            "a_reset_forgets",
        ],
    )


def test_events_of_the_front_end():
    run_front_end(
        __name__, testcase=["pages_and_events_agree", "an_event_amid_a_request_is_told"]
    )


class ForgetsAll(Admin):
    """A planted bug: a page that has been read clears what came while it was sent, too."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.events.logs.begun.eq(~0)
        return m


@pytest.mark.slow
def test_planted_bug_is_caught():
    for testcase in ("no_event_is_forgotten", "what_is_told_stays_masked"):
        with pytest.raises(SimulationError, match=testcase):
            simulate(
                ForgetsAll(config=bench_config()),
                name="nvme_events_mutant",
                module=__name__,
                testcase=testcase,
            )
