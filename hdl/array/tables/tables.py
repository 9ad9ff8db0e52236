"""The array, member and volume tables: how a change is taken, checked, made and answered."""

from typing import Any, NamedTuple

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory, ReadPort, WritePort
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.tables.admission import Admission
from hdl.array.tables.capacity import Capacity
from hdl.array.tables.copies import COPY_READERS, Copies
from hdl.array.tables.health import follow_health
from hdl.array.tables.identities import Identities
from hdl.array.tables.missing import Missing
from hdl.config import BLOCK_NUMBER_BITS, DATA_OFFSET_BLOCKS, MAX_DRIVES, Config
from hdl.flow.drive_port import IDENTITY_BITS
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.manage import (
    COPY_END_SHIFT,
    CopyEnd,
    ManageOpcode,
    ManageStatus,
    manage_request,
    manage_response,
)
from hdl.flow.recovery import tried_bits
from hdl.flow.reference import reference
from hdl.flow.table_read import (
    copy_read,
    geometry_read,
    member_read,
    port_read,
    port_use,
    volume,
    volume_read,
)

REWIND_CYCLES = 6
"""From the boundary's being written to its being seen by rows and reads that look at members."""


class Access(NamedTuple):
    """A table's own ports: ``read`` gives what it holds a cycle after the address."""

    read: ReadPort
    write: WritePort


