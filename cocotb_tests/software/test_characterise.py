"""Predictions, records, report and command lines, without the controller."""

import json
import math
import re
import runpy
from dataclasses import replace

import pytest

from cocotb_tests.software.records import RECORD
from hdl.config import BLOCK_BYTES, board
from hdl.flow.geometry import Level
from sim.native.models import bench_read, bench_write
from sim.native.parameters import MICROSECOND, Ideal, LinkParameters, Ssd, link_rate
from sim.native.presets import PRESETS, SAS_12G_HDD, SAS_12G_SSD
from sw.characterise.interfaces import INTERFACES
from sw.characterise.limits import (
    duplex_limit,
    line_bytes,
    link_limit,
    read_limit,
    read_stream_limit,
    write_limit,
    write_stream_limit,
)
from sw.characterise.measure import binding
from sw.characterise.points import points
from sw.characterise.predict import Prediction, predict
from sw.characterise.published import CASES
from sw.characterise.report import write_report
from sw.characterise.table import best
from sw.workload.generator import Load
from sw.workload.profiles import KIB, OUTSTANDING, PROFILES, Profile
from sw.workload.statistics import MIB, Latency, Result

FIELDS = {
    "id",
    "setup",
    "profile",
    "outstanding",
    "unit",
    "published",
    "predicted",
    "simulated",
    "mb_s",
    "io_s",
    "latency_us",
    "cycles",
    "seed",
    "binds",
}
NO_LATENCY = {"propagation_ps": 0, "memory_read_ps": 0, "credit_return_ps": 0}

# Limits


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda interface: interface.name)
def test_interfaces(interface):
    """The computed column is the published one, rounded or cut."""
    for computed, published in zip(
        (interface.theoretical, interface.practical), interface.published, strict=True
    ):
        assert math.floor(computed) <= published <= math.ceil(computed)


@pytest.mark.parametrize("payload", [128, 256, 512])
@pytest.mark.parametrize(("generation", "lanes"), [(1, 4), (2, 8), (3, 4), (3, 8), (4, 8)])
def test_limits_are_the_link_model_s(generation, lanes, payload):
    """Within 2 % of the link model kept busy by requests alone."""
    link = LinkParameters(
        generation=generation,
        lanes=lanes,
        max_payload=payload,
        max_read_request=512,
        ack_every=0,
        update_every=0,
        **NO_LATENCY,
    )
    writes = bench_write(link, payload=payload, count=4000).bytes_per_second
    reads = bench_read(link, length=512, count=4000).bytes_per_second
    assert read_limit(link) == pytest.approx(writes, rel=0.02)
    assert write_limit(link) == pytest.approx(reads, rel=0.02)


def test_limits_in_closed_form():
    """Third generation, eight lanes: 128b/130b, SKP, and 24 or 20 bytes around each payload."""
    line = 8e9 * 8 / 8 * 128 / 130
    link = LinkParameters(max_payload=256, skip=False)
    assert read_limit(link) == pytest.approx(line * 256 / 280)
    assert write_limit(link) == pytest.approx(line * 256 / 276)
    assert write_limit(replace(link, completion_bytes=64)) == pytest.approx(line * 64 / 84)
    assert write_limit(replace(link, max_read_request=128)) == pytest.approx(line * 128 / 148)
    assert read_limit(replace(link, skip=True)) == pytest.approx(read_limit(link), rel=0.003)
    gen2 = replace(link, generation=2, lanes=4)
    assert read_limit(gen2) == pytest.approx(5e9 * 4 / 8 * 0.8 * 256 / 280)


