"""What the controller keeps of each queue: tables with an entry a queue."""

from amaranth.lib import data

from hdl.config import Config
from hdl.kit.optional import optional
from hdl.nvme.commands.lifetimes import AGE_BITS
from hdl.nvme.records import PAGE_NUMBER_BITS, position_bits, queue_bits


def sq_base(config: Config) -> data.StructLayout:
    """A submission queue as created: page number, entries - 1, and its completion queue."""
    return data.StructLayout(
        {
            "page": PAGE_NUMBER_BITS,
            "last": position_bits(config),
            "completion": queue_bits(config),
        }
    )


def cq_base(config: Config) -> data.StructLayout:
    """A completion queue as created: page number, entries - 1, and its interrupt."""
    return data.StructLayout(
        {
            "page": PAGE_NUMBER_BITS,
            "last": position_bits(config),
            "vector": queue_bits(config),
            "interrupt": 1,
        }
    )


def sq_state(config: Config) -> data.StructLayout:
    """State of a submission queue.

    ``head`` is the next entry to fetch, and ``tail`` the value of the doorbell. ``inside`` counts
    commands that have been fetched and have not ended. ``age`` is that of the entries up to
    ``tail`` (`hdl.nvme.commands.lifetimes`). If the queue is ``marked``, the entries before
    ``mark``, which lies between head and tail, have the age ``older``. If it is ``mixed``, some of
    them may be younger than that.
    """
    position = position_bits(config)
    return data.StructLayout(
        {
            "head": position,
            "tail": position,
            "inside": position + 1,
            "age": AGE_BITS,
            "older": AGE_BITS,
            "mark": position,
            "marked": 1,
            "mixed": 1,
        }
    )


def cq_state(config: Config) -> data.StructLayout:
    """State of a completion queue.

    ``head`` is the value of the doorbell. ``tail`` and ``phase`` are those of the next entry to
    write. ``used`` counts entries that were written and not taken by the host, and entries that are
    reserved for commands inside. ``queues`` counts submission queues that complete here. ``tells``
    says that the host has not taken all entries that tell a volume what it has lost
    (`hdl.background.debts`). The last of them is the one before ``news``. Without
    `Config.background` both read as 0.
    """
    position = position_bits(config)
    return data.StructLayout(
        {
            "head": position,
            "tail": position,
            "phase": 1,
            "used": position + 1,
            "queues": range(config.queue_pairs + 2),
        }
        | optional(config.background, {"news": position, "tells": 1})
    )
