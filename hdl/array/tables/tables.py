"""The array, member and volume tables, their ports, and how a change is taken and answered.

The states that make the changes are in `hdl.array.tables.arrays`, `hdl.array.tables.volumes`,
`hdl.array.tables.members` and `hdl.array.tables.copies`; what becomes of the drives is in
`hdl.array.tables.health`.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.tables.admission import Admission
from hdl.array.tables.arrays import create_states, delete_states, quiesce_states
from hdl.array.tables.capacity import Capacity
from hdl.array.tables.change import Access, Change
from hdl.array.tables.copies import COPY_READERS, Copies, copy_states
from hdl.array.tables.health import follow_health
from hdl.array.tables.identities import Identities
from hdl.array.tables.members import member_states, settle_states
from hdl.array.tables.missing import Missing
from hdl.array.tables.volumes import scan_states, store_states
from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, Config
from hdl.flow.drive_port import IDENTITY_BITS
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.manage import ManageOpcode, ManageStatus, manage_request, manage_response
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

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.admission = admission = Admission(config=config)
        m.submodules.capacity = capacity = Capacity()

        named, calm, left = Signal(), Signal(), Signal()
        if config.intent_chunks:
            m.submodules.identities = identities = Identities(config=config)
            for outer, inner in zip(self.identity, identities.identity, strict=True):
                m.d.comb += inner.eq(outer)

        def table(name, shape, depth, readers) -> Access:
            """A memory with a read port for each of ``readers`` and one of each kind for itself."""
            m.submodules[name] = memory = Memory(shape=shape, depth=depth, init=[])
            for reader in readers:
                port = memory.read_port()
                m.d.comb += [port.addr.eq(reader.address), reader.data.eq(port.data)]
            return Access(read=memory.read_port(), write=memory.write_port())

        arrays = table("arrays", geometry(config), config.arrays, self.geometry_read)
        volumes = table("volumes", volume(config), config.volumes, self.volume_read)
        uses = table("uses", port_use(config), MAX_DRIVES, [self.port_read])
        m.submodules.members = memory = Memory(
            shape=config.port_bits, depth=config.arrays * MAX_DRIVES, init=[]
        )
        for reader in self.member_read:
            port = memory.read_port()
            m.d.comb += [port.addr.eq(reader.address), reader.data.eq(port.data)]
        member_write = memory.write_port()
        own_member = memory.read_port()
        members = Access(read=own_member, write=member_write)

        with m.If(arrays.write.en):
            m.d.sync += self.exists.bit_select(arrays.write.addr, 1).eq(arrays.write.data.valid)
        with m.If(volumes.write.en):
            m.d.sync += self.volume_exists.bit_select(volumes.write.addr, 1).eq(
                volumes.write.data.valid
            )

        edited = Signal()
        health = follow_health(m, self, config=config, edited=edited)

        request = Signal(manage_request(config))
        entry = Signal(8)
        number = Signal(range(MAX_DRIVES + 1))
        position = Signal(WIDTH_BITS)
        smallest = Signal(BLOCK_NUMBER_BITS)
        end = Signal(BLOCK_NUMBER_BITS + 1)
        vacant = Signal(8)
        vacancy = Signal()
        shape = Signal(geometry(config))
        blocks = Signal(BLOCK_NUMBER_BITS)
        m.d.comb += [
            admission.level.eq(request.level),
            admission.strip_shift.eq(request.strip_shift),
            admission.copies.eq(request.copies),
            admission.spans.eq(request.spans),
            admission.rotation.eq(request.rotation),
            admission.drives.eq(position),
            capacity.member_blocks.eq(smallest),
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

        of_array = [ManageOpcode.DELETE_ARRAY, ManageOpcode.CREATE_VOLUME]
        copies = None
        copying = returns = stranger = Const(0)
        if config.background:
            of_array += [ManageOpcode.REPLACE, ManageOpcode.SETTLE, ManageOpcode.CHECK_EMPTY]
            of_array += [ManageOpcode.COPY, ManageOpcode.END_COPY]
            m.submodules.copies = copies = Copies(config=config, readers=COPY_READERS)
            for outer, inner in zip(self.copy_read, copies.read, strict=True):
                connect(m, flipped(outer), inner)
            copying = request.opcode == ManageOpcode.COPY
            m.d.comb += [
                copies.array.eq(vacant),
                copies.entry.position.eq(position),
                copies.entry.port.eq(number),
                copies.entry.spare.eq(request.spare),
            ]
        if config.intent_chunks:
            of_array.append(ManageOpcode.RE_ADD)
            returns = request.opcode == ManageOpcode.RE_ADD
            stranger = returns & ~identities.same
            m.d.comb += [
                identities.port.eq(number[: config.port_bits]),
                identities.note.eq(health.joins.any()),
                # A member that was never there has no identity to come back with.
                identities.absent.eq((health.absent | health.fails).bit_select(number, 1)),
            ]

        change = Change(
            config=config,
            request=request,
            response=self.manage_response.payload,
            entry=entry,
            vacant=vacant,
            number=number,
            position=position,
            blocks=blocks,
            shape=shape,
            arrays=arrays,
            volumes=volumes,
            uses=uses,
            members=members,
            returns=returns,
            copying=copying,
            edited=edited,
        )
        missing = None
        if config.background:
            m.submodules.missing = missing = Missing()
            m.d.comb += [
                missing.width.eq(admission.width),
                missing.parities.eq(admission.parities),
                missing.copies.eq(admission.shape_copies),
                missing.spans.eq(admission.shape_spans),
            ]
        with m.FSM(name="manage") as fsm:
            # Memories keep their contents over a reset; the tables begin empty.
            with m.State("CLEAR"):
                m.d.comb += [arrays.write.en.eq(1), volumes.write.en.eq(1), uses.write.en.eq(1)]
                if copies is not None:
                    m.d.comb += copies.write.eq(1)
                m.d.sync += [vacant.eq(vacant + 1), number.eq(number + 1)]
                with m.If(vacant == max(config.arrays, config.volumes, MAX_DRIVES) - 1):
                    m.next = "TAKE"

            with m.State("TAKE"):
                m.d.comb += self.manage_request.ready.eq(1)
                m.d.sync += [
                    request.eq(self.manage_request.payload),
                    entry.eq(0),
                    number.eq(0),
                    position.eq(0),
                    vacant.eq(0),
                    vacancy.eq(0),
                    smallest.eq(-1),
                    named.eq(0),
                    calm.eq(0),
                ]
                with m.If(self.manage_request.valid):
                    with m.Switch(self.manage_request.payload.opcode):
                        with m.Case(ManageOpcode.CREATE_ARRAY):
                            m.next = "COUNT_DRIVES"
                        with m.Case(*of_array):
                            m.d.sync += entry.eq(self.manage_request.payload.array)
                            m.next = "READ_ARRAY"
                        with m.Case(ManageOpcode.DELETE_VOLUME):
                            m.d.sync += entry.eq(self.manage_request.payload.volume)
                            m.next = "READ_VOLUME"
                        with m.Default():
                            change.answer(m, ManageStatus.INVALID_FIELD)

            create_states(
                m,
                change,
                health,
                capacities=self.capacity,
                admission=admission,
                capacity=capacity,
                smallest=smallest,
                missing=missing,
            )

            # Any change of an array, or of its volumes or members: it must exist.
            with m.State("READ_ARRAY"):
                m.next = "CHECK_ARRAY"

            with m.State("CHECK_ARRAY"):
                found = arrays.read.data
                m.d.sync += [
                    shape.eq(found),
                    entry.eq(0),
                    vacant.eq(0),
                    end.eq(Mux(request.blocks == 0, found.blocks, request.start + request.blocks)),
                ]
                m.next = "READ_VOLUME"
                with m.If((entry >= config.arrays) | ~found.valid):
                    change.answer(m, ManageStatus.NO_ENTRY)
                with m.Elif(request.opcode == ManageOpcode.CREATE_VOLUME):
                    m.next = "PLACE_VOLUME"
                if config.background:
                    with m.Elif(request.opcode == ManageOpcode.SETTLE):
                        m.next = "READ_STALE"
                    with m.Elif(request.opcode == ManageOpcode.END_COPY):
                        m.d.sync += vacant.eq(request.array)
                        m.next = "READ_COPY"
                    with m.Elif((request.opcode == ManageOpcode.REPLACE) | returns | copying):
                        m.d.sync += [number.eq(request.port), position.eq(request.position)]
                        m.d.sync += vacant.eq(request.array)
                        m.next = "READ_MEMBER"

            scan_states(m, change, end=end, vacancy=vacancy)
            delete_states(m, change, health, copies=copies)
            quiesce_states(m, change, health, quiesce=self.quiesce)
            if copies is not None:
                settle_states(m, change, health, ports=self)
                member_states(
                    m,
                    change,
                    health,
                    capacities=self.capacity,
                    stranger=stranger,
                    named=named,
                    calm=calm,
                    left=left,
                    quiesce=self.quiesce,
                    rewind=self.rewind,
                )
                copy_states(m, change, health, copies=copies, left=left, ports=self)
            store_states(m, change, end=end)

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
