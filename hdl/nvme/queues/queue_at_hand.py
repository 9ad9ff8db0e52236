"""The queue that the queue engine serves, and what it keeps of all of them."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Module, Signal

from hdl.config import Config


@dataclass(frozen=True, kw_only=True)
class QueueAtHand:
    """Signals of `hdl.nvme.queues.queues.QueueEngine`. Vectors have a bit per queue.

    Parameters
    ----------
    config
        Sizes.
    queue, cq_queue
        The submission queue, and the completion queue that goes with it.
    sq, cq, sq_base, cq_base
        What `hdl.nvme.queues.queue_state` says of them.
    sq_write, cq_write, sq_base_write, cq_base_write
        Write ports for these; ``sq`` and ``cq`` are written back but for what a state changes.
    sq_valid, cq_valid
        The queues that exist.
    work, stalled
        Submission queues that may have entries to fetch; those whose completion queue has no room.
    total
        Commands inside.
    admin_inside, admin_asked
        An entry of the admin queue has been asked for and not been taken; the head of that queue
        after what has been asked for.
    change_waits, report_waits
        A change waits for commands to end, a report for room in the admin completion queue.
    """

    config: Config
    queue: Signal
    cq_queue: Signal
    sq: Any
    cq: Any
    sq_base: Any
    cq_base: Any
    sq_write: Any
    cq_write: Any
    sq_base_write: Any
    cq_base_write: Any
    sq_valid: Signal
    cq_valid: Signal
    work: Signal
    stalled: Signal
    total: Signal
    admin_inside: Signal
    admin_asked: Signal
    change_waits: Signal
    report_waits: Signal

    def try_again(self, m: Module) -> None:
        """A completion queue has more room."""
        m.d.sync += [
            self.work.eq(self.work | self.stalled),
            self.stalled.eq(0),
            self.report_waits.eq(0),
        ]
