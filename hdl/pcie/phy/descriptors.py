"""Descriptors of the Xilinx UltraScale+ PCIe block (PG213, "Requester/Completer ... Descriptor").

All four interfaces send a descriptor of 32-bit words first, then payload.
"""

from amaranth.hdl import Cat, Mux, Value
from amaranth.lib import data, enum

from hdl.pcie.tlp import CompletionStatus


class RequestType(enum.Enum, shape=4):
    """Type of a request, to the host (RQ) or from it (CQ)."""

    MEMORY_READ = 0
    MEMORY_WRITE = 1
    IO_READ = 2
    IO_WRITE = 3
    FETCH_ADD = 4
    SWAP = 5
    COMPARE_SWAP = 6
    LOCKED_READ = 7
    CONFIGURATION_READ_0 = 8
    CONFIGURATION_READ_1 = 9
    CONFIGURATION_WRITE_0 = 10
    CONFIGURATION_WRITE_1 = 11
    MESSAGE = 12
    VENDOR_MESSAGE = 13
    ATS_MESSAGE = 14
    RESERVED = 15


class ErrorCode(enum.Enum, shape=4):
    """What the block found wrong with a completion (RC)."""

    NONE = 0
    POISONED = 1
    BAD_STATUS = 2
    BAD_LENGTH = 3
    MISMATCH = 4
    BAD_ADDRESS = 5
    BAD_TAG = 6
    RESERVED_7 = 7
    FUNCTION_RESET = 8
    TIMEOUT = 9
    RESERVED_10 = 10
    RESERVED_11 = 11
    RESERVED_12 = 12
    RESERVED_13 = 13
    RESERVED_14 = 14
    RESERVED_15 = 15


class RequesterRequest(data.Struct):
    """RQ descriptor, 4 words."""

    address_type: 2
    address: 62
    dwords: 11
    kind: RequestType
    poisoned: 1
    requester_id: 16
    tag: 8
    completer_id: 16
    requester_id_enable: 1
    traffic_class: 3
    attributes: 3
    force_ecrc: 1


class RequesterCompletion(data.Struct):
    """RC descriptor, 3 words."""

    lower_address: 12
    error: ErrorCode
    byte_count: 13
    locked: 1
    request_completed: 1
    reserved_0: 1
    dwords: 11
    status: 3
    poisoned: 1
    reserved_1: 1
    requester_id: 16
    tag: 8
    completer_id: 16
    reserved_2: 1
    traffic_class: 3
    attributes: 3
    reserved_3: 1


class CompleterRequest(data.Struct):
    """CQ descriptor, 4 words."""

    address_type: 2
    address: 62
    dwords: 11
    kind: RequestType
    reserved_0: 1
    requester_id: 16
    tag: 8
    target_function: 8
    bar: 3
    bar_aperture: 6
    traffic_class: 3
    attributes: 3
    reserved_1: 1


class CompleterCompletion(data.Struct):
    """CC descriptor, 3 words. The completer's function is in bits 79:72, its bus in 87:80."""

    lower_address: 7
    reserved_0: 1
    address_type: 2
    reserved_1: 6
    byte_count: 13
    locked: 1
    reserved_2: 2
    dwords: 11
    status: 3
    poisoned: 1
    reserved_3: 1
    requester_id: 16
    tag: 8
    completer_function: 8
    completer_bus: 8
    completer_id_enable: 1
    traffic_class: 3
    attributes: 3
    force_ecrc: 1


RQ_DESCRIPTOR_DWORDS = 4
RC_DESCRIPTOR_DWORDS = 3
CQ_DESCRIPTOR_DWORDS = 4
CC_DESCRIPTOR_DWORDS = 3


def describe_completion(words: Value) -> tuple[Value, dict[str, Value]]:
    """Whether a completion is nobody's, and the fields of `completion_beat`, by its RC descriptor.

    A request that the block gave up appears as a completer abort.
    """
    descriptor = RequesterCompletion(words)
    error = descriptor.error
    given_up = (error == ErrorCode.TIMEOUT) | (error == ErrorCode.FUNCTION_RESET)
    stray = Cat(error == ErrorCode.MISMATCH, error == ErrorCode.BAD_TAG).any()
    return stray, {
        "tag": descriptor.tag,
        "status": Mux(given_up, CompletionStatus.CA.value, descriptor.status),
        "dwords": Mux(given_up, 0, descriptor.dwords),
        "byte_count": descriptor.byte_count,
        "lower_address": descriptor.lower_address,
        "request_completed": descriptor.request_completed,
        "poisoned": (
            descriptor.poisoned
            | (error == ErrorCode.POISONED)
            | (error == ErrorCode.BAD_LENGTH)
            | (error == ErrorCode.BAD_ADDRESS)
        ),
    }
