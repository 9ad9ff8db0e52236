"""Who may still refer to a volume or an array: host commands, rows, and rows to be mended."""

from amaranth.hdl import Array, Assert, Cat, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.array.epoch_counts import EpochCounts, count_references
from hdl.config import MENDED, MENDS, Config
from hdl.flow.reference import SlotEvents, reference, row_begin
from hdl.flow.table_read import volume_read

MEND_NOTES = 3
"""Who asks for rows to be mended: dispatch, and the sequencer for reads and for writes."""

MOST_MENDS = MEND_NOTES * (MENDS + 1) + 1 + MENDED
"""Rows to be mended: in the queue of whoever asks, on the way out of there, or parked for want of a
row slot."""


class References(wiring.Component):
    """Counts what is inside for each volume and each array, and answers when it has ended.

    A host command refers to its volume, and to the array of that volume. It does so from the moment
    it gets a command slot, before anything of the volume is looked up, until it has left the
    controller. This covers its extents, wherever they wait, its retries, and its operations in the
    drive ports. A row refers to its array from the moment it gets a row slot until that slot is
    free again. This covers its operations, its lines, and what it reports. A row that is to be
    mended refers to its array from the moment it is asked for until it has its row slot. Nothing
    else keeps a position or a port of an array.

    Two epochs of each volume and of each array are counted apart. A request on ``quiesce`` ends an
    epoch. Who comes later is not waited for, and has seen the tables as they are now. So nobody
    waits for other volumes or arrays, and a host that goes on cannot hold up the answer. What is
    waited for is bounded by the ladder of the drive ports (`hdl.drive.recovery.ladder`).

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    slots
        Host commands that get and leave their command slots.
    takes
        A pulse. A row gets a row slot. Never together with ``gives``.
    taken
        Which row, in which slot.
    gives
        A pulse. Row slot ``given`` is free again.
    given
        That slot.
    notes
        One bit for each of `MEND_NOTES`, a pulse. A row of an array is to be mended. Of no use
        without ``background``.
    noted
        These arrays.
    quiesce
        Taken when all has ended that referred to what the `reference` names as it was offered. If
        that is an array, all commands of its volumes have ended as well.
    volume_read
        Table of the volumes, which must hold while ``quiesce`` is offered.
    exists
        One bit per array. It is there, as `hdl.array.tables.tables.ArrayTables` has it. For an
        assertion: a row has its array from its beginning to its end.
    busy
        Something but an end is being waited for.

    Latency: at least 3 cycles, and 2 more for each volume if an array is named.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "slots": In(SlotEvents(config)),
                "takes": In(1),
                "taken": In(row_begin(config)),
                "gives": In(1),
                "given": In(config.row_slot_bits),
                "notes": In(MEND_NOTES),
                "noted": In(config.array_bits).array(MEND_NOTES),
                "quiesce": In(stream.Signature(reference(config))),
                "volume_read": Out(volume_read(config)),
                "exists": In(config.arrays),
                "busy": Out(1),
            }
        )
        self._commands = EpochCounts(
            name="commands", slots=config.commands, objects=config.volumes
        )
        self._rows = EpochCounts(name="rows", slots=config.rows, objects=config.arrays)
        self._volume_epochs = Signal(config.volumes)
        self._array_epochs = Signal(config.arrays)
        self._mends = Signal()  # rows of the array are to be mended

        # What is asked: the array; one of its volumes, or the volume; which volumes to wait for.
        self._asked = self.quiesce.payload
        self._array = self._asked.number[: config.array_bits]
        self._volume = Signal(config.volume_bits)
        self._chosen = Signal(config.volumes)
        self._recent = Signal(2)  # ends that do not count yet

    def elaborate(self, platform) -> Module:
        m = Module()
        self._count_commands(m)
        self._count_rows(m)
        if self._config.background:
            self._count_mends(m)
        m.d.comb += self.volume_read.address.eq(self._volume)
        m.d.sync += self._recent.eq(Cat(self.slots.ended.valid | self.gives, self._recent[0]))
        with m.FSM(name="quiesce") as fsm:
            self._rest(m)
            self._turn_volume(m)
            self._choose_volumes(m)
            self._wait(m)
            self._answer(m)
            m.d.comb += self.busy.eq(
                ~self._waits(fsm) | self.slots.ended.valid | self.gives | self._recent.any()
            )
        return m

    def _count_commands(self, m: Module) -> None:
        """Host commands, by their volumes."""
        m.submodules.commands = commands = self._commands
        m.d.comb += [
            commands.epochs.eq(self._volume_epochs),
            commands.begins.eq(self.slots.begun.valid),
            commands.slot.eq(self.slots.begun.payload.slot),
            commands.owner.eq(self.slots.begun.payload.volume),
            commands.ends.eq(self.slots.ended.valid),
            commands.ended.eq(self.slots.ended.payload),
            commands.looked.eq(self._volume),
        ]

    def _count_rows(self, m: Module) -> None:
        """Rows, by their arrays."""
        m.submodules.rows = rows = self._rows
        m.d.comb += [
            rows.epochs.eq(self._array_epochs),
            rows.begins.eq(self.takes),
            rows.slot.eq(self.taken.slot),
            rows.owner.eq(self.taken.array),
            rows.ends.eq(self.gives),
            rows.ended.eq(self.given),
            rows.looked.eq(self._array),
        ]
        for number in range(self._config.arrays):
            m.d.sync += Assert(
                ~rows.any[number] | self.exists[number], "a row has an array that is not there"
            )

    def _count_mends(self, m: Module) -> None:
        """Rows to be mended, by their arrays."""
        counts = Array(
            Signal(range(MOST_MENDS + 1), name=f"mends_{array}")
            for array in range(self._config.arrays)
        )
        for number, count in enumerate(counts):
            notes = [
                note & (array == number)
                for note, array in zip(self.notes, self.noted, strict=True)
            ]
            begins = self.takes & self.taken.mends & (self.taken.array == number)
            count_references(m, count, sum(notes), begins, "nobody asked for a row to be mended")
        m.d.comb += self._mends.eq(counts[self._array] != 0)

    def _turn(self, m: Module) -> None:
        """The volume's epoch ends, and its commands are waited for."""
        epoch = self._volume_epochs.bit_select(self._volume, 1)
        m.d.sync += [epoch.eq(~epoch), self._chosen.bit_select(self._volume, 1).eq(1)]

    def _rest(self, m: Module) -> None:
        """The state REST, until something is asked."""
        epoch = self._array_epochs.bit_select(self._array, 1)
        with m.State("REST"):
            m.d.sync += [self._volume.eq(self._asked.number), self._chosen.eq(0)]
            with m.If(self.quiesce.valid):
                m.next = "TURN-VOLUME"
                with m.If(self._asked.of_array):
                    m.d.sync += [self._volume.eq(0), epoch.eq(~epoch)]
                    m.next = "READ-VOLUME"

    def _turn_volume(self, m: Module) -> None:
        """The state TURN-VOLUME, of a volume."""
        with m.State("TURN-VOLUME"):
            self._turn(m)
            m.next = "WAIT-COMMANDS"

    def _choose_volumes(self, m: Module) -> None:
        """The states READ-VOLUME and CHOOSE-VOLUME, in turn: the volumes of an array."""
        volume = self._volume
        with m.State("READ-VOLUME"):
            m.next = "CHOOSE-VOLUME"

        with m.State("CHOOSE-VOLUME"):
            found = self.volume_read.data
            with m.If(found.valid & (found.array == self._array)):
                self._turn(m)
            m.d.sync += volume.eq(volume + 1)
            m.next = "READ-VOLUME"
            with m.If(volume == self._config.volumes - 1):
                m.d.sync += volume.eq(0)
                m.next = "WAIT-COMMANDS"

    @property
    def _rows_wait(self) -> Value:
        """Rows of the array have to end.

        Of an array that goes for good nobody asks for anything new, but a row that ends may still
        ask for its own mending.
        """
        return self._rows.earlier | (self._asked.goes & (self._mends | self._rows.current))

    def _wait(self, m: Module) -> None:
        """The states WAIT-COMMANDS, of all volumes that are chosen, and WAIT-ROWS of an array."""
        volume = self._volume
        with m.State("WAIT-COMMANDS"):
            with m.If(~self._commands.earlier | ~self._chosen.bit_select(volume, 1)):
                m.d.sync += volume.eq(volume + 1)
                with m.If(~self._asked.of_array):
                    m.next = "ANSWER"
                with m.Elif(volume == self._config.volumes - 1):
                    m.next = "WAIT-ROWS"

        with m.State("WAIT-ROWS"):
            with m.If(~self._rows_wait):
                m.next = "ANSWER"

    def _answer(self, m: Module) -> None:
        """The state ANSWER."""
        with m.State("ANSWER"):
            m.d.comb += self.quiesce.ready.eq(1)
            m.next = "REST"

    def _waits(self, fsm) -> Value:
        """It waits for somebody else."""
        chosen = self._chosen.bit_select(self._volume, 1)
        return (
            (fsm.ongoing("REST") & ~self.quiesce.valid)
            | (fsm.ongoing("WAIT-COMMANDS") & self._commands.earlier & chosen)
            | (fsm.ongoing("WAIT-ROWS") & self._rows_wait)
        )
