"""The joint result of a study as files: every organisation writes its own copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.atomic import write_json
from fedmiss.federation.fit_tables import visited_totals
from fedmiss.federation.hub.agree import Agreement
from fedmiss.federation.hub.job import JobResult
from fedmiss.federation.link import Link
from fedmiss.federation.results import coefficient_names
from fedmiss.files import atomic_folder, write_manifest
from fedmiss.pipeline.fit_folder import write_totals
from fedmiss.tables import write_table

if TYPE_CHECKING:
    from fedmiss.network.kits import Kit


def write_preview(out: Path, agreement: Agreement, months: np.ndarray) -> Path:
    """Write what the least numbers would leave out: a file."""
    behind = np.zeros(agreement.panel.L) if agreement.behind is None else agreement.behind
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
            "months_in_cross_validation": int(((months == 1) & (behind > 0)).sum()) if months.size else None,
            "regions": list(agreement.panel.regions),
            "notes": list(agreement.notes),
        },
    )
    return out


def preview_lines(values: Mapping[str, Any]) -> Iterator[str]:
    """What a preview's file says, line by line for a screen."""
    for name, value in values.items():
        label, items = f"{name.replace('_', ' '):46s}", value
        if isinstance(value, dict):  # rules with the months that they leave out
            items = [f"{key:44s} {len(months)}: {', '.join(months)}" for key, months in value.items()]
        if isinstance(items, list) and items:
            yield label.rstrip()
            yield from (f"  {item}" for item in items)
        else:
            yield f"{label} {'none' if items is None or items == [] else items}"


def write_result(out: Path, kit: Kit, joint: JobResult, link: Link, *, seconds: float, replayed: int) -> None:
    """Write the joint result: a folder."""
    facts = replace(
        joint.facts,
        seconds=seconds,
        replayed=replayed,
        ledger=link.ledger.as_dict(),
        h_norm=float(joint.trace[-1]),
    )
    labels = joint.agreement.panel.rows
    state, L = joint.members[0].state, joint.draws.shape[2]
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
        write_totals(tmp / "draws.parquet", joint.draws, labels)
        if len(joint.choice.table):
            write_table(joint.choice.table, tmp / "cv.parquet", "cv")
        behind = joint.agreement.behind
        assert state.visited is not None
        finds, uncounted = state.visited[:, 6:].T
        write_json(
            tmp / "totals.json",
            {
                "months": joint.agreement.months.tolist(),
                "regions": labels,
                "totals": joint.totals.tolist(),
                "visits": None if behind is None else behind.tolist(),
                "finds": finds.tolist(),
                "uncounted": uncounted.tolist(),
            },
        )
        write_manifest(
            tmp, "joint", settings=asdict(kit.study), inputs={"job": kit.job.hex()},
            results=facts.as_results(),
            warnings=list(facts.notes),
        )  # fmt: skip
