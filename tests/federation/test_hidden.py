"""What an attacker with all messages of a job finds about own sites: planted numbers, and the linear attack.

The attacker is strong: it has every frame of every group, of all rounds, folds and replicates, and knows which cells were
visited and which fold each is in. What it looks for are the counts.
"""

import struct
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.interpolate import AAA

from fedmiss.federation.calls import fit_counts
from fedmiss.federation.codec import decode
from fedmiss.federation.group.agreement import LEAST_VISITS
from fedmiss.federation.group.folds import draw_folds, withhold
from fedmiss.federation.hub.agree import DataSpec, agree
from fedmiss.federation.hub.bootstrap import totals_of
from fedmiss.federation.link import Link
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings

from .network import Tapped
from .owners import largest, owned

QUASI = [CountSettings(rank=r) for r in (0, 1)]
FOLDS = 3


def planted(n=1100, seed=3) -> GroupPanel:
    """Own sites of three owners; every count is a number of its own, between a million and nine."""
    panel = owned(3, J=60, L=24, n=n, seed=seed)
    numbers = iter(
        np.random.default_rng(seed).permutation(np.arange(1_000_001, 9_000_001, 1000)).astype(float)
    )
    groups = []
    for g in panel.groups:
        first = np.unique(g.site.astype(np.int64) * 24 + g.month, return_index=True)[1]  # one visit a cell
        y = np.array([next(numbers) for _ in first])
        groups.append(Group.of(g.name, g.site[first], g.month[first], y, g.observer[first]))
    return GroupPanel.of(panel.J, panel.L, groups, panel.calendar, panel.site_id, panel.region)


def overheard(panel, minimum) -> tuple[list, LocalFederation]:
    """All frames of a job: agreement, cross-validation, fit, bootstrap."""
    federation = LocalFederation.of_panel(panel, minimum=minimum)
    tap = Tapped(federation.programs)
    federation.link = Link(tap, b"overhear", bytes(8))  # another job, agreed from the start under the tap
    agree(federation.link, DataSpec(months=panel.calendar[1] * 12 + panel.calendar[0] - 1, minimum=minimum))
    federation.cross_validate(QUASI, folds=FOLDS, by="cell")
    federation.fit(QUASI[1])
    federation.replicates(range(4), seed=0)
    return tap.frames, federation


def test_no_identifier_and_no_planted_number_is_in_any_frame():
    panel = planted()
    frames, federation = overheard(panel, 4)
    everything = b"".join(f for asked, told in frames for f in (asked, *told.values()))
    assert len(everything) > 100_000
    for site in panel.site_id:
        assert site.encode() not in everything
    open_hashes = pd.util.hash_array(panel.site_id)  # under a key that everybody knows
    assert not any(struct.pack("<Q", int(h)) in everything for h in open_hashes)
    for program in federation.programs.values():
        assert program.secret not in everything
    for g in panel.groups:
        for y in g.count:
            assert struct.pack("<d", y) not in everything
    # A planted number has three bytes and zeros, which also stand where a double ends and a whole one (5.0) begins.
    whole = [y for g in panel.groups for y in g.count if struct.pack("<q", int(y)) in everything]
    assert len(whole) < 4, whole


def equations(panel, frames, name, used, minimum):
    """Everything linear in one owner's counts: month sums of every fit of rank 0, totals of fits and folds.

    For Poisson weights gradient + curvature of a month's effect is the sum of its counts, whatever the parameters.
    Returns rows over the owner's cells, and the values.
    """
    fold = draw_folds(
        "cell", FOLDS, 0, name=name, site_id=panel.site_id, site=used.site, month=used.stamp, year=used.stamp // 12,
        observer=used.observer,
    )  # fmt: skip
    free = ~withhold(used.site, used.month, fold, minimum, panel.L)  # months that stay in cross-validation
    rows, values, seen = [], [], set()
    for asked, told in frames:
        questions = decode(asked, None, asks=True, who="")[1]
        replies = decode(told[name], None, asks=False, who="")[1]
        for q, a in zip(questions, replies, strict=True):
            kind = type(q).__name__
            if kind == "Solve" and q.T.shape[2] == 1 and q.batch != 1:
                for i, f in enumerate(q.fits):
                    mask = free & (fold != f) if q.batch >= 1000 else np.ones(fold.size, bool)
                    for month in range(panel.L):
                        key = (q.batch, int(f), month)
                        if key not in seen:
                            seen.add(key)
                            rows.append(mask & (used.month == month))
                            values.append(a.months[i, month].sum())
            elif kind == "Predict" and q.batch != 1:
                for i, f in enumerate(q.fits):
                    rows.append(free & (fold != f) if q.batch >= 1000 else np.ones(fold.size, bool))
                    values.append(a.totals[i, 1])
            elif kind == "Score":
                for i, f in enumerate(q.fits):
                    rows.append(free & (fold == f))
                    values.append(a.sums[i, 3])
    return np.array(rows, dtype=float), np.array(values)


