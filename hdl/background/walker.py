"""Row walker: keeps a few rows of an array on their way, and knows up to where all have ended."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.background.row_order import PLACE_BITS, RowOrder
from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, Config, bits_for_count
from hdl.flow.geometry import geometry
from hdl.flow.table_read import geometry_read
from hdl.flow.walk import MEND_TAG, WalkKind, WalkResult, walk, walked
from hdl.kit.optional import optional
from hdl.kit.table import Table

MERGE_SHIFT = 4
"""log2 of the rows that one drive command may have. With longer ones, fewer would be under way."""


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

    All rows before ``row`` have ended. ``complete``: these are all rows of the array. ``failed``: a
    drive refused to be written.
    """

    row: BLOCK_NUMBER_BITS
    complete: 1
    failed: 1


def finding(config: Config) -> data.StructLayout:
    """A row that did not end GOOD. Fields as in `walk` and `walked`."""
    return data.StructLayout(
        {
            "kind": WalkKind,
            "array": config.array_bits,
            "base": PLACE_BITS,
            "shift": PLACE_BITS,
            "row": BLOCK_NUMBER_BITS,
            "result": WalkResult,
            "roles": MAX_DRIVES,
        }
    )


def row_name() -> data.StructLayout:
    """A row of the array that is walked: ``base``, ``shift`` and ``row`` as in `walk`."""
    return data.StructLayout({"base": PLACE_BITS, "shift": PLACE_BITS, "row": BLOCK_NUMBER_BITS})


