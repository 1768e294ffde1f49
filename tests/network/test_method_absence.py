"""A method of a user's own, some of whose organisations are away: cohorts, who says who is there, what they end with."""

import contextlib
import json
import re
import time
from functools import partial

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation.circle import frame_label
from fedmiss.network.approval import page
from fedmiss.network.folder import Folder
from fedmiss.network.join import join
from fedmiss.network.kits import open_kit
from fedmiss.network.member import party_of, take_part
from fedmiss.network.proposer import new_revision
from fedmiss.network.status import status
from fedmiss.network.study import read_study, read_study_toml
from tests.cli.terminal import fedmiss
from tests.federation.network import Kill, together
from tests.network.test_method import TOML, _installed, prepared  # noqa: F401 (a fixture)

SIX = ("central", "north", "south", "east", "isles", "west")


def absent_toml(line='absence = 1\nchair = "north"'):
    clubs = ", ".join(f'"{c}"' for c in SIX)
    return (
        f"name = 'flocks'\norganisations = [{clubs}]\n{line}\n"
        + TOML[TOML.index("[method]") :]
        + "rounds = 120\n"
    )


def _by_folder(folder, data, name, until=None):
    """Take part over a shared folder, to the exchange ``until``."""
    kit, shared = open_kit(folder / "kits" / name), folder / "shared"
    shared.mkdir(exist_ok=True)
    party = party_of(kit)
    carrier = Folder(
        shared, name, kit.study.organisations, kit.study.name, kit.job, patience=60.0,
        genuine=lambda n, e, raw: party.verified(n, frame_label(kit.job, n, e), raw),
    )  # fmt: skip

    def watch(stage, exchanges):
        if exchanges == until:
            raise Kill

    return take_part(kit, data[name], carrier, watch=watch)


@pytest.mark.slow
def test_who_is_in_every_sum_and_ends_late_is_left_out_of_none(tmp_path, monkeypatch):
    """The others do not wait at the end for longer than in a round; no sum lacked anybody."""
    import three_organisations

    def job(circle, data, components, rounds):
        circle.add_up_here([], np.ones(2))
        time.sleep(4.0 * (circle.name == "east"))
        return {"n": 1}

    folder, data = prepared(tmp_path, absent_toml(), SIX)
    monkeypatch.setattr(three_organisations, "job", job)
    got = together({n: (lambda n=n: _by_folder(folder, data, n)) for n in SIX})
    for result in got.values():
        assert json.loads((result / "manifest.json").read_text())["results"]["rounds_without"] == {}


@pytest.mark.slow
def test_a_club_that_is_off_for_a_third_of_the_study_holds_nobody_up_and_has_the_result(tmp_path, capsys):
    """Over a shared folder: its process is killed, the others go on, and it goes through what it missed."""
    folder, data = prepared(tmp_path, absent_toml(), SIX)
    one = partial(_by_folder, folder, data)

    def west():
        with contextlib.suppress(Kill):
            one("west", until=9)
        while not list((folder / "shared").glob("*/000025/north-*")):
            time.sleep(0.01)
        return one("west")

    got = together({n: (lambda n=n: one(n)) for n in SIX if n != "west"} | {"west": west})
    counts = np.concatenate([np.loadtxt(data[n]) for n in sorted(SIX)])
    found = {n: np.load(result / "arrays.npz")["rates"] for n, result in got.items()}
    without = [json.loads((got[n] / "manifest.json").read_text())["results"]["rounds_without"] for n in SIX]
    assert all(w == without[0] for w in without)
    assert without[0]["west"] >= 10
    assert "central" not in without[0], "it is in the other cohort"
    said = capsys.readouterr().err
    assert "not finite), with the cohort that shares its masks: north in" in said
    rates = fitted(counts)
    for n in SIX:
        np.testing.assert_array_equal(found[n], found["north"])
        np.testing.assert_allclose(found[n], rates, rtol=5e-3)


