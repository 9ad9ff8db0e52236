"""Drive models, random operations, and the scoreboard around `hdl.drive.drives.Drives`."""

import os
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import cocotb
from cocotb.triggers import RisingEdge

from cocotb_tests.array.array_models import random_recovery
from cocotb_tests.drive.drive_model import DriveModel, Timing
from cocotb_tests.memory.store_model import STORE_DELAY, StoreModel
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    check_busy_after,
    cycles_pass,
    every_cycle,
    sample,
    wait_until,
)
from hdl.config import BLOCK_BYTES, PIECES, Config
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, landed, operation
from hdl.flow.piece import PIECE_CYCLES, piece

OF_A_LINE = (Owner.ROW, Owner.METADATA)
"""Owners whose reads and writes are of one block, in a line of their own."""

LONGEST_REFUSAL = 3
"""Cycles that a piece may have to wait until it is taken."""


def sizes(ports: int, width: int = 256) -> Config:
    """Few operations and tags, so that both run out."""
    return Config(
        data_width=width,
        ports=ports,
        lines=256,
        commands=128,
        rows=128,
        transfer_blocks=8,
        operations=128,
        drive_tags=8,
    )


class PieceSink(StreamSink):
    """Refuses for `LONGEST_REFUSAL` cycles at most."""

    refused = 0

    def _moves(self) -> bool:
        moves = self.refused == LONGEST_REFUSAL or super()._moves()
        self.refused = 0 if moves else self.refused + 1
        return moves


@dataclass(kw_only=True)
class Pending:
    """An operation that has been sent."""

    port: int
    opcode: Opcode
    owner: Owner
    recover: dict[str, int]
    alone: int
    more: int
    fua: int
    block: int
    blocks: int
    place: int
    line: int | None
    content: bytes | None = field(repr=False)
    open: set[int]
    seat: int | None
    told: int = 0


