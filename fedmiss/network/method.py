"""A study about a method of one's own: a function that is installed at all organisations is run at each of them.

The function gets the organisation's place in the study, and the path of its data::

    def job(circle: Circle, data: Path, **settings) -> Mapping[str, Any]

What it tells the others goes through ``circle``: :meth:`~fedmiss.federation.circle.Circle.add_up` gives the sum of arrays
over all organisations, masked where the study has masks; :class:`fedmiss.engines.StudyEngine` runs the core's algorithms.
What it returns (numbers, texts, arrays) is the result. No code travels: only the function's name, and a digest of its
package's Python files, or where it is in no package of its module's and those beside it that it imports, also inside
functions, which must be the same at all. A module whose name is put together while it runs is not seen.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import json
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

import fedmiss
from fedmiss.atomic import write_json
from fedmiss.errors import ConfigError, EngineError, FedmissError, listed
from fedmiss.federation.circle import Circle
from fedmiss.files import atomic_folder, write_manifest
from fedmiss.progress import note
from fedmiss.version import __version__

if TYPE_CHECKING:
    from fedmiss.network.kits import Kit

# A job is bound to its settings, to the function's code and to the data that it was begun with.
_GO_ON = (
    "Where it happens here alone, the others wait. After a change of code or data ask the proposer for a revision; it keeps "
    "all settings of the study, so that others are a new one (`fedmiss federation new`)."
)


# Python 3.11 counts its depth in syntax trees for all threads together, and fails where two of them read one at once.
_PARSING = threading.Lock()
_INSTALL = (
    "Install the package that the organisations have agreed on, the same version everywhere; for a file alone set "
    "PYTHONPATH to its folder."
)


def installed(named: str) -> bool:
    """Whether the package of a study's function is found here: nothing of it is imported, or runs, before the approval."""
    try:
        return importlib.util.find_spec(named.partition(":")[0].partition(".")[0]) is not None
    except ValueError:  # __main__ of an interpreter, which no other process finds
        return False


def check_installed(named: str) -> None:
    """Raise ConfigError where the package of a study's function is not found here."""
    if not installed(named):
        raise ConfigError(f"the study runs {named}, which is not installed here. {_INSTALL}")


def function_of(named: str) -> Callable[..., Mapping[str, Any]]:
    """The function that a study names as ``package.module:function``.

    Raises
    ------
    ConfigError    it is not installed here
    """
    module, _, name = named.partition(":")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever a module does when it is imported
        raise ConfigError(
            f"the study runs {named}, and {module} cannot be imported here: {error}. {_INSTALL}"
        ) from None
    out: Callable[..., Mapping[str, Any]] | None = getattr(found, name, None)
    if not callable(out):
        raise ConfigError(
            f"the study runs {named}, and {module} has no function {name!r}. Install the version that the organisations "
            "have agreed on."
        )
    return out


def _beside(module: ModuleType) -> list[Path]:
    """Files of a module in no package and of those beside it that it imports, however deep: the model, for one.

    They are read, not run: also what a function imports when it is called is found. Of an imported package all files are,
    but where packages are installed, and may be anybody's.
    """
    first = Path(module.__file__ or "")
    folder, within = first.parent, module.__name__.rpartition(".")[0]
    anybodys = folder.name in ("site-packages", "dist-packages")
    files, seen = [first], {first.stem}
    for file in files:  # it grows
        for name in sorted(_imported(file, within if file.parent == folder else None) - seen):
            seen.add(name)
            package = folder / name
            if package.with_suffix(".py").is_file():
                files.append(package.with_suffix(".py"))
            elif (package / "__init__.py").is_file() and not anybodys and name != "fedmiss":
                files += _files_of(package)
    return files[:1] + sorted(files[1:], key=lambda file: file.relative_to(folder).parts)


def _imported(file: Path, within: str | None) -> set[str]:
    """First names of what a file imports, by a statement or a call with the name as a text, at any place.

    ``within``: the folder that its module's name begins with; None where its own dots lead to its package.
    """
    try:
        with _PARSING:
            nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):  # nobody can import it either
        return set()
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.level and within is None):
            start = ".".join(filter(None, [within if node.level else "", node.module]))
            names |= {f"{start}.{alias.name}".removeprefix(".") for alias in node.names}
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            if getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module", "__import__"):
                names.add(str(node.args[0].value))
    names |= {name.removeprefix(f"{within}.") for name in names}
    return {name.partition(".")[0] for name in names}


def _files_of(root: Path) -> list[Path]:
    """The Python files of a package, without what editors, notebooks and environments keep beside the code."""
    files = sorted(root.rglob("*.py"), key=lambda file: file.relative_to(root).parts)
    return [
        file
        for file in files
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(root).parts)
    ]


def _source_of(module: ModuleType | None) -> str:
    """Digest of the source of a module that is no file, as of one in an archive; blank if it has none."""
    try:
        return hashlib.blake2b(inspect.getsource(module).encode(), digest_size=6).hexdigest()  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""


