"""Writes the list of an array's volumes."""

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import DWORDS_PER_BLOCK, LINE_WRITERS, Config
from hdl.flow.operation import DriveStatus
from hdl.flow.table_read import volume, volume_read
from hdl.flow.volume_facts import COUNT_BITS, volume_facts, volume_facts_read
from hdl.memory.store import write_delay
from hdl.metadata.page_mover import page_move
from hdl.metadata.superblock import WORD_BITS
from hdl.metadata.superblock_facts import EVENT_BITS, UUID_BITS
from hdl.metadata.volume_list import (
    BLOCK,
    CRC,
    ENTRY_WORDS,
    HIGH_BITS,
    MAGIC,
    VERSION,
    EntryWord,
    ListWord,
)
from hdl.metadata.words import NUMBER_BITS, PageWord
from hdl.nvme.admin.names import IDENTITY_BITS


def list_edit(config: Config) -> data.StructLayout:
    """The list of ``array``, for copy ``copy`` of the drive at ``port``."""
    return data.StructLayout({"port": config.port_bits, "array": config.array_bits, "copy": 1})


class VolumeListWriter(wiring.Component):
    """Stores the list of the volumes of an array on a drive, as the tables have them.

    The whole page is written, with Force Unit Access. After another status than GOOD the copy may
    be the old one, the new one, or damaged.

    A page takes 5,100 cycles and what the drive takes.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    edit
        What is to be written.
    set_uuid, generation, owner
        Levels. The identity of the array, what the list is called, and the identity of the card.
        Constant until ``done``. If the volumes change meanwhile, each is listed as it was at some
        time of that.
    done
        How that ended.
    volume_read, facts_read
        The volumes.
    detached
        Bit a volume: it is not attached.
    page_line
        A level. A line that nobody else uses.
    words
        Words for that line (`hdl.metadata.words.WordWriter`).
    move, moved
        Those of a user of `hdl.metadata.page_mover.PageMover`.
    busy
        It works, and does not wait for the drive or the user.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "edit": In(stream.Signature(list_edit(config))),
                "set_uuid": In(UUID_BITS),
                "generation": In(EVENT_BITS),
                "owner": In(IDENTITY_BITS),
                "done": Out(stream.Signature(DriveStatus)),
                "volume_read": Out(volume_read(config)),
                "facts_read": Out(volume_facts_read(config)),
                "detached": In(config.volumes),
                "page_line": In(config.line_bits),
                "words": Out(stream.Signature(PageWord)),
                "move": Out(stream.Signature(page_move(config))),
                "moved": In(stream.Signature(DriveStatus)),
                "busy": Out(1),
            }
        )
        self._edit = Signal(list_edit(config))
        self._number = Signal(NUMBER_BITS)
        self._entry = Signal(config.volume_bits)
        self._word = Signal(WORD_BITS)
        self._volume = Signal(volume(config))
        self._facts = Signal(volume_facts())
        self._crc = CRC.create()

    def elaborate(self, platform) -> Module:
        edit, number, crc = self._edit, self._number, self._crc
        m = Module()
        m.submodules.crc = crc
        new, last = Signal(WORD_BITS), Signal()
        self._make_word(m, new)
        settled = Signal(range(write_delay(LINE_WRITERS) + 1))
        m.d.comb += [
            last.eq(number == DWORDS_PER_BLOCK - 1),
            crc.data.eq(self._word),
            self.words.payload.number.eq(number),
            self.words.payload.word.eq(self._word),
            self.move.payload.port.eq(edit.port),
            self.move.payload.writes.eq(1),
            self.move.payload.block.eq(BLOCK + edit.copy),
        ]
        with m.FSM(name="write_list") as fsm:
            with m.State("REST"):
                m.d.comb += [self.edit.ready.eq(1), crc.start.eq(1)]
                m.d.sync += [edit.eq(self.edit.payload), number.eq(0)]
                with m.If(self.edit.valid):
                    m.next = "READ"

            # A volume gets its facts a cycle after it is there, so they are read a cycle later.
            # An entry is as the volume was when its first word was made.
            begins = number[: ENTRY_WORDS.bit_length() - 1] == 0
            with m.State("READ"):
                m.next = "READ_FACTS"

            with m.State("READ_FACTS"):
                with m.If(begins):
                    m.d.sync += self._volume.eq(self.volume_read.data)
                m.next = "HOLD"

            with m.State("HOLD"):
                with m.If(begins):
                    m.d.sync += self._facts.eq(self.facts_read.data)
                m.next = "CHOOSE"

            with m.State("CHOOSE"):
                m.d.sync += self._word.eq(new)
                m.next = "STORE"

            with m.State("STORE"):
                m.d.comb += self.words.valid.eq(1)
                m.d.sync += settled.eq(0)
                with m.If(self.words.ready):
                    m.d.comb += crc.valid.eq(1)
                    m.d.sync += number.eq(number + 1)
                    m.next = "READ"
                    with m.If(last):
                        m.next = "SETTLE"

            with m.State("SETTLE"):
                m.d.sync += settled.eq(settled + 1)
                with m.If(settled == write_delay(LINE_WRITERS)):
                    m.next = "MOVE"

            with m.State("MOVE"):
                m.d.comb += self.move.valid.eq(1)
                with m.If(self.move.ready):
                    m.next = "LISTEN"

            with m.State("LISTEN"):
                m.d.comb += self.moved.ready.eq(1)
                m.d.sync += self.done.payload.eq(self.moved.payload)
                with m.If(self.moved.valid):
                    m.next = "TELL"

            with m.State("TELL"):
                m.d.comb += self.done.valid.eq(1)
                with m.If(self.done.ready):
                    m.next = "REST"

            waits = (
                (fsm.ongoing("REST") & ~self.edit.valid)
                | (fsm.ongoing("MOVE") & ~self.move.ready)
                | (fsm.ongoing("LISTEN") & ~self.moved.valid)
                | (fsm.ongoing("TELL") & ~self.done.ready)
            )
        m.d.comb += self.busy.eq(~waits)
        return m

    def _make_word(self, m: Module, new: Signal) -> None:
        """The word at hand, once its entry is there."""
        number = self._number
        within = ENTRY_WORDS.bit_length() - 1
        entry = number[within:] - ListWord.ENTRIES // ENTRY_WORDS
        m.d.comb += [
            self._entry.eq(entry),
            self.volume_read.address.eq(entry),
            self.facts_read.address.eq(entry),
        ]
        header = {ListWord.MAGIC: MAGIC, ListWord.VERSION: VERSION}
        for place in range(4):
            header[ListWord.SET_UUID + place] = self.set_uuid.word_select(place, WORD_BITS)
        for place in range(2):
            header[ListWord.GENERATION + place] = self.generation.word_select(place, WORD_BITS)
            header[ListWord.OWNER + place] = self.owner.word_select(place, WORD_BITS)
        volumes = self._config.volumes
        end = ListWord.ENTRIES + ENTRY_WORDS * volumes
        with m.If(number == ListWord.CRC):
            m.d.comb += new.eq(self._crc.crc)
        with m.Elif((number >= ListWord.ENTRIES) & (number < end)):
            self._make_entry_word(m, number[:within], new)
        with m.Else():
            with m.Switch(number):
                for place, value in header.items():
                    with m.Case(place):
                        m.d.comb += new.eq(value)

    @property
    def _is_listed(self) -> Value:
        """The volume is one of the array."""
        return self._volume.valid & (self._volume.array == self._edit.array)

    def _make_entry_word(self, m: Module, place: Signal, new: Signal) -> None:
        """A word of the entry of the volume that has been read, if it is one of the array."""
        volume, facts = self._volume, self._facts
        name = facts.name
        high = slice(WORD_BITS, None)
        assert len(volume.start[high]) == len(volume.blocks[high]) == HIGH_BITS
        assert COUNT_BITS - WORD_BITS == HIGH_BITS
        detached = self.detached.bit_select(self._entry, 1)
        state = Cat(Const(1, 1), facts.sectors, facts.coarse, detached, Const(0, 4))
        entry = {
            EntryWord.STATE: Cat(state, volume.start[high], volume.blocks[high], name.count[high]),
            EntryWord.START: volume.start[:WORD_BITS],
            EntryWord.BLOCKS: volume.blocks[:WORD_BITS],
            EntryWord.COUNT: name.count[:WORD_BITS],
            EntryWord.OWN: name.own[:WORD_BITS],
            EntryWord.OWN + 1: name.own[WORD_BITS:],
        }
        with m.If(self._is_listed):
            with m.Switch(place):
                for number, value in entry.items():
                    with m.Case(number):
                        m.d.comb += new.eq(value)
