"""How a drive takes the place of a member: another one, or the one that was away."""

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, Value

from hdl.array.tables.change import Change
from hdl.array.tables.health import Health
from hdl.config import DATA_OFFSET_BLOCKS, MAX_DRIVES
from hdl.flow.manage import COPY_END_SHIFT, CopyEnd, ManageStatus

REWIND_CYCLES = 6
"""From the boundary's being written to its being seen by rows and reads that look at members."""


def member_states(
    m: Module,
    change: Change,
    health: Health,
    *,
    capacities: Any,
    stranger: Value,
    named: Signal,
    calm: Signal,
    left: Signal,
    quiesce: Any,
    rewind: Any,
) -> None:
    """The states READ_MEMBER, in which REPLACE, RE_ADD and COPY go on, to SWAP_MEMBER.

    The member must be failed, or must not be for COPY, which goes on with BEGIN_COPY; the new
    drive must be free, or the old one that failed, and as large. RE_ADD reads the member's port
    first, and then is ``named``.

    A drive that was the member is stale only once nothing is inside that was planned before it had
    failed: a row, or a read, could else go on with it as if it had never been away, and its late
    reports would be about a drive that is good. So the array is quiesced first, with the drive
    still failed; then all is checked once more, as the drive may have gone, and it is ``calm``.

    Only then is it said, on ``rewind``, that nothing of the array is rebuilt, and `REWIND_CYCLES`
    later everybody has read that. From then on the change is not refused: a drive that is absent
    meanwhile has ``left``; it joins, and has failed by that.

    ``capacities`` are those of the drives, in blocks. ``stranger``: the drive of RE_ADD is not the
    one that was the member. ``quiesce`` and ``rewind`` are the tables'.
    """
    config, request, shape, position = change.config, change.request, change.shape, change.position
    uses, members, blocks = change.uses, change.members, change.blocks
    returns, copying = change.returns, change.copying
    old = Signal(config.port_bits)
    pause = Signal(range(REWIND_CYCLES))
    m.d.comb += rewind.payload.eq(request.array)

    with m.State("READ_MEMBER"):
        m.d.sync += blocks.eq(Array(capacities)[change.port])
        m.next = "CHECK_MEMBER"

    with m.State("CHECK_MEMBER"):
        m.d.sync += old.eq(members.read.data)
        same_drive = members.read.data == change.port
        kept = health.used & (~health.lost | ~same_drive.replicate(MAX_DRIVES))
        taken = kept | health.absent | health.reserved
        m.d.sync += [pause.eq(0), left.eq(0)]
        m.next = "REWIND_MEMBER"
        with m.If(~copying & same_drive & ~calm):
            m.next = "CALM_MEMBER"
        with m.If((request.position >= MAX_DRIVES) | (position >= shape.width * shape.spans)):
            change.answer(m, ManageStatus.INVALID_FIELD)
        if config.intent_chunks:
            with m.Elif(returns & ~named):
                m.d.sync += [change.number.eq(members.read.data), named.eq(1)]
                m.next = "READ_MEMBER"
            with m.Elif(returns & ~health.failed.bit_select(members.read.data, 1)):
                change.answer(m, ManageStatus.IN_USE)
            with m.Elif(stranger & ~health.absent.bit_select(change.port, 1)):
                change.answer(m, ManageStatus.OTHER_DRIVE)
        with m.Elif(
            (~returns & (request.port >= config.ports)) | taken.bit_select(change.port, 1)
        ):
            change.answer(m, ManageStatus.DRIVE_UNAVAILABLE)
        with m.Elif(health.failed.bit_select(members.read.data, 1) == copying):
            change.answer(m, ManageStatus.IN_USE)
        with m.Elif(blocks < shape.rows + DATA_OFFSET_BLOCKS):
            change.answer(m, ManageStatus.NO_SPACE)

    with m.State("CALM_MEMBER"):
        m.d.comb += quiesce.valid.eq(1)
        with m.If(quiesce.ready):
            m.d.sync += calm.eq(1)
            m.next = "READ_MEMBER"

    # Nothing is rebuilt, as far as anyone can see, before the drive is stale, or copied to.
    gone = left | health.absent.bit_select(change.port, 1)
    with m.State("REWIND_MEMBER"):
        m.d.comb += rewind.valid.eq(1)
        m.d.sync += left.eq(gone)
        with m.If(rewind.ready):
            m.next = "PAUSE_MEMBER"

    with m.State("PAUSE_MEMBER"):
        m.d.sync += [pause.eq(pause + 1), left.eq(gone)]
        with m.If(pause == REWIND_CYCLES - 1):
            m.d.sync += pause.eq(0)
            m.next = "JOIN_MEMBER"
            with m.If(copying):
                m.next = "BEGIN_COPY"

    # The drive is stale before anyone can find it as the member.
    with m.State("JOIN_MEMBER"):
        m.d.comb += [
            uses.write.data.used.eq(1),
            uses.write.data.array.eq(change.vacant),
            uses.write.en.eq(1),
            health.joins.eq(1 << change.port),
            health.renewed.eq(1 << change.port),
            health.fails.eq(left << change.port),
        ]
        m.next = "SWAP_MEMBER"

    with m.State("SWAP_MEMBER"):
        m.d.comb += [members.write.en.eq(1), change.edited.eq(1)]
        change.answer(m, ManageStatus.DONE)
        with m.If(old != change.port):
            # Rows that began before may still write to it.
            m.d.sync += change.number.eq(old)
            m.next = "QUIESCE"


