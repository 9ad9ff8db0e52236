"""Array and volume tables as other blocks see them, and what the mapper says of a command."""

from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.nvme.interface import HostOpcode, Status, recovery

WIDTH_BITS = 6
"""Width of a number of drives, 1..32."""


class Level(enum.Enum, shape=4):
    """RAID level as the host names it (SNIA CRDS); the hardware only looks at `geometry`."""

    RAID0 = 0
    RAID1 = 1
    RAID5 = 5
    RAID6 = 6
    RAIDTP = 7
    RAID10 = 10
    JBOD = 15


class Rotation(enum.Enum, shape=4):
    """How parity moves from stripe to stripe, by mdadm's names; `RotationBits` in one number.

    With n drives in a span, in stripe s: LEFT: P at place n - 1 - s mod n, RIGHT: at s mod n.
    SYMMETRIC: the host's blocks begin after the last parity and go round; ASYMMETRIC: they
    ascend from place 0. Q and R follow P. DDF_N_CONTINUE: Q precedes P; DDF_N_RESTART begins a
    stripe later than LEFT_ASYMMETRIC, so that P and Q are last in stripe 0; in all three DDF
    layouts (SNIA DDF, PRL 6 with RLQ 1 to 3; RAID 6 only) a block at place x weighs g**x in Q.
    """

    LEFT_SYMMETRIC = 0
    RIGHT_SYMMETRIC = 1
    LEFT_ASYMMETRIC = 2
    RIGHT_ASYMMETRIC = 3
    PARITY_LAST = 4
    PARITY_FIRST = 5
    DDF_N_CONTINUE = 8
    DDF_N_RESTART = 10
    DDF_ZERO_RESTART = 11


class RotationBits(data.Struct):
    """A `Rotation` as hardware uses it.

    ``right``: data role 0 moves a drive to the right each stripe, else to the left. ``ascending``:
    the host's blocks ascend from place 0. ``fixed``: nothing moves. ``ddf``: weights by place.
    """

    right: 1
    ascending: 1
    fixed: 1
    ddf: 1


def geometry(config: Config) -> data.StructLayout:
    """Everything the data path needs of an array.

    ``width``: drives in a span (1..32). ``data``: data strips of a stripe before mirroring
    (``width`` - ``parities`` or ``width``). ``parities``: 0..4. ``copies``: 1, or the copies of
    each strip. ``spans``: parity sets striped over. ``strip_shift``: log2 of the blocks of a strip,
    0..8. ``rows``: rows of a span. ``blocks``: blocks the array offers.
    ``rotate``: parity moves by a drive each stripe, else fixed. ``rotation``: how. ``assumed``:
    rows were taken to be consistent when the array was made (only without `Config.background`,
    where nothing else can make them so; else `hdl.background.jobs.Jobs` knows).
    """
    assumed = {} if config.background else {"assumed": 1}
    return data.StructLayout(
        {
            "valid": 1,
            "level": Level,
            "width": WIDTH_BITS,
            "data": WIDTH_BITS,
            "parities": 3,
            "copies": WIDTH_BITS,
            "spans": WIDTH_BITS,
            "strip_shift": 4,
            "rotate": 1,
            "rotation": RotationBits,
            "rows": BLOCK_NUMBER_BITS,
            "blocks": BLOCK_NUMBER_BITS,
            **assumed,
        }
    )


def volume(config: Config) -> data.StructLayout:
    """A volume: ``blocks`` blocks of array ``array`` from block ``start``."""
    return data.StructLayout(
        {
            "valid": 1,
            "array": config.array_bits,
            "start": BLOCK_NUMBER_BITS,
            "blocks": BLOCK_NUMBER_BITS,
        }
    )


def member_address(config: Config) -> data.StructLayout:
    """Which member: array, and position 0..31 over all spans (span * width + place in the span)."""
    return data.StructLayout({"position": 5, "array": config.array_bits})


class TableRead(wiring.Signature):
    """A synchronous table read, seen from the reader: ``data`` follows ``address`` by one cycle."""

    def __init__(self, address_shape, data_shape):
        super().__init__({"address": Out(address_shape), "data": In(data_shape)})


def geometry_read(config: Config) -> TableRead:
    """Reads the geometry of an array."""
    return TableRead(config.array_bits, geometry(config))


def member_read(config: Config) -> TableRead:
    """Reads the port number of a member."""
    return TableRead(member_address(config), config.port_bits)


def volume_read(config: Config) -> TableRead:
    """Reads a volume."""
    return TableRead(config.volume_bits, volume(config))


