"""Moves a page of metadata between a line and a drive."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.flush_request import flush_rounds
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation


def page_move(config: Config) -> data.StructLayout:
    """A page of the drive at ``port``. ``writes`` says that it goes to the drive."""
    return data.StructLayout(
        {
            "port": config.port_bits,
            "writes": 1,
            "block": BLOCK_NUMBER_BITS,
            "line": config.line_bits,
        }
    )


class PageMover(wiring.Component):
    """Reads a page from a drive into a line, or stores a line on a drive.

    A page is stored with Force Unit Access, so that GOOD means that a loss of power does not undo
    it. An operation that the drive aborts, as it does when it restarts, is tried again,
    `flush_rounds` times in all. There is one at a time.

    A page takes 4 cycles, and what the drive takes. `hdl.drive.recovery.ladder` bounds that.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    move
        A page. Its line can be read when it is to be stored.
    moved
        How that ended. If a read ended with GOOD its line can be read.
    gone
        A level. The drive of the page at hand, or of the one that is offered, has been away since
        somebody began to work for it. Another one may be there by now. Nothing more is sent to it.
    shuns
        A bit a port. What still waits for this port is for a drive that has been away, and must end
        without being done.
    operation
        Operations of ``Owner.METADATA``.
    finished
        Their ends, which are always taken.
    busy
        Something but the drive, or the user, is being waited for.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "move": In(stream.Signature(page_move(config))),
                "moved": Out(stream.Signature(DriveStatus)),
                "gone": In(1),
                "shuns": Out(config.ports),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config, sent, ended = self._config, self.operation.payload, self.finished
        m = Module()
        move = Signal(page_move(config))
        rounds = Signal(range(flush_rounds(config)))
        m.d.comb += [
            ended.ready.eq(1),
            sent.port.eq(move.port),
            sent.opcode.eq(Mux(move.writes, Opcode.WRITE, Opcode.READ)),
            sent.fua.eq(move.writes),
            sent.alone.eq(1),
            sent.block.eq(move.block),
            sent.owner.eq(Owner.METADATA),
            sent.line.eq(move.line),
        ]
        with m.FSM(name="move_page") as fsm:
            with m.State("REST"):
                m.d.comb += self.move.ready.eq(1)
                m.d.sync += [move.eq(self.move.payload), rounds.eq(0)]
                m.d.sync += self.moved.payload.eq(DriveStatus.GONE)
                with m.If(self.move.valid):
                    m.next = "SEND"
                    with m.If(self.gone):
                        m.next = "TELL"

            with m.State("SEND"):
                m.d.comb += self.operation.valid.eq(1)
                with m.If(self.operation.ready):
                    m.next = "LISTEN"

            with m.State("LISTEN"):
                status = ended.payload.status
                m.d.sync += self.moved.payload.eq(status)
                with m.If(ended.valid):
                    m.next = "TELL"
                    again = (status == DriveStatus.ABORTED) | (status == DriveStatus.UNREACHED)
                    with m.If(self.gone):
                        m.d.sync += self.moved.payload.eq(DriveStatus.GONE)
                    with m.Elif(again & (rounds != flush_rounds(config) - 1)):
                        m.d.sync += rounds.eq(rounds + 1)
                        m.next = "SEND"

            with m.State("TELL"):
                m.d.comb += self.moved.valid.eq(1)
                with m.If(self.moved.ready):
                    m.next = "REST"

            asked = fsm.ongoing("SEND") | fsm.ongoing("LISTEN")
            m.d.comb += self.shuns.eq(Mux(self.gone & asked, 1 << move.port, 0))
            waits = (
                (fsm.ongoing("REST") & ~self.move.valid)
                | (fsm.ongoing("SEND") & ~self.operation.ready)
                | (fsm.ongoing("LISTEN") & ~ended.valid)
                | (fsm.ongoing("TELL") & ~self.moved.ready)
            )
        m.d.comb += self.busy.eq(~waits)
        return m
