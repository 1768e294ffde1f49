"""A shared folder carries the frames: any folder that is synchronised or mounted at all organisations. No server, no port.

    FOLDER/egrets-1f2e3d4c5b6a7988/000017/north-0f1e2d....frame

A frame is signed, so a reader sees whether the whole file has come. Synchronising programs deliver files late, in any
order, twice under other names, in part at first, and show old listings for a while: a reader looks again until the frames
of all are whole. What somebody else puts there under an organisation's name is not signed by it, and is passed over.
Nothing is ever changed or removed there; when a study is done its folder may be deleted. Standard library only.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fedmiss.errors import EngineError, InputError, UplinkError
from fedmiss.federation.circle import MOST_BYTES
from fedmiss.federation.gather import Enough, Gather
from fedmiss.system import open_plain, owner_of, share_like, to_disk

_FRAME = re.compile(r"([a-z][a-z0-9-]{0,30})-[0-9a-f]{32}.*\.frame.*", re.DOTALL)
_JOB = re.compile(r"[a-z][a-z0-9-]{0,30}-[0-9a-f]{16}")
FIRST, LAST = 0.02, 2.0  # seconds between two looks: at first, and after a while
QUIET = 5.0  # seconds before somebody is said to be missing
AGAIN = (0.02, 0.1, 0.3, 0.6, 1.0)  # seconds between tries to write: somebody is just making the folder


def _name(name: str, raw: bytes) -> str:
    return f"{name}-{hashlib.blake2b(raw, digest_size=16).hexdigest()}.frame"


def _bytes(path: Path) -> bytes:
    """Bytes of a file, nothing of what can be no frame: a link, a device, more bytes than a frame may have."""
    with open(path, "rb", opener=open_plain) as stream:
        about = os.fstat(stream.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
            return b""
        return stream.read(MOST_BYTES)


def check_folder(folder: Path, kit: Path, data: Path, report: Path | None = None) -> Path:
    """A folder that frames may be written to; ``report`` is where the own report is to be, None inside the kit.

    Raises
    ------
    InputError    there is no such folder, it cannot be written to, or the kit, the data or the own report lie in it
    """
    there = folder.expanduser().resolve()
    if not there.is_dir():
        raise InputError(
            f"{folder} is a file, no folder. Name the folder that all organisations share."
            if there.is_file()
            else f"there is no folder {folder}. Make the shared folder first, and see that it comes to the others.",
            path=str(folder),
        )
    for what, own, gone in (
        ("kit", kit, "its private keys"),
        ("data", data, "all of it"),
        ("own report", report or kit, "your visits, which it has beside its page"),
    ):
        # the same folder may have names in capitals and small letters, or two places
        if any(p.exists() and p.samefile(there) for p in (own.resolve(), *own.resolve().parents)):
            raise InputError(
                f"the {what} {own} lies in the shared folder {folder}, where the others would receive {gone}. Choose a "
                f"place of your own for the {what}, and say `fedmiss federation join` again.",
                path=str(own),
            )
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(
            f"this user cannot write to {folder}. Ask its owner ({owner_of(there)}) for the right to.",
            path=str(folder),
        )
    return there


def place_of(study: str, job: str) -> str:
    """Name of a job's own folder in the shared one; ``job`` is its hash in hexadecimal digits."""
    return f"{study}-{job[:16]}"


