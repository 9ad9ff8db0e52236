"""What the sequencer sends for a row: operations, parity steps, and lines that it gives back."""

from typing import Any

from amaranth.hdl import Module, Signal, Value

from hdl.stripe.planning.admission import Admission
from hdl.stripe.rows.phase_queues import PhaseQueues
from hdl.stripe.rows.progress import Next
from hdl.stripe.rows.row_at_hand import RowAtHand


def sending_states(
    m: Module,
    row: RowAtHand,
    *,
    ports: Any,
    target: Any,
    queues: PhaseQueues,
    sends_step: Signal,
    records: Value,
    dated: Value,
    own_line: Any,
    admission: Admission,
    state_write: Any,
) -> None:
    """The states from SELECT-TARGET, which send the ``pending`` operations, from BEGIN-PASS, which
    send the steps of a pass, and from SELECT-LINE, which give back the ``doomed`` lines, each up to
    what follows; and PLAN, which has the row planned again.

    ``ports`` are the sequencer's. ``target``: that of the row's ``number``, ``own_line``: of its
    ``index``, both 1 cycle after it. ``sends_step``: a pulse, the step of ``row.steps`` is sent;
    ``records``: steps are recorded for a pass piece by piece. ``dated``: the operations are.
    ``state_write``: write port of the rows' progress.
    """
    config, program, now = row.config, row.program, row.now
    number, index, pending, lowest = row.number, row.index, row.pending, row.lowest
    doomed, steps, writing, single = row.doomed, row.steps, row.writing, row.single

    # Operations of a phase.
    with m.State("SELECT-TARGET"):
        m.d.sync += [number.eq(lowest), pending.eq(pending & (pending - 1))]
        m.next = "FIND-TARGET"
        with m.If(~pending.any()):
            m.next = "STORE"
            if config.early_rows:
                with m.If(records):
                    m.d.comb += steps.recover.eq(1)
                    m.next = "BEGIN-PASS"
    with m.State("FIND-TARGET"):
        m.next = "FIND-ROLE"
    with m.State("FIND-ROLE"):
        m.d.sync += [index.eq(target.strip), now.remaining.eq(now.remaining + 1)]
        if config.background:
            with m.If(writing & single):
                m.d.sync += index.eq(program.source)
        m.next = "FIND-LINE"
    with m.State("FIND-LINE"):
        m.next = "SEND"
    with m.State("SEND"):
        m.d.comb += queues.send_operation.eq(1)
        m.next = "SELECT-TARGET"
        if config.background:
            # Until then its era is not known.
            with m.If(dated & ports.undecided):
                m.d.comb += queues.send_operation.eq(0)
                m.next = "SEND"

    # Steps of a pass.
    with m.State("BEGIN-PASS"):
        m.d.comb += [steps.begin.eq(1), sends_step.eq(1)]
        m.next = "SELECT-STEP"
    with m.State("SELECT-STEP"):
        m.d.comb += steps.select.eq(1)
        m.d.sync += index.eq(steps.role)
        m.next = "FIND-STEP"
        with m.If(steps.skips):
            m.next = "SELECT-STEP"
        with m.If(~steps.more):
            m.next = "STORE"
    with m.State("FIND-STEP"):
        m.next = "SEND-STEP"
    with m.State("SEND-STEP"):
        m.d.comb += sends_step.eq(1)
        m.next = "SELECT-STEP"

    # Own lines given back.
    with m.State("SELECT-LINE"):
        m.d.sync += [index.eq(row.doomed_role), doomed.eq(doomed & (doomed - 1))]
        m.next = "FIND-DOOMED"
        with m.If(~doomed.any()):
            with m.Switch(row.afterwards):
                with m.Case(Next.PLAN):
                    m.next = "PLAN"
                with m.Case(Next.WRITE):
                    m.next = "WRITE"
                with m.Case(Next.CLOSE):
                    m.next = "CLOSE"
                with m.Case(Next.RETIRE):
                    m.next = "RETIRE"
    with m.State("FIND-DOOMED"):
        m.next = "FREE"
    with m.State("FREE"):
        m.d.comb += [ports.free.valid.eq(1), ports.free.payload.eq(own_line)]
        with m.If(ports.free.ready):
            m.next = "SELECT-LINE"
    with m.State("PLAN"):
        m.d.comb += [admission.again.valid.eq(1), state_write.en.eq(1)]
        with m.If(admission.again.ready):
            m.next = "IDLE"
