"""Who may still refer to a volume or an array: host commands, rows, and rows to be mended."""

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import MENDED, MENDS, Config
from hdl.flow.reference import command_begin, reference, row_begin
from hdl.flow.table_read import volume_read

MEND_NOTES = 3
"""Who asks for rows to be mended: dispatch, and the sequencer for reads and for writes."""


class References(wiring.Component):
    """Counts what is inside for each volume and each array, and answers when it has ended.

    A host command refers to its volume, and to the array of that, from the moment it gets a slot,
    before anything of the volume is looked up, until it has left the controller: so do its extents,
    wherever they wait, its retries, and its operations in the drive ports. A row refers to its
    array from the moment it gets a row slot until that is free again: so do its operations, its
    lines, and what it reports. A row that is to be mended refers to its array from the moment it is
    asked for until it has its row slot. Nothing else keeps a position or a port of an array.

    Two epochs of each volume and of each array are counted apart. A request on ``quiesce`` ends an
    epoch: who comes later is not waited for, and has seen the tables as they are now. So nobody
    waits for other volumes or arrays, and a host that goes on cannot hold up the answer. What is
    waited for is bounded by the ladder of the drive ports (`hdl.drive.recovery.ladder`).

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    begins, begun, ends, ended
        Pulses: a host command gets a slot; the slot ``ended`` is free again.
    takes, taken, gives, given
        Pulses, never both: a row gets a row slot; the row slot ``given`` is free again.
    notes, noted
        Pulses: a row of an array is to be mended (not there without ``background``).
    quiesce
        Taken when all that referred to what the `reference` names, as it was offered, has ended.
        Of an array: also all commands of its volumes.
    volume_read
        Table of the volumes, which must hold while ``quiesce`` is offered.
    exists
        Bit an array: it is there, as `hdl.array.tables.tables.ArrayTables` has it. For an
        assertion: a row has its array from its beginning to its end.
    busy
        Something but an end is being waited for.

    Latency: at least 3 cycles, and 2 for each volume if an array is named.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "begins": In(1),
                "begun": In(command_begin(config)),
                "ends": In(1),
                "ended": In(config.slot_bits),
                "takes": In(1),
                "taken": In(row_begin(config)),
                "gives": In(1),
                "given": In(config.row_slot_bits),
                "quiesce": In(stream.Signature(reference(config))),
                "volume_read": Out(volume_read(config)),
                "exists": In(config.arrays),
                "busy": Out(1),
            }
            | (
                {
                    "notes": In(MEND_NOTES),
                    "noted": In(config.array_bits).array(MEND_NOTES),
                }
                if config.background
                else {}
            )
        )

    def _counts(
        self,
        m: Module,
        name: str,
        *,
        slots: int,
        objects: int,
        begins: Value,
        slot: Value,
        number: Value,
        ends: Value,
        ended: Value,
    ) -> tuple[Signal, Array]:
        """The epoch of each of ``objects``, and how many slots refer to it: the counts of epoch e
        of object n are at e * ``objects`` + n. An end counts two cycles later."""
        epochs = Signal(objects, name=f"{name}_epochs")
        bits = len(number)
        m.submodules[name] = table = Memory(
            shape=data.StructLayout({"number": bits, "epoch": 1}), depth=slots, init=[]
        )
        read, write = table.read_port(), table.write_port()
        leaves = Signal(name=f"{name}_leaves")
        counts = Array(
            Signal(range(slots + 1), name=f"{name}_{epoch}_{index}")
            for epoch in range(2)
            for index in range(objects)
        )
        m.d.comb += [
            write.addr.eq(slot),
            write.data.number.eq(number),
            write.data.epoch.eq(epochs.bit_select(number, 1)),
            write.en.eq(begins),
            read.addr.eq(ended),
        ]
        m.d.sync += leaves.eq(ends)
        for epoch in range(2):
            for index in range(objects):
                comes = begins & (number == index) & (epochs[index] == epoch)
                goes = leaves & (read.data.number == index) & (read.data.epoch == epoch)
                count = counts[epoch * objects + index]
                self._count(m, count, comes, goes, f"{name}: one has ended twice")
        return epochs, counts

    @staticmethod
    def _count(m: Module, count: Value, comes: Value, goes: Value, otherwise: str) -> None:
        """Keeps ``count`` of what comes, several at once perhaps, and goes, one a cycle; says
        ``otherwise`` if something goes that has not come."""
        goes_now = Signal(name="goes_now")
        m.d.comb += goes_now.eq(goes)
        m.d.sync += count.eq(count + comes - goes_now)
        m.d.sync += Assert(~goes_now | (count != 0), otherwise)

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        # An end counts two cycles later.
        recent = Signal(2)
        m.d.sync += recent.eq(Cat(self.ends | self.gives, recent[0]))
        command_epochs, commands = self._counts(
            m,
            "commands",
            slots=config.commands,
            objects=config.volumes,
            begins=self.begins,
            slot=self.begun.slot,
            number=self.begun.volume,
            ends=self.ends,
            ended=self.ended,
        )
        row_epochs, rows = self._counts(
            m,
            "rows",
            slots=config.rows,
            objects=config.arrays,
            begins=self.takes,
            slot=self.taken.slot,
            number=self.taken.array,
            ends=self.gives,
            ended=self.given,
        )

        for index in range(config.arrays):
            under = Signal(name=f"rows_of_{index}")
            m.d.comb += under.eq((rows[index] != 0) | (rows[config.arrays + index] != 0))
            m.d.sync += Assert(
                ~under | self.exists[index], "a row has an array that is not there"
            )

        asked = self.quiesce.payload
        array = asked.number[: config.array_bits]
        volume = Signal(config.volume_bits)
        chosen = Signal(config.volumes)
        inside = Signal()
        m.d.comb += [
            self.volume_read.address.eq(volume),
            inside.eq(
                commands[
                    volume + Mux(command_epochs.bit_select(volume, 1), 0, config.volumes)
                ]
                != 0
            ),
        ]
        turned = row_epochs.bit_select(array, 1)
        row_inside, row_left = Signal(), Signal()
        m.d.comb += [
            row_inside.eq(rows[array + Mux(turned, 0, config.arrays)] != 0),
            row_left.eq(rows[array + Mux(turned, config.arrays, 0)] != 0),
        ]

        mends = Signal()
        if config.background:
            # In the queue of whoever asks, on the way out of there, or parked for want of a slot.
            most = MEND_NOTES * (MENDS + 1) + 1 + MENDED
            counts = Array(
                Signal(range(most + 1), name=f"mends_{index}") for index in range(config.arrays)
            )
            for index, count in enumerate(counts):
                notes = [
                    note & (number == index)
                    for note, number in zip(self.notes, self.noted, strict=True)
                ]
                begins = self.takes & self.taken.mends & (self.taken.array == index)
                self._count(m, count, sum(notes), begins, "nobody asked for a row to be mended")
            m.d.comb += mends.eq(counts[array] != 0)

        with m.FSM(name="quiesce") as fsm:
            with m.State("REST"):
                m.d.sync += [volume.eq(asked.number), chosen.eq(0)]
                with m.If(self.quiesce.valid):
                    m.next = "TURN-VOLUME"
                    with m.If(asked.of_array):
                        m.d.sync += [volume.eq(0), turned.eq(~turned)]
                        m.next = "READ-VOLUME"

            with m.State("TURN-VOLUME"):
                m.d.sync += [
                    command_epochs.bit_select(volume, 1).eq(~command_epochs.bit_select(volume, 1)),
                    chosen.bit_select(volume, 1).eq(1),
                ]
                m.next = "WAIT-COMMANDS"

            # All volumes of an array; then its rows.
            with m.State("READ-VOLUME"):
                m.next = "CHOOSE-VOLUME"

            with m.State("CHOOSE-VOLUME"):
                found = self.volume_read.data
                with m.If(found.valid & (found.array == array)):
                    m.d.sync += [
                        command_epochs.bit_select(volume, 1).eq(
                            ~command_epochs.bit_select(volume, 1)
                        ),
                        chosen.bit_select(volume, 1).eq(1),
                    ]
                m.d.sync += volume.eq(volume + 1)
                m.next = "READ-VOLUME"
                with m.If(volume == config.volumes - 1):
                    m.d.sync += volume.eq(0)
                    m.next = "WAIT-COMMANDS"

            with m.State("WAIT-COMMANDS"):
                with m.If(~inside | ~chosen.bit_select(volume, 1)):
                    m.d.sync += volume.eq(volume + 1)
                    with m.If(~asked.of_array):
                        m.next = "ANSWER"
                    with m.Elif(volume == config.volumes - 1):
                        m.next = "WAIT-ROWS"

            # Of an array that goes for good nobody asks for anything new, but a row that ends may
            # still ask for its own mending.
            with m.State("WAIT-ROWS"):
                rows_wait = row_inside | (asked.goes & (mends | row_left))
                with m.If(~rows_wait):
                    m.next = "ANSWER"

            with m.State("ANSWER"):
                m.d.comb += self.quiesce.ready.eq(1)
                m.next = "REST"

            waits = (
                (fsm.ongoing("REST") & ~self.quiesce.valid)
                | (fsm.ongoing("WAIT-COMMANDS") & inside & chosen.bit_select(volume, 1))
                | (fsm.ongoing("WAIT-ROWS") & rows_wait)
            )
            m.d.comb += self.busy.eq(~waits | self.ends | self.gives | recent.any())
        return m