def code_of(named: str) -> str:
    """Digest of the Python files of a function's package, or of its module and those beside it; blank if it is compiled.

    Raises
    ------
    ConfigError    a file of the package cannot be read
    """
    module = named.partition(":")[0]
    parts = module.split(".")
    above = [sys.modules.get(".".join(parts[: i + 1])) for i in range(len(parts))]
    # A folder without __init__.py may hold anything: the package begins below it.
    root = next((Path(m.__file__).parent for m in above if m and m.__file__ and hasattr(m, "__path__")), None)
    digest = hashlib.blake2b(digest_size=6)
    try:
        if root is not None:
            files = [(file.relative_to(root).as_posix(), file) for file in _files_of(root)]
        else:
            own = sys.modules.get(module)
            at = Path(getattr(own, "__file__", None) or "")
            if own is None or at.suffix != ".py" or not at.is_file():
                return _source_of(own)
            first, *others = _beside(own)
            files = [("", first), *((file.relative_to(first.parent).as_posix(), file) for file in others)]
        for name, file in files:
            text = file.read_text("utf-8", "surrogateescape")
            digest.update(f"{name}\0{text}\0".encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise ConfigError(
            f"the study runs {named}, and {error.filename} of its code cannot be read: {error.strerror}. All organisations "
            "compare the code before they begin. Make the file readable, or install the package again."
        ) from None
    return digest.hexdigest()


def _not_finite(value: object) -> list[str]:
    """The numbers of a value that JSON does not know, as Python writes them."""
    found: list[str] = []
    json.loads(json.dumps(value), parse_constant=found.append)
    return found


def run_method(kit: Kit, data: Path, circle: Circle) -> Path:
    """Run the study's method with the others; write what it returns and return its folder."""
    settings = dict(kit.study.method)
    run = str(settings.pop("run"))
    job = function_of(run)
    try:
        inspect.signature(job).bind(circle, data, **settings)
    except ValueError:
        pass  # of a function that is compiled nobody knows what it takes
    except TypeError as error:
        raise ConfigError(
            f"{run} does not take what [method] of the study says: {error}. Install the version that the organisations have "
            "agreed on; if [method] is wrong, ask the proposer for a new study, since a revision keeps it."
        ) from None
    # The job's number covers the function's name only: other code under that name would add up other things.
    circle.begin([], f"{run} of the code {code_of(run)}")
    circle.share(b"")
    try:
        found = job(circle, data, **settings)
    except (EngineError, OSError, MemoryError):
        raise  # they have words of their own
    except FedmissError as error:
        raise type(error)(f"{error} {_GO_ON}", **error.fields) from error
    except (Exception, SystemExit) as error:  # sys.exit() would end the job as if it were done
        frames = traceback.extract_tb(error.__traceback__)
        here = Path(fedmiss.__file__).parent  # a line of fedmiss says nothing to who wrote the function
        last = [f for f in frames if not Path(f.filename).is_relative_to(here)][-1:] or frames[-1:]
        raise ConfigError(
            f"{run} failed in {Path(last[0].filename).name}, line {last[0].lineno}: {type(error).__name__}: {error}. If the "
            "package is wrong, agree on a version without the fault; if the data here are wrong, correct them. "
            f"{_GO_ON} fedmiss --debug shows the traceback."
        ) from error
    without = {name: n for name, n in circle.left_out.items() if n}
    # Together, else who adds up more would wait for ever; it is none of the function's exchanges.
    circle.most += 1
    circle.begin([], f"the end of {run}")
    circle.share(b"", all_needed=False)
    try:
        plain: dict[Any, Any] = {
            k: v.item() if isinstance(v, np.generic) else v for k, v in dict(found).items()
        }
        if strange := [k for k in plain if not isinstance(k, str)]:
            raise TypeError(f"the name {strange[0]!r}")
        arrays = {k: np.asarray(v) for k, v in plain.items() if isinstance(v, np.ndarray | list | tuple)}
        facts = {k: v for k, v in plain.items() if k not in arrays}
        # JSON has no number that is not finite
        odd = [f"{k} ({bad[0]})" for k, v in facts.items() if (bad := _not_finite(v))]
        if bad := [k for k, v in arrays.items() if v.dtype.hasobject or k == "file"]:
            raise TypeError(f"the array {bad[0]!r}")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{run} returned what no file can hold ({error}); it has to be a mapping of names to numbers, texts, and "
            "arrays. The others have their results. Agree on a version that returns one, and ask the proposer for a "
            "revision."
        ) from None
    if without:
        said = ", ".join(f"{name} in {n}" for name, n in without.items())
        # who shares masks with somebody who is away was there, and is left out with it
        cohorts = ", with the cohort that shares its masks" if kit.study.absence and kit.study.masks else ""
        note(f"rounds went on without somebody (away, or numbers that are not finite){cohorts}: {said}.")
    if odd:
        note(f"result.json has null for what is no finite number: {listed(odd, 6)}.")
    if kit.result.exists():
        return kit.result
    with atomic_folder(kit.result) as tmp:
        np.savez(tmp / "arrays.npz", **arrays)  # type: ignore[arg-type]  # names are those of the function
        write_json(tmp / "result.json", facts)
        shapes = {k: list(v.shape) for k, v in arrays.items()}
        write_manifest(
            tmp, "method", settings=kit.study.in_use(), inputs={"job": kit.job.hex()},
            results={
                "version": __version__, "exchanges": circle.exchange, "arrays": shapes,
                "rounds_without": without,
            },
        )  # fmt: skip
    return kit.result
