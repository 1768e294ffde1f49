"""The numbers of the page that no other table holds, by name: what was counted, how the model was fitted."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fedmiss.report.analysis import MIN_SITE_YEARS, Analysis
from fedmiss.report.cautions import PARTS_NAMED, asked, parts_by_share
from fedmiss.report.prose import averaged_ranks, chosen_rows

__all__ = ["fact_table"]

_MODEL = (
    "rank", "penalty", "dispersion", "edf", "observer_sd", "smear", "objective", "h_norm", "rounds", "participation",
    "exchanges", "bytes_up", "bytes_down",
)  # fmt: skip


def fact_table(a: Analysis) -> pd.DataFrame:
    """Return ``name``, ``value`` of every single number that the page states (schema ``report_facts``).

    A number that the inputs do not know has no row.
    """
    values = _counted(a) | _fitted(a) | _beside(a)
    rows = [(k, float(v)) for k, v in values.items() if v is not None and math.isfinite(float(v))]
    return pd.DataFrame(rows, columns=["name", "value"])


def _counted(a: Analysis) -> dict[str, float | None]:
    c = a.coverage
    effort = a.data.panel.get("results", {}).get("effort")
    known = effort if isinstance(effort, dict) else {}
    year, base = asked(a)
    parts = parts_by_share(a)
    return (
        {
            "sites": c.n_sites,
            "sites_with_coordinates": c.sites_with_coordinates,
            "sites_in_two_years": c.sites_repeated,
            "months": c.n_months,
            "months_without_count": c.months_unseen,
            "years": a.years.year.size,
            "years_used": int(a.years.used.sum()),
            "years_linked": c.linked_years,
            "years_sharing_months": c.years_sharing_months,
            "median_cells_per_year": c.median_cells_per_year,
            "cells": c.n_cells,
            "cells_counted": c.n_observed,
            "share_cells_counted": c.share_observed,
            "share_total_imputed": c.share_imputed_total,
            "visits": c.n_visits,
            "visits_with_count": c.n_counted,
            "visits_with_zero": c.n_zeros,
            "counted": c.birds_counted,
            "observers": a.data.fact("n_observers"),
            "groups": len(a.data.groups),
            "years_for_a_class": MIN_SITE_YEARS,
            "year_needs_cells": year.cells,
            "year_needs_sites": year.sites,
            "base_needs_cells": base.cells,
            "base_needs_sites": base.sites,
            "parts_without_common_region": len(parts),
            "visits_that_found": c.n_detected,
            "coarse_map": a.settings.coarse_map or None,
        }
        | {f"known_{k}": v for k, v in known.items()}
        | {f"share_of_part_{i + 1}": part[2] for i, part in enumerate(parts[:PARTS_NAMED])}
    )


def _fitted(a: Analysis) -> dict[str, float | None]:
    facts = {k: v for k in _MODEL if isinstance(v := a.data.fact(k), int | float)}
    facts |= {f"average_rank_{i + 1}": r for i, r in enumerate(averaged_ranks(a))}
    facts["one_trend"] = a.data.one_trend  # 1: all sites share one trend
    terms = a.data.fit.get("results", {}).get("effort")
    if isinstance(terms, dict):
        facts |= {f"effort_{k}": v for k, v in terms.items()}
    less = a.data.fact("learning")
    facts |= {} if less is None else {"new_observer": math.exp(-less)}
    chain = zip(("first", "gained", "lost"), a.data.fact("occupancy", default=[]), strict=False)
    facts |= {f"occupied_{name}": v for name, v in chain}
    ends = zip(("start", "end"), a.data.fact("occupied", default=[]), strict=False)
    facts |= {f"sites_occupied_{name}": v for name, v in ends}
    facts |= {f"explained_{k}": v for k, v in a.data.fact("explained", default={}).items()}
    cv = a.data.cv
    if cv is not None and len(cv) and len(chosen := cv[chosen_rows(a)]):
        facts["predicted_over_counted"] = float(np.average(chosen["total_bias"], weights=chosen["n"]))
    span, robust = a.curve.attrs.get("span"), a.curve.attrs.get("it")
    return facts | {"bootstrap_replicates": a.n_draws, "loess_span": span, "loess_iterations": robust}


def _beside(a: Analysis) -> dict[str, float]:
    both = a.beside
    return {} if both is None else dict(both.numbers)
