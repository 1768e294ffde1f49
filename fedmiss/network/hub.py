"""The coordinator's end: run a study's job over any transport, continue it from its journal, and write its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmiss.errors import ConfigError
from fedmiss.federation.hub.job import Joint, preview_job, run_job
from fedmiss.federation.hub.restart import Journaled
from fedmiss.federation.link import Link, Transport
from fedmiss.federation.results import coefficient_names, visited_totals
from fedmiss.files import atomic_folder, read_json, write_json, write_manifest
from fedmiss.folders import JointFacts
from fedmiss.network.study import Study, job_hash, read_roster, read_study
from fedmiss.tables import write_table

__all__ = ["STATUS", "preview_study", "run_study", "status", "waiting"]

STATUS = "status.json"


def preview_study(hub: Path, transport: Transport, *, patience: float | None = None) -> Path:
    """Agree, and write ``preview.json``: what the least numbers would leave out. A later run continues from here."""
    study = read_study(hub)
    job = job_hash(study, read_roster(hub, study))
    note = Status(hub / STATUS, job.hex(), study.organisations)
    patience = study.patience if patience is None else patience
    usage = Usage(hub / f"usage-{job.hex()[:16]}.json", transport)
    carried = Journaled(transport, job, hub / f"{job.hex()[:16]}.journal", patience=patience, told=note.away)
    link = Link(carried, job[:8], study.settings(), note.going, masked=study.masks)
    try:
        agreement, months = preview_job(link, study.order())
    except Exception as error:
        note.write(state="stopped", error=str(error))
        raise
    finally:
        usage.write()
        carried.close()
    behind = np.zeros(agreement.panel.L) if agreement.behind is None else agreement.behind
    out = hub / f"preview-{job.hex()[:16]}.json"
    write_json(
        out,
        {
            "visits": agreement.panel.visits,
            "withheld": agreement.withheld,
            "months": int(agreement.panel.L),
            "released_months": int((behind > 0).sum()),
            "months_left_out": {
                rule: [f"{s // 12}-{s % 12 + 1:02d}" for s in agreement.months[at].tolist()]
                for rule, at in (agreement.lost or {}).items()
            },
            "shared_sites": agreement.shared,
            "joint_sites": agreement.panel.n_joint,
            "months_in_cross_validation": int(((months == 1) & (behind > 0)).sum()) if months.size else None,
            "regions": list(agreement.panel.regions),
            "notes": list(agreement.notes),
        },
    )
    note.write(state="previewed")
    return out


def run_study(
    hub: Path,
    transport: Transport,
    *,
    watch: Callable[[str, int], None] | None = None,
    patience: float | None = None,
) -> Path:
    """Run the job of a study to its end and write ``result``; return its folder.

    Parameters
    ----------
    hub : the study's folder ``hub``, or any folder with its study.json and roster.json
    patience : seconds to ask again; by default the study's; less where the caller tries again

    Raises
    ------
    EngineError    an organisation did not answer for as long as the study's patience, or refused
    """
    study = read_study(hub)
    job = job_hash(study, read_roster(hub, study))
    out = hub / f"result-{job.hex()[:16]}"
    if out.exists():
        return out
    if sorted(transport.names) != list(study.organisations):
        raise ConfigError(
            f"connected are {', '.join(sorted(transport.names)) or 'none'}, the study is of "
            f"{', '.join(study.organisations)}."
        )
    usage = Usage(hub / f"usage-{job.hex()[:16]}.json", transport)
    note = Status(hub / STATUS, job.hex(), study.organisations)
    carried = Journaled(
        transport,
        job,
        hub / f"{job.hex()[:16]}.journal",
        patience=study.patience if patience is None else patience,
        told=note.away,
    )

    def seen(stage: str, exchanges: int) -> None:
        note.going(stage, exchanges)
        usage.write()
        if watch is not None:
            watch(stage, exchanges)

    link = Link(carried, job[:8], study.settings(), seen, masked=study.masks)
    try:
        joint = run_job(link, study.order())
    except Exception as error:
        note.write(state="stopped", error=str(error))
        raise
    finally:
        usage.write()
        carried.close()
    facts = replace(
        joint.facts,
        seconds=usage.seconds,
        engine=usage.carried,
        replayed=carried.replayed,
        ledger=link.ledger.as_dict(),
        h_norm=float(joint.trace[-1]),
    )
    _write(out, joint, link, asdict(study), job.hex(), facts)
    getattr(transport, "farewell", lambda: None)()
    note.write(state="done", result=str(out), missing=[])
    return out


class Usage:
    """Seconds and bytes of all processes that have worked on a job: a process that begins goes on from the last one's."""

    def __init__(self, path: Path, transport: Transport) -> None:
        self.path, self.transport, self.begun = path, transport, time.monotonic()
        self.before: dict[str, Any] = read_json(path) if path.exists() else {}

    @property
    def seconds(self) -> float:
        """Seconds of all processes."""
        return float(self.before.get("seconds", 0.0)) + time.monotonic() - self.begun

    @property
    def carried(self) -> dict[str, int] | None:
        """Bytes that the engine carried, those of ended processes included; None where the transport does not count."""
        now: dict[str, int] | None = getattr(self.transport, "carried", None)
        old = self.before.get("carried") or {}
        return None if now is None else {k: int(old.get(k, 0)) + n for k, n in now.items()}

    def write(self) -> None:
        """Write them after every exchange: a kill loses one at most."""
        write_json(self.path, {"seconds": self.seconds, "carried": self.carried})


