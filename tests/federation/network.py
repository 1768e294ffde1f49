"""A network that fails, with real journals: what the engines do to frames, without an engine."""

from __future__ import annotations

import hashlib
import random

from fedmiss.federation.approved import Approved
from fedmiss.federation.group.guard import QuestionGuard
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import deal_sites
from fedmiss.federation.hub.agree import Plan
from fedmiss.federation.hub.job import Order, run_job
from fedmiss.federation.hub.restart import Journaled
from fedmiss.federation.link import Link
from fedmiss.federation.local import _visits
from fedmiss.federation.masks import Masks, identity, public_key
from fedmiss.federation.site import SiteProgram
from fedmiss.models.lowrank.settings import CountSettings

NEGBIN = CountSettings(rank=1, dispersion="negbin")
JOB = hashlib.sha256(b"a study").digest()
SETTINGS = b"settings"
PLAN = Plan(joint=False, jointly=True, minimum=3, share=0.9)


def approved_of(what, names, **more):
    """What custodians approve of an order."""
    p = what.plan
    return Approved(
        tuple(sorted(names)), what.seal, p.species, p.season, None if p.months is None else tuple(p.months), p.effort,
        p.detections, p.duplicates, p.minimum, p.contributors, p.share, tuple(what.candidates), what.folds, what.by,
        what.seed, what.bootstrap, **more,
    )  # fmt: skip


def order(candidates=(NEGBIN,), bootstrap=3, plan=PLAN) -> Order:
    return Order(plan, list(candidates), folds=2, by="cell", bootstrap=bootstrap)


def sealed_order() -> Order:
    return Order(PLAN, [NEGBIN], bootstrap=2, seal=True)


class Kill(BaseException):
    """Stands for kill -9: nothing may catch it."""


class Site:
    """One organisation: its data, its journal, and a program that can be killed and started again."""

    def __init__(self, name, visits, folder, keys=None, job=JOB):
        self.name, self.visits, self.folder, self.keys, self.job = name, visits, folder, keys, job
        self.program, self.approved = None, None

    def start(self):
        masks = None
        if self.keys is not None:
            private, roster = self.keys
            masks = Masks(self.name, private, roster, self.job)
        group = GroupProgram(
            self.name,
            self.visits,
            key=b"k" * 16,
            secret=self.name.encode(),
            settings=SETTINGS,
            jointly=True,
            minimum=2,
        )
        self.program = SiteProgram(
            group,
            self.job,
            self.folder / f"{self.name}.journal",
            party=masks,
            guard=None if self.approved is None else QuestionGuard(self.approved, self.name),
        )

    def stop(self):
        if self.program is not None:
            self.program.close()
            self.program = None

    def answer(self, frame):
        if self.program is None:
            self.start()
        return self.program.answer(frame)


def sites_of(panel, folder, *, masked, job=JOB):
    at = deal_sites({g.name: g.site for g in panel.groups}, panel.J)
    names = [g.name for g in panel.groups]
    keys = {name: identity(folder / name / "identity.key") for name in names} if masked else {}
    roster = {name: public_key(k) for name, k in keys.items()}
    return {
        g.name: Site(
            g.name, _visits(panel, g, at[g.name]), folder, (keys[g.name], roster) if masked else None, job
        )
        for g in panel.groups
    }


class Wire:
    """Carries frames faithfully."""

    def __init__(self, sites):
        self.sites = sites
        self.names = tuple(sorted(sites))
        self.asked = 0
        self.log = []

    def ask(self, frames):
        self.asked += 1
        out = {name: self.sites[name].answer(frame) for name, frame in frames.items()}
        self.log.append((dict(frames), dict(out)))
        return out


class BadWire(Wire):
    """Drops, repeats, delays, reorders and damages frames, both ways."""

    def __init__(self, sites, seed):
        super().__init__(sites)
        self.chance = random.Random(seed)
        self.old_questions, self.old_answers = {}, {}

    def ask(self, frames):
        self.asked += 1
        names = list(frames)
        self.chance.shuffle(names)
        out = {}
        for name in names:
            what = self.chance.random()
            if what < 0.1:
                continue  # the question is lost
            if what < 0.2 and name in self.old_questions:
                self.sites[name].answer(self.old_questions[name])  # a late one comes before it
            if what < 0.25:
                self.sites[name].answer(frames[name][: len(frames[name]) // 2])  # and one that was cut
            answer = self.sites[name].answer(frames[name])
            if what > 0.8:
                answer = self.sites[name].answer(frames[name])  # asked twice
            if what > 0.95:
                continue  # the answer is lost
            if what > 0.9 and name in self.old_answers:
                answer = self.old_answers[name]  # an old one comes in its place
            elif what > 0.85:
                at = self.chance.randrange(len(answer))
                answer = answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :]
            out[name] = answer
            self.old_questions[name], self.old_answers[name] = frames[name], answer
        return out


def run(wire, folder, *, masked, what=None, job=JOB, **options):
    """The hub's half of a job, with its journal."""
    transport = Journaled(wire, job, folder / "hub.journal", pause=0.0, **options)
    try:
        return run_job(Link(transport, job[:8], SETTINGS, masked=masked), what or order())
    finally:
        transport.close()
