"""Changes to the tables of arrays and volumes, and their answers."""

from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.geometry import WIDTH_BITS
from hdl.flow.volume_facts import volume_name
from hdl.kit.optional import optional
from hdl.kit.pulse import Pulse


class ManageOpcode(enum.Enum, shape=4):
    """Changes to the tables. START_JOB to REMOVE_SPARE end in `hdl.background.supervisor` and never
    reach the tables. FOREIGN ends in `hdl.metadata`."""

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
    SET_RATE = 10
    ADD_SPARE = 11
    REMOVE_SPARE = 12
    FOREIGN = 13
    MIGRATE = 14
    END_MIGRATION = 15


class MigrationEnd(enum.Enum, shape=2):
    """How END_MIGRATION ended the migration of a member to another drive.

    It is bits 6:5 of ``index`` of the answer. The answer of SETTLE has it as well, as JOINED or
    RELEASED.
    """

    RELEASED = 0
    """The new drive has gone, or not all rows are on it. It is free again."""
    JOINED = 1
    """The new drive holds all rows and is the member. The old drive is free."""
    STALE = 2
    """The member failed. The new drive is the member and must be rebuilt from the boundary on."""
    AGAIN = 3
    """It is no longer known whether the new drive holds the member's data. The migration must begin
    anew."""


MIGRATION_END_SHIFT = 5
"""Where `MigrationEnd` lies in ``index`` of the answer."""


class ManageStatus(enum.Enum, shape=4):
    """How a change to the tables ended."""

    DONE = 0
    INVALID_FIELD = 1
    """A parameter is out of range or does not fit the level or the other parameters."""
    DRIVE_UNAVAILABLE = 2
    """A named drive is absent, belongs to another array or is a spare."""
    NO_ENTRY = 3
    """The table is full, or the named array, volume, job or spare does not exist."""
    IN_USE = 4
    """The array still has volumes, the member to replace or to re-add is not failed, or the one to
    migrate is failed."""
    NO_SPACE = 5
    """The volume does not fit or overlaps another, or a drive is too small."""
    NOT_REDUNDANT = 6
    """The array has failed, so a member cannot be rebuilt."""
    JOB_RUNNING = 7
    """A job works on the array."""
    OTHER_DRIVE = 8
    """The drive is not, or is not known to be, the one that was the member."""


class Emulation(enum.Enum, shape=2):
    """Physical sectors that a volume of 512-byte sectors reports (the SCSI term is 512e)."""

    DEFAULT = 0
    """4096 bytes if a member has physical sectors of 4096 bytes and emulates its own 512-byte
    sectors, else 512 bytes."""
    NONE = 1
    """512 bytes."""
    FORCE = 2
    """4096 bytes."""


