"""Kits: what an organisation receives, and what it keeps private.

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

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from fedmiss.atomic import atomic_file, read_json, read_object, write_json
from fedmiss.errors import ConfigError, FedmissError, InputError
from fedmiss.federation.masks import FEWEST, fingerprint, identity, public_key
from fedmiss.federation.messages import PROTOCOL
from fedmiss.files import atomic_folder, write_manifest
from fedmiss.models.lowrank.structure import UNTOLD
from fedmiss.network.study import Study, least_for_absence, read_study
from fedmiss.owner import remove_state
from fedmiss.pipeline.settings import named_features
from fedmiss.version import __version__

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
        write_manifest(tmp, "study", settings=study.in_use(), inputs={})
    return out


LOOK = 2.0  # seconds of waiting between two looks at the own kit


class Kit:
    """An organisation's kit: its study, its name, its private folder."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "kit.json").exists():
            raise InputError(
                f"{folder} is no kit: it has no kit.json. Name the folder that the proposer sent."
            )
        self.folder = folder.resolve()
        self.name = str(read_object(folder / "kit.json", "organisation")["organisation"])
        self.study = read_study(folder)
        if self.name not in self.study.organisations:
            raise ConfigError(
                f"the kit {folder} is of {self.name!r}, which is not in study {self.study.name}, revision "
                f"{self.study.revision}: {', '.join(self.study.organisations)}. It takes no part."
            )
        self.private = self.folder / "private"

    @cached_property  # a kit that gets another roster while its job runs stays what it was for that process
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
        return int(read_object(path, "sites")["sites"]) if path.exists() else 0

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
        stored = read_object(path) if path.exists() else {}
        return stored if stored.get("job") == self.job.hex() else None

    def kept_of(self, revision: int) -> list[dict[str, Any]]:
        """What jobs of a revision had come to when they were here last: none where the organisation took no part.

        In the order of their approval: with a new key in the roster there is another job of the same revision.
        """
        # by revision: a job's number covers the version of fedmiss, which may be newer now
        advice = (
            "It holds what a job came to. Put a copy of it back; or move it away, and join that job again where it is the "
            "present one: its journal has the same; or name another organisation's kit"
        )
        paths = sorted(self.private.glob("onward-*.json"))
        kept = [_kept(path, dict, advice) for path in paths]
        order = {line["job"]: place for place, line in enumerate(self.history())}
        kept.sort(key=lambda one: order.get(one.get("job"), -1))
        return [one for one in kept if one.get("revision") == revision]

    def history(self) -> list[dict[str, Any]]:
        """Jobs that were approved here before."""
        return kept_list(
            self.private / "history.json",
            "It lists the jobs that were approved here, for the page of the next one. Put a copy of it back; without one "
            "move it away: that page then says nothing of earlier jobs",
        )


def kept_list(path: Path, advice: str) -> list[Any]:
    """A list that the kit keeps, blank where it has none yet; ``advice`` says what to do where it is damaged."""
    return list(_kept(path, list, advice)) if path.exists() else []


def _kept(path: Path, kind: type, advice: str) -> Any:
    """What fedmiss has written into the kit: nobody can make it again, as another file of JSON could be."""
    try:
        found = read_json(path)
    except InputError:
        found = None
    if not isinstance(found, kind):
        raise InputError(f"{path} is cut short or was changed. {advice}.", path=str(path))
    return found


def open_kit(folder: str | Path) -> Kit:
    """Open a kit."""
    return Kit(Path(folder))


def sleeper(kit: Kit, say: Callable[[str], None]) -> Callable[[float], None]:
    """Return what waits for some seconds and says, once, that the kit has another revision or roster than this process."""
    said, waited = False, LOOK

    def sleep(seconds: float) -> None:
        nonlocal said, waited
        if waited >= LOOK and not said:
            waited = 0.0
            if news := _news(kit):
                say(f"{kit.name}: {news}")
                said = True
        waited += seconds
        time.sleep(seconds)

    return sleep


