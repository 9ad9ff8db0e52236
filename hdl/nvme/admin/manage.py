"""Vendor admin commands that change the tables: fields in, status and index out."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.manage import Changes, Emulation, ManageOpcode, ManageStatus
from hdl.nvme.codes import BROADCAST_NSID, STATUS_BITS, AdminOpcode, StatusCode, status_field
from hdl.nvme.records import assign, sqe

HIGH_BITS = BLOCK_NUMBER_BITS - 32
"""Used bits of the upper half of a block number."""

_OPCODES = {
    AdminOpcode.CREATE_ARRAY: ManageOpcode.CREATE_ARRAY,
    AdminOpcode.DELETE_ARRAY: ManageOpcode.DELETE_ARRAY,
    AdminOpcode.CREATE_VOLUME: ManageOpcode.CREATE_VOLUME,
    AdminOpcode.DELETE_VOLUME: ManageOpcode.DELETE_VOLUME,
    AdminOpcode.NAMESPACE_MANAGEMENT: ManageOpcode.DELETE_VOLUME,
}

_BACKGROUND_OPCODES = {
    AdminOpcode.START_JOB: ManageOpcode.START_JOB,
    AdminOpcode.STOP_JOB: ManageOpcode.STOP_JOB,
    AdminOpcode.SET_RATE: ManageOpcode.SET_RATE,
    AdminOpcode.REPLACE_MEMBER: ManageOpcode.REPLACE,
    AdminOpcode.ADD_SPARE: ManageOpcode.ADD_SPARE,
    AdminOpcode.REMOVE_SPARE: ManageOpcode.REMOVE_SPARE,
    AdminOpcode.MIGRATE: ManageOpcode.MIGRATE,
}


def opcodes(config: Config) -> dict[AdminOpcode, ManageOpcode]:
    """What each admin command asks of the tables."""
    found = _OPCODES | (_BACKGROUND_OPCODES if config.background else {})
    if config.intent_chunks:
        found |= {AdminOpcode.RE_ADD: ManageOpcode.RE_ADD}
    if config.metadata:
        found |= {
            AdminOpcode.IMPORT: ManageOpcode.FOREIGN,
            AdminOpcode.CLEAR_DRIVE: ManageOpcode.FOREIGN,
        }
    return found


CODES = {
    ManageStatus.DONE: StatusCode.SUCCESS,
    ManageStatus.INVALID_FIELD: StatusCode.INVALID_FIELD,
    ManageStatus.DRIVE_UNAVAILABLE: StatusCode.DRIVE_UNAVAILABLE,
    ManageStatus.NO_ENTRY: StatusCode.NO_ENTRY,
    ManageStatus.IN_USE: StatusCode.IN_USE,
    ManageStatus.NO_SPACE: StatusCode.NO_SPACE,
    ManageStatus.NOT_REDUNDANT: StatusCode.NOT_REDUNDANT,
    ManageStatus.JOB_RUNNING: StatusCode.JOB_RUNNING,
    ManageStatus.OTHER_DRIVE: StatusCode.OTHER_DRIVE,
}


DELETE = 1
"""SEL of Namespace Management."""


class Manage(wiring.Component):
    """Forwards one table change at a time.

    Namespace Management (NVMe 1.4 section 5.20) deletes a volume, or with FFFFFFFFh all of them.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    entry
        The command, held until ``done``. Its opcode is one of `opcodes`.
    start
        A pulse: the command is there.
    done
        A pulse: the command has ended.
    status
        With ``done``: the status field.
    result
        With ``done``: DW0, the number of the array or volume. Of the preview of an import: a bit
        for each member that it would write.
    changed
        A pulse: ``volume`` has been created or deleted.
    created
        With ``changed``: it has been created.
    volume
        The volume.
    table_changes
        Changes to the tables.
    busy
        Something moves without anybody else being waited for.

    Errors: Invalid Field for block numbers beyond 40 bits, and for an LBA format or emulation
    setting that there is not. Invalid Field for Namespace Management other than delete (a volume
    needs an array, which a Create has no field for), and for one of an NSID without a volume.
    Invalid Namespace for an NSID that cannot be.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "entry": In(sqe()),
                "start": In(1),
                "done": Out(1),
                "status": Out(STATUS_BITS),
                "result": Out(32),
                "changed": Out(1),
                "created": Out(1),
                "volume": Out(config.volume_bits),
                "table_changes": Out(Changes(config)),
                "busy": Out(1),
            }
        )

        command = self.entry
        self._creates_volume = command.opcode == AdminOpcode.CREATE_VOLUME.value
        # It is a Namespace Management, which may be of every volume: the one that is next.
        self._standard = command.opcode == AdminOpcode.NAMESPACE_MANAGEMENT.value
        self._every = command.nsid == BROADCAST_NSID
        self._next_volume = Signal(config.volume_bits)
        self._refusal = Signal(STATUS_BITS)

    def elaborate(self, platform) -> Module:
        m = Module()
        response = self.table_changes.response.payload
        self._describe(m)
        self._describe_background(m)
        wrong = self._wrong(m)
        m.d.comb += self.volume.eq(
            Mux(self._creates_volume, response.index, self.table_changes.request.payload.volume)
        )
        with m.FSM(name="manage") as fsm:
            self._take(m, wrong)
            self._ask(m)
            self._answer(m)
            self._refuse(m)
            waits = (
                (fsm.ongoing("TAKE") & ~self.start)
                | (self.table_changes.request.valid & ~self.table_changes.request.ready)
                | (fsm.ongoing("ANSWER") & ~self.table_changes.response.valid)
            )
            m.d.comb += self.busy.eq(~waits)
        return m

    def _describe(self, m: Module) -> None:
        """What the command asks of the tables."""
        command, request = self.entry, self.table_changes.request.payload
        with m.Switch(command.opcode):
            for opcode, operation in opcodes(self._config).items():
                with m.Case(opcode.value):
                    m.d.comb += request.opcode.eq(operation)
        m.d.comb += assign(
            request,
            array=command.cdw10[:8],
            volume=Mux(self._standard, self._next_volume, command.cdw10[:8]),
            level=command.cdw10[:4],
            strip_shift=command.cdw10[8:12],
            rotation=command.cdw10[12:16],
            copies=command.cdw10[16:22],
            spans=command.cdw10[24:30],
            drives=command.cdw11,
            assumed=command.cdw10[4],
            start=Cat(command.cdw11, command.cdw12[:HIGH_BITS]),
            blocks=Cat(command.cdw13, command.cdw14[:HIGH_BITS]),
        )

    def _describe_background(self, m: Module) -> None:
        """What it asks of background work."""
        command = self.entry
        m.d.comb += assign(
            self.table_changes.request.payload,
            position=command.cdw10[8:16],
            port=command.cdw11[:8],
            kind=command.cdw10[8:11],
            resume=command.cdw10[12],
            dedicated=command.cdw10[8],
            initialise=command.cdw10[30],
            zero=command.cdw10[31],
            idle=command.cdw10[5],
            degraded=command.cdw10[6],
            rate=command.cdw10[:8],
            spare=command.cdw11[8],
            preview=command.cdw10[5],
            clear=command.opcode == AdminOpcode.CLEAR_DRIVE.value,
        )

    def _wrong(self, m: Module) -> Value:
        """Whether the command has a field that cannot be. Says which sectors a volume has, if it
        may have a choice."""
        command, request = self.entry, self.table_changes.request.payload
        # As FLBAS of Identify Namespace, then `Emulation`.
        lba_format, emulation = command.cdw10[8:12], command.cdw10[12:14]
        no_format = lba_format != 0
        if self._config.sector_emulation:
            no_format = lba_format[1:].any() | (emulation > Emulation.FORCE.value)
        m.d.comb += [
            request.sectors.eq(self._creates_volume & lba_format[0]),
            request.emulation.as_value().eq(emulation),
        ]
        starts_job = command.opcode == AdminOpcode.START_JOB.value
        start_high, blocks_high = command.cdw12[HIGH_BITS:], command.cdw14[HIGH_BITS:]
        too_large = (self._creates_volume & (start_high | blocks_high).any()) | (
            starts_job & start_high.any()
        )
        no_delete = self._standard & (command.cdw10[:4] != DELETE)
        return too_large | (self._creates_volume & no_format) | no_delete

    def _take(self, m: Module, wrong: Value) -> None:
        """The state TAKE: a command comes, and is looked at."""
        nsid = self.entry.nsid
        with m.State("TAKE"):
            m.d.sync += [
                self._next_volume.eq(Mux(self._every, 0, nsid - 1)),
                self._refusal.eq(status_field(StatusCode.INVALID_FIELD)),
            ]
            with m.If(self.start):
                m.next = "ASK"
                with m.If(wrong):
                    m.next = "REFUSE"
                with m.Elif(
                    self._standard
                    & ~self._every
                    & ((nsid == 0) | (nsid > self._config.volumes))
                ):
                    m.d.sync += self._refusal.eq(status_field(StatusCode.INVALID_NAMESPACE))
                    m.next = "REFUSE"

    def _ask(self, m: Module) -> None:
        """The state ASK: the tables are asked."""
        with m.State("ASK"):
            m.d.comb += self.table_changes.request.valid.eq(1)
            with m.If(self.table_changes.request.ready):
                m.next = "ANSWER"

    def _answer(self, m: Module) -> None:
        """The state ANSWER: the command ends as the tables say, or goes on with the next volume."""
        standard, every, next_volume = self._standard, self._every, self._next_volume
        response = self.table_changes.response.payload
        with m.State("ANSWER"):
            m.d.comb += self.table_changes.response.ready.eq(1)
            with m.Switch(response.status):
                for inner, code in CODES.items():
                    with m.Case(inner):
                        m.d.comb += self.status.eq(status_field(code))
                with m.Default():
                    m.d.comb += self.status.eq(status_field(StatusCode.INTERNAL_ERROR))
            with m.If(standard & (response.status == ManageStatus.NO_ENTRY)):
                m.d.comb += self.status.eq(Mux(every, 0, status_field(StatusCode.INVALID_FIELD)))
            m.d.comb += self.result.eq(Mux(standard, 0, response.index | response.drives))
            with m.If(self.table_changes.response.valid):
                succeeded = response.status == ManageStatus.DONE
                deletes = self.table_changes.request.payload.opcode == ManageOpcode.DELETE_VOLUME
                m.d.comb += [
                    self.created.eq(self._creates_volume & succeeded),
                    self.changed.eq((self._creates_volume | deletes) & succeeded),
                ]
                with m.If(standard & every & (next_volume != self._config.volumes - 1)):
                    m.d.sync += next_volume.eq(next_volume + 1)
                    m.next = "ASK"
                with m.Else():
                    m.d.comb += self.done.eq(1)
                    m.next = "TAKE"

    def _refuse(self, m: Module) -> None:
        """The state REFUSE: the command ends, and the tables do not learn of it."""
        with m.State("REFUSE"):
            m.d.comb += [
                self.done.eq(1),
                self.status.eq(self._refusal),
            ]
            m.next = "TAKE"