class ArrayTables(wiring.Component):
    """Arrays, their members, volumes, and which drives can be used.

    One change at a time: it is checked completely, then made, then answered. A geometry appears
    after its members; entries appear and disappear in one write. A reset empties the tables, an
    entry of each in every cycle that follows.

    Parameters
    ----------
    config
        Sizes.
    geometry_readers, member_readers, volume_readers
        Read ports of each table.

    Ports
    -----
    manage_request, manage_response
        Changes, each answered once.
    geometry_read, member_read, volume_read, port_read
        Tables, seen from the table: ``data`` follows ``address`` by a cycle.
    present, capacity
        Levels from the drive ports, capacity in blocks.
    fail
        Ports whose drive failed to store data; always taken. No effect on a port without array.
    restarted
        Bit a port, a pulse: its drive has begun anew and may have lost what it had not stored
        (`hdl.array.tables.health`).
    used
        Bit a port: it belongs to an array.
    failed
        Bit a port: its drive cannot be used. Set while a drive is absent; stays set while the port
        belongs to an array, and after that if the drive was reported and no other has come, until
        an array is created on it.
    changed
        A pulse after each change of ``failed`` or ``stale``, and with each change made to the
        tables.
    exists, volume_exists
        Bit an array, bit a volume: it is there.
    quiesce
        What must have nothing inside any more before the change goes on
        (`hdl.array.references.References`): a volume that is gone, before that is answered, or one
        that is new, before it is there; an array before it goes; an array that a drive has left,
        before the drive is anybody else's; an array whose member's own drive is to be stale instead
        of failed, before it is.
    flush, flushed
        Only with `Config.background`. Bit a port: drives to be flushed before they are trusted, and
        those that were (`hdl.drive.flusher.Flusher`).
    rewind
        Only with `Config.background`. An array of which nothing is rebuilt any more: a drive that
        has passed all checks is about to be a stale member of it, or to be copied to.
    stale, reserved, copy_read
        Only with `Config.background`. Bit a port: its drive is being rebuilt, and not failed.
        Ports that no new array may have. Members that are being copied, for the sequencer,
        dispatch and the states; entry and member change in the same cycle.
    suspect, kept, undecided, returns
        Only with `Config.background`. Bit a port: its drive has restarted, and must not be believed
        when it says that it has flushed; its array cannot do without it (it must not be asked for
        anything until that is known); there are drives of which that is not known yet; bit a port:
        the drive has failed by that alone, and can be taken back.
    restarts
        Only with `Config.background`. How often the drive at a port has restarted, as
        `hdl.flow.recovery.recovery` has it of a flush.
    yields, keeps, blamed, given_up
        Only with `Config.background`. Bit a port, pulses: its array can do without the suspect
        drive, or cannot; a FLUSH has been refused because of it; it is not taken back.
    doubts
        Only with `Config.background`. Bit an array: a drive of it is kept, and its jobs have not
        been told yet that it may have lost something.
    identity
        Only with `Config.intent_chunks`: of the drives (`hdl.array.tables.identities.Identities`).

    Latency: a change takes at most 200 cycles and two for each entry of the array or volume table,
    an array that is made with members missing up to 1000 more, and what ``quiesce`` and ``flush``
    take. Reads are never held up.

    Errors: INVALID_FIELD when the level does not allow the drives, spans, copies, rotation or strip
    (see `Admission`) or the capacity exceeds 2**40 blocks; DRIVE_UNAVAILABLE for a drive that is
    absent or in use, or for more absent ones than the level tolerates; NO_SPACE when a drive has no
    room for a strip, or a volume does not fit between the others; NO_ENTRY for a full table or an
    entry that does not exist; IN_USE for an array with volumes, a member to replace or to have
    again that is not failed, or one to copy that is; OTHER_DRIVE for a member that is to be had
    again and is another drive.
    """

    def __init__(
        self,
        *,
        config: Config,
        geometry_readers: int,
        member_readers: int,
        volume_readers: int,
    ):
        for name, count in (
            ("geometry_readers", geometry_readers),
            ("member_readers", member_readers),
            ("volume_readers", volume_readers),
        ):
            if count < 1:
                raise ValueError(f"{name} must be at least 1, not {count}")
        self._config = config
        super().__init__(
            {
                "manage_request": In(stream.Signature(manage_request(config))),
                "manage_response": Out(stream.Signature(manage_response(config))),
                "geometry_read": In(geometry_read(config)).array(geometry_readers),
                "member_read": In(member_read(config)).array(member_readers),
                "volume_read": In(volume_read(config)).array(volume_readers),
                "port_read": In(port_read(config)),
                "present": In(config.ports),
                "restarted": In(config.ports),
                "capacity": In(BLOCK_NUMBER_BITS).array(config.ports),
                "fail": In(stream.Signature(config.port_bits)),
                "used": Out(MAX_DRIVES),
                "failed": Out(MAX_DRIVES),
                "changed": Out(1),
                "quiesce": Out(stream.Signature(reference(config))),
                "exists": Out(config.arrays),
                "volume_exists": Out(config.volumes),
                "busy": Out(1),
            }
            | (
                {
                    "flush": Out(stream.Signature(MAX_DRIVES)),
                    "flushed": In(stream.Signature(MAX_DRIVES)),
                    "rewind": Out(stream.Signature(config.array_bits)),
                    "stale": Out(MAX_DRIVES),
                    "suspect": Out(MAX_DRIVES),
                    "kept": Out(MAX_DRIVES),
                    "restarts": Out(tried_bits(config)).array(config.ports),
                    "undecided": Out(1),
                    "returns": Out(MAX_DRIVES),
                    "yields": In(MAX_DRIVES),
                    "keeps": In(MAX_DRIVES),
                    "blamed": In(MAX_DRIVES),
                    "doubts": In(config.arrays),
                    "given_up": In(MAX_DRIVES),
                    "reserved": In(MAX_DRIVES),
                    "copy_read": In(copy_read(config)).array(COPY_READERS),
                }
                if config.background
                else {}
            )
            | (
                {"identity": In(IDENTITY_BITS).array(config.ports)}
                if config.intent_chunks
                else {}
            )
        )

        self._request = Signal(manage_request(config))
        # The entry of the array or volume table that is read; the one that is written, which is
        # the answer's index as well, and whether it is free.
        self._entry = Signal(8)
        self._vacant = Signal(8)
        self._vacancy = Signal()
        # The port whose entry of ``uses`` is read and written, and a member of array ``vacant``,
        # which is set to that port if it is written.
        self._number = Signal(range(MAX_DRIVES + 1))
        self._position = Signal(WIDTH_BITS)
        self._port = self._number[: config.port_bits]
        self._last_port = self._number == MAX_DRIVES - 1
        # Blocks of the drive at that port, and the least of those named; behind the new volume.
        self._blocks = Signal(BLOCK_NUMBER_BITS)
        self._smallest = Signal(BLOCK_NUMBER_BITS)
        self._end = Signal(BLOCK_NUMBER_BITS + 1)
        self._shape = Signal(geometry(config))
        # RE_ADD knows the member's port; a drive that was the member has been quiesced; the drive
        # that joins has been absent since it was checked.
        self._named, self._calm, self._left = Signal(), Signal(), Signal()
        self._edited = Signal()  # a pulse: the tables change
        self._returns = self._copying = self._stranger = Const(0)

        self._admission = Admission(config=config)
        self._capacity = Capacity()
        self._memories: dict[str, Memory] = {}
        self._arrays = self._table("arrays", geometry(config), config.arrays)
        self._volumes = self._table("volumes", volume(config), config.volumes)
        self._uses = self._table("uses", port_use(config), MAX_DRIVES)
        self._members = self._table("members", config.port_bits, config.arrays * MAX_DRIVES)
        self._copies: Any = None
        self._missing: Any = None
        self._identities: Any = None
        if config.background:
            self._copies = Copies(config=config, readers=COPY_READERS)
            self._missing = Missing()
            self._copying = self._request.opcode == ManageOpcode.COPY
        if config.intent_chunks:
            self._identities = Identities(config=config)
            self._returns = self._request.opcode == ManageOpcode.RE_ADD
            self._stranger = self._returns & ~self._identities.same

    def _table(self, name: str, shape, depth: int) -> Access:
        """A memory, and its ports for the changes themselves."""
        self._memories[name] = memory = Memory(shape=shape, depth=depth, init=[])
        return Access(read=memory.read_port(), write=memory.write_port())

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        self._add_parts(m)
        self._health = follow_health(m, self, config=config, edited=self._edited)
        self._connect_parts(m)
        with m.FSM(name="manage") as fsm:
            self._take(m)
            self._create_array(m)
            self._find_array(m)
            self._look_at_volumes(m)
            self._delete_array(m)
            self._quiesce(m)
            if config.background:
                self._settle(m)
                self._change_member(m)
                self._copy(m)
            self._store_volume(m)
            with m.State("RESPOND"):
                m.d.comb += self.manage_response.valid.eq(1)
                with m.If(self.manage_response.ready):
                    m.next = "TAKE"
            waits = (
                (fsm.ongoing("TAKE") & ~self.manage_request.valid)
                | (fsm.ongoing("RESPOND") & ~self.manage_response.ready)
                | (self.quiesce.valid & ~self.quiesce.ready)
            )
            if config.background:
                waits |= self.flush.valid & ~self.flush.ready
                waits |= self.flushed.ready & ~self.flushed.valid
                waits |= self.rewind.valid & ~self.rewind.ready
            m.d.comb += self.busy.eq(~waits | self.fail.valid | self.changed)
        return m

    def _add_parts(self, m: Module) -> None:
        """The tables with their readers, and what judges a change."""
        m.submodules.admission = self._admission
        m.submodules.capacity = self._capacity
        if self._config.intent_chunks:
            m.submodules.identities = self._identities
            for outer, inner in zip(self.identity, self._identities.identity, strict=True):
                m.d.comb += inner.eq(outer)
        for name, readers in (
            ("arrays", self.geometry_read),
            ("volumes", self.volume_read),
            ("uses", [self.port_read]),
            ("members", self.member_read),
        ):
            m.submodules[name] = memory = self._memories[name]
            for reader in readers:
                port = memory.read_port()
                m.d.comb += [port.addr.eq(reader.address), reader.data.eq(port.data)]
        if self._config.background:
            m.submodules.copies = self._copies
            m.submodules.missing = self._missing
            for outer, inner in zip(self.copy_read, self._copies.read, strict=True):
                connect(m, flipped(outer), inner)

    def _connect_parts(self, m: Module) -> None:
        """What the parts see of the change."""
        config, request, admission, capacity = (
            self._config, self._request, self._admission, self._capacity
        )  # fmt: skip
        arrays, volumes, uses, members = self._arrays, self._volumes, self._uses, self._members
        entry, vacant, number, position = self._entry, self._vacant, self._number, self._position
        there = arrays.write.data.valid
        with m.If(arrays.write.en):
            m.d.sync += self.exists.bit_select(arrays.write.addr, 1).eq(there)
        there = volumes.write.data.valid
        with m.If(volumes.write.en):
            m.d.sync += self.volume_exists.bit_select(volumes.write.addr, 1).eq(there)
        m.d.comb += [
            admission.level.eq(request.level),
            admission.strip_shift.eq(request.strip_shift),
            admission.copies.eq(request.copies),
            admission.spans.eq(request.spans),
            admission.rotation.eq(request.rotation),
            admission.drives.eq(position),
            capacity.member_blocks.eq(self._smallest),
            capacity.strip_shift.eq(request.strip_shift),
            capacity.strips.eq(admission.strips),
            capacity.copies.eq(admission.shape_copies),
            arrays.read.addr.eq(entry),
            volumes.read.addr.eq(entry),
            uses.read.addr.eq(number),
            arrays.write.addr.eq(vacant),
            volumes.write.addr.eq(vacant),
            uses.write.addr.eq(number),
            members.write.addr.eq(Cat(position[: config.port_bits], vacant[: config.array_bits])),
            members.write.data.eq(number),
            members.read.addr.eq(members.write.addr),
        ]
        if config.background:
            copies, missing = self._copies, self._missing
            m.d.comb += [
                copies.array.eq(vacant),
                copies.entry.position.eq(position),
                copies.entry.port.eq(number),
                copies.entry.spare.eq(request.spare),
                missing.width.eq(admission.width),
                missing.parities.eq(admission.parities),
                missing.copies.eq(admission.shape_copies),
                missing.spans.eq(admission.shape_spans),
            ]
        if config.intent_chunks:
            identities, health = self._identities, self._health
            m.d.comb += [
                identities.port.eq(self._port),
                identities.note.eq(health.joins.any()),
                # A member that was never there has no identity to come back with.
                identities.absent.eq((health.absent | health.fails).bit_select(number, 1)),
            ]

    def _answer(self, m: Module, status: ManageStatus) -> None:
        """Ends the change; used inside a state, of which it is the end."""
        response = self.manage_response.payload
        m.d.sync += [response.status.eq(status), response.index.eq(self._vacant)]
        m.next = "RESPOND"

    def _take(self, m: Module) -> None:
        """The states CLEAR, after a reset, and TAKE, of a new change."""
        config, asked, entry = self._config, self.manage_request, self._entry
        vacant, number = self._vacant, self._number
        of_array = [ManageOpcode.DELETE_ARRAY, ManageOpcode.CREATE_VOLUME]
        if config.background:
            of_array += [ManageOpcode.REPLACE, ManageOpcode.SETTLE, ManageOpcode.CHECK_EMPTY]
            of_array += [ManageOpcode.COPY, ManageOpcode.END_COPY]
        if config.intent_chunks:
            of_array.append(ManageOpcode.RE_ADD)

        # Memories keep their contents over a reset; the tables begin empty.
        with m.State("CLEAR"):
            for written in (self._arrays, self._volumes, self._uses):
                m.d.comb += written.write.en.eq(1)
            if config.background:
                m.d.comb += self._copies.write.eq(1)
            m.d.sync += [vacant.eq(vacant + 1), number.eq(number + 1)]
            with m.If(vacant == max(config.arrays, config.volumes, MAX_DRIVES) - 1):
                m.next = "TAKE"

        with m.State("TAKE"):
            m.d.comb += asked.ready.eq(1)
            m.d.sync += [
                self._request.eq(asked.payload),
                entry.eq(0),
                number.eq(0),
                self._position.eq(0),
                vacant.eq(0),
                self._vacancy.eq(0),
                self._smallest.eq(-1),
                self._named.eq(0),
                self._calm.eq(0),
            ]
            with m.If(asked.valid):
                with m.Switch(asked.payload.opcode):
                    with m.Case(ManageOpcode.CREATE_ARRAY):
                        m.next = "COUNT_DRIVES"
                    with m.Case(*of_array):
                        m.d.sync += entry.eq(asked.payload.array)
                        m.next = "READ_ARRAY"
                    with m.Case(ManageOpcode.DELETE_VOLUME):
                        m.d.sync += entry.eq(asked.payload.volume)
                        m.next = "READ_VOLUME"
                    with m.Default():
                        self._answer(m, ManageStatus.INVALID_FIELD)

    def _create_array(self, m: Module) -> None:
        """The states COUNT_DRIVES, in which CREATE_ARRAY begins, to WRITE_ARRAY.

        Every drive named is looked at, then the level, the capacity and the table. ``position``
        counts the drives, and once they are known those that have joined. With
        `Config.background` members whose drive is not there are failed from the beginning, as many
        as the level tolerates, and also if a drive appears before they join: nobody has looked at
        it.
        """
        config, request, shape, entry = self._config, self._request, self._shape, self._entry
        vacant, number, position, arrays = self._vacant, self._number, self._position, self._arrays
        uses, members, blocks, smallest = self._uses, self._members, self._blocks, self._smallest
        admission, capacity, missing = self._admission, self._capacity, self._missing
        health = self._health

        wanted = request.drives.bit_select(number, 1)

        away, empty = Signal(), Const(0)
        # Bit a position: no drive is there.
        gone = Signal(MAX_DRIVES)
        if config.background:
            m.d.comb += missing.members.eq(gone)

        with m.State("COUNT_DRIVES"):
            unavailable = Signal()
            counted = Signal()
            taken = (health.used | health.reserved).bit_select(number, 1)
            absent = health.absent.bit_select(number, 1)
            m.d.sync += [
                blocks.eq(Array(self.capacity)[number]),
                unavailable.eq(taken | absent),
                counted.eq(wanted),
            ]
            if config.background:
                empty = absent & request.degraded & (number < config.ports)
                m.d.sync += [away.eq(empty), unavailable.eq(taken | (absent & ~empty))]
                with m.If(number == 0):
                    m.d.sync += gone.eq(0)
            m.next = "COMPARE_DRIVE"

        with m.State("COMPARE_DRIVE"):
            m.d.sync += number.eq(number + 1)
            m.next = "COUNT_DRIVES"
            with m.If(self._last_port):
                m.next = "ADMIT"
            with m.If(counted):
                m.d.sync += position.eq(position + 1)
                with m.If((blocks < smallest) & ~away):
                    m.d.sync += smallest.eq(blocks)
                if config.background:
                    m.d.sync += gone.bit_select(position[:5], 1).eq(away)
                with m.If(unavailable):
                    self._answer(m, ManageStatus.DRIVE_UNAVAILABLE)

        with m.State("ADMIT"):
            m.d.comb += admission.start.eq(1)
            m.next = "JUDGE"

        with m.State("JUDGE"):
            with m.If(admission.done):
                m.next = "MEASURE"
                if config.background:
                    with m.If(gone.any()):
                        m.next = "TOLERATE"
                with m.If(~admission.allowed):
                    self._answer(m, ManageStatus.INVALID_FIELD)

        if config.background:
            with m.State("TOLERATE"):
                m.d.comb += missing.start.eq(1)
                m.next = "TOLERATED"

            with m.State("TOLERATED"):
                with m.If(missing.done):
                    m.next = "MEASURE"
                    with m.If(~missing.tolerated):
                        self._answer(m, ManageStatus.DRIVE_UNAVAILABLE)

        with m.State("MEASURE"):
            m.d.comb += capacity.start.eq(1)
            m.next = "WEIGH"

        with m.State("WEIGH"):
            m.d.sync += [
                shape.valid.eq(1),
                shape.level.eq(request.level),
                shape.width.eq(admission.width),
                shape.data.eq(admission.data),
                shape.parities.eq(admission.parities),
                shape.copies.eq(admission.shape_copies),
                shape.spans.eq(admission.shape_spans),
                shape.strip_shift.eq(request.strip_shift),
                shape.rotate.eq(admission.rotate),
                shape.rotation.eq(request.rotation),
                shape.rows.eq(capacity.rows),
                shape.blocks.eq(capacity.blocks),
            ]
            if not config.background:
                m.d.sync += shape.assumed.eq(request.assumed)
            with m.If(capacity.done):
                m.next = "ASK_ARRAY"
                with m.If(capacity.rows == 0):
                    self._answer(m, ManageStatus.NO_SPACE)
                with m.Elif(capacity.overflow):
                    self._answer(m, ManageStatus.INVALID_FIELD)

        with m.State("ASK_ARRAY"):
            m.next = "FIND_ARRAY"

        with m.State("FIND_ARRAY"):
            m.d.sync += [
                vacant.eq(entry),
                entry.eq(entry + 1),
                number.eq(0),
                position.eq(0),
            ]
            with m.If(~arrays.read.data.valid):
                m.next = "JOIN_DRIVES"
            with m.Elif(entry == config.arrays - 1):
                self._answer(m, ManageStatus.NO_ENTRY)
            with m.Else():
                m.next = "ASK_ARRAY"

        with m.State("JOIN_DRIVES"):
            m.d.comb += [uses.write.data.used.eq(1), uses.write.data.array.eq(vacant)]
            m.d.sync += number.eq(number + 1)
            with m.If(wanted):
                m.d.comb += [
                    uses.write.en.eq(1),
                    members.write.en.eq(1),
                    health.joins.eq(1 << self._port),
                ]
                m.d.sync += position.eq(position + 1)
                if config.background:
                    unseen = gone.bit_select(position[:5], 1)
                    m.d.comb += health.fails.eq(Mux(unseen, 1 << self._port, 0))
            with m.If(self._last_port):
                m.next = "WRITE_ARRAY"

        with m.State("WRITE_ARRAY"):
            m.d.comb += [arrays.write.data.eq(shape), arrays.write.en.eq(1), self._edited.eq(1)]
            self._answer(m, ManageStatus.DONE)

    def _find_array(self, m: Module) -> None:
        """The states READ_ARRAY and CHECK_ARRAY of any change of an array, or of its volumes or
        members: it must exist."""
        config, request, entry, vacant = self._config, self._request, self._entry, self._vacant
        with m.State("READ_ARRAY"):
            m.next = "CHECK_ARRAY"

        with m.State("CHECK_ARRAY"):
            found = self._arrays.read.data
            end = Mux(request.blocks == 0, found.blocks, request.start + request.blocks)
            m.d.sync += [self._shape.eq(found), entry.eq(0), vacant.eq(0), self._end.eq(end)]
            m.next = "READ_VOLUME"
            with m.If((entry >= config.arrays) | ~found.valid):
                self._answer(m, ManageStatus.NO_ENTRY)
            with m.Elif(request.opcode == ManageOpcode.CREATE_VOLUME):
                m.next = "PLACE_VOLUME"
            if config.background:
                with m.Elif(request.opcode == ManageOpcode.SETTLE):
                    m.next = "READ_STALE"
                with m.Elif(request.opcode == ManageOpcode.END_COPY):
                    m.d.sync += vacant.eq(request.array)
                    m.next = "READ_COPY"
                with m.Elif(
                    (request.opcode == ManageOpcode.REPLACE) | self._returns | self._copying
                ):
                    m.d.sync += [
                        self._number.eq(request.port),
                        self._position.eq(request.position),
                        vacant.eq(request.array),
                    ]
                    m.next = "READ_MEMBER"

    def _look_at_volumes(self, m: Module) -> None:
        """The states PLACE_VOLUME, in which CREATE_VOLUME goes on, to CHECK_VOLUME.

        From READ_VOLUME on every volume is looked at: for CREATE_VOLUME, CHECK_EMPTY, and
        DELETE_ARRAY, which goes on with QUIESCE; or the one of DELETE_VOLUME.
        """
        config, request, shape, entry = self._config, self._request, self._shape, self._entry
        vacant, number, volumes, end = self._vacant, self._number, self._volumes, self._end
        vacancy = self._vacancy

        with m.State("PLACE_VOLUME"):
            m.next = "READ_VOLUME"
            with m.If((request.start >= shape.blocks) | (end > shape.blocks)):
                self._answer(m, ManageStatus.NO_SPACE)

        with m.State("READ_VOLUME"):
            m.next = "CHECK_VOLUME"

        with m.State("CHECK_VOLUME"):
            other = volumes.read.data
            same = Signal()
            overlaps = Signal()
            last_volume = Signal()
            m.d.comb += [
                same.eq(other.valid & (other.array == request.array)),
                overlaps.eq((other.start < end) & (request.start < other.start + other.blocks)),
                last_volume.eq(entry == config.volumes - 1),
            ]
            m.d.sync += entry.eq(entry + 1)
            with m.If(~other.valid & ~vacancy):
                m.d.sync += [vacant.eq(entry), vacancy.eq(1)]
            m.next = "READ_VOLUME"
            with m.If(request.opcode == ManageOpcode.DELETE_VOLUME):
                m.d.sync += vacant.eq(entry)
                m.next = "ERASE_VOLUME"
                with m.If((entry >= config.volumes) | ~other.valid):
                    self._answer(m, ManageStatus.NO_ENTRY)
            with m.Elif(request.opcode != ManageOpcode.CREATE_VOLUME):
                with m.If(same):
                    self._answer(m, ManageStatus.IN_USE)
                with m.Elif(last_volume):
                    m.d.sync += [vacant.eq(request.array), number.eq(0)]
                    m.next = "QUIESCE"
                    if config.background:
                        with m.If(request.opcode == ManageOpcode.CHECK_EMPTY):
                            self._answer(m, ManageStatus.DONE)
            with m.Else():
                with m.If(same & overlaps):
                    self._answer(m, ManageStatus.NO_SPACE)
                with m.Elif(last_volume):
                    m.next = "QUIESCE"
                    with m.If(~vacancy & other.valid):
                        self._answer(m, ManageStatus.NO_ENTRY)

    def _delete_array(self, m: Module) -> None:
        """The states ERASE_ARRAY, in which DELETE_ARRAY goes on when nothing refers to the array
        any more, to LEAVE_DRIVES."""
        config, request, number, arrays = self._config, self._request, self._number, self._arrays
        uses, copies, health = self._uses, self._copies, self._health

        with m.State("ERASE_ARRAY"):
            m.d.comb += [arrays.write.en.eq(1), self._edited.eq(1)]
            if config.background:
                m.d.comb += copies.write.eq(1)
            m.next = "READ_USE"

        with m.State("READ_USE"):
            m.next = "LEAVE_DRIVES"

        with m.State("LEAVE_DRIVES"):
            m.d.sync += number.eq(number + 1)
            with m.If(uses.read.data.used & (uses.read.data.array == request.array)):
                m.d.comb += [uses.write.en.eq(1), health.leaves.eq(1 << self._port)]
            m.next = "READ_USE"
            with m.If(self._last_port):
                self._answer(m, ManageStatus.DONE)

    def _quiesce(self, m: Module) -> None:
        """The states QUIESCE, which waits for all that refers to the volume ``vacant`` or to the
        array of the request, and LEAVE, which follows when the drive at port ``number`` is the
        array's no more: it is free now."""
        config, request, vacant, uses = self._config, self._request, self._vacant, self._uses
        health = self._health

        of_volume = (request.opcode == ManageOpcode.CREATE_VOLUME) | (
            request.opcode == ManageOpcode.DELETE_VOLUME
        )
        m.d.comb += [
            self.quiesce.payload.of_array.eq(~of_volume),
            self.quiesce.payload.goes.eq(request.opcode == ManageOpcode.DELETE_ARRAY),
            self.quiesce.payload.number.eq(Mux(of_volume, vacant, request.array)),
        ]

        with m.State("QUIESCE"):
            m.d.comb += self.quiesce.valid.eq(1)
            with m.If(self.quiesce.ready):
                with m.Switch(request.opcode):
                    with m.Case(ManageOpcode.CREATE_VOLUME):
                        m.next = "WRITE_VOLUME"
                    with m.Case(ManageOpcode.DELETE_VOLUME):
                        self._answer(m, ManageStatus.DONE)
                    with m.Case(ManageOpcode.DELETE_ARRAY):
                        m.next = "ERASE_ARRAY"
                    if config.background:
                        with m.Default():
                            m.next = "LEAVE"

        if config.background:
            with m.State("LEAVE"):
                m.d.comb += [uses.write.en.eq(1), health.leaves.eq(1 << self._port)]
                m.d.sync += self.manage_response.payload.status.eq(ManageStatus.DONE)
                m.next = "RESPOND"

    def _settle(self, m: Module) -> None:
        """The states READ_STALE, in which SETTLE goes on, to TRUST: the stale drives of the array
        have all their blocks, and are trusted once they have been flushed. One that does not do
        that is failed, and then the answer's `CopyEnd` is not JOINED.

        With ``zero`` all live drives of the array are flushed, and stay what they are. All that
        they hold has been written since they were last judged, so what they lost before that is
        nobody's loss: they are suspect no longer.
        """
        request, number, uses, health = self._request, self._number, self._uses, self._health

        rebuilt = Signal(MAX_DRIVES)
        m.d.comb += self.flush.payload.eq(rebuilt)

        with m.State("READ_STALE"):
            with m.If(number == 0):
                m.d.sync += rebuilt.eq(0)
            m.next = "NOTE_STALE"

        with m.State("NOTE_STALE"):
            use = uses.read.data
            meant = Mux(request.zero, ~health.failed, self.stale)
            with m.If(use.used & (use.array == request.array)):
                m.d.sync += rebuilt.eq(rebuilt | ((1 << self._port) & meant))
            m.d.sync += number.eq(number + 1)
            m.next = "READ_STALE"
            with m.If(self._last_port):
                m.next = "FLUSH_STALE"

        with m.State("FLUSH_STALE"):
            m.d.comb += self.flush.valid.eq(1)
            with m.If(self.flush.ready):
                m.d.comb += health.absolves.eq(Mux(request.zero, rebuilt, 0))
                m.next = "TRUST"

        with m.State("TRUST"):
            m.d.comb += self.flushed.ready.eq(1)
            with m.If(self.flushed.valid):
                # What has gone meanwhile is stale no longer.
                stored = self.flushed.payload
                trusted = Signal()
                m.d.comb += self._edited.eq(1)
                with m.If(request.zero):
                    m.d.comb += trusted.eq((rebuilt & ~stored & ~health.failed) == 0)
                with m.Else():
                    m.d.comb += [
                        health.settles.eq(rebuilt & stored),
                        health.fails.eq(rebuilt & ~stored),
                        trusted.eq((rebuilt & ~(stored & self.stale)) == 0),
                    ]
                self._answer(m, ManageStatus.DONE)
                done = rebuilt.any() & trusted
                m.d.sync += self.manage_response.payload.index.eq(
                    Mux(done, CopyEnd.JOINED.value, CopyEnd.RELEASED.value) << COPY_END_SHIFT
                )

    def _change_member(self, m: Module) -> None:
        """The states READ_MEMBER, in which REPLACE, RE_ADD and COPY go on, to SWAP_MEMBER.

        The member must be failed, or must not be for COPY, which goes on with BEGIN_COPY; the new
        drive must be free, or the old one that failed, and as large. RE_ADD reads the member's
        port first, and then is ``named``.

        A drive that was the member is stale only once nothing is inside that was planned before it
        had failed: a row, or a read, could else go on with it as if it had never been away, and
        its late reports would be about a drive that is good. So the array is quiesced first, with
        the drive still failed; then all is checked once more, as the drive may have gone, and it
        is ``calm``.

        Only then is it said, on ``rewind``, that nothing of the array is rebuilt, and
        `REWIND_CYCLES` later everybody has read that. From then on the change is not refused: a
        drive that is absent meanwhile has ``left``; it joins, and has failed by that.
        """
        config, request, shape, vacant = self._config, self._request, self._shape, self._vacant
        number, position, uses, members = self._number, self._position, self._uses, self._members
        blocks, health, returns, copying = self._blocks, self._health, self._returns, self._copying
        stranger, named, calm, left = self._stranger, self._named, self._calm, self._left

        old = Signal(config.port_bits)
        pause = Signal(range(REWIND_CYCLES))
        m.d.comb += self.rewind.payload.eq(request.array)

        with m.State("READ_MEMBER"):
            m.d.sync += blocks.eq(Array(self.capacity)[self._port])
            m.next = "CHECK_MEMBER"

        with m.State("CHECK_MEMBER"):
            m.d.sync += old.eq(members.read.data)
            same_drive = members.read.data == self._port
            kept = health.used & (~health.lost | ~same_drive.replicate(MAX_DRIVES))
            taken = kept | health.absent | health.reserved
            m.d.sync += [pause.eq(0), left.eq(0)]
            m.next = "REWIND_MEMBER"
            with m.If(~copying & same_drive & ~calm):
                m.next = "CALM_MEMBER"
            with m.If((request.position >= MAX_DRIVES) | (position >= shape.width * shape.spans)):
                self._answer(m, ManageStatus.INVALID_FIELD)
            if config.intent_chunks:
                with m.Elif(returns & ~named):
                    m.d.sync += [number.eq(members.read.data), named.eq(1)]
                    m.next = "READ_MEMBER"
                with m.Elif(returns & ~health.failed.bit_select(members.read.data, 1)):
                    self._answer(m, ManageStatus.IN_USE)
                with m.Elif(stranger & ~health.absent.bit_select(self._port, 1)):
                    self._answer(m, ManageStatus.OTHER_DRIVE)
            with m.Elif(
                (~returns & (request.port >= config.ports)) | taken.bit_select(self._port, 1)
            ):
                self._answer(m, ManageStatus.DRIVE_UNAVAILABLE)
            with m.Elif(health.failed.bit_select(members.read.data, 1) == copying):
                self._answer(m, ManageStatus.IN_USE)
            with m.Elif(blocks < shape.rows + DATA_OFFSET_BLOCKS):
                self._answer(m, ManageStatus.NO_SPACE)

        with m.State("CALM_MEMBER"):
            m.d.comb += self.quiesce.valid.eq(1)
            with m.If(self.quiesce.ready):
                m.d.sync += calm.eq(1)
                m.next = "READ_MEMBER"

        # Nothing is rebuilt, as far as anyone can see, before the drive is stale, or copied to.
        gone = left | health.absent.bit_select(self._port, 1)
        with m.State("REWIND_MEMBER"):
            m.d.comb += self.rewind.valid.eq(1)
            m.d.sync += left.eq(gone)
            with m.If(self.rewind.ready):
                m.next = "PAUSE_MEMBER"

        with m.State("PAUSE_MEMBER"):
            m.d.sync += [pause.eq(pause + 1), left.eq(gone)]
            with m.If(pause == REWIND_CYCLES - 1):
                m.d.sync += pause.eq(0)
                m.next = "JOIN_MEMBER"
                with m.If(copying):
                    m.next = "BEGIN_COPY"

        # The drive is stale before anyone can find it as the member.
        with m.State("JOIN_MEMBER"):
            m.d.comb += [
                uses.write.data.used.eq(1),
                uses.write.data.array.eq(vacant),
                uses.write.en.eq(1),
                health.joins.eq(1 << self._port),
                health.renewed.eq(1 << self._port),
                health.fails.eq(left << self._port),
            ]
            m.next = "SWAP_MEMBER"

        with m.State("SWAP_MEMBER"):
            m.d.comb += [members.write.en.eq(1), self._edited.eq(1)]
            self._answer(m, ManageStatus.DONE)
            with m.If(old != self._port):
                # Rows that began before may still write to it.
                m.d.sync += number.eq(old)
                m.next = "QUIESCE"

    def _copy(self, m: Module) -> None:
        """The states that begin and end a copy, from BEGIN_COPY and READ_COPY on.

        ``number`` and ``position`` are those of the drive that is copied to and of the member,
        which is read two cycles later.

        When all has been copied the two drives change places first: the member is copied to. So
        rows that began before write both, and so do those that begin after, whatever they take for
        the member. When those of before have ended, the new member has what they wrote. If it
        fails before, the old one is the member again at once. Only then is there no copy any more.
        """
        request, number, position, uses = self._request, self._number, self._position, self._uses
        members, copies, health, left = self._members, self._copies, self._health, self._left
        port, failed, member = self._port, health.failed, members.read.data
        response = self.manage_response.payload

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
            m.d.comb += [copies.entry.valid.eq(1), copies.write.eq(1), self._edited.eq(1)]
            self._answer(m, ManageStatus.DONE)

        with m.State("READ_COPY"):
            m.next = "LOAD_COPY"

        with m.State("LOAD_COPY"):
            m.d.sync += [number.eq(copies.current.port), position.eq(copies.current.position)]
            m.next = "FIND_COPIED"
            with m.If(~copies.current.valid):
                self._answer(m, ManageStatus.NO_ENTRY)

        with m.State("FIND_COPIED"):
            m.next = "JUDGE_COPY"
            with m.If(request.complete):
                m.next = "FLUSH_COPY"

        # What has been copied may still be in the drive's volatile cache.
        with m.State("FLUSH_COPY"):
            m.d.comb += [self.flush.valid.eq(1), self.flush.payload.eq(1 << port)]
            with m.If(self.flush.ready):
                m.next = "TRUST_COPY"

        with m.State("TRUST_COPY"):
            m.d.comb += self.flushed.ready.eq(1)
            with m.If(self.flushed.valid):
                m.d.comb += health.fails.eq((1 << port) & ~self.flushed.payload)
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
            doubtful = self.undecided | self.doubts.bit_select(request.array, 1)
            with m.If(request.complete & doubtful):
                self._answer(m, ManageStatus.DONE)
                m.d.sync += response.index.eq(CopyEnd.AGAIN.value << COPY_END_SHIFT)

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
            """The copy has ended; who began before may still use the drive that leaves."""
            m.d.comb += [copies.entry.valid.eq(0), copies.write.eq(1), self._edited.eq(1)]
            m.d.sync += [
                response.index.eq(Cat(old, ended, copies.current.spare)),
                number.eq(leaver),
            ]
            m.next = "QUIESCE"

        with m.State("ERASE_COPY"):
            m.d.comb += members.write.en.eq(joined)
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
        doubted = failed | (self.suspect & ~self.kept)
        with m.State("DRAIN_COPY"):
            m.d.comb += self.quiesce.valid.eq(1)
            with m.If(joined & self.suspect.bit_select(new, 1) & ~doubted.bit_select(old, 1)):
                m.d.comb += health.fails.eq(1 << new)
            with m.If(joined & lost & ~failed.bit_select(old, 1)):
                m.d.comb += [
                    members.write.en.eq(1),
                    copies.entry.valid.eq(1),
                    copies.entry.port.eq(new),
                    copies.entry.spare.eq(copies.current.spare),
                    copies.write.eq(1),
                    self._edited.eq(1),
                ]
                m.d.sync += joined.eq(0)
            with m.If(self.quiesce.ready):
                m.next = "CONFIRM_COPY"

        with m.State("CONFIRM_COPY"):
            comes_back = lost & (~joined | ~failed.bit_select(old, 1))
            m.d.sync += [joined.eq(~comes_back), number.eq(Mux(comes_back, old, new))]
            m.next = "PART_COPY"

        with m.State("PART_COPY"):
            m.d.comb += members.write.en.eq(1)
            part()
            m.d.sync += number.eq(Mux(joined, old, new))

    def _store_volume(self, m: Module) -> None:
        """The states WRITE_VOLUME and ERASE_VOLUME of CREATE_VOLUME and DELETE_VOLUME.

        A command may have got its slot while its namespace did not exist, or was another volume.
        So before a volume is there, commands of its number must have ended, and after it is erased
        those must have that may have found it.
        """
        request, volumes, end = self._request, self._volumes, self._end

        with m.State("WRITE_VOLUME"):
            m.d.comb += [
                volumes.write.data.valid.eq(1),
                volumes.write.data.array.eq(request.array),
                volumes.write.data.start.eq(request.start),
                volumes.write.data.blocks.eq(end - request.start),
                volumes.write.en.eq(1),
                self._edited.eq(1),
            ]
            self._answer(m, ManageStatus.DONE)

        with m.State("ERASE_VOLUME"):
            m.d.comb += [volumes.write.en.eq(1), self._edited.eq(1)]
            m.next = "QUIESCE"