def test_streams_of_the_hard_block():
    config, link = board(), LinkParameters()
    line = line_bytes(link)
    # 256 bytes and a descriptor in nine beats of 32; with 128 bytes five, or four and a half where
    # completions straddle; 64 bytes take two and a half.
    assert read_stream_limit(link, config) == pytest.approx(256 / 9 * 250e6)
    short = replace(link, max_payload=128)
    alone = replace(config, completion_straddle=False)
    assert write_stream_limit(short, alone) == pytest.approx(128 / 5 * 250e6)
    assert write_stream_limit(short, config) == pytest.approx(128 / 4.5 * 250e6)
    shortest = replace(link, completion_bytes=64)
    assert write_stream_limit(shortest, config) == pytest.approx(64 / 2.5 * 250e6)
    assert write_stream_limit(shortest, config) > write_limit(shortest)
    assert write_stream_limit(shortest, alone) < write_limit(shortest)
    # One way is as fast with both counted; half of each is bound by requests among the data.
    assert duplex_limit(link, config, 1.0) == pytest.approx(read_stream_limit(link, config))
    assert duplex_limit(link, alone, 0.0) == pytest.approx(write_stream_limit(link, alone))
    # Straddled completions leave the link as the bound, with what answers the requests.
    answers = (256 + 20 + (8 / 4 + 8 / 4) / 2) / 256
    assert duplex_limit(link, config, 0.0) == pytest.approx(line / answers)
    assert duplex_limit(link, config, 0.5) == pytest.approx(2 * 512 / 19 * 250e6)
    wide = replace(config, data_width=512)
    dllps = 2 * (8 / 4 + 8 / 4)
    assert duplex_limit(link, wide, 0.5) == pytest.approx(2 * line * 512 / (512 + 72 + dllps))


def test_directions_are_separate():
    link = LinkParameters()
    assert link_limit(link, 1.0) == read_limit(link)
    assert link_limit(link, 0.0) == write_limit(link)
    assert link_limit(link, 0.5) == pytest.approx(2 * read_limit(link))
    assert link_limit(link, 0.9) == pytest.approx(read_limit(link) / 0.9)


# Predictions

FAST = Ideal(capacity=1 << 24, rate=link_rate(12), latency_ps=50 * MICROSECOND)
LINK = LinkParameters()


def foretell(
    level=Level.RAID0, drives=8, drive=FAST, link=LINK, profile="Streaming", outstanding=128
) -> Prediction:
    return predict(level, drives, drive, link, Load(PROFILES[profile], outstanding, 0, 1))


def test_host_link_binds():
    found = foretell()
    assert found == Prediction(pytest.approx(read_limit(LINK) / MIB), "host link")
    slower = foretell(link=LinkParameters(lanes=4))
    assert slower.mb_s == pytest.approx(found.mb_s / 2)
    assert foretell(link=LinkParameters(max_payload=128)).mb_s < found.mb_s


def test_drives_bind():
    """Four drives: their links; the rate follows their number and parameters."""
    four = foretell(drives=4)
    assert four.binds == "drives"
    assert four.mb_s == pytest.approx(4 * link_rate(12) / MIB, rel=0.02)
    assert foretell(drives=2).mb_s == pytest.approx(four.mb_s / 2, rel=0.02)
    half = foretell(drives=4, drive=FAST.changed(rate=link_rate(6)))
    assert half.mb_s == pytest.approx(four.mb_s / 2, rel=0.02)


def test_outstanding_accesses_bind():
    """One at a time: its size over the drive's latency."""
    one = foretell(outstanding=1)
    assert one.binds == "outstanding I/Os"
    seconds = 50e-6 + 64 * KIB / link_rate(12)
    assert one.mb_s == pytest.approx(64 * KIB / MIB / seconds, rel=0.02)
    slow = foretell(outstanding=1, drive=FAST.changed(latency_ps=100 * MICROSECOND))
    assert slow.mb_s < 0.8 * one.mb_s


@pytest.mark.parametrize(
    ("level", "drives", "accesses"),
    [
        (Level.RAID0, 4, 1),
        (Level.RAID1, 2, 2),
        (Level.RAID1, 4, 4),
        (Level.RAID10, 4, 2),
        (Level.RAID5, 4, 4),
        (Level.RAID6, 4, 6),
    ],
)
def test_random_writes_cost_drive_accesses(level, drives, accesses):
    """The textbook's write penalty; reads and writes share the drive's time."""
    profile = Profile("writes", True, 0.0, 4 * KIB)
    drive = FAST.changed(half_duplex=True, rate=link_rate(3))
    found = predict(level, drives, drive, LINK, Load(profile, 512, 0, 1))
    assert found.binds == "drives"
    each = link_rate(3) / BLOCK_BYTES * drives / accesses
    assert found.mb_s * MIB / BLOCK_BYTES == pytest.approx(each, rel=0.03)


