"""How the sequencer ends a row: what becomes of its commands, and where its lines go."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal

from hdl.stripe.program import copy_target
from hdl.stripe.progress import Next, Phase
from hdl.stripe.row_at_hand import RowAtHand


def end_states(
    m: Module,
    row: RowAtHand,
    *,
    ports: Any,
    target: Any,
    data_roles: Signal,
    unprotected: Any,
    synced: Any,
    fault: Signal,
    delivers: Signal,
    verdict: Any,
) -> None:
    """The states CLOSE, of a row that ends with statuses, and FIND-RECOVERED, of one that ends with
    blocks for the host, and those that follow, up to the row slot's being given back.

    A drive that did not store a block is given up if the row does without it, before anything is
    said of the row: what it has is old. The last that hold something of the row are never given up
    for one block, nor is a drive of a row that has lost more than the level tolerates. Then the
    commands fail. With parity the row may now be old in part. What it has that is new is made
    unreadable (`Phase.SPOIL`, with ``background``), so that nothing is ever worked out from a
    mixture: the blocks that can be read are the old ones, and agree. A drive that does not even do
    that is given up. Without ``background`` no block can be made unreadable, and the drives are
    given up at once.

    ``ports`` are the sequencer's. ``target``: that of the row's ``number``, a cycle after it.
    ``unprotected``: what is not stored is lost. ``synced``: targets that hold all that they should.
    ``fault``: the row's commands fail. ``delivers``: joined blocks that the host gets. ``verdict``
    is that of the sequencer, if it walks.
    """
    config, program, now = row.config, row.program, row.now
    recover, fills, walks, single = row.recover, row.fills, row.walks, row.single
    index, slot, strip = row.index, row.slot, row.strip
    pending, lowest, abandoned, filled = row.pending, row.lowest, row.abandoned, row.filled
    missing = Signal(config.ports)
    tolerance = Signal(3)
    # Targets that their drive, which is there, did not store; whether one of them is kept.
    refusals = now.lost & ~now.left
    torn = Signal()
    number = row.number
    protected = program.parities != 0

    with m.State("CLOSE"):
        lost = now.lost[: config.ports]
        unread = now.bad & data_roles & ~Mux(walks, program.write[: config.ports], program.joined)
        m.d.sync += [
            missing.eq(lost | program.dead | unread),
            tolerance.eq(program.parities),
            fault.eq(abandoned | ~program.possible),
            pending.eq(program.joined),
        ]
        m.next = "COUNT"
        if config.background:
            m.d.sync += missing.eq(lost | program.dead | program.stale | unread)
            with m.If(program.salvage):
                # What joined is on its drives, or nowhere; the rest is lost already.
                m.d.sync += [
                    missing.eq(lost | program.dead | program.stale),
                    fault.eq((lost & data_roles).any() | refusals.any()),
                ]
            with m.If(walks & ~refusals.any()):
                m.next = "JUDGE-WALK"
    with m.State("COUNT"):
        m.d.sync += [missing.eq(missing & (missing - 1)), tolerance.eq(tolerance - 1)]
        with m.If(unprotected | fault | (tolerance == 0)):
            m.next = "SELECT-STRIP"
            with m.If(refusals.any()):
                m.next = "FIND-REFUSALS"
            with m.If(~unprotected & missing.any()):
                m.d.sync += fault.eq(1)

    # Which drives are given up.
    with m.State("FIND-REFUSALS"):
        m.d.sync += [pending.eq(refusals), torn.eq(0)]
        if config.background:
            with m.If(now.phase == Phase.SPOIL):
                m.d.sync += fault.eq(1)
        m.next = "SELECT-REFUSAL"
    with m.State("SELECT-REFUSAL"):
        m.d.sync += [number.eq(lowest), pending.eq(pending & (pending - 1))]
        m.next = "FIND-REFUSAL"
        with m.If(~pending.any()):
            m.d.sync += pending.eq(program.joined)
            m.next = "SELECT-STRIP"
            if config.background:
                with m.If(walks):
                    m.next = "JUDGE-WALK"
                # Not what has been refused: that is old.
                spoilt = program.write & ~now.left & ~(now.lost & now.refused)
                with m.Elif(torn & protected & spoilt.any()):
                    m.d.sync += [now.lost.eq(0), now.refused.eq(0), now.attempts.eq(0)]
                    row.begin_operations(m, targets=spoilt, phase=Phase.SPOIL)
    with m.State("FIND-REFUSAL"):
        m.next = "REPORT"
    with m.State("REPORT"):
        dispensable = Signal()
        m.d.comb += dispensable.eq(Mux(protected, ~fault, now.good.bit_select(target.strip, 1)))
        if config.background:
            stored = program.write & ~now.lost & synced & ~(1 << copy_target(config))
            with m.If(walks & ~protected):
                m.d.comb += dispensable.eq(program.read.any() | stored.any())
            with m.If((now.phase == Phase.SPOIL) | ~synced.bit_select(number, 1)):
                m.d.comb += dispensable.eq(1)
        else:
            with m.If(protected):
                m.d.comb += dispensable.eq(1)
        m.d.comb += [ports.fail.valid.eq(dispensable), ports.fail.payload.eq(target.port)]
        with m.If(~dispensable):
            m.d.sync += torn.eq(1)
        with m.If(~dispensable | ports.fail.ready):
            m.next = "SELECT-REFUSAL"

    with m.State("SELECT-STRIP"):
        m.d.sync += [index.eq(lowest), pending.eq(pending & (pending - 1))]
        m.next = "FIND-STRIP"
        with m.If(~pending.any()):
            m.next = "RETIRE"
    with m.State("FIND-STRIP"):
        m.next = "COMMIT"
    with m.State("COMMIT"):
        m.d.comb += [
            ports.committed.valid.eq(~recover),
            ports.recover_failed.valid.eq(recover),
        ]
        with m.If(Mux(recover, ports.recover_failed.ready, ports.committed.ready)):
            m.next = "SELECT-STRIP"
            # Lines written have been freed one by one, but not those of mirrors.
            kept = program.mirrored | abandoned | ~program.write.bit_select(index, 1)
            with m.If((~recover | fills) & kept):
                m.next = "FREE-STRIP"
    with m.State("FREE-STRIP"):
        m.d.comb += [ports.free.valid.eq(1), ports.free.payload.eq(strip.line)]
        with m.If(ports.free.ready):
            m.next = "SELECT-STRIP"
    with m.State("FIND-RECOVERED"):
        m.d.sync += [index.eq(lowest), pending.eq(pending & (pending - 1))]
        m.next = "FETCH-RECOVERED"
    with m.State("FETCH-RECOVERED"):
        m.next = "DELIVER"
    with m.State("DELIVER"):
        delivered = Const(1)
        if config.gather_reads:
            delivered = delivers.bit_select(index, 1)
            m.d.comb += ports.recover_failed.valid.eq(~delivered)
        m.d.comb += ports.recovered.valid.eq(delivered)
        taken = Mux(delivered, ports.recovered.ready, ports.recover_failed.ready)
        with m.If(taken):
            row.give_back(m, program.aux & ~delivers, then=Next.RETIRE)
            if config.gather_reads:
                with m.If(pending.any()):
                    m.next = "FIND-RECOVERED"
    if config.background:
        with m.State("JUDGE-WALK"):
            m.d.sync += ports.walked.payload.eq(verdict.walked)
            m.next = "END-WALK"
        with m.State("END-WALK"):
            m.d.comb += ports.walked.valid.eq(1)
            with m.If(ports.walked.ready):
                m.next = "RETIRE"
                with m.If(single):
                    row.give_back(m, program.aux, then=Next.RETIRE)
    with m.State("RETIRE"):
        m.d.comb += ports.retired.valid.eq(~filled)
        with m.If(ports.retired.valid & ports.retired.ready):
            m.next = "IDLE"
        if config.sector_emulation:
            m.d.comb += [ports.filled.valid.eq(filled), ports.filled.payload.eq(slot)]
            with m.If(ports.filled.valid & ports.filled.ready):
                m.next = "IDLE"
