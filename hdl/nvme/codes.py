"""Codes and register offsets of the NVM Express base specification 1.4, and the vendor's own."""

from amaranth.lib import enum

from hdl.flow.host_command import Status

DO_NOT_RETRY = 1 << 14
"""DNR in the 15-bit status field (section 4.6.1)."""

MORE = 1 << 13
"""M in the status field: the error log has an entry for the command."""

STATUS_BITS = 15
"""Status field of a completion queue entry without the phase: SC, SCT, CRD, M, DNR."""

SQE_DWORDS = 16
SQE_BITS = 32 * SQE_DWORDS
CQE_DWORDS = 4
PAGE_SHIFT = 12
"""Memory page size 4 KiB (CC.MPS = 0)."""

BROADCAST_NSID = 0xFFFF_FFFF
VERSION = 0x0001_0400
"""NVMe 1.4.0 (section 3.1.2)."""

WARNING_KELVIN = 343
CRITICAL_KELVIN = 358
"""WCTEMP and CCTEMP of Identify Controller: 70 and 85 degrees Celsius."""

SQ_ENTRY_EXPONENT = 6
CQ_ENTRY_EXPONENT = 4


class Register(enum.Enum, shape=6):
    """Controller register offsets (section 3.1)."""

    CAP = 0x00
    VS = 0x08
    INTMS = 0x0C
    INTMC = 0x10
    CC = 0x14
    CSTS = 0x1C
    AQA = 0x24
    ASQ = 0x28
    ACQ = 0x30


class Region(enum.Enum, shape=2):
    """The four 4 KiB regions of BAR 0."""

    CONTROL = 0
    DOORBELLS = 1
    MSIX_TABLE = 2
    MSIX_PENDING = 3


class AdminOpcode(enum.Enum, shape=8):
    """Admin commands (section 5). Vendor opcodes keep bits 1:0 as the data direction."""

    DELETE_SQ = 0x00
    CREATE_SQ = 0x01
    GET_LOG_PAGE = 0x02
    DELETE_CQ = 0x04
    CREATE_CQ = 0x05
    IDENTIFY = 0x06
    ABORT = 0x08
    SET_FEATURES = 0x09
    GET_FEATURES = 0x0A
    ASYNC_EVENT_REQUEST = 0x0C
    NAMESPACE_MANAGEMENT = 0x0D
    NAMESPACE_ATTACHMENT = 0x15
    CREATE_ARRAY = 0xC0
    LIST = 0xC2
    DELETE_ARRAY = 0xC4
    CREATE_VOLUME = 0xC8
    DELETE_VOLUME = 0xCC
    START_JOB = 0xD0
    STOP_JOB = 0xD4
    SET_RATE = 0xD8
    REPLACE_MEMBER = 0xDC
    ADD_SPARE = 0xE0
    REMOVE_SPARE = 0xE4
    RE_ADD = 0xE8
    MIGRATE = 0xEC
    IMPORT = 0xF0
    CLEAR_DRIVE = 0xF4


class IoOpcode(enum.Enum, shape=8):
    """NVM command set (section 6)."""

    FLUSH = 0x00
    WRITE = 0x01
    READ = 0x02
    COMPARE = 0x05
    WRITE_ZEROES = 0x08
    DATASET_MANAGEMENT = 0x09
    VERIFY = 0x0C


class Feature(enum.Enum, shape=8):
    """Feature identifiers (section 5.21.1)."""

    ARBITRATION = 0x01
    POWER_MANAGEMENT = 0x02
    TEMPERATURE_THRESHOLD = 0x04
    ERROR_RECOVERY = 0x05
    VOLATILE_WRITE_CACHE = 0x06
    NUMBER_OF_QUEUES = 0x07
    INTERRUPT_COALESCING = 0x08
    INTERRUPT_VECTOR = 0x09
    WRITE_ATOMICITY = 0x0A
    ASYNC_EVENT = 0x0B


class StructureCode(enum.Enum, shape=8):
    """CNS of Identify (section 5.15)."""

    NAMESPACE = 0x00
    CONTROLLER = 0x01
    ACTIVE_NAMESPACES = 0x02
    DESCRIPTORS = 0x03
    ALLOCATED_NAMESPACES = 0x10
    ALLOCATED_NAMESPACE = 0x11
    NAMESPACE_CONTROLLERS = 0x12
    CONTROLLERS = 0x13


class LogPage(enum.Enum, shape=8):
    """Log page identifiers (section 5.14.1)."""

    ERROR = 0x01
    SMART = 0x02
    FIRMWARE_SLOT = 0x03
    CHANGED_NAMESPACES = 0x04
    ARRAY_STATES = 0xC0
    DEFECTS = 0xC1
    LOST_BLOCKS = 0xC2


class EventType(enum.Enum, shape=3):
    """Asynchronous event types (section 5.2, figure 145)."""

    ERROR = 0
    HEALTH = 1
    NOTICE = 2
    VENDOR = 7


