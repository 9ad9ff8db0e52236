"""Moves pages of metadata between lines and drives."""

from functools import reduce
from operator import or_

from amaranth.hdl import Array, Assert, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.flush_request import flush_rounds
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.kit.pick import lowest_bit
from hdl.kit.table import Table


def page_move(config: Config) -> data.StructLayout:
    """A page of the drive at ``port``. ``writes`` says that it goes to the drive."""
    return data.StructLayout(
        {"port": config.port_bits, "writes": 1, "block": BLOCK_NUMBER_BITS}
    )


def line_move(config: Config) -> data.StructLayout:
    """The same with the number of the line that it passes through."""
    return data.StructLayout({"page": page_move(config), "line": range(config.moved_pages)})


def moved_page(config: Config) -> data.StructLayout:
    """The end of that move."""
    return data.StructLayout({"line": range(config.moved_pages), "status": DriveStatus})


class PageMover(wiring.Component):
    """Reads pages from drives into lines, and stores lines on drives.

    A page is stored with Force Unit Access, so that GOOD means that a loss of power does not undo
    it. An operation that the drive aborts, as it does when it restarts, is tried again,
    `flush_rounds` times in all. Each line has one page at a time. Pages of several lines are under
    way beside each other.

    A page takes 6 cycles, and what the drive takes. `hdl.drive.recovery.ladder` bounds that. Every
    3 cycles an operation is sent.

    Parameters
    ----------
    config
        Sizes. There are ``config.moved_pages`` lines.

    Ports
    -----
    first_line
        A level. Line 0 in the line store. The others follow.
    move
        A page, which is always taken. Its line has none. It can be read when it is to be stored.
    moved
        How that ended. If a read ended with GOOD its line can be read.
    gone
        Levels, a bit a line. The drive of the page that is offered, or under way, has been away
        since somebody began to work for it. Another one may be there by now. Nothing more is sent
        to it.
    shuns
        A bit a port. What still waits for this port is for a drive that has been away, and must end
        without being done.
    operation
        Operations of ``Owner.METADATA``. ``index`` is the line's number here.
    finished
        Their ends, which are always taken.
    busy
        Something but the drive, or the user, is being waited for.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "first_line": In(config.line_bits),
                "move": In(stream.Signature(line_move(config))),
                "moved": Out(stream.Signature(moved_page(config))),
                "gone": In(config.moved_pages),
                "shuns": Out(config.ports),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "busy": Out(1),
            }
        )
        lines = range(config.moved_pages)
        self._pages = Table(page_move(config), config.moved_pages)
        # A bit a line. Its operation is to be sent, has been sent, has ended.
        self._waits = Signal(config.moved_pages)
        self._sent = Signal(config.moved_pages)
        self._ended = Signal(config.moved_pages)
        self._ports = Array(Signal(config.port_bits, name=f"port{line}") for line in lines)
        self._rounds = Array(
            Signal(range(flush_rounds(config)), name=f"rounds{line}") for line in lines
        )
        self._status = Array(Signal(DriveStatus, name=f"status{line}") for line in lines)
        self._line = Signal(lines)  # whose operation is sent

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.pages = self._pages
        self._take(m)
        self._tell(m)
        sends = self._send(m)
        self._hear(m)
        shuns = (
            ((sends & (self._line == line)) | self._sent[line]) & self.gone[line]
            for line in range(self._config.moved_pages)
        )
        masks = (Mux(shun, 1 << port, 0) for shun, port in zip(shuns, self._ports, strict=True))
        m.d.comb += self.shuns.eq(reduce(or_, masks))
        return m

    def _take(self, m: Module) -> None:
        """A page is to be moved."""
        given = self.move.payload
        line = given.line
        under_way = self._waits | self._sent | self._ended
        m.d.comb += self.move.ready.eq(1)
        with m.If(self.move.valid):
            m.d.comb += self._pages.store(address=line, data=given.page)
            m.d.sync += [
                Assert(~under_way.bit_select(line, 1), "a line has two pages at once"),
                self._waits.bit_select(line, 1).eq(1),
                self._ports[line].eq(given.page.port),
                self._rounds[line].eq(0),
            ]

    def _tell(self, m: Module) -> None:
        """The ends are told, those of the first lines first."""
        first = lowest_bit(m, self._ended, "first_ended")
        moved = self.moved
        with m.If(~moved.valid | moved.ready):
            m.d.sync += [
                moved.valid.eq(self._ended.any()),
                moved.payload.line.eq(first),
                moved.payload.status.eq(self._status[first]),
            ]
            with m.If(self._ended.any()):
                m.d.sync += self._ended.bit_select(first, 1).eq(0)

    def _send(self, m: Module) -> Value:
        """The states REST to SEND of an operation. Returns whether it is offered."""
        line, page, sent = self._line, self._pages.reads[0].data, self.operation.payload
        m.d.comb += [
            self._pages.reads[0].address.eq(line),
            sent.port.eq(page.port),
            sent.opcode.eq(Mux(page.writes, Opcode.WRITE, Opcode.READ)),
            sent.fua.eq(page.writes),
            sent.alone.eq(1),
            sent.block.eq(page.block),
            sent.owner.eq(Owner.METADATA),
            sent.index.eq(line),
            sent.line.eq(self.first_line + line),
        ]
        waits = self._waits.bit_select(line, 1)
        with m.FSM(name="send_page") as fsm:
            with m.State("REST"):
                m.d.sync += line.eq(lowest_bit(m, self._waits, "first_waiting"))
                with m.If(self._waits.any()):
                    m.next = "READ"

            with m.State("READ"):
                m.next = "SEND"
                with m.If(self.gone.bit_select(line, 1)):
                    m.d.sync += [
                        waits.eq(0),
                        self._ended.bit_select(line, 1).eq(1),
                        self._status[line].eq(DriveStatus.GONE),
                    ]
                    m.next = "REST"

            with m.State("SEND"):
                m.d.comb += self.operation.valid.eq(1)
                with m.If(self.operation.ready):
                    m.d.sync += [waits.eq(0), self._sent.bit_select(line, 1).eq(1)]
                    m.next = "REST"

            rests = (fsm.ongoing("REST") & ~self._waits.any()) | (
                fsm.ongoing("SEND") & ~self.operation.ready
            )
        telling = Mux(self.moved.valid, self.moved.ready, self._ended.any())
        m.d.comb += self.busy.eq(~rests | self.move.valid | self.finished.valid | telling)
        return fsm.ongoing("SEND")

    def _hear(self, m: Module) -> None:
        """An operation has ended. It is sent again, or that is the end of the move."""
        ended = self.finished.payload
        line = ended.index[: len(self._line)]
        sent, rounds = self._sent.bit_select(line, 1), self._rounds[line]
        gone = self.gone.bit_select(line, 1)
        again = (ended.status == DriveStatus.ABORTED) | (ended.status == DriveStatus.UNREACHED)
        m.d.comb += self.finished.ready.eq(1)
        with m.If(self.finished.valid):
            m.d.sync += [
                Assert(sent, "the move of a page has ended twice"),
                sent.eq(0),
                self._status[line].eq(Mux(gone, DriveStatus.GONE, ended.status)),
            ]
            with m.If(again & ~gone & (rounds != flush_rounds(self._config) - 1)):
                m.d.sync += [rounds.eq(rounds + 1), self._waits.bit_select(line, 1).eq(1)]
            with m.Else():
                m.d.sync += self._ended.bit_select(line, 1).eq(1)
