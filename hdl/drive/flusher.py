"""Flushes of drives that the controller asks for itself."""

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.array.tracker import FLUSH_ROUNDS
from hdl.config import MAX_DRIVES, Config, bits_for_count
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.flow.recovery import tried_bits
from hdl.kit.pick import RoundRobin


class Flusher(wiring.Component):
    """Asks drives to store what is in their volatile caches, and says which of them did.

    Each drive of a request gets a FLUSH that begins after the request was taken. A drive that
    aborts its FLUSH gets it again when all have answered, `FLUSH_ROUNDS` times in all; one that
    goes away, or ends it with an error, has not stored anything; nor has one that restarts (with
    ``background``), which is told by whoever hears the end of its FLUSH. One request at a time.

    Parameters
    ----------
    config
        Sizes.
    users
        Who may ask.

    Ports
    -----
    ask, told
        Of each user: bit a port, drives to be flushed; those of them that ended a FLUSH well. Each
        request is answered once.
    operation, finished
        ``Owner.FLUSHER``. An end is always taken.
    restarts
        With ``background``: how often the drive at a port has restarted. Operations say how often
        it had when the request was taken.
    busy
        Something but a drive or a user is being waited for.

    Latency: 2 cycles a port and 4, and what the drives take: `hdl.drive.recovery.ladder` bounds
    each FLUSH.
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

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.choose = choose = RoundRobin(count=self._users)
        user = Signal(bits_for_count(self._users))
        port = Signal(range(config.ports))
        pending, stored, again = Signal(MAX_DRIVES), Signal(MAX_DRIVES), Signal(MAX_DRIVES)
        # Operations that have been sent and have not ended.
        out = Signal(range(config.ports + 1))
        rounds = Signal(range(FLUSH_ROUNDS))
        sends = Signal()
        ended = self.finished.payload
        ends = self.finished.valid
        asks = Array(ask.payload for ask in self.ask)
        before = Signal(data.ArrayLayout(tried_bits(config), config.ports))
        m.d.comb += [
            self.finished.ready.eq(1),
            sends.eq(self.operation.valid & self.operation.ready),
            self.operation.payload.port.eq(port),
            self.operation.payload.opcode.eq(Opcode.FLUSH),
            self.operation.payload.owner.eq(Owner.FLUSHER),
            self.operation.payload.alone.eq(1),
            self.operation.payload.recover.tried.eq(before[port]),
        ]
        for index, (ask, told) in enumerate(zip(self.ask, self.told, strict=True)):
            m.d.comb += [choose.requests[index].eq(ask.valid), told.payload.eq(stored)]
        m.d.sync += out.eq(out + sends - ends)
        with m.If(ends):
            with m.If(ended.status == DriveStatus.GOOD):
                m.d.sync += stored.bit_select(ended.port, 1).eq(1)
            with m.Elif(ended.status == DriveStatus.ABORTED):
                m.d.sync += again.bit_select(ended.port, 1).eq(1)

        with m.FSM(name="flush") as fsm:
            with m.State("REST"):
                m.d.sync += [
                    user.eq(choose.index),
                    pending.eq(asks[choose.index]),
                    stored.eq(0),
                    again.eq(0),
                    rounds.eq(0),
                    port.eq(0),
                    Cat(before).eq(Cat(self.restarts)),
                ]
                with m.If(choose.any):
                    m.d.comb += choose.advance.eq(1)
                    for index, ask in enumerate(self.ask):
                        m.d.comb += ask.ready.eq(choose.chosen[index])
                    m.next = "SEND"

            with m.State("SEND"):
                wanted = pending.bit_select(port, 1)
                m.d.comb += self.operation.valid.eq(wanted)
                with m.If(~wanted | self.operation.ready):
                    m.d.sync += port.eq(port + 1)
                    with m.If(port == config.ports - 1):
                        m.d.sync += port.eq(0)
                        m.next = "COLLECT"

            with m.State("COLLECT"):
                with m.If(out == 0):
                    m.next = "TELL"
                    with m.If(again.any() & (rounds != FLUSH_ROUNDS - 1)):
                        m.d.sync += [pending.eq(again), again.eq(0), rounds.eq(rounds + 1)]
                        m.next = "SEND"

            with m.State("TELL"):
                taken = Signal()
                for index, told in enumerate(self.told):
                    m.d.comb += told.valid.eq(user == index)
                    with m.If((user == index) & told.ready):
                        m.d.comb += taken.eq(1)
                with m.If(taken):
                    m.next = "REST"

            waits = (
                (fsm.ongoing("REST") & ~choose.any)
                | (self.operation.valid & ~self.operation.ready)
                | (fsm.ongoing("COLLECT") & (out != 0))
                | (fsm.ongoing("TELL") & ~taken)
            )
            m.d.comb += self.busy.eq(~waits | ends)
        return m


class FlushAll(wiring.Component):
    """Flushes all drives of arrays before the host takes the power away (NVMe 1.4, 7.6.2), or as
    it switches the volatile write cache off (5.21.1.6).

    ``flush`` is a level: every command whose writes are meant has ended; it stays until
    ``flushed``, which says that each drive at a port of ``used`` that is not ``failed`` has
    ended a FLUSH that began after ``flush`` rose, or cannot do it; ``flushed`` stays until
    ``flush`` falls. ``stored`` with it: all have that are not ``failed`` by now, and no array has
    ``lost`` what it could not spare, the failed ones among its drives, as is known once that is
    ``settled``. ``ask`` and ``told`` are those of a user of `Flusher`. ``blamed``: bit a port, a
    pulse as ``flush`` falls: drives for which it was not ``stored``.

    A request that ``flush`` gave up is still answered, and the answer is dropped.
    """

    flush: In(1)
    flushed: Out(1)
    stored: Out(1)
    blamed: Out(MAX_DRIVES)
    used: In(MAX_DRIVES)
    failed: In(MAX_DRIVES)
    lost: In(1)
    settled: In(1)
    ask: Out(stream.Signature(MAX_DRIVES))
    told: In(stream.Signature(MAX_DRIVES))
    busy: Out(1)

    def elaborate(self, platform) -> Module:
        m = Module()
        # What is offered must not change any more.
        wanted, missed = Signal(MAX_DRIVES), Signal(MAX_DRIVES)
        m.d.comb += self.stored.eq(((missed & ~self.failed) == 0) & ~self.lost)
        m.d.comb += self.ask.payload.eq(wanted)
        with m.FSM(name="flush_all") as fsm:
            with m.State("REST"):
                m.d.sync += wanted.eq(self.used & ~self.failed)
                with m.If(self.flush):
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
                m.d.comb += self.flushed.eq(self.flush & self.settled)
                with m.If(~self.flush):
                    m.d.comb += self.blamed.eq(missed)
                    m.next = "REST"

            waits = (
                (fsm.ongoing("REST") & ~self.flush)
                | (fsm.ongoing("ASK") & ~self.ask.ready)
                | (fsm.ongoing("LISTEN") & ~self.told.valid)
                | (fsm.ongoing("STAY") & self.flush)
            )
            m.d.comb += self.busy.eq(~waits)
        return m
