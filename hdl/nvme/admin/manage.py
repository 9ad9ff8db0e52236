"""Vendor admin commands that change the tables: fields in, status and index out."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.manage import Emulation, ManageOpcode, ManageStatus, manage_request, manage_response
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
    AdminOpcode.SET_SHARE: ManageOpcode.SET_SHARE,
    AdminOpcode.REPLACE_MEMBER: ManageOpcode.REPLACE,
    AdminOpcode.ADD_SPARE: ManageOpcode.ADD_SPARE,
    AdminOpcode.REMOVE_SPARE: ManageOpcode.REMOVE_SPARE,
    AdminOpcode.COPY_BACK: ManageOpcode.COPY,
}


def opcodes(config: Config) -> dict[AdminOpcode, ManageOpcode]:
    """What each admin command asks of the tables."""
    returns = {AdminOpcode.RE_ADD: ManageOpcode.RE_ADD} if config.intent_chunks else {}
    return _OPCODES | (_BACKGROUND_OPCODES if config.background else {}) | returns


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
    entry, start
        The command, held until ``done``, and a pulse. Its opcode is one of `opcodes`.
    done, status, result
        A pulse with the status field and DW0: the number of the array or volume.
    changed, created, volume
        A pulse: the volume has been created or deleted.
    manage_request, manage_response
        To and from the tables.

    Errors: Invalid Field for block numbers beyond 40 bits, for an LBA format or emulation setting
    that there is not, and for Namespace Management other than
    delete (a volume needs an array, which a Create has no field for) or of an NSID without a
    volume; Invalid Namespace for an NSID that cannot be.
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
                "manage_request": Out(stream.Signature(manage_request(config))),
                "manage_response": In(stream.Signature(manage_response(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        entry = self.entry
        request = self.manage_request.payload
        response = self.manage_response.payload
        creates_volume = entry.opcode == AdminOpcode.CREATE_VOLUME.value

        standard = entry.opcode == AdminOpcode.NAMESPACE_MANAGEMENT.value
        every = entry.nsid == BROADCAST_NSID
        number = Signal(config.volume_bits)
        m.d.comb += self.volume.eq(Mux(creates_volume, response.index, request.volume))
        with m.Switch(entry.opcode):
            for opcode, operation in opcodes(config).items():
                with m.Case(opcode.value):
                    m.d.comb += request.opcode.eq(operation)
        m.d.comb += assign(
            request,
            array=entry.cdw10[:8],
            volume=Mux(standard, number, entry.cdw10[:8]),
            level=entry.cdw10[:4],
            strip_shift=entry.cdw10[8:12],
            rotation=entry.cdw10[12:16],
            copies=entry.cdw10[16:22],
            spans=entry.cdw10[24:30],
            drives=entry.cdw11,
            assumed=entry.cdw10[4],
            start=Cat(entry.cdw11, entry.cdw12[:HIGH_BITS]),
            blocks=Cat(entry.cdw13, entry.cdw14[:HIGH_BITS]),
        )
        if config.background:
            m.d.comb += assign(
                request,
                position=entry.cdw10[8:16],
                port=entry.cdw11[:8],
                kind=entry.cdw10[8:11],
                resume=entry.cdw10[12],
                dedicated=entry.cdw10[8],
                initialise=entry.cdw10[30],
                zero=entry.cdw10[31],
                idle=entry.cdw10[5],
                degraded=entry.cdw10[6],
                share=entry.cdw10[:8],
                spare=entry.cdw11[8],
            )
        refusal = Signal(STATUS_BITS)
        deletes_volume = request.opcode == ManageOpcode.DELETE_VOLUME
        # As FLBAS of Identify Namespace, then `Emulation`.
        lba_format, emulation = entry.cdw10[8:12], entry.cdw10[12:14]
        no_format = lba_format != 0
        if config.sector_emulation:
            no_format = lba_format[1:].any() | (emulation > Emulation.FORCE.value)
            m.d.comb += [
                request.sectors.eq(creates_volume & lba_format[0]),
                request.emulation.as_value().eq(emulation),
            ]
        starts_job = entry.opcode == AdminOpcode.START_JOB.value
        too_large = (creates_volume & (entry.cdw12[HIGH_BITS:] | entry.cdw14[HIGH_BITS:]).any()) | (
            starts_job & entry.cdw12[HIGH_BITS:].any()
        )

        with m.FSM(name="manage") as fsm:
            with m.State("TAKE"):
                m.d.sync += [
                    number.eq(Mux(every, 0, entry.nsid - 1)),
                    refusal.eq(status_field(StatusCode.INVALID_FIELD)),
                ]
                with m.If(self.start):
                    m.next = "ASK"
                    wrong = too_large | (creates_volume & no_format)
                    with m.If(wrong | (standard & (entry.cdw10[:4] != DELETE))):
                        m.next = "REFUSE"
                    with m.Elif(
                        standard & ~every & ((entry.nsid == 0) | (entry.nsid > config.volumes))
                    ):
                        m.d.sync += refusal.eq(status_field(StatusCode.INVALID_NAMESPACE))
                        m.next = "REFUSE"

            with m.State("ASK"):
                m.d.comb += self.manage_request.valid.eq(1)
                with m.If(self.manage_request.ready):
                    m.next = "ANSWER"

            with m.State("ANSWER"):
                m.d.comb += self.manage_response.ready.eq(1)
                with m.Switch(response.status):
                    for inner, code in CODES.items():
                        with m.Case(inner):
                            m.d.comb += self.status.eq(status_field(code))
                    with m.Default():
                        m.d.comb += self.status.eq(status_field(StatusCode.INTERNAL_ERROR))
                with m.If(standard & (response.status == ManageStatus.NO_ENTRY)):
                    m.d.comb += self.status.eq(
                        Mux(every, 0, status_field(StatusCode.INVALID_FIELD))
                    )
                m.d.comb += self.result.eq(Mux(standard, 0, response.index))
                with m.If(self.manage_response.valid):
                    succeeded = response.status == ManageStatus.DONE
                    m.d.comb += [
                        self.created.eq(creates_volume & succeeded),
                        self.changed.eq((creates_volume | deletes_volume) & succeeded),
                    ]
                    with m.If(standard & every & (number != config.volumes - 1)):
                        m.d.sync += number.eq(number + 1)
                        m.next = "ASK"
                    with m.Else():
                        m.d.comb += self.done.eq(1)
                        m.next = "TAKE"

            with m.State("REFUSE"):
                m.d.comb += [
                    self.done.eq(1),
                    self.status.eq(refusal),
                ]
                m.next = "TAKE"

            waits = (
                (fsm.ongoing("TAKE") & ~self.start)
                | (self.manage_request.valid & ~self.manage_request.ready)
                | (fsm.ongoing("ANSWER") & ~self.manage_response.valid)
            )
            m.d.comb += self.busy.eq(~waits)
        return m
