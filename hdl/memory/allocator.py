"""Who owns which line: free lines are offered to their users and come back from them."""

from amaranth.hdl import Assert, Cat, Format, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config, bits_for_count
from hdl.flow.line import line_stream
from hdl.kit.cut import Skid
from hdl.kit.free_list import FreeList
from hdl.kit.pick import RoundRobin
from hdl.kit.simulation import SIMULATION


class LineAllocator(wiring.Component):
    """Offers a free line to each user and takes lines back; no line has two owners.

    A line is offered to user u only while more than ``reserves[u]`` lines are free *and offered to
    nobody*, so whatever u takes, the others can still get ``reserves[u]`` lines. An offer stands
    until it is taken. A user that is refused (no offer) sees
    ``available`` <= ``reserves[u]`` + ``users``.

    Parameters
    ----------
    config
        Sizes.
    users
        Streams that hand out lines.
    returns
        Streams that take lines back.
    reserves
        For each user, the lines that it must leave to the others.

    Ports
    -----
    allocate
        Lines, one a cycle over all users; one user alone gets one every second cycle.
    free
        Lines given back, one a cycle over all streams, round robin. Giving back a line that is
        free is an error of the user, which is asserted in simulation.
    available
        Lines that are not in use, offered ones included, as of the cycle before.
    busy
        An offer can be made, or a line is being given back.
    """

    def __init__(self, *, config: Config, users: int, returns: int, reserves: tuple[int, ...]):
        if users < 1 or returns < 1:
            raise ValueError(f"users and returns must be at least 1, not {users} and {returns}")
        if len(reserves) != users:
            raise ValueError(f"reserves must have {users} entries, not {len(reserves)}")
        for reserve in reserves:
            if not 0 <= reserve < config.lines:
                raise ValueError(f"a reserve must be 0..{config.lines - 1}, not {reserve}")
        self._config = config
        self._users = users
        self._returns = returns
        self._reserves = reserves
        super().__init__(
            {
                "allocate": Out(line_stream(config)).array(users),
                "free": In(line_stream(config)).array(returns),
                "available": Out(range(config.lines + 1)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        lines = self._config.free_lines
        m.submodules.pool = pool = FreeList(count=lines)
        m.submodules.offer = offer = RoundRobin(count=self._users)
        m.submodules.collect = collect = RoundRobin(count=self._returns)

        # Offers: at most one user a cycle gets the next free line.
        takes = []
        for index, (port, reserve) in enumerate(zip(self.allocate, self._reserves, strict=True)):
            take = port.valid & port.ready
            takes.append(take)
            m.d.comb += offer.requests[index].eq(
                ~port.valid & (pool.level > reserve)
            )
            with m.If(take):
                m.d.sync += port.valid.eq(0)
            with m.If(offer.chosen[index] & pool.take.valid):
                m.d.sync += [port.valid.eq(1), port.payload.eq(pool.take.payload)]
        m.d.comb += [
            pool.take.ready.eq(offer.any & pool.take.valid),
            offer.advance.eq(pool.take.ready),
        ]

        # Returns: one stream a cycle.
        m.d.comb += [pool.give.valid.eq(collect.any), collect.advance.eq(collect.any)]
        skids = []
        for index, port in enumerate(self.free):
            skid = Skid(port.payload.shape())
            m.submodules[f"skid_{index}"] = skid
            connect(m, flipped(port), skid.input)
            m.d.comb += [
                collect.requests[index].eq(skid.output.valid),
                skid.output.ready.eq(collect.chosen[index]),
            ]
            with m.If(collect.chosen[index]):
                m.d.comb += pool.give.payload.eq(skid.output.payload)
            skids.append(skid)

        if platform == SIMULATION:
            for port in self.allocate:
                m.d.sync += Assert(
                    ~(pool.give.valid & port.valid & (port.payload == pool.give.payload)),
                    Format("line {:d} comes back before it was taken\n", port.payload),
                )

        in_use = Signal(range(lines + 1))
        taken = Signal(bits_for_count(self._users + 1))
        returned = Signal()
        moved = (taken != 0) | returned
        m.d.comb += self.available.eq(lines - in_use)
        m.d.sync += [
            taken.eq(sum(takes)),
            returned.eq(collect.any),
            in_use.eq(in_use + taken - returned),
        ]
        moving = [offer.any, collect.any, pool.busy, moved, *(skid.busy for skid in skids)]
        m.d.comb += self.busy.eq(Cat(*moving).any())
        return m
