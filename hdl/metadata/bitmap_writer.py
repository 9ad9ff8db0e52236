"""Writes the write-intent bitmaps of arrays on their members, each for itself."""

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import DWORDS_PER_BLOCK, LINE_WRITERS, MAX_DRIVES, Config
from hdl.flow.drive_states import DriveStates
from hdl.flow.flush_request import flush_rounds
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.line import write_port
from hdl.flow.marks import WORD_BITS, word_number_bits
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.flow.table_read import geometry_read, member_read
from hdl.kit.pick import lowest_bit
from hdl.memory.store import write_delay
from hdl.metadata.bitmap import BLOCK, BitmapWord, head_words
from hdl.metadata.records import record, record_read
from hdl.metadata.words import NUMBER_BITS, WordWriter

ROLE_BITS = (MAX_DRIVES - 1).bit_length()


class BitmapWriter(wiring.Component):
    """Stores the bitmap of an array on all its live members at once.

    All members of an array have the same page. So it is made once, in a line of the array's own,
    and goes to all of them. Arrays have pages under way beside each other: one whose drive hangs
    holds up no other.

    If a drive aborts the write, as it does when it restarts, the page goes to all members again,
    `flush_rounds` times in all. A drive that does not store it is failed, unless its array needs
    it. A member that fails on the way is not waited for longer than its operation takes.

    A page takes 1,100 cycles the first time, and then 80 and one for each word of bits, 6 more a
    member, and what the drives take.

    Parameters
    ----------
    config
        Sizes, with `Config.durable_marks`.

    Ports
    -----
    page, words
        Those of `hdl.metadata.stored_marks.StoredMarks`.
    stored
        The page of this array has been written on all members that are left.
    geometry_read, member_read
        Tables of the arrays and of the members.
    record_read
        What superblocks say (`hdl.metadata.keeper.Keeper`).
    drives
        What the tables know of the drives.
    essential, settled
        As for `hdl.metadata.keeper.Keeper`.
    first_line
        A level. The line of array 0. Those of the other arrays follow.
    line_write
        A port of the line store.
    operation
        Operations of ``Owner.METADATA``. ``place`` is 1 and ``index`` the array.
    finished
        Their ends, which are always taken.
    fail
        Ports whose drive does not store it.
    writing
        One bit per port. Its drive is being written.
    busy
        It works, and does not wait for anybody.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "page": In(stream.Signature(config.array_bits)),
                "words": In(stream.Signature(WORD_BITS)),
                "stored": Out(stream.Signature(config.array_bits)),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "record_read": Out(record_read(config)),
                "drives": In(DriveStates()),
                "essential": In(MAX_DRIVES),
                "settled": In(1),
                "first_line": In(config.line_bits),
                "line_write": Out(write_port(config)),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "fail": Out(stream.Signature(config.port_bits)),
                "writing": Out(MAX_DRIVES),
                "busy": Out(1),
            }
        )
        self._words = WordWriter(config=config)
        # Of each array: operations that are out, and how often its page has been sent. A bit an
        # array: all operations have been sent; the page must be sent again; its line has zeros
        # after the bits.
        counts, tries = range(config.ports + 1), range(flush_rounds(config))
        self._out = Array(Signal(counts, name=f"out{n}") for n in range(config.arrays))
        self._tries = Array(Signal(tries, name=f"tries{n}") for n in range(config.arrays))
        self._sent = Signal(config.arrays)
        self._again = Signal(config.arrays)
        self._clean = Signal(config.arrays)
        self._refused = Signal(MAX_DRIVES)  # a bit a port: its drive has not stored the page

        # The array at hand, the word of its page, and its member.
        self._array = Signal(config.array_bits)
        self._geometry = Signal(geometry(config))
        self._record = Signal(record())
        self._number = Signal(NUMBER_BITS)
        self._role = Signal(WIDTH_BITS)
        self._port = Signal(config.port_bits)
        self._begins = Signal()  # its page is made

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.words = self._words
        connect(m, self._words.line_write, flipped(self.line_write))
        self._ended = Cat(
            sent & (out == 0) for sent, out in zip(self._sent, self._out, strict=True)
        )
        self._connect(m)
        self._count(m)
        head = head_words(m, self._config, self._record.set_uuid, self._geometry)
        with m.FSM(name="write_bitmap") as fsm:
            self._rest(m)
            self._load(m)
            self._make(m, head)
            self._send(m)
            self._give_up(m)
            waits = (
                (fsm.ongoing("REST") & ~self.page.valid & ~self._ended.any())
                | (fsm.ongoing("SEND") & ~self.operation.ready)
                | (fsm.ongoing("SETTLED") & ~self.settled)
                | (fsm.ongoing("FAIL") & ~self.fail.ready)
                | (fsm.ongoing("TELL") & ~self.stored.ready)
            )
        m.d.comb += self.busy.eq(~waits | self.finished.valid)
        return m

    def _connect(self, m: Module) -> None:
        """What is read, and what is sent."""
        array, sent = self._array, self.operation.payload
        m.d.comb += [
            self.geometry_read.address.eq(array),
            self.record_read.address.eq(array),
            self.member_read.address.eq(Cat(self._role[:ROLE_BITS], array)),
            self._words.line.eq(self.first_line + array),
            self.finished.ready.eq(1),
            self.stored.payload.eq(array),
            self.fail.payload.eq(self._port),
            sent.port.eq(self._port),
            sent.opcode.eq(Opcode.WRITE),
            sent.fua.eq(1),
            sent.alone.eq(1),
            sent.block.eq(BLOCK),
            sent.owner.eq(Owner.METADATA),
            sent.index.eq(array),
            sent.place.eq(1),
            sent.line.eq(self.first_line + array),
        ]

    def _count(self, m: Module) -> None:
        """Operations that are sent and that end, of any array."""
        ended, sends = self.finished.payload, self.operation.valid & self.operation.ready
        array = ended.index[: self._config.array_bits]
        own = self.writing.bit_select(ended.port, 1)
        refused = self._refused.bit_select(ended.port, 1)
        for number, out in enumerate(self._out):
            more = sends & (self._array == number)
            less = self.finished.valid & (array == number)
            m.d.sync += out.eq(out + more - less)
        with m.If(self.finished.valid):
            m.d.sync += [Assert(own, "the write of a bitmap has ended twice"), own.eq(0)]
            with m.Switch(ended.status):
                with m.Case(DriveStatus.GOOD, DriveStatus.GONE):
                    pass
                with m.Case(DriveStatus.ABORTED, DriveStatus.UNREACHED):
                    m.d.sync += [refused.eq(1), self._again.bit_select(array, 1).eq(1)]
                with m.Default():
                    m.d.sync += refused.eq(1)
        with m.If(sends):
            m.d.sync += [
                self.writing.bit_select(self._port, 1).eq(1),
                self._refused.bit_select(self._port, 1).eq(0),
            ]

    def _rest(self, m: Module) -> None:
        """The state REST: the page of an array has been written, or is to be made."""
        first = lowest_bit(m, self._ended, "first_ended")
        with m.State("REST"):
            m.d.comb += self.page.ready.eq(~self._ended.any())
            m.d.sync += [
                self._begins.eq(~self._ended.any()),
                self._array.eq(Mux(self._ended.any(), first, self.page.payload)),
                self._number.eq(0),
                self._role.eq(0),
            ]
            with m.If(self._ended.any() | self.page.valid):
                m.next = "LOAD"

    def _load(self, m: Module) -> None:
        """The states LOAD and LOADED: what the array is, and what comes next."""
        array = self._array
        tries, again = self._tries[array], self._again.bit_select(array, 1)
        last = tries == flush_rounds(self._config) - 1
        with m.State("LOAD"):
            m.next = "LOADED"

        with m.State("LOADED"):
            m.d.sync += [
                self._geometry.eq(self.geometry_read.data),
                self._record.eq(self.record_read.data),
                self._sent.bit_select(array, 1).eq(0),
                again.eq(0),
                tries.eq(Mux(self._begins, 0, tries + 1)),
            ]
            m.next = "SETTLED"
            with m.If(self._begins):
                m.next = "MAKE"
            with m.Elif(~self.geometry_read.data.valid):
                m.next = "TELL"
            with m.Elif(again & ~last):
                m.next = "ASK"

    def _make(self, m: Module, head: dict) -> None:
        """The states MAKE and STORE, of a word of the page, and SETTLE."""
        number, array = self._number, self._array
        words = 1 << word_number_bits(self._config)
        end = BitmapWord.BITS + words
        word, is_bits = Signal(WORD_BITS), Signal()
        clean = self._clean.bit_select(array, 1)
        last = Mux(clean, end - 1, DWORDS_PER_BLOCK - 1)
        settled = Signal(range(write_delay(LINE_WRITERS) + 1))
        given = self._words.words
        m.d.comb += [
            is_bits.eq((number >= BitmapWord.BITS) & (number < end)),
            given.payload.number.eq(number),
            given.payload.word.eq(word),
        ]
        with m.State("MAKE"):
            m.d.sync += word.eq(0)
            m.next = "STORE"
            with m.If(is_bits):
                m.d.comb += self.words.ready.eq(1)
                m.d.sync += word.eq(self.words.payload)
                with m.If(~self.words.valid):
                    m.next = "MAKE"
            with m.Switch(number):
                for place, value in head.items():
                    with m.Case(place):
                        m.d.sync += word.eq(value)

        with m.State("STORE"):
            m.d.comb += given.valid.eq(1)
            m.d.sync += settled.eq(0)
            with m.If(given.ready):
                m.d.sync += number.eq(number + 1)
                m.next = "MAKE"
                with m.If(number == last):
                    m.d.sync += clean.eq(1)
                    m.next = "SETTLE"

        with m.State("SETTLE"):
            m.d.sync += settled.eq(settled + 1)
            with m.If(settled == write_delay(LINE_WRITERS)):
                m.next = "ASK"
                with m.If(~self._geometry.valid):
                    m.next = "TELL"

    def _send(self, m: Module) -> None:
        """The states ASK to SEND, of a member. The array may be deleted meanwhile, or the member
        leave."""
        drives = self.drives
        stays = self.geometry_read.data.valid & drives.used.bit_select(self._port, 1)
        failed = drives.failed.bit_select(self._port, 1) | ~stays
        with m.State("ASK"):
            m.next = "NOTE"

        with m.State("NOTE"):
            m.d.sync += self._port.eq(self.member_read.data)
            m.next = "SEND"

        with m.State("SEND"):
            free = ~self.writing.bit_select(self._port, 1)
            m.d.comb += self.operation.valid.eq(~failed & free)
            with m.If(failed | (free & self.operation.ready)):
                m.d.sync += self._role.eq(self._role + 1)
                m.next = "ASK"
                with m.If(self._is_last):
                    m.d.sync += self._sent.bit_select(self._array, 1).eq(1)
                    m.next = "REST"

    @property
    def _is_last(self) -> Value:
        """The member at hand is the last one."""
        return self._role == self._geometry.width * self._geometry.spans - 1

    def _give_up(self, m: Module) -> None:
        """The states SETTLED to FAIL, of a member that may have refused the page, and TELL."""
        port = self._port
        refused = self._refused.bit_select(port, 1)
        with m.State("SETTLED"):
            with m.If(self.settled):
                m.next = "LOOK"

        with m.State("LOOK"):
            m.d.sync += port.eq(self.member_read.data)
            m.next = "JUDGE"

        with m.State("JUDGE"):
            needed = self.essential.bit_select(port, 1) | self.drives.failed.bit_select(port, 1)
            m.next = "NEXT"
            with m.If(refused & ~needed):
                m.next = "FAIL"

        with m.State("FAIL"):
            m.d.comb += self.fail.valid.eq(1)
            with m.If(self.fail.ready):
                m.next = "NEXT"

        with m.State("NEXT"):
            m.d.sync += self._role.eq(self._role + 1)
            m.next = "SETTLED"
            with m.If(self._is_last):
                m.next = "TELL"

        with m.State("TELL"):
            m.d.comb += self.stored.valid.eq(1)
            with m.If(self.stored.ready):
                m.next = "REST"
