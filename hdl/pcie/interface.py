"""Streams between the PCIe front end and the rest: TLPs, DMA requests, register accesses."""

from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_BYTES, Config

CREDITS_MOST = 15
"""Credits of reads that are told: more than are on their way to the hard block at once."""

BAR_BITS = 14
"""BAR 0 is 16 KiB: NVMe registers, doorbells, MSI-X table and pending bits."""


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
    first beat of a packet to its last (`hdl.pcie.writer`).
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

    ``sent_valid``: the hard block has taken the read with ``sent_tag``; a pulse. ``clear``: what is
    offered now does not wait behind what the block has not taken; it may depend on the block's
    ``ready``, not on what is offered. ``stuck``: without bus mastering the block has taken nothing
    for long, although it is offered something, while completions go by a stream of their own.
    ``credits``: so many more reads, `CREDITS_MOST` at most, have a flow control credit; those that
    the shim has been given have been taken off. ``tracks``, a constant: the block keeps a table of
    the reads that it waits for, by tag, and says when one leaves it (``request_completed`` of
    `completion_beat`), after its own completion timeout at the latest.
    """

    def __init__(self):
        super().__init__(
            {
                "sent_valid": Out(1),
                "sent_tag": Out(8),
                "clear": Out(1),
                "stuck": Out(1),
                "credits": Out(range(CREDITS_MOST + 1)),
                "tracks": Out(1),
            }
        )


class Messages(wiring.Signature):
    """The one MSI-X message that may be under way, seen from who sends it.

    ``withhold``: it must not leave any more. ``left``, ``dropped``: it has been handed to the hard
    block, or it will never be; pulses, one of them for each message.
    """

    def __init__(self):
        super().__init__({"withhold": Out(1), "left": In(1), "dropped": In(1)})


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


class Kind(enum.Enum, shape=2):
    """What a host read is for, and so which memory it lands in."""

    BLOCK = 0
    """A block of user data: into the line store, ``index`` is the line."""
    ENTRIES = 1
    """Submission queue entries: into the inbox, ``index`` chosen by the queue engine."""
    LIST = 2
    """A PRP list: into the inbox, ``index`` is the command slot."""
    PARAMETER = 3
    """The first word of a command's data: into the inbox, ``index`` is 0."""


def read_index_bits(config: Config) -> int:
    """Width of the index that names a host read, within its kind."""
    return max(config.line_bits, config.slot_bits)


def inbox_dwords(config: Config) -> int:
    """32-bit words of the inbox: PRP lists first (one entry a page and slot), then SQ entries of
    I/O queues, then one of the admin queue.

    One beat with a `Kind.PARAMETER` follows.
    """
    return config.commands * config.transfer_blocks * 2 + (sqe_slots(config) + 1) * SQE_DWORDS


SQE_DWORDS = 16
"""32-bit words of a submission queue entry."""


def sqe_slots(config: Config) -> int:
    """Submission queue entries of I/O queues that the inbox holds."""
    return 32


def inbox_address_bits(config: Config) -> int:
    """Width of a 32-bit word address in the inbox."""
    return (inbox_dwords(config) + config.beat_dwords - 1).bit_length()


def target_bits(config: Config) -> int:
    """Width of a 32-bit word address in the line store or the inbox."""
    return max(config.dword_address_bits, inbox_address_bits(config))


def read_request(config: Config) -> data.StructLayout:
    """Fetch ``dwords`` (1..1024) from host ``address`` to word address ``target``.

    ``address`` is a multiple of 4. (``kind``, ``index``) names a transfer: it may take several
    requests, the last of which carries ``last``; one `read_done` answers all of them.
    ``target`` is a word address in the line store (BLOCK) or the inbox (others).
    """
    return data.StructLayout(
        {
            "kind": Kind,
            "index": read_index_bits(config),
            "last": 1,
            "address": 64,
            "dwords": 11,
            "target": target_bits(config),
        }
    )


def read_done(config: Config) -> data.StructLayout:
    """Every byte of a transfer is in its memory, or (``error``) never will be."""
    return data.StructLayout({"kind": Kind, "index": read_index_bits(config), "error": 1})


def inbox_beat(config: Config) -> data.StructLayout:
    """One beat into the inbox: beat address, data, a mask bit per 32-bit word."""
    return data.StructLayout(
        {
            "address": inbox_address_bits(config) - (config.beat_dwords.bit_length() - 1),
            "data": config.data_width,
            "mask": config.beat_dwords,
        }
    )


def write_request(config: Config) -> data.StructLayout:
    """Send ``dwords`` (1..1024) from word address ``source`` of the line store to host ``address``.

    ``last`` ends the transfer of ``line``; one `write_done` with the line number answers it once
    its last TLP has been handed over, so that anything posted later arrives later.
    """
    return data.StructLayout(
        {
            "line": config.line_bits,
            "last": 1,
            "address": 64,
            "dwords": 11,
            "source": config.dword_address_bits,
        }
    )


POST_DWORDS = 4


def post() -> data.StructLayout:
    """A small posted write: a completion queue entry or an interrupt; ``dwords`` is 1..4.

    ``message``: an MSI-X message, one word.
    """
    return data.StructLayout(
        {"address": 64, "dwords": 3, "message": 1, "data": 32 * POST_DWORDS}
    )


class RegisterBus(wiring.Signature):
    """Register accesses of the host, seen from the PCIe side: one at a time, in order.

    ``request``: a naturally aligned access of up to 8 bytes at byte address ``address`` (a multiple
    of 8); ``enable`` has a bit per byte. A read is answered by one ``response``, a write by none.
    """

    def __init__(self):
        super().__init__(
            {
                "request": Out(
                    stream.Signature(
                        data.StructLayout(
                            {"address": BAR_BITS, "write": 1, "data": 64, "enable": 8}
                        )
                    )
                ),
                "response": In(stream.Signature(64)),
            }
        )


class PcieStatus(wiring.Signature):
    """What the hard block reports of its configuration space, seen from the controller.

    ``max_payload``, ``max_read_request``: Device Control encoding (128 << n bytes). ``rcb``: read
    completion boundary, 0 for 64 and 1 for 128 bytes. ``function_reset``: a function level reset
    is under way (UltraScale+: ``cfg_flr_in_process``), until it is said to be done.
    ``extended_tag``, ``relaxed_ordering``: Device Control bits 8 and 4; ``id_ordering``,
    ``id_completion``: Device Control 2 bits 8 and 9; ``completion_timeout``: its bits 3:0,
    ``timeout_disable``: its bit 4. A 7-series block has them in ``cfg_dcommand2``; of UltraScale+
    its configuration management interface reads them.

    ``link_reset``: the link is down or being reset (hot reset, PERST#, lost link): the block's
    ``user_reset``, or not ``user_lnk_up``. At least a cycle of a clock that runs. It resets what
    belongs to the host, as a function level reset does, and ends what is under way in the shim;
    arrays and what drives are doing stay. The controller's own reset must not depend on it.
    """

    def __init__(self):
        super().__init__(
            {
                "max_payload": In(3),
                "max_read_request": In(3),
                "rcb": In(1),
                "bus_master": In(1),
                "msix_enable": In(1),
                "msix_mask": In(1),
                "function_reset": In(1),
                "extended_tag": In(1),
                "relaxed_ordering": In(1),
                "id_ordering": In(1),
                "id_completion": In(1),
                "completion_timeout": In(4),
                "timeout_disable": In(1),
                "link_reset": In(1),
            }
        )


assert BLOCK_BYTES == 4096, "requests are split at 4 KiB, the block and the PCIe page alike"
