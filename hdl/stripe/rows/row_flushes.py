"""Flushes of drives that rows need, many rows at once, and each array for itself."""

from amaranth.hdl import Assert, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.flush_request import flush_rounds
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.flow.recovery import tried_bits
from hdl.kit.pick import choose, following, lowest_bit
from hdl.kit.queue import Queue
from hdl.kit.table import Table


def flush_for_row(config: Config) -> data.StructLayout:
    """A row slot, the array of its row, and drives of that array, a bit a port, that it needs
    flushed."""
    return data.StructLayout(
        {"slot": config.row_slot_bits, "array": config.array_bits, "ports": config.ports}
    )


def flushed_row(config: Config) -> data.StructLayout:
    """A row slot, and drives, a bit a port, that have been flushed."""
    return data.StructLayout({"slot": config.row_slot_bits, "ports": config.ports})


def flush_end(config: Config) -> data.StructLayout:
    """How the FLUSH of a drive has ended, for the rows of an array."""
    return data.StructLayout(
        {"port": config.port_bits, "array": config.array_bits, "status": DriveStatus}
    )


def lane(config: Config) -> data.StructLayout:
    """The rows of an array that are in here.

    They are a list from ``first`` to ``last``. The first ``left`` of them have the flush under way,
    and ``waiting`` ones after them the next one, of the drives ``needed``. Of the flush under way:
    drives that have ``stored`` what they had, drives that get a FLUSH ``again``, operations that
    are ``out``, and the ``rounds`` that have been sent before.
    """
    slot, count = config.row_slot_bits, bits_for_count(config.rows + 1)
    return data.StructLayout(
        {
            "first": slot,
            "last": slot,
            "left": count,
            "waiting": count,
            "needed": config.ports,
            "stored": config.ports,
            "again": config.ports,
            "out": bits_for_count(config.ports + 1),
            "rounds": bits_for_count(flush_rounds(config)),
        }
    )