def settle_states(m: Module, change: Change, health: Health, *, ports: Any) -> None:
    """The states READ_STALE, in which SETTLE goes on, to TRUST: the stale drives of the array have
    all their blocks, and are trusted once they have been flushed. One that does not do that is
    failed, and then the answer's `CopyEnd` is not JOINED.

    With ``zero`` all live drives of the array are flushed, and stay what they are. All that they
    hold has been written since they were last judged, so what they lost before that is nobody's
    loss: they are suspect no longer.

    ``ports`` are the tables'.
    """
    request, number, uses = change.request, change.number, change.uses
    rebuilt = Signal(MAX_DRIVES)
    m.d.comb += ports.flush.payload.eq(rebuilt)

    with m.State("READ_STALE"):
        with m.If(number == 0):
            m.d.sync += rebuilt.eq(0)
        m.next = "NOTE_STALE"

    with m.State("NOTE_STALE"):
        use = uses.read.data
        meant = Mux(request.zero, ~health.failed, ports.stale)
        with m.If(use.used & (use.array == request.array)):
            m.d.sync += rebuilt.eq(rebuilt | ((1 << change.port) & meant))
        m.d.sync += number.eq(number + 1)
        m.next = "READ_STALE"
        with m.If(change.last_port):
            m.next = "FLUSH_STALE"

    with m.State("FLUSH_STALE"):
        m.d.comb += ports.flush.valid.eq(1)
        with m.If(ports.flush.ready):
            m.d.comb += health.absolves.eq(Mux(request.zero, rebuilt, 0))
            m.next = "TRUST"

    with m.State("TRUST"):
        m.d.comb += ports.flushed.ready.eq(1)
        with m.If(ports.flushed.valid):
            # What has gone meanwhile is stale no longer.
            stored = ports.flushed.payload
            trusted = Signal()
            m.d.comb += change.edited.eq(1)
            with m.If(request.zero):
                m.d.comb += trusted.eq((rebuilt & ~stored & ~health.failed) == 0)
            with m.Else():
                m.d.comb += [
                    health.settles.eq(rebuilt & stored),
                    health.fails.eq(rebuilt & ~stored),
                    trusted.eq((rebuilt & ~(stored & ports.stale)) == 0),
                ]
            change.answer(m, ManageStatus.DONE)
            done = rebuilt.any() & trusted
            m.d.sync += change.response.index.eq(
                Mux(done, CopyEnd.JOINED.value, CopyEnd.RELEASED.value) << COPY_END_SHIFT
            )
