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
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from fedmiss.atomic import atomic_file, read_json, read_object, write_json
from fedmiss.errors import ConfigError, FedmissError, InputError
from fedmiss.federation.masks import fingerprint, identity, public_key
from fedmiss.federation.messages import PROTOCOL
from fedmiss.network.study import Study, read_study
from fedmiss.version import __version__

OWN = "own.json"
SITES = "sites.csv"
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
