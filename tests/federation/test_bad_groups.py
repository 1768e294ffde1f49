"""What a group may bring or send: each case ends in one message that names the group and the next move."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError, EngineError, InputError, UplinkError, shown
from fedmiss.federation import messages as msg
from fedmiss.federation.calls import fit_counts
from fedmiss.federation.codec import decode, encode
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import Visits
from fedmiss.federation.hub.agree import DataSpec, agree
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings

from .owners import owned
from .rounds import predict, solve

ALL_PAIRS = np.zeros((0, 0), np.uint8)


def visits(
    seed=0, *, species="Anas crecca", months=(24_000, 24_036), n=200, count=None, prefix="L", checklist=None
):
    rng = np.random.default_rng(seed)
    y = rng.poisson(3.0, n).astype(float) if count is None else np.full(n, float(count))
    return Visits(
        site_id=np.array([f"{prefix}{j}" for j in range(12)], dtype=object),
        site=rng.integers(0, 12, n).astype(np.int32), month=rng.integers(*months, n), count=y,
        detected=np.nan_to_num(y, nan=1.0) > 0, observer=rng.integers(0, 6, n).astype(np.int32),
        effort=np.column_stack([rng.uniform(10, 90, n), rng.uniform(0, 4, n), np.ones(n)]), weight=np.ones(n),
        region=np.full(12, "", dtype=object), species=species, checklist=checklist,
    )  # fmt: skip


def link_of(**groups) -> Link:
    programs = {
        name: g if isinstance(g, GroupProgram) else GroupProgram(name, g, secret=b"s", plain_refusals=True)
        for name, g in groups.items()
    }
    return Link(InProcess(programs), b"job-0001", b"settings")


def test_groups_agree_on_the_union_of_their_months():
    early, late = visits(1, months=(24_000, 24_012)), visits(2, months=(24_024, 24_036), prefix="M")
    found = agree(link_of(early=early, late=late), DataSpec())
    assert found.panel.L == 36
    assert found.terms == ("duration", "distance")  # the number of observers never varies
    assert any("'early' alone" in n for n in found.notes)
    assert any("'late' alone" in n for n in found.notes)
    assert found.panel.J == 24
    summer = agree(link_of(a=visits(1), b=visits(2)), DataSpec(season=(6, 7)))
    assert summer.panel.L == 6


def test_another_species():
    with pytest.raises(InputError, match=r"'b' holds 'Anas acuta', group 'a' 'Anas crecca'.*same one"):
        agree(link_of(a=visits(), b=visits(species="Anas acuta")), DataSpec())
    with pytest.raises(InputError, match=r"group 'a' holds 'Anas crecca', the job is about 'Ardea alba'"):
        agree(link_of(a=visits()), DataSpec(species="Ardea alba"))


def test_a_group_that_never_saw_the_species_is_named_and_does_no_harm():
    found = agree(link_of(a=visits(), b=visits(count=0, prefix="M")), DataSpec())
    assert "group 'b' never saw the species." in found.notes


def test_a_group_without_a_counted_visit():
    found = agree(link_of(a=visits(), b=visits(count=np.nan, prefix="M")), DataSpec())
    assert any("'b' has no counted visit" in n for n in found.notes)
    with pytest.raises(InputError, match=r"no group has a counted visit.*--model bernoulli"):
        agree(link_of(a=visits(count=np.nan)), DataSpec())
    assert agree(link_of(a=visits(count=np.nan)), DataSpec(detections=True)).panel.visits == 200


def test_yearly_counts_beside_counts_of_months_are_warned_of():
    """An import puts yearly counts into June: a study took them for counts of that month without a word."""
    june = [visits(k, prefix=f"{k}L") for k in range(3)]
    june = [replace(one, month=one.month // 12 * 12 + 5) for one in june]
    plan = DataSpec(jointly=True)
    words = "All visits of b, c are of June, and others have other months"
    beside = agree(link_of(a=visits(9), b=june[1], c=june[2]), plan)
    assert [note for note in beside.notes if note.startswith(words)]
    for same in (june, [visits(k, prefix=f"{k}L") for k in range(3)]):
        notes = agree(link_of(**dict(zip("abc", same, strict=True))), plan).notes
        assert not any("June" in note for note in notes)


def test_another_effort_term():
    bare = visits(3)
    bare = replace(bare, effort=np.full_like(bare.effort, np.nan))
    with pytest.raises(InputError, match=r"group 'b' has no visit with a known duration"):
        agree(link_of(a=visits(), b=bare), DataSpec(effort=("duration",)))
    given = replace(visits(4), effort=np.ones((200, 2)), given=True)
    other = replace(visits(5), effort=np.ones((200, 3)), given=True)
    with pytest.raises(InputError, match=r"group 'b' has 3 effort covariates, group 'a' 2"):
        agree(link_of(a=given, b=other), DataSpec())
    with pytest.raises(ConfigError, match="effort term 'moon' is unknown"):
        agree(link_of(a=visits()), DataSpec(effort=("moon",)))


def test_another_version(monkeypatch):
    link = link_of(a=visits(), b=visits(1))
    monkeypatch.setattr("fedmiss.federation.group.agreement.__version__", "9.9")
    with pytest.raises(ConfigError, match=r"group 'a' runs fedmiss 9\.9, the hub"):
        agree(link, DataSpec())


def test_other_settings_than_the_group_agreed_to():
    program = GroupProgram("a", visits(), secret=b"s", plain_refusals=True, settings=b"otherone")
    with pytest.raises(ConfigError, match=r"group 'a' agreed to .*same settings"):
        agree(link_of(a=program), DataSpec())


def test_a_refusal_over_the_wire_holds_no_data():
    program = GroupProgram("a", visits(), secret=b"s")
    with pytest.raises(
        InputError, match=r"group 'a': InputError; the reason stands on the group's own screen"
    ):
        agree(link_of(a=program), DataSpec(species="Ardea alba"))
    assert "Anas crecca" in str(program.refusal)


def test_a_duplicate_of_another_groups_checklists_counts_once():
    ids = np.array([f"S{i}" for i in range(200)], dtype=object)
    first = visits(1, checklist=ids)
    second = visits(1, checklist=np.r_[ids[:150], np.char.add("T", ids[150:].astype(str))])
    held, at = {"a": first, "b": second}, dict.fromkeys("ab", np.arange(12))
    federation = LocalFederation(held, at, 12, DataSpec(), duplicates=True)
    assert federation.dropped == 150
    assert federation.n_counted == 250
    assert LocalFederation(held, at, 12, DataSpec()).n_counted == 400


class Tampering(InProcess):
    """Changes one group's answers on the way."""

    def __init__(self, programs, change):
        super().__init__(programs)
        self.change = change

    def ask(self, frame):
        out = super().ask(frame)
        envelope, answers = decode(out["owner-1"], None, asks=False, who="x")
        out["owner-1"] = encode([self.change(a) for a in answers], envelope)
        return out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: replace(m, months="none"), r"group 'owner-1' sent str in Months\.months"),
        (lambda m: replace(m, months=m.months * np.nan), r"group 'owner-1' sent nan in Months\.months"),
        (lambda m: replace(m, sites=m.sites + np.inf), r"group 'owner-1' sent inf in Months\.sites"),
        (lambda m: replace(m, months=m.months[:, :-1]), r"group 'owner-1' sent Months\.months of shape"),
        (lambda m: msg.Done(0, 0, np.zeros(2), 0.0), r"group 'owner-1' answered Solve with Done"),
    ],
    ids=["type", "nan", "inf", "shape", "kind"],
)
def test_a_wrong_answer_is_refused_by_the_groups_name(change, words):
    federation = LocalFederation.of_panel(owned(3, n=300))
    federation.link.transport = Tampering(
        federation.programs, lambda m: change(m) if isinstance(m, msg.Months) else m
    )
    with pytest.raises(UplinkError, match=words):
        federation.fit(CountSettings(rank=0))


