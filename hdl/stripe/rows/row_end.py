"""How the sequencer ends a row: what becomes of its commands, and where its lines go."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal

from hdl.stripe.planning.program import copy_target
from hdl.stripe.rows.dismissal import Dismissal
from hdl.stripe.rows.progress import Next, Phase
from hdl.stripe.rows.row_at_hand import RowAtHand

SETTLE_CYCLES = 4096
"""Cycles that the sequencer waits for the states of arrays at most, for one block."""


def end_states(
    m: Module,
    row: RowAtHand,
    *,
    ports: Any,
    target: Any,
    data_roles: Signal,
    unprotected: Any,
    copied: Any,
    synced: Any,
    fault: Signal,
    delivers: Signal,
    verdict: Any,
    mends: Any,
) -> None:
    """The states SELECT-PLACE, of a row of which a drive did not store a block, CLOSE, of any row
    that ends with statuses, and FIND-RECOVERED, of one that ends with blocks for the host, and
    those that follow, up to the row slot's being given back.

    What a row, and its array, do without is judged when it ends: drives that have failed since it
    began count as failed, whatever they have stored of it. A drive that did not store a block is
    given up if row and array do without it (`Dismissal`), before anything is said of the row: what
    it has is old. The row waits for the states of arrays first, so of two rows that are refused at
    once the second is judged by what the first has left. It waits `SETTLE_CYCLES` at most for a
    drive, and all rows with it; after that the drive stays.

    - If the row does without the block and the array not without the drive, the block is made
      unreadable there (`Phase.BLANK`), and the row succeeds. A drive that does not even do that
      stays, too, and the commands fail.
    - If the row does not do without it, the commands fail. The row may now be old in part. What may
      be new is made unreadable (`Phase.SPOIL`), so that nothing is ever worked out from a mixture,
      and copies do not differ: the blocks that can be read are the old ones. If no copy is old for
      certain, one stays as it is. A drive that does not even do that is given up, unless it is
      essential and what it has can do no harm to other blocks.
    - The drive that a member is copied to is given up for a block, and nothing else comes of that,
      be it the member in the tables by then: the other drive has the row. Once that has failed, it
      is the member, and is judged as any other. If it has stored what the member has not, that is
      made unreadable, without redundancy as well: the two do not differ.
    - A drive that is being rebuilt does not count: what only it has of a host's write is not
      stored. A walk brings nothing that is new, and takes it for the good copy that it is.
    - A row with redundancy of which something was made unreadable is asked to be mended: what can
      be worked out of it has its redundancy again without anyone's reading it.

    Without ``background`` no block can be made unreadable, and drives are given up at once if there
    is parity, or a good copy.

    ``ports`` are the sequencer's. ``target``: that of the row's ``number``, a cycle after it.
    ``unprotected``: what is not stored is lost. ``copied``: the target that is copied, one bit, or
    none. ``synced``: targets that hold all that they should.
    ``fault``: the row's commands fail. ``delivers``: joined blocks that the host gets. ``verdict``
    is that of the sequencer, if it walks. ``mends``, with ``background``: its
    `hdl.stripe.mends.Mends`.
    """
    config, program, now = row.config, row.program, row.now
    recover, fills, walks, single = row.recover, row.fills, row.walks, row.single
    index, slot, strip = row.index, row.slot, row.strip
    pending, lowest, abandoned, filled = row.pending, row.lowest, row.abandoned, row.filled
    missing = Signal(config.ports)
    tolerance = Signal(3)
    number = row.number
    protected = program.parities != 0
    redundant = protected | program.mirrored
    to_copy = (1 << copy_target(config)) if config.background else 0
    # While its member is there, the target that it is copied to is not needed.
    spare = Mux((now.left & copied).any(), 0, to_copy)
    # Targets that their drive, which is there, did not store, that one apart; whether one of them
    # is not stored and stays, and those that stay and are to be made unreadable.
    refusals = now.lost & ~now.left
    refused = refusals & ~spare
    torn = Signal()
    kept = Signal.like(now.lost)
    waited = Signal(range(SETTLE_CYCLES + 1))
    # Roles with parity whose drives are being rebuilt.
    unsure = Signal(config.ports)
    stale = ports.stale if config.background else Const(0, len(ports.failed))
    m.submodules.dismissal = dismissal = Dismissal(config=config)

    # What has become of the drives since the row began.
    own = Signal.like(now.lost)
    m.d.comb += own.eq(1 << number)
    with m.State("SELECT-PLACE"):
        m.d.sync += [number.eq(lowest), pending.eq(pending & (pending - 1))]
        m.next = "FIND-PLACE"
        with m.If(~pending.any()):
            m.next = "CLOSE"
    with m.State("FIND-PLACE"):
        m.next = "NOTE-PLACE"
    with m.State("NOTE-PLACE"):
        with m.If(ports.failed.bit_select(target.port, 1)):
            m.d.sync += [now.lost.eq(now.lost | own), now.left.eq(now.left | own)]
        with m.Elif(~walks & stale.bit_select(target.port, 1)):
            m.d.sync += unsure.eq(unsure | own)
        with m.Elif((own & program.write & synced & ~now.lost & ~to_copy).any()):
            m.d.sync += now.good.eq(now.good | (1 << target.strip))
        m.next = "SELECT-PLACE"

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
            rebuilt = program.stale | unsure
            m.d.sync += [missing.eq(lost | program.dead | rebuilt | unread), unsure.eq(0)]
            with m.If(program.salvage):
                # What joined is on its drives, or nowhere; the rest is lost already.
                m.d.sync += [
                    missing.eq(lost | program.dead | program.stale),
                    fault.eq((lost & program.joined).any() | refused.any()),
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
        m.d.sync += [pending.eq(refusals), torn.eq(0), kept.eq(0)]
        with m.If(program.mirrored & (program.joined & ~now.good).any()):
            m.d.sync += fault.eq(1)
        if config.background:
            with m.Switch(now.phase):
                with m.Case(Phase.BLANK):
                    m.d.sync += fault.eq(refused.any())
                with m.Case(Phase.SPOIL):
                    m.d.sync += fault.eq(redundant)
                with m.Default():
                    m.d.sync += now.old.eq(now.lost & now.refused)
        m.next = "SELECT-REFUSAL"
    with m.State("SELECT-REFUSAL"):
        m.d.sync += [number.eq(lowest), pending.eq(pending & (pending - 1)), waited.eq(0)]
        m.next = "FIND-REFUSAL"
        with m.If(~pending.any()):
            m.d.sync += pending.eq(program.joined)
            m.next = "SELECT-STRIP"
            if config.background:
                writes = now.phase == Phase.WRITE
                maybe_new = program.write & ~now.left & ~now.old
                # Of copies one stays that can be read.
                has_old = (refused & now.old & synced).any()
                in_sync = maybe_new & synced
                one = Mux(program.mirrored & ~has_old, in_sync & -in_sync, 0)
                spoilt = Signal.like(now.lost)
                # Without redundancy only two drives of a copy can differ.
                unknown = Mux(program.mirrored, refused & ~synced, 0)
                m.d.comb += spoilt.eq((maybe_new | unknown) & ~one)
                with m.If(~redundant):
                    twin = Mux((refused & copied).any(), to_copy, 0)
                    m.d.comb += spoilt.eq(maybe_new & twin)
                mixed = torn & (now.phase != Phase.SPOIL)
                with m.If(writes & kept.any()):
                    m.d.sync += now.blank.eq(kept)
                    row.make_unreadable(m, targets=kept, phase=Phase.BLANK)
                with m.Elif(walks):
                    m.next = "JUDGE-WALK"
                with m.Elif(mixed & spoilt.any()):
                    row.make_unreadable(m, targets=spoilt, phase=Phase.SPOIL)
    with m.State("FIND-REFUSAL"):
        m.next = "REPORT"
    with m.State("REPORT"):
        spared = Signal()
        m.d.comb += [
            spared.eq(
                Mux(protected, ~fault, now.good.bit_select(target.strip, 1) & ~fault)
            ),
            dismissal.port.eq(target.port),
            dismissal.spared.eq(spared),
            dismissal.synced.eq(1),
            dismissal.settled.eq(1),
        ]
        if config.background:
            stored = program.write & ~now.lost & synced & ~to_copy
            with m.If(walks & ~protected):
                m.d.comb += spared.eq((program.read & ~now.left).any() | stored.any())
            # Parities that can be read, of what has been made unreadable for the most part.
            parities = program.write & ~now.left & (now.old | now.lost) & ~to_copy & ~data_roles
            spoils = now.phase == Phase.SPOIL
            m.d.comb += [
                dismissal.synced.eq((own & (synced | to_copy) & ~spare).any()),
                dismissal.essential.eq(ports.essential),
                dismissal.settled.eq(ports.settled),
                dismissal.impatient.eq(waited == SETTLE_CYCLES),
                dismissal.spoils.eq(spoils),
                dismissal.mixes.eq(protected & parities.any()),
            ]
            with m.If(now.phase == Phase.BLANK):
                m.d.comb += spared.eq(0)
        else:
            with m.If(protected):
                m.d.comb += spared.eq(1)
        m.next = "SELECT-REFUSAL"
        with m.If(dismissal.waits):
            m.d.sync += waited.eq(waited + 1)
            m.next = "REPORT"
        with m.Elif(dismissal.dismissed):
            m.next = "GIVE-UP"
        with m.Elif(~dismissal.kept):
            m.d.sync += torn.eq(1)
        with m.Else():
            m.d.sync += kept.eq(kept | own)
    with m.State("GIVE-UP"):
        m.d.comb += [ports.fail.valid.eq(1), ports.fail.payload.eq(target.port)]
        with m.If(ports.fail.ready):
            m.next = "SELECT-REFUSAL"
            if config.background:
                m.d.sync += now.left.eq(now.left | own)

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
            if config.background:
                spoilt = (now.phase == Phase.SPOIL) | (now.phase == Phase.BLANK)
                m.d.comb += mends.note.eq(redundant & ~recover & spoilt & ~pending.any())
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
