"""Two reports that each organisation makes: the joint one, of months and regions; and its own, of its sites."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedmiss.arrays import F64, I32, I64
from fedmiss.errors import FedmissError, InputError
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.messages import Outcome
from fedmiss.federation.results import AverageFit, CountFit, Posterior
from fedmiss.files import MANIFEST, WITHHELD, FlowRow, atomic_folder, read_manifest, write_manifest
from fedmiss.folders import ALL, FitFacts, JointFacts, or_nan
from fedmiss.locks import lock_of
from fedmiss.models.lowrank.settings import Auxiliary, CountSettings
from fedmiss.models.lowrank.theta import Fit
from fedmiss.network.kits import Kit
from fedmiss.network.member import Replay, open_data, replay
from fedmiss.pipeline.fit_folder import effort_of, has_large_site, job_trace, write_draws, write_fit
from fedmiss.pipeline.own import describe_panel, finish_own
from fedmiss.pipeline.panels import PanelFolder, open_panel, panel_hash
from fedmiss.report.joint import joint_report as write_joint
from fedmiss.report.settings import ReportSettings
from fedmiss.report.years import month_table
from fedmiss.tables import read_table, write_table


@contextmanager
def _chosen_by(option: str, out: Path) -> Iterator[None]:
    """Errors about this folder name the option of ``join`` by which it is chosen, of other commands ``--out``."""
    try:
        yield
    except FedmissError as error:
        at, here = (path.parent.resolve() / path.name for path in (Path(error.fields.get("path", "")), out))
        if at in (here, lock_of(here)):
            error.args = (str(error).replace("--out", option),)
        raise


def joint_report(
    result: Path, out: Path, settings: ReportSettings | None = None, *, overwrite: bool = False
) -> Path:
    """Write the joint report of a study's result; return its page."""
    facts = JointFacts.of(read_manifest(result, "joint")["results"], "the joint result")
    with _chosen_by("--joint", out):
        return write_joint(result, out, effort_of(facts), settings, overwrite=overwrite)


# -- an organisation's own report ----------------------------------------------------------------------------


def own_report(
    kit: Kit, data: Path, out: Path, settings: ReportSettings | None = None, *, overwrite: bool = False
) -> Path | None:
    """Write an organisation's own report from its journal and data; return its page. The ``settings`` get its title.

    There is none, and None is returned, where none of its visits took part.

    Raises
    ------
    InputError    the job is not done yet
    """
    again = replay(kit, data)
    program, outcomes = again.program, again.program.results
    if again.joint is None:
        raise InputError(f"the job {kit.job.hex()[:12]} is not done yet: there is nothing to report.")
    if not program.need().month.size:
        return None
    panel = open_data(kit, data)
    inputs = [data, kit.folder]
    with _chosen_by("--report", out), atomic_folder(out, "own", overwrite=overwrite, inputs=inputs) as tmp:
        mine = _own_panel(panel, outcomes[0].months, program.need().month, tmp / "panel")
        _own_fit(kit, again, mine, tmp / "fit")
        finish_own(
            tmp,
            {"study": kit.study.name, "job": kit.job.hex()},
            {},
            settings or ReportSettings(),
            whose=kit.name,
        )
    return out / "report" / "index.html"


def no_own_report(out: Path) -> str:
    """Why an organisation has no own report, and what an earlier job has left in its place."""
    why = (
        "none, since the least numbers left out all of your months; `fedmiss fit` works with your panel alone"
    )
    return why + (f". {out} is of an earlier job" if (out / MANIFEST).exists() else "")