class ListPage(enum.Enum, shape=8):
    """Pages of the vendor command LIST."""

    ARRAYS = 0x00
    VOLUMES = 0x01
    DRIVES = 0x02


class StatusCode(enum.Enum, shape=11):
    """SCT and SC (section 4.6.1): generic 0x0.., command specific 0x1.., media 0x2..."""

    SUCCESS = 0x000
    INVALID_OPCODE = 0x001
    INVALID_FIELD = 0x002
    DATA_TRANSFER_ERROR = 0x004
    INTERNAL_ERROR = 0x006
    ABORT_REQUESTED = 0x007
    INVALID_NAMESPACE = 0x00B
    COMMAND_SEQUENCE = 0x00C
    INVALID_PRP_OFFSET = 0x013
    LBA_OUT_OF_RANGE = 0x080
    NAMESPACE_NOT_READY = 0x082
    INVALID_CQ = 0x100
    INVALID_QUEUE = 0x101
    INVALID_QUEUE_SIZE = 0x102
    ASYNC_EVENT_LIMIT = 0x105
    INVALID_VECTOR = 0x108
    INVALID_LOG_PAGE = 0x109
    INVALID_QUEUE_DELETION = 0x10C
    FEATURE_NOT_SAVEABLE = 0x10D
    FEATURE_NOT_CHANGEABLE = 0x10E
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10F
    NAMESPACE_ATTACHED = 0x118
    NAMESPACE_NOT_ATTACHED = 0x11A
    CONTROLLER_LIST_INVALID = 0x11C
    DRIVE_UNAVAILABLE = 0x1C0
    NO_ENTRY = 0x1C1
    IN_USE = 0x1C2
    NO_SPACE = 0x1C3
    NOT_REDUNDANT = 0x1C4
    JOB_RUNNING = 0x1C5
    OTHER_DRIVE = 0x1C6
    WRITE_FAULT = 0x280
    UNRECOVERED_READ = 0x281
    COMPARE_FAILURE = 0x285


RETRYABLE = frozenset(
    {
        StatusCode.SUCCESS,
        StatusCode.DATA_TRANSFER_ERROR,
        StatusCode.INTERNAL_ERROR,
        StatusCode.ABORT_REQUESTED,
        StatusCode.NAMESPACE_NOT_READY,
        StatusCode.WRITE_FAULT,
        StatusCode.UNRECOVERED_READ,
    }
)
"""Codes without DNR. The same command may succeed later. All other codes blame the command."""

DATA_PATH_CODES = {
    Status.SUCCESS: StatusCode.SUCCESS,
    Status.LBA_OUT_OF_RANGE: StatusCode.LBA_OUT_OF_RANGE,
    Status.INVALID_NAMESPACE: StatusCode.INVALID_FIELD,
    Status.DATA_TRANSFER_ERROR: StatusCode.DATA_TRANSFER_ERROR,
    Status.UNRECOVERED_READ: StatusCode.UNRECOVERED_READ,
    Status.WRITE_FAULT: StatusCode.WRITE_FAULT,
    Status.INTERNAL_ERROR: StatusCode.INTERNAL_ERROR,
    Status.COMPARE_FAILURE: StatusCode.COMPARE_FAILURE,
}
"""How the data path's `Status` reads on the wire. A namespace that the data path does not know is
inactive, which is an Invalid Field (section 6.1.3). NSIDs that cannot be never get there."""


UNSPECIFIED_LOCATION = 0xFFFF
"""Parameter Error Location of an error that no one parameter is to blame for."""

PARAMETER_LOCATIONS = {
    0: (StatusCode.INVALID_OPCODE,),
    4: (StatusCode.INVALID_NAMESPACE, StatusCode.FEATURE_NOT_NAMESPACE_SPECIFIC),
    24: (StatusCode.INVALID_PRP_OFFSET,),
    40: (
        StatusCode.LBA_OUT_OF_RANGE,
        StatusCode.INVALID_QUEUE,
        StatusCode.INVALID_QUEUE_DELETION,
        StatusCode.INVALID_LOG_PAGE,
        StatusCode.FEATURE_NOT_SAVEABLE,
    ),
    42: (StatusCode.INVALID_QUEUE_SIZE,),
    44: (StatusCode.FEATURE_NOT_CHANGEABLE,),
    46: (StatusCode.INVALID_CQ, StatusCode.INVALID_VECTOR),
}
"""Parameter Error Location (figure 193) of each code that blames one: byte of the entry, bit 0."""


def status_field(code: StatusCode, *, more: bool = True) -> int:
    """The 15-bit status field of ``code``, with DNR and M. With ``more`` an error is logged."""
    if code == StatusCode.SUCCESS:
        return 0
    return code.value | (0 if code in RETRYABLE else DO_NOT_RETRY) | (MORE if more else 0)
