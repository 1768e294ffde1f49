"""The reconstruction attack against every layer of protection: ``python benchmarks/federation_attacks.py``.

The attacker has all sums of a job: agreement, cross-validation, fit, bootstrap. It knows which cells were
visited, and which fold each is in. Everything that is linear in the counts is used: for Poisson weights at rank 0,
gradient + curvature of a month is its counted total, for the whole fit and for the training part of every fold; counted
totals and scores of folds besides. Every site x month cell has one visit with a count between a million and nine. What
is said of a layer: the share of cells that the equations determine, and the share whose least-squares guess is within
1 %, beside the share that guesses at shuffled counts hit.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


from fedmiss.federation import messages as msg  # noqa: E402
from fedmiss.federation.group.folds import draw_folds  # noqa: E402
from fedmiss.federation.hub.agree import DataSpec  # noqa: E402
from fedmiss.federation.hub.job import JobSpec, run_job  # noqa: E402
from fedmiss.federation.link import InProcess, Link  # noqa: E402
from fedmiss.federation.masks import masked_fields  # noqa: E402
from fedmiss.models.lowrank.data import Group, GroupPanel  # noqa: E402
from fedmiss.models.lowrank.settings import CountSettings  # noqa: E402
from tests.federation.network import JOB, SETTINGS, clubs_of  # noqa: E402
from tests.federation.owners import owned  # noqa: E402

FOLDS = 3
QUASI = [CountSettings(rank=r) for r in (0, 1)]


def planted(shared: float, seed: int = 3, n: int = 1100) -> GroupPanel:
    """Three owners; every visited cell has one visit, with a count of its own; some checklists are held twice."""
    panel = owned(3, J=60, L=24, n=n, seed=seed, shared=shared)
    numbers = np.random.default_rng(seed).permutation(np.arange(1_000_001, 9_000_001, 1000)).astype(float)
    groups, at = [], 0
    for g in panel.groups:
        first = np.unique(g.site.astype(np.int64) * 24 + g.month, return_index=True)[1]
        y, at = numbers[at : at + first.size], at + first.size
        group = Group.of(g.name, g.site[first], g.month[first], y, g.observer[first])
        ids = np.arange(at - first.size, at) % 2000  # a few are held twice
        groups.append(replace(group, checklist=np.array([f"S{k}" for k in ids], dtype=object)))
    return GroupPanel.of(panel.J, panel.L, groups, panel.calendar, panel.site_id, panel.region)


class Listening(Link):
    """Keeps questions and answers."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.heard: list[tuple[msg.Question, dict[str, msg.Answer]]] = []

    def ask(self, questions):
        answers = super().ask(questions)
        self.heard += list(zip(questions, answers, strict=True))
        return answers


def overheard(panel: GroupPanel, folder: Path, *, minimum: int, jointly: bool, own_sites: int = 0):
    """Questions and all answers of a job, by group, before masks; and the groups' programs."""
    programs = {name: club.program() for name, club in clubs_of(panel, folder).items()}
    for program in programs.values():
        program.minimum, program.jointly, program.own_sites = 0, jointly, own_sites
    plan = DataSpec(jointly=jointly, minimum=minimum)
    link = Listening(InProcess(programs), JOB[:8], SETTINGS)
    run_job(link, JobSpec(plan, QUASI, folds=FOLDS, by="cell", bootstrap=4))
    return link.heard, programs


def added(answers: dict[str, msg.Answer], names: list[str]) -> msg.Answer:
    """The sum of some groups' answers: what masks leave of them, less what is the attackers' own."""
    one = answers[names[0]]
    sums = {
        f: sum(np.asarray(getattr(answers[n], f), float) for n in names) for f in masked_fields(type(one))
    }
    return replace(one, **sums) if sums else one


def cells_of(panel: GroupPanel, programs, names: Iterable[str]):
    """Cells of some groups: month, fold, count."""
    parts = []
    for name in names:
        p = programs[name]
        u = p.used
        fold = draw_folds(
            "cell", FOLDS, 0, name=name, site_id=p.visits.site_id, site=u.site, month=u.stamp, year=u.stamp // 12,
            observer=u.observer, secret=p.source if p.jointly else b"",
        )  # fmt: skip
        parts.append(np.stack([u.month, fold, u.count], axis=1))
    return np.concatenate(parts)


