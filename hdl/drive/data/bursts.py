"""Which port's burst a path moves next."""

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.drive.records import PathControl, bursts, place_bits
from hdl.flow.piece import early_field
from hdl.kit.pick import RoundRobin


def burst(config: Config) -> data.StructLayout:
    """Burst ``index`` of the block in ``line``, for the port at ``place``; ``early`` as loaded."""
    return data.StructLayout(
        {
            "place": place_bits(config),
            "line": config.line_bits,
            "index": bits_for_count(bursts(config)),
            "last": 1,
            **early_field(config),
        }
    )


class BurstScheduler(wiring.Component):
    """Round robin over the ports of a path that have a block to move and can move a burst of it.

    Parameters
    ----------
    config
        Sizes.
    ports
        Ports on this path.

    Ports
    -----
    control
        `PathControl`, seen from the path.
    able
        Ports whose FIFO has a burst, or room for one. Must account for a chosen burst in the next
        cycle.
    chosen
        The port of the burst chosen in this cycle, one-hot.
    burst
        Bursts to move, each chosen one cycle earlier; one a cycle.
    finish, finish_place
        The last beat of a block of port ``finish_place`` has been moved.
    drop
        Forget the current block of port ``control.place``, none of whose bursts is under way.
    busy
        A burst can be chosen or waits to be moved.
    """

    def __init__(self, *, config: Config, ports: int):
        self._config = config
        self._ports = ports
        super().__init__(
            {
                "control": In(PathControl(config, ports)),
                "able": In(ports),
                "chosen": Out(ports),
                "burst": Out(stream.Signature(burst(config))),
                "finish": In(1),
                "finish_place": In(place_bits(config)),
                "drop": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config, ports, control = self._config, self._ports, self.control
        place = bits_for_count(ports)
        count = bursts(config)

        # A slot is waiting until its last burst is chosen, and held until it is unloaded.
        waiting = [Signal(ports, name=f"waiting_{slot}") for slot in range(2)]
        held = [Signal(ports, name=f"held_{slot}") for slot in range(2)]
        move_slot = Signal(ports)
        at_last = Signal(ports)
        target = Signal(ports)
        m.d.comb += [
            target.eq(1 << control.place[:place]),
            control.free.eq(~((held[0] & ~control.load_slot) | (held[1] & control.load_slot))),
        ]

        m.submodules.choose = choose = RoundRobin(count=ports)
        step = Signal()
        ready = Signal(ports)
        m.d.comb += [
            ready.eq((waiting[0] & ~move_slot) | (waiting[1] & move_slot)),
            choose.requests.eq(ready & self.able & ~(control.ended & at_last)),
            step.eq(choose.any & (~self.burst.valid | self.burst.ready)),
            choose.advance.eq(step),
            self.chosen.eq(Mux(step, choose.chosen, 0)),
        ]

        loaded = data.StructLayout({"line": config.line_bits, **early_field(config)})
        m.submodules.lines = lines = Memory(shape=loaded, depth=1 << (place + 1), init=[])
        write_line, read_line = lines.write_port(), lines.read_port()
        load_slot = (control.load_slot & target).any()
        slot = (move_slot & choose.chosen).any()
        m.d.comb += [
            write_line.addr.eq((control.place[:place] << 1) | load_slot),
            write_line.data.line.eq(control.line),
            write_line.en.eq(control.load),
            read_line.addr.eq((choose.index << 1) | slot),
            read_line.en.eq(step),
            self.burst.payload.line.eq(read_line.data.line),
        ]
        m.d.comb += [
            write_line.data.early.eq(control.early),
            self.burst.payload.early.eq(read_line.data.early),
        ]

        # The chosen burst, and the position in the block that follows.
        position = Array(
            Signal(bits_for_count(count), name=f"position_{index}") for index in range(ports)
        )
        current = Signal(bits_for_count(count))
        last = Signal()
        s1_place = Signal(place_bits(config))
        s1_index = Signal(bits_for_count(count))
        s1_last = Signal()
        m.d.comb += [
            current.eq(position[choose.index]),
            last.eq((at_last & choose.chosen).any()),
            self.burst.payload.place.eq(s1_place),
            self.burst.payload.index.eq(s1_index),
            self.burst.payload.last.eq(s1_last),
        ]
        with m.If(self.burst.ready):
            m.d.sync += self.burst.valid.eq(0)
        with m.If(step):
            m.d.sync += [
                self.burst.valid.eq(1),
                s1_place.eq(choose.index),
                s1_index.eq(current),
                s1_last.eq(last),
                position[choose.index].eq(current + 1),
            ]
        finished = Signal(ports)
        with m.If(self.finish):
            m.d.comb += finished.eq(1 << self.finish_place[:place])
        loading = Mux(control.load, target, 0)
        unloading = Mux(control.unload, target, 0)
        dropping = Mux(self.drop, target, 0)
        moved = Mux(step & last, choose.chosen, 0)
        m.d.sync += [
            control.load_slot.eq(control.load_slot ^ loading),
            control.end_slot.eq(control.end_slot ^ unloading ^ dropping),
            move_slot.eq(move_slot ^ moved ^ dropping),
            control.ended.eq((control.ended & ~unloading) | finished),
            at_last.eq(
                (at_last & ~self.chosen & ~dropping)
                | Mux(step & (current == count - 2), choose.chosen, 0)
            ),
        ]
        for slot, (wait, hold) in enumerate(zip(waiting, held, strict=True)):

            def of(vector, slot=slot):
                return vector if slot else ~vector

            m.d.sync += [
                wait.eq(
                    (wait & ~((moved | dropping) & of(move_slot)))
                    | (loading & of(control.load_slot))
                ),
                hold.eq(
                    (hold & ~((unloading | dropping) & of(control.end_slot)))
                    | (loading & of(control.load_slot))
                ),
            ]
        with m.If(self.drop):
            m.d.sync += position[control.place[:place]].eq(0)
        m.d.comb += self.busy.eq(choose.any | self.burst.valid)
        return m
