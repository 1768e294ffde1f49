"""A computer without POSIX, as fedmiss (and the locks it uses) sees one: put this folder on PYTHONPATH.

Python loads this file at its start, in child processes too. Only the imports of these packages are changed: the standard
library of a POSIX system needs the calls itself.
"""

import builtins
import os
import signal
import types

SEEN_BY = ("fedmiss", "filelock")
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix"}
OS = """chown lchown fchown fchmod fork forkpty getuid geteuid getgid getegid getgroups getpgid getpgrp killpg setsid setuid
setgid sched_getaffinity statvfs O_DIRECTORY O_NOFOLLOW mkfifo nice uname wait wait3 wait4 getloadavg sysconf sync fdatasync
pread pwrite""".split()
SIGNALS = "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGQUIT SIGALRM SIGCHLD alarm setitimer pthread_kill pthread_sigmask".split()


def _open(path, flags, mode=0o777, **more):
    """Folders cannot be opened, and the rights of a new file do not say who may read it."""
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    new = not os.path.exists(path)
    handle = os.open(path, flags, mode, **more)
    if new:
        os.chmod(path, 0o666)
    return handle


def _without(module, names):
    out = types.ModuleType(module.__name__)
    out.__dict__.update({k: v for k, v in vars(module).items() if k not in names})
    return out


_SHOWN = {"os": _without(os, OS), "signal": _without(signal, SIGNALS)}
_SHOWN["os"].open, _SHOWN["os"].name = _open, "nt"
_usual = builtins.__import__


def _import(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "").split(".")[0]
    if importer in SEEN_BY and not level:
        if name in MODULES:
            raise ImportError(f"No module named {name!r} (hidden)")
        if name in _SHOWN:
            return _SHOWN[name]
    return _usual(name, globals, locals, fromlist, level)


builtins.__import__ = _import
