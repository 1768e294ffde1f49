"""What a site is: a locality, or a cell of an equal-area grid."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError
from fedmiss.etl.checks import at_zero
from fedmiss.etl.projection import Projection
from fedmiss.etl.reach import REGIONS

EARTH_RADIUS_KM = 6371.0072  # radius of the sphere with the area of WGS84


def parse_site_rule(rule: str) -> float | None:
    """Return the cell size in km of 'grid:3km', None for 'locality'.

    Raises
    ------
    ConfigError : any other word, or a size outside 0.1 .. 1000 km
    """
    if rule == "locality":
        return None
    match = re.fullmatch(r"grid:(\d+(?:\.\d+)?)\s*(?:km)?", rule)
    if not match:
        raise ConfigError(f"--site {rule!r} is unknown; use 'locality', or 'grid:3km' for cells of 3 x 3 km.")
    size = float(match[1])
    if not 0.1 <= size <= 1000:
        raise ConfigError(f"--site {rule}: the cell size {size:g} km must lie between 0.1 and 1000.")
    return size


def grid_cells(lat: npt.ArrayLike, lon: npt.ArrayLike, size_km: float) -> tuple[I64, I64, F64, F64]:
    """Return row, column, centre latitude and centre longitude of the grid cell of each point.

    Rows are bands of latitude ``size_km`` high; each band is cut into the whole number of equal columns whose
    area is nearest to ``size_km`` squared. So cells are close to square everywhere, and their areas differ from
    each other by less than half a column in the band (0.02 % at 60 degrees for 3 km).
    """
    height = np.degrees(size_km / EARTH_RADIUS_KM)
    n_rows = int(np.ceil(180.0 / height))
    row = np.clip(np.floor((np.asarray(lat) + 90.0) / height), 0, n_rows - 1).astype(np.int64)
    south = np.radians(row * height - 90.0)
    north = np.radians(np.minimum((row + 1) * height - 90.0, 90.0))
    band = 2 * np.pi * EARTH_RADIUS_KM**2 * (np.sin(north) - np.sin(south))
    n_columns = np.maximum(1, np.round(band / size_km**2)).astype(np.int64)
    turn = np.mod(np.asarray(lon) + 180.0, 360.0) / 360.0
    column = np.minimum((turn * n_columns).astype(np.int64), n_columns - 1)
    return row, column, np.degrees((south + north) / 2), (column + 0.5) / n_columns * 360.0 - 180.0


def site_table(source: Projection, size_km: float | None) -> pl.DataFrame:
    """Return, for each place, the site columns of the schema ``checklists``.

    A place without coordinates has no grid cell: its ``site_id`` is null, and its checklists are left out.
    """
    columns = ("site", "site_name", "latitude", "longitude", *REGIONS)
    return pl.concat([_site_columns(part, size_km) for part in source.slices("places", columns)])


def _site_columns(places: pl.DataFrame, size_km: float | None) -> pl.DataFrame:
    region = pl.coalesce(
        pl.col("county_code").replace("", None),
        pl.when(~pl.col("state_code").str.ends_with("-")).then(pl.col("state_code").replace("", None)),
        pl.col("country_code").replace("", None),
    )
    lat, lon = (pl.col(name).cast(pl.Float64, strict=False) for name in ("latitude", "longitude"))
    somewhere = ~at_zero(lat, lon)
    table = places.select(
        site_id=pl.col("site"),
        site_name=pl.col("site_name").replace("", None),
        latitude=pl.when(lat.is_between(-90, 90) & somewhere).then(lat),
        longitude=pl.when(lon.is_between(-180, 180) & somewhere).then(lon),
        region=region,
    )
    if size_km is None:
        return table
    known = table["latitude"].is_not_null() & table["longitude"].is_not_null()
    row, column, centre_lat, centre_lon = grid_cells(
        table["latitude"].fill_null(0.0).to_numpy(), table["longitude"].fill_null(0.0).to_numpy(), size_km
    )
    label = f"grid{size_km:g}km-"
    return table.with_columns(
        site_id=pl.when(known).then(
            pl.lit(label) + pl.concat_str(pl.Series(row), pl.Series(column), separator="-")
        ),
        site_name=pl.lit(None, pl.String),
        latitude=pl.when(known).then(pl.Series(centre_lat)),
        longitude=pl.when(known).then(pl.Series(centre_lon)),
    )
