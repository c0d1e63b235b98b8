# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""What the docs show is true of the tree: each C++ sample is cut from an example or a test, each path
and link exists, each test that is named exists, the tour opens each room once and names functions that are in the header beside them,
and "Read next" leads through all headers. With --wrong, checks that wrong docs are found out."""
import re
import sys
import tempfile
from pathlib import Path

from toolbox import headers

ROOMS = [
    "core", "policy", "quant", "page", "pool", "table", "compaction", "attention", "host", "cache",
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Paths as the docs spell them: a header by room/name.hpp, others from the project's folder.
HEADER = re.compile(r"`((?:%s|detail)/[a-z_0-9]+\.(?:hpp|cuh))`" % "|".join(ROOMS))
# Of rooms that the tour passes by, too.
ANY_HEADER = re.compile(HEADER.pattern.replace("|detail", "|detail|prefill"))
FILE = re.compile(r"`((?:include|examples|tests|bench|docs|scripts)/[A-Za-z_0-9./-]*[A-Za-z_0-9/])`")
LINK = re.compile(r"\]\(([^)#: ]+)(?:#[^)]*)?\)")
# A test case by its name, `unit: a sentence that is true`.
TEST = re.compile(r"`([a-z_0-9]+[a-z_0-9 ]*: [^`]*[^`.])`")
# `name` or `name` and `other` (`room/header.hpp`)
NAMED = re.compile(r"((?:`[a-z_0-9:]+`(?:,| and)?\s+)+)\(`((?:%s)/[a-z_0-9]+\.hpp)`" % "|".join(ROOMS))
STEP = re.compile(r"^## (\d+)\. (\w+): ", re.MULTILINE)
NEXT = re.compile(r"^//! .*Read next: ([a-z_0-9/.]+?)\.?$", re.MULTILINE)
BEFORE = re.compile(r"^//! Read before this: (.*?)\.(?:  |$)", re.MULTILINE)


def stripped(text):
    return [line.strip() for line in text.strip("\n").splitlines()]


def documents(root):
    paths = [*sorted((root / "docs").rglob("*.md")), root / "README.md"]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths if path.is_file()}


def sources(root):
    return {
        path.relative_to(root).as_posix(): stripped(path.read_text())
        for folder in ["examples", "tests"]
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in (".cpp", ".hpp", ".cu", ".cuh")
    }


def is_cut_from(sample, lines):
    """Whether `sample` is a run of whole lines of a file, indentation aside."""
    return any(lines[i:i + len(sample)] == sample for i in range(len(lines) - len(sample) + 1))


def problems_of(root):
    problems, samples = [], 0
    known = sources(root)
    for name, text in documents(root).items():
        for language, body in FENCE.findall(text):
            if language != "cpp":
                continue
            samples += 1
            sample = stripped(body)
            if not any(is_cut_from(sample, lines) for lines in known.values()):
                problems.append(f"{name}: no file in examples/ or tests/ has the sample: {sample[0]}")
        prose = FENCE.sub("", text)
        for header in ANY_HEADER.findall(prose):
            if not (root / "include" / "diffkv" / header).is_file():
                problems.append(f"{name}: {header} does not exist")
        for path in FILE.findall(prose):
            if not (root / path).exists() and "NAME" not in path and "NN_" not in path:
                problems.append(f"{name}: {path} does not exist")
        for test in TEST.findall(prose):
            if not any(f'"{test}"' in line for lines in known.values() for line in lines):
                problems.append(f"{name}: no test is called {test}")
        for link in LINK.findall(prose):
            if not (root / name).parent.joinpath(link).exists():
                problems.append(f"{name}: the link {link} leads nowhere")
    if not samples:
        problems.append("no samples found")
    return problems + tour_problems(root) + chain_problems(root)


def tour_problems(root):
    text = (root / "docs" / "tour.md").read_text()
    steps = STEP.findall(text)
    problems = []
    if steps != [(str(i), room) for i, room in enumerate(ROOMS, 1)]:
        problems.append(f"tour.md: steps are {steps}, must be the rooms in order, once each")
    for names, header in NAMED.findall(text):
        path = root / "include" / "diffkv" / header
        code = path.read_text() if path.is_file() else ""
        for name in re.findall(r"`([a-z_0-9:]+)`", names):
            if not re.search(rf"\b{name.split('::')[-1]}\b", code):
                problems.append(f"tour.md: {header} has no {name}")
    parts = STEP.split(text)
    for room, part in zip(parts[2::3], parts[3::3]):
        part = part.split("\n## ")[0]
        for header in HEADER.findall(part):
            if header.split("/")[0] != room:
                problems.append(f"tour.md: {header} is opened in the step of {room}")
    return problems


def chain_problems(root):
    """From detail/config.hpp, "Read next" visits every header of a room once, each after those that are
    to be read before it."""
    problems, visited, at = [], [], "detail/config.hpp"
    while at and at not in visited:
        path = root / "include" / "diffkv" / at
        if not path.is_file():
            problems.append(f"read next: {at} does not exist")
            break
        text = path.read_text()
        before = BEFORE.search(text)
        for other in before.group(1).split(", ") if before else []:
            if other not in visited:
                problems.append(f"{at}: comes before {other}, which is to be read first")
        if visited and not before:
            problems.append(f"{at}: does not say what to read before")
        visited.append(at)
        following = NEXT.search(text)
        at = following.group(1) if following else None
        if at in visited:
            problems.append(f"read next: {at} comes again")
    all_of_them = {header.removeprefix("diffkv/") for header in headers(root, ".hpp")}
    left = {header for header in all_of_them - set(visited) if not header.startswith("detail/")}
    return problems + [f"read next: {header} is left out" for header in sorted(left)]


def tree(changes):
    """A small project in order, with `changes` applied."""
    files = {
        "docs/tour.md": "".join(f"## {i}. {room}: x\n`thing` (`{room}/a.hpp`)\n"
                                for i, room in enumerate(ROOMS, 1)) +
                        "```cpp\n  int b;\n  int c;\n```\n[here](tour.md) `examples/1.cpp`\n",
        "examples/1.cpp": "int a;\nint b;\nint c;\n",
        "tests/1.cpp": "",
        "include/diffkv/detail/config.hpp": "//! Read next: core/a.hpp.\n",
    }
    chain = ["detail/config.hpp", *(f"{room}/a.hpp" for room in ROOMS)]
    for i, header in enumerate(chain[1:], 1):
        following = f"Read next: {chain[i + 1]}." if i + 1 < len(chain) else "The last room."
        files[f"include/diffkv/{header}"] = (
            f"//! Read before this: {chain[i - 1]}.  {following}\nint thing;\n")
    for name, (old, new) in changes.items():
        assert old in files[name], (name, old)
        files[name] = files[name].replace(old, new)
    return files


def found_in(changes):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in tree(changes).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return problems_of(root)


WRONG = {  # what has to be said about a change of the small project
    "no file in examples/ or tests/ has the sample: int b;":
        {"examples/1.cpp": ("int b;\n", "int b;\nint between;\n")},
    "examples/2.cpp does not exist": {"docs/tour.md": ("examples/1.cpp", "examples/2.cpp")},
    "the link away.md leads nowhere": {"docs/tour.md": ("(tour.md)", "(away.md)")},
    "no test is called thing: it works": {"docs/tour.md": ("`examples/1", "`thing: it works` `examples/1")},
    "page/b.hpp does not exist": {"docs/tour.md": ("page/a.hpp", "page/b.hpp")},
    "must be the rooms in order": {"docs/tour.md": ("5. pool", "5. page")},
    "host/a.hpp has no other": {"docs/tour.md": ("`thing` (`host/", "`other` (`host/")},
    "host/a.hpp is opened in the step of pool":
        {"docs/tour.md": ("`thing` (`pool/a.hpp`)", "`pool/a.hpp` `host/a.hpp`")},
    "quant/a.hpp: comes before policy/a.hpp, which is to be read first":
        {"include/diffkv/core/a.hpp": ("next: policy/", "next: quant/")},
    "read next: policy/a.hpp is left out":
        {"include/diffkv/core/a.hpp": ("next: policy/", "next: quant/")},
    "host/a.hpp: does not say what to read before":
        {"include/diffkv/host/a.hpp": ("Read before this: attention/a.hpp. ", "")},
    "read next: core/a.hpp comes again":
        {"include/diffkv/pool/a.hpp": ("next: table/", "next: core/")},
}


def main():
    if "--wrong" in sys.argv:
        problems = [f"not found out: {said}" for said, changes in WRONG.items()
                    if not any(said in problem for problem in found_in(changes))]
        problems += [f"wrongly found: {problem}" for problem in found_in({})]
        done = f"{len(WRONG)} wrong docs are found out"
    else:
        root = Path(sys.argv[1])
        problems = problems_of(root)
        done = f"{len(documents(root))} documents agree with the tree"
    print("\n".join(problems) if problems else done)
    sys.exit(bool(problems))


main()