def manage_request(config: Config) -> data.StructLayout:
    """A change to the tables. ``position`` is the member index over all spans.

    Changes that a controller always has
    ------------------------------------
    CREATE_ARRAY
        Creates an array from ``level``, ``strip_shift``, ``copies`` (RAID 1 and 10; 0 is the
        level's default), ``spans`` (0 counts as 1) and ``rotation`` (`Rotation`; 0 for levels
        without parity). ``drives`` has a bit for each port. Members are in ascending port order.
        With ``assumed`` the rows are taken to be consistent.
    DELETE_ARRAY
        Deletes ``array``.
    CREATE_VOLUME
        Creates a volume of ``blocks`` blocks (0: to the end) from block ``start`` of ``array``.
        ``sectors`` and ``emulation`` go to `hdl.nvme.commands.formats` and not to the tables.
    DELETE_VOLUME
        Deletes ``volume``.

    Changes with `Config.background`
    --------------------------------
    CREATE_ARRAY
        The array begins with a job that makes its rows consistent, unless they are ``assumed`` to
        be. With ``zero`` the job writes zeros instead. With ``idle`` there is no job yet.
        ``initialise`` asks for the default. With ``degraded`` named ports without a drive become
        failed members, as many as the level tolerates.
    CREATE_ARRAY with ``placed``
        Only with `Config.metadata`. Brings up an array that its drives hold. The position of each
        drive, and whether the member is failed or stale, is what `ArrayTables.placed_read` says of
        its port, and each member has ``blocks`` blocks at most, of which ``start`` come before its
        rows. Members that are failed or stale, or whose port has no drive, must be ``degraded``.
        Such a port may be one that the controller does not have. With ``complete`` none of them is
        stale. With ``marked`` the rows that stale ones may lack are marked as this is answered, or
        soon after.
    CREATE_VOLUME with ``placed``
        Only with `Config.metadata`. Brings up a volume that the drives of the array list. It has
        ``name``, and gets number ``volume`` if that is free. ``sectors`` and ``emulation`` are
        those that it was given, and not the default.
    FOREIGN
        Only with `Config.metadata`. Brings up the array that the drive at ``port`` belongs to,
        whoever has had it, and this controller has it from then on. With ``degraded`` drives may be
        missing, and with ``assumed`` as well the array may be dirty and lack one. With ``preview``
        it is only said what would be written. With ``clear`` the superblock of that drive, which is
        in no array, becomes zeros instead.
    REPLACE
        Member ``position`` of ``array`` is failed. The drive at ``port`` takes its place and is to
        be rebuilt. It may be the drive that was the member before.
    RE_ADD
        Only with `Config.intent_chunks`. Member ``position`` of ``array`` is failed, and its drive
        is there again. It has missed only writes to chunks that are marked.
    SETTLE
        Flushes all live drives of ``array``. `MigrationEnd` of the answer is JOINED if all drives
        that have not failed by then have ended that flush well. With ``complete`` the stale members
        have been rebuilt. Those that end the flush well are trusted, and the others are failed. The
        answer is then JOINED only if there are stale members and all of them are trusted as well.
    CHECK_EMPTY
        Checks that ``array`` exists and has no volumes.
    MIGRATE
        Begins the migration of live member ``position`` of ``array`` to the free drive at ``port``.
        With ``spare`` the old drive becomes a hot spare at the end.
    END_MIGRATION
        Ends the migration in ``array``. `MigrationEnd` of the answer says how. With ``complete``
        all rows are on the new drive. It is flushed, and it is failed if it does not end that flush
        well.
    START_JOB
        Starts a job of ``kind`` (`hdl.flow.walk.WalkKind`) on ``array`` from row ``start`` on, or
        with ``resume`` from the row where the last job was.
    STOP_JOB
        Stops the job of ``array``.
    SET_RATE
        Sets the rate of background work to ``rate`` percent.
    ADD_SPARE
        Makes the drive at ``port`` a spare of every array, or with ``dedicated`` of ``array`` only.
    REMOVE_SPARE
        Makes the drive at ``port`` no spare any more.
    """
    metadata = {"placed": 1, "marked": 1, "name": volume_name(), "preview": 1, "clear": 1}
    placed = optional(config.metadata, metadata)
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
                "rate": 8,
                "spare": 1,
                "complete": 1,
            },
        )
        | placed
        | formats
    )


def manage_response(config: Config) -> data.StructLayout:
    """The answer to a change.

    Fields
    ------
    status
        How the change ended.
    index
        The number of the array or volume that was created. Of END_MIGRATION: bits 4:0 are the port
        that the member had, bits 6:5 are `MigrationEnd`, and bit 7 says that this port becomes a
        spare. 0 with ``preview``.
    drives
        Only with `Config.metadata`. With ``preview``: a bit for each member that would be written.
        Else 0.
    """
    drives = optional(config.metadata, {"drives": 32})
    return data.StructLayout({"status": ManageStatus, "index": 8} | drives)


class Changes(wiring.Signature):
    """Changes to the tables and their answers, seen from who asks for them.

    Ports
    -----
    request
        Changes, one at a time.
    response
        One answer to each.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "request": Out(stream.Signature(manage_request(config))),
                "response": In(stream.Signature(manage_response(config))),
            }
        )


class MadeChange(wiring.Signature):
    """A change to the tables as it is made, seen from the tables.

    Ports
    -----
    asked
        It has been taken.
    answered
        How it has been answered, before another one is taken.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "asked": Out(Pulse(manage_request(config))),
                "answered": Out(Pulse(manage_response(config))),
            }
        )
