"""Every option of every command, by itself, on every kind of input: it changes what is written or said, or it is refused.

The options come from the commands themselves: a new one is tried without a line here.
"""

# ruff: noqa: E501
from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import chdir as inside
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import typer
from PIL import Image

from fedmiss.cli import commands
from tests.cli.terminal import fedmiss

pytestmark = pytest.mark.slow

# what an option is given; a number is raised by one, a flag is turned, one of several words is the next of them
GIVEN = {
    "start": "2019-03-01", "end": "2019-09-30", "time": "06:00..07:00", "season": "05-01..06-30", "bbox": "-123,47,-122,48",
    "last-edited": "2020-01-01..2021-01-01", "duration": "5..30", "distance": "0..1", "polygon": "polygon.geojson",
    "sampling": "none.txt", "unvetted": "none.txt", "preset": "best-practices-v2", "site": "grid:3km", "exotic": "X",
    "breeding": "any", "groups": "2", "map": "auto", "first-year": "1990", "year": "2019", "last-years": "1",
    "max-speed": "3", "max-observers": "1", "missing": "3", "keep": "PROTOCOL NAME", "group-by": "observer_id",
    "min-visits": "4", "rank": "1", "penalty": "3", "effort": "none", "gamma": "0.5", "alpha": "0.4", "batch": "7",
    "compressor": "natural", "rounds": "20", "participation": "0.5", "model": "log1p", "base": "2019", "date": "2026-02-02",
    "span": "0.9", "coarse-map": "0.5", "title": "A title", "unit": "nests", "author": "A club", "photo": "photo.png",
    "url": "https://example.org/r", "language": "words.toml", "changepoints": "2019", "level": "0.9", "covariate": "habitat",
    "columns": "count=other", "records": "1100", "observed": "0.2", "panel": "random", "end-month": "2020-12",
    "observer-sd": "0.5", "effort-sd": "0.5", "observers": "130", "sites": "40", "by": "bytes", "rule": "pecbms",
    "method": "wire", "minimum": "2", "max-rank": "1", "folds-by": "visit", "family": "negbin", "repeats": "max",
    "dates": "month-first", "spellings": "join", "jobs": "1", "scheduler": "tcp://127.0.0.1:1", "cache": "kept",
    "bootstrap": "21", "decimals": "1", "group": "g02", "sensitive": "American Wigeon", "species": "American Wigeon",
}  # fmt: skip
# these say where, or what becomes of what was there; they are no part of the result
PLACES = ("out", "overwrite", "panel-folder", "open", "install-completion", "show-completion", "help")


@dataclass(frozen=True)
class Situation:
    """A command on one input: the words without the option, values of options here, and what is known to do nothing."""

    name: str
    words: tuple[str, ...]
    given: dict[str, str] = field(default_factory=dict)
    idle: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


FIT = ("--bootstrap", "0")
HERE = "--date", "2026-01-01"
SPELT = {"spellings": "no site of the table has two spellings"}
ONCE = SPELT | {"repeats": "no cell of the table has two counts"}
SITUATIONS = (
    Situation(
        "ingest eBird", ("ingest", "sim/ebd_sim.txt", "--sampling", "sim/ebd_sim_sampling.txt", "--no-cache"),
        {"species": "American Wigeon"},
    ),
    Situation("ingest records of eBird", ("ingest", "sim/ebd_sim.txt", "--no-cache")),
    Situation("ingest counts", ("ingest", "counts.csv", "--no-cache"), {"species": "Parus major"}, SPELT),
    Situation(
        "ingest a plain table", ("ingest", "plain.csv", "--map", "auto", "--no-cache"), {"species": "Parus major"},
        SPELT | {"dates": "every date of the table is clear"},
    ),
    Situation("ingest GBIF", ("ingest", "gbif.csv", "--no-cache"), {"species": "Parus major"}),
    Situation("ingest MyEBirdData", ("ingest", "ann.csv", "bob.csv", "--no-cache"), {"species": "Veery"}),
    Situation("table", ("table", "records"), {}),
    Situation("panel", ("panel", "records", "--species", "American Wigeon"), {"species": "Golden Eagle"}),
    Situation("panel of groups", ("panel", "records", "--species", "American Wigeon", "--group-by", "region")),
    Situation("panel of folders", ("panel", "records", "records2", "--species", "American Wigeon")),
    *(
        Situation(f"fit {method} {rank}", ("fit", "panel", "--method", method, "--rank", rank, *more))
        for method, more in (("fast", FIT), ("fedmissem", ("--rounds", "30")), ("wire", ("--rounds", "30")),
                             ("saem", ("--rounds", "30")))
        for rank in ("0", "auto")
    ),
    Situation("fit bootstrap", ("fit", "panel", "--rank", "0", "--bootstrap", "20")),
    Situation("fit fixed", ("fit", "panel", "--time", "fixed", "--bootstrap", "0")),
    Situation("report", ("report", *HERE)),
    Situation("report of a fit with draws", ("report", "--fit", "fit20", "--imputed", "imputed20", *HERE)),
    Situation("inspect", ("inspect", "fit")),
    Situation("simulate", ("simulate", "--records", "1000", "--species", "3", "--start", "2018-01", "--end", "2019-12"),
              {"start": "2018-02", "end": "2019-11", "species": "4", "columns": "49", "panel": ""}),
    Situation("simulate a panel", ("simulate", "--panel", "random", "--sites", "30", "--months", "24"),
              {"start": "2011-01", "sites": "31", "panel": "weak", "rank": "1", "observers": "130", "species": "4"}),
    Situation("trim", ("trim", "counts.csv", "--species", "Parus major"), {"species": "Wren"}, ONCE),
    Situation("trim slopes", ("trim", "counts.csv", "--species", "Parus major", "--model", "2", "--changepoints", "all"),
              idle=ONCE),
    Situation("trim a command file", ("trim", "t.tcf")),
    Situation("plot", ("plot", "fit")),
)  # fmt: skip