def attack(panel, minimum):
    """Share of own cells that the equations determine, and share that the least-squares solution gives within 1 %."""
    frames, federation = overheard(panel, minimum)
    sure = near = luck = cells = 0.0
    rng = np.random.default_rng(0)
    for name, program in federation.programs.items():
        used = program.used
        ids = program.visits.site_id
        sub = GroupPanel(panel.J, panel.L, (), panel.calendar, ids)
        A, b = equations(sub, frames, name, used, minimum)
        assert np.abs(A @ used.count - b).max() < 1e-6 * b.max(), "the attacker's equations hold"
        inverse = np.linalg.pinv(A)
        sure += (np.diag(inverse @ A) > 1 - 1e-9).sum()
        guess = inverse @ b
        near += (np.abs(guess / used.count - 1) < 0.01).sum()
        luck += np.mean([(np.abs(guess / rng.permutation(used.count) - 1) < 0.01).sum() for _ in range(50)])
        cells += used.count.size
    return sure / cells, near / cells, luck / cells, cells


def test_the_linear_attack_succeeds_without_minimum_counts_and_fails_with_them():
    panel = planted()
    sure, near, _, cells = attack(panel, 0)
    assert sure * cells >= 10  # the attack is a real one: folds of one site in a month give it away
    assert near >= sure
    sure, near, luck, cells = attack(panel, 4)
    assert cells > 0.3 * sum(g.count.size for g in panel.groups)  # something is left to protect
    assert sure == 0.0
    assert near < luck + 4 * np.sqrt(luck / cells)  # no more hits than guesses at shuffled counts have


def test_withheld_months_are_said_and_the_rest_is_the_pooled_answer():
    panel = owned(3, J=45, L=24, n=500, size=2.0, seed=2)
    federation = LocalFederation.of_panel(panel, minimum=4)
    assert 0 < federation.agreement.withheld < panel.m
    assert any(
        f"{federation.agreement.withheld} visits were withheld" in n for n in federation.agreement.notes
    )
    kept = []
    for g in panel.groups:  # the pooled reference obeys the same rule
        sites = np.array([np.unique(g.site[g.month == t]).size for t in range(panel.L)])
        m = sites[g.month] >= 4
        kept.append(Group.of(g.name, g.site[m], g.month[m], g.count[m], g.observer[m]))
    reference = GroupPanel.of(panel.J, panel.L, kept, panel.calendar, panel.site_id, panel.region)
    settings = CountSettings(rank=1, dispersion="negbin")
    a, b = federation.fit(settings), fit_counts(reference.pooled(), settings)
    assert a.n_counted == b.n_counted == panel.m - federation.agreement.withheld
    assert largest(a.expected().sum(axis=0), b.expected().sum(axis=0)) < 1e-10


def test_the_table_of_the_dispersion_cannot_be_taken_apart():
    """It is rational in 1 / size, a pole for every visit's mean: AAA would find them from enough exact values."""
    panel = owned(3, J=60, L=24, n=1100, size=1.0, seed=5)
    federation = LocalFederation.of_panel(panel, minimum=4)
    tap = Tapped(federation.programs)
    federation.link = Link(tap, b"overhear", bytes(8))
    stamps = panel.calendar[1] * 12 + panel.calendar[0] - 1
    hub = agree(federation.link, DataSpec(months=stamps, minimum=4)).panel
    federation.hub = hub
    federation.fit(CountSettings(rank=0, dispersion="negbin"))
    looked = 0
    for asked, told in tap.frames:
        for q, a in zip(
            decode(asked, None, asks=True, who="")[1],
            decode(told["owner-0"], None, asks=False, who="")[1],
            strict=True,
        ):
            if type(a).__name__ != "Months" or not q.nodes.size:
                continue
            looked += 1
            assert 2 * q.nodes.shape[1] <= LEAST_VISITS <= federation.programs["owner-0"].used.site.size
            poles = AAA(q.nodes[0], a.dispersion[0]).poles()
            means = -1.0 / poles[np.abs(poles.imag) < 1e-9 * np.abs(poles)].real
            b = federation.programs["owner-0"].batches[0]
            true = np.unique(np.exp(b.eta[0]))
            hits = [(np.abs(true / m - 1) < 1e-6).any() for m in means if m > 0]
            assert sum(hits) == 0
    assert looked >= 2


def test_a_region_with_few_own_sites_is_not_released():
    panel = owned(2, J=40, L=24, n=1600, size=2.0, seed=6)
    lone = panel.groups[0].site[0]
    region = np.array(["wide" if j != lone else "lone" for j in range(40)], dtype=object)
    panel = replace(panel, region=region)
    settings = CountSettings(rank=0)
    open_, closed = (LocalFederation.of_panel(panel, minimum=m) for m in (0, 4))
    totals = []
    for f in (open_, closed):
        f.fit(settings)
        totals.append(totals_of(f.link, f.hub, [(0, [f.members[0].state])])[0][0])
    names = open_.hub.regions
    assert names == ("lone", "wide")
    assert totals[0][1].min() > 0
    np.testing.assert_array_equal(totals[1][1], 0.0)  # the lone site itself
    own_wide = totals[1][2]
    # what the hub gets by subtraction is that of four sites or more, or of none
    rest = totals[1][0] - own_wide
    f = closed.programs["owner-0"]
    P, _ = f.site_posterior(0, 0)
    at = int(np.flatnonzero(f.visits.region == "lone")[0])
    curve = np.exp(closed.members[0].state.mu + P[at, 0] + closed.members[0].state.T[:, 0])
    assert (rest > 1.5 * curve).all() or np.abs(rest).max() < 1e-9
