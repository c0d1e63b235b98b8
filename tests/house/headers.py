# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Each header compiles alone and twice, without a warning and without a flag of ours; a .hpp with
the plain host compiler, a .cuh with nvcc. With --together, all headers in one file: for the other
compilers and standards, and with the operators of half switched off."""
from pathlib import Path

from toolbox import WARNINGS, Memory, arguments, closure, headers, in_parallel, report, run, version

# What other projects switch off; headers must not rely on it.
NO_HALF = ["-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__",
           "-D__CUDA_NO_HALF2_OPERATORS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
           "-D__CUDA_NO_BFLOAT16_OPERATORS__", "-D__CUDA_NO_BFLOAT162_OPERATORS__"]


def command_for(options, is_nvcc):
    flags = (options.flags or "").split()
    if "no-half" in flags:
        flags.remove("no-half")
        flags += NO_HALF
    command = [options.compiler, f"-std={options.standard}"]
    if is_nvcc:
        # What Hopper alone has, and once, as it takes time, what is for all GPUs.
        command += ["-gencode=arch=compute_90a,code=sm_90a",
                    *(["-gencode=arch=compute_80,code=sm_80"] if options.together else []),
                    "-Xcompiler=" + ",".join(WARNINGS), "-Werror=all-warnings", *flags,
                    "-I", f"{options.root}/include", "-c", "-o", "/dev/null"]
    else:
        command += [*WARNINGS, *flags, "-fsyntax-only", "-I", f"{options.root}/include"]
        for folder in options.system:
            command += ["-isystem", folder]
    return command


def main():
    options = arguments(__doc__, "--compiler", "--standard", "--flags", "--together")
    is_nvcc = Path(options.compiler).name == "nvcc"
    if not is_nvcc:
        names = headers(options.root, ".hpp")
    elif options.together:
        names = headers(options.root, ".hpp", ".cuh")
    else:  # a .hpp alone is the host compiler's, which is quicker
        names = headers(options.root, ".cuh")
    command = command_for(options, is_nvcc)
    memory = Memory(options.work)
    stamp = Memory.digest(version(options.compiler), *command)

    def compile_one(group):
        digest = Memory.digest(stamp, *group, *(
            f"{name}\0{(Path(options.root) / 'include' / name).read_text()}"
            for name in closure(options.root, group)
        ))
        if memory.has(digest):
            return None
        label = "all" if len(group) > 1 else group[0].replace("/", "_")
        source = Path(options.work) / f"{digest[:12]}_{label}{'.cu' if is_nvcc else '.cpp'}"
        lines = [f"#include <{name}>\n" for name in group]
        source.write_text("".join(lines * 2) + "int used_by_nobody = 0;\n")
        status, output = run([*command, source])
        source.unlink()
        if status or output.strip():
            return f"{group[0] if len(group) == 1 else 'all headers'}:\n{output}"
        memory.add(digest)
        return None

    groups = [names] if options.together else [[name] for name in names]
    problems = [problem for problem in in_parallel(compile_one, groups) if problem]
    if not names:
        problems.append("no headers found")
    report(problems, f"{len(names)} headers compile: {' '.join(map(str, command))}")


main()
