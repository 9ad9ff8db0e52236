"""Flushes of drives that the controller asks for itself."""

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config, bits_for_count
from hdl.flow.flush_request import FlushRequest, flush_rounds
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.flow.recovery import tried_bits
from hdl.kit.pick import RoundRobin


class Flusher(wiring.Component):
    """Asks drives to store what is in their volatile caches, and says which of them did.

    Each drive of a request gets a FLUSH that begins after the request was taken. A drive that
    aborts its FLUSH gets it again when all have answered, `flush_rounds` times in all. One that
    goes away, or ends it with an error, has not stored anything. Nor has one that restarts (with
    ``background``). Whoever hears the end of its FLUSH tells of that. There is one request at a
    time.

    A request takes 2 cycles a port and 4, and what the drives take. `hdl.drive.recovery.ladder`
    bounds each FLUSH.

    Parameters
    ----------
    config
        Sizes.
    users
        Who may ask.

    Ports
    -----
    ask
        Of each user: drives to be flushed, a bit a port. Each request is answered once.
    told
        Of each user: those of them that ended a FLUSH well.
    operation
        Operations of ``Owner.FLUSHER``.
    finished
        Their ends, which are always taken.
    restarts
        With ``background``: how often the drive at a port has restarted. Operations say how often
        it had when the request was taken.
    busy
        Something but a drive or a user is being waited for.
    """

    def __init__(self, *, config: Config, users: int):
        if users < 1:
            raise ValueError(f"users must be at least 1, not {users}")
        self._config = config
        self._users = users
        super().__init__(
            {
                "ask": In(stream.Signature(MAX_DRIVES)).array(users),
                "told": Out(stream.Signature(MAX_DRIVES)).array(users),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "busy": Out(1),
                "restarts": In(tried_bits(config)).array(config.ports),
            }
        )

        self._choose = RoundRobin(count=users)
        self._user = Signal(bits_for_count(users))
        self._port = Signal(range(config.ports))
        # A bit a port: to be flushed, flushed well, to be flushed again.
        self._pending = Signal(MAX_DRIVES)
        self._stored = Signal(MAX_DRIVES)
        self._again = Signal(MAX_DRIVES)
        self._out = Signal(range(config.ports + 1))  # operations that have not ended
        self._rounds = Signal(range(flush_rounds(config)))
        self._before = Signal(data.ArrayLayout(tried_bits(config), config.ports))

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.choose = choose = self._choose
        ends = self.finished.valid
        self._connect_users(m)
        self._connect_operations(m)
        with m.FSM(name="flush") as fsm:
            self._rest(m)
            self._send(m)
            self._collect(m)
            taken = self._tell(m)
            waits = (
                (fsm.ongoing("REST") & ~choose.any)
                | (self.operation.valid & ~self.operation.ready)
                | (fsm.ongoing("COLLECT") & (self._out != 0))
                | (fsm.ongoing("TELL") & ~taken)
            )
        m.d.comb += self.busy.eq(~waits | ends)
        return m

    def _connect_users(self, m: Module) -> None:
        """Who asks, and what all are told."""
        for index, (ask, told) in enumerate(zip(self.ask, self.told, strict=True)):
            m.d.comb += [
                self._choose.requests[index].eq(ask.valid),
                told.payload.eq(self._stored),
            ]

    def _connect_operations(self, m: Module) -> None:
        """The operation of the port at hand, and ends, which are always taken."""
        sent, ended, ends = self.operation.payload, self.finished.payload, self.finished.valid
        sends = Signal()
        m.d.comb += [
            self.finished.ready.eq(1),
            sends.eq(self.operation.valid & self.operation.ready),
            sent.port.eq(self._port),
            sent.opcode.eq(Opcode.FLUSH),
            sent.owner.eq(Owner.FLUSHER),
            sent.alone.eq(1),
            sent.recover.tried.eq(self._before[self._port]),
        ]
        m.d.sync += self._out.eq(self._out + sends - ends)
        with m.If(ends):
            with m.If(ended.status == DriveStatus.GOOD):
                m.d.sync += self._stored.bit_select(ended.port, 1).eq(1)
            with m.Elif(ended.status == DriveStatus.ABORTED):
                m.d.sync += self._again.bit_select(ended.port, 1).eq(1)

    def _rest(self, m: Module) -> None:
        """The state REST: a request is taken."""
        choose = self._choose
        asks = Array(ask.payload for ask in self.ask)
        with m.State("REST"):
            m.d.sync += [
                self._user.eq(choose.index),
                self._pending.eq(asks[choose.index]),
                self._stored.eq(0),
                self._again.eq(0),
                self._rounds.eq(0),
                self._port.eq(0),
                Cat(self._before).eq(Cat(self.restarts)),
            ]
            with m.If(choose.any):
                m.d.comb += choose.advance.eq(1)
                for index, ask in enumerate(self.ask):
                    m.d.comb += ask.ready.eq(choose.chosen[index])
                m.next = "SEND"

    def _send(self, m: Module) -> None:
        """The state SEND: an operation to each pending port."""
        port = self._port
        with m.State("SEND"):
            wanted = self._pending.bit_select(port, 1)
            m.d.comb += self.operation.valid.eq(wanted)
            with m.If(~wanted | self.operation.ready):
                m.d.sync += port.eq(port + 1)
                with m.If(port == self._config.ports - 1):
                    m.d.sync += port.eq(0)
                    m.next = "COLLECT"

    def _collect(self, m: Module) -> None:
        """The state COLLECT, until all have ended: those that were aborted are sent again."""
        again, rounds = self._again, self._rounds
        with m.State("COLLECT"):
            with m.If(self._out == 0):
                m.next = "TELL"
                with m.If(again.any() & (rounds != flush_rounds(self._config) - 1)):
                    m.d.sync += [self._pending.eq(again), again.eq(0), rounds.eq(rounds + 1)]
                    m.next = "SEND"

    def _tell(self, m: Module) -> Signal:
        """The state TELL: the user gets its answer. Returns whether it takes it."""
        taken = Signal()
        with m.State("TELL"):
            for index, told in enumerate(self.told):
                m.d.comb += told.valid.eq(self._user == index)
                with m.If((self._user == index) & told.ready):
                    m.d.comb += taken.eq(1)
            with m.If(taken):
                m.next = "REST"
        return taken