class Walker(wiring.Component):
    """Walks the rows of one array after the other, at most ``config.walk_window`` at once.

    Rows end in any order. ``boundary`` is the first row that has not ended. It moves when the last
    walk of a row has ended, and all walks before it.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    slice
        What to walk. Beyond the last row there is nothing to walk.
    slice_end
        Its end, when none of its rows is on its way any more.
    stop
        Held until the slice ends. No more rows are asked for.
    hold
        Level. No row is asked for meanwhile.
    walk
        Rows to work on. Each ``tag`` is out once.
    walked
        How they ended. It is always taken in the end.
    finding
        Rows that did not end GOOD. Its back-pressure holds ``walked``.
    boundary
        First row that has not ended. It holds from the taking of ``slice`` (with ``advanced``)
        until the next is taken.
    advanced
        A pulse. ``boundary`` has moved.
    walking
        A slice has been taken and has not ended.
    issued
        A pulse. A row has been asked for.
    outstanding
        Rows are on their way.
    geometry_read
        Table of the arrays.
    busy
        It works.

    Rate: a row every 3 cycles, and an end every second cycle. After FAILED no more rows are asked
    for.
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
        window = config.walk_window
        tag = bits_for_count(window)
        self._order = RowOrder(config=config)
        self._names = Table(row_name(), window)  # of the walks on their way, by tag

        # The slice at hand.
        self._request = Signal(slice_request(config))
        self._shape = Signal(geometry(config))
        self._failed = Signal()  # a drive refused to be written
        # The first row that is not to be walked; whether that is beyond the array's last.
        self._limit, self._whole = self._shape.rows, Const(1)
        if config.intent_chunks:
            self._limit = Signal(BLOCK_NUMBER_BITS)
            self._whole = Signal()

        # A ring of walks in order: the tag of the next, and of the first that has not been retired.
        self._newest = Signal(tag)
        self._oldest = Signal(tag)
        self._count = Signal(range(window + 1))
        # Bit a tag: the walk has ended; it is the last of its row; its row failed.
        self._ended = Signal(window)
        self._ends = Signal(window)
        self._bad = Signal(window)
        # The next row is asked for; the oldest is retired; nothing is passed any more.
        self._issue = Signal()
        self._retire = Signal()
        self._stuck = Signal()

        # The end of a walk, which is marked.
        self._noted = Signal(walked(config))
        self._tag = self._noted.tag[:tag]
        self._mark = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.order = self._order
        m.submodules.names = self._names
        if self._config.intent_chunks:
            m.d.sync += self._whole.eq(self._limit == self._shape.rows)
        self._connect_order(m)
        self._issue_walks(m)
        with m.FSM(name="note") as noting:
            self._note_ends(m)
        self._retire_walks(m)
        with m.FSM(name="walker") as fsm:
            self._take(m)
            self._start(m)
            self._walk(m)
            self._report(m)
        self._tell_busy(m, fsm, noting)
        return m

    def _connect_order(self, m: Module) -> None:
        """The order names the rows one by one. Each is asked for as soon as there is room."""
        order, issue = self._order, self._issue
        room = ~self.walk.valid | self.walk.ready
        window = self._config.walk_window
        can_issue = order.places.valid & (self._count != window) & ~self._failed & ~self.stop
        m.d.comb += [
            self.geometry_read.address.eq(self.slice.payload.array),
            order.geometry.eq(self._shape),
            order.first.eq(self._request.first),
            order.end.eq(self._limit),
            order.stop.eq(self.stop | self._failed),
            # Stopped, the order's last offer is taken and forgotten.
            order.places.ready.eq(issue | order.stop),
            issue.eq(can_issue & ~self.hold & room),
            self.issued.eq(issue),
            self.outstanding.eq(self._count != 0),
        ]

    def _issue_walks(self, m: Module) -> None:
        """Asks for the next row."""
        place, walk, names = self._order.places.payload, self.walk.payload, self._names
        newest, issue = self._newest, self._issue
        following = Signal(BLOCK_NUMBER_BITS)
        m.d.comb += following.eq(place.row + 1)
        m.d.comb += [
            names.write.address.eq(newest),
            names.write.data.base.eq(place.base),
            names.write.data.shift.eq(place.shift),
            names.write.data.row.eq(place.row),
            names.write.enable.eq(issue),
        ]
        with m.If(self.walk.ready):
            m.d.sync += self.walk.valid.eq(0)
        with m.If(issue):
            m.d.sync += [
                newest.eq(newest + 1),
                self._ends.bit_select(newest, 1).eq(place.ends),
                self._ended.bit_select(newest, 1).eq(0),
                self.walk.valid.eq(1),
                walk.kind.eq(self._request.kind),
                walk.array.eq(self._request.array),
                walk.base.eq(place.base),
                walk.shift.eq(place.shift),
                walk.row.eq(place.row),
                walk.more.eq(following[:MERGE_SHIFT].any() & (following != self._limit)),
                walk.tag.eq(newest),
            ]

    def _note_ends(self, m: Module) -> None:
        """The states TAKE to REPORT of the second machine: ends of walks, in any order."""
        noted, found, name = self._noted, self.finding.payload, self._names.reads[0]
        m.d.comb += name.address.eq(self.walked.payload.tag[: len(self._tag)])
        with m.State("TAKE"):
            m.d.comb += self.walked.ready.eq(1)
            m.d.sync += noted.eq(self.walked.payload)
            with m.If(self.walked.valid & (self.walked.payload.tag != MEND_TAG)):
                m.next = "MARK"

        with m.State("MARK"):
            m.d.sync += [
                found.kind.eq(self._request.kind),
                found.array.eq(self._request.array),
                found.base.eq(name.data.base),
                found.shift.eq(name.data.shift),
                found.row.eq(name.data.row),
                found.result.eq(noted.result),
                found.roles.eq(noted.roles),
            ]
            with m.If(noted.result == WalkResult.GOOD):
                m.d.comb += self._mark.eq(1)
                m.next = "TAKE"
            with m.Else():
                m.next = "REPORT"

        with m.State("REPORT"):
            m.d.comb += self.finding.valid.eq(1)
            with m.If(self.finding.ready):
                m.d.comb += self._mark.eq(1)
                m.next = "TAKE"

    def _retire_walks(self, m: Module) -> None:
        """Retires the oldest walk if it has ended, and so moves the boundary.

        After the last walk of a row, the next row is the boundary. The row that failed is not
        passed, nor any after it: they end, but move nothing.
        """
        oldest, tag, mark, retire = self._oldest, self._tag, self._mark, self._retire
        bad, stuck, boundary = self._bad, self._stuck, self.boundary
        fails = mark & (self._noted.result == WalkResult.FAILED)
        m.d.comb += retire.eq((self._count != 0) & self._ended.bit_select(oldest, 1))
        m.d.sync += self._count.eq(self._count + self._issue - retire)
        with m.If(mark):
            m.d.sync += self._ended.bit_select(tag, 1).eq(1)
        with m.If(fails):
            m.d.sync += self._failed.eq(1)
        m.d.sync += self.advanced.eq(0)
        with m.If(mark):
            m.d.sync += bad.bit_select(tag, 1).eq(fails)
        with m.If(self._issue):
            m.d.sync += bad.bit_select(self._newest, 1).eq(0)
        with m.If(retire):
            m.d.sync += [
                oldest.eq(oldest + 1),
                stuck.eq(stuck | bad.bit_select(oldest, 1)),
            ]
            ends = self._ends.bit_select(oldest, 1)
            with m.If(ends & ~stuck & ~bad.bit_select(oldest, 1)):
                m.d.sync += [boundary.eq(boundary + 1), self.advanced.eq(1)]

    def _take(self, m: Module) -> None:
        """The states TAKE and LOAD: a slice, and the geometry of its array."""
        with m.State("TAKE"):
            m.d.comb += self.slice.ready.eq(1)
            m.d.sync += [
                self._request.eq(self.slice.payload),
                self._failed.eq(0),
                self._stuck.eq(0),
            ]
            with m.If(self.slice.valid):
                m.next = "LOAD"

        with m.State("LOAD"):
            m.d.sync += [
                self._shape.eq(self.geometry_read.data),
                self.boundary.eq(self._request.first),
                self.advanced.eq(1),
            ]
            m.next = "SETTLE"

    def _start(self, m: Module) -> None:
        """The states SETTLE and START: the last row is known, and the order begins."""
        request, rows, end = self._request, self._shape.rows, self.slice_end.payload
        with m.State("SETTLE"):
            m.next = "START"
            if self._config.intent_chunks:
                early = (request.end != 0) & (request.end < rows)
                m.d.sync += self._limit.eq(Mux(early, request.end, rows))
            with m.If((request.first >= rows) | ~self._shape.valid):
                m.d.sync += [end.row.eq(rows), end.complete.eq(1), end.failed.eq(0)]
                m.d.sync += self.boundary.eq(rows)
                m.next = "REPORT"

        with m.State("START"):
            m.d.comb += self._order.start.eq(1)
            m.next = "WALK"

    def _walk(self, m: Module) -> None:
        """The state WALK, until no row is on its way any more."""
        order, boundary, end = self._order, self.boundary, self.slice_end.payload
        with m.State("WALK"):
            with m.If(~order.active & (self._count == 0) & ~self.walk.valid):
                m.d.sync += [
                    end.complete.eq(order.complete & ~self._stuck & self._whole),
                    end.failed.eq(self._failed),
                    end.row.eq(boundary),
                ]
                with m.If(order.complete & ~self._stuck):
                    m.d.sync += [end.row.eq(self._limit), boundary.eq(self._limit)]
                    m.d.sync += self.advanced.eq(1)
                m.next = "REPORT"

    def _report(self, m: Module) -> None:
        """The state REPORT: the end of the slice."""
        with m.State("REPORT"):
            m.d.comb += self.slice_end.valid.eq(1)
            with m.If(self.slice_end.ready):
                m.next = "TAKE"

    def _tell_busy(self, m: Module, fsm, noting) -> None:
        """It is busy unless both machines wait for somebody else."""
        places, finding = self._order.places, self.finding
        stalled = (
            fsm.ongoing("WALK")
            & noting.ongoing("TAKE")
            & ~self._retire
            & Mux(self._order.active, places.valid & ~places.ready, self._count != 0)
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
                | (~noting.ongoing("TAKE") & ~(finding.valid & ~finding.ready))
                | self.advanced
            ),
        ]