def options(command: str) -> dict[str, typer.core.TyperOption]:
    """All options of a command by name, with how to write them."""
    app = typer.Typer()
    commands.register(app)
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return {
        p.opts[0][2:]: p
        for p in found.params
        if p.param_type_name == "option" and p.opts[0][2:] not in PLACES
    }


def typed(name: str, option, situation: Situation) -> tuple[str, ...]:
    """Write the option with a value that is not its default."""
    if name in situation.given:
        return (f"--{name}={situation.given[name]}",)
    if option.is_flag:
        return (option.secondary_opts[0] if option.secondary_opts and option.default else option.opts[0],)
    if name in GIVEN and f"--{name}" not in situation.words:
        return (f"--{name}={GIVEN[name]}",)
    if isinstance(option.default, int | float) and not isinstance(option.default, bool):
        return (f"--{name}={option.default + 1}",)
    among = [w.strip(" .)") for w in (option.help or "").partition(":")[2].replace(" or ", ",").split(",")]
    return (f"--{name}={among[-1].split()[0] if among and among[-1] else 'x'}",)


def leaves(value: object, at: str = "") -> Iterator[tuple[str, object]]:
    """Every number and text of a JSON value, with its place."""
    if isinstance(value, dict):
        for k, v in value.items():
            yield from leaves(v, f"{at}/{k}")
    elif isinstance(value, list):
        for k, v in enumerate(value):
            yield from leaves(v, f"{at}/{k}")
    else:
        yield at, value


