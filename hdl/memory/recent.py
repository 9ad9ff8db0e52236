"""Watches, in simulation, that nobody reads or overwrites what the line store is still storing."""

from amaranth.hdl import Assert, Format, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from hdl.config import Config


class RecentWrites(wiring.Component):
    """Asserts that no beat is read, nor written by another user, too soon after it was written.

    A write counts as under way for ``delay`` cycles, that in which it was taken included. A read
    of its beat taken in one of them is an error, whatever it would have returned, and so is a
    write of one of its words by another user.

    Parameters
    ----------
    config
        Sizes.
    readers, writers
        Number of ports.
    delay
        Cycles from a write to the first read that sees it, whatever else goes on.

    Ports
    -----
    reads, read_address
        A pulse for each reader: its request is taken.
    writes, write_address, write_mask
        A pulse for each writer: its beat is taken.
    """

    def __init__(self, *, config: Config, readers: int, writers: int, delay: int):
        self._readers = readers
        self._writers = writers
        self._delay = delay
        super().__init__(
            {
                "reads": In(readers),
                "read_address": In(config.beat_address_bits).array(readers),
                "writes": In(writers),
                "write_address": In(config.beat_address_bits).array(writers),
                "write_mask": In(config.beat_dwords).array(writers),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        layout = data.StructLayout(
            {
                "valid": 1,
                "address": self.write_address[0].shape(),
                "mask": self.write_mask[0].shape(),
            }
        )
        ages: list[list] = []  # of each writer: its writes of this cycle, of the one before, ..
        for writer in range(self._writers):
            taken = Signal(layout, name=f"taken_{writer}")
            m.d.comb += [
                taken.valid.eq(self.writes[writer]),
                taken.address.eq(self.write_address[writer]),
                taken.mask.eq(self.write_mask[writer]),
            ]
            kept = [taken]
            for age in range(1, self._delay):
                older = Signal(layout, name=f"taken_{writer}_{age}")
                m.d.sync += older.eq(kept[-1])
                kept.append(older)
            ages.append(kept)

        for reader in range(self._readers):
            address = self.read_address[reader]
            for writer, kept in enumerate(ages):
                clashes = [one.valid & (one.address == address) for one in kept]
                soon = Signal(name=f"read_{reader}_soon_after_{writer}")
                m.d.comb += soon.eq(self.reads[reader] & _any(clashes))
                m.d.sync += Assert(
                    ~soon,
                    Format(f"beat {{:#x}} read at port {reader} too soon after a write at port "
                           f"{writer}\n", address),
                )  # fmt: skip
        for later in range(self._writers):
            address, mask = self.write_address[later], self.write_mask[later]
            for writer, kept in enumerate(ages):
                if writer == later:
                    continue
                clashes = [
                    one.valid & (one.address == address) & (one.mask & mask).any() for one in kept
                ]
                soon = Signal(name=f"write_{later}_soon_after_{writer}")
                m.d.comb += soon.eq(self.writes[later] & _any(clashes))
                m.d.sync += Assert(
                    ~soon,
                    Format(f"beat {{:#x}} written at port {later} too soon after a write at port "
                           f"{writer}\n", address),
                )  # fmt: skip
        return m


def _any(conditions: list):
    result = conditions[0]
    for condition in conditions[1:]:
        result |= condition
    return result
