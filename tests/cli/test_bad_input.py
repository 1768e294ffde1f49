"""Every mistake ends with one clear line on stderr, exit code 1 or 2, and nothing half-written."""

import errno
import os
import re
import subprocess
import sys
from unicodedata import normalize

import pytest
from bad_inputs import CASES, QUICK, WIGEON, ebd, interrupted, records_of, sampling
from terminal import entry_point, fedmiss, real, refusing, tree

from fedmiss.cli.commands import _was_interrupted
from fedmiss.pipeline.recipe import read_recipe
from fedmiss.system import as_spelled, at_home


def one_line(done, code):
    assert done.code == code, done
    assert done.err.startswith("fedmiss: "), done.err
    assert len(done.err.strip().splitlines()) == 1, done.err
    assert "Traceback" not in done.err
    assert done.err.rstrip().endswith((".", "?", "'", ")")), done.err


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_one_clear_line(case, base, here):
    words = case.words(base, here)
    before = tree(here), tree(base)
    with case.during(here):
        done = fedmiss(*words)
    one_line(done, case.code)
    for word in case.says:
        assert word in done.err, done.err
    assert (tree(here), tree(base)) == before, "something was left behind or lost"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"), [(("fitt",), 2), (("fit",), 2), (("panel", "records", "--grups", 3), 2)]
)
def test_wrong_usage_ends_with_2_and_no_traceback(words, code, here):
    done = fedmiss(*words)
    assert done.code == code
    assert "Traceback" not in done.err
    assert done.err.startswith("Usage: ")
    assert tree(here) == {}


def test_debug_shows_the_traceback(here):
    from fedmiss.errors import InputError

    with pytest.raises(InputError):
        fedmiss("--debug", "inspect", "nothing")


@pytest.mark.slow
def test_the_installed_command_says_the_same(base, here):
    """Three mistakes through a real process: message, exit code, no trace of Python."""
    for words, code, word in (
        (("inspect", "nothing"), 1, "nothing"),
        (("fit", base / "records"), 1, "'panel'"),
        (("fit", base / "panel", "--model", "nebgin"), 2, "'nebgin'"),
    ):
        done = real(*words)
        one_line(done, code)
        assert done.out == ""
        assert word in done.err
    assert tree(here) == {}


# --- disks


STEPS = {
    "ingest": lambda b: ("ingest", ebd(b), "--sampling", sampling(b), "--no-cache"),
    "panel": lambda b: ("panel", b / "records", *WIGEON, "--groups", 3),
    "impute": lambda b: ("impute", b / "panel", b / "fit"),
    "report": lambda b: ("report", "--panel", b / "panel", "--fit", b / "fit", "--imputed", b / "imputed"),
    "simulate": lambda b: ("simulate", "--records", 1000, "--species", 1),
}


@pytest.mark.parametrize("step", [pytest.param(s, marks=[pytest.mark.slow] * (s == "report")) for s in STEPS])
def test_a_full_disk_at_the_last_moment(step, base, here):
    """The rename onto the final name fails: the message names the folder, and nothing is left."""
    with refusing("replace", errno.ENOSPC, here):
        done = fedmiss(*STEPS[step](base), "--out", here / "new")
    one_line(done, 1)
    assert f"cannot write {here / 'new'}: the disk is full" in done.err
    assert tree(here) == {}


def small_disk(kilobytes: int, *commands: str) -> subprocess.CompletedProcess[str]:
    """Run shell commands where ``disk/`` is a file system of this size, in a namespace of its own."""
    script = f"mkdir -p disk && mount -t tmpfs -o size={kilobytes}k none disk && " + " ; ".join(commands)
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("step", [*STEPS, "fit", "algorithm 7"])
def test_a_truly_full_disk(step, base, here):
    """A file system of 60 kB: every step says so in one line and takes its half-written files away."""
    if not sys.platform.startswith("linux") or small_disk(60, "true").returncode:
        pytest.skip("this machine lets no ordinary user mount a small file system")
    words = {
        **STEPS,
        "fit": lambda b: ("fit", b / "panel", "--model", "log1p", "--rank", 0, "--bootstrap", 200),
        "algorithm 7": lambda b: ("fit", b / "panel", "--method", "fedmissem", "--rounds", 5),
    }[step](base)
    fill = "head -c 40k /dev/zero > disk/fill"
    line = " ".join(f"'{w}'" for w in (*entry_point(), *words, "--out", "disk/new"))
    done = small_disk(60, fill, f"{line} >&2 ; code=$?", "ls -A disk", "exit $code")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "disk is full" in done.stderr, done.stderr
    left = set(done.stdout.split())
    assert left - {"new.partial"} == {"fill"}, left  # an unfinished fit may be resumed


# --- interruptions


@pytest.mark.slow
def test_ctrl_c_during_a_fit_leaves_no_result_but_a_fit_to_resume(base, here):
    words = ("fit", base / "panel", *QUICK[:-2], "--bootstrap", 20, "--out", "fit")
    with interrupted(here):
        done = fedmiss(*words)
    one_line(done, 130)
    assert done.err.startswith("fedmiss: interrupted")
    assert not (here / "fit").exists()
    assert fedmiss(*words).code == 0
    assert not (here / "fit.partial").exists()


def test_an_interrupt_that_a_compiled_loop_wraps_twice_is_still_one():
    inner, outer = SystemError("inner"), SystemError("outer")
    inner.__cause__, outer.__cause__ = KeyboardInterrupt(), inner
    assert _was_interrupted(outer)
    assert not _was_interrupted(SystemError("a defect of ours"))


