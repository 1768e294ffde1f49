"""Kits: what an organisation receives, what it keeps private, and what its custodian approves.

STUDY/                      at whoever proposes the study
study.json  roster.json   what is to be computed; public keys of all
hub/                      the relay's files, where an engine has a relay
kits/NAME/                one folder an organisation, to be sent to it
study.json  roster.json
engine/                 certificate, key and address for the engine, where it needs them
private/                made at the organisation, for its owner only: keys, approval, journals
result-JOB/             joint result
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedmiss.errors import ConfigError, InputError
from fedmiss.federation.hub.onward import differing, read_before
from fedmiss.federation.masks import FEWEST, fingerprint, identity, public_key
from fedmiss.files import atomic_file, atomic_folder, read_json, write_json, write_manifest
from fedmiss.models.lowrank.choice import model_name
from fedmiss.network.study import Study, job_hash, least_for_absence, read_roster, read_study
from fedmiss.owner import remove_state
from fedmiss.system import user_name
from fedmiss.version import __version__

__all__ = ["Kit", "approve", "collect_roster", "enrol", "make_study", "open_kit", "page"]

OWN = "own.json"
SITES = "sites.csv"


def make_study(
    study: Study, out: Path, provision: Callable[[Study, Path], None], *, overwrite: bool = False
) -> Path:
    """Make the study's folder with one kit an organisation; ``provision`` adds the engine's files."""
    with atomic_folder(out, "study", overwrite=overwrite) as tmp:
        study.write(tmp / "study.json")
        study.write(tmp / "hub" / "study.json")
        for name in study.organisations:
            _make_kit(tmp / "kits" / name, study)
        provision(study, tmp)
        for private in (tmp / "hub", *(tmp / "kits").iterdir()):
            private.chmod(0o700)
        write_manifest(tmp, "study", settings=asdict(study), inputs={})
    return out


class Kit:
    """An organisation's kit: its study, its name, its private folder."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "kit.json").exists():
            raise InputError(
                f"{folder} is no kit: it has no kit.json. Name the folder that the proposer sent."
            )
        self.folder = folder.resolve()
        self.name = str(read_json(folder / "kit.json")["organisation"])
        self.study = read_study(folder)
        self.private = self.folder / "private"

    @property
    def roster(self) -> dict[str, str]:
        """Public keys of all organisations."""
        return read_roster(self.folder, self.study)

    @property
    def job(self) -> bytes:
        """Hash of the job."""
        return job_hash(self.study, self.roster)

    @property
    def key_file(self) -> Path:
        """Private key of the organisation."""
        return self.private / "identity.key"

    @property
    def journal(self) -> Path:
        """Journal of the present job."""
        return self.private / f"{self.job.hex()[:16]}.journal"

    @property
    def onward(self) -> Path:
        """What a later revision can go on from: there when the present job has chosen its model."""
        return self.private / f"onward-{self.job.hex()[:16]}.json"

    @property
    def own_sites(self) -> int:
        """The custodian's least number of own sites in a month: months with fewer take no part."""
        path = self.private / OWN
        return int(read_json(path)["sites"]) if path.exists() else 0

    def keep_own_sites(self, least: int) -> None:
        """Write the custodian's least number down; it holds for every later job too.

        Raises
        ------
        ConfigError    the present job was begun with another: what has been answered must be answered the same again
        """
        if least < 0:
            raise ConfigError(
                f"the least number of own sites is {least} (must be 0 or more; 3 and 5 are customary)."
            )
        if self.journal.exists() and least != self.own_sites:
            raise ConfigError(
                f"job {self.job.hex()[:12]} was begun here with own-sites {self.own_sites}; what was answered stands, so it "
                f"cannot be {least} now. Leave --own-sites out to go on, or ask the proposer for a new revision "
                "(`fedmiss federation revise`) and say it there."
            )
        self.private.mkdir(exist_ok=True, mode=0o700)
        write_json(self.private / OWN, {"sites": least})

    @property
    def site_table(self) -> Path | None:
        """Table of the sites' covariates, None without: of a study about all species of a site."""
        path = self.private / SITES
        return path if path.exists() else None

    def keep_site_table(self, table: Path) -> None:
        """Keep a copy of the table of sites: the job reads it, here and in the process of an engine.

        Raises
        ------
        ConfigError    the present job was begun with another
        """
        said = table.read_bytes()
        if self.journal.exists() and (self.site_table is None or self.site_table.read_bytes() != said):
            raise ConfigError(
                f"job {self.job.hex()[:12]} was begun here with another table of sites than {table}; what was answered "
                "stands. Leave --site-table out to go on, or ask the proposer for a new revision."
            )
        self.private.mkdir(exist_ok=True, mode=0o700)
        with atomic_file(self.private / SITES) as tmp:
            tmp.write_bytes(said)

    @property
    def preview(self) -> Path:
        """File that says what the least numbers of the present job leave out."""
        return self.folder / f"preview-{self.job.hex()[:16]}.json"

    @property
    def result(self) -> Path:
        """Folder of the present job's joint result: it is there when the job is done."""
        return self.folder / f"result-{self.job.hex()[:16]}"

    def approval(self) -> dict[str, object] | None:
        """The stored approval of the present job, if there is one."""
        path = self.private / "approval.json"
        stored = read_json(path) if path.exists() else {}
        return stored if stored.get("job") == self.job.hex() else None

    def kept_of(self, revision: int) -> list[dict[str, Any]]:
        """What jobs of a revision had come to when they were here last: none where the organisation took no part."""
        # by revision: a job's number covers the version of fedmiss, which may be newer now
        kept = [read_json(path) for path in sorted(self.private.glob("onward-*.json"))]
        return [one for one in kept if one.get("revision") == revision]

    def history(self) -> list[dict[str, Any]]:
        """Jobs that were approved here before."""
        path = self.private / "history.json"
        return list(read_json(path)) if path.exists() else []


