"""Changes to the tables of arrays and volumes, and how they are answered."""

from amaranth.lib import data, enum

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.geometry import WIDTH_BITS
from hdl.kit.optional import optional


class ManageOpcode(enum.Enum, shape=4):
    """Changes to the tables, and (START_JOB to REMOVE_SPARE) what never gets there."""

    CREATE_ARRAY = 0
    DELETE_ARRAY = 1
    CREATE_VOLUME = 2
    DELETE_VOLUME = 3
    REPLACE = 4
    SETTLE = 5
    CHECK_EMPTY = 6
    RE_ADD = 7
    START_JOB = 8
    STOP_JOB = 9
    SET_SHARE = 10
    ADD_SPARE = 11
    REMOVE_SPARE = 12
    COPY = 14
    END_COPY = 15


class CopyEnd(enum.Enum, shape=2):
    """What END_COPY did with the drive that was copied to; ``index`` of the answer, bits 6:5, and
    so of SETTLE: JOINED or RELEASED."""

    RELEASED = 0
    """It is gone, or not all rows are on it: it is free again."""
    JOINED = 1
    """It holds all rows and is the member; the drive that was is free."""
    STALE = 2
    """The member failed: it is the member, and has to be rebuilt from the boundary on."""
    AGAIN = 3
    """It is not known any more whether it holds what the member does: it must be copied anew."""


COPY_END_SHIFT = 5
"""Where `CopyEnd` lies in the answer's ``index``."""


class ManageStatus(enum.Enum, shape=4):
    """How a change to the tables ended."""

    DONE = 0
    INVALID_FIELD = 1
    """A parameter is out of range or does not fit the level."""
    DRIVE_UNAVAILABLE = 2
    """A named drive is absent or belongs to another array."""
    NO_ENTRY = 3
    """The table is full, or the named entry does not exist."""
    IN_USE = 4
    """The array still has volumes."""
    NO_SPACE = 5
    """The volume does not fit, or overlaps another."""
    NOT_REDUNDANT = 6
    """The array has nothing to rebuild a member from."""
    JOB_RUNNING = 7
    """Not while a job works on the array."""
    OTHER_DRIVE = 8
    """The drive is not known to be the one that was the member."""


class Emulation(enum.Enum, shape=2):
    """What a volume of 512-byte sectors says of its physical sectors (the SCSI term is 512e)."""

    DEFAULT = 0
    """4096 bytes if a member's have as many and are emulated by the drive, else 512."""
    NONE = 1
    """512 bytes."""
    FORCE = 2
    """4096 bytes."""


def manage_request(config: Config) -> data.StructLayout:
    """A change to the tables.

    CREATE_ARRAY: ``level``, ``strip_shift``, ``copies`` (RAID 1/10; 0: the level's default),
    ``spans`` (0 counts as 1), ``rotation`` (`Rotation`; 0 for levels without parity), ``drives``
    (bit a port; members in ascending port order), ``assumed``: rows are taken to be consistent.
    DELETE_ARRAY: ``array``. CREATE_VOLUME: ``array``, ``start``, ``blocks`` (0: to the end);
    ``sectors`` and ``emulation`` are not the tables', but `hdl.nvme.commands.formats`'.
    DELETE_VOLUME: ``volume``.

    With `Config.background`: REPLACE: member ``position`` of ``array`` is failed and becomes the
    drive at ``port``, which is to be rebuilt; it may be the one that it was. RE_ADD (with
    `Config.intent_chunks`): member ``position`` of ``array`` is failed and its drive there again,
    which has missed no more than what is marked. SETTLE: the members of
    ``array`` that were stale are rebuilt, and trusted once they have been flushed; `CopyEnd` of the
    answer is JOINED if all of them are. With ``zero`` all live drives of ``array`` have been
    written, and are flushed; JOINED if those that have not failed by then did that.
    CHECK_EMPTY: ``array`` exists and has no volumes.
    COPY: live member ``position`` of ``array`` is copied to the free drive at ``port``; ``spare``:
    the one that it leaves becomes a hot spare. END_COPY: the copy of ``array`` ends as `CopyEnd`
    says; ``complete``: all rows have been copied, so the drive is flushed, and is failed if it
    does not do that.
    START_JOB: ``kind`` (`hdl.flow.walk.WalkKind`) on ``array`` from row ``start`` on;
    ``resume``: from where it was. STOP_JOB: ``array``. SET_SHARE: ``share`` in percent.
    ADD_SPARE: drive ``port``, for every array or if ``dedicated`` for ``array``. REMOVE_SPARE:
    ``port``. CREATE_ARRAY: begins with a job that makes rows consistent unless they are
    ``assumed`` to be; with ``zero`` it makes them all zeros, with ``idle`` there is no job yet;
    ``initialise`` asks for what is done anyway. ``degraded``: named ports without a drive become
    failed members, as many as the level tolerates.
    """
    formats = optional(config.sector_emulation, {"sectors": 1, "emulation": Emulation})
    return data.StructLayout(
        {
            "opcode": ManageOpcode,
            "array": 8,
            "volume": 8,
            "level": 4,
            "strip_shift": 4,
            "copies": WIDTH_BITS,
            "spans": WIDTH_BITS,
            "rotation": 4,
            "drives": 32,
            "start": BLOCK_NUMBER_BITS,
            "blocks": BLOCK_NUMBER_BITS,
            "assumed": 1,
        }
        | optional(
            config.background,
            {
                "position": 8,
                "port": 8,
                "kind": 3,
                "resume": 1,
                "dedicated": 1,
                "initialise": 1,
                "zero": 1,
                "idle": 1,
                "degraded": 1,
                "share": 8,
                "spare": 1,
                "complete": 1,
            },
        )
        | formats
    )


def manage_response(config: Config) -> data.StructLayout:
    """The answer: ``index`` is the array or volume created.

    Of END_COPY: 4:0 the port that the member was at, 6:5 `CopyEnd`, 7 that port becomes a spare.
    """
    return data.StructLayout({"status": ManageStatus, "index": 8})
