"""Which port a role is at while a member of the array migrates, and whether both drives get it."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config
from hdl.flow.table_read import migration


class Duplicate(wiring.Component):
    """Looks at each member as it is found.

    While both drives live, the member stays where it is. What it gets is written to the migration
    target as well. Once the member has failed, the target is the member at once. It is as good as
    stale until the row has been migrated. So no write is missed between the failure and the time
    when the tables know of it. Once the target has failed, there is no migration.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    entry
        The migration in the array, as of the same cycle as ``member``.
    position
        The place of the member in its array, a cycle before ``member``.
    member
        The port that it is at.
    failed
        A bit a port: its drive has failed.
    stale
        A bit a port: its drive is being rebuilt.
    beyond
        The row has not been migrated, or rebuilt. Or the block is written with FUA, which a drive
        that is not trusted cannot keep alone.
    port
        Where the member is.
    gone
        Nothing is there.
    distrusted
        What is there is not to be read.
    migrated
        What is written there goes to ``entry.port`` as well.

    Combinational but for ``position``, which is registered.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "entry": In(migration(config)),
                "position": In(5),
                "member": In(config.port_bits),
                "failed": In(MAX_DRIVES),
                "stale": In(MAX_DRIVES),
                "beyond": In(1),
                "port": Out(config.port_bits),
                "gone": Out(1),
                "distrusted": Out(1),
                "migrated": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        position = Signal(5)
        # A cycle old: a drive that fails meanwhile refuses the write.
        useless = Signal()
        m.d.sync += [
            position.eq(self.position),
            useless.eq(self.failed.bit_select(self.entry.port, 1)),
        ]
        lost = self.failed.bit_select(self.member, 1)
        here = self.entry.valid & (self.entry.position == position) & ~useless
        takes_over = Signal()
        m.d.comb += [
            takes_over.eq(here & lost),
            self.migrated.eq(here & ~lost),
            self.port.eq(Mux(takes_over, self.entry.port, self.member)),
            self.gone.eq(lost & ~takes_over),
            self.distrusted.eq(
                self.beyond & (self.stale.bit_select(self.member, 1) | takes_over)
            ),
        ]
        return m