def open_kit(folder: str | Path) -> Kit:
    """Open a kit."""
    return Kit(Path(folder))


def enrol(kit: Kit) -> Path:
    """Draw the organisation's key, if it has none, and write the public part for the proposer."""
    kit.private.mkdir(exist_ok=True, mode=0o700)
    os.chmod(kit.private, 0o700)
    key = public_key(identity(kit.key_file))
    path = kit.folder / f"{kit.name}.public.json"
    write_json(
        path, {"organisation": kit.name, "study": kit.study.name, "key": key, "fingerprint": fingerprint(key)}
    )
    return path


def collect_roster(study_folder: Path, files: Sequence[Path]) -> dict[str, str]:
    """Collect the organisations' public keys, and write them into every kit of this folder."""
    study = read_study(study_folder)
    before = _known_keys(study_folder)  # of an earlier collection: who stays has its key there
    keys: dict[str, str] = {}
    for path in files:
        one = read_json(path)
        try:
            name, key = str(one["organisation"]), str(one["key"])
            shown = fingerprint(key)
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{path} is not a public key made by `fedmiss federation enrol`.", path=str(path)
            ) from None
        if name not in study.organisations or one.get("study") != study.name:
            raise ConfigError(
                f"{path} is of {name!r} in study {one.get('study')!r}; that is not in {study.name!r}."
            )
        if keys.get(name, key) != key or shown != one.get("fingerprint"):
            raise ConfigError(
                f"{path} holds another key of {name!r} than its fingerprint says. Ask for it again."
            )
        keys[name] = key
    keys = {n: k for n, k in before.items() if n in study.organisations} | keys
    missing = [n for n in study.organisations if n not in keys]
    if missing:
        raise InputError(
            f"no public key of {', '.join(missing)}. Ask them for the file that `fedmiss federation enrol` made."
        )
    for folder in _ends(study_folder, study):
        write_json(folder / "roster.json", dict(sorted(keys.items())))
    return keys


def _known_keys(study_folder: Path) -> dict[str, str]:
    """Public keys that have been collected so far."""
    path = study_folder / "roster.json"
    return {n: str(k) for n, k in read_json(path).items()} if path.exists() else {}


def _ends(study_folder: Path, study: Study) -> list[Path]:
    """Return the study's folder and those of its relay and kits, where they are there."""
    kits = (study_folder / "kits" / n for n in study.organisations)
    return [f for f in (study_folder, study_folder / "hub", *kits) if f.is_dir()]