def test_the_status_of_who_waits_has_all_exchanges_that_are_over(tmp_path, monkeypatch):
    """Quick exchanges are written down once a second: a job that stood still at the twelfth said that four were over."""
    folder, data = prepared(tmp_path, TOML + "rounds = 20\n")
    monkeypatch.setattr("fedmiss.network.folder.QUIET", 0.3)
    (folder / "shared").mkdir()
    kit, seen = open_kit(folder / "kits" / "north"), []

    def south():
        with contextlib.suppress(Kill):
            _by_folder(folder, data, "south", until=12)
        until = time.monotonic() + 60
        while status(kit.private)["missing"] != ["south"] and time.monotonic() < until:
            time.sleep(0.01)
        seen.append(status(kit.private)["exchanges"])
        return _by_folder(folder, data, "south")

    together(
        {
            "north": lambda: join(kit, data["north"], folder=folder / "shared", say=lambda words: None),
            "central": lambda: _by_folder(folder, data, "central"),
            "south": south,
        }
    )
    assert seen == [12]


def fitted(counts):
    """EM of the two components on all counts together."""
    share, rates = np.array([0.5, 0.5]), counts.mean() * np.array([0.5, 1.5])
    for _ in range(2000):
        logs = np.log(share) + counts[:, None] * np.log(rates) - rates
        p = np.exp(logs - logs.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        share, rates = p.mean(axis=0), (p * counts[:, None]).sum(axis=0) / p.sum(axis=0)
    return rates


def test_a_custodian_reads_who_may_be_left_out_and_who_says_so(tmp_path):
    folder, _ = prepared(tmp_path, absent_toml(), SIX)
    text = page(open_kit(folder / "kits" / "north"))
    assert "who is away holds up a round for 1 seconds" in text
    assert "north says who is there" in text
    assert "cohorts: central, east, isles; north, south, west" in text
    assert "the sum over a cohort" in text
    assert "Do not join two such studies about the same data" in text
    assert "all wait" not in fedmiss("federation", "revise", folder).out, "the same cohorts"
    done = fedmiss("federation", "revise", folder, "--with", "lakes")
    assert "Now all wait for who is away: other cohorts than before could tell" in done.out + done.err
    new = read_study(folder)
    assert (len(new.organisations), new.absence, new.chair) == (7, 0.0, "")
    (tmp_path / "bare").mkdir()
    folder, _ = prepared(tmp_path / "bare", absent_toml("absence = 9\nmasks = false\nchair = 'west'"), SIX)
    new = new_revision(folder, without=["west"])
    assert (new.absence, new.chair) == (9.0, "")


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        (absent_toml("absence = -1"), "absence is -1 seconds (must lie between 0"),
        (absent_toml("absence = 5\nchair = 'x'"), "the chair 'x' is not among the organisations"),
        (absent_toml("chair = 'north'"), "chair = 'north' does nothing here: it is about who is away"),
        (absent_toml("absence = 5\nengine = 'nvflare'"), "it is of a study with [method], over a folder"),
        ("absence = 5" + TOML, "absence needs 6 organisations, the study has 3"),
        ("absence = 5\nname = 's'\nspecies = 'A'\norganisations = ['a', 'b', 'c']", "absence = 5 does nothing here"),
        *((line + TOML, f"{said} does nothing here") for line, said in {
            'species = "Ardea alba"': "species = 'Ardea alba'", "season = [5]": "season = (5,)",
            "minimum = 9": "minimum = 9", 'months = ["2004-01", "2005-12"]': "months = ('2004-01', '2005-12')",
            "share = 0.6": "share = 0.6", 'sites = "all"': "sites = 'all'", "contributors = 3": "contributors = 3",
        }.items()),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_hold_or_that_the_method_would_not_keep_is_refused(toml, words, tmp_path):
    (tmp_path / "study.toml").write_text(toml)
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_study_toml(tmp_path / "study.toml")
