"""Make the pieces of the base map from Natural Earth, as packed in the npm package world-atlas (public domain).

    npm pack world-atlas@2.0.2 && tar xzf world-atlas-2.0.2.tgz
    python reports/basemap/make.py package reports/basemap

``world.npz``: land and borders at 1:50m, simplified to 0.02 degrees. ``florida.npz``: land at 1:10m around the demo's
survey, as it is. In each: ``land`` and ``border`` (N, 2) float32 longitude and latitude, ``land_start`` and
``border_start`` the first point of each ring or line (islands turn left, lakes right), ``box`` (4,) west, south, east,
north. Rings that cross the date line go on beyond it, as Asia does to 190.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import shapely
from shapely.geometry import LineString, MultiPolygon, Polygon, box
from shapely.geometry.polygon import orient


def arcs_of(topology):
    """Decode the delta-coded arcs of a TopoJSON file into longitude and latitude."""
    scale, shift = np.array(topology["transform"]["scale"]), np.array(topology["transform"]["translate"])
    return [np.cumsum(arc, axis=0) * scale + shift for arc in topology["arcs"]]


def ring(arcs, numbers):
    parts = [arcs[n] if n >= 0 else arcs[~n][::-1] for n in numbers]
    return np.concatenate([parts[0], *(p[1:] for p in parts[1:])])


def onward(ring):
    """Count the longitudes of a ring on beyond the date line; one that runs around the earth is closed over the pole."""
    x = ring[:, 0] - 360.0 * np.r_[0, np.cumsum(np.round(np.diff(ring[:, 0]) / 360.0))]
    out = np.column_stack([x, ring[:, 1]])
    if abs(x[-1] - x[0]) > 180.0:
        pole = np.sign(ring[:, 1].mean()) * 90.0
        out = np.concatenate([out, [(x[-1], pole), (x[0], pole), out[0]]])
    return out


def middle(ring):
    return (ring[:, 0].min() + ring[:, 0].max()) / 2


def land(topology, name):
    arcs, shapes = arcs_of(topology), []
    for geometry in topology["objects"][name]["geometries"]:
        polygons = [geometry["arcs"]] if geometry["type"] == "Polygon" else geometry.get("arcs", [])
        for rings in polygons:
            outer, *holes = (onward(ring(arcs, r)) for r in rings)
            if len(outer) >= 4:
                outer[:, 0] -= 360.0 * np.round(middle(outer) / 360.0)
                for hole in holes:
                    hole[:, 0] += 360.0 * np.round((middle(outer) - middle(hole)) / 360.0)
                shapes.append(Polygon(outer, [h for h in holes if len(h) >= 4]))
    return MultiPolygon([p for s in shapes for p in parts(shapely.make_valid(s))])


def parts(shape):
    if isinstance(shape, Polygon):
        return [shape]
    return [p for g in getattr(shape, "geoms", []) for p in parts(g)]


def borders(topology):
    """Arcs that two countries share are borders; the others are coasts."""
    arcs, used = arcs_of(topology), Counter()
    for geometry in topology["objects"]["countries"]["geometries"]:
        polygons = [geometry["arcs"]] if geometry["type"] == "Polygon" else geometry.get("arcs", [])
        used.update(n if n >= 0 else ~n for rings in polygons for r in rings for n in r)
    return [LineString(arcs[n]) for n, times in used.items() if times > 1 and len(arcs[n]) > 1]


def write(path, shape, lines, frame):
    rings = [np.array(r.coords) for p in map(orient, parts(shape)) for r in (p.exterior, *p.interiors)]
    lines = [np.array(line.coords) for line in lines]
    empty = np.zeros((0, 2))
    np.savez_compressed(
        path,
        land=np.round(np.concatenate(rings), 3).astype(np.float32),
        land_start=np.cumsum([0, *map(len, rings)])[:-1].astype(np.int32),
        border=np.round(np.concatenate([empty, *lines]), 3).astype(np.float32),
        border_start=np.cumsum([0, *map(len, lines)])[:-1].astype(np.int32),
        box=np.array(frame, dtype=np.float64),
    )
    print(path, path.stat().st_size, "bytes")


def main(package, out):
    """Write both pieces."""
    countries = json.loads((package / "countries-50m.json").read_text())
    world = land(json.loads((package / "land-50m.json").read_text()), "land").simplify(0.02)
    write(out / "world.npz", world, [b.simplify(0.02) for b in borders(countries)], (-180, -90, 180, 90))
    frame = (-83.5, 24.2, -79.5, 28.2)
    fine = land(json.loads((package / "land-10m.json").read_text()), "land")
    near = [p.intersection(box(*frame)) for p in fine.geoms if p.intersects(box(*frame))]
    write(out / "florida.npz", MultiPolygon([q for p in near for q in parts(p)]), [], frame)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