def page(kit: Kit, *, visits: str = "") -> str:
    """Return what a custodian reads before approving: one page of plain text."""
    s = kit.study
    way = (
        "a folder that all of you share; whoever keeps it sees sizes and times, no content"
        if s.engine == "folder"
        else f"a relay at {s.host}, port {s.port} ({s.engine}), which sees sizes and times, no content"
    )
    return "\n".join(
        [
            f"Study {s.name}, revision {s.revision}: {_about(s)}",
            f"  job          {kit.job.hex()}",
            f"  you are      {kit.name}{visits}",
            f"  carried by   {way}",
            *(_method(s) if s.method else _community(s) if s.community else _model(kit)),
            "  organisations and the fingerprints of their keys (compare them by telephone):",
            *(f"    {name:12s} {fingerprint(key)}" for name, key in sorted(kit.roster.items())),
            "Who asks",
            "  Nobody. Your computer runs the whole job, as the others' do, and answers what its own copy asks.",
            f"  It stops where another copy asks something else, and after {s.exchanges:,} exchanges.",
            "What the other organisations see, and nobody else",
            *(_seen_of_method(s) if s.method else _seen_of_model(s, kit.own_sites)),
            *_differences(kit),
        ]
    )


def _method(s: Study) -> list[str]:
    settings = ", ".join(f"{k} = {v!r}" for k, v in s.method.items() if k != "run")
    return [
        f"  method       {s.method['run']}, a function installed on your computer; it sees your data, and it alone",
        "               says what is sent: read it, or ask somebody who has",
        *([f"  its settings {settings}"] if settings else []),
        *_absence(s),
    ]


def _absence(s: Study) -> list[str]:
    rule = s.rule_of_absence
    if rule is None:
        return []
    lines = [
        f"  absence      who is away holds up a round for {s.absence:g} seconds; then the others go on, and its last sums",
        f"               stand. {rule.chair} says who is there",
    ]
    if s.masks:
        lines += [
            f"               cohorts: {'; '.join(', '.join(c) for c in rule.cohorts)}",
            "               Do not join two such studies about the same data: the difference of two cohorts can be you",
        ]
    return lines


def _about(s: Study) -> str:
    return "all species of a site" if s.community else s.species or "a method of its own"


def _community(s: Study) -> list[str]:
    m, names = s.of_community, s.community["species"]
    words = textwrap.wrap(", ".join(names), 105, break_on_hyphens=False)
    return [
        f"  model        {m.model} of all species of a site, rank {m.rank}, {m.folds} folds, effort {m.effort}",
        f"  species      {len(names)}, on complete checklists:",
        *(f"    {line}" for line in words),
    ]


def _model(kit: Kit) -> list[str]:
    s = kit.study
    m = s.fit
    season = ", ".join(map(str, s.season)) if s.season else "all months"
    months = f"{s.months[0]} to {s.months[1]}" if s.months else "all months that the organisations have"
    return [
        f"  period       {months}; season: {season}",
        f"  model        {m.model}, rank {m.rank}, {m.bootstrap} bootstrap replicates, {m.folds} folds",
        *(_onward(kit) if s.before else []),
        *(
            ["  compressed   months' sums go as differences to the last ones, in half the bytes"]
            if s.compress
            else []
        ),
    ]


def _onward(kit: Kit) -> list[str]:
    """What a job goes on from, compared with what this computer has kept of the job before it.

    Raises
    ------
    ConfigError    they differ: names model and part
    """
    s, given = kit.study, kit.study.order().before
    revision = s.before["revision"]
    kept = [read_before(one["models"], "the kit") for one in kit.kept_of(revision)]
    what = [differing(one, given) for one in kept]
    if kept and all(what):
        raise ConfigError(
            f"study {s.name} goes on from revision {revision} with other numbers than this computer has kept of it "
            f"({what[-1]}): whoever made revision {s.revision} has changed them, or took them from another job. Nothing was "
            "approved. Ask for a revision made from a kit that took part."
        )
    if not kept:
        said = "You took no part in that job: ask somebody who did whether these numbers are its own"
    elif all(b.months is None for one in kept for b in one):
        said = (
            "Your computer has kept the model of that job only, not its months: ask another club about them"
        )
    else:
        said = "They are those that your computer has kept of that job"
    names = ", ".join(
        f"{model_name(b.settings)} of rank {b.settings.rank}"
        + ("" if b.months is None else " with its months")
        for b in given
    )
    return [
        f"  goes on from revision {revision}: {names}; nothing is chosen again.",
        "               Its months' numbers stand in study.json: whoever gets that file can read them",
        f"               {said}",
    ]