@pytest.mark.parametrize(("level", "parities"), [(Level.RAID5, 1), (Level.RAID6, 2)])
def test_sequential_writes_cost_parity(level, parities):
    drive = FAST.changed(rate=link_rate(3))
    plain = foretell(drive=drive, profile="Restore")
    found = foretell(level, drive=drive, profile="Restore")
    assert found.mb_s == pytest.approx(plain.mb_s * (8 - parities) / 8, rel=0.02)


@pytest.mark.parametrize(
    "change",
    [{"dies": 8}, {"read_ps": 263_000_000}, {"random_read_ps": 0}, {"rate": link_rate(3) // 4}],
)
def test_prediction_depends_on_the_drive(change):
    before = foretell(drive=SAS_12G_SSD, drives=4, profile="Database")
    after = foretell(drive=SAS_12G_SSD.changed(**change), drives=4, profile="Database")
    assert after.mb_s != pytest.approx(before.mb_s, rel=0.02)


def test_parity_passes_under_the_head():
    """Sequential reads of RAID 5 on disks: one drive's worth of time goes by over parity."""
    plain = foretell(drive=SAS_12G_HDD)
    assert foretell(Level.RAID5, drive=SAS_12G_HDD).mb_s == pytest.approx(plain.mb_s * 7 / 8)


# What binds


@pytest.mark.parametrize(
    ("mb_s", "busy", "binds"),
    [
        (95, {}, "outstanding I/Os"),
        (105, {}, "outstanding I/Os"),
        (80, {"down_busy_ps": 0.95}, "host link"),
        (80, {"up_busy_ps": 0.95, "in_busy_ps": 1.0}, "host link"),
        (130, {"medium_busy_ps": 0.93}, "drives"),
        (80, {"out_busy_ps": 0.91}, "drives"),
        (80, {"out_busy_ps": 0.8, "up_busy_ps": 0.8}, "controller"),
    ],
)
def test_binding(mb_s, busy, binds):
    """A prediction nearly reached tells; else what was busy; else it is the controller."""
    seconds = 0.002
    names = ("up_busy_ps", "down_busy_ps", "out_busy_ps", "in_busy_ps", "medium_busy_ps")
    times = {name: round(busy.get(name, 0.0) * seconds * 1e12) for name in names}
    result = Result(1, round(mb_s * MIB * seconds), seconds, Latency.of([1.0]))
    assert binding(result, Prediction(100.0, "outstanding I/Os"), times) == binds


# Points, records and the report


def test_points():
    """Every case at every number of outstanding accesses, on known presets and profiles."""
    for case in CASES:
        assert case.drive in PRESETS and case.profile in PROFILES
    one = points(quick=False, seed=3, ids=["R14"])
    assert [point.load.outstanding for point in one] == list(OUTSTANDING)
    assert {point.id for point in one} == {"R14"}
    assert {point.load.seed for point in one} == {3}
    assert len(points(quick=True, seed=1, ids=["R14", "P2"])) == 4


def test_record_fields():
    assert set(RECORD.as_json()) == FIELDS
    assert RECORD.as_json()["latency_us"] == {
        "mean": 80.0,
        "p50": 79.0,
        "p99": 99.0,
        "p99.9": 120.0,
    }
    assert json.loads(json.dumps(RECORD.as_json())) == RECORD.as_json()


def test_best_of_each_curve():
    faster = replace(RECORD, outstanding=16, simulated=5900.0)
    other = replace(RECORD, profile="Restore", simulated=1.0)
    assert best([RECORD, faster, other]) == [faster, other]


def test_report_needs_no_network(tmp_path):
    """Plots are in the page, and nothing in it is fetched from anywhere."""
    records = [
        RECORD,
        replace(RECORD, outstanding=16),
        replace(RECORD, id="P1", profile="File copy", published=None),
    ]
    path = tmp_path / "report.html"
    write_report(path, records)
    text = path.read_text(encoding="utf-8")
    assert text.count("<svg") == text.count("</svg>") == 2
    assert "RAID 0, 8 &lt;drives&gt;" in text and "<drives>" not in text
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert re.findall(r"(?:https?:)?//[a-z][\w.]+", without_names) == []
    assert not re.search(r"<(script|link|img|iframe|object)\b|@import|url\((?!#)", text)
    assert set(re.findall(r'(?:href|src)="([^#"][^"]*)"', text)) == set()


# Command lines


def fails(monkeypatch, capsys, module: str, *arguments: str) -> str:
    """Runs a program that must answer with one line on standard error and status 2."""
    monkeypatch.setattr("sys.argv", [module, *arguments])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module(module, run_name="__main__")
    assert caught.value.code == 2
    output, error = capsys.readouterr()
    assert output == ""
    assert error.count("\n") == 1 and error.endswith("\n"), error
    return error


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("sw.characterise", ["R99"], "characterise: no result is called R99; take some of P1"),
        ("sw.characterise", ["--processes", "0"], "processes: must be a number from 1 on, not '0'"),
        ("sw.characterise", ["--processes", "x"], "not 'x'"),
        ("sw.characterise", ["--seed", "x"], "--seed: must be a number in 0..4294967295, not 'x'"),
        ("sw.characterise", ["--fast"], "unrecognized arguments: --fast"),
        ("sw.bench", ["read-seq-raid7-8"], "bench: no row is called read-seq-raid7-8"),
        ("sw.bench", ["--processes", "-1"], "must be a number from 1 on, not '-1'"),
        ("sw.example", ["extra"], "unrecognized arguments: extra"),
        ("synth.count", ["front_end", "queue_pairs"], "'queue_pairs' is not NAME=VALUE"),
        ("tools.same", ["HEAD", "--renamed", "a=b=c"], "'a=b=c' is not OLD=NEW"),
        ("sw.demo", [], "demo: the following arguments are required: file"),
        ("sw.demo", ["/nonexistent/file"], ": No such file or directory"),
        ("sw.demo", ["/dev/zero"], "/dev/zero is no file of 1 byte to 128 MiB"),
        ("sw.demo", ["/"], "/ is no file of 1 byte to 128 MiB"),
        ("sw.demo", [__file__, "--drives", "3"], "--drives must be 4..8, not 3"),
        ("sw.demo", [__file__, "--rotation", "up"], "--rotation: must be one of left-symmetric"),
        ("sw.demo", [__file__, "--pull", "1"], "--pull takes two ports of 0..7, such as 1,4"),
        ("sw.demo", [__file__, "--pull", "1,1"], "--pull takes two ports"),
        ("sw.demo", [__file__, "--pull", "1,x"], "--pull takes two ports"),
        ("sw.demo", [__file__, "--drives", "4", "--pull", "1,4"], "two ports of 0..3"),
    ],
)
def test_bad_arguments(monkeypatch, capsys, module, arguments, message):
    assert message in fails(monkeypatch, capsys, module, *arguments)


