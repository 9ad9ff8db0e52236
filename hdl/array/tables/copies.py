"""Which member of each array is being copied to which drive, and how a copy begins and ends."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.array.tables.change import Change
from hdl.array.tables.health import Health
from hdl.config import Config
from hdl.flow.manage import COPY_END_SHIFT, CopyEnd, ManageStatus
from hdl.flow.table_read import copy_entry, copy_read

COPY_READERS = 3
"""Sequencer, dispatch, states of arrays."""


class Copies(wiring.Component):
    """A table with an entry an array.

    Parameters
    ----------
    config
        Sizes.
    readers
        Read ports.

    Ports
    -----
    read
        ``data`` follows ``address`` by a cycle.
    array, current
        An entry, and what it holds, a cycle later.
    entry, write
        What it will hold, and a pulse.
    """

    def __init__(self, *, config: Config, readers: int):
        self._config = config
        super().__init__(
            {
                "read": In(copy_read(config)).array(readers),
                "array": In(config.array_bits),
                "current": Out(copy_entry(config)),
                "entry": In(copy_entry(config)),
                "write": In(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.entries = entries = Memory(
            shape=copy_entry(self._config), depth=self._config.arrays, init=[]
        )
        for reader in self.read:
            port = entries.read_port()
            m.d.comb += [port.addr.eq(reader.address), reader.data.eq(port.data)]
        own, write = entries.read_port(), entries.write_port()
        m.d.comb += [
            own.addr.eq(self.array),
            self.current.eq(own.data),
            write.addr.eq(self.array),
            write.data.eq(self.entry),
            write.en.eq(self.write),
        ]
        return m


def copy_states(
    m: Module, change: Change, health: Health, *, copies: Copies, left: Signal, ports: Any
) -> None:
    """The states that begin and end a copy, from BEGIN_COPY and READ_COPY on.

    ``number`` and ``position`` are those of the drive that is copied to and of the member, which
    is read two cycles later. ``left``: the drive that is to be copied to has been absent since it
    was checked. ``ports`` are the tables'.

    When all has been copied the two drives change places first: the member is copied to. So rows
    that began before write both, and so do those that begin after, whatever they take for the
    member. When those of before have ended, the new member has what they wrote. If it fails before,
    the old one is the member again at once. Only then is there no copy any more.
    """
    request, number, position = change.request, change.number, change.position
    failed = health.failed
    port, uses, member = change.port, change.uses, change.members.read.data

    # A drive that joins is not failed; after that it is copied to.
    with m.State("BEGIN_COPY"):
        m.d.comb += [
            uses.write.data.used.eq(1),
            uses.write.data.array.eq(request.array),
            uses.write.en.eq(1),
            health.joins.eq(1 << port),
            health.fails.eq(left << port),
        ]
        m.next = "WRITE_COPY"

    with m.State("WRITE_COPY"):
        m.d.comb += [copies.entry.valid.eq(1), copies.write.eq(1), change.edited.eq(1)]
        change.answer(m, ManageStatus.DONE)

    with m.State("READ_COPY"):
        m.next = "LOAD_COPY"

    with m.State("LOAD_COPY"):
        m.d.sync += [number.eq(copies.current.port), position.eq(copies.current.position)]
        m.next = "FIND_COPIED"
        with m.If(~copies.current.valid):
            change.answer(m, ManageStatus.NO_ENTRY)

    with m.State("FIND_COPIED"):
        m.next = "JUDGE_COPY"
        with m.If(request.complete):
            m.next = "FLUSH_COPY"

    # What has been copied may still be in the drive's volatile cache.
    with m.State("FLUSH_COPY"):
        m.d.comb += [ports.flush.valid.eq(1), ports.flush.payload.eq(1 << port)]
        with m.If(ports.flush.ready):
            m.next = "TRUST_COPY"

    with m.State("TRUST_COPY"):
        m.d.comb += ports.flushed.ready.eq(1)
        with m.If(ports.flushed.valid):
            m.d.comb += health.fails.eq((1 << port) & ~ports.flushed.payload)
            m.next = "KEEP_COPY"

    # A drive that fails is seen to be failed a cycle later.
    with m.State("KEEP_COPY"):
        m.next = "JUDGE_COPY"

    # Which of the two drives goes, as they are now.
    old = Signal.like(member)
    new = Signal.like(member)
    joined, renews = Signal(), Signal()
    with m.State("JUDGE_COPY"):
        m.next = "RENEW_COPY"
        m.d.sync += [
            old.eq(member),
            joined.eq(
                ~failed.bit_select(port, 1) & (failed.bit_select(member, 1) | request.complete)
            ),
            renews.eq(~request.complete),
        ]
        # The member may have lost what the other one has, and the host have seen that.
        doubtful = ports.undecided | ports.doubts.bit_select(request.array, 1)
        with m.If(request.complete & doubtful):
            change.answer(m, ManageStatus.DONE)
            m.d.sync += change.response.index.eq(CopyEnd.AGAIN.value << COPY_END_SHIFT)

    # A drive is stale before anyone can find it as the member.
    with m.State("RENEW_COPY"):
        m.d.comb += health.renewed.eq(Mux(joined & renews, 1 << port, 0))
        m.next = "ERASE_COPY"

    # Member and copy change at once, so nobody sees neither or both.
    leaver = Mux(joined, old, port)
    outcome = Mux(renews, CopyEnd.STALE.value, CopyEnd.JOINED.value)
    ended = Signal(CopyEnd)
    m.d.comb += ended.eq(Mux(joined, outcome, CopyEnd.RELEASED.value))

    def part() -> None:
        """The copy has ended; who began before may still read or write the drive that leaves."""
        m.d.comb += [copies.entry.valid.eq(0), copies.write.eq(1), change.edited.eq(1)]
        m.d.sync += [
            change.response.index.eq(Cat(old, ended, copies.current.spare)),
            number.eq(leaver),
        ]
        m.next = "QUIESCE"

    with m.State("ERASE_COPY"):
        m.d.comb += change.members.write.en.eq(joined)
        part()
        with m.If(joined & ~renews & ~failed.bit_select(old, 1)):
            m.d.comb += [
                copies.entry.valid.eq(1),
                copies.entry.port.eq(old),
                copies.entry.spare.eq(copies.current.spare),
            ]
            m.d.sync += [number.eq(old), new.eq(port)]
            m.next = "DRAIN_COPY"

    # If the new one fails they change places again at once: reads and flushes find the old one.
    # One that restarts may lose what the old one has, so it fails.
    lost = failed.bit_select(new, 1)
    doubted = failed | (ports.suspect & ~ports.kept)
    with m.State("DRAIN_COPY"):
        m.d.comb += ports.quiesce.valid.eq(1)
        with m.If(joined & ports.suspect.bit_select(new, 1) & ~doubted.bit_select(old, 1)):
            m.d.comb += health.fails.eq(1 << new)
        with m.If(joined & lost & ~failed.bit_select(old, 1)):
            m.d.comb += [
                change.members.write.en.eq(1),
                copies.entry.valid.eq(1),
                copies.entry.port.eq(new),
                copies.entry.spare.eq(copies.current.spare),
                copies.write.eq(1),
                change.edited.eq(1),
            ]
            m.d.sync += joined.eq(0)
        with m.If(ports.quiesce.ready):
            m.next = "CONFIRM_COPY"

    with m.State("CONFIRM_COPY"):
        returns = lost & (~joined | ~failed.bit_select(old, 1))
        m.d.sync += [joined.eq(~returns), number.eq(Mux(returns, old, new))]
        m.next = "PART_COPY"

    with m.State("PART_COPY"):
        m.d.comb += change.members.write.en.eq(1)
        part()
        m.d.sync += number.eq(Mux(joined, old, new))