def _own_panel(panel: PanelFolder, stamps: I64, used: I32, out: Path) -> PanelFolder:
    """Make the organisation's panel on the months that all agreed on, without those whose visits were withheld."""
    at = np.searchsorted(stamps, panel.stamps)
    agreed = (at < stamps.size) & (stamps[np.minimum(at, stamps.size - 1)] == panel.stamps)
    inside = agreed & np.isin(at, used)
    source = panel.groups[0]
    kept, withheld = {}, 0
    for name in ("cells", "visits"):
        table = read_table(source / f"{name}.parquet", name).to_pandas()
        month = table["month_index"].to_numpy()
        withheld = int(agreed[month].sum() - inside[month].sum())
        table, month = table[inside[month]], at[month[inside[month]]]
        kept[name] = table.assign(month_index=month.astype(np.int32))
        write_table(kept[name], out / "groups" / source.name / f"{name}.parquet", name)
    left: FlowRow = {
        "step": WITHHELD,
        "rows": -withheld,
        "note": "in months that too few stand behind",
    }
    write_table(month_table(stamps), out / "months.parquet", "months")
    write_table(panel.sites, out / "sites.parquet", "sites")
    describe_panel(panel, kept["visits"], out, [left] if withheld else [])
    return open_panel(out)


def _own_member(program: GroupProgram, outcome: Outcome, common: tuple[F64, ...], n_counted: int) -> CountFit:
    """Build one of the averaged fits: the joint half from its message, the organisation's own from its program."""
    r = JointFacts.of(json.loads(outcome.results), "the job")
    P, C = program.site_posterior(outcome.batch, 0)
    L, p = outcome.T.shape
    q = Posterior(
        r.mu, P, C, outcome.T, outcome.D, np.array(r.site_variances), np.zeros((L, p)),
        np.array(r.month_variances), common_months=common,
    )  # fmt: skip
    settings = CountSettings(family=r.family, scale=r.scale, rank=r.rank, dispersion=r.dispersion_model)
    aux = Auxiliary(np.zeros(0), (), r.negbin_size or float("inf"), r.phi, 0.0)
    edf = or_nan(r.edf)
    history = Fit(q.theta(), [], r.converged, r.stop_reason, r.rounds, edf=edf)
    presence = program.site_presence(outcome.batch, 0)
    year = None if presence is None else program.axis.year
    dispersion = or_nan(r.dispersion)
    return CountFit(
        settings, len(P), L, history, aux, dispersion, edf, n_counted, r.smear, q, None, presence, year,
        program.own_lines(outcome.batch, 0),
    )  # fmt: skip


def _own_fit(kit: Kit, again: Replay, panel: PanelFolder, out: Path) -> None:
    program, outcomes, places = again.program, again.program.results, again.places
    r, own = JointFacts.of(json.loads(outcomes[0].results), "the job"), panel.facts
    assert again.joint is not None  # the job is over: its outcome was told
    common = [member.state.in_common for member in again.joint.members]
    fit = AverageFit(
        tuple(_own_member(program, *of, own.n_counted) for of in zip(outcomes, common, strict=True))
    )
    write_fit(out, fit)
    if places:
        totals = np.stack([program.own_totals[place] for place in places])
        slopes = np.array([program.slopes[place] for place in places if place in program.slopes]).reshape(
            -1, fit.J
        )
        write_draws(out, totals, slopes, fit, panel.calendar, [ALL])
    moves = outcomes[0].trace
    nothing = np.zeros(moves.size, np.int64)  # bytes and seconds of a round are in no journal
    write_table(
        job_trace(moves**2, r.n_groups, nothing, nothing, np.zeros(moves.size)),
        out / "trace.parquet",
        "trace",
    )
    facts = FitFacts.of(
        r.as_results() | {
            "n_visits": own.n_visits, "n_counted": own.n_counted, "n_cells_observed": own.n_cells_observed,
            "n_sites": len(panel.sites), "common_name": own.common_name, "effort": effort_of(r),
            "large_site": has_large_site(fit),
        }
    )  # fmt: skip
    note = (
        "Months, variances and the choice of the model come from all organisations together; sites, totals and map are "
        "those of this one."
    )
    write_manifest(
        out, "fit", settings={"study": kit.study.name, "job": kit.job.hex()}, inputs=panel_hash(panel),
        results=facts.as_results(), flow=panel.manifest["flow"],
        terms=panel.manifest["terms"], warnings=[*panel.manifest["warnings"], *r.notes, note],
    )  # fmt: skip
