"""Every command x every relation of its output to its inputs x a user's file there: nothing of the user's is lost."""

import itertools
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from bad_inputs import QUICK, make_base
from terminal import fedmiss

from fedmiss.owner import MARK
from tests.attacks.command import COUNTS

pytestmark = pytest.mark.slow
SAMPLE = ("panel", "table")  # in .ci/run; the others in .ci/nightly
# also of `plot`, which writes three
SEVERAL_FILES = ("nothing", "links", "at_the_output", "lock_name", "temporary_name")
MINE = b"a user's: \x00\xff"


@dataclass(frozen=True)
class Command:
    """What is typed before ``--out``, the input whose relation to the output is tried, and the endings of the files."""

    words: tuple[str, ...]
    reads: str = ""
    endings: tuple[str, ...] = ("",)
    ending: str = ""  # that the user types
    overwrites: bool = True


COMMANDS = {
    "simulate": Command(("simulate", "--records", "1000", "--species", "2")),
    "ingest": Command(("ingest", "sim/ebd_sim.txt", "--sampling", "sim/ebd_sim_sampling.txt", "--no-cache"), "sim"),
    "panel": Command(("panel", "records", "--species", "American Wigeon", "--groups", "3"), "records"),
    "fit": Command(("fit", "panel", "--model", "log1p", "--rank", "0", "--effort", "none", "--bootstrap", "0"), "panel"),
    "algorithm 7": Command(("fit", "panel", "--method", "fedmissem", "--rounds", "2"), "panel"),
    "impute": Command(("impute", "panel", "fit"), "fit"),
    "report": Command(("report", "--date", "2026-01-01"), "imputed"),
    "own": Command(("own", "panel", "owned", "--group", "g01"), "owned"),
    "trim": Command(("trim", "counts.csv"), "counts.csv"),
    "table": Command(("table", "records"), "records", (".csv",), ".csv"),
    "plot": Command(("plot", "fit"), "fit", (".svg", ".png", ".csv")),
    "run": Command(("run", "recipe.toml", "--jobs", "1"), "counts.csv", overwrites=False),
    "run many": Command(("run", "many.toml", "--jobs", "1"), "many.csv", overwrites=False),
}  # fmt: skip
RECIPE = '[ingest]\nfiles = ["counts.csv"]\nspecies = ["wren"]\n[fit]\nrank = 0\nbootstrap = 0\n'
MANY = """
species = ["wren", "robin"]
[ingest]
files = ["many.csv"]
map = "auto"
[panel]
groups = 2
[fit]
rank = 0
bootstrap = 0
"""


