"""Write the numbers of docs/research/federation.md by running its example: ``python docs/make_federation.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmiss.federation.codec import decode
from fedmiss.federation.link import InProcess
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings

PAGE = Path(__file__).with_name("research") / "federation.md"
BEGIN, END = "<!-- numbers: made by docs/make_federation.py -->", "<!-- end of numbers -->"


class Listening(InProcess):
    """Carries the frames and keeps the answers."""

    def __init__(self, programs):
        super().__init__(programs)
        self.frames = []

    def ask(self, frame):
        """Carry the frames of one exchange."""
        out = super().ask(frame)
        self.frames.append(out)
        return out


def example() -> GroupPanel:
    """Two clubs, two ponds each, three months."""
    ids = np.array(["pond A", "pond B", "pond C", "pond D"], dtype=object)
    north = Group.of("north", [0, 0, 0, 1, 1], [0, 1, 2, 0, 2], [7, 4, 2, 3, 1])
    south = Group.of("south", [2, 2, 3, 3, 3], [0, 1, 0, 1, 2], [2, 1, 9, 5, 4])
    return GroupPanel.of(4, 3, [north, south], site_id=ids)


def numbers() -> str:
    """The conversation of the example, with its numbers."""
    panel = example()
    federation = LocalFederation.of_panel(panel)
    tap = federation.link.transport = Listening(federation.programs)
    settings = CountSettings(rank=0, dispersion="none")
    fit = federation.fit(settings)
    pooled = LocalFederation.of_panel(panel.pooled()).fit(settings)
    out = ["```"]

    def heard(exchange: int, name: str):
        return decode(tap.frames[exchange][name], None, asks=False, who=name)[1]

    def row(values) -> str:
        return "[" + ", ".join(f"{v:.4f}" for v in np.ravel(values)) + "]"

    sums = [heard(0, name)[0].sums[0] for name in ("north", "south")]
    out.append("Open       every group: number of visits, sum of counts")
    out += [
        f"  {n:<6} {s[0]:.0f} visits, {s[1]:.0f} birds" for n, s in zip(("north", "south"), sums, strict=True)
    ]
    total = sum(sums)
    out.append(
        f"  hub    level mu = log({total[1]:.0f} / {total[0]:.0f}) = {np.log(total[1] / total[0]):.4f}"
    )
    out.append(
        "Solve      mu and the months' coefficients (all 0 at first): sites take their Newton step at home;"
    )
    out.append("           answer: sums over sites, by month")
    for name in ("north", "south"):
        answer = heard(1, name)[0]
        out.append(
            f"  {name:<6} gradients {row(answer.months[0, :, 0])} curvatures {row(answer.months[0, :, 1])}"
        )
    site = federation.programs["north"].site_posterior(0, 0)[0][0, 0]
    out.append(f"  north keeps: the coefficient of pond A, {site:.4f} at the end")
    month = sum(heard(1, n)[0].months[0] for n in ("north", "south"))
    step = month[:, 0] / (month[:, 1] + 1)
    out.append(f"  hub    months' step = gradient / (curvature + 1) = {row(step)}")
    out.append(f"after {fit.fit.sweeps} rounds")
    totals, reference = fit.expected().sum(axis=0), pooled.expected().sum(axis=0)
    out.append(f"  joint trend: expected birds by month {row(totals)}")
    out.append(f"  all records in one place would give  {row(reference)}")
    line = federation.link.ledger.total
    out.append(
        f"  {line.exchanges} exchanges, {line.bytes_up:,} bytes up, {line.bytes_down:,} bytes down (agreement included)"
    )
    return "\n".join([*out, "```"])


def main() -> None:
    """Replace the numbers between their two marks."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{numbers()}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