class Bench:
    """Owns the models and the scoreboard. `submit` sends operations, `settle` checks the end."""

    def __init__(
        self,
        dut,
        config: Config,
        *,
        seed: int,
        timing: Timing,
        active: float = 1.0,
        stall: float = 0.0,
        unreported: bool = False,
    ):
        self.dut = dut
        self.config = config
        self.random = random.Random(f"{seed}/bench")
        self.store = StoreModel(dut, config, stall=stall, seed=seed)
        self.drives = [
            DriveModel(dut, port, config=config, timing=timing, seed=seed)
            for port in range(config.ports)
        ]
        self.operations = StreamSource(dut, "operation", layout=operation(config), active=active)
        self.finished = StreamSink(
            dut, "finished", layout=finished(config), active=active, callback=self._on_finished
        )
        self.landed = StreamSink(
            dut, "landed", layout=landed(config), active=active, callback=self._on_landed
        )
        StreamSink(dut, "free", active=0.3, seed=seed, callback=self._on_free)
        self.seats: dict[int, Pending] = {}
        self.pieces = 0
        if config.early_rows:
            PieceSink(
                dut, "piece", layout=piece(config), active=0.3, seed=seed, callback=self._on_piece
            )
        self.free = set(range(config.lines))
        self.lent: set[int] = set()
        self.pending: dict[tuple[Owner, int], Pending] = {}
        self.indices = {
            Owner.ROW: deque(range(config.rows)),
            Owner.COMMAND: deque(range(config.commands)),
            Owner.FLUSHER: deque(range(config.rows)),
            Owner.METADATA: deque(range(config.rows)),
        }
        self.in_use: list[set[int]] = [set() for _ in range(config.ports)]
        self.statuses: dict[DriveStatus, int] = dict.fromkeys(DriveStatus, 0)
        self.cut_lines = 0
        self.landed_blocks = 0
        self.last_landed_cycle = 0
        self.done = 0
        self.lines_offered = True
        self.may_fail: set[int] = set()
        self.again: list[dict] = []
        self.blamed: list[tuple[Opcode, int]] = []
        dut.failed.value = 0
        if config.background:
            dut.doubted.value = 0
            for port in range(config.ports):
                getattr(dut, f"restarts__{port}").value = 0
        self.restarts = [0] * config.ports
        dut.now.value = 0
        dut.fail__ready.value = 1
        dut.load_read__address.value = 0
        every_cycle(dut.clk, self._send_again())
        check_busy_after(dut, "operation")
        dut.allocate__valid.value = 0
        every_cycle(dut.clk, self._lend())

    def _lend(self) -> Iterator[None]:
        valid, ready = self.dut.allocate__valid, self.dut.allocate__ready
        offered = None
        while True:
            if offered is None and self.lines_offered and self.free:
                offered = self.random.choice(sorted(self.free)[:4])
                self.free.discard(offered)
                self.dut.allocate__payload.value = offered
            valid.value = int(offered is not None)
            yield
            if offered is not None and sample(ready):
                self.lent.add(offered)
                self.store.writable.add(offered)
                offered = None
            elif offered is not None and not self.lines_offered:
                continue
            self._offered = offered

    def submit(
        self,
        *,
        port: int,
        opcode: Opcode,
        owner: Owner,
        block: int = 0,
        blocks: int = 1,
        place: int = 0,
        more: int = 0,
        fua: int = 0,
        alone: int = 0,
        elsewhere: int = 0,
        dated: int = 0,
        restarts: int | None = None,
    ) -> bool:
        """Sends an operation unless its blocks, an index or a line are in use.

        ``restarts``: of its port as it was asked for, if not now."""
        no_data = opcode in (Opcode.FLUSH, Opcode.WRITE_UNCORRECTABLE)
        span = set(range(block, block + blocks)) if opcode is not Opcode.FLUSH else set()
        if span & self.in_use[port] or not self.indices[owner]:
            return False
        line = content = None
        if owner in OF_A_LINE and not no_data:
            if not self.free:
                return False
            line = self.free.pop()
            if opcode is Opcode.WRITE:
                content = self.random.randbytes(BLOCK_BYTES)
                self.store.fill(line, content)
                self.store.readable.add(line)
            else:
                self.store.fill(line, bytes(BLOCK_BYTES))
                self.store.writable.add(line)
        index = self.indices[owner].popleft()
        recover = random_recovery(self.random, self.config, copies=self.config.ports)
        self.in_use[port] |= span
        is_read_command = owner is Owner.COMMAND and opcode is Opcode.READ
        seat = None
        seats = set(range(self.config.early_rows)) - set(self.seats)
        if seats and owner is Owner.ROW and opcode is Opcode.READ and self.random.random() < 0.8:
            seat = self.random.choice(sorted(seats))
        self.pending[owner, index] = pending = Pending(
            port=port,
            opcode=opcode,
            owner=owner,
            recover=recover,
            alone=alone,
            more=more,
            fua=fua,
            block=block,
            blocks=blocks,
            place=place,
            line=line,
            content=content,
            open=set(range(place, place + blocks)) if is_read_command else {place},
            seat=seat,
        )
        early = {}
        if self.config.early_rows:
            early = {"early": {"any": int(seat is not None), "seat": seat or 0}}
        if seat is not None:
            self.seats[seat] = pending
        self.operations.send(
            port=port,
            opcode=opcode,
            fua=fua,
            recover=recover,
            more=more,
            alone=alone,
            block=block,
            blocks=blocks - 1,
            owner=owner,
            index=index,
            place=place,
            line=line or 0,
            **({"elsewhere": elsewhere} if self.config.slow_read_ms else {}),
            **(
                {
                    "dated": dated,
                    "restarts": self.restarts[port] if restarts is None else restarts,
                }
                if self.config.background
                else {}
            ),
            **early,
        )
        return True

    def _close(self, owner: Owner, index: int, place: int) -> Pending:
        """One expected answer of a pending operation has come."""
        pending = self.pending.get((owner, index))
        assert pending is not None, f"answer for {owner.name} {index}, which is not pending"
        assert place in pending.open, f"answer for place {place}, not one of {pending.open}"
        pending.open.discard(place)
        if not pending.open:
            del self.pending[owner, index]
            self.indices[owner].append(index)
            if pending.opcode is not Opcode.FLUSH:
                self.in_use[pending.port] -= set(
                    range(pending.block, pending.block + pending.blocks)
                )
            if pending.line is not None:
                self.store.readable.discard(pending.line)
                self.store.writable.discard(pending.line)
                if pending.seat is None:
                    self.free.add(pending.line)
        self.done += 1
        return pending

    def _on_piece(self, payload) -> None:
        """A piece is told of in order, when it is in its line and can be read there."""
        pending = self.seats.get(payload.seat)
        assert pending is not None, f"a piece for seat {payload.seat}, which reads nothing"
        assert payload.number == pending.told, f"piece {payload.number}, not {pending.told}"
        pending.told += 1
        self.pieces += 1
        assert pending.line is not None
        count = self.config.piece_beats
        for beat in range(payload.number * count, pending.told * count):
            age = self.store.cycle - self.store.written[pending.line, beat]
            assert age >= STORE_DELAY, f"told {age} cycles after it was written"
        size = BLOCK_BYTES // PIECES
        place = slice(payload.number * size, pending.told * size)
        wanted = self.drives[pending.port].read_block(pending.block)[place]
        assert self.store.content(pending.line)[place] == wanted, "told of another's piece"

    async def _leave_seat(self, pending: Pending, *, good: bool) -> None:
        """All pieces have been told of, or no more will be, soon after the end of an operation."""
        await cycles_pass(self.dut.clk, PIECE_CYCLES)
        assert pending.told == PIECES or not good, f"{pending.told} pieces of {PIECES} told of"
        assert pending.seat is not None and pending.line is not None
        del self.seats[pending.seat]
        self.free.add(pending.line)

    def _on_finished(self, payload) -> None:
        owner = payload.owner
        pending = self._close(owner, payload.index, payload.place)
        assert payload.port == pending.port, "wrong port"
        assert payload.opcode is pending.opcode, "wrong opcode"
        assert payload.recover == pending.recover, "recover not echoed"
        status = payload.status
        self.statuses[status] += 1
        if pending.seat is not None:
            cocotb.start_soon(self._leave_seat(pending, good=status is DriveStatus.GOOD))
        drive = self.drives[pending.port]
        if status is not DriveStatus.GOOD:
            assert pending.port in self.may_fail, f"unexpected {status} at port {pending.port}"
            self._judge(pending, payload.place, status)
            return
        in_line = owner in OF_A_LINE
        assert in_line or pending.opcode is Opcode.FLUSH, "GOOD block not landed"
        if pending.opcode is Opcode.WRITE_UNCORRECTABLE:
            assert pending.block in drive.spoiled, "a block has not been made unreadable"
        elif pending.opcode is Opcode.WRITE:
            assert drive.read_block(pending.block) == pending.content, "wrong data on the drive"
            assert drive.stored_fua[pending.block] == bool(pending.fua), "FUA came or went"
        elif pending.opcode is Opcode.READ:
            assert pending.line is not None
            content = self.store.content(pending.line)
            assert content == drive.read_block(pending.block), "wrong data in the line"

    def _judge(self, pending: Pending, place: int, status: DriveStatus) -> None:
        """A failure must be the block's own; what the drive did not reach is sent again, alone."""
        one = pending.owner is Owner.COMMAND and pending.opcode is Opcode.READ
        block = pending.block + (place - pending.place if one else 0)
        drive = self.drives[pending.port]
        if status is DriveStatus.UNREACHED:
            assert not pending.alone, f"block {block} was asked for alone, but not reached"
            again = {"port": pending.port, "opcode": pending.opcode, "owner": pending.owner}
            again |= {"block": block, "place": place, "fua": pending.fua, "alone": 1}
            self.again.append(again)
        elif status is DriveStatus.MEDIUM_ERROR:
            bad = drive.bad_reads if pending.opcode is Opcode.READ else drive.bad_writes
            assert block in bad, f"block {block} is blamed, but it is good"
            self.blamed.append((pending.opcode, block))

    def _send_again(self) -> Iterator[None]:
        while True:
            yield
            self.again = [one for one in self.again if not self.submit(**one)]

    def _on_landed(self, payload) -> None:
        pending = self._close(Owner.COMMAND, payload.slot, payload.offset)
        assert pending.opcode is Opcode.READ
        assert payload.line in self.lent, f"line {payload.line} was not lent"
        block = pending.block + payload.offset - pending.place
        expected = self.drives[pending.port].read_block(block)
        assert self.store.content(payload.line) == expected, f"wrong data of block {block}"
        self.lent.discard(payload.line)
        self.store.writable.discard(payload.line)
        self.free.add(payload.line)
        self.landed_blocks += 1
        self.last_landed_cycle = self.store.cycle

    def _on_free(self, line: int) -> None:
        """The line of a block that was cut off can be written by anybody."""
        assert line in self.lent, f"line {line} was not lent"
        for beat in range(self.config.beats):
            age = self.store.cycle - self.store.written.get((line, beat), -STORE_DELAY)
            assert age >= STORE_DELAY, f"given back {age} cycles after it was written"
        self.lent.discard(line)
        self.store.writable.discard(line)
        self.free.add(line)
        self.cut_lines += 1

    async def drain(self, *, cycles: int = 200_000) -> None:
        """Returns when every operation has been answered."""
        try:
            await wait_until(self.dut, self._rests, cycles=cycles, what="drain")
        except AssertionError as error:
            stuck = [str(pending) for pending in list(self.pending.values())[:5]]
            inside = [f"drive {d.index}: {d.state()}" for d in self.drives if not d.idle]
            raise AssertionError("\n".join([str(error), *stuck, *inside])) from None

    def _rests(self) -> bool:
        return (
            not (self.pending or self.again or self.seats)
            and self.operations.idle
            and all(drive.idle for drive in self.drives)
        )

    async def settle(self, *, cycles: int = 200_000) -> None:
        """Everything is answered, and no operation, tag, or line is left anywhere."""
        await self.drain(cycles=cycles)
        await cycles_pass(self.dut.clk, 20)
        # The ladder may be on its last walk.
        walk = 3 * self.config.ports * self.config.drive_tags
        busy = self.dut.busy
        await wait_until(self.dut, lambda: not sample(busy), cycles=walk, what="rest")
        assert all(drive.idle for drive in self.drives), "a drive still has a command"
        await wait_until(self.dut, lambda: not self.lent, cycles=100, what="all lines")
        # As many operations and commands as there can be, at once: nothing has been lost.
        for drive in self.drives:
            drive.bad_reads.clear()
            drive.bad_writes.clear()
        per_port = self.config.operations // self.config.ports
        for port in range(self.config.ports):
            for n in range(per_port):
                owner = Owner.ROW if n % 2 else Owner.COMMAND
                self.submit(port=port, opcode=Opcode.FLUSH, owner=owner, place=n % 64)
        self.may_fail = set()
        await self.drain(cycles=cycles)
        for port in range(self.config.ports):
            self.dut.load_read__address.value = port
            await cycles_pass(self.dut.clk, 2)
            assert not sample(self.dut.load_read__data), f"port {port} has blocks to do"
        assert sample(self.dut.room) == self.config.operations, "operations are left over"


