"""Writes the blocks of the redo record to their drives when power comes."""

from functools import reduce
from operator import or_

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import (
    BLOCK_NUMBER_BITS,
    DWORDS_PER_BLOCK,
    LIST_RECORDS,
    MAX_DRIVES,
    REPLAY_LINES,
    Config,
)
from hdl.flow.line import ReadPort
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.kit.pick import lowest_bit
from hdl.kit.table import Table
from hdl.metadata.superblock import WORD_BITS, kept_address, kept_read
from hdl.metadata.volume_list import CRC
from hdl.metadata.words import NUMBER_BITS, WordReader
from hdl.redo.page_writer import TRIES
from hdl.redo.record import (
    CRC_WORD,
    FIRST_LIST,
    HEAD_BLOCK,
    MAGIC,
    MEMBER_WORDS,
    NAMED,
    RECORD_WORDS,
    VERSION,
    HeadWord,
    RecordWord,
)

RECORDS_BITS = 16


def destination(config: Config) -> data.StructLayout:
    """The drive that was at a port as the record was saved is at ``port`` now, if ``there``."""
    return data.StructLayout({"there": 1, "port": config.port_bits})


def saved_block(config: Config) -> data.StructLayout:
    """A block of the record: where it belongs, by the port of then or of now, and its CRC."""
    return data.StructLayout(
        {
            "block": BLOCK_NUMBER_BITS,
            "port": config.port_bits,
            "array": config.array_bits,
            "sum": WORD_BITS,
        }
    )


