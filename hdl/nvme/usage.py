"""Counters of the SMART / Health log (NVMe 1.4 figure 196)."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_BYTES, Config
from hdl.nvme.interface import HostOpcode

SECTORS_PER_BLOCK = BLOCK_BYTES // 512
SECTORS_PER_UNIT = 1000
"""A data unit is a thousand 512-byte sectors."""


def usage() -> data.StructLayout:
    """Data units and commands since reset; units count whole thousands of sectors."""
    return data.StructLayout({"units_read": 64, "units_written": 64, "reads": 64, "writes": 64})


class Usage(wiring.Component):
    """Counts the commands that reach the data path, whether they succeed or not.

    ``count``: a pulse with ``opcode`` and ``blocks`` (minus 1) of a command. One a cycle.

    Parameters
    ----------
    config
        Sizes.
    """

    def __init__(self, *, config: Config):
        if config.transfer_blocks * SECTORS_PER_BLOCK > SECTORS_PER_UNIT:
            raise ValueError("a transfer must be at most one data unit")
        super().__init__(
            {
                "count": In(1),
                "opcode": In(HostOpcode),
                "blocks": In(config.offset_bits),
                "usage": Out(usage()),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        for opcode, commands, units in (
            (HostOpcode.READ, self.usage.reads, self.usage.units_read),
            (HostOpcode.WRITE, self.usage.writes, self.usage.units_written),
        ):
            rest = Signal(range(SECTORS_PER_UNIT), name=f"rest_{opcode.name.lower()}")
            total = Signal(range(2 * SECTORS_PER_UNIT), name=f"total_{opcode.name.lower()}")
            over = total >= SECTORS_PER_UNIT
            m.d.comb += total.eq(rest + (self.blocks + 1) * SECTORS_PER_BLOCK)
            with m.If(self.count & (self.opcode == opcode)):
                m.d.sync += [
                    commands.eq(commands + 1),
                    units.eq(units + over),
                    rest.eq(Mux(over, total - SECTORS_PER_UNIT, total)),
                ]
        m.d.comb += self.busy.eq(self.count)
        return m
