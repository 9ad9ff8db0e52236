"""Blocks find their pages: each becomes one or two requests to the host, or none."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, ValueLike

from hdl.config import Config
from hdl.flow.host_command import Status
from hdl.flow.host_memory import Kind
from hdl.nvme.codes import PAGE_SHIFT
from hdl.nvme.commands.sector_span import SectorSpan
from hdl.nvme.prp.requests import RequestQueues
from hdl.nvme.records import assign


@dataclass(frozen=True, kw_only=True)
class BlockAtHand:
    """Signals of `hdl.nvme.prp.prp.Prp`.

    Parameters
    ----------
    config, ports
        Sizes, and the ports of `Prp`.
    slot, block, line, to_host
        Block ``block`` of the command in ``slot``, its line, and where it goes.
    pointer, whole
        What is kept of the command: its entries, and itself; a cycle after ``slot``.
    span
        Where in its pages the block lies.
    place, page
        An entry of the command's list, counted from PRP2's, and its page a cycle later.
    requests
        To the host.
    """

    config: Config
    ports: Any
    slot: Signal
    block: Signal
    line: Signal
    to_host: Signal
    pointer: Any
    whole: Any
    span: SectorSpan
    place: Signal
    page: Signal
    requests: RequestQueues

    def request_move(
        self, m: Module, *, address: Value, dwords: Value, source: Value, last: ValueLike
    ) -> None:
        """One request of the block, in its direction; ``source``: where it begins in its line."""
        line, requests = self.line, self.requests
        m.d.comb += [
            requests.reads.eq(~self.to_host),
            requests.writes.eq(self.to_host),
            *assign(
                requests.read,
                kind=Kind.BLOCK,
                index=line,
                last=last,
                address=address,
                dwords=dwords,
                target=Cat(source, line),
            ),
            *assign(
                requests.write,
                line=line,
                last=last,
                address=address,
                dwords=dwords,
                source=Cat(source, line),
            ),
        ]


def block_states(m: Module, at_hand: BlockAtHand) -> None:
    """The state LOAD, of a block, and those that follow, up to its requests: in its entry, and
    in the next one when PRP1 begins inside its page."""
    config, ports, slot, block = at_hand.config, at_hand.ports, at_hand.slot, at_hand.block
    line, to_host, pointer, whole = at_hand.line, at_hand.to_host, at_hand.pointer, at_hand.whole
    span, place, page = at_hand.span, at_hand.place, at_hand.page

    with m.State("LOAD"):
        m.d.sync += place.eq(block - 1)
        m.next = "LOCATE"

    with m.State("LOCATE"):
        m.d.sync += place.eq(block)
        m.next = "MOVE"
        if config.sector_emulation:
            with m.If((whole.head | whole.tail).any()):
                m.next = "SPAN"

    with m.State("MOVE"):
        first_page = Mux(span.entry == 0, pointer.prp1[PAGE_SHIFT:], page)
        m.next = "CHOOSE"
        with m.If(pointer.hostless):
            with m.If(to_host):
                m.d.sync += [
                    ports.discard.valid.eq(1),
                    *assign(ports.discard.payload, line=line, status=Status.SUCCESS),
                ]
            with m.Else():
                m.d.sync += [ports.zero.valid.eq(1), ports.zero.payload.line.eq(line)]
                if config.sector_emulation:
                    m.d.sync += assign(ports.zero.payload, first=span.first, last=span.last)
        if config.compare_and_deallocate:
            with m.Elif(to_host & pointer.compares):
                m.d.sync += [
                    ports.compare.valid.eq(1),
                    *assign(ports.compare.payload, slot=slot, offset=block, line=line),
                ]
                if config.sector_emulation:
                    m.d.sync += assign(ports.compare.payload, first=span.first, last=span.last)
        with m.Else():
            at_hand.request_move(
                m,
                address=Cat(span.offset, first_page),
                dwords=span.dwords,
                source=span.source,
                last=~span.spans,
            )
            with m.If(span.spans):
                m.next = "MOVE_REST"

    with m.State("MOVE_REST"):
        at_hand.request_move(
            m,
            address=Cat(Const(0, PAGE_SHIFT), page),
            dwords=span.rest,
            source=span.rest_source,
            last=1,
        )
        m.next = "CHOOSE"

    # A block of a command that is not aligned: its first entry may be the one before.
    if config.sector_emulation:
        with m.State("SPAN"):
            m.d.sync += place.eq(span.entry - 1)
            m.next = "AIM"

        with m.State("AIM"):
            m.d.sync += place.eq(span.entry)
            m.next = "MOVE"