def test_a_missing_group_and_a_late_answer():
    federation = LocalFederation.of_panel(owned(3, n=300))
    inner = federation.link.transport

    class Absent:
        names = inner.names
        last = None

        def ask(self, frame):
            out = inner.ask(frame)
            late, self.last = self.last, out["owner-2"]
            if late is None:
                del out["owner-2"]
            else:
                out["owner-2"] = late
            return out

    federation.link.transport = Absent()
    with pytest.raises(EngineError, match="no answer from owner-2"):
        federation.fit(CountSettings(rank=0))
    with pytest.raises(
        UplinkError, match=r"group 'owner-2' sent a message from exchange .*late message is ignored"
    ):
        federation.fit(CountSettings(rank=0))


def test_impossible_counts_name_the_group():
    panel = owned(2, n=200)
    bad = replace(panel.groups[1], count=panel.groups[1].count - 5.0)
    with pytest.raises(
        ConfigError, match=r"group 'owner-1' has the count -5; Poisson counts must be 0 or more"
    ):
        fit_counts(replace(panel, groups=(panel.groups[0], bad)), CountSettings(rank=0))


def opened(**more):
    federation = LocalFederation.of_panel(owned(2, n=300), **more)
    federation.fit(CountSettings(rank=1))
    return federation


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (msg.Product(0, np.array([5]), np.zeros((1, 36, 6)), np.ones(1), ALL_PAIRS), r"fits \[5\] of 1"),
        (msg.Product(0, np.array([0]), np.zeros((1, 99, 6)), np.ones(1), ALL_PAIRS),
         r"V of shape \(1, 99, 6\)"),
        (solve(L=36, f=9), "9 coefficients of at most 2"),
        (predict(fits=(0, 0), L=36, f=2), r"fits \[0, 0\] of 1"),
        (msg.Score(0, np.array([0]), np.ones(1), np.zeros(1)), "without held-out visits"),
        (predict(batch=77, L=36, f=2), "batch 77 was never opened"),
    ],
    ids=["fits", "V", "rank", "twice", "score", "batch"],
)  # fmt: skip
def test_a_question_that_points_outside_is_refused_by_the_group(question, words):
    program = opened().programs["owner-0"]
    with pytest.raises(UplinkError, match=words):
        program.reply(question)