def traffic(bench: Bench, count: int):
    """Random operations, in runs that can be merged; yields after each."""
    chooser = bench.random
    ports = bench.config.ports
    while count > 0:
        port = chooser.randrange(ports)
        kind = chooser.random()
        block = chooser.randrange(4000)
        if kind < 0.05:
            owner = chooser.choice(list(Owner))
            count -= bench.submit(
                port=port, opcode=Opcode.FLUSH, owner=owner, place=chooser.randrange(64)
            )
        elif kind < 0.08:
            count -= bench.submit(
                port=port, opcode=Opcode.WRITE_UNCORRECTABLE, owner=Owner.ROW, block=4000 + block
            )
        elif kind < 0.4:
            blocks = chooser.choice((1, 1, 2, 5, bench.config.transfer_blocks))
            place = chooser.randrange(bench.config.transfer_blocks - blocks + 1)
            count -= bench.submit(
                port=port,
                opcode=Opcode.READ,
                owner=Owner.COMMAND,
                block=block,
                blocks=blocks,
                place=place,
                dated=chooser.getrandbits(1),
            )
        else:
            opcode = Opcode.WRITE if kind < 0.75 else Opcode.READ
            owner = chooser.choice((Owner.ROW,) * 7 + (Owner.METADATA,))
            length = chooser.choice((1, 2, 3, 10, 70))
            fua = chooser.getrandbits(1)
            for n in range(length):
                count -= bench.submit(
                    port=port,
                    opcode=opcode,
                    owner=owner,
                    block=block + n,
                    place=chooser.randrange(64),
                    more=int(n + 1 < length),
                    alone=int(chooser.random() < 0.03),
                    dated=int(chooser.random() < 0.1),
                    fua=fua,
                )
                yield
        yield


def environment() -> tuple[Config, int]:
    """Configuration and seed of this simulation."""
    seed = int(os.environ["SEED"])
    print(f"SEED={seed}")
    return sizes(int(os.environ["PORTS"]), int(os.environ.get("WIDTH", "256"))), seed


async def run_traffic(bench: Bench, count: int) -> None:
    """Keeps the controller full of random operations."""
    for _ in traffic(bench, count):
        while bench.operations.waiting > 20 or len(bench.free) < 8:
            await RisingEdge(bench.dut.clk)
        if bench.random.random() < 0.02:
            await cycles_pass(bench.dut.clk, bench.random.randrange(200))
        if not bench.indices[Owner.ROW] or not bench.indices[Owner.COMMAND]:
            await RisingEdge(bench.dut.clk)
