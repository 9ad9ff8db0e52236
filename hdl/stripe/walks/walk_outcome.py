"""How a row that was walked in the background ended."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.walk import WalkResult, walked
from hdl.stripe.planning.program import migration_target, program
from hdl.stripe.rows.progress import progress


class WalkOutcome(wiring.Component):
    """Says how a row ended that was walked, once its program has come to its end. Combinational.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    program
        The program of the row.
    progress
        How far the row has come in it.
    abandoned
        Its erasures could not be solved.
    walked
        How it ended.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "program": In(program(config)),
                "progress": In(progress(config)),
                "abandoned": In(1),
                "walked": Out(walked(config)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        todo, done = self.program, self.progress
        mended = (todo.bad & ~todo.stale & ~todo.dead) | done.blank[: len(todo.dead)]
        m.d.comb += self.walked.tag.eq(todo.walk.tag)

        def say(result: WalkResult, roles) -> None:
            m.d.comb += [self.walked.result.eq(result), self.walked.roles.eq(roles)]

        # A migration target does not count if it is given up, nor does what failed meanwhile and is
        # not written.
        lost = Signal.like(done.lost)
        gone = done.left & (1 << migration_target(self._config))
        m.d.comb += lost.eq(done.lost & todo.write & ~gone)
        with m.If(lost.any()):
            say(WalkResult.FAILED, lost[: len(todo.dead)])
        with m.Elif(todo.withheld):
            say(WalkResult.FAILED, todo.dead | todo.bad)
        with m.Elif(~todo.possible | self.abandoned):
            say(WalkResult.LOST, todo.dead | todo.bad)
        with m.Elif(done.found):
            say(WalkResult.MISMATCH, done.wrong)
        with m.Elif(mended.any()):
            say(WalkResult.MENDED, mended)
        with m.Else():
            say(WalkResult.GOOD, 0)
        return m
