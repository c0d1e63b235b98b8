# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs a user's program that takes diffkv in one of four ways: `plain` (-I include and
nothing else), `subdirectory`, `fetch` (FetchContent from a local path) and `install` (install, move,
find_package). With cmake each is three lines; the user's project must stay as it was. `nvcc` is
`subdirectory` with both files of the program compiled by nvcc, also as relocatable device code."""
import json
import re
import shlex
import shutil
from pathlib import Path

from toolbox import (WARNINGS, Memory, arguments, digest_of_files, headers, report, run, version)

HERE = Path(__file__).parent
SOURCES = ["main.cpp", "other.cpp"]

# The three lines of each kind, and what the user's project is around them.
LINES = {
    "subdirectory": 'add_subdirectory("{root}" diffkv)',
    "fetch": 'include(FetchContent)\nFetchContent_Declare(diffkv SOURCE_DIR "{root}")\n'
             "FetchContent_MakeAvailable(diffkv)",
    "install": "find_package(diffkv 0.1 REQUIRED)",
}
PROJECT = """cmake_minimum_required(VERSION 3.24)
project(consumer LANGUAGES {languages})
enable_testing()
{before}
{lines}
{after}
add_executable(consumer {sources})
target_link_libraries(consumer PRIVATE diffkv::diffkv)
"""
# What the project had before must be the same after, except for names that say whose they are.
BEFORE = """
function(snapshot file)
  get_cmake_property(names CACHE_VARIABLES)
  get_directory_property(more VARIABLES)
  set(text "")
  foreach(name IN LISTS names more)
    if(NOT name MATCHES "^(names|more|file|text|name|ARG.*|_.*)$")
      string(REPLACE "\\n" " " value "${${name}}")
      string(APPEND text "${name}=${value}\\n")
    endif()
  endforeach()
  foreach(property IN ITEMS COMPILE_OPTIONS COMPILE_DEFINITIONS INCLUDE_DIRECTORIES LINK_OPTIONS)
    get_directory_property(value ${property})
    string(APPEND text "directory ${property}=${value}\\n")
  endforeach()
  file(WRITE ${CMAKE_BINARY_DIR}/${file} "${text}")
endfunction()
snapshot(before.txt)
"""
AFTER = "snapshot(after.txt)"
PARENT_CACHE = ["-DBUILD_SHARED_LIBS=ON", "-DCMAKE_BUILD_TYPE=", "-DCMAKE_CUDA_ARCHITECTURES=90",
                "-DFETCHCONTENT_FULLY_DISCONNECTED=ON", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
# Names that a subproject or a package may set, and new ones that it may not.
OF_A_PACKAGE = re.compile("FETCHCONTENT_|CMAKE_(MATCH|HAVE|THREAD|USE|PROJECT|CURRENT)_")
SHARED = re.compile("CMAKE_|BUILD_|CPACK_|CTEST_|CATCH_|BENCHMARK_")


class Failed(Exception):
    pass


def must(command, **options):
    status, output = run(command, **options)
    if status:
        raise Failed(f"{shlex.join(map(str, command))}\n{output}")
    return output


def must_be_silent(what, output):
    if re.search(r"(?i)warning|deprecat", output):
        raise Failed(f"{what} is not silent:\n{output}")


def write_program(folder, root, *suffixes):
    folder.mkdir(parents=True)
    for name in SOURCES:
        shutil.copy(HERE / name, folder)
    (folder / "all_headers.hpp").write_text(
        "#pragma once\n" + "".join(f"#include <{name}>\n" for name in headers(root, *suffixes)))


def plain(options, work):
    write_program(work, options.root)
    for standard in ["c++17", "c++20"]:
        command = [options.compiler, f"-std={standard}", *WARNINGS, "-I", work,
                   "-I", f"{options.root}/include"]
        for folder in options.system:
            command += ["-isystem", folder]
        program = work / f"program_{standard}"
        output = must([*command, *(work / name for name in SOURCES), "-o", program])
        must_be_silent("the compiler", output)
        must([program])


def check_commands(build):
    """The compile lines hold include folders and what the user's project asked for, no more."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])[1:]
        while words:
            word = words.pop(0)
            if word in ["-isystem", "-o", "-c", "-x", "-forward-unknown-to-host-compiler"]:
                words = words if word.startswith("-forward") else words[1:]
            elif "arch" in word and word != "--generate-code=arch=compute_90,code=[compute_90,sm_90]":
                raise Failed(f"the consumer's architecture became {word}")
            elif not word.startswith(("-I", "-isystem=", "-std=", "--generate-code", "-rdc=true", "-ccbin")):
                raise Failed(f"the consumer's compile line has {word}: {entry['command']}")


