"""Two who change the tables, one change at a time."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.manage import Changes


class ChangeTurns(wiring.Component):
    """Lets two users ask for changes of the tables by turns.

    A change that is offered is passed on in the next cycle at the earliest, and no other until its
    answer has been taken. If both ask, the first one waits for one change of the other at most.
    While the second user ``holds`` its turn, nothing of the first one is passed on.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    users
        Changes of two users.
    holds
        A level. The second user has more changes to make before anybody else makes one.
    held
        A level. While the second user holds its turn: no change is under way.
    changes
        Changes of both.
    busy
        A change is taken up.
    """

    def __init__(self, *, config: Config):
        super().__init__(
            {
                "users": In(Changes(config)).array(2),
                "holds": In(1),
                "held": Out(1),
                "changes": Out(Changes(config)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        request, response = self.changes.request, self.changes.response
        first, second = self.users
        turn, asked = Signal(), Signal()
        m.d.comb += asked.eq((first.request.valid & ~self.holds) | second.request.valid)
        with m.FSM(name="turns") as fsm:
            with m.State("REST"):
                m.d.sync += turn.eq(
                    Mux(turn, ~first.request.valid | self.holds, second.request.valid)
                )
                with m.If(asked):
                    m.next = "ASK"

            with m.State("ASK"):
                m.d.comb += request.valid.eq(1)
                with m.If(request.ready):
                    m.next = "LISTEN"

            with m.State("LISTEN"):
                with m.If(response.valid & response.ready):
                    m.next = "REST"

            asks, listens = fsm.ongoing("ASK"), fsm.ongoing("LISTEN")
            rests = fsm.ongoing("REST")
        m.d.comb += request.payload.eq(
            Mux(turn, second.request.payload, first.request.payload)
        )
        for number, user in enumerate(self.users):
            m.d.comb += [
                user.request.ready.eq(asks & request.ready & (turn == number)),
                user.response.payload.eq(response.payload),
                user.response.valid.eq(listens & response.valid & (turn == number)),
            ]
        m.d.comb += [
            self.held.eq(rests & self.holds),
            response.ready.eq(listens & Mux(turn, second.response.ready, first.response.ready)),
            self.busy.eq(
                (rests & asked)
                | (asks & request.ready)
                | (response.valid & response.ready)
            ),
        ]
        return m
