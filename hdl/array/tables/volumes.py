"""Which volumes there are: how one is placed between the others, created and deleted."""

from amaranth.hdl import Module, Signal

from hdl.array.tables.change import Change
from hdl.flow.manage import ManageOpcode, ManageStatus


def scan_states(m: Module, change: Change, *, end: Signal, vacancy: Signal) -> None:
    """The states PLACE_VOLUME, in which CREATE_VOLUME goes on, to CHECK_VOLUME.

    From READ_VOLUME on every volume is looked at: for CREATE_VOLUME, CHECK_EMPTY, and DELETE_ARRAY,
    which goes on with QUIESCE; or the one of DELETE_VOLUME.

    ``end`` is the block behind the new volume; ``vacancy``: entry ``vacant`` is free for it.
    """
    config, request, shape = change.config, change.request, change.shape
    entry, vacant, number, volumes = change.entry, change.vacant, change.number, change.volumes

    with m.State("PLACE_VOLUME"):
        m.next = "READ_VOLUME"
        with m.If((request.start >= shape.blocks) | (end > shape.blocks)):
            change.answer(m, ManageStatus.NO_SPACE)

    with m.State("READ_VOLUME"):
        m.next = "CHECK_VOLUME"

    with m.State("CHECK_VOLUME"):
        other = volumes.read.data
        same = Signal()
        overlaps = Signal()
        last_volume = Signal()
        m.d.comb += [
            same.eq(other.valid & (other.array == request.array)),
            overlaps.eq((other.start < end) & (request.start < other.start + other.blocks)),
            last_volume.eq(entry == config.volumes - 1),
        ]
        m.d.sync += entry.eq(entry + 1)
        with m.If(~other.valid & ~vacancy):
            m.d.sync += [vacant.eq(entry), vacancy.eq(1)]
        m.next = "READ_VOLUME"
        with m.If(request.opcode == ManageOpcode.DELETE_VOLUME):
            m.d.sync += vacant.eq(entry)
            m.next = "ERASE_VOLUME"
            with m.If((entry >= config.volumes) | ~other.valid):
                change.answer(m, ManageStatus.NO_ENTRY)
        with m.Elif(request.opcode != ManageOpcode.CREATE_VOLUME):
            with m.If(same):
                change.answer(m, ManageStatus.IN_USE)
            with m.Elif(last_volume):
                m.d.sync += [vacant.eq(request.array), number.eq(0)]
                m.next = "QUIESCE"
                if config.background:
                    with m.If(request.opcode == ManageOpcode.CHECK_EMPTY):
                        change.answer(m, ManageStatus.DONE)
        with m.Else():
            with m.If(same & overlaps):
                change.answer(m, ManageStatus.NO_SPACE)
            with m.Elif(last_volume):
                m.next = "QUIESCE"
                with m.If(~vacancy & other.valid):
                    change.answer(m, ManageStatus.NO_ENTRY)


def store_states(m: Module, change: Change, *, end: Signal) -> None:
    """The states WRITE_VOLUME and ERASE_VOLUME of CREATE_VOLUME and DELETE_VOLUME.

    A command may have got its slot while its namespace did not exist, or was another volume. So
    before a volume is there, commands of its number must have ended, and after it is erased those
    must have that may have found it.

    ``end`` is the block behind the new volume.
    """
    request, volumes = change.request, change.volumes

    with m.State("WRITE_VOLUME"):
        m.d.comb += [
            volumes.write.data.valid.eq(1),
            volumes.write.data.array.eq(request.array),
            volumes.write.data.start.eq(request.start),
            volumes.write.data.blocks.eq(end - request.start),
            volumes.write.en.eq(1),
            change.edited.eq(1),
        ]
        change.answer(m, ManageStatus.DONE)

    with m.State("ERASE_VOLUME"):
        m.d.comb += [volumes.write.en.eq(1), change.edited.eq(1)]
        m.next = "QUIESCE"
