"""Drives to line store: gathers arriving blocks in bursts and writes them to their lines."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
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
from hdl.kit.round_robin import RoundRobin


class ReadPath(wiring.Component):
    """Takes read data from the drives and writes it to the lines that the block control names.

    One port at a time is taken from, a beat a cycle in total; while several offer data they take
    turns beat by beat. The beats wait in one memory, `FIFO_BURSTS` bursts a port, and leave in
    bursts of `BURST_BEATS`, round robin, a beat a cycle without idle cycles. A beat whose burst is
    complete reaches ``line_write`` in 5 cycles.
    ``told``, ``piece``: as of `TellPieces`, with ``Config.early_rows``.
    Back-pressure: a port whose block has no line yet fills its bursts and then waits alone.

    Parameters
    ----------
    config
        Sizes.
    ports
        Ports on this path.
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
                "busy": Out(1),
            }
            | ({"told": Out(1), "piece": Out(piece(config))} if config.early_rows else {})
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config, ports = self._config, self._ports
        place_width = bits_for_count(ports)
        control, reads = self.control, self.reads
        m.submodules.scheduler = scheduler = BurstScheduler(config=config, ports=ports)
        connect(m, flipped(control), scheduler.control)
        m.submodules.beats = memory = Memory(
            shape=config.data_width,
            depth=(1 << place_width) * FIFO_BURSTS * BURST_BEATS,
            init=[],
            attrs=DISJOINT,
        )
        store_beat, fetch_beat = memory.write_port(), memory.read_port()
        m.submodules.tags = tags = Memory(shape=config.tag_bits, depth=1 << place_width, init=[])
        store_tag, fetch_tag = tags.write_port(), tags.read_port()

        # A port's bursts: arrived, chosen to be moved, moved. Each wraps at twice the capacity.
        pointer = FIFO_BITS + 1
        arrived = Array(Signal(pointer, name=f"arrived_{n}") for n in range(ports))
        started = Array(Signal(pointer, name=f"started_{n}") for n in range(ports))
        moved = Array(Signal(pointer, name=f"moved_{n}") for n in range(ports))
        beat = Array(Signal(BURST_BITS, name=f"beat_{n}") for n in range(ports))
        room = Signal(ports)
        for n in range(ports):
            held = Signal(pointer, name=f"held_{n}")
            m.d.comb += [
                held.eq(arrived[n] - moved[n]),
                room[n].eq(held != FIFO_BURSTS),
                scheduler.able[n].eq(arrived[n] != started[n]),
            ]
            with m.If(scheduler.chosen[n]):
                m.d.sync += started[n].eq(started[n] + 1)

        # In: the selected port; any other that offers data is selected next.
        m.submodules.turn = turn = RoundRobin(count=ports)
        selected = Signal(ports, init=1)
        select = Signal(place_width)
        offers = Signal(ports)
        take = Signal()
        m.d.comb += [
            offers.eq(Cat(port.valid for port in self.data) & room & ~reads.hold),
            take.eq((offers & selected).any()),
            turn.requests.eq(offers & ~selected),
            turn.advance.eq(turn.any),
        ]
        with m.If(turn.any):
            m.d.sync += [selected.eq(turn.chosen), select.eq(turn.index)]
        taken = Signal(read_data(config))
        with m.Switch(select):
            for n, port in enumerate(self.data):
                m.d.comb += port.ready.eq(selected[n] & room[n] & ~reads.hold[n])
                with m.Case(n):
                    m.d.comb += taken.eq(port.payload)
        first = take & ~(reads.inside & selected).any()
        m.d.comb += [
            store_beat.addr.eq(Cat(beat[select], arrived[select][:FIFO_BITS], select)),
            store_beat.data.eq(taken.data),
            store_beat.en.eq(take),
            store_tag.addr.eq(select),
            store_tag.data.eq(taken.tag),
            store_tag.en.eq(first),
            fetch_tag.addr.eq(reads.peek[:place_width]),
            reads.tag.eq(fetch_tag.data),
        ]
        with m.If(take):
            m.d.sync += beat[select].eq(beat[select] + 1)
            with m.If(beat[select] == BURST_BEATS - 1):
                m.d.sync += arrived[select].eq(arrived[select] + 1)

        target = Signal(ports)
        loaded = Mux(control.load, target, 0)
        dropped = Mux(reads.discard, target, 0)
        m.d.comb += target.eq(1 << control.place[:place_width])
        m.d.sync += [
            reads.want.eq((reads.want & ~loaded) | Mux(first, selected, 0)),
            reads.inside.eq(
                (reads.inside & ~Mux(take, selected, 0) & ~dropped)
                | Mux(take & ~taken.last, selected, 0)
            ),
        ]
        with m.If(reads.discard):
            m.d.sync += beat[control.place[:place_width]].eq(0)
        m.d.comb += scheduler.drop.eq(reads.discard)

        # Out: the burst under way, then the beat that the line store is offered.
        active = Signal()
        out_beat = Signal(BURST_BITS)
        place = Signal(place_width)
        top = Signal(config.beat_address_bits - BURST_BITS)
        last = Signal()
        s1_address = Signal(config.beat_address_bits, reset_less=True)
        s1_place = Signal(place_width)
        s1_end = Signal()
        burst, line_write = scheduler.burst, self.line_write
        advance = Signal()
        last_beat = out_beat == BURST_BEATS - 1
        m.d.comb += [
            advance.eq(~line_write.valid | line_write.ready),
            burst.ready.eq(~active | (advance & last_beat)),
            fetch_beat.addr.eq(Cat(out_beat, moved[place][:FIFO_BITS], place)),
            fetch_beat.en.eq(active & advance),
            line_write.payload.address.eq(s1_address),
            line_write.payload.data.eq(fetch_beat.data),
            line_write.payload.mask.eq(Const(-1, config.beat_dwords)),
            scheduler.finish.eq(line_write.valid & line_write.ready & s1_end),
            scheduler.finish_place.eq(s1_place),
        ]
        with m.If(advance):
            m.d.sync += line_write.valid.eq(active)
            with m.If(active):
                m.d.sync += [
                    out_beat.eq(out_beat + 1),
                    s1_address.eq(Cat(out_beat, top)),
                    s1_place.eq(place),
                    s1_end.eq(last & last_beat),
                ]
                with m.If(last_beat):
                    m.d.sync += moved[place].eq(moved[place] + 1)
        with m.If(burst.ready):
            m.d.sync += active.eq(burst.valid)
            with m.If(burst.valid):
                m.d.sync += [
                    place.eq(burst.payload.place),
                    top.eq(Cat(burst.payload.index, burst.payload.line)),
                    last.eq(burst.payload.last),
                ]

        telling = Const(0)
        if config.early_rows:
            m.submodules.tell = tell = TellPieces(config=config)
            telling = tell.busy
            marked = Signal(early(config))
            s1_early = Signal(early(config))
            s1_number = Signal(tell.number.shape())
            s1_ends = Signal()
            with m.If(burst.ready & burst.valid):
                m.d.sync += marked.eq(burst.payload.early)
            bursts_of_piece = piece_bursts(config)
            index = top[: len(burst.payload.index)]
            with m.If(advance & active):
                m.d.sync += [
                    s1_early.eq(marked),
                    s1_number.eq(index // bursts_of_piece),
                    s1_ends.eq(last_beat & (index % bursts_of_piece == bursts_of_piece - 1)),
                ]
            m.d.comb += [
                tell.written.eq(line_write.valid & line_write.ready & s1_ends),
                tell.number.eq(s1_number),
                tell.early.eq(s1_early),
                self.told.eq(tell.told),
                self.piece.eq(tell.piece),
            ]

        asked = control.place[:place_width]
        m.d.comb += [
            reads.quiet.eq(
                (arrived[asked] == started[asked])
                & ~(burst.valid & (burst.payload.place == asked))
                & ~(active & (place == asked))
                & ~(line_write.valid & (s1_place == asked))
            ),
            self.busy.eq(take | turn.any | scheduler.busy | active | line_write.valid | telling),
        ]
        return m
