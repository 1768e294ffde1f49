"""Measure the house: lines, comments, short names, long functions, many parameters, Any; here or at a commit.

python benchmarks/house_metrics.py                # the working tree
python benchmarks/house_metrics.py b8daa7c        # a commit
python benchmarks/house_metrics.py --long         # names the long functions
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("etl", "pipeline", "cli")
TOOLS = ("noqa", "type: ignore", "fmt:")  # comments that speak to a tool


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


def comments(text: str) -> int:
    """Comments for readers."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(t.type == tokenize.COMMENT and not any(w in t.string for w in TOOLS) for t in tokens)


def names(text: str) -> list[str]:
    """Parameters and assigned names of every function."""
    out: list[str] = []
    for f in ast.walk(ast.parse(text)):
        if isinstance(f, ast.FunctionDef):
            stored = {n.id for n in ast.walk(f) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            out += {a.arg for a in (*f.args.args, *f.args.kwonlyargs)} | stored
    return out


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
    named_here = [n for k, text in files.items() if "kernel" not in Path(k).name for n in names(text)]
    out |= {
        "comments, % of lines": round(100 * sum(map(comments, files.values())) / lines, 2),
        "names of one letter, %, kernels left out": round(
            100 * sum(len(n) == 1 for n in named_here) / len(named_here), 1
        ),
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
