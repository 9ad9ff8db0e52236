"""The HTML report: one file with its plots inside, readable without a network."""

import html
import io
from pathlib import Path

import matplotlib

matplotlib.use("svg")

from matplotlib.figure import Figure

from sw.characterise.interfaces import INTERFACES
from sw.characterise.record import Record
from sw.characterise.table import best

NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""Without this each plot carries the time and the addresses of vocabularies."""

HEADINGS = ("id", "setup", "profile", "binds", "I/Os", "published", "predicted", "simulated")

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  color: #1c2733; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #d8dee6; text-align: right; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
h1, h2 { font-weight: 600; } figure { margin: 1.5rem 0; } svg { max-width: 100%; height: auto; }
p.note { color: #51606f; }
"""


def _table(headings: list[str], rows: list[list[str]], text_columns: int) -> str:
    def cell(tag: str, index: int, text: str) -> str:
        kind = ' class="text"' if index < text_columns else ""
        return f"<{tag}{kind}>{html.escape(text)}</{tag}>"

    head = "".join(cell("th", i, heading) for i, heading in enumerate(headings))
    body = "".join(
        "<tr>" + "".join(cell("td", i, text) for i, text in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _plot(title: str, records: list[Record]) -> str:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    throughput, latency = figure.subplots(1, 2)
    outstanding = [record.outstanding for record in records]
    unit = records[0].unit
    throughput.plot(outstanding, [r.simulated for r in records], "o-", label="simulated")
    throughput.plot(outstanding, [r.predicted for r in records], "--", label="predicted")
    published = next((r.published for r in records if r.published is not None), None)
    if published is not None:
        throughput.axhline(published, color="tab:red", linewidth=1, label="published")
    throughput.set_ylabel(unit)
    throughput.set_ylim(bottom=0)
    throughput.legend()
    for name, values in (
        ("mean", [r.latency.mean for r in records]),
        ("p99", [r.latency.p99 for r in records]),
    ):
        latency.plot(outstanding, values, "o-", label=name)
    latency.set_ylabel("latency, us")
    latency.set_yscale("log")
    latency.legend()
    for axes in (throughput, latency):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("outstanding I/Os")
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    svg = buffer.getvalue()
    return "<figure>" + svg[svg.index("<svg") :] + "</figure>"


def write_report(path: Path, records: list[Record]) -> None:
    """Writes the report of ``records`` to ``path``."""
    rows = []
    for record in best(records):
        published = record.published
        rows.append(
            [
                record.id,
                record.setup,
                record.profile,
                record.binds,
                str(record.outstanding),
                "-" if published is None else f"{published:.0f}",
                f"{record.predicted:.0f}",
                f"{record.simulated:.0f}",
                "-" if published is None else f"{record.simulated / published:.2f}",
                f"{record.latency.mean:.0f}",
                f"{record.latency.p99:.0f}",
            ]
        )
    results = _table(
        [*HEADINGS, "sim/pub", "mean us", "p99 us"],
        rows,
        4,
    )
    interfaces = _table(
        ["interface", "theoretical", "published", "practical", "published"],
        [
            [
                interface.name,
                f"{interface.theoretical:.0f}",
                str(interface.published[0]),
                f"{interface.practical:.0f}",
                str(interface.published[1]),
            ]
            for interface in INTERFACES
        ],
        1,
    )
    curves: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        curves.setdefault((record.id, record.setup, record.profile), []).append(record)
    plots = "".join(
        _plot(f"{name}: {setup}, {profile}", sorted(points, key=lambda r: r.outstanding))
        for (name, setup, profile), points in curves.items()
    )
    path.write_text(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<title>Striata characterisation</title>"
        f"<style>{STYLE}</style></head><body><h1>Striata characterisation</h1>"
        "<p>Load profiles on the simulated controller beside the published figures. "
        "1 MB is 2<sup>20</sup> bytes.</p>"
        "<h2>Best of each curve</h2>"
        "<p class='note'>A published figure is the highest of its curve and stands beside the "
        "highest simulated point. Predicted is the lowest of the host link's, the drives' and the "
        "outstanding I/Os' limit.</p>"
        f"{results}<h2>Curves</h2>{plots}<h2>Interfaces, MB/s</h2>{interfaces}"
        "<p class='note'>Published: Fujitsu, RAID Controller Performance 2016.</p>"
        "</body></html>\n",
        encoding="utf-8",
    )
