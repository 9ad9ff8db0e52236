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
        Ports whose FIFO has a burst, or room for one. In the cycle after a burst was chosen this
        must account for it.
    chosen
        The port of the burst chosen in this cycle, one-hot.
    burst
        Bursts to move, each chosen one cycle earlier; one a cycle.
    finish
        The last beat of a block has been moved.
    finish_place
        The port of that block.
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

        # A port has two slots. A slot is waiting until its last burst is chosen. It is loaded until
        # it is unloaded.
        self._waiting = [Signal(ports, name=f"waiting_{slot}") for slot in range(2)]
        self._loaded = [Signal(ports, name=f"loaded_{slot}") for slot in range(2)]
        self._move_slot = Signal(ports)  # the slot whose bursts are moved
        self._at_last = Signal(ports)  # the next burst is the last of its block
        self._choose = RoundRobin(count=ports)
        self._step = Signal()  # a burst is chosen

        # The port that is loaded or unloaded, one bit, and its number.
        self._target = Signal(ports)
        self._target_place = self.control.place[: bits_for_count(ports)]

        # The burst that is chosen, and the position in its block that follows.
        index_bits = bits_for_count(bursts(config))
        self._position = Array(
            Signal(index_bits, name=f"position_{index}") for index in range(ports)
        )
        self._current = Signal(index_bits)
        self._last = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.choose = self._choose
        self._choose_burst(m)
        self._keep_lines(m)
        self._offer_burst(m)
        self._note_ports(m)
        m.d.comb += self.busy.eq(self._choose.any | self.burst.valid)
        return m

    def _choose_burst(self, m: Module) -> None:
        """Which port's burst is next."""
        control, choose, loaded = self.control, self._choose, self._loaded
        waiting, move_slot = self._waiting, self._move_slot
        ready = Signal(self._ports)
        m.d.comb += [
            self._target.eq(1 << self._target_place),
            control.free.eq(~((loaded[0] & ~control.load_slot) | (loaded[1] & control.load_slot))),
            ready.eq((waiting[0] & ~move_slot) | (waiting[1] & move_slot)),
            choose.requests.eq(ready & self.able & ~(control.ended & self._at_last)),
            self._step.eq(choose.any & (~self.burst.valid | self.burst.ready)),
            choose.advance.eq(self._step),
            self.chosen.eq(Mux(self._step, choose.chosen, 0)),
        ]

    def _keep_lines(self, m: Module) -> None:
        """The line of each slot. It is read only as a burst is chosen, and then kept, which a
        `hdl.kit.table.Table` does not do."""
        config, control, choose = self._config, self.control, self._choose
        loaded = data.StructLayout({"line": config.line_bits, **early_field(config)})
        slots = 2 << bits_for_count(self._ports)
        m.submodules.lines = lines = Memory(shape=loaded, depth=slots, init=[])
        write, read = lines.write_port(), lines.read_port()
        load_slot = (control.load_slot & self._target).any()
        slot = (self._move_slot & choose.chosen).any()
        m.d.comb += [
            write.addr.eq((self._target_place << 1) | load_slot),
            write.data.line.eq(control.line),
            write.data.early.eq(control.early),
            write.en.eq(control.load),
            read.addr.eq((choose.index << 1) | slot),
            read.en.eq(self._step),
            self.burst.payload.line.eq(read.data.line),
            self.burst.payload.early.eq(read.data.early),
        ]

    def _offer_burst(self, m: Module) -> None:
        """The burst that was chosen."""
        choose, payload = self._choose, self.burst.payload
        s1_place = Signal(place_bits(self._config))
        s1_index = Signal.like(self._current)
        s1_last = Signal()
        m.d.comb += [
            self._current.eq(self._position[choose.index]),
            self._last.eq((self._at_last & choose.chosen).any()),
            payload.place.eq(s1_place),
            payload.index.eq(s1_index),
            payload.last.eq(s1_last),
        ]
        with m.If(self.burst.ready):
            m.d.sync += self.burst.valid.eq(0)
        with m.If(self._step):
            m.d.sync += [
                self.burst.valid.eq(1),
                s1_place.eq(choose.index),
                s1_index.eq(self._current),
                s1_last.eq(self._last),
                self._position[choose.index].eq(self._current + 1),
            ]

    def _note_ports(self, m: Module) -> None:
        """What becomes of each port's slots and of its position."""
        control, choose, at_last = self.control, self._choose, self._at_last
        finished = Signal(self._ports)
        with m.If(self.finish):
            m.d.comb += finished.eq(1 << self.finish_place[: bits_for_count(self._ports)])
        loading = Mux(control.load, self._target, 0)
        unloading = Mux(control.unload, self._target, 0)
        dropping = Mux(self.drop, self._target, 0)
        moved = Mux(self._step & self._last, choose.chosen, 0)
        one_left = self._current == bursts(self._config) - 2
        m.d.sync += [
            control.load_slot.eq(control.load_slot ^ loading),
            control.end_slot.eq(control.end_slot ^ unloading ^ dropping),
            self._move_slot.eq(self._move_slot ^ moved ^ dropping),
            control.ended.eq((control.ended & ~unloading) | finished),
            at_last.eq(
                (at_last & ~self.chosen & ~dropping)
                | Mux(self._step & one_left, choose.chosen, 0)
            ),
        ]
        for slot, (wait, hold) in enumerate(zip(self._waiting, self._loaded, strict=True)):

            def of(vector, slot=slot):
                return vector if slot else ~vector

            loads = loading & of(control.load_slot)
            moves = (moved | dropping) & of(self._move_slot)
            unloads = (unloading | dropping) & of(control.end_slot)
            m.d.sync += [wait.eq((wait & ~moves) | loads), hold.eq((hold & ~unloads) | loads)]
        with m.If(self.drop):
            m.d.sync += self._position[self._target_place].eq(0)
