"""The Everglades survey's published totals beside the demo's, in the years whose counts by colony are not complete.

    fedmiss demo --all --out birds
    python benchmarks/everglades_totals.py birds

The survey publishes totals of nests by year, and a table of counts by colony. In most years the table adds up to the total.
In the others counts of colonies are missing in the table, and the published total is a truth that no fit has seen: the sum
of the table, and the sum with the missing colonies imputed, are compared with it. (Which years are complete is decided with
the published totals: see ``peak_counts``.)
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from lowrank_peers import markdown

import fedmiss
from fedmiss.pipeline.demo import COMPLETE, SPECIES, peak_counts, published_totals
from fedmiss.pipeline.recipe import slug


def totals(out: Path, code: str, table: pd.DataFrame, published: pd.Series) -> pd.DataFrame:
    """Rows of years: published total, sum of the counts, sum with imputed colonies, interval of the model's total."""
    latin = SPECIES[code][0]
    species = fedmiss.open_fit(out / slug(latin) / "panel", out / slug(latin) / "fit")
    counts = table[table["species"] == latin].groupby("year")["count"].sum()
    months = species.totals()
    year = species.panel.months["year"].to_numpy()
    filled = np.where(species.observed, 0.0, species.expected).sum(axis=0)
    frame = pd.DataFrame(
        {"year": year, "missing": (~species.observed).sum(axis=0), "lo": months["lo"], "hi": months["hi"]}
    )
    frame["counted"] = counts.reindex(year).fillna(0).to_numpy()
    frame["filled"] = frame["counted"] + filled
    frame["published"] = published.reindex(year).to_numpy()
    return frame.assign(species=SPECIES[code][1])


def main() -> None:
    """Print the table, and write the rows of all years."""
    out = Path(sys.argv[1])
    table, published = peak_counts().to_pandas(), published_totals().to_pandas()
    published = published[published["region"] == "all"].set_index(["species", "year"])["count"]
    rows = pd.concat([totals(out, code, table, published[code]) for code in SPECIES])
    rows.to_csv(out / "totals.csv", index=False)
    body = []
    for name, part in rows.groupby("species", sort=False):
        whole = part[(part["counted"] >= COMPLETE * part["published"]) & (part["published"] > 0)]
        gaps = part[(part["missing"] > 0) & (part["published"] > 0) & ~part.index.isin(whole.index)]
        error = {
            k: np.abs(np.log(np.maximum(gaps[k], 1) / gaps["published"])).mean()
            for k in ("counted", "filled")
        }
        inside = ((gaps["lo"] <= gaps["published"]) & (gaps["published"] <= gaps["hi"])).sum()
        body.append(
            (
                name, str(len(gaps)), f"{gaps['counted'].sum() / gaps['published'].sum():.2f}",
                f"{gaps['filled'].sum() / gaps['published'].sum():.2f}", f"{error['counted']:.2f}", f"{error['filled']:.2f}",
                f"{inside} of {len(gaps)}",
            )
        )  # fmt: skip
    head = ["species", "years with gaps", "counted / published", "imputed / published", "log error, counted", "imputed",
            "published total in the interval"]  # fmt: skip
    print(markdown(head, body))


if __name__ == "__main__":
    main()
