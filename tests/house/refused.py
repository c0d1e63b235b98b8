# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""A wrong configuration is refused, with the message that is meant for it. A case is a .cpp that
must not compile; each of its lines `// expect: text` must appear in what the compiler says. With
DIFFKV_TEST_ACCEPTED defined the same file must compile: so it is the mistake that is refused, and
nothing else in the file. A line `// flags: ...` adds flags for the compiler."""
import re
from pathlib import Path

from toolbox import Memory, arguments, closure, includes, report, run, version


def main():
    options = arguments(__doc__, "--compiler", "--source")
    source = Path(options.source)
    text = source.read_text()
    expected = re.findall(r"^// expect: (.*\S)", text, re.MULTILINE)
    flags = " ".join(re.findall(r"^// flags: (.*\S)", text, re.MULTILINE)).split()
    command = [options.compiler, "-std=c++17", "-fsyntax-only", *flags, "-I",
               f"{options.root}/include"]
    for folder in options.system:
        command += ["-isystem", folder]

    problems = []
    if not expected:
        problems.append(f"{source.name} expects no message")
    if "DIFFKV_TEST_ACCEPTED" not in text:
        problems.append(f"{source.name} has no DIFFKV_TEST_ACCEPTED half that compiles")
    memory = Memory(options.work)
    used = closure(options.root, [name[1:-1] for name in includes(text)])
    digest = Memory.digest(version(options.compiler), *command, text, *(
        (Path(options.root) / "include" / name).read_text() for name in used))
    if not problems and not memory.has(digest):
        status, output = run([*command, "-DDIFFKV_TEST_ACCEPTED", source])
        if status:
            problems.append(f"the right half of {source.name} does not compile:\n{output}")
        status, output = run([*command, source])
        if not status:
            problems.append(f"{source.name} compiles, it should be refused")
        for line in expected:
            if line not in output:
                problems.append(f"{source.name}: '{line}' is not in the message:\n{output}")
        if not problems:
            memory.add(digest)
    report(problems, "refused with: " + "; ".join(expected))


main()