class Status:
    """What `fedmiss federation status` reads: written at most once a second."""

    def __init__(self, path: Path, job: str, names: Sequence[str]) -> None:
        self.path, self.last = path, 0.0
        self.values: dict[str, object] = {
            "job": job,
            "state": "running",
            "organisations": list(names),
            "missing": [],
        }
        self.write()

    def write(self, **values: object) -> None:
        """Update the values and write them now."""
        self.values |= values | {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        write_json(self.path, self.values)
        self.last = time.monotonic()

    def going(self, stage: str, exchanges: int) -> None:
        """Record an exchange."""
        self.values |= {"stage": stage, "exchanges": exchanges}
        if time.monotonic() - self.last > 1.0:
            self.write()

    def away(self, names: Sequence[str]) -> None:
        """Record the organisations that do not answer; none when all are back."""
        self.write(missing=list(names), state="waiting" if names else "running")


def status(hub: Path) -> dict[str, Any]:
    """Return the status of a study."""
    path = hub / STATUS
    return dict(read_json(path)) if path.exists() else {"state": "not begun", "missing": []}


def waiting(hub: Path, job: str, study: Study, missing: Sequence[str]) -> None:
    """Record who has not joined, before the first exchange or after a restart."""
    before = status(hub)
    known = {k: before[k] for k in ("stage", "exchanges") if k in before and before.get("job") == job}
    Status(hub / STATUS, job, study.organisations).write(
        **known, state="waiting" if missing else "running", missing=list(missing)
    )


def _write(
    out: Path, joint: Joint, link: Link, study: dict[str, object], job: str, facts: JointFacts
) -> None:
    labels = ["all", *joint.agreement.panel.regions]
    B, R, L = joint.draws.shape
    state = joint.members[0].state
    with atomic_folder(out) as tmp:
        months = {
            "month_index": np.arange(L, dtype=np.int32),
            "b": state.T[:, 0],
            **{
                month: state.T[:, k + 1]
                for k, (_, month) in enumerate(coefficient_names(state.p - 1, slopes=state.slopes))
            },
        }
        write_table(months, tmp / "month_factors.parquet", "month_factors")
        visited = visited_totals([(m.state, m.settings) for m in joint.members])
        write_table(visited, tmp / "visited.parquet", "visited")
        write_table(
            {
                "draw": np.repeat(np.arange(B, dtype=np.int32), R * L),
                "region": np.tile(np.repeat(np.array(labels), L), B),
                "month_index": np.tile(np.arange(L, dtype=np.int32), B * R),
                "total": joint.draws.ravel(),
            },
            tmp / "draws.parquet",
            "draws",
        )
        if len(joint.choice.table):
            write_table(joint.choice.table, tmp / "cv.parquet", "cv")
        behind = joint.agreement.behind
        write_json(
            tmp / "totals.json",
            {
                "months": joint.agreement.months.tolist(),
                "regions": labels,
                "totals": joint.totals.tolist(),
                "visits": None if behind is None else behind.tolist(),
            },
        )
        write_manifest(
            tmp, "joint", settings=study, inputs={"job": job},
            results=facts.as_results(),
            warnings=list(joint.agreement.notes),
        )  # fmt: skip
