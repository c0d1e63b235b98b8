# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of the house share: the headers of the library, compilers, and a memory of what
has passed, so that a second run compiles only what has changed."""
import argparse
import concurrent.futures
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"][^>"]+[>"])', re.MULTILINE)
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]


def includes(text):
    """The names that a source includes, with their brackets, in order."""
    return INCLUDE.findall(text)


def headers(root, *suffixes):
    """The public headers below `root`/include, as `diffkv/room/name.hpp`."""
    folder = Path(root) / "include"
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix in (suffixes or (".hpp",))
    )


def closure(root, names):
    """`names` and every diffkv header that they include."""
    seen, todo = set(), list(names)
    while todo:
        name = todo.pop()
        path = Path(root) / "include" / name
        if name not in seen and path.is_file():
            seen.add(name)
            todo += [i[1:-1] for i in includes(path.read_text()) if i.startswith("<diffkv/")]
    return sorted(seen)


def version(compiler):
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


class Memory:
    """Remembers passed work by a digest of all that went into it."""

    def __init__(self, work):
        self.folder = Path(work) / "passed"
        self.folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def digest(*parts):
        return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()

    def has(self, digest):
        return (self.folder / digest).exists()

    def add(self, digest):
        (self.folder / digest).touch()


def digest_of_files(paths):
    return Memory.digest(*(f"{path}\0{Path(path).read_bytes()!r}" for path in sorted(paths)))


def run(command, **options):
    """Runs `command`; (exit status, everything it printed)."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options,
    )
    return done.returncode, done.stdout


def in_parallel(function, items):
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("DIFFKV_JOBS", "2"))) as pool:
        return list(pool.map(function, items))


def arguments(description, *names):
    """Options that every script here takes, and `names`, each an option with one value."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--root", required=True, help="the project's folder")
    parser.add_argument("--work", required=True, help="a folder for what is generated")
    parser.add_argument("--system", action="append", default=[], help="a system include folder")
    for name in names:
        parser.add_argument(name)
    parsed = parser.parse_args()
    Path(parsed.work).mkdir(parents=True, exist_ok=True)
    return parsed


def report(problems, done):
    """Ends the test: with the problems, or with what has been found to be in order."""
    if problems:
        print("\n".join(problems))
        sys.exit(1)
    print(done)