def _seen_of_method(s: Study) -> list[str]:
    """What fedmiss can promise of a function that it does not know."""
    if s.masks:
        n = len(s.organisations)
        whom, there = (
            ("all organisations", f"together ({n - 1} of {n})") if not s.absence else ("a cohort", "in it")
        )
        sums = [
            f"  What the function adds up is masked: they can read only the sum over {whom}. All of the others",
            f"  {there} can subtract theirs, and have yours.",
        ]
    else:
        sums = ["  What the function adds up, NOT masked: they see yours."]
    return [
        *sums,
        "  What it shows without adding up, what it computes from the sums, and the version of fedmiss: in clear.",
        "  fedmiss checks no least number of rows or contributors here: only the function knows what its sums are of.",
    ]


def _seen_of_model(s: Study, own_sites: int) -> list[str]:
    unit = "species" if s.community else "months"
    if s.masks:
        clear = (
            [
                "  In clear: calendar months with a checklist, names of the sites' covariates, the version of fedmiss."
            ]
            if s.community
            else [
                "  In clear: first and last month with a visit, season, names of regions and of sites' covariates, whether",
                "  you list sites that nobody visited, the version of fedmiss.",
            ]
        )
        lines = [
            "  Sums over your sites, each masked: they can read only the sum over all organisations. All of the others",
            f"  together ({len(s.organisations) - 1} of {len(s.organisations)}) can subtract theirs, and have yours, over "
            + (f"{own_sites} sites or more" if own_sites > 1 else "any number of sites"),
            f"  (`join --own-sites N` leaves out your {unit} with fewer than N of them).",
            *clear,
        ]
    else:
        every, sums = (
            ("species", "the sites where you found each species, your birds of each")
            if s.community
            else ("month", "your birds and visits of every month")
        )
        lines = [
            f"  Sums over your sites by {every}, NOT masked. They can compute from them: {sums},",
            "  of every fold of the cross-validation, and your expected birds"
            + ("." if s.community else " by month and region."),
            f"  With {len(s.organisations)} organisations, each can subtract its own part of the joint result and has the "
            + ("other's." if len(s.organisations) == 2 else "sum of the others'."),
        ]
    if s.community:
        return [
            *lines,
            f"  A species found at fewer than {s.minimum} sites of all organisations together, by fewer than",
            f"  {s.contributors} organisations, or with over {s.share:.0%} of these sites in one, is left out; only the",
            "  number of these sites is seen, no birds. Species that are not in the list above stay at home, names too.",
            "  Sites are compared with nobody's: one that two organisations visit counts in each.",
        ]
    return [
        *lines,
        f"  Months with fewer than {s.minimum} visits or sites of all organisations together, with fewer than",
        f"  {s.contributors} organisations, or with more than {s.share:.0%} of the visits from one, are left out; months",
        "  with such a fold are left out of the choice of the model. Of these months the numbers of visits and sites are",
        "  seen, no birds.",
        "  Sites are compared with nobody's: one that two organisations visit counts in each.",
    ]


def _differences(kit: Kit) -> list[str]:
    """Return what this job reveals together with earlier ones."""
    lines = []
    for old in kit.history():
        if old["job"] == kit.job.hex():
            continue
        gone = sorted(set(old["roster"]) - set(kit.roster))
        new = sorted(set(kit.roster) - set(old["roster"]))
        what = [f"without {n}" for n in gone] + [f"with {n} added" for n in new]
        lines.append(
            f"WARNING: you took part in {old['study']} revision {old['revision']} on {old['time']}. This job is "
            f"{' and '.join(what) or 'of the same roster, with other settings or other data'}: the difference of the two "
            "results is the sum of whoever, or whatever years, came or went."
        )
    return lines


