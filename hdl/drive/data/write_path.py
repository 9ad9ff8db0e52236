"""Line store to drives: moves granted blocks into the ports' FIFOs."""

from amaranth.hdl import Cat, Module, Signal
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

    Bursts of `BURST_BEATS` beats, round robin over the ports with room; a beat a cycle in total, no
    idle cycle between bursts or blocks. Memory read to ``data``: `READ_LATENCY` + 2 cycles.
    Back-pressure: a port whose drive does not take its data holds `FIFO_BURSTS` bursts and takes no
    turn. ``filled``: a bit a port, whose beats are on their way from a line to its drive. A block
    has been moved (`PathControl`) as its last beat is asked for, so they outlive it.

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
                "line_read": Out(ReadPort(config)),
                "data": Out(stream.Signature(write_data(config))).array(ports),
                "filled": Out(ports),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config, ports = self._config, self._ports
        m.submodules.scheduler = scheduler = BurstScheduler(config=config, ports=ports)
        connect(m, flipped(self.control), scheduler.control)

        # The burst under way.
        active = Signal()
        beat = Signal(BURST_BITS)
        place = Signal(place_bits(config))
        top = Signal(config.beat_address_bits - BURST_BITS)
        last = Signal()
        asking = data.StructLayout({"address": config.beat_address_bits, "place": place.shape()})
        m.submodules.skid = skid = Skid(asking)
        burst, request = scheduler.burst, skid.input
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

        # Whose beat is which, until it answers.
        line_request = self.line_read.request
        m.d.comb += [
            line_request.valid.eq(skid.output.valid),
            line_request.payload.eq(skid.output.payload.address),
            skid.output.ready.eq(line_request.ready),
        ]
        owner, asked = skid.output.payload.place, line_request.valid & line_request.ready
        flying = []
        for stage in range(READ_LATENCY):
            s_owner = Signal(place_bits(config), name=f"s{stage}_owner", reset_less=True)
            s_asked = Signal(name=f"s{stage}_asked")
            m.d.sync += [s_owner.eq(owner), s_asked.eq(asked)]
            owner, asked = s_owner, s_asked
            flying.append(s_asked)

        filling = []
        for index, port in enumerate(self.data):
            fifo = Queue(config.data_width, FIFO_BURSTS * BURST_BEATS + 1)
            m.submodules[f"fifo_{index}"] = fifo
            taken = Signal(
                max(bits_for_count(config.beats), BURST_BITS + FIFO_BITS + 1),
                name=f"taken_{index}",
            )
            drained = taken[BURST_BITS : BURST_BITS + FIFO_BITS + 1]
            chosen = Signal(FIFO_BITS + 1, name=f"chosen_{index}")
            full = Signal(FIFO_BITS + 1, name=f"full_{index}")
            m.d.comb += [
                fifo.input.valid.eq(self.line_read.response_valid & (owner == index)),
                fifo.input.payload.eq(self.line_read.response),
                port.valid.eq(fifo.output.valid),
                port.payload.data.eq(fifo.output.payload),
                port.payload.last.eq(taken[: bits_for_count(config.beats)].all()),
                fifo.output.ready.eq(port.ready),
                full.eq(chosen - drained),
                scheduler.able[index].eq(full != FIFO_BURSTS),
                self.filled[index].eq(full != 0),
            ]
            with m.If(port.valid & port.ready):
                m.d.sync += taken.eq(taken + 1)
            with m.If(scheduler.chosen[index]):
                m.d.sync += chosen.eq(chosen + 1)
            filling.append(fifo.filling)
        moving = [scheduler.busy, active, line_request.valid, *flying, *filling]
        m.d.comb += self.busy.eq(Cat(*moving).any())
        return m
