"""Measure the house: lines, long functions, many parameters, Any, imports inside functions; here or at a commit.

python benchmarks/house_metrics.py                # the working tree
python benchmarks/house_metrics.py b8daa7c        # a commit
python benchmarks/house_metrics.py --long         # names the long functions
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("etl", "pipeline", "cli")


def sources(commit: str | None) -> dict[str, str]:
    """Path -> text of every Python file of the package."""
    if commit is None:
        return {
            str(p.relative_to(ROOT)): p.read_text(encoding="utf-8")
            for p in sorted((ROOT / "fedmiss").rglob("*.py"))
        }
    names = git("ls-tree", "-r", "--name-only", commit, "fedmiss").split()
    return {n: git("show", f"{commit}:{n}") for n in names if n.endswith(".py")}


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def code_lines(text: str, node: ast.AST | None = None) -> int:
    """Lines that hold code: no blanks, comments or docstrings."""
    tree = node or ast.parse(text)
    skipped: set[int] = set()
    for part in ast.walk(tree):
        body = getattr(part, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            if isinstance(body[0].value.value, str):
                skipped |= set(range(body[0].lineno, body[0].end_lineno + 1))
    lines = text.splitlines()
    first, last = (node.lineno, node.end_lineno) if node is not None else (1, len(lines))
    kept = [
        i
        for i in range(first, last + 1)
        if lines[i - 1].strip() and not lines[i - 1].lstrip().startswith("#")
    ]
    return len([i for i in kept if i not in skipped])


def measure(files: dict[str, str], *, named: bool = False) -> dict[str, object]:
    long, wide, functions, inside, any_words = [], [], 0, 0, 0
    for name, text in files.items():
        tree = ast.parse(text)
        any_words += sum(isinstance(n, ast.Name) and n.id == "Any" for n in ast.walk(tree))
        for f in ast.walk(tree):
            if not isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            functions += 1
            inside += sum(isinstance(n, ast.Import | ast.ImportFrom) for n in f.body)
            if (n := code_lines(text, f)) > 60:
                long.append((n, f"{name}:{f.name}"))
            a = f.args
            n = len([*a.posonlyargs, *a.args, *a.kwonlyargs])
            if n > 8 and "/cli/" not in name:
                wide.append((n, f"{name}:{f.name}"))
    lines = sum(len(t.splitlines()) for t in files.values())
    out: dict[str, object] = {"files": len(files), "lines": lines}
    for room in ROOMS:
        mine = {k: v for k, v in files.items() if k.startswith(f"fedmiss/{room}/")}
        out[f"lines in {room}"] = sum(len(t.splitlines()) for t in mine.values())
        out[f"code lines in {room}"] = sum(code_lines(t) for t in mine.values())
    out |= {
        "functions": functions,
        "functions over 60 code lines": len(long),
        "functions over 8 parameters, cli left out": len(wide),
        "Any per 1,000 lines": round(1000 * any_words / lines, 1),
        "imports inside functions": inside,
    }
    if named:
        out["long"] = ", ".join(f"{n} {name}" for n, name in sorted(long, reverse=True))
        out["wide"] = ", ".join(f"{n} {name}" for n, name in sorted(wide, reverse=True))
    return out


if __name__ == "__main__":
    words = [w for w in sys.argv[1:] if not w.startswith("-")]
    for key, value in measure(sources(words[0] if words else None), named="--long" in sys.argv).items():
        print(f"{key:<44}{value:>10}" if not isinstance(value, str) else f"{key}: {value}")
