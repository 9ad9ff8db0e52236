"""The configurations that the project builds."""

from hdl.config.controller import Config


def board(ports: int = 8) -> Config:
    """The configuration that is simulated and characterised: 256 bits, 4 MiB on chip."""
    return Config(
        ports=ports,
        commands=1024,
        queue_pairs=4,
        queue_depth=256,
        slow_read_ms=1000,
        intent_chunks=1024,
        array_shares=True,
        metadata=True,
    )


def small() -> Config:
    """The configuration that `make synth` places on an ECP5-45: 64 bits, 4 ports."""
    return Config(
        data_width=64,
        ports=4,
        lines=16,
        banks=4,
        commands=16,
        rows=8,
        operations=64,
        drive_tags=8,
        read_tags=16,
        completion_bytes=0,
        queue_pairs=2,
        queue_depth=64,
        arrays=2,
        volumes=4,
        transfer_blocks=4,
        clock_hz=80_000_000,
        error_log_entries=4,
        abort_commands=False,
        compare_and_deallocate=False,
        background=False,
        early_rows=0,
        gather_reads=False,
        walk_window=4,
        sector_emulation=False,
    )
