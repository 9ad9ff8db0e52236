"""What is said of an operation whose command is over."""

from amaranth.hdl import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.drive.records import BLOCK_COUNT_BITS, queued_operation
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, has_data


class OperationReport(wiring.Component):
    """How one operation of a command ends, or the next block of one. Combinational.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    operation
        The operation.
    port
        The port of its command.
    status
        What is said of the operations that are left. At first it is what the drive said.
    moved
        Blocks that went through, from this operation on.
    several
        The command has several operations.
    report
        How it ends.
    by_block
        It ends block by block: a read of a host's command. The report is of block ``moved``.
    good
        It went through, whatever has become of the command.
    all_alike
        The drive's status is that of every operation of the command.
    """

    def __init__(self, *, config: Config):
        super().__init__(
            {
                "operation": In(queued_operation(config)),
                "port": In(bits_for_count(config.ports)),
                "status": In(DriveStatus),
                "moved": In(BLOCK_COUNT_BITS),
                "several": In(1),
                "report": Out(finished(config)),
                "by_block": Out(1),
                "good": Out(1),
                "all_alike": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        operation, status, report = self.operation, self.status, self.report
        good = status == DriveStatus.GOOD
        doubtful = (operation.opcode == Opcode.WRITE) & ~good
        m.d.comb += [
            self.by_block.eq(
                (operation.owner == Owner.COMMAND) & (operation.opcode == Opcode.READ)
            ),
            self.good.eq(self.moved.any() & ~self.by_block & ~doubtful),
            self.all_alike.eq((status == DriveStatus.GONE) | (status == DriveStatus.SLOW)),
            report.port.eq(self.port),
            report.opcode.eq(operation.opcode),
            report.recover.eq(operation.recover),
            report.owner.eq(operation.owner),
            report.index.eq(operation.index),
            report.place.eq(operation.place + Mux(self.by_block, self.moved, 0)),
            report.status.eq(status),
        ]
        with m.If(has_data(operation.opcode)):
            with m.If(self.good):
                m.d.comb += report.status.eq(DriveStatus.GOOD)
            with m.Elif(good):
                m.d.comb += report.status.eq(DriveStatus.ABORTED)
            with m.Elif(doubtful & self.several & ~self.all_alike):
                m.d.comb += report.status.eq(DriveStatus.UNREACHED)
        return m