def test_output_that_cannot_be_written(monkeypatch, capsys, tmp_path):
    """Said before anything is measured."""
    monkeypatch.setattr("sim.native.build.build_controller", None)
    (tmp_path / "file").write_text("")
    error = fails(monkeypatch, capsys, "sw.characterise", "--out", str(tmp_path / "file" / "x"))
    assert error.startswith("characterise: --out: ")
    (tmp_path / "results.json").mkdir()
    error = fails(monkeypatch, capsys, "sw.characterise", "--out", str(tmp_path))
    assert "results.json" in error


def test_no_results_before_there_are_any(monkeypatch, tmp_path):
    """It is ended while the controller is built."""

    def ended() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sim.native.build.build_models", ended)
    monkeypatch.setattr("sys.argv", ["characterise", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        runpy.run_module("sw.characterise", run_name="__main__")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, (128 << 20) + 1])
def test_files_of_wrong_size(monkeypatch, capsys, tmp_path, size):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(size)
    error = fails(monkeypatch, capsys, "sw.demo", str(path))
    assert error.startswith("demo: ") and "no file of 1 byte to 128 MiB" in error


def test_rows_are_listed(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "--list"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("sw.bench", run_name="__main__")
    assert caught.value.code == 0
    names = capsys.readouterr().out.split()
    assert len(names) == len(set(names)) > 10
    assert "write-seq-raid6-24" in names


def test_steady_ssd_is_an_ssd():
    """The presets that the points start with full write buffers have such buffers."""
    assert isinstance(SAS_12G_SSD, Ssd)
    assert SAS_12G_SSD.changed(dirty_blocks=SAS_12G_SSD.cache_blocks).dirty_blocks > 0
