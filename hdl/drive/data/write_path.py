"""Line store to drives: moves granted blocks into the ports' FIFOs."""

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config, bits_for_count
from hdl.drive.data.bursts import BurstScheduler
from hdl.drive.records import (
    BURST_BEATS,
    BURST_BITS,
    FIFO_BITS,
    FIFO_BURSTS,
    PathControl,
    place_bits,
)
from hdl.flow.drive_port import write_data
from hdl.flow.line import ReadPort
from hdl.kit.cut import Skid
from hdl.kit.queue import Queue
from hdl.memory.store import READ_LATENCY


class WritePath(wiring.Component):
    """Reads the lines of granted blocks and sends them to the drives.

    The ports with room take turns, a burst of `BURST_BEATS` beats each. That makes a beat a cycle
    in total, without an idle cycle between bursts or blocks. From a memory read to ``data`` it
    takes `READ_LATENCY` + 2 cycles. A port whose drive does not take its data holds `FIFO_BURSTS`
    bursts and takes no turn.

    Parameters
    ----------
    config
        Sizes.
    ports
        Ports on this path.

    Ports
    -----
    control
        The blocks to move.
    line_read
        The path's port of the line store.
    data
        Write data of each port.
    filled
        A bit a port: its beats are on their way from a line to its drive. A block has been moved
        (`PathControl`) as its last beat is asked for, so they outlive it.
    busy
        Something moves.
    """

    def __init__(self, *, config: Config, ports: int):
        self._config = config
        self._ports = ports
        super().__init__(
            {
                "control": In(PathControl(config, ports)),
                "line_read": Out(ReadPort(config)),
                "data": Out(stream.Signature(write_data(config))).array(ports),
                "filled": Out(ports),
                "busy": Out(1),
            }
        )

        self._scheduler = BurstScheduler(config=config, ports=ports)
        asking = data.StructLayout(
            {"address": config.beat_address_bits, "place": place_bits(config)}
        )
        self._skid = Skid(asking)
        # Whose beat the line store answers with.
        self._owner = Signal(place_bits(config), reset_less=True, name=f"s{READ_LATENCY - 1}_owner")

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.scheduler = self._scheduler
        connect(m, flipped(self.control), self._scheduler.control)
        m.submodules.skid = self._skid
        active = self._move_burst(m)
        flying = self._read_lines(m)
        filling = [self._fill(m, index) for index in range(self._ports)]
        moving = [self._scheduler.busy, active, self.line_read.request.valid, *flying, *filling]
        m.d.comb += self.busy.eq(Cat(*moving).any())
        return m

    def _move_burst(self, m: Module) -> Signal:
        """Asks for the beats of the burst under way. Returns whether there is one."""
        config, scheduler, burst = self._config, self._scheduler, self._scheduler.burst
        request = self._skid.input
        active = Signal()
        beat = Signal(BURST_BITS)
        place = Signal(place_bits(config))
        top = Signal(config.beat_address_bits - BURST_BITS)
        last = Signal()
        last_beat = beat == BURST_BEATS - 1
        m.d.comb += [
            request.valid.eq(active),
            request.payload.address.eq(Cat(beat, top)),
            request.payload.place.eq(place),
            burst.ready.eq(~active | (request.ready & last_beat)),
            scheduler.finish.eq(active & request.ready & last_beat & last),
            scheduler.finish_place.eq(place),
        ]
        with m.If(request.ready & active):
            m.d.sync += beat.eq(beat + 1)
        with m.If(burst.ready):
            m.d.sync += active.eq(burst.valid)
            with m.If(burst.valid):
                m.d.sync += [
                    place.eq(burst.payload.place),
                    top.eq(Cat(burst.payload.index, burst.payload.line)),
                    last.eq(burst.payload.last),
                ]
        return active

    def _read_lines(self, m: Module) -> list[Signal]:
        """Reads beats, and keeps whose each is until it answers. Returns which are on their way."""
        asked_for, request = self._skid.output, self.line_read.request
        m.d.comb += [
            request.valid.eq(asked_for.valid),
            request.payload.eq(asked_for.payload.address),
            asked_for.ready.eq(request.ready),
        ]
        owner, asked = asked_for.payload.place, request.valid & request.ready
        flying = []
        for stage in range(READ_LATENCY):
            is_last = stage == READ_LATENCY - 1
            s_owner = self._owner if is_last else Signal.like(self._owner, name=f"s{stage}_owner")
            s_asked = Signal(name=f"s{stage}_asked")
            m.d.sync += [s_owner.eq(owner), s_asked.eq(asked)]
            owner, asked = s_owner, s_asked
            flying.append(s_asked)
        return flying

    def _fill(self, m: Module, index: int) -> Value:
        """The FIFO of a port. Returns whether something is about to come out of it.

        ``chosen`` counts bursts as they are chosen, ``taken`` beats as the drive takes them.
        """
        config, scheduler, port = self._config, self._scheduler, self.data[index]
        fifo = Queue(config.data_width, FIFO_BURSTS * BURST_BEATS + 1)
        m.submodules[f"fifo_{index}"] = fifo
        beat_bits = bits_for_count(config.beats)
        taken = Signal(max(beat_bits, BURST_BITS + FIFO_BITS + 1), name=f"taken_{index}")
        drained = taken[BURST_BITS : BURST_BITS + FIFO_BITS + 1]
        chosen = Signal(FIFO_BITS + 1, name=f"chosen_{index}")
        full = Signal(FIFO_BITS + 1, name=f"full_{index}")
        m.d.comb += [
            fifo.input.valid.eq(self.line_read.response_valid & (self._owner == index)),
            fifo.input.payload.eq(self.line_read.response),
            port.valid.eq(fifo.output.valid),
            port.payload.data.eq(fifo.output.payload),
            port.payload.last.eq(taken[:beat_bits].all()),
            fifo.output.ready.eq(port.ready),
            full.eq(chosen - drained),
            scheduler.able[index].eq(full != FIFO_BURSTS),
            self.filled[index].eq(full != 0),
        ]
        with m.If(port.valid & port.ready):
            m.d.sync += taken.eq(taken + 1)
        with m.If(scheduler.chosen[index]):
            m.d.sync += chosen.eq(chosen + 1)
        return fifo.filling
