"""What rtrim's functions that read TRIM's files take from one: their rules, as their documentation and behaviour give them.

Of a section they take the lines up to the first blank one. The first time is the base: its line has three numbers, of which
the last is the imputed index, and errors of 0 are put in. Of a line with a label they take the first number after it, or
what stands after the equals sign. So a file that breaks one of these rules is read wrongly, without a word.
"""

import re
from dataclasses import dataclass


def first_number(text):
    return float(re.search(r"[0-9]+\.?[0-9]*", text)[0])


def section(text, title):
    """The lines of a section after its title, up to a blank one."""
    found = re.search(rf"{title}.*?\n[ \t]*\n", text, re.IGNORECASE | re.DOTALL)
    assert found, f"no section {title} that ends with a blank line"
    return [line for line in found[0].splitlines()[1:] if line.strip()]


def table(text, title):
    """Rows of five columns: time, and four numbers; blanks at the end where a line is short."""
    head, *body = section(text, title)
    assert head.split()[0] == "Time"
    assert len(head.split()) == 5
    return [[float(w) for w in line.split()] + [float("nan")] * (5 - len(line.split())) for line in body]


@dataclass
class Tof:
    """One ``.out`` file as rtrim sees it."""

    text: str

    def version(self):
        return re.search(r"TRIM (\d\.\d+) :  TRend analysis", self.text)[1]

    def n(self, what):
        return first_number(re.search(rf"{what}[ \t]{{5,}}.*?\n", self.text)[0])

    def indices(self):
        rows = table(self.text, "TIME INDICES")
        first = rows[0]
        first[3], first[2], first[4] = first[2], 0.0, 0.0
        return rows

    def totals(self):
        return table(self.text, "TIME TOTALS")

    def method(self):
        return re.search(r"ESTIMATION METHOD.*?\n", self.text)[0].strip().split(" = ")[-1]

    def overdispersion(self):
        line = re.search(r"estimated overdispersion.*?\n", self.text, re.IGNORECASE)[0]
        return float(line.split("=")[1])

    def slope(self, which):
        found = (
            re.search(rf"OVERALL SLOPE {which}.*?\n[ \t]*(\n|$)", self.text, re.DOTALL)[0]
            .strip()
            .splitlines()
        )
        return dict(zip(found[1].split(), map(float, found[2].split()), strict=True))

    def goodness(self):
        lines = section(self.text, "GOODNESS OF FIT")
        return [[first_number(part) for part in line.split(",")] for line in lines]
