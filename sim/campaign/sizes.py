"""The controller that a campaign runs: small, so that it is quick, and soon short of everything."""

from hdl.config import Config

SIZES = Config(
    data_width=256,
    ports=8,
    lines=64,
    banks=4,
    commands=64,
    rows=16,
    operations=256,
    drive_tags=8,
    read_tags=32,
    queue_pairs=2,
    queue_depth=64,
    arrays=2,
    volumes=4,
    parities=3,
    transfer_blocks=32,
    walk_window=8,
    command_timeout_ms=3,
    abort_timeout_ms=1,
    slow_read_ms=1,
    intent_chunks=32,
)
"""Times in milliseconds, as simulated drives take microseconds."""
