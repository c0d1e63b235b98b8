# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Configures the project where something is missing: what it says then is what to do, and what does
not need the missing thing still works. Nothing is downloaded."""
import re
import shutil
from pathlib import Path

from toolbox import arguments, report, run

NO_TOOLKIT = "-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON"
NO_CATCH = "-DCMAKE_DISABLE_FIND_PACKAGE_Catch2=ON"
NO_BENCHMARK = "-DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON"
PARTS = {"TESTS", "BENCH", "EXAMPLES"}


def main():
    options = arguments(__doc__)
    problems = []
    headers = "-DDIFFKV_CUDA_INCLUDE_DIRS=" + ";".join(options.system)
    old_catch = Path(options.work) / "old_catch"
    old_catch.mkdir(exist_ok=True)
    (old_catch / "Catch2Config.cmake").write_text("set(Catch2_VERSION 2.11.0)\n")
    (old_catch / "Catch2ConfigVersion.cmake").write_text(
        "set(PACKAGE_VERSION 2.11.0)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")

    def configure(what, parts, given, expected=None):
        """`expected`: part of the message it must fail with; None: it must work."""
        build = Path(options.work) / "configured"
        shutil.rmtree(build, ignore_errors=True)
        status, output = run([
            "cmake", "-S", options.root, "-B", build, "-G", "Ninja", "-DDIFFKV_BUILD_CUDA=OFF",
            "-DFETCHCONTENT_FULLY_DISCONNECTED=ON", *given,
            *(f"-DDIFFKV_BUILD_{part}={'ON' if part in parts else 'OFF'}" for part in PARTS)])
        words = " ".join(output.split())
        if bool(status) != (expected is not None) or (expected and expected not in words):
            problems.append(f"{what}: expected {expected or 'that it works'}\n{output}")
        if not status and "BENCH" in parts:
            _, listed = run(["ctest", "-N"], cwd=build)
            strangers = [line for line in listed.splitlines()
                         if re.match(r" *Test +#", line) and ": bench: " not in line]
            if strangers:
                problems.append(f"{what}: tests that are not ours:\n" + "\n".join(strangers))

    configure("no toolkit", [], [NO_TOOLKIT],
              "diffkv needs the headers of the CUDA Toolkit 13 or newer")
    configure("no toolkit, headers in the wrong place", [],
              [NO_TOOLKIT, f"-DDIFFKV_CUDA_INCLUDE_DIRS={options.work}"],
              "set DIFFKV_CUDA_INCLUDE_DIRS to folders that hold these headers")
    configure("no toolkit, headers named", [], [NO_TOOLKIT, headers])
    configure("no Catch2", ["TESTS"], [headers, NO_CATCH], "need Catch2 2.13 or newer")
    configure("an old Catch2", ["TESTS"], [headers, f"-DCatch2_DIR={old_catch}"],
              "need Catch2 2.13 or newer")
    configure("no Catch2, no tests", ["EXAMPLES"], [headers, NO_CATCH])
    if any((Path(options.root) / "bench").rglob("*_bench.cpp")):
        configure("no Google Benchmark", ["BENCH"], [headers, NO_BENCHMARK],
                  "need Google Benchmark")
        configure("benches alone", ["BENCH"], [headers])
    report(problems, "each says what to do")


main()
