"""What the controller keeps of each queue; one memory each, an entry a queue."""

from amaranth.lib import data

from hdl.config import Config
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
    """``head``: next entry to fetch; ``tail``: the doorbell; ``inside``: fetched, not ended.

    ``age``: of the entries up to ``tail`` (`hdl.nvme.commands.lifetimes`); if ``marked``, those
    before ``mark``, which lies between head and tail, have ``older``, and if ``mixed`` some of them
    may be younger than that.
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
    """``head``: the doorbell; ``tail``, ``phase``: next entry to write.

    ``used``: entries written and not taken by the host, and entries reserved for commands inside.
    ``queues``: submission queues that complete here. ``tells``: there are entries that tell a
    volume what it has lost (`hdl.background.debts`) and have not been taken by the host; the last
    of them is the one before ``news``.
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
        | ({"news": position, "tells": 1} if config.background else {})
    )