def _news(kit: Kit) -> str:
    runs = f"This process still runs revision {kit.study.revision}, job {kit.job.hex()[:12]}"
    try:
        now = read_study(kit.folder)
        if kit.name not in now.organisations:
            return (
                f"the kit has revision {now.revision} of study {now.name} now, which {kit.name!r} is not in. {runs}; Ctrl-C "
                "ends it."
            )
        job = job_hash(now, read_roster(kit.folder, now))
    except (FedmissError, OSError):  # amid the copying, or a disk that is away for a moment
        return ""
    if job == kit.job:
        return ""
    return (
        f"the kit has revision {now.revision} of the study now, job {job.hex()[:12]}. {runs}. To begin the other one: "
        "Ctrl-C, and the same command again."
    )


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


def _of_proposer(folder: Path) -> Study:
    """Read the study of its proposer's folder: a kit has the same file, which only its organisation may replace."""
    if (folder / "kit.json").exists():
        raise InputError(
            f"{folder} is the kit of one organisation; nothing was changed. Name the study's folder, which "
            "`fedmiss federation new` made.",
            path=str(folder),
        )
    return read_study(folder)


def collect_roster(study_folder: Path, files: Sequence[Path]) -> dict[str, str]:
    """Collect the organisations' public keys, and write them into every kit of this folder."""
    study = _of_proposer(study_folder)
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
                f"{path} is of {name!r} in study {one.get('study')!r}; this is {study.name!r}, "
                f"revision {study.revision}, of {', '.join(study.organisations)}."
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
    owners = {key: name for name, key in keys.items()}  # of a key the last one that has it
    if copied := [(name, owners[key]) for name, key in keys.items() if owners[key] != name]:
        first, second = copied[0]
        raise ConfigError(
            f"{first!r} and {second!r} have the same public key, so one of them could not sign. Ask each for the file that "
            "`fedmiss federation enrol` made in its own kit."
        )
    for folder in _ends(study_folder, study):
        write_json(folder / "roster.json", dict(sorted(keys.items())))
    return keys


def _known_keys(study_folder: Path) -> dict[str, str]:
    """Public keys that have been collected so far."""
    path = study_folder / "roster.json"
    return {n: str(k) for n, k in read_object(path).items()} if path.exists() else {}


def _ends(study_folder: Path, study: Study) -> list[Path]:
    """Return the study's folder and those of its relay and kits, where they are there."""
    kits = (study_folder / "kits" / n for n in study.organisations)
    return [f for f in (study_folder, study_folder / "hub", *kits) if f.is_dir()]


def new_revision(
    study_folder: Path,
    without: Sequence[str] = (),
    added: Sequence[str] = (),
    source: Path | None = None,
    months: Sequence[str] | None = None,
) -> Study:
    """The next revision of a study: some organisations leave, some join; kits keep certificates and keys.

    What was killed amid it can be run again: the study's own file is written last.

    Parameters
    ----------
    added : names of organisations that join; their kits are made, and their keys are still to be collected
    source : a kit that took part in the present job: the revision goes on from what that job has chosen and fitted
    months : first and last month of a study that names them, as 2004-01; None: as before

    Raises
    ------
    ConfigError    a name is not in the study, or is in it already; the engine cannot admit one; months are not of that form
    InputError    the kit is of another job, or that job has not chosen its model yet; the study's folder is a kit
    """
    old = _of_proposer(study_folder)
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
    if months is not None and not old.months:
        raise ConfigError(
            f"study {old.name} names no months: it has all that the organisations have, so --months would be another study. "
            "Leave --months out; or make a study that names them (`fedmiss federation new`)."
        )
    stay = [n for n in old.organisations if n not in without]
    values = asdict(old) | {"revision": old.revision + 1, "organisations": (*stay, *added), "before": {}}
    n = len(values["organisations"])
    values["contributors"] = min(max(old.contributors, FEWEST if n > 2 and not old.method else 0), n)
    values["masks"] = old.masks or len(old.organisations) < FEWEST <= n  # of two, sums cannot be masked
    # other cohorts than before would tell, by the difference of their sums, what one that stays has
    if n < least_for_absence(values["masks"]) or (old.masks and (without or added)):
        values["absence"] = 0.0
    if not values["absence"] or old.chair in without:
        values["chair"] = ""
    if months is not None:
        values["months"] = tuple(months)
    if source is not None:
        if values["masks"] != old.masks:
            raise ConfigError(
                "sums are masked from this revision on, and other models are then fitted than the present ones: there is "
                "nothing to go on from. Leave --from out."
            )
        values["before"] = _for_newcomers(
            _onward_of(source, old), open_kit(source).history(), values["organisations"]
        )
    named = named_features(str(old.model.get("structure", "none")))
    told = [feature for feature in named if feature not in UNTOLD]
    if len(told) < len(named):  # of an older version: no part of a job any more
        values["model"] = dict(old.model) | {"structure": ",".join(told) or "none"}
    new = Study(**values)
    for name in added:
        _make_kit(study_folder / "kits" / name, new)
    for name in without:
        remove_state(study_folder / "kits" / name / "engine")
    for folder in reversed(_ends(study_folder, new)):
        write_json(folder / "roster.json", {n: keys[n] for n in stay if n in keys})
        new.write(folder / "study.json")
    return new


