"""The walk over the operations of a command that is over: how each of them ends."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value

from hdl.config import Config
from hdl.drive.records import BLOCK_COUNT_BITS, operation_bits
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, has_data
from hdl.kit.free_list import FreeList


@dataclass(frozen=True, kw_only=True)
class OperationWalk:
    """Signals of the walk; the first five are set by `hdl.drive.queue.command_queue.CommandQueue`.

    Parameters
    ----------
    cursor, tail
        The operation at hand, and the last of the command.
    moved
        Blocks that went through, from ``cursor`` on.
    status
        What the drive said; later what is said of the operations that are left.
    several
        The command has several operations.
    operation, successor
        The operation at hand and the one after it; they follow ``cursor`` by a cycle.
    by_block
        It ends block by block: a read of a host's command.
    good
        It went through, whatever has become of the command.
    gone
        The drive's status is that of every operation of the command.
    free, finished
        Numbers of operations that are not in use; the queue of what has ended.
    """

    cursor: Signal
    tail: Signal
    moved: Signal
    status: Any
    several: Signal
    operation: Any
    successor: Value
    by_block: Value
    good: Value
    gone: Value
    free: FreeList
    finished: Any


def operation_walk(
    m: Module,
    *,
    config: Config,
    port: Signal,
    read_operation: Any,
    read_next: Any,
    free: FreeList,
    finished_fifo: Any,
) -> OperationWalk:
    """The walk over the operations of a command of ``port``, and what is reported of each.

    ``read_operation`` and ``read_next`` are read ports of the operations and their successors.
    """
    number = operation_bits(config)
    cursor = Signal(number)
    tail = Signal(number)
    moved = Signal(BLOCK_COUNT_BITS)
    status = Signal(DriveStatus)
    several = Signal()
    walked = read_operation.data
    report = Signal(finished(config))
    is_read_command = (walked.owner == Owner.COMMAND) & (walked.opcode == Opcode.READ)
    good = status == DriveStatus.GOOD
    gone = (status == DriveStatus.GONE) | (status == DriveStatus.SLOW)  # all of the command
    doubtful = (walked.opcode == Opcode.WRITE) & ~good
    went_through = moved.any() & ~is_read_command & ~doubtful
    m.d.comb += [
        read_operation.addr.eq(cursor),
        read_next.addr.eq(cursor),
        free.give.payload.eq(cursor),
        finished_fifo.input.payload.eq(report),
        report.port.eq(port),
        report.opcode.eq(walked.opcode),
        report.recover.eq(walked.recover),
        report.owner.eq(walked.owner),
        report.index.eq(walked.index),
        report.place.eq(walked.place + Mux(is_read_command, moved, 0)),
        report.status.eq(status),
    ]
    with m.If(has_data(walked.opcode)):
        with m.If(went_through):
            m.d.comb += report.status.eq(DriveStatus.GOOD)
        with m.Elif(good):
            m.d.comb += report.status.eq(DriveStatus.ABORTED)
        with m.Elif(doubtful & several & ~gone):
            m.d.comb += report.status.eq(DriveStatus.UNREACHED)
    return OperationWalk(
        cursor=cursor,
        tail=tail,
        moved=moved,
        status=status,
        several=several,
        operation=walked,
        successor=read_next.data,
        by_block=is_read_command,
        good=went_through,
        gone=gone,
        free=free,
        finished=finished_fifo,
    )


def walk_states(m: Module, walk: OperationWalk) -> None:
    """The states WALK, which follows that ``cursor`` has been set, and FOLLOW, up to the report of
    the last operation."""
    cursor, moved, operation = walk.cursor, walk.moved, walk.operation
    all_moved = moved > operation.blocks
    advance = Signal()

    with m.State("WALK"):
        with m.If(walk.by_block & all_moved):
            m.d.comb += advance.eq(1)
            m.d.sync += moved.eq(moved - operation.blocks - 1)
        with m.Elif(walk.finished.input.ready):
            m.d.comb += walk.finished.input.valid.eq(1)
            with m.If(~walk.good & ~walk.gone):
                m.d.sync += walk.status.eq(DriveStatus.UNREACHED)
            with m.If(~walk.by_block):
                m.d.comb += advance.eq(1)
                m.d.sync += moved.eq(Mux(moved.any(), moved - 1, 0))
            with m.Elif(moved == operation.blocks):
                m.d.comb += advance.eq(1)
                m.d.sync += moved.eq(0)
            with m.Else():
                m.d.sync += moved.eq(moved + 1)
        with m.If(advance):
            m.d.comb += walk.free.give.valid.eq(1)
            m.d.sync += cursor.eq(walk.successor)
            m.next = "PICK"
            with m.If(cursor != walk.tail):
                m.next = "FOLLOW"
    with m.State("FOLLOW"):
        m.next = "WALK"