def equations(heard, cells, who: str):
    """Rows over the cells, and values: whatever is linear in the counts."""
    month, fold, _ = cells.T
    rows, values, seen = [], [], set()
    released = np.ones(int(month.max()) + 1, bool)

    def add(mask, value, key):
        if key not in seen:
            seen.add(key)
            rows.append(mask)
            values.append(value)

    for q, answers in heard:
        if isinstance(q, msg.Open) and q.weights == "fold" and q.released.size:
            released = q.released.astype(bool)
        if not hasattr(q, "batch") or 1 <= getattr(q, "batch", 0) < 1000 or who not in answers:
            continue
        a = answers[who]
        for i, f in enumerate(getattr(q, "fits", ())):
            free = released[month.astype(int)]
            mask = free & (fold != f) if q.batch >= 1000 else np.ones(fold.size, bool)
            if isinstance(q, msg.Solve) and q.T.shape[2] == 1:
                for t in range(a.months.shape[1]):
                    add(mask & (month == t), a.months[i, t].sum(), (q.batch, int(f), "month", t))
            elif isinstance(q, msg.Predict):
                add(mask, a.totals[i, 1], (q.batch, int(f), "total"))
            elif isinstance(q, msg.Score):
                add(free & (fold == f), a.sums[i, 3], (q.batch, int(f), "score"))
    return np.array(rows, dtype=float), np.array(values)


def attack(panel, folder, see, **options):
    """(cells, share determined, share within 1 %, share that chance gives).

    ``see`` says how many groups' sums an attacker is left with: 0 for all of them, -1 for all but its own, 1 for one
    (without masks, or when all others work together).
    """
    heard, programs = overheard(panel, folder, **options)
    everyone = sorted(programs)
    targets = {
        0: [everyone],
        1: [[n] for n in everyone],
        -1: [[m for m in everyone if m != n] for n in everyone],
    }[see]
    rng = np.random.default_rng(0)
    total = sure = near = luck = 0.0
    for names in targets:
        cells = cells_of(panel, programs, names)
        seen = [(q, {"them": added(answers, names)}) for q, answers in heard if set(names) <= set(answers)]
        A, b = equations(seen, cells, "them")
        count = cells[:, 2]
        # an equation that does not hold exactly is no use to an attacker
        keep = np.abs(A @ count - b) < 1e-6 * np.abs(b).max()
        A, b = A[keep], b[keep]
        inverse = np.linalg.pinv(A)
        guess = inverse @ b
        sure += (np.diag(inverse @ A) > 1 - 1e-9).sum()
        near += (np.abs(guess / count - 1) < 0.01).sum()
        luck += np.mean([(np.abs(guess / rng.permutation(count) - 1) < 0.01).sum() for _ in range(50)])
        total += count.size
    return int(total), sure / total, near / total, luck / total


def placed(ids: int = 4000, folds: int = FOLDS) -> float:
    """Share of sites whose fold the public seed and the id tell; by chance 1 / folds."""
    n = np.arange(ids)
    words = {
        "name": "a",
        "site_id": np.array([f"L{i}" for i in n], dtype=object),
        "observer": n.astype(np.int32),
    }
    when = {"site": n.astype(np.int32), "month": n * 0 + 24_000, "year": n * 0 + 2000}
    own, public = (draw_folds("cell", folds, 0, secret=s, **words, **when) for s in (b"own", b""))
    return float((own == public).mean())


def main() -> None:
    apart, common = planted(0.0), planted(1.0, n=2400)
    dense = planted(0.0, n=3400)
    one_person = {"jointly": False}
    together = {"jointly": True, "minimum": 5}
    layers = [
        (
            "one person's groups, own sites, no least number",
            apart,
            1,
            one_person | {"minimum": 0},
        ),
        (
            "one person's groups, own sites, least number 5",
            dense,
            1,
            one_person | {"minimum": 5},
        ),
        ("study: a reader of the joint result and of all sums", apart, 0, together),
        ("study: a member, who subtracts its own part", apart, -1, together),
        ("study: all members but one, who subtract theirs (or no masks)", apart, 1, together),
        ("study: the same, each with 3 own sites in a month", dense, 1, together | {"own_sites": 3}),
        ("study: a member, sites that several organisations visit", common, -1, together),
    ]
    print("| layer | cells | determined exactly | guessed within 1 % | by chance |\n|---|---|---|---|---|")
    for name, panel, see, options in layers:
        with tempfile.TemporaryDirectory() as folder:
            n, sure, near, luck = attack(panel, Path(folder), see, **options)
        print(f"| {name} | {n:,} | {sure:.1%} | {near:.1%} | {luck:.1%} |", flush=True)
    print(
        f"\nfolds that the public seed tells of 4,000 known sites: {placed():.1%}, by chance {1 / FOLDS:.1%}"
    )


if __name__ == "__main__":
    main()