def extent(config: Config) -> data.StructLayout:
    """Consecutive rows of one strip that a host command touches.

    ``status`` other than SUCCESS: the command fails as a whole, nothing else holds. FLUSH: only
    ``array`` and ``volume`` hold (the latter not there without `Config.background`).
    ``row``: first row (block number on each member, counted from the start of
    the array's area); ``blocks`` + 1 rows. ``base``: position of the span's first member.
    ``shift``: place in the span of data role 0: role r is at ``base`` + (``shift`` + r) mod width,
    roles being data 0.., then P, Q, R, S (DDF_N_CONTINUE: Q, P); with copies, copy c of data d at
    place ``shift`` + d * copies + c, which past the width wraps to the next stripe (RAID 1E).
    ``index``: data role, 0.. ; ``ordinal``: which strip of the stripe in the host's order, equal to
    ``index`` unless data ascends; ``offset``: index in the host command of the first block.
    ``final``: the command touches these rows with no later extent (exact for a write, whose
    extents are cut where it changes; 1 for a read). ``last``: last extent of it.
    With copies, ``index`` counts the strips whose first copy begins in the stripe of ``row``.
    ``head``, ``tail``: the first block, the last one, is written in part (not there without
    `Config.sector_emulation`). ``gathered``: a READ that waits for the other blocks of its rows;
    `hdl.stripe.dispatch` says so, and nobody before it (not there without `Config.gather_reads`).
    """
    sectors = {"head": 1, "tail": 1} if config.sector_emulation else {}
    gathered = {"gathered": 1} if config.gather_reads else {}
    flushed = {"volume": config.volume_bits} if config.background else {}
    return data.StructLayout(
        {
            "slot": config.slot_bits,
            "opcode": HostOpcode,
            "fua": 1,
            "recover": recovery(config),
            "status": Status,
            "array": config.array_bits,
            "base": 5,
            "shift": 5,
            "index": 5,
            "ordinal": 5,
            "row": BLOCK_NUMBER_BITS,
            "blocks": config.offset_bits,
            "offset": config.offset_bits,
            "final": 1,
            "last": 1,
        }
        | sectors
        | gathered
        | flushed
    )


def expected(config: Config) -> data.StructLayout:
    """A FLUSH of ``slot`` will end ``count`` times, once for each live drive.

    ``array``: which (not there without `Config.intent_chunks`).
    """
    array = {"array": config.array_bits} if config.intent_chunks else {}
    return data.StructLayout({"slot": config.slot_bits, "count": WIDTH_BITS, **array})


def reference(config: Config) -> data.StructLayout:
    """What is to have nothing inside any more: array ``number`` if ``of_array``, else that volume.

    ``goes``: the array has no volumes and no job, and will be deleted; so rows that are to be
    mended are waited for as well.
    """
    return data.StructLayout({"of_array": 1, "goes": 1, "number": 8})


def port_use(config: Config) -> data.StructLayout:
    """Which array a drive port belongs to, if any."""
    return data.StructLayout({"used": 1, "array": 8})


def port_read(config: Config) -> TableRead:
    """Reads the use of a drive port."""
    return TableRead(config.port_bits, port_use(config))


def copy_entry(config: Config) -> data.StructLayout:
    """The copy of an array, if ``valid``: the member at ``position`` is being copied to the drive
    at ``port``, which gets every write that the member gets. ``spare``: the drive that it leaves
    becomes a hot spare."""
    return data.StructLayout({"valid": 1, "spare": 1, "position": 5, "port": config.port_bits})


def copy_read(config: Config) -> TableRead:
    """Reads the copy of an array."""
    return TableRead(config.array_bits, copy_entry(config))


class ArrayState(enum.Enum, shape=2):
    """What an array has left. A drive that is being rebuilt counts as lost until that has ended."""

    OPTIMAL = 0
    PARTIALLY_DEGRADED = 1
    """Drives are lost, and everywhere one more may be."""
    DEGRADED = 2
    """Somewhere no other drive may be lost."""
    FAILED = 3
    """Somewhere more drives are lost than the level tolerates."""


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
    ``sectors`` and ``emulation`` are not the tables', but `hdl.nvme.formats`'.
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
    START_JOB: ``kind`` (`hdl.background.interface.WalkKind`) on ``array`` from row ``start`` on;
    ``resume``: from where it was. STOP_JOB: ``array``. SET_SHARE: ``share`` in percent.
    ADD_SPARE: drive ``port``, for every array or if ``dedicated`` for ``array``. REMOVE_SPARE:
    ``port``. CREATE_ARRAY: begins with a job that makes rows consistent unless they are
    ``assumed`` to be; with ``zero`` it makes them all zeros, with ``idle`` there is no job yet;
    ``initialise`` asks for what is done anyway. ``degraded``: named ports without a drive become
    failed members, as many as the level tolerates.
    """
    formats = {"sectors": 1, "emulation": Emulation} if config.sector_emulation else {}
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
        | (
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
            }
            if config.background
            else {}
        )
        | formats
    )


def manage_response(config: Config) -> data.StructLayout:
    """The answer: ``index`` is the array or volume created.

    Of END_COPY: 4:0 the port that the member was at, 6:5 `CopyEnd`, 7 that port becomes a spare.
    """
    return data.StructLayout({"status": ManageStatus, "index": 8})