def test_a_tilde_is_the_home_folder_and_never_a_folder_of_that_name(here, monkeypatch):
    """A shell leaves it in --out=~/x; a folder called ~ was made, which nobody should remove by its name."""
    monkeypatch.setenv("HOME", str(here / "home"))
    monkeypatch.setenv("USERPROFILE", str(here / "home"))
    (here / "counts.csv").write_text("site;year;count\na;2001;4\na;2002;6\nb;2001;10\nb;2002;3\n")
    done = fedmiss("ingest", "counts.csv", "--species", "wren", "--out=~/records")
    assert done.code == 0, done
    assert (here / "home" / "records" / "records.parquet").exists()
    assert not (here / "~").exists()
    (here / "r.toml").write_text('out = "~/results"\n[ingest]\nfiles = ["~/counts.csv"]\n')
    assert at_home(here / "x") == here / "x"
    assert str(at_home(type(here)("~$counts.xlsx"))) == "~$counts.xlsx"
    recipe = read_recipe(here / "r.toml")
    assert recipe.out == here / "home" / "results"
    assert recipe.files == (here / "home" / "counts.csv",)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one spelling")
def test_accents_that_a_mac_writes_apart_name_the_same_file(here):
    """The message named a file that lay there, letter by letter, for all that a screen shows."""
    apart = type(here)(normalize("NFD", str(here / "Vögel" / "Zählung.csv")))
    there = here / normalize("NFC", "Vögel") / apart.name  # one name of each kind
    there.parent.mkdir()
    there.write_text("site;year;count\na;2001;4\na;2002;6\n")
    for typed in (apart, type(here)(normalize("NFC", str(apart)))):
        assert as_spelled(typed) == there
        # not there yet
        assert as_spelled(typed.with_name("neü")) == there.parent / typed.with_name("neü").name
        out = typed.parent / f"r{typed == apart}"
        assert fedmiss("ingest", typed, "--species", "wren", "--out", out).code == 0
    (here / "r.toml").write_text(f'[ingest]\nfiles = ["{apart.relative_to(here)}"]\n')
    assert read_recipe(here / "r.toml").files == (there,)
    assert {"rFalse", "rTrue"} < {p.name for p in there.parent.iterdir()}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a name")
def test_a_name_that_is_not_utf8_is_one_sentence(here):
    path = os.fsencode(here) + b"/\xf6.csv"
    with open(path, "wb") as stream:
        stream.write(b"site;year;count\na;2001;4\na;2002;6\n")
    done = fedmiss("ingest", os.fsdecode(path), "--species", "wren", "--out", here / "records")
    one_line(done, 1)
    assert "not UTF-8" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fit panel --seed x", r"--seed is 'x' \(must be a whole number\)\. `.* fit --help` says more"),
        ("fit panel --seed=-1", r"--seed is -1 \(must be between 0 and "),
        ("fit panel --rank x", r"--rank is 'x' \(must be a whole number or auto\)"),
        ("fit panel --method fedmissem --alpha 2", r"--alpha is 2 \(must be above 0 and at most 1\)"),
        ("fit panel --method fedmissem --alpha x", r"--alpha is 'x' \(must be a number\)"),
        ("fit panel --penalty much", r"--penalty is 'much' \(must be a number\)"),
        ("trim counts.csv --model 7", r"--model is 7 \(must be at most 3\)"),
        ("federation outbox kit panel --last 0",
         r"--last is 0 \(must be at least 1\)\. `.* federation outbox --help`"),
        ("fit p --method=fedmissem --penalty=nan", "--penalty is nan"),
        ("fit p --method=fedmissem --penalty=-inf", "--penalty is -inf"),
        ("fit p --method=fedmissem --alpha=nan", "--alpha is nan"),
        ("fit p --method=saem --participation=nan", "--participation is nan"),
        ("fit p --rank=1.5", "--rank is '1.5'"),
        ("fit p --rank=-1", "--rank is '-1'"),
        ("ingest f --max-speed=nan", "--max-speed is nan"),
        ("ingest f --distance=..nan", r"--distance\[2\] is nan"),
        ("ingest f --bbox=nan,1,2,3", r"--bbox\[1\] is nan"),
        ("report --span=nan", "--span is nan"),
        ("report --coarse-map=inf", "--coarse-map is inf"),
        ("report --min-counts=0", "--min-counts is 0"),
        ("panel r --groups=0", "--groups is 0"),
        # the first sheet would be left out without a word
        ("ingest f --sheet 2008 --sheet 2009", "--sheet is given 2 times; it takes one value"),
        ("federation join k p --own-sites 3 --own-sites=4", "--own-sites is given 2 times"),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_kind_is_named_with_its_option_and_its_limit(words, said):
    """Typer's own message named no value: "Input should be a valid integer"."""
    run = fedmiss(*words.split())
    assert run.code == 2
    (line,) = run.err.splitlines()
    assert re.match(f"fedmiss: {said}", line)


@pytest.mark.slow
def test_a_month_without_visits_works_and_is_told(here):
    dates = [f"2020-{m:02d}-11" for m in range(1, 13)] + [f"2021-{m:02d}-11" for m in range(1, 13) if m != 5]
    records = records_of(here, dates=tuple(dates))
    done = fedmiss("panel", records, "--groups", 2, "--out", "panel")
    assert done.code == 0, done.err
    assert "24 months" in done.out
    assert "1 of 24 months has no visit (2021-05); it is estimated" in done.out
    fitted = fedmiss("fit", "panel", *QUICK, "--out", "fit")
    assert fitted.code == 0, fitted.err
    assert fedmiss("impute", "panel", "fit", "--out", "imputed").code == 0
    import pyarrow.parquet as pq

    gap = pq.read_table(here / "imputed" / "imputed.parquet").to_pandas().query("month_index == 16")
    assert len(gap) == 2
    assert not gap["observed"].any()
    assert (gap["expected"] > 0).all()
