"""One word, one meaning: names that the house has given up do not come back, and each public name stands in one module."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import fedmiss

HOME = Path(fedmiss.__file__).parent

# what was called so, and its name now
GIVEN_UP = {
    "hear": "receive", "arrivals": "messages", "letters": "codec", "Own": "WorkerContext", "jolted": "perturbed",
    "_jolt": "_perturb_prior", "Lane": "FitTask", "Used": "IncludedVisits", "Order": "JobSpec", "Plan": "DataSpec",
    "Joint": "JobResult", "Stay": "ExitPolicy", "bends": "find_change_points", "carriers": "influential_sites",
    "gap": "log_error", "judge": "scoring_family", "reach": "max_step, coverage or check_connection",
    "start_site": "start_member", "start_hub": "start_relay", "lift": "a feature of sites",
}  # fmt: skip
# of a room of its own, where the word is the field's: share of an area that sites reach
ALLOWED = {("etl", "reach"), ("pipeline/settings.py", "Joint")}
# classes of one name in two rooms that never meet; no other may come
TWICE = {
    "Answer", "Axes", "Block", "Cells", "Choice", "Dictionary", "Entry", "Folder", "Full", "Identity", "Law",
    "Months", "Panel", "Setting", "SiteTime", "Source", "Species", "Visits",
}  # fmt: skip


@cache
def modules():
    """Module -> names of its functions, classes and methods; its classes that others may use."""
    out = {}
    for path in sorted(HOME.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree, defined = ast.parse(text), set(re.findall(r"\b(?:def|class) +(\w+)", text))
        classes = {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
        lists = [
            {e.value for e in n.value.elts}
            for n in tree.body
            if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"
        ]
        public = lists[0] if lists else {name for name in classes if not name.startswith("_")}
        out[path.relative_to(HOME).as_posix()] = defined, classes & public
    return out


@pytest.mark.parametrize("word", GIVEN_UP)
def test_a_name_that_was_given_up_does_not_come_back(word):
    found = [
        path
        for path, (defined, _) in modules().items()
        if word in defined and not any(path.startswith(room) and word == w for room, w in ALLOWED)
    ]
    assert not found, f"{word} in {found}: say {GIVEN_UP[word]}"


def test_a_public_class_stands_in_one_module():
    where = defaultdict(list)
    for path, (_, public) in modules().items():
        for name in public:
            where[name].append(path)
    assert {name for name, paths in where.items() if len(paths) > 1} == TWICE
