"""A host, its memory and a data path around `NvmeFrontEnd`, for its tests."""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import cocotb
from cocotb.triggers import ClockCycles, Event, RisingEdge

from cocotb_tests.memory.store_model import STORE_DELAY
from cocotb_tests.nvme.nvme_model import ADMIN_LINES, KEPT_LINES, DataPath, change_ignores
from cocotb_tests.runner import converted, simulate
from cocotb_tests.streams import StreamSink, StreamSource, every_cycle, sample, start, wait_until
from hdl.config import Config
from hdl.flow.host_command import command, completion
from hdl.flow.host_data import delivered, fetched, transfer
from hdl.flow.host_memory import (
    Kind,
    inbox_beat,
    inbox_dwords,
    read_done,
    read_request,
    write_request,
)
from hdl.flow.line import write_beat
from hdl.flow.manage import manage_request, manage_response
from hdl.flow.post import post
from hdl.flow.register_bus import RegisterBus
from hdl.memory.store import READ_LATENCY
from hdl.nvme.front_end import NvmeFrontEnd
from sim.golden import nvme
from sim.golden.nvme import PAGE, Cqe, Sqe

MEMORY_BYTES = 1 << 23
MESSAGE_BASE = 0xFEE0_0000
ADMIN_DEPTH = 8


def bench_config(data_width: int = 256) -> Config:
    """Small enough to build quickly, large enough for several of everything.

    At 64 bits without sector emulation, as `hdl.config.small`.
    """
    return Config(
        data_width=data_width,
        ports=4,
        lines=64,
        banks=4,
        commands=16,
        rows=8,
        operations=64,
        queue_pairs=3,
        queue_depth=64,
        arrays=2,
        volumes=4,
        transfer_blocks=8,
        sector_emulation=data_width > 64,
        intent_chunks=32,
    )


def run_front_end(
    module: str,
    *,
    name: str | None = None,
    testcase: str | Sequence[str] | None = None,
    data_width: int = 256,
) -> None:
    """Runs the cocotb tests of ``module``, or some, on a front end of `bench_config`."""
    simulate(
        converted(NvmeFrontEnd, config=bench_config(data_width)),
        name=name or f"nvme_w{data_width}",
        module=module,
        testcase=testcase,
        parameters={"DATA_WIDTH": str(data_width)},
    )


@dataclass
class Outstanding:
    """A command that has been submitted; ``entry`` is there once it has ``ended``."""

    ended: Event = field(default_factory=Event)
    entry: Cqe | None = None


@dataclass
class Queue:
    """A queue pair as the host keeps it.

    ``sq_head``: as the controller has told; ``unread``: slots whose entry it has not read yet.
    """

    number: int
    entries: int
    sq: int
    cq: int
    cq_number: int
    sq_tail: int = 0
    sq_head: int = 0
    unread: set[int] = field(default_factory=set)
    waiting: dict[int, Outstanding] = field(default_factory=dict)
    done: dict[int, Cqe] = field(default_factory=dict)


@dataclass
class Completions:
    """A completion queue as the host keeps it; ``automatic`` rings its doorbell at once."""

    number: int
    entries: int
    base: int
    tail: int = 0
    head: int = 0
    phase: int = 1
    automatic: bool = True


NOT_WRITTEN = {
    f"{opcode}:{name}": "of a write" for opcode in ("READ", "FLUSH") for name in ("head", "tail")
}
"""Fields without a meaning in a command for the data path."""


