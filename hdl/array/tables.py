"""The array, member and volume tables, how they change, and the health of the drives."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.admission import Admission
from hdl.array.capacity import Capacity
from hdl.array.copies import COPY_READERS, Copies, copy_states
from hdl.array.identities import Identities
from hdl.array.interface import (
    WIDTH_BITS,
    ManageOpcode,
    ManageStatus,
    copy_read,
    geometry,
    geometry_read,
    manage_request,
    manage_response,
    member_read,
    port_read,
    port_use,
    volume,
    volume_read,
)
from hdl.config import BLOCK_NUMBER_BITS, DATA_OFFSET_BLOCKS, MAX_DRIVES, Config
from hdl.drive.interface import IDENTITY_BITS


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
    used
        Bit a port: it belongs to an array.
    failed
        Bit a port: its drive cannot be used. Set while a drive is absent; stays set if the port
        belongs to an array, until an array is created on it.
    changed
        A pulse after each change of ``failed`` or ``stale``, and with each change made to the
        tables.
    stale, reserved, copy_read
        Only with `Config.background`. Bit a port: its drive is being rebuilt, and not failed.
        Ports that no new array may have. Members that are being copied, for the sequencer,
        dispatch and the states; entry and member change in the same cycle.
    identity
        Only with `Config.intent_chunks`: of the drives (`hdl.array.identities.Identities`).

    Latency: a change takes at most 200 cycles and two for each entry of the array or volume table.
    Reads are never held up.

    Errors: INVALID_FIELD when the level does not allow the drives, spans, copies, rotation or strip
    (see `Admission`) or the capacity exceeds 2**40 blocks; DRIVE_UNAVAILABLE for a drive that is
    absent or in use; NO_SPACE when a drive has no room for a strip, or a volume does not fit
    between the others; NO_ENTRY for a full table or an entry that does not exist; IN_USE for an
    array with volumes, a member to replace or to have again that is not failed, or one to copy that
    is; OTHER_DRIVE for a member that is to be had again and is another drive.
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
                "capacity": In(BLOCK_NUMBER_BITS).array(config.ports),
                "fail": In(stream.Signature(config.port_bits)),
                "used": Out(MAX_DRIVES),
                "failed": Out(MAX_DRIVES),
                "changed": Out(1),
                "busy": Out(1),
            }
            | (
                {
                    "stale": Out(MAX_DRIVES),
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
        replaces = config.background
        m = Module()
        m.submodules.admission = admission = Admission(config=config)
        m.submodules.capacity = capacity = Capacity()

        named = Signal()
        if config.intent_chunks:
            m.submodules.identities = identities = Identities(config=config)
            for outer, inner in zip(self.identity, identities.identity, strict=True):
                m.d.comb += inner.eq(outer)

        def table(name, shape, depth, readers):
            """A memory with a read port for each of ``readers`` and one of each kind for itself."""
            m.submodules[name] = memory = Memory(shape=shape, depth=depth, init=[])
            for reader in readers:
                port = memory.read_port()
                m.d.comb += [port.addr.eq(reader.address), reader.data.eq(port.data)]
            return memory.read_port(), memory.write_port()

        array_read, array_write = table(
            "arrays", geometry(config), config.arrays, self.geometry_read
        )
        volume_reader, volume_write = table(
            "volumes", volume(config), config.volumes, self.volume_read
        )
        use_read, use_write = table("uses", port_use(config), MAX_DRIVES, [self.port_read])
        m.submodules.members = members = Memory(
            shape=config.port_bits, depth=config.arrays * MAX_DRIVES, init=[]
        )
        for reader in self.member_read:
            port = members.read_port()
            m.d.comb += [port.addr.eq(reader.address), reader.data.eq(port.data)]
        member_write = members.write_port()
        own_member = members.read_port()

        # Health.
        used = self.used
        lost = Signal(MAX_DRIVES)
        absent = Signal(MAX_DRIVES)
        reported = Signal(MAX_DRIVES)
        joins = Signal(MAX_DRIVES)
        leaves = Signal(MAX_DRIVES)
        failed_before = Signal(MAX_DRIVES)
        edited = Signal()
        m.d.comb += [
            absent.eq(~Cat(self.present, Const(0, MAX_DRIVES - config.ports))),
            self.fail.ready.eq(1),
            reported.eq(self.fail.valid << self.fail.payload),
            self.failed.eq(absent | lost),
            self.changed.eq(edited | (self.failed != failed_before)),
        ]
        reserved = Signal(MAX_DRIVES)
        settles = Signal(MAX_DRIVES)
        renewed = Signal(MAX_DRIVES)
        if replaces:
            m.d.comb += reserved.eq(self.reserved)
            m.d.sync += self.stale.eq(
                ((self.stale & ~joins) | renewed) & ~(leaves | settles | absent | reported)
            )
        m.d.sync += [
            failed_before.eq(self.failed),
            used.eq((used | joins) & ~leaves),
            lost.eq((lost | (used & (absent | reported))) & ~joins),
        ]

        request = Signal(manage_request(config))
        response = self.manage_response.payload
        entry = Signal(8)
        number = Signal(range(MAX_DRIVES + 1))
        position = Signal(WIDTH_BITS)
        smallest = Signal(BLOCK_NUMBER_BITS)
        end = Signal(BLOCK_NUMBER_BITS + 1)
        vacant = Signal(8)
        vacancy = Signal()
        shape = Signal(geometry(config))

        def answer(status):
            m.d.sync += [response.status.eq(status), response.index.eq(vacant)]
            m.next = "RESPOND"

        wanted = request.drives.bit_select(number, 1)
        port_number = number[: config.port_bits]
        last_port = number == MAX_DRIVES - 1
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
            array_read.addr.eq(entry),
            volume_reader.addr.eq(entry),
            use_read.addr.eq(number),
            array_write.addr.eq(vacant),
            volume_write.addr.eq(vacant),
            use_write.addr.eq(number),
            member_write.addr.eq(Cat(position[: config.port_bits], vacant[: config.array_bits])),
            member_write.data.eq(number),
            own_member.addr.eq(member_write.addr),
        ]

        of_array = [ManageOpcode.DELETE_ARRAY, ManageOpcode.CREATE_VOLUME]
        if replaces:
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
        returns, stranger = Const(0), Const(0)
        if config.intent_chunks:
            of_array.append(ManageOpcode.RE_ADD)
            returns = request.opcode == ManageOpcode.RE_ADD
            stranger = returns & ~identities.same
            m.d.comb += [identities.port.eq(port_number), identities.note.eq(joins.any())]

        with m.FSM(name="manage") as fsm:
            # Memories keep their contents over a reset; the tables begin empty.
            with m.State("CLEAR"):
                m.d.comb += [array_write.en.eq(1), volume_write.en.eq(1), use_write.en.eq(1)]
                if replaces:
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
                            answer(ManageStatus.INVALID_FIELD)

            # CREATE_ARRAY: look at every drive named, then the level, the capacity and the table.
            with m.State("COUNT_DRIVES"):
                blocks = Signal(BLOCK_NUMBER_BITS)
                unavailable = Signal()
                counted = Signal()
                m.d.sync += [
                    blocks.eq(Array(self.capacity)[number]),
                    unavailable.eq((used | absent | reserved).bit_select(number, 1)),
                    counted.eq(wanted),
                ]
                m.next = "COMPARE_DRIVE"

            with m.State("COMPARE_DRIVE"):
                m.d.sync += number.eq(number + 1)
                m.next = "COUNT_DRIVES"
                with m.If(last_port):
                    m.next = "ADMIT"
                with m.If(counted):
                    m.d.sync += position.eq(position + 1)
                    with m.If(blocks < smallest):
                        m.d.sync += smallest.eq(blocks)
                    with m.If(unavailable):
                        answer(ManageStatus.DRIVE_UNAVAILABLE)

            with m.State("ADMIT"):
                m.d.comb += admission.start.eq(1)
                m.next = "JUDGE"

            with m.State("JUDGE"):
                with m.If(admission.done):
                    m.next = "MEASURE"
                    with m.If(~admission.allowed):
                        answer(ManageStatus.INVALID_FIELD)

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
                with m.If(capacity.done):
                    m.next = "ASK_ARRAY"
                    with m.If(capacity.rows == 0):
                        answer(ManageStatus.NO_SPACE)
                    with m.Elif(capacity.overflow):
                        answer(ManageStatus.INVALID_FIELD)

            with m.State("ASK_ARRAY"):
                m.next = "FIND_ARRAY"

            with m.State("FIND_ARRAY"):
                m.d.sync += [
                    vacant.eq(entry),
                    entry.eq(entry + 1),
                    number.eq(0),
                    position.eq(0),
                ]
                with m.If(~array_read.data.valid):
                    m.next = "JOIN_DRIVES"
                with m.Elif(entry == config.arrays - 1):
                    answer(ManageStatus.NO_ENTRY)
                with m.Else():
                    m.next = "ASK_ARRAY"

            with m.State("JOIN_DRIVES"):
                m.d.comb += [use_write.data.used.eq(1), use_write.data.array.eq(vacant)]
                m.d.sync += number.eq(number + 1)
                with m.If(wanted):
                    m.d.comb += [
                        use_write.en.eq(1),
                        member_write.en.eq(1),
                        joins.eq(1 << port_number),
                    ]
                    m.d.sync += position.eq(position + 1)
                with m.If(last_port):
                    m.next = "WRITE_ARRAY"

            with m.State("WRITE_ARRAY"):
                m.d.comb += [array_write.data.eq(shape), array_write.en.eq(1), edited.eq(1)]
                answer(ManageStatus.DONE)

            # DELETE_ARRAY, CREATE_VOLUME: the array must exist, then every volume is looked at.
            with m.State("READ_ARRAY"):
                m.next = "CHECK_ARRAY"

            with m.State("CHECK_ARRAY"):
                found = array_read.data
                m.d.sync += [
                    shape.eq(found),
                    entry.eq(0),
                    vacant.eq(0),
                    end.eq(Mux(request.blocks == 0, found.blocks, request.start + request.blocks)),
                ]
                m.next = "READ_VOLUME"
                with m.If((entry >= config.arrays) | ~found.valid):
                    answer(ManageStatus.NO_ENTRY)
                with m.Elif(request.opcode == ManageOpcode.CREATE_VOLUME):
                    m.next = "PLACE_VOLUME"
                if replaces:
                    with m.Elif(request.opcode == ManageOpcode.SETTLE):
                        m.next = "READ_USE"
                    with m.Elif(request.opcode == ManageOpcode.END_COPY):
                        m.d.sync += vacant.eq(request.array)
                        m.next = "READ_COPY"
                    with m.Elif((request.opcode == ManageOpcode.REPLACE) | returns | copying):
                        m.d.sync += [number.eq(request.port), position.eq(request.position)]
                        m.d.sync += vacant.eq(request.array)
                        m.next = "READ_MEMBER"

            with m.State("PLACE_VOLUME"):
                m.next = "READ_VOLUME"
                with m.If((request.start >= shape.blocks) | (end > shape.blocks)):
                    answer(ManageStatus.NO_SPACE)

            with m.State("READ_VOLUME"):
                m.next = "CHECK_VOLUME"

            with m.State("CHECK_VOLUME"):
                other = volume_reader.data
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
                        answer(ManageStatus.NO_ENTRY)
                with m.Elif(request.opcode != ManageOpcode.CREATE_VOLUME):
                    with m.If(same):
                        answer(ManageStatus.IN_USE)
                    with m.Elif(last_volume):
                        m.d.sync += [vacant.eq(request.array), number.eq(0)]
                        m.next = "ERASE_ARRAY"
                        if replaces:
                            with m.If(request.opcode == ManageOpcode.CHECK_EMPTY):
                                answer(ManageStatus.DONE)
                with m.Else():
                    with m.If(same & overlaps):
                        answer(ManageStatus.NO_SPACE)
                    with m.Elif(last_volume):
                        m.next = "WRITE_VOLUME"
                        with m.If(~vacancy & other.valid):
                            answer(ManageStatus.NO_ENTRY)

            with m.State("ERASE_ARRAY"):
                m.d.comb += [array_write.en.eq(1), edited.eq(1)]
                if replaces:
                    m.d.comb += copies.write.eq(1)
                m.next = "READ_USE"

            with m.State("READ_USE"):
                m.next = "LEAVE_DRIVES"

            with m.State("LEAVE_DRIVES"):
                m.d.sync += number.eq(number + 1)
                with m.If(use_read.data.used & (use_read.data.array == request.array)):
                    if replaces:
                        with m.If(request.opcode == ManageOpcode.SETTLE):
                            m.d.comb += [settles.eq(1 << port_number), edited.eq(1)]
                    with m.If(request.opcode == ManageOpcode.DELETE_ARRAY):
                        m.d.comb += [use_write.en.eq(1), leaves.eq(1 << port_number)]
                m.next = "READ_USE"
                with m.If(last_port):
                    answer(ManageStatus.DONE)

            # REPLACE, COPY: the member must be failed, or must not be; the new drive must be free,
            # or the old one that failed, and as large.
            # RE_ADD: the member's own port, which is read first.
            if replaces:
                old = Signal(config.port_bits)
                with m.State("READ_MEMBER"):
                    m.d.sync += blocks.eq(Array(self.capacity)[port_number])
                    m.next = "CHECK_MEMBER"

                with m.State("CHECK_MEMBER"):
                    m.d.sync += old.eq(own_member.data)
                    same_drive = own_member.data == port_number
                    taken = (used & (~lost | ~same_drive.replicate(MAX_DRIVES))) | absent | reserved
                    m.next = "JOIN_MEMBER"
                    with m.If(copying):
                        m.next = "BEGIN_COPY"
                    with m.If(
                        (request.position >= MAX_DRIVES) | (position >= shape.width * shape.spans)
                    ):
                        answer(ManageStatus.INVALID_FIELD)
                    if config.intent_chunks:
                        with m.Elif(returns & ~named):
                            m.d.sync += [number.eq(own_member.data), named.eq(1)]
                            m.next = "READ_MEMBER"
                        with m.Elif(returns & ~self.failed.bit_select(own_member.data, 1)):
                            answer(ManageStatus.IN_USE)
                        with m.Elif(stranger & ~absent.bit_select(port_number, 1)):
                            answer(ManageStatus.OTHER_DRIVE)
                    with m.Elif(
                        (~returns & (request.port >= config.ports))
                        | taken.bit_select(port_number, 1)
                    ):
                        answer(ManageStatus.DRIVE_UNAVAILABLE)
                    with m.Elif(self.failed.bit_select(own_member.data, 1) == copying):
                        answer(ManageStatus.IN_USE)
                    with m.Elif(blocks < shape.rows + DATA_OFFSET_BLOCKS):
                        answer(ManageStatus.NO_SPACE)

                # The drive is stale before anyone can find it as the member.
                with m.State("JOIN_MEMBER"):
                    m.d.comb += [
                        use_write.data.used.eq(1),
                        use_write.data.array.eq(vacant),
                        use_write.en.eq(1),
                        joins.eq(1 << port_number),
                        renewed.eq(1 << port_number),
                    ]
                    m.next = "SWAP_MEMBER"

                with m.State("SWAP_MEMBER"):
                    m.d.comb += [member_write.en.eq(1), edited.eq(1), use_write.addr.eq(old)]
                    with m.If(old != port_number):
                        m.d.comb += [use_write.en.eq(1), leaves.eq(1 << old)]
                    answer(ManageStatus.DONE)

                copy_states(
                    m,
                    copies=copies,
                    request=request,
                    response=response,
                    number=number,
                    position=position,
                    failed=self.failed,
                    member=own_member.data,
                    use_write=use_write,
                    member_write=member_write,
                    joins=joins,
                    leaves=leaves,
                    renewed=renewed,
                    edited=edited,
                    answer=answer,
                )

            with m.State("WRITE_VOLUME"):
                m.d.comb += [
                    volume_write.data.valid.eq(1),
                    volume_write.data.array.eq(request.array),
                    volume_write.data.start.eq(request.start),
                    volume_write.data.blocks.eq(end - request.start),
                    volume_write.en.eq(1),
                    edited.eq(1),
                ]
                answer(ManageStatus.DONE)

            with m.State("ERASE_VOLUME"):
                m.d.comb += [volume_write.en.eq(1), edited.eq(1)]
                answer(ManageStatus.DONE)

            with m.State("RESPOND"):
                m.d.comb += self.manage_response.valid.eq(1)
                with m.If(self.manage_response.ready):
                    m.next = "TAKE"

            waits = (fsm.ongoing("TAKE") & ~self.manage_request.valid) | (
                fsm.ongoing("RESPOND") & ~self.manage_response.ready
            )
            m.d.comb += self.busy.eq(~waits | self.fail.valid | self.changed)
        return m
