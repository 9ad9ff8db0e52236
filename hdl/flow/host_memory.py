"""Reads and writes of host memory, and the inbox in which small reads land."""

from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_BYTES, Config
from hdl.flow.line import line_stream
from hdl.flow.post import Messages, post


class Kind(enum.Enum, shape=2):
    """The purpose of a host read. It decides which memory the data lands in."""

    BLOCK = 0
    """A block of user data. It goes into the line store, and ``index`` is the line."""
    ENTRIES = 1
    """Submission queue entries. They go into the inbox. The queue engine chooses ``index``."""
    LIST = 2
    """A PRP list. It goes into the inbox, and ``index`` is the command slot."""
    PARAMETER = 3
    """The first word of a command's data. It goes into the inbox, and ``index`` is 0."""


def read_index_bits(config: Config) -> int:
    """Width of the index that names a host read, within its kind."""
    return max(config.line_bits, config.slot_bits)


def inbox_dwords(config: Config) -> int:
    """32-bit words of the inbox.

    PRP lists come first (one entry for each page and command slot). Then come SQ entries of I/O
    queues, and then one SQ entry of the admin queue. One beat with a `Kind.PARAMETER` follows.
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

    ``address`` is a multiple of 4. (``kind``, ``index``) names a transfer. A transfer may take
    several requests, and the last of them carries ``last``. One `read_done` answers all of them.
    ``target`` is a word address in the line store (BLOCK) or in the inbox (other kinds).
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
    """Every byte of a transfer is in its memory. With ``error`` it never will be."""
    return data.StructLayout({"kind": Kind, "index": read_index_bits(config), "error": 1})


def inbox_beat(config: Config) -> data.StructLayout:
    """One beat into the inbox: the beat address, the data, and a mask bit for each 32-bit word."""
    return data.StructLayout(
        {
            "address": inbox_address_bits(config) - (config.beat_dwords.bit_length() - 1),
            "data": config.data_width,
            "mask": config.beat_dwords,
        }
    )


def write_request(config: Config) -> data.StructLayout:
    """Send ``dwords`` (1..1024) from word address ``source`` of the line store to host ``address``.

    ``last`` ends the transfer of ``line``. One `write_done` with the line number answers the
    transfer once its last TLP has been handed over, so data that is posted later arrives later.
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


class HostAccess(wiring.Signature):
    """All access to host memory, seen from who asks for it.

    Ports
    -----
    read_request, read_done
        Reads: blocks into lines, other data into the inbox. Reads that have ended.
    inbox_write
        Beats that were read into the inbox.
    write_request, write_done
        Writes of blocks, out of lines. Lines that have been written.
    post
        Small posted writes: completion queue entries and interrupts.
    messages
        What becomes of interrupts that have been handed to ``post``.
    discard
        What has not begun to leave is to be dropped.
    posted
        Writes that were taken have not left. A completion could pass them.
    idle
        Nothing moved in the last cycle, nothing is ``posted``, and no tag is in use. One may be in
        quarantine.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "read_request": Out(stream.Signature(read_request(config))),
                "read_done": In(stream.Signature(read_done(config))),
                "inbox_write": In(stream.Signature(inbox_beat(config))),
                "write_request": Out(stream.Signature(write_request(config))),
                "write_done": In(line_stream(config)),
                "post": Out(stream.Signature(post())),
                "messages": Out(Messages()),
                "discard": Out(1),
                "posted": In(1),
                "idle": In(1),
            }
        )


assert BLOCK_BYTES == 4096, "requests are split at 4 KiB, the block and the PCIe page alike"