class Replay(wiring.Component):
    """Reads the head of the record, finds its drives, and writes the blocks that are listed.

    A drive is found at whatever port it is now, by what its superblock says. If its array has been
    brought up since, its events have grown, and nothing is written to it. What belongs to a drive
    that is not there is passed over: the others have what it takes to work it out.

    A drive is ``covered`` if its superblock was known as the record was saved, if all that was
    written to its array is stored, or was on its way, and if all that was on its way to it and to
    the other drives of its array that are there has been stored now. It is so until it goes, or is
    used. What is not as its CRC says is never written.

    A block is written with Force Unit Access, so that it is stored whatever happens then. The
    record stays as it is: if the power goes, all is done once more. If a drive restarts meanwhile,
    all is done again as well, `TRIES` times at most.

    The head takes 3,000 cycles and 14 for each pair of a member and a port. A list takes 1,700
    cycles, a block as many. `REPLAY_LINES` blocks are under way at once.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    begins
        A level, which stays: it is known of each drive what it holds, and the flash is there.
    gives_up
        A level, which stays: there is no flash.
    known
        One bit per port. What its drive holds is known.
    used
        One bit per port. Its drive is one of an array.
    kept_read
        What is kept of superblocks.
    page_line
        A level. A line that nobody else uses. So are the first `REPLAY_LINES`, meanwhile.
    line_read
        A port of the line store.
    operation, finished
        Operations of ``Owner.METADATA``, and their ends, which are always taken.
    shuns
        One bit per port. What still waits for this port is for a drive that has been away, and must
        end without being done.
    covered
        One bit per port.
    done
        A level. All has been written, or there is nothing.
    busy
        It works, and does not wait for a drive.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "begins": In(1),
                "gives_up": In(1),
                "known": In(config.ports),
                "used": In(config.ports),
                "kept_read": Out(kept_read(config)),
                "page_line": In(config.line_bits),
                "line_read": Out(ReadPort(config)),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "shuns": Out(config.ports),
                "covered": Out(config.ports),
                "done": Out(1),
                "busy": Out(1),
            }
        )
        slots = range(REPLAY_LINES)
        ports = range(config.ports)
        self._reader = WordReader(config=config, words=DWORDS_PER_BLOCK)
        self._crc = CRC.create()
        self._sums = Table(WORD_BITS, max(2, config.backup_lists))
        self._listed = Table(saved_block(config), LIST_RECORDS + 1)
        self._drives = Table(destination(config), MAX_DRIVES)
        self._blocks = Table(saved_block(config), REPLAY_LINES)
        self._tries = Signal(range(TRIES))
        # The page that is read: it is the head, it was not given, it is not as it should be.
        self._is_head = Signal()
        self._page_out = Signal()
        self._unread = Signal()
        self._wrong = Signal()
        self._number = Signal(NUMBER_BITS)
        self._records = Signal(RECORDS_BITS)
        self._lists = Signal(RECORDS_BITS)
        # The member at hand, the ports whose drive it may be, and the one that is compared.
        self._matches = Signal(config.ports)
        self._compared = Signal(config.port_bits)
        self._trusted = Signal()
        self._array = Signal(config.array_bits)
        # Of each port now: its drive has been found, and its array was trusted; that array; it has
        # been away since. Arrays of which something was not written.
        self._found = Signal(config.ports)
        self._arrays = Array(Signal(config.array_bits, name=f"array{port}") for port in ports)
        self._away = Signal(config.ports)
        self._spoilt = Signal(config.arrays)
        self._again = Signal()
        # The list at hand, how many blocks it names, and the one at hand: in it, and in all.
        self._list = Signal(RECORDS_BITS)
        self._count = Signal(range(LIST_RECORDS + 1))
        self._entry = Signal(range(LIST_RECORDS + 1))
        self._next = Signal(RECORDS_BITS)
        self._made = Signal(saved_block(config))  # of the words of an entry
        # Bits of lines: it is in use; it is being read; it can be looked at; it is being written.
        # The array of each, and the one at hand.
        self._in_use = Signal(REPLAY_LINES)
        self._reads = Signal(REPLAY_LINES)
        self._arrived = Signal(REPLAY_LINES)
        self._line = Signal(config.replay_bits)
        self._owners = Array(Signal(config.array_bits, name=f"owner{slot}") for slot in slots)
        self._ports = Array(Signal(config.port_bits, name=f"port{slot}") for slot in slots)
        self._writes = Signal(REPLAY_LINES)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.reader = self._reader
        m.submodules.crc = self._crc
        m.submodules.sums = self._sums
        m.submodules.listed = self._listed
        m.submodules.drives = self._drives
        m.submodules.blocks = self._blocks
        self._connect(m)
        self._watch(m)
        self._hear(m)
        with m.FSM(name="replay") as fsm:
            self._rest(m)
            self._read_page(m)
            self._compare(m)
            self._end_page(m)
            self._start(m)
            self._check(m)
            self._end(m)
            waits = (
                (fsm.ongoing("REST") & ~(self.begins | self.gives_up))
                | (self.operation.valid & ~self.operation.ready)
                | fsm.ongoing("LISTEN")
                | fsm.ongoing("PARSE")
                | fsm.ongoing("SUM")
                | (fsm.ongoing("TURN") & ~self._can_go_on)
                | fsm.ongoing("DONE")
            )
            m.d.comb += self.done.eq(fsm.ongoing("DONE"))
        m.d.comb += self.busy.eq(~waits | self.finished.valid | self._reader.busy)
        return m

    def _connect(self, m: Module) -> None:
        """What is read and sent, and what is true at any time."""
        config, sent, number = self._config, self.operation.payload, self._number
        connect(m, self._reader.line_read, flipped(self.line_read))
        m.d.comb += [
            self._crc.data.eq(self._reader.words.payload),
            self._crc.valid.eq(self._reader.words.valid & self._reader.words.ready),
            self._reader.line.payload.eq(Mux(self._page_out, self.page_line, self._line)),
            self.finished.ready.eq(1),
            sent.port.eq(config.backup_port),
            sent.opcode.eq(Opcode.READ),
            sent.alone.eq(1),
            sent.block.eq(Mux(self._is_head, HEAD_BLOCK, FIRST_LIST + self._list)),
            sent.owner.eq(Owner.METADATA),
            sent.place.eq(1 << 1),
            sent.index.eq(self._line),
            sent.line.eq(Mux(self._page_out, self.page_line, self._line)),
            self._sums.write.address.eq(number - HeadWord.SUMS),
            self._sums.write.data.eq(self._reader.words.payload),
            self._sums.reads[0].address.eq(self._list),
            self._listed.reads[0].address.eq(self._entry),
            self._drives.reads[0].address.eq(self._listed.reads[0].data.port),
            self._blocks.reads[0].address.eq(self._line),
        ]

    def _watch(self, m: Module) -> None:
        """Drives that go, and those that are covered."""
        covered = (
            self._found[port] & ~self._spoilt.bit_select(array, 1) & ~self._away[port]
            for port, array in enumerate(self._arrays)
        )
        m.d.sync += self._away.eq(self._away | ~self.known | Mux(self.done, self.used, 0))
        m.d.comb += self.covered.eq(Mux(self.done, Cat(*covered), 0))
        targets = (
            Mux(self._writes[slot], 1 << port, 0) for slot, port in enumerate(self._ports)
        )
        m.d.comb += self.shuns.eq(reduce(or_, targets) & self._away)

    def _hear(self, m: Module) -> None:
        """Operations end."""
        ended = self.finished.payload
        line = ended.index[: self._config.replay_bits]
        good = ended.status == DriveStatus.GOOD
        reads, writes = self._reads.bit_select(line, 1), self._writes.bit_select(line, 1)
        again = (ended.status == DriveStatus.ABORTED) | (ended.status == DriveStatus.UNREACHED)
        with m.If(self.finished.valid & ~self._page_out):
            m.d.sync += [reads.eq(0), writes.eq(0)]
            with m.If(reads & good):
                m.d.sync += self._arrived.bit_select(line, 1).eq(1)
            with m.Else():
                m.d.sync += self._in_use.bit_select(line, 1).eq(0)
            with m.If(~good):
                m.d.sync += self._spoilt.bit_select(self._owners[line], 1).eq(1)
        with m.If(self.finished.valid & ~good & again):
            m.d.sync += self._again.eq(1)

    def _rest(self, m: Module) -> None:
        """The states REST and BEGIN: the record is to be looked at."""
        with m.State("REST"):
            with m.If(self.gives_up):
                m.next = "DONE"
            with m.Elif(self.begins):
                m.next = "BEGIN"

        with m.State("BEGIN"):
            m.d.sync += [
                self._is_head.eq(1),
                self._list.eq(0),
                self._next.eq(0),
                self._records.eq(0),
                self._lists.eq(0),
                self._found.eq(0),
                self._away.eq(0),
                self._spoilt.eq(0),
                self._again.eq(0),
            ]
            m.next = "ASK"

    def _read_page(self, m: Module) -> None:
        """The states ASK to PARSE: the head, or a list, is read, and its words are looked at."""
        config, words, number = self._config, self._reader.words, self._number
        word = words.payload
        member = number - HeadWord.MEMBERS
        place = member[: MEMBER_WORDS.bit_length() - 1]
        is_member = (number >= HeadWord.MEMBERS) & (number < HeadWord.END)
        is_sum = (number >= HeadWord.SUMS) & (number < HeadWord.SUMS + config.backup_lists)
        with m.State("ASK"):
            m.d.comb += [self.operation.valid.eq(1), self._crc.start.eq(1)]
            m.d.sync += [
                self._page_out.eq(1),
                number.eq(0),
                self._wrong.eq(0),
                self._entry.eq(0),
                self._count.eq(0),
            ]
            m.d.comb += self.operation.payload.line.eq(self.page_line)
            with m.If(self.operation.ready):
                m.next = "LISTEN"

        with m.State("LISTEN"):
            with m.If(self.finished.valid):
                m.next = "READ"
                with m.If(self.finished.payload.status != DriveStatus.GOOD):
                    m.d.sync += self._wrong.eq(1)
                    m.next = "END-PAGE"

        with m.State("READ"):
            m.d.comb += self._reader.line.valid.eq(1)
            with m.If(self._reader.line.ready):
                m.next = "PARSE"

        with m.State("PARSE"):
            compares = self._is_head & is_member & (place != 0) & self._matches.any()
            m.d.comb += words.ready.eq(~compares)
            m.d.sync += self._compared.eq(0)
            with m.If(words.valid & compares):
                m.next = "ASK-KEPT"
            with m.Elif(words.valid):
                m.d.sync += number.eq(number + 1)
                with m.If(self._is_head):
                    self._parse_head(m, word, is_sum, is_member, place)
                with m.Else():
                    self._parse_list(m, word)
                with m.If(number == CRC_WORD):
                    m.next = "ADD-UP"

    def _parse_head(
        self, m: Module, word: Value, is_sum: Value, is_member: Value, place: Value
    ) -> None:
        """In a state: a word of the head."""
        with m.Switch(self._number):
            with m.Case(HeadWord.MAGIC):
                with m.If(word != MAGIC):
                    m.d.sync += self._wrong.eq(1)
            with m.Case(HeadWord.VERSION):
                with m.If(word != VERSION):
                    m.d.sync += self._wrong.eq(1)
            with m.Case(HeadWord.RECORDS):
                m.d.sync += self._records.eq(word)
                with m.If(word > self._config.backup_blocks - self._config.backup_overhead):
                    m.d.sync += self._wrong.eq(1)
            with m.Case(HeadWord.LISTS):
                m.d.sync += self._lists.eq(word)
                with m.If(word > self._config.backup_lists):
                    m.d.sync += self._wrong.eq(1)
        with m.If(is_sum):
            m.d.comb += self._sums.write.enable.eq(1)
        with m.If(is_member):
            with m.If(place == 0):
                m.d.sync += [
                    self._matches.eq(Mux(word[0], self.known & ~self._away, 0)),
                    self._trusted.eq(word[1]),
                    self._array.eq(word[8:16]),
                ]
            with m.If(place == MEMBER_WORDS - 1):
                self._note_member(m)

    def _note_member(self, m: Module) -> None:
        """In a state: the drive at hand is nowhere, or all of its words have been compared."""
        member = self._number - HeadWord.MEMBERS
        port = member[MEMBER_WORDS.bit_length() - 1 :][: self._config.port_bits]
        m.d.comb += self._drives.store(address=port, there=0)

    def _compare(self, m: Module) -> None:
        """The states ASK-KEPT and MATCH, in turn for each port: whether its drive is the member at
        hand, as far as the word at hand says."""
        member = self._number - HeadWord.MEMBERS
        place = member[: MEMBER_WORDS.bit_length() - 1]
        port = member[len(place) :][: self._config.port_bits]
        words, compared = self._reader.words, self._compared
        last = compared == self._config.ports - 1
        with m.State("ASK-KEPT"):
            named = Array((0, *NAMED))[place]
            m.d.comb += self.kept_read.address.eq(kept_address(compared, named))
            m.next = "MATCH"

        with m.State("MATCH"):
            own = self._matches.bit_select(compared, 1)
            with m.If(self.kept_read.data != words.payload):
                m.d.sync += own.eq(0)
            m.d.sync += compared.eq(compared + 1)
            m.next = "ASK-KEPT"
            with m.If(last):
                m.next = "MATCHED"

        with m.State("MATCHED"):
            first = lowest_bit(m, self._matches, "first_match")
            m.d.comb += words.ready.eq(1)
            m.d.sync += self._number.eq(self._number + 1)
            m.next = "PARSE"
            with m.If(place == MEMBER_WORDS - 1):
                m.d.comb += self._drives.store(
                    address=port, there=self._matches.any(), port=first
                )
                with m.If(self._matches.any()):
                    m.d.sync += [
                        self._found.bit_select(first, 1).eq(self._trusted),
                        self._arrays[first].eq(self._array),
                    ]

    def _parse_list(self, m: Module, word: Value) -> None:
        """In a state: a word of a list. Each entry is kept once its last word has come."""
        number, made = self._number, self._made
        part = number[: RECORD_WORDS.bit_length() - 1]
        with m.Switch(part):
            with m.Case(RecordWord.BLOCK):
                m.d.sync += made.block[:WORD_BITS].eq(word)
            with m.Case(RecordWord.PLACE):
                m.d.sync += [
                    made.block[WORD_BITS:].eq(word[:8]),
                    made.port.eq(word[8:16]),
                    made.array.eq(word[16:24]),
                ]
            with m.Case(RecordWord.SUM):
                m.d.sync += made.sum.eq(word)
            with m.Case(RecordWord.RESERVED):
                m.d.comb += self._listed.store(address=number[len(part) :], data=made)
        with m.If(number == CRC_WORD):
            with m.If(word != self._sums.reads[0].data):
                m.d.sync += self._wrong.eq(1)

    def _end_page(self, m: Module) -> None:
        """The states ADD-UP to NEXT-LIST: the page counts, or it does not."""
        ends, left = self._next >= self._records, self._records - self._next
        with m.State("ADD-UP"):
            with m.If(~self._crc.match_detected):
                m.d.sync += self._wrong.eq(1)
            m.next = "END-PAGE"

        with m.State("END-PAGE"):
            m.d.sync += [self._page_out.eq(0), self._is_head.eq(0)]
            m.next = "ASK-ENTRY"
            with m.If(self._is_head):
                m.next = "NEXT-LIST"
                with m.If(self._wrong):
                    m.d.sync += [self._records.eq(0), self._lists.eq(0), self._found.eq(0)]
            with m.Else():
                m.d.sync += [
                    self._list.eq(self._list + 1),
                    self._count.eq(
                        Mux(ends, 0, Mux(left > LIST_RECORDS, LIST_RECORDS, left))
                    ),
                ]
                # Nobody knows whose blocks these were.
                with m.If(self._wrong):
                    m.d.sync += [
                        self._count.eq(0),
                        self._spoilt.eq(-1),
                        self._next.eq(self._next + LIST_RECORDS),
                    ]
                    m.next = "NEXT-LIST"

        with m.State("NEXT-LIST"):
            m.next = "ASK"
            with m.If(self._list == self._lists):
                m.next = "END"
                # Blocks that no list names.
                with m.If(self._next < self._records):
                    m.d.sync += self._spoilt.eq(-1)

    @property
    def _has_entries(self) -> Value:
        """Blocks of the list at hand have not been begun."""
        return self._entry != self._count

    @property
    def _can_go_on(self) -> Value:
        """A block can be begun, or looked at, or the list is at its end."""
        begins = self._has_entries & ~self._in_use.all()
        return self._arrived.any() | begins | ~(self._has_entries | self._in_use.any())

    def _start(self, m: Module) -> None:
        """The states ASK-ENTRY to TURN: the next block of the list is read, if its drive is
        there."""
        listed, drive = self._listed.reads[0].data, self._drives.reads[0].data
        free = lowest_bit(m, ~self._in_use, "free_line")
        goes_on = [self._entry.eq(self._entry + 1), self._next.eq(self._next + 1)]
        with m.State("ASK-ENTRY"):
            m.next = "FIND-DRIVE"

        with m.State("FIND-DRIVE"):
            m.d.sync += self._line.eq(free)
            m.next = "LOOK"

        with m.State("LOOK"):
            m.next = "START"
            with m.If(~self._has_entries):
                m.next = "TURN"
            with m.Elif(~drive.there | self._away.bit_select(drive.port, 1)):
                m.d.sync += goes_on
                m.next = "ASK-ENTRY"

        with m.State("START"):
            line = self._line
            m.d.comb += [
                self.operation.valid.eq(1),
                self.operation.payload.block.eq(self._config.backup_overhead + self._next),
            ]
            with m.If(self.operation.ready):
                m.d.comb += self._blocks.store(address=line, data=listed, port=drive.port)
                m.d.sync += [
                    self._in_use.bit_select(line, 1).eq(1),
                    self._reads.bit_select(line, 1).eq(1),
                    self._owners[line].eq(listed.array),
                    self._ports[line].eq(drive.port),
                    *goes_on,
                ]
                m.next = "TURN"

        with m.State("TURN"):
            arrived = lowest_bit(m, self._arrived, "first_arrived")
            with m.If(self._arrived.any()):
                m.d.sync += [self._line.eq(arrived), self._number.eq(0)]
                m.next = "CHECK"
            with m.Elif(self._has_entries & ~self._in_use.all()):
                m.next = "ASK-ENTRY"
            with m.Elif(~self._has_entries & ~self._in_use.any()):
                m.next = "NEXT-LIST"

    def _check(self, m: Module) -> None:
        """The states CHECK to WRITE: a block that has been read goes to its drive, if it is what
        was saved, and the drive is still there."""
        line, block, words = self._line, self._blocks.reads[0].data, self._reader.words
        away = self._away.bit_select(block.port, 1)
        with m.State("CHECK"):
            m.d.comb += [self._reader.line.valid.eq(1), self._crc.start.eq(1)]
            with m.If(self._reader.line.ready):
                m.d.sync += self._arrived.bit_select(line, 1).eq(0)
                m.next = "SUM"

        with m.State("SUM"):
            m.d.comb += words.ready.eq(1)
            with m.If(words.valid):
                m.d.sync += self._number.eq(self._number + 1)
                with m.If(self._number.all()):
                    m.next = "WEIGH"

        with m.State("WEIGH"):
            m.next = "WRITE"
            with m.If((self._crc.crc != block.sum) | away):
                m.d.sync += [
                    self._in_use.bit_select(line, 1).eq(0),
                    self._spoilt.bit_select(block.array, 1).eq(1),
                ]
                m.next = "TURN"

        with m.State("WRITE"):
            sent = self.operation.payload
            m.d.comb += [
                self.operation.valid.eq(1),
                sent.opcode.eq(Opcode.WRITE),
                sent.fua.eq(1),
                sent.port.eq(block.port),
                sent.block.eq(block.block),
            ]
            with m.If(self.operation.ready):
                m.d.sync += self._writes.bit_select(line, 1).eq(1)
                m.next = "TURN"

    def _end(self, m: Module) -> None:
        """The states END and DONE."""
        with m.State("END"):
            m.next = "DONE"
            with m.If(self._again & (self._tries != TRIES - 1)):
                m.d.sync += self._tries.eq(self._tries + 1)
                m.next = "BEGIN"

        with m.State("DONE"):
            pass