def approve(kit: Kit, *, ask: Callable[[str], bool] | None, given: str = "", visits: str = "") -> None:
    """Make sure that the custodian approved this job: by a stored approval, by its hash, or by answering.

    Parameters
    ----------
    ask : shows the page and returns whether it is approved; None where nobody is there to ask
    given : the job's hash, or its first twelve digits or more, from the custodian
    """
    job = kit.job.hex()
    if kit.approval() is not None:
        return
    if given and not (len(given) >= 12 and job.startswith(given.lower())):
        raise ConfigError(
            f"the approval is of job {given}, this kit is of job {job}. Read the page that "
            "--dry-run shows, and approve that."
        )
    text = page(kit, visits=visits)
    if not given:
        if ask is None:
            raise ConfigError(
                f"job {job[:12]} of study {kit.study.name} is not approved, and nobody is there to ask. Read the page that "
                f"--dry-run shows, then say: fedmiss federation join ... --approve {job[:12]}"
            )
        if not ask(text):
            raise ConfigError(f"job {job[:12]} was not approved; nothing was sent.")
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_json(
        kit.private / "approval.json",
        {"job": job, "time": when, "by": user_name(), "page": text.splitlines()},
    )
    line = {
        "job": job,
        "study": kit.study.name,
        "revision": kit.study.revision,
        "roster": list(kit.roster),
        "time": when,
    }
    write_json(kit.private / "history.json", [*kit.history(), line])


def terminal_ask() -> Callable[[str], bool] | None:
    """Ask on the terminal, where there is one."""
    if not sys.stdin.isatty():
        return None

    def ask(text: str) -> bool:
        print(text)
        return input("Do you approve this job? Type yes, or anything else to stop: ").strip().lower() == "yes"

    return ask


def new_revision(
    study_folder: Path, without: Sequence[str] = (), added: Sequence[str] = (), source: Path | None = None
) -> Study:
    """The next revision of a study: some organisations leave, some join; kits keep certificates and keys.

    Parameters
    ----------
    added : names of organisations that join; their kits are made, and their keys are still to be collected
    source : a kit that took part in the present job: the revision goes on from what that job has chosen and fitted

    Raises
    ------
    ConfigError    a name is not in the study, or is in it already; the engine cannot admit one
    InputError    the kit is of another job, or that job has not chosen its model yet
    """
    old = read_study(study_folder)
    keys = _known_keys(study_folder)
    if unknown := [n for n in without if n not in old.organisations]:
        raise ConfigError(f"{unknown[0]!r} is not in the study; it has {', '.join(old.organisations)}.")
    if twice := [n for n in added if n in old.organisations]:
        raise ConfigError(f"{twice[0]!r} is in the study already: {', '.join(old.organisations)}.")
    if added and old.engine != "folder":
        raise ConfigError(
            f"{added[0]!r} cannot be admitted: certificates of engine {old.engine} are made once for a study. Make a new "
            "one with `fedmiss federation new`."
        )
    stay = [n for n in old.organisations if n not in without]
    values = asdict(old) | {"revision": old.revision + 1, "organisations": (*stay, *added), "before": {}}
    n = len(values["organisations"])
    values["contributors"] = min(max(old.contributors, FEWEST if n > 2 and not old.method else 0), n)
    # other cohorts than before would tell, by the difference of their sums, what one that stays has
    if n < least_for_absence(old.masks) or (old.masks and (without or added)):
        values["absence"] = 0.0
    if not values["absence"] or old.chair in without:
        values["chair"] = ""
    if source is not None:
        values["before"] = _onward_of(source, old)
    new = Study(**values)
    for name in added:
        _make_kit(study_folder / "kits" / name, new)
    for folder in _ends(study_folder, new):
        new.write(folder / "study.json")
        write_json(folder / "roster.json", {n: keys[n] for n in stay if n in keys})
    for name in without:
        remove_state(study_folder / "kits" / name / "engine")
    return new


def _onward_of(source: Path, study: Study) -> dict[str, Any]:
    """What the present revision's job has come to, as a kit that took part in it has kept it."""
    kit = open_kit(source)
    if (kit.study.name, kit.study.revision) != (study.name, study.revision):
        raise InputError(
            f"{source} is at revision {kit.study.revision} of {kit.study.name}, the study at revision {study.revision} of "
            f"{study.name}. Name a kit that took part in the study's present revision, before it gets the new one.",
            path=str(source),
        )
    mine = kit.kept_of(study.revision)
    fitted = [one for one in mine if any("months" in m for m in one["models"])]
    if not mine and study.before:
        return dict(study.before)  # this revision has not come further than what it began from
    if not mine:
        raise InputError(
            f"the job of {source} has not chosen its model yet, so there is nothing to go on from. Leave --from out.",
            path=str(source),
        )
    return dict((fitted or mine)[-1])


def _make_kit(folder: Path, study: Study) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    study.write(folder / "study.json")
    write_json(folder / "kit.json", {"organisation": folder.name, "version": __version__})
    folder.chmod(0o700)
