"""How an array is created, and how it is deleted."""

from typing import Any

from amaranth.hdl import Array, Const, Module, Mux, Signal

from hdl.array.tables.admission import Admission
from hdl.array.tables.capacity import Capacity
from hdl.array.tables.change import Change
from hdl.array.tables.copies import Copies
from hdl.array.tables.health import Health
from hdl.array.tables.missing import Missing
from hdl.config import MAX_DRIVES
from hdl.flow.manage import ManageOpcode, ManageStatus


def create_states(
    m: Module,
    change: Change,
    health: Health,
    *,
    capacities: Any,
    admission: Admission,
    capacity: Capacity,
    smallest: Signal,
    missing: Missing | None,
) -> None:
    """The states COUNT_DRIVES, in which CREATE_ARRAY begins, to WRITE_ARRAY.

    Every drive named is looked at, then the level, the capacity and the table. ``position`` counts
    the drives, and once they are known those that have joined.

    ``capacities`` are those of the drives, in blocks, and ``smallest`` the least of those named;
    ``admission`` is about the request and ``position``, ``capacity`` about what it allows and
    ``smallest``. ``missing`` (with `Config.background`): of members that are to be failed from the
    beginning, as no drive is there; it is about what the level allows. They are failed too if a
    drive appears before they join: nobody has looked at it.
    """
    config, request, shape = change.config, change.request, change.shape
    entry, vacant, number, position = change.entry, change.vacant, change.number, change.position
    arrays, uses, members, blocks = change.arrays, change.uses, change.members, change.blocks
    wanted = request.drives.bit_select(number, 1)

    away, empty = Signal(), Const(0)
    # Bit a position: no drive is there.
    gone = Signal(MAX_DRIVES)
    if missing is not None:
        m.d.comb += missing.members.eq(gone)

    with m.State("COUNT_DRIVES"):
        unavailable = Signal()
        counted = Signal()
        taken = (health.used | health.reserved).bit_select(number, 1)
        absent = health.absent.bit_select(number, 1)
        m.d.sync += [
            blocks.eq(Array(capacities)[number]),
            unavailable.eq(taken | absent),
            counted.eq(wanted),
        ]
        if missing is not None:
            empty = absent & request.degraded & (number < config.ports)
            m.d.sync += [away.eq(empty), unavailable.eq(taken | (absent & ~empty))]
            with m.If(number == 0):
                m.d.sync += gone.eq(0)
        m.next = "COMPARE_DRIVE"

    with m.State("COMPARE_DRIVE"):
        m.d.sync += number.eq(number + 1)
        m.next = "COUNT_DRIVES"
        with m.If(change.last_port):
            m.next = "ADMIT"
        with m.If(counted):
            m.d.sync += position.eq(position + 1)
            with m.If((blocks < smallest) & ~away):
                m.d.sync += smallest.eq(blocks)
            if missing is not None:
                m.d.sync += gone.bit_select(position[:5], 1).eq(away)
            with m.If(unavailable):
                change.answer(m, ManageStatus.DRIVE_UNAVAILABLE)

    with m.State("ADMIT"):
        m.d.comb += admission.start.eq(1)
        m.next = "JUDGE"

    with m.State("JUDGE"):
        with m.If(admission.done):
            m.next = "MEASURE"
            if missing is not None:
                with m.If(gone.any()):
                    m.next = "TOLERATE"
            with m.If(~admission.allowed):
                change.answer(m, ManageStatus.INVALID_FIELD)

    if missing is not None:
        with m.State("TOLERATE"):
            m.d.comb += missing.start.eq(1)
            m.next = "TOLERATED"

        with m.State("TOLERATED"):
            with m.If(missing.done):
                m.next = "MEASURE"
                with m.If(~missing.tolerated):
                    change.answer(m, ManageStatus.DRIVE_UNAVAILABLE)

    with m.State("MEASURE"):
        m.d.comb += capacity.start.eq(1)
        m.next = "WEIGH"

    with m.State("WEIGH"):
        m.d.sync += [
            shape.valid.eq(1),
            shape.level.eq(request.level),
            shape.width.eq(admission.width),
            shape.data.eq(admission.data),
            shape.parities.eq(admission.parities),
            shape.copies.eq(admission.shape_copies),
            shape.spans.eq(admission.shape_spans),
            shape.strip_shift.eq(request.strip_shift),
            shape.rotate.eq(admission.rotate),
            shape.rotation.eq(request.rotation),
            shape.rows.eq(capacity.rows),
            shape.blocks.eq(capacity.blocks),
        ]
        if not config.background:
            m.d.sync += shape.assumed.eq(request.assumed)
        with m.If(capacity.done):
            m.next = "ASK_ARRAY"
            with m.If(capacity.rows == 0):
                change.answer(m, ManageStatus.NO_SPACE)
            with m.Elif(capacity.overflow):
                change.answer(m, ManageStatus.INVALID_FIELD)

    with m.State("ASK_ARRAY"):
        m.next = "FIND_ARRAY"

    with m.State("FIND_ARRAY"):
        m.d.sync += [
            vacant.eq(entry),
            entry.eq(entry + 1),
            number.eq(0),
            position.eq(0),
        ]
        with m.If(~arrays.read.data.valid):
            m.next = "JOIN_DRIVES"
        with m.Elif(entry == config.arrays - 1):
            change.answer(m, ManageStatus.NO_ENTRY)
        with m.Else():
            m.next = "ASK_ARRAY"

    with m.State("JOIN_DRIVES"):
        m.d.comb += [uses.write.data.used.eq(1), uses.write.data.array.eq(vacant)]
        m.d.sync += number.eq(number + 1)
        with m.If(wanted):
            m.d.comb += [
                uses.write.en.eq(1),
                members.write.en.eq(1),
                health.joins.eq(1 << change.port),
            ]
            m.d.sync += position.eq(position + 1)
            if missing is not None:
                unseen = gone.bit_select(position[:5], 1)
                m.d.comb += health.fails.eq(Mux(unseen, 1 << change.port, 0))
        with m.If(change.last_port):
            m.next = "WRITE_ARRAY"

    with m.State("WRITE_ARRAY"):
        m.d.comb += [arrays.write.data.eq(shape), arrays.write.en.eq(1), change.edited.eq(1)]
        change.answer(m, ManageStatus.DONE)