def _onward_of(source: Path, study: Study) -> dict[str, Any]:
    """What the present revision's job has come to, as a kit that took part in it has kept it."""
    if study.method or study.community:
        raise ConfigError(
            f"study {study.name} is not about one species: its next job begins from nothing. Leave --from out."
        )
    kit = open_kit(source)
    # a kit in the study's folder has the next revision already where `revise` was killed amid it
    if kit.study.name != study.name or kit.study.revision not in (study.revision, study.revision + 1):
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
    last = dict((fitted or mine)[-1])
    for model in last["models"]:
        for feature in model["settings"].get("features", ()):
            if feature in UNTOLD:
                raise ConfigError(
                    f"the model of {source} has the feature {feature}: {UNTOLD[feature]} is not told to other organisations "
                    "any more. Leave --from out."
                )
    return last


def _for_newcomers(
    before: dict[str, Any], history: Sequence[Mapping[str, Any]], organisations: Sequence[str]
) -> dict[str, Any]:
    """What a job goes on from, without its months where somebody has left it and somebody comes.

    The sums of that job's members at its months add up to what its prior asks. Who comes is told those of who stays, and so
    would have those of who left alone (``tests/attacks/test_newcomers.py``).
    """
    now, then = set(organisations), [set(line["roster"]) for line in history if line["job"] == before["job"]]
    if then and (now <= then[-1] or then[-1] <= now):
        return before
    return before | {"models": [{"settings": model["settings"]} for model in before["models"]]}


def _make_kit(folder: Path, study: Study) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    study.write(folder / "study.json")
    write_json(
        folder / "kit.json", {"organisation": folder.name, "revision": study.revision, "version": __version__}
    )
    folder.chmod(0o700)


def read_roster(folder: Path, study: Study) -> dict[str, str]:
    """Public keys of all organisations."""
    path = folder / "roster.json"
    if not path.exists():
        raise InputError(
            f"{folder} has no roster.json yet: the proposer makes it when all organisations have sent their public keys "
            "(`fedmiss federation roster`)."
        )
    keys = {str(k): str(v) for k, v in read_object(path).items()}
    if sorted(keys) != list(study.organisations):
        raise ConfigError(
            f"{path} names {', '.join(sorted(keys))}, the study {', '.join(study.organisations)}. "
            "Ask the proposer for the roster of this revision."
        )
    for name, key in keys.items():
        try:
            fingerprint(key)
        except ValueError as error:
            raise ConfigError(
                f"{path}: the key of {name!r} is none ({error}). Ask the proposer for the roster again."
            ) from None
    return keys


def job_hash(study: Study, roster: Mapping[str, str]) -> bytes:
    """What custodians approve (32 bytes): the study, its roster and their keys, the protocol and the version."""
    whole = {
        "study": asdict(study),
        "roster": dict(sorted(roster.items())),
        "protocol": PROTOCOL,
        "version": __version__,
    }
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).digest()
