"""Drives to line store: gathers arriving blocks in bursts and writes them to their lines."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config, bits_for_count
from hdl.drive.data.bursts import BurstScheduler
from hdl.drive.data.tell_pieces import TellPieces
from hdl.drive.records import (
    BURST_BEATS,
    BURST_BITS,
    FIFO_BITS,
    FIFO_BURSTS,
    PathControl,
    ReadControl,
    piece_bursts,
)
from hdl.flow.drive_port import read_data
from hdl.flow.line import write_port
from hdl.flow.piece import early, piece
from hdl.kit.disjoint import DISJOINT
from hdl.kit.pick import RoundRobin
from hdl.kit.table import Table


class ReadPath(wiring.Component):
    """Takes read data from the drives and writes it to the lines that the block control names.

    One port at a time is taken from, a beat a cycle in total; while several offer data they take
    turns beat by beat. The beats wait in one memory, `FIFO_BURSTS` bursts a port, and leave in
    bursts of `BURST_BEATS`, round robin, a beat a cycle without idle cycles. A beat whose burst is
    complete reaches ``line_write`` in 5 cycles.
    Back-pressure: a port whose block has no line yet fills its bursts and then waits alone.

    Parameters
    ----------
    config
        Sizes.
    ports
        Ports on this path.

    Ports
    -----
    control
        The blocks to move (`PathControl`).
    reads
        What reads need beyond that (`ReadControl`).
    data
        From the drive ports.
    line_write
        To the line store, a beat a cycle.
    told, piece
        With ``Config.early_rows``: as of `TellPieces`.
    busy
        Something moves.
    """

    def __init__(self, *, config: Config, ports: int):
        self._config = config
        self._ports = ports
        super().__init__(
            {
                "control": In(PathControl(config, ports)),
                "reads": In(ReadControl(config, ports)),
                "data": In(stream.Signature(read_data(config))).array(ports),
                "line_write": Out(write_port(config)),
                "told": Out(1),
                "piece": Out(piece(config)),
                "busy": Out(1),
            }
        )

        place_bits = bits_for_count(ports)
        self._scheduler = BurstScheduler(config=config, ports=ports)
        self._beats = Memory(
            shape=config.data_width,
            depth=(1 << place_bits) * FIFO_BURSTS * BURST_BEATS,
            init=[],
            attrs=DISJOINT,
        )
        self._tags = Table(config.tag_bits, 1 << place_bits)
        self._turn = RoundRobin(count=ports)

        # A port's bursts: arrived, chosen to be moved, moved. Each wraps at twice the capacity.
        pointer = FIFO_BITS + 1
        self._arrived = Array(Signal(pointer, name=f"arrived_{n}") for n in range(ports))
        self._started = Array(Signal(pointer, name=f"started_{n}") for n in range(ports))
        self._moved = Array(Signal(pointer, name=f"moved_{n}") for n in range(ports))
        self._beat = Array(Signal(BURST_BITS, name=f"beat_{n}") for n in range(ports))
        self._room = Signal(ports)

        # In: the port that is taken from, and its beat.
        self._selected = Signal(ports, init=1)
        self._select = Signal(place_bits)
        self._take = Signal()
        self._taken = Signal(read_data(config))
        self._first = Signal()

        # Out: the burst under way, then the beat that the line store is offered.
        self._active = Signal()
        self._advance = Signal()
        self._out_beat = Signal(BURST_BITS)
        self._place = Signal(place_bits)
        self._top = Signal(config.beat_address_bits - BURST_BITS)
        self._s1_place = Signal(place_bits)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.scheduler = self._scheduler
        m.submodules.beats = self._beats
        m.submodules.tags = self._tags
        m.submodules.turn = self._turn
        connect(m, flipped(self.control), self._scheduler.control)
        self._count_bursts(m)
        self._select_port(m)
        self._take_beat(m)
        self._tell_control(m)
        self._move_burst(m)
        telling = self._tell_pieces(m) if self._config.early_rows else Const(0)
        m.d.comb += self.busy.eq(
            self._take
            | self._turn.any
            | self._scheduler.busy
            | self._active
            | self.line_write.valid
            | telling
        )
        return m

    def _count_bursts(self, m: Module) -> None:
        """Which ports have room for a beat, and which have bursts to be moved."""
        for n in range(self._ports):
            filled = Signal(FIFO_BITS + 1, name=f"filled_{n}")
            m.d.comb += [
                filled.eq(self._arrived[n] - self._moved[n]),
                self._room[n].eq(filled != FIFO_BURSTS),
                self._scheduler.able[n].eq(self._arrived[n] != self._started[n]),
            ]
            with m.If(self._scheduler.chosen[n]):
                m.d.sync += self._started[n].eq(self._started[n] + 1)

    def _select_port(self, m: Module) -> None:
        """The selected port is taken from; any other that offers data is selected next."""
        turn, selected = self._turn, self._selected
        offers = Signal(self._ports)
        m.d.comb += [
            offers.eq(Cat(port.valid for port in self.data) & self._room & ~self.reads.hold),
            self._take.eq((offers & selected).any()),
            turn.requests.eq(offers & ~selected),
            turn.advance.eq(turn.any),
        ]
        with m.If(turn.any):
            m.d.sync += [selected.eq(turn.chosen), self._select.eq(turn.index)]
        with m.Switch(self._select):
            for n, port in enumerate(self.data):
                m.d.comb += port.ready.eq(selected[n] & self._room[n] & ~self.reads.hold[n])
                with m.Case(n):
                    m.d.comb += self._taken.eq(port.payload)

    def _take_beat(self, m: Module) -> None:
        """The beat goes to its port's bursts, and with the first of a block its tag is noted."""
        select, beat, arrived = self._select, self._beat, self._arrived
        store = self._beats.write_port()
        m.d.comb += [
            self._first.eq(self._take & ~(self.reads.inside & self._selected).any()),
            store.addr.eq(Cat(beat[select], arrived[select][:FIFO_BITS], select)),
            store.data.eq(self._taken.data),
            store.en.eq(self._take),
            self._tags.write.address.eq(select),
            self._tags.write.data.eq(self._taken.tag),
            self._tags.write.enable.eq(self._first),
        ]
        with m.If(self._take):
            m.d.sync += beat[select].eq(beat[select] + 1)
            with m.If(beat[select] == BURST_BEATS - 1):
                m.d.sync += arrived[select].eq(arrived[select] + 1)

    def _tell_control(self, m: Module) -> None:
        """What the block control knows of each port, and what it has forgotten."""
        control, reads, burst = self.control, self.reads, self._scheduler.burst
        asked = control.place[: len(self._place)]
        target = Signal(self._ports)
        m.d.comb += [
            target.eq(1 << asked),
            self._tags.reads[0].address.eq(reads.peek[: len(self._place)]),
            reads.tag.eq(self._tags.reads[0].data),
            reads.quiet.eq(
                (self._arrived[asked] == self._started[asked])
                & ~(burst.valid & (burst.payload.place == asked))
                & ~(self._active & (self._place == asked))
                & ~(self.line_write.valid & (self._s1_place == asked))
            ),
            self._scheduler.drop.eq(reads.discard),
        ]
        loaded = Mux(control.load, target, 0)
        dropped = Mux(reads.discard, target, 0)
        ended = Mux(self._take, self._selected, 0)
        begins = Mux(self._take & ~self._taken.last, self._selected, 0)
        m.d.sync += [
            reads.want.eq((reads.want & ~loaded) | Mux(self._first, self._selected, 0)),
            reads.inside.eq((reads.inside & ~ended & ~dropped) | begins),
        ]
        with m.If(reads.discard):
            m.d.sync += self._beat[asked].eq(0)

    def _is_last_beat(self) -> Value:
        return self._out_beat == BURST_BEATS - 1

    def _move_burst(self, m: Module) -> None:
        """Bursts leave, a beat a cycle."""
        config, place, moved = self._config, self._place, self._moved
        burst, line_write = self._scheduler.burst, self.line_write
        active, advance, last_beat = self._active, self._advance, self._is_last_beat()
        fetch = self._beats.read_port()
        last = Signal()
        s1_address = Signal(config.beat_address_bits, reset_less=True)
        s1_end = Signal()
        m.d.comb += [
            advance.eq(~line_write.valid | line_write.ready),
            burst.ready.eq(~active | (advance & last_beat)),
            fetch.addr.eq(Cat(self._out_beat, moved[place][:FIFO_BITS], place)),
            fetch.en.eq(active & advance),
            line_write.payload.address.eq(s1_address),
            line_write.payload.data.eq(fetch.data),
            line_write.payload.mask.eq(Const(-1, config.beat_dwords)),
            self._scheduler.finish.eq(line_write.valid & line_write.ready & s1_end),
            self._scheduler.finish_place.eq(self._s1_place),
        ]
        with m.If(advance):
            m.d.sync += line_write.valid.eq(active)
            with m.If(active):
                m.d.sync += [
                    self._out_beat.eq(self._out_beat + 1),
                    s1_address.eq(Cat(self._out_beat, self._top)),
                    self._s1_place.eq(place),
                    s1_end.eq(last & last_beat),
                ]
                with m.If(last_beat):
                    m.d.sync += moved[place].eq(moved[place] + 1)
        with m.If(burst.ready):
            m.d.sync += active.eq(burst.valid)
            with m.If(burst.valid):
                m.d.sync += [
                    place.eq(burst.payload.place),
                    self._top.eq(Cat(burst.payload.index, burst.payload.line)),
                    last.eq(burst.payload.last),
                ]

    def _tell_pieces(self, m: Module) -> Value:
        """Tells of pieces that are in their lines; whether it is about to."""
        config, burst, line_write = self._config, self._scheduler.burst, self.line_write
        m.submodules.tell = tell = TellPieces(config=config)
        marked = Signal(early(config))
        s1_early = Signal(early(config))
        s1_number = Signal(tell.number.shape())
        s1_ends = Signal()
        bursts_of_piece = piece_bursts(config)
        index = self._top[: len(burst.payload.index)]
        with m.If(burst.ready & burst.valid):
            m.d.sync += marked.eq(burst.payload.early)
        with m.If(self._advance & self._active):
            m.d.sync += [
                s1_early.eq(marked),
                s1_number.eq(index // bursts_of_piece),
                s1_ends.eq(
                    self._is_last_beat() & (index % bursts_of_piece == bursts_of_piece - 1)
                ),
            ]
        m.d.comb += [
            tell.written.eq(line_write.valid & line_write.ready & s1_ends),
            tell.number.eq(s1_number),
            tell.early.eq(s1_early),
            self.told.eq(tell.told),
            self.piece.eq(tell.piece),
        ]
        return tell.busy
