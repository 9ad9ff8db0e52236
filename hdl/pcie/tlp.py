"""TLPs inside the PCIe front end: requests to the host, and its completions."""

from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import Out

from hdl.config import Config
from hdl.kit.pulse import Pulse

CREDITS_MOST = 15
"""Credits of reads that are told: more than are on their way to the hard block at once."""


class RequestKind(enum.Enum, shape=1):
    """Memory requests that the controller sends."""

    READ = 0
    WRITE = 1


class CompletionStatus(enum.Enum, shape=3):
    """Completion status field (PCIe base specification 2.2.9)."""

    SC = 0
    UR = 1
    CRS = 2
    CA = 4


def request_beat(config: Config) -> data.StructLayout:
    """A beat of a memory request to the host.

    The header fields hold on every beat. Payload starts at word 0 of the first beat; a read is one
    beat. ``dwords`` is 1..1024 (11 bits); every byte is enabled; no request crosses 4 KiB.
    ``relaxed``: user data, whose order nobody relies on (relaxed ordering may be asked for).
    ``message``: an MSI-X message, which is one beat. Until the shim, ``valid`` stays 1 from the
    first beat of a packet to its last (`hdl.pcie.dma.writer`).
    """
    return data.StructLayout(
        {
            "kind": RequestKind,
            "address": 64,
            "dwords": 11,
            "tag": 8,
            "relaxed": 1,
            "message": 1,
            "data": config.data_width,
            "first": 1,
            "last": 1,
        }
    )


class RequestProgress(wiring.Signature):
    """What a shim says of the requests that it has been given.

    Ports
    -----
    sent
        The tag of a read that the hard block has taken.
    clear
        What is offered now does not wait behind what the block has not taken. It may depend on the
        block's ``ready``, not on what is offered.
    stuck
        Without bus mastering the block has taken nothing for long, although it is offered
        something, while completions go by a stream of their own.
    credits
        So many more reads, `CREDITS_MOST` at most, have a flow control credit. Those that the shim
        has been given have been taken off.
    tracks
        A constant. The block keeps a table of the reads that it waits for, by tag. It says when one
        leaves it (``request_completed`` of `completion_beat`), after its own completion timeout at
        the latest.
    """

    def __init__(self):
        super().__init__(
            {
                "sent": Out(Pulse(8)),
                "clear": Out(1),
                "stuck": Out(1),
                "credits": Out(range(CREDITS_MOST + 1)),
                "tracks": Out(1),
            }
        )


def completion_beat(config: Config) -> data.StructLayout:
    """A beat of a completion from the host.

    The header fields hold on every beat. Payload starts at word 0 of the first beat; ``dwords`` is
    0 without data. ``byte_count`` counts the bytes still due including this completion,
    ``lower_address`` is the low address of the first byte (PCIe base specification 2.2.9).
    ``request_completed`` marks the last completion of its request.
    """
    return data.StructLayout(
        {
            "tag": 8,
            "status": CompletionStatus,
            "poisoned": 1,
            "dwords": 11,
            "byte_count": 13,
            "lower_address": 12,
            "request_completed": 1,
            "data": config.data_width,
            "first": 1,
            "last": 1,
        }
    )