class FlushAll(wiring.Component):
    """Flushes all drives of arrays before the host takes the power away (NVMe 1.4, 7.6.2), or as
    it switches the volatile write cache off (5.21.1.6).

    A request that was given up is still answered, and the answer is dropped.

    Ports
    -----
    request
        ``flushed`` is a level, until ``flush`` falls: each drive at a port of ``used`` that is not
        ``failed`` has ended a FLUSH that began after ``flush`` rose, or cannot do it. ``stored``
        says that all have stored what they had that are not ``failed`` by now, that nothing is
        ``lost``, and that nothing was owed while the request ``watches``.
    complete
        With ``flushed``: all that are not ``failed`` by now have stored what they had.
    blamed
        A bit a port, a pulse as ``flush`` falls: drives for which it was not ``stored``.
    used
        A bit a port: drives of arrays.
    failed
        A bit a port: drives that have been given up.
    lost
        An array has lost what it could not spare, the failed ones among its drives.
    owes
        A volume may have lost something, and the host does not know.
    settled
        Whether it has is known.
    ask, told
        Those of a user of `Flusher`.
    busy
        Something but the host or the drives is being waited for.
    """

    request: In(FlushRequest())
    complete: Out(1)
    blamed: Out(MAX_DRIVES)
    used: In(MAX_DRIVES)
    failed: In(MAX_DRIVES)
    lost: In(1)
    owes: In(1)
    settled: In(1)
    ask: Out(stream.Signature(MAX_DRIVES))
    told: In(stream.Signature(MAX_DRIVES))
    busy: Out(1)

    def elaborate(self, platform) -> Module:
        m = Module()
        # What is offered must not change any more.
        wanted = Signal(MAX_DRIVES)
        missed = Signal(MAX_DRIVES)
        # The host may be told of a loss by another command meanwhile.
        owed = Signal()
        owes = Signal()
        m.d.comb += owes.eq(self.request.watches & (owed | self.owes))
        m.d.sync += owed.eq(owes)
        m.d.comb += [
            self.complete.eq((missed & ~self.failed) == 0),
            self.request.stored.eq(self.complete & ~self.lost & ~owes),
        ]
        m.d.comb += self.ask.payload.eq(wanted)
        with m.FSM(name="flush_all") as fsm:
            with m.State("REST"):
                m.d.sync += wanted.eq(self.used & ~self.failed)
                with m.If(self.request.flush):
                    m.next = "ASK"

            with m.State("ASK"):
                m.d.comb += self.ask.valid.eq(1)
                with m.If(self.ask.ready):
                    m.next = "LISTEN"

            with m.State("LISTEN"):
                m.d.comb += self.told.ready.eq(1)
                m.d.sync += missed.eq(wanted & ~self.told.payload)
                with m.If(self.told.valid):
                    m.next = "STAY"

            with m.State("STAY"):
                m.d.comb += self.request.flushed.eq(self.request.flush & self.settled)
                with m.If(~self.request.flush):
                    m.d.comb += self.blamed.eq(missed)
                    m.next = "REST"

            waits = (
                (fsm.ongoing("REST") & ~self.request.flush)
                | (fsm.ongoing("ASK") & ~self.ask.ready)
                | (fsm.ongoing("LISTEN") & ~self.told.valid)
                | (fsm.ongoing("STAY") & self.request.flush)
            )
            m.d.comb += self.busy.eq(~waits)
        return m