def test_an_unforeseen_error_in_a_group_is_a_refusal_without_data():
    federation = opened()
    program = federation.programs["owner-0"]
    for p in federation.programs.values():
        p.plain_refusals = False
    federation.link.ask([predict(L=36, f=2)])
    with pytest.raises(
        EngineError, match=r"'owner-0': EngineError; the reason stands on the group's own screen"
    ):
        federation.link.ask([msg.Axes(np.zeros(0, np.int64), (), (), False, 0, (), np.zeros(0, np.uint8))])
    assert isinstance(program.refusal, IndexError)


def test_changed_settings_in_the_middle_of_a_job_are_refused():
    federation = opened()
    federation.link.settings = b"changed!"
    with pytest.raises(ConfigError, match="settings changed during the job"):
        federation.link.ask([msg.Gaps()])


def test_a_group_can_serve_one_job_after_another():
    group = visits(3, months=(24_000, 24_024))
    program = GroupProgram("a", group, secret=b"s", plain_refusals=True)
    first = agree(Link(InProcess({"a": program}), b"job-0001", bytes(8)), DataSpec(season=(6,)))
    second = agree(Link(InProcess({"a": program}), b"job-0002", bytes(8)), DataSpec())
    assert (first.panel.L, second.panel.L) == (2, 24)
    assert second.panel.visits == 200


def test_what_crossed_is_in_the_ledger_even_when_it_was_refused():
    federation = opened()
    before = asdict(federation.link.ledger.total)
    with pytest.raises(UplinkError):
        federation.link.ask([predict(batch=77, L=36, f=2)])
    after = asdict(federation.link.ledger.total)
    assert after["exchanges"] == before["exchanges"] + 1
    assert after["bytes_up"] > before["bytes_up"]


def test_settings_that_are_none_are_one_sentence():
    panel = GroupPanel.of(2, 2, [Group.of("a", [0, 0, 1, 1], [0, 1, 0, 1], [2.0, 4.0, 6.0, 12.0])])
    with pytest.raises(ConfigError, match=r"settings is \{'rank': 0\} \(must be a CountSettings"):
        fit_counts(panel, {"rank": 0})
    with pytest.raises(ConfigError, match="settings are 'poisson'"):
        LocalFederation.of_panel(panel).cross_validate(["poisson", CountSettings()])


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"months": np.array([0, 2**40])}, "months reach over .* is of c"),
        ({"months": np.array([24_030, 24_000])}, "'c' described its panel with impossible numbers"),
        ({"season": np.zeros((3, 3), np.int64)}, "'c' described its panel with impossible numbers"),
        ({"site_covariates": ("height",), "magnitudes": np.array([5000])},
         "'c' described its panel with impossible"),
        ({"regions": ("north", "\x1b[2J")}, r"'c' names '\?\[2J', with characters that no screen shows"),
        ({"version": "9\nfedmiss: done"}, "'c' names '9.fedmiss: done'"),
        ({"contributors": 10**6}, "Least numbers are those of c, above"),
    ],
)  # fmt: skip
def test_what_an_organisation_says_of_its_panel_ends_no_other_without_its_name(what, words):
    """A list of 2^40 months ended all others with a MemoryError; a name could write over their screens."""
    programs = {n: GroupProgram(n, visits(i), secret=b"s", jointly=True) for i, n in enumerate("abc")}
    honest = programs["c"].reply
    programs["c"].reply = lambda q: replace(honest(q), **what) if isinstance(q, msg.Hello) else honest(q)
    with pytest.raises((UplinkError, InputError), match=words):
        agree(link_of(**programs), DataSpec(jointly=True))


def test_a_text_of_somebody_else_does_not_steer_the_screen():
    assert shown("Aran Islands, \u00e9t\u00e9\u00a0\u200c") == "Aran Islands, \u00e9t\u00e9\u00a0\u200c"
    assert shown("\x1b[2J\n\u202edone\u2028") == "?[2J??done?"
    assert len(shown("x" * 70_000)) == 400
