"""Which member of each array migrates to which drive."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.flow.table_read import migration, migration_read
from hdl.kit.table import Table

MIGRATION_READERS = 3
"""Sequencer, dispatch, states of arrays."""


class NoMigrations(wiring.Component):
    """What is there instead of `Migrations` without background work: no member ever
    migrates.

    What is written is forgotten, and what is read is 0.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    read
        Read ports for others. ``data`` follows ``address`` by a cycle.
    array
        The array whose entry is looked at or written.
    current
        What that entry holds, a cycle later.
    entry
        What it will hold.
    write
        A pulse. ``entry`` is written.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "read": In(migration_read(config)).array(MIGRATION_READERS),
                "array": In(config.array_bits),
                "current": Out(migration(config)),
                "entry": In(migration(config)),
                "write": In(1),
            }
        )

    def elaborate(self, platform) -> Module:
        return Module()


class Migrations(NoMigrations):
    """A table with an entry per array. Its ports are those of `NoMigrations`.

    Parameters
    ----------
    config
        Sizes.
    """

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.entries = entries = Table(
            migration(self._config), self._config.arrays, reads=1 + MIGRATION_READERS
        )
        own, *others = entries.reads
        for outer, inner in zip(self.read, others, strict=True):
            connect(m, flipped(outer), inner)
        m.d.comb += [
            own.address.eq(self.array),
            self.current.eq(own.data),
            entries.write.address.eq(self.array),
            entries.write.data.eq(self.entry),
            entries.write.enable.eq(self.write),
        ]
        return m
