"""Tables of entries, and how they are read and written."""

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out


class TableRead(wiring.Signature):
    """A synchronous table read, seen from the reader. ``data`` follows ``address`` by one cycle."""

    def __init__(self, address_shape, data_shape):
        super().__init__({"address": Out(address_shape), "data": In(data_shape)})


class TableWrite(wiring.Signature):
    """A table write, seen from the writer. With ``enable``, ``data`` goes to ``address``."""

    def __init__(self, address_shape, data_shape):
        super().__init__(
            {"address": Out(address_shape), "data": Out(data_shape), "enable": Out(1)}
        )


class Table(wiring.Component):
    """Entries in a memory, which is a block RAM where the FPGA has one of that depth.

    A reset leaves the entries as they are (`clear`). An entry that is read in the cycle in which it
    is written is the old one.

    Parameters
    ----------
    shape
        Of an entry.
    depth
        Number of entries.
    reads
        Number of read ports.
    forwards
        An entry that is read in the cycle in which it is written is the new one, not the old one.
    attrs
        Attributes of the memory, such as `hdl.kit.disjoint.DISJOINT`.

    Ports
    -----
    reads
        Read ports.
    write
        The write port.
    """

    def __init__(
        self, shape, depth: int, *, reads: int = 1, forwards: bool = False, attrs=None
    ):
        self.depth = depth
        self._forwards = forwards
        self._entries = Memory(shape=shape, depth=depth, init=[], attrs=attrs)
        address = (depth - 1).bit_length()
        super().__init__(
            {
                "reads": In(TableRead(address, shape)).array(reads),
                "write": In(TableWrite(address, shape)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.entries = entries = self._entries
        write = entries.write_port()
        m.d.comb += [
            write.addr.eq(self.write.address),
            write.data.eq(self.write.data),
            write.en.eq(self.write.enable),
        ]
        for port in self.reads:
            read = entries.read_port(transparent_for=(write,) if self._forwards else ())
            m.d.comb += [read.addr.eq(port.address), port.data.eq(read.data)]
        return m

    def store(self, *, address=None, data=None, **fields) -> list:
        """Statements of a cycle that writes an entry.

        ``data`` goes to ``address``, but ``fields`` have the values given. What is not given is
        what the write port has from elsewhere.
        """
        statements = [self.write.enable.eq(1)]
        if address is not None:
            statements.append(self.write.address.eq(address))
        if data is not None:
            statements.append(self.write.data.eq(data))
        statements += [self.write.data[name].eq(value) for name, value in fields.items()]
        return statements


def clear(m: Module, table: Table, *others: Table) -> Value:
    """Ends a state after a reset: every entry of ``table`` becomes 0, one a cycle, and those of
    ``others`` at the same addresses.

    Returns whether this is the last cycle.
    """
    sweep = Signal(range(table.depth))
    m.d.sync += sweep.eq(sweep + 1)
    for each in (table, *others):
        m.d.comb += each.store(address=sweep, data=0)
    return sweep == table.depth - 1
