"""The row that the sequencer works on: what its states know of it, and how they go on."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Module, Signal, Value

from hdl.config import Config
from hdl.stripe.planning.pass_steps import PassSteps
from hdl.stripe.rows.progress import Next, Phase


@dataclass(frozen=True, kw_only=True)
class RowAtHand:
    """Signals of `hdl.stripe.rows.sequencer.Sequencer`, and ways to its states.

    Every method is used inside a state, of which it is the end.

    Parameters
    ----------
    config
        Sizes.
    program, now
        The row's `hdl.stripe.planning.program.program` and `hdl.stripe.rows.progress.progress`.
    slot, number, index, strip
        The row slot; a target; a role, and the joined block of it.
    pending, lowest
        Targets or roles that are left to go through, and the lowest of them.
    recover, fills, gathered, walks, single, checks
        Of the row's program, 0 where the configuration has no such rows.
    held
        Roles whose own line is needed for the writes.
    doomed, doomed_role, afterwards
        Roles whose own line goes back, the lowest of them, and what follows that.
    writing, resending
        Of the operations that are being sent: writes; not for the first time.
    abandoned, filled
        Its erasures cannot be solved; it goes back to the gatherer.
    steps
        Parity steps.
    """

    config: Config
    program: Any
    now: Any
    slot: Signal
    number: Signal
    index: Signal
    strip: Any
    pending: Signal
    lowest: Signal
    recover: Value
    fills: Value
    gathered: Value
    walks: Value
    single: Value
    checks: Value
    held: Signal
    doomed: Signal
    doomed_role: Signal
    afterwards: Any
    writing: Signal
    resending: Signal
    abandoned: Signal
    filled: Signal
    steps: PassSteps

    def begin_recovery(self, m: Module) -> None:
        """Work out what is erased."""
        m.d.comb += self.steps.recover.eq(1)
        m.d.sync += self.now.phase.eq(Phase.RECOVER)
        m.next = "BEGIN-PASS"

    def begin_generation(self, m: Module) -> None:
        """Generate parities."""
        m.d.comb += self.steps.generate.eq(1)
        m.d.sync += self.now.phase.eq(Phase.GENERATE)
        m.next = "BEGIN-PASS"

    def begin_operations(
        self, m: Module, *, targets: Value, phase: Phase, again: int = 0
    ) -> None:
        """Read or write ``targets``, or as `make_unreadable`."""
        m.d.sync += [
            self.resending.eq(again),
            self.now.phase.eq(phase),
            self.pending.eq(targets),
            self.writing.eq(phase != Phase.READ),
        ]
        m.next = "SELECT-TARGET"

    def make_unreadable(self, m: Module, *, targets: Value, phase: Phase) -> None:
        """Make unreadable ``targets``; their drives may refuse that, too."""
        now = self.now
        m.d.sync += [now.lost.eq(0), now.refused.eq(0), now.attempts.eq(0)]
        self.begin_operations(m, targets=targets, phase=phase)

    def try_again(self, m: Module, *, phase: Phase) -> None:
        """Send once more what did not come to an end."""
        now = self.now
        m.d.sync += [
            now.retry.eq(0),
            now.aborted.eq(0),
            now.attempts.eq(now.attempts + now.aborted),
        ]
        self.begin_operations(m, targets=now.retry, phase=phase, again=1)

    def give_back(self, m: Module, roles: Value, *, then: Next) -> None:
        """Free the own lines of ``roles``."""
        m.d.sync += [self.doomed.eq(roles), self.afterwards.eq(then)]
        m.next = "SELECT-LINE"

    def deliver_joined(self, m: Module) -> None:
        """Give the host the joined blocks."""
        m.d.sync += self.pending.eq(self.program.joined)
        m.next = "FIND-RECOVERED"

    def finish_filling(self, m: Module) -> None:
        """Give the row back to the gatherer."""
        m.d.sync += self.filled.eq(1)
        self.give_back(m, self.program.aux, then=Next.RETIRE)
