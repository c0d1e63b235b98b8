#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles the device operations for combinations of formats, scale groups, head sizes, element types
and GPUs, and on a machine with a GPU runs each beside its host twin.

  scripts/matrix.py                       the representatives: each value of each axis once
  scripts/matrix.py --ci                  one value of each axis beside the first ones; not linked
  scripts/matrix.py --pairs               every pair of values of two axes occurs; some tens
  scripts/matrix.py --all                 every combination of the axes; days of compile time, so
  scripts/matrix.py --all --part 3/500    the third of 500 equal parts
  scripts/matrix.py --all --only arch=90 --only head_dim=64,128 --only element=__half
  scripts/matrix.py --operation attention decode attention instead of the write path; `scores` is it
                                          with scores and candidates; `prefill` is prompt attention with
                                          importance, which knows no formats
  scripts/matrix.py --list                says what would be compiled
  scripts/matrix.py --run                 runs what was compiled for this machine's GPU
  scripts/matrix.py --programs FOLDER     runs the programs of an earlier call, compiles nothing

Programs and their sources stay in the folder --work (build/matrix); what has been compiled once and has
not changed since is not compiled again. The axes are the table AXES; the first value of each is the one
that the others are combined with where only representatives are wanted.
"""
import argparse
import concurrent.futures
import hashlib
import itertools
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

AXES = {
    "arch": ["90a", "90", "80", "86", "89", "100", "120"],
    "key_bits": ["8", "16", "4", "2"],
    "value_bits": ["4", "16", "8", "2", "1"],
    "key_groups": ["1", "2", "4"],
    "value_groups": ["1", "2", "4"],
    "head_dim": ["128", "64", "80", "96", "112", "256"],
    "tier": ["high", "low"],  # which one has the format; the other has the partner below
    "conditioning": ["none", "both", "centred", "rotated"],
    "element": ["__half", "__nv_bfloat16", "float"],
}
# The other tier of a cache that has two.
PARTNER = {"high": "format<4, 2, 1, {value_groups}>", "low": "format<8, 8, 1, {value_groups}>"}
CONDITIONING = {
    "none": "conditioning::none", "centred": "conditioning::centred",
    "rotated": "conditioning::rotated", "both": "conditioning::centred | conditioning::rotated",
}
# A check is a function of the tests that compiles an operation and, when run, compares it. What has no
# formats has axes of its own alone.
OPERATIONS = {
    "write": {
        "include": "compaction/write_path_case.cuh",
        "check": "same_write_path<{config}, {element}>()",
        "axes": {},
    },
    "attention": {
        "include": "attention/edges_case.cuh",
        "check": "check_edges<{config}, decode_variant<{group_size}>, {element}, {element}>()",
        "axes": {"group_size": ["4", "1", "2", "7", "8", "16"]},
    },
    "scores": {
        "include": "attention/scores_case.cuh",
        "check": "check_scores<{config}, decode_variant<{group_size}, {score_every}>, {element}>("
                 "policy_kind::paper)",
        "axes": {"group_size": ["4", "1", "2", "8"], "score_every": ["4", "1", "2"]},
    },
    "prefill": {
        "include": "prefill/prefill_case.cuh",
        "check": "prefill_case<{head_dim}, {element}, {out}>{{{{2, {group_size}}}, {{70, 1, 200}}}}.check()",
        "axes": {
            "arch": AXES["arch"],
            "head_dim": AXES["head_dim"],
            "group_size": ["4", "1", "2", "7"],
            "element": ["__half", "__nv_bfloat16"],
            "out": ["{element}", "float"],
        },
        "has_formats": False,
    },
}
CHUNK = 4  # combinations of one source: more compile faster together, fewer in parallel

SOURCE = """// Written by scripts/matrix.py.
#include "{include}"
#include <diffkv/policy/any_policy.hpp>