class RowFlushes(wiring.Component):
    """Has drives flushed for rows, and tells each row of it.

    Each array has flushes of its own, so a drive that hangs holds up no row of another array. Rows
    that come while drives of their array are being flushed wait. All that have waited share the
    next flush: a drive that goes away leaves many rows at once, which need the same other drives.

    A drive that aborts its FLUSH gets it again when all have answered, `flush_rounds` times in all.
    One that goes away, or ends it with an error, has not stored anything. Nor has one that
    restarts (with ``background``): whoever hears the end of its FLUSH tells of that.

    An event takes 5 cycles: a row that comes, a flush that begins; 6 if it is a FLUSH that ends. A
    FLUSH that is sent takes a cycle more, and a row that is told two. There is one event at a time,
    for all arrays. Flushes of arrays begin by turns.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    request
        A row that waits, and what it needs. There is always room. No row waits twice.
    done
        That row, once a FLUSH has ended of all drives that it needs. Those of ``ports`` have stored
        what they had been told to write when the row came. Rows of an array come in their order.
    operation
        A FLUSH of ``Owner.FLUSHER`` for a drive. ``place`` is 1 and ``index`` the array.
    finished
        Their ends, which are always taken.
    restarts
        With ``background``: how often the drive at a port has restarted. Operations say how often
        it had when their flush began.
    busy
        Something but the drives, or who takes ``done`` or ``operation``, is being waited for.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(flush_for_row(config))),
                "done": Out(stream.Signature(flushed_row(config))),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "restarts": In(tried_bits(config)).array(config.ports),
                "busy": Out(1),
            }
        )
        self._requests = Queue(flush_for_row(config), config.rows)
        # Each port has one FLUSH at a time.
        self._ends = Queue(flush_end(config), config.ports)
        self._lanes = Table(lane(config), config.arrays)
        self._followers = Table(config.row_slot_bits, config.rows)
        self._before = Signal(data.ArrayLayout(tried_bits(config), config.ports))

        # A bit an array. Rows of it wait for a flush; one of its flushes is under way.
        self._due = Signal(config.arrays)
        self._flies = Signal(config.arrays)

        # The array at hand, its lane, and drives that are to be asked.
        self._array = Signal(config.array_bits)
        self._lane = Signal(lane(config))
        self._pending = Signal(config.ports)
        # Whose flush begins next, of those that wait; they take turns.
        self._turn = Signal(config.array_bits)
        self._next_due = Signal(config.array_bits)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.requests = self._requests
        m.submodules.ends = self._ends
        m.submodules.lanes = self._lanes
        m.submodules.followers = self._followers
        self._connect(m)
        with m.FSM(name="flush_rows") as fsm:
            self._clear(m)
            self._rest(m)
            self._join(m)
            self._begin(m)
            self._send(m)
            self._hear(m)
            self._tell(m)
            waits = (
                (fsm.ongoing("REST") & ~self._has_work)
                | (fsm.ongoing("SEND") & self.operation.valid & ~self.operation.ready)
                | (fsm.ongoing("TELL") & self.done.valid & ~self.done.ready)
            )
        arrives = self.request.valid | self.finished.valid
        arrives |= self._requests.filling | self._ends.filling
        m.d.comb += self.busy.eq(~waits | arrives)
        return m

    def _connect(self, m: Module) -> None:
        """The queues, the tables at the array at hand, and what is sent and told."""
        requests, ends, lanes, state = self._requests, self._ends, self._lanes, self._lane
        heard, sent, told = ends.input.payload, self.operation.payload, self.done.payload
        port = lowest_bit(m, self._pending, "asked")
        m.d.comb += self._next_due.eq(choose(m, self._due & ~self._flies, self._turn))
        m.d.comb += [
            requests.input.payload.eq(self.request.payload),
            requests.input.valid.eq(self.request.valid),
            self.request.ready.eq(requests.input.ready),
            ends.input.valid.eq(self.finished.valid),
            self.finished.ready.eq(ends.input.ready),
            heard.port.eq(self.finished.payload.port),
            heard.array.eq(self.finished.payload.index),
            heard.status.eq(self.finished.payload.status),
            lanes.reads[0].address.eq(self._array),
            lanes.write.address.eq(self._array),
            lanes.write.data.eq(state),
            self._followers.reads[0].address.eq(state.first),
            self._followers.write.address.eq(state.last),
            self._followers.write.data.eq(requests.output.payload.slot),
            sent.opcode.eq(Opcode.FLUSH),
            sent.owner.eq(Owner.FLUSHER),
            sent.place.eq(1),
            sent.index.eq(self._array),
            sent.alone.eq(1),
            sent.port.eq(port),
            sent.recover.tried.eq(self._before[port]),
            told.slot.eq(state.first),
            told.ports.eq(state.stored),
        ]

    @property
    def _has_work(self) -> Value:
        """An event waits."""
        events = self._ends.output.valid | self._requests.output.valid
        return events | (self._due & ~self._flies).any()

    def _clear(self, m: Module) -> None:
        """The state CLEAR, after a reset: no array has rows in here."""
        with m.State("CLEAR"):
            m.d.comb += self._lanes.store(data=0)
            m.d.sync += self._array.eq(self._array + 1)
            with m.If(self._array == self._config.arrays - 1):
                m.next = "REST"

    def _rest(self, m: Module) -> None:
        """The states REST, in which the most urgent event is chosen, LOAD and LOADED."""
        ends, requests, begins = self._ends.output, self._requests.output, self._due & ~self._flies
        events = (
            ("HEAR", ends.valid, ends.payload.array),
            ("JOIN", requests.valid, requests.payload.array),
            ("BEGIN", begins.any(), self._next_due),
        )
        chosen = Signal(range(len(events)))
        with m.State("REST"):
            for number, (_, waits, array) in reversed([*enumerate(events)]):
                with m.If(waits):
                    m.d.sync += [self._array.eq(array), chosen.eq(number)]
                    m.next = "LOAD"

        with m.State("LOAD"):
            m.next = "LOADED"

        with m.State("LOADED"):
            m.d.sync += self._lane.eq(self._lanes.reads[0].data)
            with m.Switch(chosen):
                for number, (state, _, _) in enumerate(events):
                    with m.Case(number):
                        m.next = state

        with m.State("STORE"):
            m.d.comb += self._lanes.store()
            m.next = "REST"

    def _join(self, m: Module) -> None:
        """The state JOIN: a row comes, the last one of its array."""
        state, row = self._lane, self._requests.output
        with m.State("JOIN"):
            m.d.comb += row.ready.eq(1)
            m.d.sync += [
                Assert(row.payload.ports.any(), "a row needs the flush of no drive"),
                self._due.bit_select(self._array, 1).eq(1),
                state.last.eq(row.payload.slot),
                state.waiting.eq(state.waiting + 1),
                state.needed.eq(state.needed | row.payload.ports),
            ]
            m.next = "STORE"
            with m.If(state.left + state.waiting == 0):
                m.d.sync += state.first.eq(row.payload.slot)
            with m.Else():
                m.d.comb += self._followers.store()

    def _begin(self, m: Module) -> None:
        """The state BEGIN: all rows of the array that wait get a flush."""
        state, array = self._lane, self._array
        with m.State("BEGIN"):
            m.d.sync += [
                self._due.bit_select(array, 1).eq(0),
                self._flies.bit_select(array, 1).eq(1),
                self._pending.eq(state.needed),
                state.left.eq(state.waiting),
                state.waiting.eq(0),
                state.needed.eq(0),
                state.stored.eq(0),
                state.again.eq(0),
                state.rounds.eq(0),
                self._turn.eq(following(array, self._config.arrays - 1)),
            ]
            for port, restarts in enumerate(self.restarts):
                with m.If(state.needed[port]):
                    m.d.sync += self._before[port].eq(restarts)
            m.next = "SEND"

    def _send(self, m: Module) -> None:
        """The state SEND: an operation to each pending port."""
        state, pending = self._lane, self._pending
        with m.State("SEND"):
            m.d.comb += self.operation.valid.eq(pending.any())
            with m.If(~pending.any()):
                m.next = "STORE"
            with m.Elif(self.operation.ready):
                m.d.sync += [pending.eq(pending & (pending - 1)), state.out.eq(state.out + 1)]

    def _hear(self, m: Module) -> None:
        """The states HEAR, of a FLUSH that has ended, and HEARD: once all have, those that were
        aborted are sent again, or the rows are told."""
        state, end = self._lane, self._ends.output
        own = Signal(self._config.ports)
        m.d.comb += own.eq(1 << end.payload.port)
        with m.State("HEAR"):
            m.d.comb += end.ready.eq(1)
            m.d.sync += [
                Assert(state.out != 0, "a flush for rows has ended twice"),
                state.out.eq(state.out - 1),
            ]
            with m.If(end.payload.status == DriveStatus.GOOD):
                m.d.sync += state.stored.eq(state.stored | own)
            with m.Elif(end.payload.status == DriveStatus.ABORTED):
                m.d.sync += state.again.eq(state.again | own)
            m.next = "HEARD"

        with m.State("HEARD"):
            m.next = "STORE"
            with m.If(state.out == 0):
                m.next = "TELL"
                last = state.rounds == flush_rounds(self._config) - 1
                with m.If(state.again.any() & ~last):
                    m.d.sync += [
                        self._pending.eq(state.again),
                        state.again.eq(0),
                        state.rounds.eq(state.rounds + 1),
                    ]
                    m.next = "SEND"

    def _tell(self, m: Module) -> None:
        """The states TELL and TOLD: the rows of the flush, one after the other."""
        state = self._lane
        with m.State("TELL"):
            m.d.comb += self.done.valid.eq(state.left != 0)
            with m.If(state.left == 0):
                m.d.sync += self._flies.bit_select(self._array, 1).eq(0)
                m.next = "STORE"
            with m.Elif(self.done.ready):
                m.d.sync += [
                    state.first.eq(self._followers.reads[0].data),
                    state.left.eq(state.left - 1),
                ]
                m.next = "TOLD"

        with m.State("TOLD"):
            m.next = "TELL"
