"""The pictures of a community: sites and species on the axes, maps, associations, richness, gains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.colors import Normalize
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from fedmiss.arrays import F64, I64
from fedmiss.community.tables import Tables
from fedmiss.report.basemap import CREDIT, colour_bar, empty_map, frame_of, on_map, unplaced
from fedmiss.report.style import BLUE, GREY, INK, ORANGE, Plot, axes, style
from fedmiss.report.words import count, share

ARROWS = 14  # species named on the ordination
SHORT = 0.15  # of the longest arrow: the direction of shorter ones says nothing
PANEL = np.array([380.0, 320.0])  # width and height of the ordination's panel, in points, about
LETTER, LINE = 5.0, 11.0  # width of a letter and height of a line, in points
AWAY = 4.0, 10.0, 18.0, 28.0, 40.0, 55.0, 75.0, 100.0, 130.0  # from a tip to its name, in points
SHOWN = 40  # species of the pictures that have one row for each
MAPPED = 2  # axes with a map


def all_pictures(tables: Tables) -> dict[str, Plot]:
    """Every picture that the community bears, by name."""
    with style():
        made: list[Plot | None] = [_richness(tables)]
        if tables.fit.rank:
            maps = [_axis_map(tables, i) for i in range(min(tables.fit.rank, MAPPED))]
            made = [_ordination(tables), *maps, _associations(tables), *made]
            if not np.isnan(tables.gain):
                made += [_gains_by_lists(tables), _gains_by_species(tables)]
    return {picture.name: picture for picture in made if picture is not None}


def _ordination(tables: Tables) -> Plot:
    """Sites as points and species as arrows on the first two axes; with one axis the species alone, in order."""
    scores, loadings = tables.axes.scores, tables.axes.loadings
    data = pd.DataFrame({"species": list(tables.lists.species)})
    for i in range(min(tables.fit.rank, 2)):
        data[f"axis_{i + 1}"] = loadings[:, i]
    if tables.fit.rank == 1:
        return _one_axis(tables, data)
    fig, ax = axes(6.0, 5.2)
    ax.scatter(scores[:, 0], scores[:, 1], s=12, color=GREY, alpha=0.6, lw=0, zorder=2)
    length = np.hypot(loadings[:, 0], loadings[:, 1])
    longest = np.argsort(-length)[:ARROWS]
    longest = longest[length[longest] >= SHORT * length.max()]
    reach = float(np.abs(scores[:, :2]).max()) / max(float(np.abs(loadings[longest, :2]).max()), 1e-9) * 0.85
    tips, names = loadings[longest, :2] * reach, tables.at(longest)
    for across, up in tips:
        ax.annotate(
            "", (across, up), (0, 0), arrowprops={"arrowstyle": "-|>", "color": ORANGE, "lw": 1.0}, zorder=3
        )
    span = float(np.abs(np.vstack([tips, scores[:, :2]])).max()) * 1.25
    ax.set_xlim(-span * 1.25, span * 1.25)
    ax.set_ylim(-span, span)
    point = np.array([2.5, 2.0]) * span / PANEL
    places = named_places(tips / point, names)
    apart = np.hypot(*(places - tips / point).T)
    for (across, up), tip, name, away in zip(places * point, tips, names, apart, strict=True):
        if away > LINE:  # a name that is not beside its tip
            ax.plot([tip[0], across], [tip[1], up], color=GREY, lw=0.6, zorder=2.5)
        ax.text(
            across, up, name, fontsize=8, color=INK, zorder=4, ha="left" if across >= tip[0] else "right",
            va="center",
            bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.75},
        )  # fmt: skip
    ax.axhline(0, color="#cccccc", lw=0.7, zorder=1)
    ax.axvline(0, color="#cccccc", lw=0.7, zorder=1)
    ax.set_xlabel(f"axis 1 ({share(float(tables.axes.share[0]))} of the variance that the axes carry)")
    ax.set_ylabel(f"axis 2 ({share(float(tables.axes.share[1]))})")
    others = len(loadings) - len(longest)
    caption = (
        "Grey: sites; two near each other have much the same birds for their numbers. Arrows: species; a species is "
        "commoner at sites in its direction, the more so the longer its arrow. Arrows have a scale of their own."
        + (
            f" The {len(longest)} longest arrows are drawn; {count(others)} shorter ones are in the table."
            if others > 0
            else ""
        )
    )
    return Plot(
        "ordination", "Sites and species on the first two axes", caption,
        f"{count(len(scores))} sites and {len(longest)} species on two axes.", fig, data,
    )  # fmt: skip


def named_places(tips: F64, names: Sequence[str]) -> F64:
    """Places (n, 2) of the names of arrows from 0 to ``tips`` (n, 2), in points: on no arrow and no other name.

    A name begins at its place if this lies to the right of its tip, else it ends there. The longest arrow is named
    first; a name that finds no room beside its tip stands further out.
    """
    shafts = (tips[:, None] * np.linspace(0.0, 1.0, 60)[:, None]).reshape(-1, 2)
    turns = np.radians([0, 20, -20, 40, -40, 65, -65, 90, -90])
    out, boxes = np.zeros_like(tips), np.zeros((0, 2, 2))
    for i in np.argsort(-np.hypot(*tips.T)):
        wide = LETTER * len(names[i])
        angle = np.arctan2(tips[i, 1], tips[i, 0]) + turns
        side = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        # Every candidate with its box: the nearest first, then the one nearest to the arrow's own direction.
        place = np.concatenate([tips[i] + away * side for away in AWAY])
        low = place - np.array([0.0, LINE / 2])
        low[:, 0] -= np.where(place[:, 0] >= tips[i, 0], 0.0, wide)
        high = low + np.array([wide, LINE])
        on_shaft = ((shafts >= low[:, None]) & (shafts <= high[:, None])).all(axis=2).any(axis=1)
        on_name = ((boxes[:, 0] < high[:, None]) & (boxes[:, 1] > low[:, None])).all(axis=2).any(axis=1)
        outside = (np.maximum(-low, high) > PANEL / 2).any(axis=1)
        best = int(np.argmin(4.0 * on_name + 2.0 * on_shaft + outside))
        out[i], boxes = place[best], np.concatenate([boxes, [[low[best], high[best]]]])
    return out


def _one_axis(tables: Tables, data: pd.DataFrame) -> Plot:
    table = (
        tables.loadings.sort_values("loading", key=np.abs, ascending=False).head(SHOWN).sort_values("loading")
    )
    fig, ax = axes(5.4, 1.2 + 0.19 * len(table))
    height = np.arange(len(table))
    ax.hlines(height, table["lower"], table["upper"], color=GREY, lw=1.2)
    ax.plot(table["loading"], height, "o", ms=4, color=ORANGE)
    ax.axvline(0, color="#999999", lw=0.8)
    _names(tables, ax, table["species"])
    ax.set_xlabel("loading on the axis, with its 95 % interval")
    caption = (
        "A species on the right is commoner at the sites with high scores, one on the left at the sites with low ones "
        "(the map of the axis shows which those are)."
    )
    return Plot("ordination", "Species on the axis", caption, f"Loadings of {len(table)} species.", fig, data)


def _names(tables: Tables, ax: Panel, species: pd.Series) -> None:
    ax.set_yticks(np.arange(len(species)), [tables.names[bird] for bird in species], fontsize=8)
    ax.set_ylim(-0.7, len(species) - 0.3)


def _map(
    tables: Tables, name: str, title: str, value: F64, label: str, caption: str, *, centred: bool
) -> Plot | None:
    """A map of one number of the sites; None where no site has coordinates."""
    table = tables.sites[["site_id", "longitude", "latitude"]].assign(value=value).dropna()
    if table.empty:
        return None
    x, y, score = (table[name].to_numpy(dtype=float) for name in ("longitude", "latitude", "value"))
    x = on_map(x)
    frame = frame_of(x, y)
    fig, ax = empty_map(frame, more=0.8, least=3.0)
    reach = float(np.quantile(np.abs(score), 0.98)) or 1.0
    norm = (
        Normalize(-reach, reach)
        if centred
        else Normalize(float(score.min()), max(float(score.max()), float(score.min()) + 1e-9))
    )
    points = ax.scatter(
        x, y, c=score, cmap="RdBu_r" if centred else "YlGnBu", norm=norm, s=float(np.clip(9000 / len(score), 14, 70)),
        lw=0.4,
        edgecolors=INK, zorder=3,
    )  # fmt: skip
    colour_bar(fig, ax, points, label)
    caption += unplaced(len(tables.sites) - len(table), len(tables.sites))
    return Plot(name, title, f"{caption} {CREDIT}", f"Map of {count(len(table))} sites: {title}.", fig, table)


def ends(loading: F64) -> tuple[I64, I64]:
    """At most three species at each end of an axis, by their loadings (S,): those above 0, and those below."""
    order = np.argsort(loading)
    return order[loading[order] > 0][::-1][:3], order[loading[order] < 0][:3]


def _axis_map(tables: Tables, axis: int) -> Plot | None:
    high, low = (", ".join(tables.at(named)) or "no species" for named in ends(tables.axes.loadings[:, axis]))
    return _map(
        tables, f"axis-{axis + 1}", f"Axis {axis + 1} on the map", tables.axes.scores[:, axis], f"score on axis {axis + 1}",
        f"Commoner where the score is high: {high}; where it is low: {low}.", centred=True,
    )  # fmt: skip


def _richness(tables: Tables) -> Plot | None:
    text = (
        f"Species expected on {count(tables.usual)} standard visit{'s' if tables.usual > 1 else ''} to each "
        "site: the usual number of visits, so that sites with few visits and sites with many can be compared. A standard "
        f"visit is {'an hour by one observer, standing still' if tables.effort.terms else 'one checklist'}."
    )
    made = _map(
        tables, "richness", "Expected number of species", tables.sites["richness"].to_numpy(dtype=float),
        "species expected", text,
        centred=False,
    )  # fmt: skip
    if made is not None:
        return made
    table = tables.sites.sort_values("richness", ignore_index=True)
    fig, ax = axes(5.0, 3.2)
    at = np.arange(len(table))
    ax.vlines(
        at, table["richness_lower"], table["richness_upper"], color="#bcd3e6", lw=max(0.4, 200 / len(table))
    )
    ax.plot(at, table["richness"], ".", ms=3, color=BLUE)
    ax.set_xlabel("sites, by expected number")
    ax.set_ylabel("species expected")
    ax.set_xticks([])
    keep = table[["site_id", "richness", "richness_lower", "richness_upper"]]
    return Plot(
        "richness", "Expected number of species", f"{text} Bars: 95 % interval. No site has coordinates.",
        f"Expected species at {count(len(table))} sites.", fig, keep,
    )  # fmt: skip


def _associations(tables: Tables) -> Plot:
    """Correlations as a square, species in the order of a clustering; what may be 0 is left white."""
    n_species = tables.lists.S
    first, second = np.triu_indices(n_species, 1)
    square = {name: np.zeros((n_species, n_species)) for name in ("correlation", "lower", "upper")}
    for name, value in square.items():
        # The table has each pair once; the matrix is symmetric.
        value[first, second] = value[second, first] = tables.associations[name].to_numpy(dtype=float)
    strong = np.sort(np.argsort(-(square["correlation"] ** 2).sum(axis=1), kind="stable")[:SHOWN])
    picked = square["correlation"][np.ix_(strong, strong)]
    sure = (square["lower"] > 0) | (square["upper"] < 0)
    # Species with like correlations beside one another: leaves of a hierarchical clustering by 1 - r.
    order = leaves_list(
        linkage(squareform(np.clip(1 - picked - np.eye(len(picked)), 0, 2), checks=False), "average")
    )
    strong, picked = strong[order], picked[np.ix_(order, order)]
    # A correlation whose interval holds 0 is left blank.
    shown = np.where(sure[np.ix_(strong, strong)], picked, np.nan)
    reach = max(float(np.nanmax(np.abs(shown), initial=0.0)), 0.1)
    side = max(3.8, 2.6 + 0.155 * len(strong))  # of few species the words of the bar need the room
    fig, ax = axes(side, side)
    image = ax.imshow(shown, cmap="RdBu_r", vmin=-reach, vmax=reach)
    names = tables.at(strong)
    ax.set_xticks(range(len(names)), names, rotation=90, fontsize=7.5)
    ax.set_yticks(range(len(names)), names, fontsize=7.5)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    bar = fig.colorbar(image, ax=ax, orientation="horizontal", fraction=0.03, pad=0.02)
    bar.ax.tick_params(labelsize=7)
    bar.set_label("correlation over sites\nbelow 0: at other sites\nabove 0: at the same", fontsize=8.5)
    caption = (
        "Red: two species are commoner at the same sites than their numbers and the sites' own levels say; blue: at other "
        "sites. Compared is by how many times a site has more or fewer than expected: a doubling and a halving weigh alike. "
        "White: the 95 % interval holds 0. Species are ordered by likeness."
        + (
            f" The {len(strong)} species with the strongest correlations, of {count(n_species)}."
            if len(strong) < n_species
            else ""
        )
    )
    data = pd.DataFrame(picked, columns=names)
    data.insert(0, "species", names)
    return Plot("associations", "Associations", caption, f"Correlations of {len(names)} species.", fig, data)


def _gains_by_lists(tables: Tables) -> Plot:
    table = tables.visits
    fig, ax = axes(5.0, 2.8)
    at = np.arange(len(table))
    ax.bar(at, 100 * table["gain"], color=np.where(table["gain"] > 0, BLUE, GREY), width=0.6)
    ax.axhline(0, color="#777777", lw=0.8)
    ax.set_xticks(
        at,
        [
            f"{lists}\n({count(n_sites)} sites)"
            for lists, n_sites in zip(table["lists"], table["n_sites"], strict=True)
        ],
    )
    ax.set_xlabel("checklists at the site")
    ax.set_ylabel("deviance taken off, %")
    caption = (
        "How much nearer to counts that the fit had not seen the axes come than the same model without them; "
        "counts of site and species were left out in turn."
    )
    return Plot("gain-by-lists", "Gain by the number of checklists", caption, "Bars of gains.", fig, table)


def _gains_by_species(tables: Tables) -> Plot:
    table = tables.species.dropna(subset=["gain"])
    table = table.sort_values("gain", ignore_index=True)
    some = len(table) > SHOWN
    if some:
        table = pd.concat([table.head(SHOWN // 2), table.tail(SHOWN // 2)])
    fig, ax = axes(5.4, 1.1 + 0.19 * len(table))
    height = np.arange(len(table))
    ax.barh(height, 100 * table["gain"], color=np.where(table["gain"] > 0, BLUE, GREY), height=0.7)
    ax.axvline(0, color="#777777", lw=0.8)
    _names(tables, ax, table["species"])
    ax.set_xlabel("deviance taken off, %")
    caption = "The same, species by species." + (
        f" The {SHOWN // 2} that gained most and the {SHOWN // 2} that gained least." if some else ""
    )
    keep = table[["species", "common_name", "gain"]]
    return Plot("gain-by-species", "Gain by species", caption, f"Gains of {len(table)} species.", fig, keep)
