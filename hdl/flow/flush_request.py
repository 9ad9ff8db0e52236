"""Requests to flush the drives of all arrays."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config


def flush_rounds(config: Config) -> int:
    """Times that a FLUSH is sent to its drives while one of them aborts it or goes away.

    A drive may hang as often as it is aborted, reset and given up
    (`hdl.drive.recovery.ladder`). So a FLUSH outlasts all drives that hang one after the other.
    """
    return config.ports * (config.drive_resets + 2) + 1


class FlushRequest(wiring.Signature):
    """A request to flush the drives of all arrays, seen from who asks for it.

    Ports
    -----
    watches
        A level. The flush will be asked for, or has been. What is owed from then on counts.
    flush
        A level. Every command whose writes are meant has ended. It stays until ``flushed``.
    flushed
        A level or a pulse. Since ``flush`` rose, every drive of every array has been flushed, or
        has failed to be.
    stored
        With ``flushed``: every drive that is not failed has been flushed well, nothing is lost, and
        nothing was owed while it watched.
    """

    def __init__(self):
        super().__init__(
            {"watches": Out(1), "flush": Out(1), "flushed": In(1), "stored": In(1)}
        )


class HostFlushes(wiring.Signature):
    """Flushes of all drives for which the host gives reason, seen from the NVMe front end.

    Ports
    -----
    shutdown
        A shutdown is under way, and every command has ended or been dropped.
    cache
        The host switches the volatile write cache off, and all writes that began before have ended.
    """

    def __init__(self):
        super().__init__({"shutdown": Out(FlushRequest()), "cache": Out(FlushRequest())})
