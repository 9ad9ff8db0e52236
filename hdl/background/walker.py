"""Row walker: a few rows of an array on their way at once, and how far all of them have ended."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.background.row_order import RowOrder
from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, Config, bits_for_count
from hdl.flow.geometry import geometry
from hdl.flow.table_read import geometry_read
from hdl.flow.walk import MEND_TAG, WalkKind, WalkResult, walk, walked
from hdl.kit.optional import optional

MERGE_SHIFT = 4
"""log2 of the rows that may be one drive command: with longer ones fewer would be on their way."""


def slice_request(config: Config) -> data.StructLayout:
    """Walk the rows of ``array`` from ``first`` on. If ``end`` is not 0, walk those before it.

    Without `Config.intent_chunks` all rows are walked.
    """
    end = optional(config.intent_chunks, {"end": BLOCK_NUMBER_BITS})
    return data.StructLayout(
        {"kind": WalkKind, "array": config.array_bits, "first": BLOCK_NUMBER_BITS, **end}
    )


class SliceEnd(data.Struct):
    """How a slice ended.

    ``row``: all rows before it have ended. ``complete``: those are all of the array.
    ``failed``: a drive refused to be written.
    """

    row: BLOCK_NUMBER_BITS
    complete: 1
    failed: 1


def finding(config: Config) -> data.StructLayout:
    """A row that did not end GOOD; fields as in `walk` and `walked`."""
    return data.StructLayout(
        {
            "kind": WalkKind,
            "array": config.array_bits,
            "base": 5,
            "shift": 5,
            "row": BLOCK_NUMBER_BITS,
            "result": WalkResult,
            "roles": MAX_DRIVES,
        }
    )


class Walker(wiring.Component):
    """Walks the rows of one array after the other, at most ``config.walk_window`` at once.

    Rows end in any order; ``boundary`` is the first that has not, and moves when a row's last walk
    has ended after all before it.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    slice, slice_end
        What to walk; its end, when nothing of it is on its way. Beyond the last row there is
        nothing to walk.
    stop
        Held until the slice ends: ask for no more rows.
    hold
        Ask for no row meanwhile.
    walk, walked
        Rows, and how they ended; each ``tag`` is out once. ``walked`` is always taken in the end.
    finding
        Rows that did not end GOOD. Back-pressure holds ``walked``.
    boundary, advanced
        First row that has not ended, and a pulse when it has moved. Holds from the taking of
        ``slice`` on (with ``advanced``) until the next.
    walking
        A slice has been taken and has not ended.
    issued
        A pulse: a row has been asked for.
    outstanding
        Rows are on their way.
    geometry_read
        Table.

    Rate: a row every 3 cycles, an end every second one. After FAILED no more rows are asked for.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "slice": In(stream.Signature(slice_request(config))),
                "slice_end": Out(stream.Signature(SliceEnd)),
                "stop": In(1),
                "hold": In(1),
                "walk": Out(stream.Signature(walk(config))),
                "walked": In(stream.Signature(walked(config))),
                "finding": Out(stream.Signature(finding(config))),
                "boundary": Out(BLOCK_NUMBER_BITS),
                "advanced": Out(1),
                "walking": Out(1),
                "issued": Out(1),
                "outstanding": Out(1),
                "geometry_read": Out(geometry_read(config)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        window = config.walk_window
        tag_bits = bits_for_count(window)
        m = Module()
        m.submodules.order = order = RowOrder(config=config)
        m.submodules.places = places = Memory(
            shape=data.StructLayout({"base": 5, "shift": 5, "row": BLOCK_NUMBER_BITS}),
            depth=window,
            init=[],
        )
        place_write, place_read = places.write_port(), places.read_port()

        request = Signal(slice_request(config))
        shape = Signal(geometry(config))
        place = order.places.payload
        # A ring of walks in order; `oldest` is the first that has not been retired.
        newest, oldest = Signal(tag_bits), Signal(tag_bits)
        count = Signal(range(window + 1))
        limit, whole = shape.rows, Const(1)
        if config.intent_chunks:
            limit, whole = Signal(BLOCK_NUMBER_BITS), Signal()
            m.d.sync += whole.eq(limit == shape.rows)
        ended, ends = Signal(window), Signal(window)
        failed = Signal()
        boundary = self.boundary

        out = self.walk.payload
        room = ~self.walk.valid | self.walk.ready
        issue = Signal()
        following = Signal(BLOCK_NUMBER_BITS)
        m.d.comb += following.eq(place.row + 1)
        can_issue = order.places.valid & (count != window) & ~failed & ~self.stop
        m.d.comb += [
            self.geometry_read.address.eq(self.slice.payload.array),
            order.geometry.eq(shape),
            order.first.eq(request.first),
            order.end.eq(limit),
            order.stop.eq(self.stop | failed),
            # Stopped, the order's last offer is taken and forgotten.
            order.places.ready.eq(issue | order.stop),
            issue.eq(can_issue & ~self.hold & room),
            self.issued.eq(issue),
            place_write.addr.eq(newest),
            place_write.data.base.eq(place.base),
            place_write.data.shift.eq(place.shift),
            place_write.data.row.eq(place.row),
            place_write.en.eq(issue),
            self.outstanding.eq(count != 0),
        ]
        with m.If(self.walk.ready):
            m.d.sync += self.walk.valid.eq(0)
        with m.If(issue):
            m.d.sync += [
                newest.eq(newest + 1),
                ends.bit_select(newest, 1).eq(place.ends),
                ended.bit_select(newest, 1).eq(0),
                self.walk.valid.eq(1),
                out.kind.eq(request.kind),
                out.array.eq(request.array),
                out.base.eq(place.base),
                out.shift.eq(place.shift),
                out.row.eq(place.row),
                out.more.eq(following[:MERGE_SHIFT].any() & (following != limit)),
                out.tag.eq(newest),
            ]

        # Ends, in any order.
        noted = Signal(walked(config))
        found = self.finding.payload
        tag = noted.tag[:tag_bits]
        mark = Signal()
        m.d.comb += place_read.addr.eq(self.walked.payload.tag[:tag_bits])
        with m.FSM(name="note") as noting:
            with m.State("TAKE"):
                m.d.comb += self.walked.ready.eq(1)
                m.d.sync += noted.eq(self.walked.payload)
                with m.If(self.walked.valid & (self.walked.payload.tag != MEND_TAG)):
                    m.next = "MARK"

            with m.State("MARK"):
                m.d.sync += [
                    found.kind.eq(request.kind),
                    found.array.eq(request.array),
                    found.base.eq(place_read.data.base),
                    found.shift.eq(place_read.data.shift),
                    found.row.eq(place_read.data.row),
                    found.result.eq(noted.result),
                    found.roles.eq(noted.roles),
                ]
                with m.If(noted.result == WalkResult.GOOD):
                    m.d.comb += mark.eq(1)
                    m.next = "TAKE"
                with m.Else():
                    m.next = "REPORT"

            with m.State("REPORT"):
                m.d.comb += self.finding.valid.eq(1)
                with m.If(self.finding.ready):
                    m.d.comb += mark.eq(1)
                    m.next = "TAKE"

        # In order: the oldest row that has ended is retired, and after its last walk the next row
        # is the boundary. After a failure rows end but retire nothing.
        retire = Signal()
        fails = mark & (noted.result == WalkResult.FAILED)
        m.d.comb += retire.eq((count != 0) & ended.bit_select(oldest, 1))
        m.d.sync += count.eq(count + issue - retire)
        with m.If(mark):
            m.d.sync += ended.bit_select(tag, 1).eq(1)
        with m.If(fails):
            m.d.sync += failed.eq(1)
        # The row that failed is not passed, nor any after it.
        stuck = Signal()
        bad = Signal(window)
        m.d.sync += self.advanced.eq(0)
        with m.If(mark):
            m.d.sync += bad.bit_select(tag, 1).eq(fails)
        with m.If(issue):
            m.d.sync += bad.bit_select(newest, 1).eq(0)
        with m.If(retire):
            m.d.sync += [
                oldest.eq(oldest + 1),
                stuck.eq(stuck | bad.bit_select(oldest, 1)),
            ]
            with m.If(ends.bit_select(oldest, 1) & ~stuck & ~bad.bit_select(oldest, 1)):
                m.d.sync += [boundary.eq(boundary + 1), self.advanced.eq(1)]

        end = self.slice_end.payload
        with m.FSM(name="walker") as fsm:
            with m.State("TAKE"):
                m.d.comb += self.slice.ready.eq(1)
                m.d.sync += [request.eq(self.slice.payload), failed.eq(0), stuck.eq(0)]
                with m.If(self.slice.valid):
                    m.next = "LOAD"

            with m.State("LOAD"):
                m.d.sync += [
                    shape.eq(self.geometry_read.data),
                    boundary.eq(request.first),
                    self.advanced.eq(1),
                ]
                m.next = "SETTLE"

            with m.State("SETTLE"):
                m.next = "START"
                if config.intent_chunks:
                    early = (request.end != 0) & (request.end < shape.rows)
                    m.d.sync += limit.eq(Mux(early, request.end, shape.rows))
                with m.If((request.first >= shape.rows) | ~shape.valid):
                    m.d.sync += [end.row.eq(shape.rows), end.complete.eq(1), end.failed.eq(0)]
                    m.d.sync += boundary.eq(shape.rows)
                    m.next = "REPORT"

            with m.State("START"):
                m.d.comb += order.start.eq(1)
                m.next = "WALK"

            with m.State("WALK"):
                with m.If(~order.active & (count == 0) & ~self.walk.valid):
                    m.d.sync += [
                        end.complete.eq(order.complete & ~stuck & whole),
                        end.failed.eq(failed),
                        end.row.eq(boundary),
                    ]
                    with m.If(order.complete & ~stuck):
                        m.d.sync += [end.row.eq(limit), boundary.eq(limit)]
                        m.d.sync += self.advanced.eq(1)
                    m.next = "REPORT"

            with m.State("REPORT"):
                m.d.comb += self.slice_end.valid.eq(1)
                with m.If(self.slice_end.ready):
                    m.next = "TAKE"

        stalled = (
            fsm.ongoing("WALK")
            & noting.ongoing("TAKE")
            & ~retire
            & Mux(order.active, order.places.valid & ~order.places.ready, count != 0)
        )
        waits = (
            (fsm.ongoing("TAKE") & ~self.slice.valid)
            | stalled
            | (fsm.ongoing("REPORT") & ~self.slice_end.ready)
        )
        m.d.comb += [
            self.walking.eq(~fsm.ongoing("TAKE")),
            self.busy.eq(
                ~waits
                | self.walked.valid
                | (self.walk.valid & self.walk.ready)
                | (~noting.ongoing("TAKE") & ~(self.finding.valid & ~self.finding.ready))
                | self.advanced
            ),
        ]
        return m