def delete_states(m: Module, change: Change, health: Health, *, copies: Copies | None) -> None:
    """The states ERASE_ARRAY, in which DELETE_ARRAY goes on when nothing refers to the array any
    more, to LEAVE_DRIVES. ``copies`` if the configuration has any.
    """
    request, number, arrays, uses = change.request, change.number, change.arrays, change.uses

    with m.State("ERASE_ARRAY"):
        m.d.comb += [arrays.write.en.eq(1), change.edited.eq(1)]
        if copies is not None:
            m.d.comb += copies.write.eq(1)
        m.next = "READ_USE"

    with m.State("READ_USE"):
        m.next = "LEAVE_DRIVES"

    with m.State("LEAVE_DRIVES"):
        m.d.sync += number.eq(number + 1)
        with m.If(uses.read.data.used & (uses.read.data.array == request.array)):
            m.d.comb += [uses.write.en.eq(1), health.leaves.eq(1 << change.port)]
        m.next = "READ_USE"
        with m.If(change.last_port):
            change.answer(m, ManageStatus.DONE)


def quiesce_states(m: Module, change: Change, health: Health, *, quiesce: Any) -> None:
    """The states QUIESCE, which waits for all that refers to the volume ``vacant`` or to the array
    of the request, and LEAVE, which follows when the drive at port ``number`` is the array's no
    more: it is free now.

    ``quiesce`` is the tables'.
    """
    config, request, uses = change.config, change.request, change.uses
    of_volume = (request.opcode == ManageOpcode.CREATE_VOLUME) | (
        request.opcode == ManageOpcode.DELETE_VOLUME
    )
    m.d.comb += [
        quiesce.payload.of_array.eq(~of_volume),
        quiesce.payload.goes.eq(request.opcode == ManageOpcode.DELETE_ARRAY),
        quiesce.payload.number.eq(Mux(of_volume, change.vacant, request.array)),
    ]

    with m.State("QUIESCE"):
        m.d.comb += quiesce.valid.eq(1)
        with m.If(quiesce.ready):
            with m.Switch(request.opcode):
                with m.Case(ManageOpcode.CREATE_VOLUME):
                    m.next = "WRITE_VOLUME"
                with m.Case(ManageOpcode.DELETE_VOLUME):
                    change.answer(m, ManageStatus.DONE)
                with m.Case(ManageOpcode.DELETE_ARRAY):
                    m.next = "ERASE_ARRAY"
                if config.background:
                    with m.Default():
                        m.next = "LEAVE"

    if config.background:
        with m.State("LEAVE"):
            m.d.comb += [uses.write.en.eq(1), health.leaves.eq(1 << change.port)]
            m.d.sync += change.response.status.eq(ManageStatus.DONE)
            m.next = "RESPOND"