def made(out: Path, said: str) -> dict[str, object]:
    """What a command wrote and said, in parts; a manifest without the settings' own record and the hashes of files."""
    found: dict[str, object] = {f"said/{k}": line for k, line in enumerate(said.splitlines())}
    for path in sorted(p for p in out.rglob("*") if p.is_file()) if out.is_dir() else [out] * out.exists():
        name = str(path.relative_to(out))
        if path.name == "manifest.json":
            raw = json.loads(path.read_text())
            kept = {
                k: v for k, v in raw.items() if k not in ("settings", "files", "seal", "created", "command")
            }
            found |= {f"{name}{k}": v for k, v in leaves(kept)}
        elif path.suffix == ".parquet":
            table = pq.read_table(path)
            found |= {
                f"{name}/{c}": hashlib.sha256(repr(table[c].to_pylist()).encode()).hexdigest()
                for c in table.column_names
            }
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def run(words: tuple[str, ...], at: str) -> tuple[int, dict[str, object], str]:
    """Run in a new folder; the return code, what was made, and what was said of errors."""
    shutil.rmtree(at, ignore_errors=True)
    out = (
        () if words[0] in ("inspect",) else ("--out", f"{at}/made" + (".csv" if words[0] == "table" else ""))
    )
    done = fedmiss(*words, *out)
    return done.code, made(Path(at), done.out + done.err), done.err


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small inputs of every kind."""
    root = tmp_path_factory.mktemp("options")
    rng = np.random.default_rng(0)
    counts, plain = [], []
    for s in range(12):
        for y in range(2015, 2022):
            for species in ("Parus major", "Wren"):
                if rng.random() < 0.8:
                    n = int(rng.poisson(4 + s / 3))
                    counts.append([f"s{s}", y, n, n + 1, "moor" if s % 2 else "heath", 1 + s % 3, species])
                    day = f"{rng.integers(1, 28):02d}.06.{y}"
                    plain += [[f"o{s % 5}", f"s{s}", day, species, n, "no", 30, 1.0, 2]] * int(
                        1 + (y == 2016)
                    )
    with inside(root):
        for name, header, rows in (
            ("counts.csv", "site year count other habitat weight species", counts),
            ("plain.csv", "observer site date species count complete duration distance n_observers", plain),
        ):
            with open(name, "w", newline="") as stream:
                csv.writer(stream).writerows([header.split(), *rows])
        pd.DataFrame(counts)[[0, 1, 2]].drop_duplicates([0, 1]).replace(r"^s", "", regex=True).to_csv(
            "t.dat", sep=" ", index=False, header=False
        )
        head = "gbifID species taxonRank scientificName countryCode stateProvince occurrenceStatus individualCount "
        head += "decimalLatitude decimalLongitude eventDate day month year recordedBy license"
        rows = [f"{i} {n} SPECIES {n} EC Galapagos PRESENT {i} -0.26{i} -91.44{i} 20{19 + i % 2}-02-26 26 2 2019 o{i} CC_BY_4_0"
                for i in range(1, 9) for n in ["Parus_major" if i % 2 else "Wren_wren"]]  # fmt: skip
        text = "\n".join([head, *rows]).replace(" ", "\t").replace("_", " ").replace("CC BY 4 0", "CC_BY_4_0")
        Path("gbif.csv").write_text(text + "\n")
        head = "Submission ID,Common Name,Scientific Name,Count,State/Province,County,Location ID,Location,Latitude,Longitude,"
        head += (
            "Date,Time,Protocol,Duration (Min),All Obs Reported,Distance Traveled (km),Number of Observers"
        )
        for who in ("ann", "bob"):
            rows = [
                f"S{k}{len(set(who))},Veery,Catharus fuscescens,{k},US-CT,Tolland,L{k % 2},Mill,41.5,-72.2,20{18 + k // 4}-05-0{k},"
                f"06:30 AM,eBird - Traveling Count,{40 + k},1,.6,2"
                for k in range(1, 8)
            ]
            text = "\n".join([head, *rows]).replace("Veery,Catharus fuscescens,7", "Wren,Troglodytes aedon,7")
            Path(f"{who}.csv").write_text(text + "\n")
        Path("t.tcf").write_text("FILE t.dat\nTITLE t\nMISSING -1\nMODEL 3\n")
        Path("polygon.geojson").write_text(json.dumps({"type": "Polygon", "coordinates": [
            [[-123, 45], [-121, 45], [-121, 48], [-123, 48], [-123, 45]]]}))  # fmt: skip
        Path("words.toml").write_text('"Sites" = "Orte"\n')
        Image.new("RGB", (8, 8), (9, 90, 9)).save("photo.png")
        sim = (
            "simulate",
            "--records",
            "1000",
            "--species",
            "3",
            "--start",
            "2018-01",
            "--end",
            "2020-12",
            "--seed",
        )
        ingest = ("--no-cache", "--out")
        for words in (
            (*sim, "3", "--out", "sim"),
            (*sim, "4", "--out", "sim2"),
            ("ingest", "sim/ebd_sim.txt", "--sampling", "sim/ebd_sim_sampling.txt", *ingest, "records"),
            ("ingest", "sim2/ebd_sim.txt", "--sampling", "sim2/ebd_sim_sampling.txt", *ingest, "records2"),
            ("panel", "records", "--species", "American Wigeon", "--groups", "3", "--out", "panel"),
            ("fit", "panel", "--rank", "0", "--bootstrap", "0", "--out", "fit"),
            ("impute", "panel", "fit", "--out", "imputed"),
            ("fit", "panel", "--rank", "0", "--bootstrap", "20", "--out", "fit20"),
            ("impute", "panel", "fit20", "--out", "imputed20"),
        ):
            done = fedmiss(*words)
            assert done.code == 0, done.err
        yield root


def search(situation: Situation) -> list[str]:
    """Options that change nothing and are not refused."""
    code, usual, err = run(situation.words, "work")
    assert code == 0, err
    _, again, _ = run(situation.words, "work")
    noise = {k for k in usual.keys() | again.keys() if usual.get(k) != again.get(k)}
    suspects = []
    for name, option in options(situation.words[0]).items():
        if name in situation.idle or (f"--{name}" in situation.words and option.is_flag):
            continue
        words = typed(name, option, situation)
        code, found, err = run((*situation.words, *words), "work")
        assert code in (0, 1, 2), (words, err)
        assert "Traceback" not in err, (words, err)
        if code == 0 and all(found.get(k) == usual.get(k) for k in (found.keys() | usual.keys()) - noise):
            suspects.append(" ".join(words))
    return suspects


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_an_option_changes_something_or_is_refused(situation, files):
    with inside(files):
        found = search(situation)
    assert not found, "\n".join(found)
