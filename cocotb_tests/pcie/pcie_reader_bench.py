"""`hdl.pcie.dma.reader.HostReader` between a host that answers and two memories."""

import os
import random
from collections.abc import Iterator

from cocotb.triggers import RisingEdge

from cocotb_tests.pcie.pcie_models import CompletionModel, apply_beat, host_word
from cocotb_tests.streams import StreamSink, StreamSource, every_cycle, sample, start, wait_until
from hdl.config import Config
from hdl.flow.host_memory import Kind, inbox_beat, inbox_dwords, read_done, read_request
from hdl.flow.line import write_beat
from hdl.flow.pcie_status import PcieStatus
from hdl.pcie.tlp import RequestKind, completion_beat, request_beat

TIMEOUT = 4000
CALM_CYCLES = 8
"""Nothing moves for so long before time jumps."""


def reader_config(
    width: int, *, tags: int = 16, headers: int = 128, space: int = 32768
) -> Config:
    return Config(
        data_width=width,
        lines=64,
        banks=4,
        commands=64,
        read_tags=tags,
        completion_headers=headers,
        completion_bytes=space,
        transfer_blocks=8,
    )


class Bench:
    """A `HostReader` between a host that answers and two memories."""

    def __init__(self, dut, *, active=1.0, fault_rate=0.0, mrrs=2, rcb=64, most=256):
        self.dut = dut
        self.seed = int(os.environ["SEED"])
        self.config = reader_config(
            int(os.environ["WIDTH"]),
            tags=int(os.environ["TAGS"]),
            headers=int(os.environ["HEADERS"]),
            space=int(os.environ["SPACE"]),
        )
        self.rng = random.Random(self.seed)
        dut._log.info("SEED=%d", self.seed)
        config = self.config
        self.model = CompletionModel(
            config, self.rng, rcb=rcb, most=most, fault_rate=fault_rate
        )
        self.mrrs = mrrs
        self.active = active
        self.lines: dict[int, int] = {}
        self.inbox: dict[int, int] = {}
        self.cycle = 0
        self.answered = 0
        self.beat_cycles: list[int] = []
        self.completion_cycles: list[int] = []
        self.tlps: list[dict] = []
        self.live: dict[int, int] = {}
        self.expected: dict[tuple[Kind, int], list] = {}
        self.failing: set[tuple[Kind, int]] = set()
        self.answers: dict[tuple[Kind, int], bool] = {}
        self.wanted: list[tuple[Kind, int, int, int, int]] = []
        # Of blocks and not: who asked for a word, and what belongs there.
        self.places: dict[bool, dict[int, tuple[tuple[Kind, int], int]]] = {False: {}, True: {}}
        self.hold = False

        def layouts(name, layout, sink=None, **more):
            return StreamSink(dut, name, layout=layout, active=active, callback=sink, **more)

        self.request = StreamSource(dut, "request", layout=read_request(config), active=active)
        self.completion = StreamSource(
            dut, "completion", layout=completion_beat(config), active=active
        )
        self.tlp = layouts("tlp", request_beat(config), self._tlp)
        self.done = layouts("done", read_done(config), self._done)
        self.line_write = layouts("line_write", write_beat(config), self._line)
        self.inbox_write = layouts("inbox_write", inbox_beat(config), self._inbox)
        for name in PcieStatus().members:
            getattr(dut, f"status__{name}").value = 0
        dut.status__max_read_request.value = mrrs
        dut.status__max_payload.value = 1
        dut.status__rcb.value = int(rcb == 128)
        dut.status__bus_master.value = 1
        dut.now.value = 0
        pulses = ("drop__valid", "given__valid", "sent__valid")
        for name in (*pulses, "hold", "hurry", "lost", "tracks"):
            getattr(dut, name).value = 0
        self.unsent: list[int] = []
        self.leaves = True  # requests leave as soon as they have been taken
        self.drop_rate = 0.0
        self.dropped: list[int] = []

    async def start(self):
        await start(self.dut)
        every_cycle(self.dut.clk, self._clock())
        every_cycle(self.dut.clk, self._complete())
        every_cycle(self.dut.clk, self._drop())
        every_cycle(self.dut.clk, self._leave())

    def _clock(self) -> Iterator[None]:
        while True:
            yield
            self.cycle += 1
            self.dut.now.value = self.cycle
            if sample(self.dut.completion__valid) and sample(self.dut.completion__ready):
                self.completion_cycles.append(self.cycle)

    async def jump(self, cycles: int):
        """Lets so much time pass, from one deadline to the next."""
        end = self.cycle + cycles
        calm = 0
        while self.cycle < end:
            await RisingEdge(self.dut.clk)
            calm = 0 if sample(self.dut.busy) else calm + 1
            if calm > CALM_CYCLES:
                calm = 0
                self.cycle = min(end, max(self.cycle, sample(self.dut.deadline)))

    def _complete(self) -> Iterator[None]:
        while True:
            yield
            if self.hold or self.completion.waiting > 4:
                continue
            if self.model.waiting < 6 and self.rng.random() < 0.9 and self.active < 1.0:
                continue
            beats = self.model.next_beats()
            if beats:
                self.completion.send_all(beats)

    def _drop(self) -> Iterator[None]:
        dut = self.dut
        while True:
            yield
            if not self.dropped:
                continue
            dut.drop__payload.value = self.dropped.pop(0)
            dut.drop__valid.value = 1
            yield
            while not sample(dut.drop__ready):
                yield
            dut.drop__valid.value = 0

    def _leave(self) -> Iterator[None]:
        """The hard block takes requests in order."""
        dut = self.dut
        while True:
            yield
            leaves = self.leaves and self.unsent
            dut.sent__valid.value = int(bool(leaves))
            if leaves:
                dut.sent__payload.value = self.unsent.pop(0)

    def _line(self, beat):
        self.beat_cycles.append(self.cycle)
        self._land(self.lines, True, beat)

    def _inbox(self, beat):
        self._land(self.inbox, False, beat)

    def _land(self, memory: dict[int, int], of_block: bool, beat):
        """Nothing is written but for a transfer that has not been answered, to its places, and what
        belongs there unless it will fail."""
        words: dict[int, int] = {}
        apply_beat(words, self.config, beat.address, beat.data, beat.mask)
        for word, value in words.items():
            key, wanted = self.places[of_block][word]
            assert key not in self.answers, f"word {word:#x} of {key} is written after its end"
            assert key in self.failing or value == wanted, f"word {word:#x} of {key} is another's"
        memory.update(words)

    def _tlp(self, beat):
        assert beat.kind == RequestKind.READ
        assert beat.first
        assert beat.last
        limit = 128 << self.mrrs
        end = beat.address + 4 * beat.dwords
        assert beat.address // limit == (end - 1) // limit, "a request crosses its limit"
        owner = next(
            (kind, index)
            for kind, index, address, dwords, _ in self.wanted
            if address <= beat.address < address + 4 * dwords
        )
        assert bool(beat.relaxed) == (owner[0] is Kind.BLOCK), "relaxed ordering is for data"
        if self.drop_rate and self.rng.random() < self.drop_rate:
            self.failing.add(owner)
            self.dropped.append(beat.tag)
            return
        self.unsent.append(beat.tag)
        fault = self.model.take(tag=beat.tag, address=beat.address, dwords=beat.dwords)
        if fault:
            self.dut._log.debug("fault %s on tag %d of %s", fault, beat.tag, owner)
            self.failing.add(owner)
        self.tlps.append(dict(beat))

    def _done(self, done):
        key = (done.kind, done.index)
        assert key in self.expected, f"{key} was not asked for"
        assert key not in self.answers, f"{key} answered twice"
        self.answers[key] = bool(done.error)
        self.answered = self.cycle
        # All data must be there now.
        if not done.error:
            self.check(key)

    def check(self, key):
        """All data of a transfer is where it belongs."""
        for kind, index, address, dwords, target in self.wanted:
            if (kind, index) != key:
                continue
            memory = self.lines if kind is Kind.BLOCK else self.inbox
            for place in range(dwords):
                found = memory.get(target + place)
                assert found == host_word(address + 4 * place), (
                    f"{key}: word {target + place:#x} is {found} at done"
                )

    def transfer(self, kind: Kind, index: int, parts: list[tuple[int, int, int]]) -> list[dict]:
        """A transfer's requests: (address, dwords, target) each."""
        self.expected[(kind, index)] = parts
        requests = []
        for number, (address, dwords, target) in enumerate(parts):
            self.wanted.append((kind, index, address, dwords, target))
            self.places[kind is Kind.BLOCK].update(
                (target + place, ((kind, index), host_word(address + 4 * place)))
                for place in range(dwords)
            )
            requests.append(
                {
                    "kind": kind,
                    "index": index,
                    "last": number == len(parts) - 1,
                    "address": address,
                    "dwords": dwords,
                    "target": target,
                }
            )
        return requests

    def random_transfers(self, count: int) -> list[dict]:
        """Transfers of all kinds with random alignment, their requests interleaved."""
        rng = self.rng
        pages = rng.sample(range(1, 1 << 30), 4 * count)
        queues = []
        blocks = rng.sample(range(self.config.lines), min(count, self.config.lines))
        entries = rng.sample(range(32), min(count, 32))
        lists = rng.sample(range(self.config.commands), min(count, self.config.commands))
        parameters = [0]
        for _ in range(count):
            kind = rng.choice(list(Kind))
            pool = {
                Kind.BLOCK: blocks,
                Kind.ENTRIES: entries,
                Kind.LIST: lists,
                Kind.PARAMETER: parameters,
            }[kind]
            if not pool:
                continue
            index = pool.pop()
            if kind is Kind.BLOCK:
                # A block in up to three host pieces, each anywhere in a page.
                target, rest = index * 1024, 1024
                if rng.random() < 0.3:
                    target += rng.randrange(1024)
                    rest = rng.randint(1, 1024 - target % 1024)
                parts = []
                while rest:
                    size = rest if len(parts) == 2 else rng.randint(1, rest)
                    offset = rng.choice((0, rng.randrange(1024)))
                    size = min(size, 1024 - offset)
                    parts.append((pages.pop() * 4096 + 4 * offset, size, target))
                    target += size
                    rest -= size
                    if len(parts) == 3:
                        break
            elif kind is Kind.PARAMETER:
                address = pages.pop() * 4096 + 4 * rng.randrange(1024)
                parts = [(address, 1, inbox_dwords(self.config))]
            else:
                base = 0 if kind is Kind.LIST else self.config.commands * 16
                target = base + 16 * index
                size = rng.randint(1, 16)
                parts = [(pages.pop() * 4096 + 4 * rng.randrange(1009), size, target)]
            queues.append(self.transfer(kind, index, parts))
        requests = []
        while queues:
            queue = rng.choice(queues)
            requests.append(queue.pop(0))
            if not queue:
                queues.remove(queue)
        return requests

    def forget(self):
        """Begins a new run: the transfers before it have been checked."""
        for account in (self.expected, self.answers, self.failing, self.wanted):
            account.clear()

    async def finish(self, *, cycles=60_000, errors: bool | None = None):
        """Waits for all answers and checks them, and that nothing is left over."""
        await wait_until(
            self.dut,
            lambda: len(self.answers) == len(self.expected),
            cycles=cycles,
            what="all transfers done",
        )
        for key, failed in self.answers.items():
            assert failed == (key in self.failing if errors is None else errors), key
        assert self.model.waiting == 0 or self.failing
        self.hold = False
        await wait_until(
            self.dut,
            lambda: (
                sample(self.dut.deadline) == (1 << 48) - 1
                and self.request.idle
                and self.completion.idle
                and not sample(self.dut.busy)
            ),
            cycles=10 * TIMEOUT,
            what="no tag held",
        )
