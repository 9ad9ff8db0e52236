"""Whether a drive that did not store a block is given up for it."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config


class Dismissal(wiring.Component):
    """Judges by what the array has left at this moment, not when its row began. Combinational.

    A drive is *essential* if some group of its array has nothing to spare but for it
    (`hdl.array.states.ArrayStates`): one more failure there would lose data, in whichever rows. It
    is not given up for a block. A drive that is stale is: it holds nothing that others do not have.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    port
        Where the drive is.
    synced
        It holds all that it should of the row, but for this block. This is 0 for a migration
        target while the member is there, as the row does not need it.
    essential
        A bit a port, as in `ArrayStates`.
    settled
        That is up to date.
    impatient
        Nobody waits for ``settled`` any longer: the drive counts as essential.
    spared
        The row does without the block, which is old or unknown.
    spoils
        What the drive did not store is that a block of a failed write be unreadable. It is given
        up then, unless it is essential; if ``mixes``, in any case, as blocks would be worked out
        from new ones and old ones.
    waits
        Ask again in the next cycle; what follows does not hold yet.
    dismissed
        The drive is given up.
    kept
        The drive stays, and what it holds of the row must not be read. If neither, it stays, and
        the row has not got the block.
    """

    def __init__(self, *, config: Config):
        super().__init__(
            {
                "port": In(config.port_bits),
                "synced": In(1),
                "essential": In(MAX_DRIVES),
                "settled": In(1),
                "impatient": In(1),
                "spared": In(1),
                "spoils": In(1),
                "mixes": In(1),
                "waits": Out(1),
                "dismissed": Out(1),
                "kept": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        essential = Signal()
        matters = Signal()
        m.d.comb += [
            matters.eq(self.synced & (self.spared | self.spoils) & ~(self.spoils & self.mixes)),
            self.waits.eq(matters & ~self.settled & ~self.impatient),
            essential.eq(~self.settled | self.essential.bit_select(self.port, 1)),
        ]
        with m.If(~self.synced | (self.spoils & self.mixes)):
            m.d.comb += self.dismissed.eq(1)
        with m.Elif(matters & ~self.waits):
            m.d.comb += [
                self.dismissed.eq(~essential),
                self.kept.eq(essential & ~self.spoils),
            ]
        return m
