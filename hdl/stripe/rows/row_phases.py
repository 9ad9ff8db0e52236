"""What the sequencer does with a row next, once it begins or has ended a phase."""

from typing import Any

from amaranth.hdl import Const, Module, Mux

from hdl.flow.walk import WalkKind
from hdl.stripe.planning.admission import Admission
from hdl.stripe.planning.program import copy_target
from hdl.stripe.rows.progress import Next, Phase
from hdl.stripe.rows.row_at_hand import RowAtHand


def phase_states(
    m: Module,
    row: RowAtHand,
    *,
    stored: Any,
    admission: Admission,
    eras: Any,
    early: Any,
    suspicion: Any,
    copied: Any,
) -> None:
    """The states LOAD-PROGRAM, when a row begins, and LOAD-ROW, when it has ended a phase, and
    those that follow, up to the begin of its next phase.

    ``stored``: its progress as it was stored, 2 cycles after ``row.slot``. ``eras``, ``early``,
    ``suspicion`` are those of the sequencer, if it has them. ``copied``: as in
    `hdl.stripe.rows.row_end`.
    """
    config, program, now = row.config, row.program, row.now
    recover, fills, gathered = row.recover, row.fills, row.gathered
    walks, single, checks, held = row.walks, row.single, row.checks, row.held
    steps, abandoned = row.steps, row.abandoned
    every_role = (1 << (program.data + program.parities)) - 1
    # Drives that are kept have restarted since the row was planned: what was read may be of
    # different times.
    mixed = Const(0)
    if config.background:
        uses = Mux(recover, program.erased.any(), program.read.any())
        mixed = uses & (program.era != eras[program.array])
        # Roles whose lines a walk has still to write.
        again = now.retry[: config.ports] | Mux(
            now.retry[copy_target(config)], 1 << program.copied, 0
        )
        unwritten = program.aux & (again | single.replicate(config.ports))

    with m.State("LOAD-PROGRAM"):
        m.next = "BEGIN"
    with m.State("BEGIN"):
        m.d.sync += [now.eq(0), now.bad.eq(program.bad)]
        if config.background:
            with m.If(program.again):
                m.d.sync += [
                    now.found.eq(stored.found),
                    now.wrong.eq(stored.wrong),
                ]
                if config.slow_read_ms:
                    m.d.sync += now.slow.eq(stored.slow & program.bad)
        with m.If(~program.possible):
            m.next = "CLOSE"
            if config.background:
                with m.If(program.write.any()):
                    m.next = "WRITE"
        with m.Elif(program.read.any()):
            row.begin_operations(m, targets=program.read, phase=Phase.READ)
            if config.early_rows:
                # With other rows at its heels the next reads matter more.
                alone = early.free & ~admission.busy
                one = (program.joined & (program.joined - 1)) == 0
                with m.If(recover & one & ~fills & program.erased.any() & alone):
                    m.d.comb += early.claim.eq(1)
                    m.d.sync += [now.early.any.eq(1), now.early.seat.eq(early.seat)]
        with m.Elif(program.generate.any()):
            row.begin_generation(m)
        with m.Else():
            m.next = "WRITE"
            if config.background:
                m.d.sync += now.suspect.eq(program.source)
                with m.If(walks & (program.walk.kind == WalkKind.ZERO)):
                    m.next = "COMPARE"
    with m.State("LOAD-ROW"):
        m.next = "COPY-ROW"
    with m.State("COPY-ROW"):
        m.d.sync += now.eq(stored)
        m.next = "RESUME"
        if config.early_rows:
            with m.If(stored.early.any):
                m.next = "SETTLE"
    if config.early_rows:
        with m.State("SETTLE"):
            # Reads have ended; passes that are under way end before anything else.
            m.d.comb += early.settle.eq(1)
            m.d.sync += now.early.any.eq(0)
            with m.If(early.good & ~mixed):
                m.d.sync += now.phase.eq(Phase.RECOVER)
            m.next = "STORE"
    with m.State("RESUME"):
        with m.Switch(now.phase):
            with m.Case(Phase.READ):
                with m.If(now.retry.any()):
                    row.try_again(m, phase=Phase.READ)
                with m.Elif((now.bad != program.bad) | mixed):
                    row.give_back(m, program.aux, then=Next.PLAN)
                with m.Elif(program.erased.any()):
                    row.begin_recovery(m)
                if config.gather_reads or config.slow_read_ms or config.background:
                    with m.Elif(recover & ~fills):
                        row.deliver_joined(m)
                if config.sector_emulation:
                    with m.Elif(fills):
                        row.finish_filling(m)
                if config.background:
                    with m.Elif(checks & single):
                        m.next = "SUSPECT"
                    with m.Elif(walks & ~program.generate.any()):
                        row.give_back(m, program.aux & ~held, then=Next.WRITE)
                with m.Else():
                    row.begin_generation(m)
            with m.Case(Phase.RECOVER):
                with m.If(recover & ~fills):
                    row.deliver_joined(m)
                if config.sector_emulation:
                    with m.Elif(fills):
                        row.finish_filling(m)
                if config.background:
                    with m.Elif(walks & mixed):
                        row.give_back(m, program.aux, then=Next.PLAN)
                    with m.Elif(walks & ~program.generate.any()):
                        row.give_back(m, program.aux & ~held, then=Next.WRITE)
                with m.Else():
                    row.begin_generation(m)
            with m.Case(Phase.GENERATE):
                row.give_back(m, program.aux & ~held, then=Next.WRITE)
                if config.background:
                    with m.If(mixed):
                        row.give_back(m, program.aux, then=Next.PLAN)
                    with m.Elif(checks):
                        m.next = "SUSPECT"
            with m.Case(Phase.WRITE):
                m.next = "CLOSE"
                with m.If(now.lost.any()):
                    # Every role, but of mirrors what was written; and both drives of a copy.
                    written = program.write | program.read
                    places = Mux(program.parities != 0, every_role, written)
                    if config.background:
                        to_copy = program.write & (1 << copy_target(config))
                        places = places | to_copy | copied
                    m.d.sync += [row.pending.eq(places), now.good.eq(0)]
                    m.next = "SELECT-PLACE"
                with m.If(now.retry.any()):
                    row.try_again(m, phase=Phase.WRITE)
                    if config.background:
                        # What a walk writes may not be the row's any more.
                        with m.If(walks & mixed):
                            row.give_back(m, unwritten, then=Next.PLAN)
            if config.background:
                with m.Case(Phase.COMPARE):
                    m.next = "SUSPECT"
                    with m.If(mixed):
                        row.give_back(m, program.aux, then=Next.PLAN)
                for phase in (Phase.SPOIL, Phase.BLANK):
                    with m.Case(phase):
                        m.next = "FIND-REFUSALS"
                        with m.If(now.retry.any()):
                            row.try_again(m, phase=phase)
            with m.Default():
                m.d.sync += abandoned.eq(1)
                row.give_back(m, program.aux, then=Next.CLOSE)
                if config.gather_reads:
                    with m.If(gathered):
                        row.deliver_joined(m)
    if config.background:
        with m.State("SUSPECT"):
            m.d.sync += now.eq(suspicion.after)
            with m.If(suspicion.compare):
                m.next = "COMPARE"
            with m.Elif(suspicion.again):
                row.give_back(m, program.aux, then=Next.PLAN)
            with m.Else():
                row.give_back(m, program.aux & ~held, then=Next.WRITE)
        with m.State("COMPARE"):
            m.d.comb += steps.compare.eq(1)
            m.d.sync += now.phase.eq(Phase.COMPARE)
            m.next = "BEGIN-PASS"
    with m.State("WRITE"):
        m.d.sync += now.attempts.eq(0)
        row.begin_operations(m, targets=program.write, phase=Phase.WRITE)
        with m.If(~program.write.any()):
            m.next = "CLOSE"