class Bench(DataPath):
    """Drivers, monitors and the host's state. Every check that always holds is made here.

    Parameters
    ----------
    active
        Chance that a stream moves in a cycle.

    While ``hold_lists`` is set, PRP lists do not come; while ``hold_entries`` is, submission queue
    entries of I/O queues do not; and with ``hold_admin_entries`` those of the admin queue. While
    ``holds_posted`` is set, writes to the host do not leave; while ``holds_flush`` is, the drives
    are not flushed, and unless ``caches_store`` not all of them store what they have as the write
    cache goes off. The host overwrites the slots of a submission queue that SQHD gives back to it
    at once. As an Abort says that it has aborted a command, that command's entry must have been
    posted, with Command Abort Requested (NVMe 1.4, 5.1.1).
    """

    def __init__(self, dut, config: Config, seed: int, active: float = 0.7):
        self.dut = dut
        self.config = config
        self.random = random.Random(seed)
        self.identity = random.Random(f"{seed}/identity").getrandbits(64)
        self.memory = bytearray(MEMORY_BYTES)
        self._pages = list(range(1, MEMORY_BYTES // PAGE))
        self.random.shuffle(self._pages)
        self._start_data_path()
        self.queues: dict[int, Queue] = {}
        self.completions: dict[int, Completions] = {}
        self.interrupts: list[int] = []
        self.posts = 0
        self.poisoned: set[int] = set()
        self.hold_lists = False
        self.hold_entries = self.hold_admin_entries = False
        self.entry_reads = 0
        self.holds_posted = False
        self.holds_flush = False
        self.flushes = 0
        self.cache_flushes = 0
        self.caches_store = True
        self.posted_until = 0
        self.unsettled: set[int] = set()
        self._aborts: dict[int, Outstanding | None] = {}
        self._transfers: dict[tuple, list] = {}
        self._beats: deque[tuple[int, int]] = deque()
        self.cycle = 0

        def sink(name, layout, callback, ignores=None):
            return StreamSink(
                dut, name, layout=layout, active=active, callback=callback, ignores=ignores
            )

        def source(name, layout):
            return StreamSource(dut, name, layout=layout, active=active)

        access = RegisterBus().members["request"].signature.members["payload"].shape
        self.register = source("register__request", access)
        self.response = StreamSink(dut, "register__response", active=active)
        self.inbox = source("host__inbox_write", inbox_beat(config))
        self.read_done = source("host__read_done", read_done(config))
        self.write_done = source("host__write_done", None)
        self.completion = source("commands__completion", completion(config))
        self.fetch = source("blocks__fetch", transfer(config))
        self.deliver = source("blocks__deliver", transfer(config))
        self.manage_response = source("table_changes__response", manage_response(config))
        self.allocate = source("lines__allocate", None)
        self.command_sink = sink("commands__command", command(config), self._command, NOT_WRITTEN)
        self.sinks = [
            sink("host__read_request", read_request(config), self._read),
            sink("host__write_request", write_request(config), self._write),
            sink("host__post", post(), self._post),
            self.command_sink,
            sink("blocks__fetched", fetched(config), self._fetched),
            sink("blocks__delivered", delivered(config), self._delivered),
            sink(
                "table_changes__request",
                manage_request(config),
                self._manage,
                change_ignores(config),
            ),
            sink("lines__write", write_beat(config), self._line_write),
            sink("lines__free", None, self.allocate.send),
            sink("lines__read__request", None, self._line_read),
        ]
        self.allocate.send_all(range(ADMIN_LINES))

    async def reset(self) -> None:
        """Starts the clock; MSI-X and bus mastering are enabled."""
        dut = self.dut
        for name in ("max_payload", "max_read_request", "rcb", "msix_mask"):
            getattr(dut, f"status__{name}").value = 0
        dut.status__bus_master.value = 1
        dut.host__messages__left.value = 1  # as soon as it has been posted
        dut.host__messages__dropped.value = 0
        dut.status__msix_enable.value = 1
        dut.now.value = 0
        dut.drives__present.value = 0
        dut.drives__failed.value = 0
        dut.drives__used.value = 0
        dut.volumes__exists.value = 0
        dut.drives__stale.value = 0
        dut.arrays__states.value = 0
        dut.arrays__unsynced.value = 0
        dut.arrays__assumed.value = 0
        dut.arrays__news.value = 0
        if self.config.sector_emulation:
            dut.drive_emulated.value = 0
        dut.temperature.value = 0
        dut.host__posted.value = 0
        dut.flushes__shutdown__flushed.value = 0
        every_cycle(dut.clk, self._post_late())
        cocotb.start_soon(self._flush())
        dut.flushes__cache__flushed.value = 0
        dut.flushes__cache__stored.value = 0
        cocotb.start_soon(self._flush_cache())
        dut.card__identity.value = self.identity
        dut.card__nonce.value = self.random.getrandbits(64)
        await start(dut)
        every_cycle(dut.clk, self._tables())
        every_cycle(dut.clk, self._answer_line_reads())

    def _post_late(self) -> Iterator[None]:
        """Says that writes have not left for some time after they were taken."""
        dut = self.dut
        streams = [
            (getattr(dut, f"{name}__valid"), getattr(dut, f"{name}__ready"))
            for name in ("host__post", "host__write_request")
        ]
        shown = None
        while True:
            yield
            if any(sample(valid) and sample(ready) for valid, ready in streams):
                self.posted_until = self.cycle + self.random.randint(1, self.latency)
            waits = self.holds_posted and self.posted_until
            posted = bool(waits) or self.cycle < self.posted_until
            if posted != shown:
                dut.host__posted.value = shown = posted

    async def _flush(self) -> None:
        """Answers each flush of a shutdown, with a pulse or a level."""
        dut = self.dut
        while True:
            if not sample(dut.flushes__shutdown__flush):
                await RisingEdge(dut.flushes__shutdown__flush)
            await RisingEdge(dut.clk)
            if not sample(dut.flushes__shutdown__flush) or sample(dut.rst):
                continue
            self.flushes += 1
            assert not self.in_flight, "a flush while commands are inside"
            await ClockCycles(dut.clk, self.random.randint(1, self.latency))
            while self.holds_flush:
                await RisingEdge(dut.clk)
            assert sample(dut.flushes__shutdown__flush), "a flush was taken back"
            dut.flushes__shutdown__flushed.value = 1
            await ClockCycles(dut.clk, self.random.randint(1, 3))
            dut.flushes__shutdown__flushed.value = 0

    async def _flush_cache(self) -> None:
        """Answers each flush as the write cache goes off."""
        dut = self.dut
        while True:
            if not sample(dut.flushes__cache__flush):
                await RisingEdge(dut.flushes__cache__flush)
            await RisingEdge(dut.clk)
            if not sample(dut.flushes__cache__flush) or sample(dut.rst):
                continue
            self.cache_flushes += 1
            await ClockCycles(dut.clk, self.random.randint(1, self.latency))
            while self.holds_flush:
                await RisingEdge(dut.clk)
            assert sample(dut.flushes__cache__flush), "a flush was taken back"
            dut.flushes__cache__stored.value = int(self.caches_store)
            dut.flushes__cache__flushed.value = 1
            await RisingEdge(dut.clk)
            while sample(dut.flushes__cache__flush):
                await RisingEdge(dut.clk)
            dut.flushes__cache__flushed.value = 0

    # Registers.

    async def write32(self, address: int, value: int) -> None:
        """A 32-bit register write; returns when it has been taken."""
        high = address % 8 == 4
        self.register.send(
            address=address & ~7,
            write=1,
            data=value << 32 if high else value,
            enable=0xF0 if high else 0x0F,
        )
        await self.register.drained()

    async def write64(self, address: int, value: int) -> None:
        """A 64-bit register write."""
        self.register.send(address=address, write=1, data=value, enable=0xFF)
        await self.register.drained()

    async def read64(self, address: int) -> int:
        """A 64-bit register read."""
        self.register.send(address=address, write=0, data=0, enable=0xFF)
        return await self.response.receive()

    async def read32(self, address: int) -> int:
        """A 32-bit register read."""
        value = await self.read64(address & ~7)
        return value >> 32 if address % 8 else value & 0xFFFF_FFFF

    # Bringing the controller up.

    def page(self, count: int = 1) -> int:
        """A page of host memory, or ``count`` adjacent ones."""
        if count == 1:
            return self._pages.pop() * PAGE
        free = set(self._pages)
        first = next(p for p in sorted(free) if all(p + n in free for n in range(count)))
        self._pages = [p for p in self._pages if not first <= p < first + count]
        return first * PAGE

    async def enable(self, *, sq_entries: int = ADMIN_DEPTH, cq_entries: int = ADMIN_DEPTH) -> None:
        """Creates the admin queues, unmasks all vectors and waits for CSTS.RDY."""
        queue = Queue(0, sq_entries, self.page(), self.page(), 0)
        self.queues = {0: queue}
        self.completions = {0: Completions(0, cq_entries, queue.cq)}
        for vector in range(self.config.queue_pairs + 1):
            table = nvme.MSIX_TABLE + 16 * vector
            await self.write64(table, MESSAGE_BASE + 4 * vector)
            await self.write64(table + 8, 0x4000 | vector)
        await self.write32(nvme.AQA, (cq_entries - 1) << 16 | sq_entries - 1)
        await self.write64(nvme.ASQ, queue.sq)
        await self.write64(nvme.ACQ, queue.cq)
        await self.write32(nvme.CC, nvme.CC_ENABLE)
        await self.wait_status(nvme.CSTS_READY)

    async def wait_status(self, wanted: int, mask: int = 0xF, polls: int = 400) -> None:
        """Polls CSTS."""
        for _ in range(polls):
            status = await self.read32(nvme.CSTS)
            if status & mask == wanted:
                return
        raise AssertionError(f"CSTS is {status:#x}, not {wanted:#x}")

    async def create_pair(
        self, number: int, entries: int, *, cq_entries: int = 0, vector: int | None = None
    ) -> Queue:
        """Creates CQ and SQ ``number``."""
        cq_entries = cq_entries or entries
        queue = Queue(
            number,
            entries,
            self.page(-(-entries * nvme.SQE_BYTES // PAGE)),
            self.page(-(-cq_entries * nvme.CQE_BYTES // PAGE)),
            number,
        )
        vector = number if vector is None else vector
        self.completions[number] = Completions(number, cq_entries, queue.cq)
        await self.good(
            opcode=nvme.CREATE_CQ,
            prp1=queue.cq,
            dwords=(cq_entries - 1 << 16 | number, vector << 16 | 3),
        )
        await self.good(
            opcode=nvme.CREATE_SQ,
            prp1=queue.sq,
            dwords=(entries - 1 << 16 | number, number << 16 | 1),
        )
        self.queues[number] = queue
        return queue

    # Commands.

    def place(self, queue: Queue, **fields) -> int:
        """Puts a command into the submission queue; the doorbell is `ring`."""
        identifier = self.random.randrange(1 << 16)
        while identifier in queue.waiting:
            identifier = self.random.randrange(1 << 16)
        assert len(queue.waiting) < queue.entries - 1, "the test overfills a submission queue"
        assert queue.sq_tail not in queue.unread, "the test overwrites a submission queue entry"
        entry = Sqe(identifier=identifier, **fields)
        self._submitted(entry, admin=queue.number == 0)
        at = queue.sq + queue.sq_tail * nvme.SQE_BYTES
        self.memory[at : at + nvme.SQE_BYTES] = entry.pack()
        queue.unread.add(queue.sq_tail)
        queue.sq_tail = (queue.sq_tail + 1) % queue.entries
        queue.waiting[identifier] = Outstanding()
        if queue.number == 0 and fields.get("opcode") == nvme.ABORT:
            victim, number = divmod(next(iter(fields.get("dwords", ())), 0), 1 << 16)
            named = self.queues.get(number)
            self._aborts[identifier] = named.waiting.get(victim) if named else None
        return identifier

    async def ring(self, queue: Queue) -> None:
        """Writes the submission queue's tail doorbell."""
        await self.write32(nvme.DOORBELLS + 8 * queue.number, queue.sq_tail)

    async def ring_head(self, number: int) -> None:
        """Writes a completion queue's head doorbell: all entries so far have been taken."""
        queue = self.completions[number]
        queue.head = queue.tail
        await self.write32(nvme.DOORBELLS + 8 * number + 4, queue.head)

    async def result(self, queue: Queue, identifier: int, cycles: int = 50_000) -> Cqe:
        """Waits for a command's completion."""
        await wait_until(
            self.dut,
            lambda: identifier in queue.done,
            cycles=cycles,
            what=f"completion of command {identifier:#x} of queue {queue.number}",
        )
        return queue.done.pop(identifier)

    async def run(self, queue: int = 0, **fields) -> Cqe:
        """Runs one command."""
        pair = self.queues[queue]
        identifier = self.place(pair, **fields)
        await self.ring(pair)
        return await self.result(pair, identifier)

    async def good(self, queue: int = 0, **fields) -> int:
        """Runs a command that must succeed; returns DW0."""
        answer = await self.run(queue, **fields)
        assert answer.code == nvme.SUCCESS, f"{fields}: {answer}"
        return answer.result

    async def bad(self, code: int, queue: int = 0, **fields) -> None:
        """Runs a command that must fail with ``code``."""
        answer = await self.run(queue, **fields)
        assert answer.code == code, f"{fields}: {answer.code:#x}, expected {code:#x}"
        assert answer.do_not_retry == (code not in nvme.MAY_RETRY), f"{fields}: DNR"

    async def page_of(self, *, length: int = PAGE, offset: int = 0, **fields) -> bytes:
        """Runs an admin command with data to the host, and returns the data."""
        pages = [self.page(), self.page()]
        for page in pages:
            self.memory[page : page + PAGE] = b"\xee" * PAGE
        prp1, prp2 = pages[0] + offset, pages[1] if offset + length > PAGE else 0
        await self.good(prp1=prp1, prp2=prp2, **fields)
        first = min(length, PAGE - offset)
        data = self.memory[prp1 : prp1 + first]
        data += self.memory[pages[1] : pages[1] + length - first]
        rest = self.memory[pages[1] + length - first : pages[1] + PAGE]
        assert rest == b"\xee" * len(rest), "more was sent than asked for"
        self._pages = [*self._pages, *(p // PAGE for p in pages)]
        return bytes(data)

    def buffer(self, blocks: int, *, offset: int = 0, list_room: int = PAGE // 8):
        """Host pages for a transfer and its PRPs: (pages, prp1, prp2).

        ``list_room``: entries from the list's first to the end of its page.
        """
        pages = [self.page() for _ in range(blocks + bool(offset))]
        lists = [self.page() + PAGE - 8 * list_room, self.page()]

        def write(address: int, data: bytes) -> None:
            self.memory[address : address + len(data)] = data

        prp1, prp2 = nvme.build_prps(pages, offset, write, lists)
        return pages, prp1, prp2

    def sector_buffer(self, length: int, *, offset: int = 0, list_room: int = PAGE // 8):
        """As `buffer`, for ``length`` bytes."""
        pages = [self.page() for _ in range(-(-(offset + length) // PAGE))]
        lists = [self.page() + PAGE - 8 * list_room, self.page()]

        def write(address: int, data: bytes) -> None:
            self.memory[address : address + len(data)] = data

        return pages, *nvme.build_prps(pages, offset, write, lists)

    def host_block(self, pages: list[int], offset: int, block: int) -> bytes:
        """The host's bytes of ``block`` of a transfer."""
        return b"".join(
            bytes(self.memory[a : a + n]) for a, n in nvme.segments(pages, offset, block)
        )

    async def settle(self, cycles: int = 20_000) -> None:
        """Waits until nothing moves, then checks that nothing is left over."""

        def quiet() -> bool:
            return not self.in_flight and all(sink.idle for sink in self.sinks) and all(
                s.idle
                for s in (self.register, self.inbox, self.read_done, self.write_done,
                          self.completion, self.fetch, self.deliver, self.manage_response)
            )  # fmt: skip

        await wait_until(self.dut, quiet, cycles=cycles, what="quiet")
        await ClockCycles(self.dut.clk, 200)
        assert quiet(), "something moved after everything had ended"
        assert not sample(self.dut.busy), "busy although nothing can move"
        assert self.allocate.waiting == ADMIN_LINES - KEPT_LINES, "an admin line was not given back"
        assert len(self.free_lines) == self.config.lines - ADMIN_LINES
        assert not self._transfers and not self._sending
        for queue in self.queues.values():
            assert not queue.done, f"queue {queue.number}: unexpected {queue.done}"

    # Host side of the streams.

    def _read(self, request) -> None:
        key = (request.kind, request.index)
        assert request.address % 4 == 0 and 1 <= request.dwords <= 1024
        self._transfers.setdefault(key, []).append(request)
        if request.last:
            cocotb.start_soon(self._answer(key, self._transfers.pop(key)))

    async def _answer(self, key, requests) -> None:
        kind, index = key
        self.in_flight += 1
        queue = self._queue_at(requests[0].address) if kind == Kind.ENTRIES else None
        self.entry_reads += kind == Kind.ENTRIES
        await ClockCycles(self.dut.clk, self.random.randint(1, self.latency))
        while self.hold_lists and kind == Kind.LIST:
            await RisingEdge(self.dut.clk)
        while queue is not None and (
            self.hold_entries if queue.number else self.hold_admin_entries
        ):
            await RisingEdge(self.dut.clk)
        error = any(request.address // PAGE in self.poisoned for request in requests)
        landing: list[tuple[int, bytes]] = []
        if kind == Kind.BLOCK:
            self.unsettled.add(index)
        for request in requests:
            data = self.memory[request.address : request.address + 4 * request.dwords]
            assert len(data) == 4 * request.dwords, f"read outside memory: {request}"
            if kind == Kind.BLOCK:
                assert request.target >> 10 == index, request
                begin = 4 * (request.target & 1023)
                landing.append((begin, bytes(data)))
                self.lines[index][begin : begin + len(data)] = b"\xaa" * len(data)
            elif not error:
                self._fill_inbox(request.target, data)
        goal = self.inbox.sent + self.inbox.waiting
        while self.inbox.sent < goal:
            await RisingEdge(self.dut.clk)
        if queue is not None:
            for request in requests:
                first = (request.address - queue.sq) // nvme.SQE_BYTES
                queue.unread -= set(range(first, first + 4 * request.dwords // nvme.SQE_BYTES))
        self.read_done.send(kind=kind, index=index, error=int(error))
        if kind == Kind.BLOCK:
            await self._settle(index, landing)
        self.in_flight -= 1

    def _queue_at(self, address: int) -> Queue | None:
        """The submission queue that an address is in, if there is one."""
        for queue in self.queues.values():
            if queue.sq <= address < queue.sq + queue.entries * nvme.SQE_BYTES:
                return queue
        return None

    async def _settle(self, line: int, landing: list[tuple[int, bytes]]) -> None:
        """The data is where reads find it as late as the line store may have it there: it was
        accepted in the cycle before `read_done` was."""
        goal = self.read_done.sent + self.read_done.waiting
        while self.read_done.sent < goal:
            await RisingEdge(self.dut.clk)
        await ClockCycles(self.dut.clk, STORE_DELAY - 2)
        for begin, data in landing:
            self.lines[line][begin : begin + len(data)] = data
        self.unsettled.discard(line)

    def _fetched(self, answer) -> None:
        assert answer.line not in self.unsettled, f"line {answer.line} cannot be read yet"
        super()._fetched(answer)

    def _fill_inbox(self, target: int, data: bytes) -> None:
        words = self.config.beat_dwords
        assert target + len(data) // 4 <= inbox_dwords(self.config) + words
        position = 0
        while position < len(data):
            word = target + position // 4
            here = min(words - word % words, (len(data) - position) // 4)
            value = int.from_bytes(data[position : position + 4 * here], "little")
            self.inbox.send(
                address=word // words,
                data=value << 32 * (word % words),
                mask=((1 << here) - 1) << word % words,
            )
            position += 4 * here

    def _line_read(self, address: int) -> None:
        line, beat = divmod(address, self.config.beats)
        begin = beat * self.config.beat_bytes
        value = self.lines[line][begin : begin + self.config.beat_bytes]
        self._beats.append((self.cycle + READ_LATENCY - 1, int.from_bytes(value, "little")))

    def _answer_line_reads(self) -> Iterator[None]:
        """Beats, a fixed time after they were asked for."""
        shown = None
        while True:
            yield
            self.cycle += 1
            due = bool(self._beats) and self._beats[0][0] <= self.cycle
            if due != shown:
                self.dut.lines__read__response_valid.value = shown = due
            if due:
                self.dut.lines__read__response.value = self._beats.popleft()[1]

    def _write(self, request) -> None:
        assert request.source >> 10 == request.line and 1 <= request.dwords <= 1024
        begin = 4 * (request.source & 1023)
        data = self.lines[request.line][begin : begin + 4 * request.dwords]
        assert len(data) == 4 * request.dwords, f"write beyond the line: {request}"
        self.memory[request.address : request.address + len(data)] = data
        if request.last:
            cocotb.start_soon(self._sent(request.line))

    async def _sent(self, line: int) -> None:
        self.in_flight += 1
        await ClockCycles(self.dut.clk, self.random.randint(1, self.latency))
        self.write_done.send(line)
        self.in_flight -= 1

    def _give_back(self, queue: Queue, head: int) -> None:
        """Slots up to ``head`` are the host's again (NVMe 1.4, 4.6: SQHD): it writes them anew."""
        assert head < queue.entries, f"SQHD {head} of {queue.entries} entries"
        while queue.sq_head != head:
            assert queue.sq_head != queue.sq_tail, f"SQHD {head} is past the tail"
            assert queue.sq_head not in queue.unread, (
                f"SQHD {head} of queue {queue.number} covers slot {queue.sq_head}, "
                "whose entry has not arrived"
            )
            at = queue.sq + queue.sq_head * nvme.SQE_BYTES
            self.memory[at : at + nvme.SQE_BYTES] = b"\xff" * nvme.SQE_BYTES
            queue.sq_head = (queue.sq_head + 1) % queue.entries

    def _post(self, request) -> None:
        self.posts += 1
        data = request.data.to_bytes(16, "little")[: 4 * request.dwords]
        assert bool(request.message) == (request.address >= MESSAGE_BASE), request
        if request.message:
            vector = (request.address - MESSAGE_BASE) // 4
            assert data == (0x4000 | vector).to_bytes(4, "little"), data
            self.interrupts.append(vector)
            return
        assert len(data) == nvme.CQE_BYTES
        entry = Cqe.unpack(data)
        queue = self.queues.get(entry.queue)
        assert queue is not None, f"completion for queue {entry.queue}: {entry}"
        target = self.completions[queue.cq_number]
        expected = target.base + nvme.CQE_BYTES * target.tail
        assert request.address == expected, f"entry at {request.address:#x}, not {expected:#x}"
        assert entry.phase == target.phase, f"phase of {entry}"
        target.tail = (target.tail + 1) % target.entries
        if target.tail == 0:
            target.phase ^= 1
        assert target.tail != target.head, f"completion queue {target.number} overrun"
        assert entry.identifier in queue.waiting, f"not outstanding: {entry}"
        self._give_back(queue, entry.sq_head)
        outstanding = queue.waiting.pop(entry.identifier)
        outstanding.entry = entry
        outstanding.ended.set()
        queue.done[entry.identifier] = entry
        if queue.number == 0 and entry.identifier in self._aborts:
            victim = self._aborts.pop(entry.identifier)
            if entry.code == nvme.SUCCESS and not entry.result & 1:
                assert victim is not None, "an Abort has found a command that was not outstanding"
                assert victim.entry is not None, "an Abort ends before the command it has aborted"
                assert victim.entry.code == nvme.ABORT_REQUESTED, f"aborted: {victim.entry}"
        if target.automatic:
            target.head = target.tail
            self.register.send(
                address=nvme.DOORBELLS + 8 * target.number,
                write=1,
                data=target.head << 32,
                enable=0xF0,
            )
