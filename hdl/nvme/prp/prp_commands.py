"""Commands are passed on once their PRP entries are known good; those of a list are read first."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hdl.config import Config
from hdl.flow.host_memory import Kind
from hdl.nvme.codes import PAGE_SHIFT, StatusCode, status_field
from hdl.nvme.prp.prp_lists import ENTRY_BITS, ListFates, Measure
from hdl.nvme.prp.requests import RequestQueues
from hdl.nvme.records import assign

ENTRY_DWORDS = ENTRY_BITS // 32


@dataclass(frozen=True, kw_only=True)
class CommandAtHand:
    """Signals of `hdl.nvme.prp.prp.Prp`, and what its states do with a command.

    Parameters
    ----------
    config, ports
        Sizes, and the ports of `Prp`.
    slot
        The command's.
    admitted, asked
        It as it comes (with its entries); it as it is passed on.
    measure, fates
        Its pages; whether it waits for its list.
    place, list_entry
        An entry of its list, counted from PRP2's, and that entry a cycle later.
    pointer_write, held_write, hopped_write
        Write ports of what is kept of it: its entries, itself, and whether the rest of its list has
        been asked for.
    requests
        Reads of lists.
    """

    config: Config
    ports: Any
    slot: Signal
    admitted: Any
    asked: Any
    measure: Measure
    fates: ListFates
    place: Signal
    list_entry: Value
    pointer_write: Any
    held_write: Any
    hopped_write: Any
    requests: RequestQueues

    def pass_on(self, m: Module) -> None:
        """Its entries are good."""
        m.d.sync += [self.ports.command.valid.eq(1), self.ports.command.payload.eq(self.asked)]

    def reject(self, m: Module, code: StatusCode) -> None:
        """It ends with ``code``."""
        more = code != StatusCode.ABORT_REQUESTED
        status = status_field(code, more=more)
        m.d.sync += [
            self.ports.rejected.valid.eq(1),
            *assign(self.ports.rejected.payload, slot=self.slot, status=status),
        ]

    def leave_list(self, m: Module) -> None:
        """Ends a state: it waits no more."""
        m.d.comb += self.fates.changes.eq(1)
        m.next = "CHOOSE"

    def request_list(self, m: Module, *, address: Value, entries: Value, place: Value) -> None:
        """Reads ``entries`` of its list, the first of which is ``place``."""
        config, requests = self.config, self.requests
        m.d.comb += [
            requests.reads.eq(1),
            *assign(
                requests.read,
                kind=Kind.LIST,
                index=self.slot,
                last=1,
                address=address,
                dwords=entries << 1,
                target=Cat(
                    Const(0, (ENTRY_DWORDS - 1).bit_length()),
                    place[: config.transfer_bits],
                    self.slot,
                ),
            ),
        ]


def admit_states(
    m: Module, at_hand: CommandAtHand, *, moves_data: Signal, in_admit: Signal, next_part: Any
) -> None:
    """The states ADMIT, of a command that comes, and LOAD_PART, of one that goes on with
    ``next_part``, and those that follow.

    ``moves_data``: it has entries. ``in_admit``: it is the one that comes that is ``asked``.
    """
    ports, admitted, measure = at_hand.ports, at_hand.admitted, at_hand.measure
    fates, place, pointer_write = at_hand.fates, at_hand.place, at_hand.pointer_write
    held_write, hopped_write = at_hand.held_write, at_hand.hopped_write

    with m.State("ADMIT"):
        m.d.comb += [
            in_admit.eq(1),
            pointer_write.en.eq(1),
            held_write.en.eq(1),
            hopped_write.en.eq(1),
            fates.changes.eq(1),
        ]
        m.next = "CHOOSE"
        with m.If(moves_data & measure.unaligned_first):
            at_hand.reject(m, StatusCode.INVALID_PRP_OFFSET)
        with m.Elif(moves_data & (measure.more == 1) & measure.unaligned_second):
            at_hand.reject(m, StatusCode.INVALID_PRP_OFFSET)
        with m.Elif(moves_data & (measure.more > 1)):
            with m.If(measure.unaligned_list):
                at_hand.reject(m, StatusCode.INVALID_PRP_OFFSET)
            with m.Else():
                m.d.comb += fates.following.waits.eq(1)
                first_part = Mux(measure.crosses, measure.here, measure.more)
                at_hand.request_list(
                    m, address=admitted.prp2, entries=first_part, place=Const(0, len(place))
                )
        with m.Else():
            at_hand.pass_on(m)

    with m.State("LOAD_PART"):
        m.next = "REPEAT"

    with m.State("REPEAT"):
        m.d.comb += [held_write.data.eq(next_part), held_write.en.eq(1)]
        m.d.sync += [ports.command.valid.eq(1), ports.command.payload.eq(next_part)]
        m.next = "CHOOSE"


def list_states(
    m: Module, at_hand: CommandAtHand, *, hopped: Value, failed: Signal, bad: Signal
) -> None:
    """The state LOAD_LIST, of a command whose list, or the first part of it, has arrived, and those
    that follow, up to its being passed on, rejected, or the rest of its list's being asked for.

    ``hopped``: this is the rest of it. ``failed``: it could not be read. ``bad``: of its entries.
    """
    measure, fates, hopped_write = at_hand.measure, at_hand.fates, at_hand.hopped_write
    more, here, crosses = measure.more, measure.here, measure.crosses
    place, list_entry = at_hand.place, at_hand.list_entry
    last_place = Signal.like(place)
    hop = Signal(ENTRY_BITS)

    with m.State("LOAD_LIST"):
        m.next = "MEASURE"

    with m.State("MEASURE"):
        m.next = "JUDGE"

    with m.State("JUDGE"):
        m.d.sync += last_place.eq(more - 1)
        with m.If(failed | fates.now.cancelled):
            at_hand.reject(m, StatusCode.DATA_TRANSFER_ERROR)
            with m.If(fates.now.cancelled):
                at_hand.reject(m, StatusCode.ABORT_REQUESTED)
            at_hand.leave_list(m)
        with m.Elif(crosses & ~hopped):
            m.d.sync += place.eq(here - 1)
            m.next = "LOAD_HOP"
        with m.Else():
            m.d.sync += place.eq(0)
            m.next = "CHECK_FIRST"

    with m.State("LOAD_HOP"):
        m.next = "READ_HOP"

    with m.State("READ_HOP"):
        m.d.sync += hop.eq(list_entry)
        m.next = "HOP"

    with m.State("HOP"):
        m.d.comb += hopped_write.data.eq(1)
        m.next = "CHOOSE"
        with m.If(hop[:PAGE_SHIFT].any()):
            at_hand.reject(m, StatusCode.INVALID_PRP_OFFSET)
            at_hand.leave_list(m)
        with m.Else():
            m.d.comb += hopped_write.en.eq(1)
            at_hand.request_list(m, address=hop, entries=more - place, place=place)

    with m.State("CHECK_FIRST"):
        m.d.sync += place.eq(1)
        m.next = "CHECK"

    # `list_entry` is entry `place` - 1.
    with m.State("CHECK"):
        m.d.sync += [
            bad.eq(bad | list_entry[:PAGE_SHIFT].any()),
            place.eq(place + 1),
        ]
        with m.If(place > last_place):
            m.next = "PASS"

    with m.State("PASS"):
        with m.If(bad):
            at_hand.reject(m, StatusCode.INVALID_PRP_OFFSET)
        with m.Else():
            at_hand.pass_on(m)
        at_hand.leave_list(m)


def cancel_states(m: Module, at_hand: CommandAtHand) -> None:
    """The state LOOK, of a command that is to be aborted, and the one that follows."""
    ports, fates = at_hand.ports, at_hand.fates

    with m.State("LOOK"):
        m.next = "CANCEL"

    with m.State("CANCEL"):
        m.d.comb += [
            ports.cancelled.eq(1),
            ports.found.eq(fates.now.waits),
            fates.following.waits.eq(fates.now.waits),
            fates.following.cancelled.eq(fates.now.waits),
            fates.changes.eq(1),
        ]
        m.next = "CHOOSE"