@dataclass
class Scene:
    """A folder, and where the output is to go; ``users`` are made by the relation."""

    root: Path
    command: Command

    def mine(self, path: str) -> None:
        """Put a file of the user's there."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(MINE)

    @property
    def input(self) -> str:
        return self.command.reads or "sim"


def nothing(s: Scene) -> str:
    """Nothing is in the way: the command must do its work, or the other relations try nothing."""
    return "out"


def equal(s: Scene) -> str:
    return s.input.removesuffix(s.command.ending)


def equal_file(s: Scene) -> str:
    files = sorted(p for p in (s.root / s.input).rglob("*") if p.is_file()) or [s.root / s.input]
    return str(files[0].relative_to(s.root))


def inside(s: Scene) -> str:
    return f"{s.input}/x"


def holds(s: Scene) -> str:
    return "."


def link(s: Scene) -> str:
    s.mine("elsewhere/photo.jpg")
    (s.root / "out").symlink_to("elsewhere", target_is_directory=True)
    return "out"


def links(s: Scene) -> str:
    s.mine("elsewhere.csv")
    for ending in s.command.endings:
        (s.root / f"out{ending}").symlink_to("elsewhere.csv")
    return "out"


def links_inside(s: Scene) -> str:
    s.mine("elsewhere/photo.jpg")
    (s.root / "out").mkdir()
    for name in ("records", "panel", "report", "wren", "index.html"):
        (s.root / "out" / name).symlink_to("../elsewhere", target_is_directory=True)
    return "out"


def at_the_output(s: Scene) -> str:
    for ending in s.command.endings:
        s.mine(f"out{ending}" if ending else "out/photo.jpg")
    return "out"


def inside_the_output(s: Scene) -> str:
    for name in ("manifest.json", "index.html", "records/x", "panel/y", "checkpoint/run.npz"):
        s.mine(f"out/{name}")
    return "out"


def partial_with(name: str) -> Callable[[Scene], str]:
    def relation(s: Scene) -> str:
        s.mine(f"out.partial/{name}")
        s.mine("out.partial/deep/photo.jpg")
        return "out"

    relation.__name__ = f"partial with {name}"
    return relation


def partial_is_the_input(s: Scene) -> str:
    """A folder of fedmiss that happens to have this name."""
    shutil.copytree(s.root / "fit", s.root / "out.partial")
    return "out"


def lock_name(s: Scene) -> str:
    for ending in s.command.endings:
        s.mine(f".out{ending}.lock")
    s.mine(".out.lock")
    return "out"


def temporary_name(s: Scene) -> str:
    for name in (
        ".out.tmp-old",
        ".out.tmp-77",
        ".out.csv.tmp-1",
        ".out.tmp-abc_123x",
        ".records.tmp-1",
        ".out.key",
    ):
        s.mine(name)
    s.mine(".out.tmp-dir/photo.jpg")
    return "out"


def case_variant(s: Scene) -> str:
    s.mine("OUT/photo.jpg")
    s.mine("Out.partial/photo.jpg")
    for ending in s.command.endings:
        s.mine(f"OUT{ending.upper()}x")
    return "out"


def mark_name(s: Scene) -> str:
    s.mine(MARK)
    return "out"


RELATIONS = {
    f.__name__: f
    for f in (
        nothing, equal, equal_file, inside, holds, link, links, links_inside, at_the_output, inside_the_output,
        partial_with("key.json"),
        partial_with("manifest.json"), partial_with("ledger.json"), partial_is_the_input, lock_name, temporary_name,
        case_variant, mark_name,
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = make_base(tmp_path_factory.mktemp("paths"))
    (folder / "counts.csv").write_text(COUNTS, encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    rows = [
        f"o{i},s{(i + k) % 2},2020-{1 + k:02d}-11,{name},{(i + 2 * k) % 5}"
        for k in range(12) for i in range(3) for name in ("wren", "robin")
    ]  # fmt: skip
    (folder / "many.csv").write_text(
        "\n".join(["observer,site,date,species,count", *rows, ""]), encoding="utf-8"
    )
    (folder / "many.toml").write_text(MANY, encoding="utf-8")
    done = fedmiss("fit", folder / "panel", *QUICK[:-1], 2, "--own", "--out", folder / "owned")
    assert done.code == 0, done.err
    return folder


def snapshot(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize(
    ("name", "relation", "overwrite"),
    [
        pytest.param(
            c,
            r,
            over,
            id=f"{'overwrite' if over else ''}-{c}-{r}",
            marks=() if c in SAMPLE or (c == "plot" and r in SEVERAL_FILES) else pytest.mark.nightly,
        )
        for over, c, r in itertools.product((False, True), COMMANDS, RELATIONS)
        if not over
        or (COMMANDS[c].overwrites and (COMMANDS[c].reads or r != "equal"))  # its own kind may be replaced
    ],
)
def test_nothing_of_a_user_is_lost(name, relation, overwrite, base, tmp_path, monkeypatch):
    command = COMMANDS[name]
    root = tmp_path / "here"
    shutil.copytree(base, root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("FEDMISS_QUIET", "1")
    out = RELATIONS[relation](Scene(root, command))
    before = snapshot(root)
    words = [*command.words, "--out", out + command.ending]
    done = fedmiss(*words, *(["--overwrite"] if overwrite else []))
    assert "Traceback" not in done.err, done.err
    assert relation != "nothing" or done.code == 0, done.err
    after = snapshot(root)
    lost = {p for p, content in before.items() if after.get(p) != content}
    assert lost == set(), (done.code, done.err)
    new = set(after) - set(before)
    if done.code:
        assert new == set(), done.err
        assert done.err.strip(), "a refusal says why"
    else:
        said = {f"{out}{ending}" for ending in command.endings}
        assert all(
            any(p == s or p.startswith(f"{s}/") or s == "." for s in said) or Path(p).name == MARK
            for p in new
        ), sorted(new)
