"""Which member of each array is being copied to which drive."""


from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.table_read import copy_entry, copy_read

COPY_READERS = 3
"""Sequencer, dispatch, states of arrays."""


class Copies(wiring.Component):
    """A table with an entry an array.

    Parameters
    ----------
    config
        Sizes.
    readers
        Read ports.

    Ports
    -----
    read
        ``data`` follows ``address`` by a cycle.
    array, current
        An entry, and what it holds, a cycle later.
    entry, write
        What it will hold, and a pulse.
    """

    def __init__(self, *, config: Config, readers: int):
        self._config = config
        super().__init__(
            {
                "read": In(copy_read(config)).array(readers),
                "array": In(config.array_bits),
                "current": Out(copy_entry(config)),
                "entry": In(copy_entry(config)),
                "write": In(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.entries = entries = Memory(
            shape=copy_entry(self._config), depth=self._config.arrays, init=[]
        )
        for reader in self.read:
            port = entries.read_port()
            m.d.comb += [port.addr.eq(reader.address), reader.data.eq(port.data)]
        own, write = entries.read_port(), entries.write_port()
        m.d.comb += [
            own.addr.eq(self.array),
            self.current.eq(own.data),
            write.addr.eq(self.array),
            write.data.eq(self.entry),
            write.en.eq(self.write),
        ]
        return m