def check_variables(build):
    def read(name):
        lines = (build / name).read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    before, after = read("before.txt"), read("after.txt")
    changed = [
        f"{name}: '{before.get(name)}' became '{after.get(name)}'"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name) and not OF_A_PACKAGE.match(name)
        and (name in before or SHARED.match(name))
    ]
    if changed:
        raise Failed("variables of the consumer's project changed:\n" + "\n".join(changed))
    defaults = [f"{name}={value}" for name, value in after.items()
                if re.match("DIFFKV_(BUILD_|INSTALL)", name) and value == "ON"]
    if defaults:
        raise Failed("in a subproject these must be off: " + ", ".join(defaults))


def with_cmake(options, work, kind, more=(), languages="CXX"):
    source, build = work / "source", work / "build"
    write_program(source, options.root, ".hpp", *([".cuh"] if "CUDA" in languages else []))
    sources = SOURCES
    if "CUDA" in languages:
        sources = [(source / name).rename(source / name.replace(".cpp", ".cu")).name
                   for name in SOURCES]
    (source / "CMakeLists.txt").write_text(PROJECT.format(
        before=BEFORE, lines=LINES[kind].format(root=options.root), after=AFTER,
        sources=" ".join(sources), languages=languages))
    given = [f"-DDIFFKV_CUDA_INCLUDE_DIRS={options.cuda}"] if options.cuda else []
    configure = ["cmake", "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={options.compiler}", *given, *more]
    output = must([*configure, "-S", source, "-B", build, *PARENT_CACHE])
    must_be_silent("cmake", output)
    check_variables(build)
    check_commands(build)
    output = must(["cmake", "--build", build])
    must_be_silent("the build", output)
    must([build / "consumer"])
    if "Total Tests: 0" not in must(["ctest", "-N"], cwd=build):
        raise Failed("tests of ours are among the consumer's")
    fetched = [path.name for path in build.glob("_deps/*") if not path.name.startswith("diffkv")]
    if fetched:
        raise Failed(f"fetched for a consumer: {fetched}")
    return configure


def install(options, work):
    build, there, moved = work / "library", work / "prefix", work / "moved"
    given = [f"-DDIFFKV_CUDA_INCLUDE_DIRS={options.cuda}"] if options.cuda else []
    must(["cmake", "-G", "Ninja", "-S", options.root, "-B", build, *given,
          f"-DCMAKE_CXX_COMPILER={options.compiler}", "-DDIFFKV_BUILD_TESTS=OFF",
          "-DDIFFKV_BUILD_BENCH=OFF", "-DDIFFKV_BUILD_EXAMPLES=OFF"])
    must(["cmake", "--install", build, "--prefix", there])
    there.rename(moved)
    shutil.rmtree(build)
    toolkits = [folder for folder in options.system if not options.cuda]
    for path in moved.rglob("*.cmake"):
        for place in [options.root, build, there, *toolkits]:
            if str(place) in path.read_text():
                raise Failed(f"{path.name} holds the path {place}")
    for name in headers(options.root, ".hpp", ".cuh"):
        if not (moved / "include" / name).is_file():
            raise Failed(f"{name} is not installed")

    LINES["install"] = "find_package(diffkv 0.1 REQUIRED)\nfind_package(diffkv REQUIRED)"  # twice
    configure = with_cmake(options, work, "install", [f"-DCMAKE_PREFIX_PATH={moved}"])
    for newer in ["1.0", "0.2"]:
        source = work / f"newer_{newer}"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.24)\nproject(newer LANGUAGES CXX)\n"
            f"find_package(diffkv {newer} REQUIRED)\n")
        status, output = run([*configure, "-S", source, "-B", source / "build"])
        if not status or f'compatible with requested version "{newer}"' not in " ".join(
                output.split()):
            raise Failed(f"version {newer} was asked for and not refused:\n{output}")


def nvcc(options, work):
    for relocatable in ["OFF", "ON"]:
        with_cmake(options, work / relocatable, "subdirectory", languages="CXX CUDA", more=[
            f"-DCMAKE_CUDA_COMPILER={options.nvcc}",
            f"-DCMAKE_CUDA_SEPARABLE_COMPILATION={relocatable}"])


def main():
    options = arguments(__doc__, "--kind", "--compiler", "--cuda", "--nvcc")
    root = Path(options.root)
    memory = Memory(options.work)
    inputs = [path for folder in ["include", "scripts/cmake", "tests/consumers", "tests/house"]
              for path in (root / folder).rglob("*") if path.is_file()]
    digest = Memory.digest(options.kind, version(options.compiler), version("cmake"), options.cuda,
                           options.nvcc, *options.system, digest_of_files([*inputs, root / "CMakeLists.txt"]))
    problems = []
    if not memory.has(digest):
        work = Path(options.work) / f"{options.kind}-{Path(options.compiler).name}"
        shutil.rmtree(work, ignore_errors=True)
        try:
            if options.kind == "plain":
                plain(options, work)
            elif options.kind == "install":
                install(options, work)
            elif options.kind == "nvcc":
                nvcc(options, work)
            else:
                with_cmake(options, work, options.kind)
            memory.add(digest)
        except Failed as failure:
            problems.append(str(failure))
    report(problems, f"a consumer by way of {options.kind} builds and runs")


main()
