"""The terminal tables of a characterisation."""

from rich.console import Console
from rich.table import Table

from sw.characterise.interfaces import INTERFACES
from sw.characterise.record import Record


def print_interfaces(console: Console) -> None:
    """Computed against published throughput of the interfaces."""
    table = Table(title="Interfaces, MB/s (1 MB = 2^20 bytes)")
    table.add_column("interface")
    for heading in ("theoretical", "published", "practical", "published"):
        table.add_column(heading, justify="right")
    for interface in INTERFACES:
        theoretical, practical = interface.published
        table.add_row(
            interface.name,
            f"{interface.theoretical:.0f}",
            str(theoretical),
            f"{interface.practical:.0f}",
            str(practical),
        )
    console.print(table)


def best(records: list[Record]) -> list[Record]:
    """The record with the highest throughput of each curve (id, setup, profile), in order."""
    curves: dict[tuple[str, str, str], Record] = {}
    for record in records:
        key = (record.id, record.setup, record.profile)
        if key not in curves or record.simulated > curves[key].simulated:
            curves[key] = record
    return list(curves.values())


def print_results(console: Console, records: list[Record]) -> None:
    """The best point of every curve beside the published and the predicted figure."""
    table = Table(title="Published, predicted, simulated: best of each curve")
    for heading in ("id", "setup", "profile"):
        table.add_column(heading)
    for heading in ("I/Os", "published", "predicted", "simulated", "sim/pub", "p99 us"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    table.add_column("binds")
    for record in best(records):
        published = record.published
        table.add_row(
            record.id,
            record.setup,
            record.profile,
            str(record.outstanding),
            "-" if published is None else f"{published:.0f}",
            f"{record.predicted:.0f}",
            f"{record.simulated:.0f}",
            "-" if published is None else f"{record.simulated / published:.2f}",
            f"{record.latency.p99:.0f}",
            record.unit,
            record.binds,
        )
    console.print(table)
