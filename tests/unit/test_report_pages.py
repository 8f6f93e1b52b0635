"""Ways to write a report of runs: the page, JSON, CSV, and the command; and how long a hundred records take."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from labctl.cli.main import main
from labctl.report.runs.page import page
from labctl.report.runs.reading import Damaged, read_all
from labctl.report.runs.report import as_csv, as_json, report_of
from labctl.report.runs.tables import plain
from labctl.run.catalogue import Catalogue

from .run_records import Made, hundred, write
from .run_world import problem
from .test_report_runs import nobody, reported


class Outline(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    report = reported(tmp_path, Made(), Made(problem="b", solver="agent", noise="usual"))
    text = page(report)
    found = Outline(text).found
    tags = [tag for tag, _ in found]
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & {*tags}
    assert tags.count("svg") == 3 and tags.count("details") == 2
    for tag, attrs in found:
        for name, value in attrs.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "srcset", "action") and (
                not name.endswith("href") or (value or "").startswith("#")
            )
    assert not re.search(r"url\((?!#)|@import|//[a-z]+\.[a-z]", text.replace("http://www.w3.org/", ""))
    assert "prefers-color-scheme: dark" in text and "Content-Security-Policy" in text
    ids = [attrs["id"] for _, attrs in found if "id" in attrs]
    assert len({*ids}) == len(ids), "drawings share one page"
    style, rest = text.split("</style>", 1)
    assert not re.search(r"(?:fill|stroke): #[0-9a-f]{6}", rest), "every colour comes from the style sheet"
    used = {*re.findall(r"var\(--(\w+)\)", text)}
    assert used <= {*re.findall(r"--(\w+):", style)} and {"fault", "declaration", "submission"} <= used
    for word in ("latent_sector_error on w2", "declared", "submitted", "Pass@1", "0.13"):
        assert word in text


def test_what_others_wrote_stays_text(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script><x-drawing></x-drawing>"\x00&$x_1$'
    report = reported(tmp_path, Made(solver=evil, problem=f"=1+{evil}", void=evil))
    text = page(report)
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text
    assert all(row["problem"].startswith("'=1+") for row in csv.DictReader(io.StringIO(as_csv(report))))
    assert json.loads(as_json(report))["runs"][0]["solver"] == evil


def test_a_solver_that_asks_for_thousands_of_things_fills_no_page(tmp_path: Path) -> None:
    more = tuple((60.0 + n / 100, "asked", {"tool": "hardware", "text": "status w2" * 100}) for n in range(2000))
    report = reported(tmp_path, Made(more=more))
    text = page(report)
    assert len(report.runs[0].marks) == 2004 and "1804 more are in the record." in text and len(text) < 1 << 20


def test_json_has_numbers_or_null(tmp_path: Path) -> None:
    data = json.loads(as_json(reported(tmp_path, Made(void="no"))), parse_constant=pytest.fail)
    assert data["solvers"]["reference"]["pass_at_1"]["value"] is None
    assert data["runs"][0]["counted"] == "void"


def test_nothing_to_report() -> None:
    report = report_of((), (Damaged(record="x", why="gone"),), {})
    assert "0 runs of 0 problems, and 1 record that cannot be read; catalogue none" in plain(report)
    assert "x: it cannot be read: gone" in page(report) and as_csv(report).count("\n") == 2


def test_a_hundred_records_take_seconds(tmp_path: Path) -> None:
    """The aim is 5 s on two quiet cores. CPU time, since others work on this machine; twice that for slow ones."""
    paths = hundred(tmp_path)
    began = time.process_time()
    views, damaged = read_all(paths, nobody)
    text = page(report_of(views, damaged, {}))
    took = time.process_time() - began
    assert (len(views), damaged) == (100, ()) and text.count("<svg ") == 101
    assert took < 10, f"{took:.1f} s"


# -- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue of one problem."""
    found = Catalogue({"reads_fail": problem()}, {}, "abc123", Path())
    monkeypatch.setattr("labctl.run.catalogue.catalogue", lambda: found)


def test_the_command(tmp_path: Path, few: None, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "runs"
    for n in range(2):
        write(where / f"r{n}", Made(), n)
    assert main(["report", str(where)]) == 0
    assert "2 runs of 1 problem; catalogue abc123 (24 problems)" in capsys.readouterr().out
    assert main(["report", str(where / "r0"), "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["--json", "report", str(where)]) == 0
    (first, _) = json.loads(capsys.readouterr().out)["runs"]
    assert (first["mode"], first["novelty"], first["limit_s"]) == ("single", "new", 600.0)
    for name, begins in (
        ("r.html", "<!DOCTYPE html>"),
        ("r.csv", "record,"),
        ("r.json", "{"),
        ("r.txt", "2 runs"),
    ):
        assert main(["report", str(where), "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().startswith(begins)
        assert f"2 runs reported in {tmp_path / name}" in capsys.readouterr().out


def test_what_the_command_is_not_given(tmp_path: Path, few: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 64
    assert "is no directory" in capsys.readouterr().err
    assert main(["report"]) == 64
    assert main(["report", str(tmp_path)]) == 2, "nothing could be read"
    assert f"{tmp_path}: it cannot be read" in capsys.readouterr().out
    write(tmp_path / "r", Made())
    assert main(["report", str(tmp_path), "--out", "/proc/nowhere/r.html"]) == 70
    assert "cannot be written" in capsys.readouterr().err