class Folder(Gather):
    """The frames of one job in a shared folder.

    Parameters
    ----------
    root : the shared folder;  name : of this organisation;  names : of all;  study, job : name of the study, hash of the job
    genuine : raises UplinkError where bytes are not signed by an organisation for an exchange
    told : called with the names that are missing, when that changes
    patience : seconds to wait for the others; None to wait as long as it takes
    """

    def __init__(
        self,
        root: Path,
        name: str,
        names: Sequence[str],
        study: str,
        job: bytes,
        *,
        genuine: Callable[[str, int, bytes], object],
        told: Callable[[Sequence[str]], None] = lambda names: None,
        patience: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.root, self.name, self.names = root, name, tuple(sorted(names))
        self.at = root / place_of(study, job.hex())
        self.genuine, self.told, self.patience, self._sleep = genuine, told, patience, sleep
        self._latest: dict[str, int] = {}
        self._shown: dict[int, bytes] = {}  # the last own frames
        # what lies there and this user may not read, or the shared folder if it is away, as seen at the last look
        self.closed: tuple[str, ...] = ()
        # who was missing, what was closed, and which other jobs lay there, when it was said last
        self._said: tuple[tuple[str, ...], ...] = ((), (), ())

    def restore(self, exchange: int, frame: bytes) -> None:
        """Write the own frame, unless it lies there."""
        self._shown = {e: raw for e, raw in self._shown.items() if e == exchange - 1} | {exchange: frame}
        self._write(exchange, frame)

    def _show_again(self) -> None:
        """Write the last two frames, which others may wait for, where they are lost: the folder was away, or tidied up."""
        for exchange, frame in self._shown.items():
            with suppress(InputError):
                self._write(exchange, frame, wait=False)

    def _write(self, exchange: int, frame: bytes, *, wait: bool = True) -> None:
        """Write an own frame, unless it lies there, and never beside another one of its exchange.

        ``wait`` until the shared folder is back where it is away: unplugged, not mounted, or asleep.
        """
        others, begun, pauses = tuple(n for n in self.names if n != self.name), time.monotonic(), iter(AGAIN)
        while True:
            there = self._look(exchange, dict.fromkeys(others, b"")).get(self.name)
            if there == frame:
                return
            if there is not None:
                raise EngineError(
                    f"exchange {exchange}: {self.name} has shown another frame before ({self._folder(exchange)}); nothing "
                    "was written. This kit was put back from a backup, or copied, and has other data or another computer "
                    "now. Go on with the kit as it was last, or begin a new revision of the study."
                )
            path = self._folder(exchange) / _name(self.name, frame)
            try:
                self._put(path, frame)
                return
            except OSError as error:
                waited = time.monotonic() - begun
                if wait and not os.path.exists(self.root) and waited <= (self.patience or waited):
                    self._tell(others, waited)  # a drive that is away: what lies there is looked at again
                    self._sleep(LAST)
                elif isinstance(error, PermissionError) and (pause := next(pauses, None)) is not None:
                    self._sleep(pause)
                else:
                    raise self._not_written(exchange, path.parent, error) from None

    def _put(self, path: Path, frame: bytes) -> None:
        os.stat(self.root)  # no folder is made where one was mounted
        # On one file server the others are other users: a folder that this one's umask closes would keep them out.
        for folder in (self.at, path.parent):
            try:
                folder.mkdir()
                share_like(folder, self.root)
            except FileExistsError:
                if not folder.is_dir():
                    raise
        # The name is the digest of these bytes: what lay there was a part of them, or a link to another file.
        with open(path, "wb", opener=open_plain) as stream:
            stream.write(frame)
            stream.flush()
            to_disk(stream.fileno())
            share_like(stream.fileno(), self.root)

    def _not_written(self, exchange: int, folder: Path, error: OSError) -> InputError:
        what = error.strerror or str(error)
        if isinstance(error, PermissionError):
            closed = next(
                (p for p in (self.root, self.at, folder) if not os.access(p, os.W_OK | os.X_OK)), folder
            )
            what = f"this user may not write to {closed}, which is {owner_of(closed)}'s"
        return InputError(
            f"the frame of exchange {exchange} could not be written to {folder}: {what}. "
            "Make room or ask for the right to write there, and join again: the job goes on.",
            path=str(folder),
        )

    def some_of(self, exchange: int, have: Mapping[str, bytes], enough: Enough) -> dict[str, bytes]:
        """Look until the frames that are wanted are whole."""
        got, begun, pause = dict(have), time.monotonic(), FIRST
        while True:
            waited = time.monotonic() - begun
            if waited > QUIET:
                self._show_again()  # first: it looks at the own frames, and what is closed is said of the others'
            got |= self._look(exchange, got)
            names = enough(got)
            missing = tuple(n for n in sorted(names or self.names) if n not in got and n != self.name)
            self._tell(missing, waited)
            if names is not None and names <= got.keys():
                return {n: got[n] for n in names}
            if self.patience is not None and waited > self.patience:
                raise EngineError(
                    f"exchange {exchange}: no frame from {', '.join(missing)} in {self.at} within {self.patience:.0f} s. "
                    "Join again later: the job goes on.",
                    groups=list(missing),
                )
            self._sleep(pause)
            pause = min(LAST, pause * 1.3)

    def _tell(self, missing: tuple[str, ...], waited: float) -> None:
        """Say who is missing, or that all are there again, when that or what stands in the way changes."""
        now = (missing, self.closed, tuple(self.others_here()) if missing else ())
        if now != self._said and (waited > QUIET or (self._said[0] and not missing)):
            self.told(missing)
            self._said = now

    def latest(self, name: str) -> int:
        """The last exchange of which a file of this organisation lies there, whole or not: it shows one after the other.

        Names of files are not signed: somebody who writes them can make the chair wait, and nothing else.
        """
        at = self._latest.get(name, -1)
        while any(
            glob.glob(f"{glob.escape(there)}/{name}-{'[0-9a-f]' * 32}*")
            for there in self._folders(self._jobs(), at + 1)
        ):
            at += 1
        self._latest[name] = at
        return at

    def _folder(self, exchange: int) -> Path:
        return self.at / f"{exchange:06d}"

    def _jobs(self) -> list[str]:
        """Folders of the job: synchronising programs make a second one where two members make it at the same time."""
        return glob.glob(f"{glob.escape(str(self.at))}*")

    @staticmethod
    def _folders(jobs: Sequence[str], exchange: int) -> list[str]:
        """Folders of an exchange, of which there may be several too: ``000017 (1)``, or somebody's copy."""
        return sorted(path for job in jobs for path in glob.glob(f"{glob.escape(job)}/{exchange:06d}*"))

    def _look(self, exchange: int, have: dict[str, bytes]) -> dict[str, bytes]:
        """Whole and genuine frames of others that lie there now."""
        found: dict[str, bytes] = {}
        files: list[tuple[str, str]] = []
        jobs = self._jobs()
        closed = [job for job in jobs if not os.access(job, os.R_OK | os.X_OK)]
        if not os.path.exists(self.root):
            closed = [str(self.root)]
        for there in self._folders(jobs, exchange):
            try:
                files += [(there, file) for file in sorted(os.listdir(there))]
            except PermissionError:
                closed.append(there)
            except OSError:  # away for a moment
                continue
        for there, file in files:
            parts = _FRAME.fullmatch(file)
            if parts is None or parts[1] not in self.names or parts[1] in have:
                continue
            try:
                raw = _bytes(Path(there, file))
                self.genuine(parts[1], exchange, raw)  # a part of it is not
            except PermissionError:
                closed.append(f"{there}/{file}")
                continue
            except (OSError, UplinkError):
                continue
            if found.get(parts[1], raw) != raw:
                raise EngineError(
                    f"exchange {exchange}: {parts[1]} has signed two frames ({self._folder(exchange)}). Its kit was copied, "
                    "or its journal was lost. Ask it; then begin a new revision of the study.",
                    groups=[parts[1]],
                )
            found[parts[1]] = raw
        self.closed = tuple(closed)
        return found

    def closed_here(self) -> list[str]:
        """What lies in the way of a frame that is missing: whose it is, and what to ask for."""
        return [
            f"{there} is {owner_of(Path(there))}'s, and this user may not read it; ask for the right to."
            if os.path.lexists(there)
            else f"{there} is not there now (a drive that is not connected?); it is looked for again and again."
            for there in self.closed
        ]

    def others_here(self) -> list[str]:
        """Other jobs in the shared folder: of another revision, roster or version. Other names are not shown on a screen."""
        try:
            return sorted(
                p.name for p in self.root.iterdir() if _JOB.fullmatch(p.name) and p != self.at and p.is_dir()
            )
        except OSError:
            return []
