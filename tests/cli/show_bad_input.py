"""Print what a user sees for every mistake: ``python tests/cli/show_bad_input.py``."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from bad_inputs import CASES, inside, make_base
from terminal import fedmiss


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        base = make_base(root / "base")
        for number, case in enumerate(CASES, start=1):
            folder = root / f"case{number}"
            folder.mkdir()
            with inside(folder):
                words = case.words(base, folder)
                with case.during(folder):
                    done = fedmiss(*words)
            short = [str(w).replace(f"{folder}/", "").replace(f"{root}/", "") for w in words]
            print(f"{number:>2}. {case.name}\n    $ fedmiss {shlex.join(short)}")
            seen = (done.err.strip() or done.out.strip()).replace(f"{folder}/", "").replace(f"{root}/", "")
            print("".join(f"    {line}\n" for line in seen.splitlines()) + f"    (exit code {done.code})\n")


if __name__ == "__main__":
    main()