using namespace diffkv;
using namespace diffkv::test;
{tests}"""
TEST = """
TEST_CASE("matrix: {name}", "[matrix]")
{{
  {config}{check};
}}
"""
CONFIG = """using config = static_config<{policy}, {high}, {low}, {head_dim}, {conditioning}>;
  """
LEGAL = """#include <diffkv/quant/code_spec.hpp>
#include <cstdio>
int main()
{{
  int const all[][5] = {{{rows}}};
  for (auto const& a : all) {{
    diffkv::format_spec const format{{{{a[0], a[2]}}, {{a[1], a[3]}}}};
    std::puts(diffkv::is_legal(format, a[4]) ? "1" : "0");
  }}
}}
"""


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(command, **options):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", **options)
    return done.returncode, done.stdout


def must(command):
    status, output = run(command)
    if status:
        sys.exit(f"{' '.join(map(str, command))}\n{output}")
    return output


def format_of(c):
    return tuple(int(c[name]) for name in
                 ("key_bits", "value_bits", "key_groups", "value_groups", "head_dim"))


def legal_formats(axes, work, toolkit):
    """What the library allows: it is asked, so that nobody has to keep its rules here."""
    formats = [tuple(map(int, values)) for values in itertools.product(
        *(axes[name] for name in ("key_bits", "value_bits", "key_groups", "value_groups", "head_dim")))]
    source, program = work / "legal.cpp", work / "legal"
    source.write_text(LEGAL.format(rows=", ".join("{%s}" % ", ".join(map(str, f)) for f in formats)))
    must([os.environ.get("CXX", "g++"), "-std=c++17", "-I", ROOT / "include", "-isystem",
          toolkit / "include", source, "-o", program])
    return {f for f, answer in zip(formats, must([program]).split()) if answer == "1"}


def every_combination(axes, allowed):
    for values in itertools.product(*axes.values()):
        c = dict(zip(axes, values))
        if allowed(c):
            yield c


def representatives(axes, allowed):
    """The first values, and those that leave them in one axis."""
    base = {name: next(iter(values)) for name, values in axes.items()}
    rest = [{**base, name: value} for name in axes for value in axes[name] if value != base[name]]
    return [c for c in [base, *rest] if allowed(c)]


def one_of_each(axes, allowed):
    """The first values, and of each axis the last."""
    return representatives({name: dict.fromkeys([values[0], values[-1]])
                            for name, values in axes.items()}, allowed)


def all_pairs(axes, allowed):
    """Few combinations in which every legal pair of values of two axes occurs."""
    dice = random.Random(1)

    def pairs_of(c):
        return {(a, c[a], b, c[b]) for a, b in itertools.combinations(axes, 2)}

    def with_pair(a, x, b, y):
        """Up to 60 legal combinations that hold the pair."""
        tries = ({**{name: dice.choice(values) for name, values in axes.items()}, a: x, b: y}
                 for _ in range(2000))
        return list(itertools.islice((c for c in tries if allowed(c)), 60))

    wanted = [(a, x, b, y) for a, b in itertools.combinations(axes, 2)
              for x in axes[a] for y in axes[b]]
    seen, chosen = set(), []
    for pair in wanted:
        if pair in seen:
            continue
        candidates = with_pair(*pair)
        if candidates:  # else no legal one has it
            best = max(candidates, key=lambda c: len(pairs_of(c) - seen))
            seen |= pairs_of(best)
            chosen.append(best)
    return chosen


def name_of(c):
    if "key_bits" not in c:
        return " ".join(value.format(**c) for axis, value in c.items() if axis != "arch")
    name = f"k{c['key_bits']}v{c['value_bits']}"
    name += f"g{c['key_groups']}{c['value_groups']} {c['tier']} d{c['head_dim']}"
    rest = [c[key] for key in c if key not in
            ("key_bits", "value_bits", "key_groups", "value_groups", "tier", "head_dim", "arch")]
    return f"{name} {' '.join(rest)}"


def test_of(c, operation):
    if not operation.get("has_formats", True):
        c = {axis: value.format(**c) for axis, value in c.items()}
        return TEST.format(name=name_of(c), config="", check=operation["check"].format(**c))
    own = "format<{key_bits}, {value_bits}, {key_groups}, {value_groups}>".format(**c)
    other = PARTNER[c["tier"]].format(**c)
    high, low = (own, other) if c["tier"] == "high" else (other, own)
    check = operation["check"].format(**{**c, "config": "config"})
    policy = "any_policy" if "policy_kind" in check else "paper_policy"
    config = CONFIG.format(policy=policy, high=high, low=low, head_dim=c["head_dim"],
                           conditioning=CONDITIONING[c["conditioning"]])
    return TEST.format(name=name_of(c), config=config, check=check)


def digest_of_library():
    digest = hashlib.sha256()
    for folder in ["include", "tests"]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".hpp", ".cuh"):
                digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


class Builder:
    def __init__(self, work, nvcc, operation, is_linked):
        self.work, self.nvcc, self.operation = work, nvcc, operation
        self.is_linked = is_linked
        self.library = digest_of_library()
        self.main = work / "catch_main.o"
        if is_linked and not self.main.exists():
            must([os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-I", ROOT / "tests", "-c",
                  ROOT / "tests/support/catch_main.cpp", "-o", self.main])

    def build(self, chunk):
        """(program, problem or None) of some combinations for one GPU."""
        arch = chunk[0]["arch"]
        source = SOURCE.format(include=self.operation["include"],
                               tests="".join(test_of(c, self.operation) for c in chunk))
        digest = hashlib.sha256((self.library + arch + source).encode()).hexdigest()[:16]
        path = self.work / f"sm_{arch}_{digest}.cu"
        program = path.with_suffix("" if self.is_linked else ".o")
        if program.exists():
            return program, None
        path.write_text(source)
        status, output = run([
            self.nvcc, "-std=c++17", f"-arch=sm_{arch}", "-O1", "-DDIFFKV_CHECKED=1", "-I",
            ROOT / "include", "-I", ROOT / "tests", "-Werror=all-warnings",
            "-Xcompiler=-Wall,-Wextra", path, "-o", program, *(
                ["-cudart=static", "-Xcompiler=-static-libstdc++,-static-libgcc", self.main]
                if self.is_linked else ["-c"])])
        if status or output.strip():
            program.unlink(missing_ok=True)
            return program, f"{path.name}: {', '.join(map(name_of, chunk))}\n{output}"
        return program, None


def chunks_of(all_of_them):
    by_arch = {}
    for c in all_of_them:
        by_arch.setdefault(c["arch"], []).append(c)
    for same in by_arch.values():
        for first in range(0, len(same), CHUNK):
            yield same[first:first + CHUNK]


def archs_of_this_machine():
    status, output = run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    if status:
        sys.exit("--run and --programs need a GPU, and nvidia-smi finds none")
    arch = output.split()[0].replace(".", "")
    return [arch, "90a"] if arch == "90" else [arch]


def run_programs(programs):
    failed = 0
    for program in programs:
        status, output = run([program])
        failed += status != 0
        if status:
            say(output)
        say(f"{program.name}: {output.strip().splitlines()[-1] if output.strip() else 'no output'}")
    print(f"matrix: {len(programs) - failed} of {len(programs)} programs agree with their host twins")
    return failed == 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operation", choices=OPERATIONS, default="write")
    parser.add_argument("--all", action="store_const", const=every_combination, dest="choose",
                        default=representatives, help="every combination")
    parser.add_argument("--pairs", action="store_const", const=all_pairs, dest="choose",
                        help="every pair of values occurs")
    parser.add_argument("--ci", action="store_true", help="few combinations, compiled alone")
    parser.add_argument("--only", action="append", default=[], metavar="AXIS=VALUE,...",
                        help="values of an axis; may be given again for another")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="the I-th of N equal parts")
    parser.add_argument("--list", action="store_true", help="says what would be compiled")
    parser.add_argument("--run", action="store_true", help="runs what this machine's GPU can run")
    parser.add_argument("--programs", type=Path, help="runs the programs in a folder, nothing else")
    parser.add_argument("--work", type=Path, default=ROOT / "build/matrix")
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("DIFFKV_JOBS", "2")))
    return parser.parse_args()


def chosen_axes(options):
    operation = OPERATIONS[options.operation]
    axes = {**(AXES if operation.get("has_formats", True) else {}), **operation["axes"]}
    for choice in options.only:
        name, _, values = choice.partition("=")
        unknown = [v for v in values.split(",") if name not in axes or v not in axes[name]]
        if unknown:
            sys.exit(f"--only {choice}: the axes are " + "; ".join(
                f"{axis}={','.join(values)}" for axis, values in axes.items()))
        axes[name] = values.split(",")
    return axes


def main():
    options = arguments()
    if options.programs:
        archs = archs_of_this_machine()
        programs = [p for arch in archs for p in sorted(options.programs.glob(f"sm_{arch}_*"))
                    if not p.suffix]
        if not programs:
            sys.exit(f"{options.programs} holds no program for sm_{archs[0]}")
        sys.exit(0 if run_programs(programs) else 1)

    work = options.work / options.operation
    work.mkdir(parents=True, exist_ok=True)
    toolkit = Path(options.nvcc).resolve().parent.parent
    axes = chosen_axes(options)
    if OPERATIONS[options.operation].get("has_formats", True):
        legal = legal_formats(axes, work, toolkit)
        wanted = (one_of_each if options.ci else options.choose)(axes, lambda c: format_of(c) in legal)
    else:
        wanted = (one_of_each if options.ci else options.choose)(axes, lambda c: True)
    part, parts = map(int, options.part.split("/"))
    chunks = list(chunks_of(wanted))
    chunks = chunks[len(chunks) * (part - 1) // parts:len(chunks) * part // parts]
    count = sum(map(len, chunks))
    if options.list:
        for chunk in chunks:
            for c in chunk:
                print(f"sm_{c['arch']} {name_of(c)}")
        print(f"matrix: {count} combinations in {len(chunks)} sources")
        return

    builder = Builder(work, options.nvcc, OPERATIONS[options.operation], not options.ci)
    problems, programs = [], []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done, (program, problem) in enumerate(pool.map(builder.build, chunks), 1):
            (problems if problem else programs).append(problem or program)
            say(f"{done} of {len(chunks)}: {program.name}{' FAILED' if problem else ''}")
    for problem in problems:
        say(problem)
    print(f"matrix: {count} combinations in {len(chunks)} sources, {len(problems)} do not compile")
    agreed = True
    if options.run and not options.ci:
        mine = tuple(f"sm_{arch}_" for arch in archs_of_this_machine())
        agreed = run_programs([p for p in programs if p.name.startswith(mine)])
    sys.exit(1 if problems or not agreed else 0)


if __name__ == "__main__":
    main()
