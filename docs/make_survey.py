"""Write the embedded table of yearly peak counts from the tables of the EvergladesWadingBird data set.

    python docs/make_survey.py FOLDER    # maxcounts, maxcounts_under40, colonies, max_count, max_count_all (.csv)

What it does: joins the tables of large and small colonies; keeps the twelve species that the survey reports; leaves out rows
whose colony has no number (they cannot be followed over years) and birds that were not identified; takes the larger of two
counts of one colony, year and species; gives every colony one name, region and place. It also copies the published totals
by region, and those of all regions, which it halves for 2024: they are twice the sum of the colonies in every species.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

SPECIES = ("greg", "gbhe", "sneg", "lbhe", "whib", "trhe", "rosp", "bcnh", "wost", "caeg", "anhi", "glib")
OUT = Path(__file__).parents[1] / "fedmiss" / "demo_data"


def main(folder: Path) -> None:
    """Write both tables."""
    large, small, colonies = (
        pd.read_csv(folder / f"{name}.csv") for name in ("maxcounts", "maxcounts_under40", "colonies")
    )
    colonies = colonies.drop_duplicates("group_id").set_index("group_id")
    both = pd.concat([large, small[small["group_id"].notna()]])
    both = both[both["species"].isin(SPECIES)].astype({"group_id": int})
    both["region"] = both["region"].fillna(both["group_id"].map(colonies["region"]))
    place = both.groupby("group_id").agg(
        name=("colony", "first"), region=("region", "first"), latitude=("latitude", "median"),
        longitude=("longitude", "median"),
    )  # fmt: skip
    name = place["name"].fillna("colony")
    twice = name.str.lower().duplicated(keep=False)
    place["site"] = name.where(~twice, name + "_" + place.index.astype(str))
    counts = both.groupby(["group_id", "year", "species"], as_index=False)["count"].max()
    table = counts.join(place, on="group_id").round({"latitude": 4, "longitude": 4})
    table = table[["site", "region", "year", "species", "count", "latitude", "longitude"]]
    table.sort_values(["species", "site", "year"]).to_csv(OUT / "everglades_peak_counts.csv", index=False)
    published = pd.concat([pd.read_csv(folder / f"{name}.csv") for name in ("max_count", "max_count_all")])
    twice = (published["region"] == "all") & (published["year"] == 2024)
    published.loc[twice, "count"] //= 2
    published.to_csv(OUT / "everglades_published_totals.csv", index=False)
    print(f"{len(table)} counts, {table['site'].nunique()} colonies -> {OUT}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
