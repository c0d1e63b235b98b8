#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the program of the Llama3 example as a user and as a script do: small models made here, and
the real one if it is there.

    program_test.py PROGRAM [unittest arguments]
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
import tiny_model_folder as tiny

ROOT = Path(__file__).resolve().parents[2]
MODELS = Path(os.environ.get("DIFFKV_MODELS", ROOT / "build" / "models"))
REAL_MODEL = MODELS / "SmolLM2-135M-Instruct"
PROGRAM = None

KEYS = {"device", "tokens_per_second", "prompt_tokens", "new_tokens", "kv_bytes_ratio",
        "nominal_bytes_ratio", "tiers", "prompt_seconds", "generate_seconds", "prompt_time",
        "generate_time", "finish", "formats", "page_bytes", "pages", "kv_bytes",
        "kv_bytes_nominal", "kv_bytes_16bit"}  # fmt: skip
COMPARED = {"kl", "agreement", "perplexity_ratio", "positions"}
UNCOMPRESSED = ["--high", "k16v16", "--low", "none", "--policy", "paper", "--threshold-high", "0",
                "--threshold-low", "0", "--conditioning", "none"]  # fmt: skip


def run(*arguments, input=b"", env=None):
    """On the CPU, which takes any model and setting, unless the arguments choose a device."""
    if "--device" not in arguments:
        arguments = ["--device", "cpu", *arguments]
    return subprocess.run(
        [PROGRAM, *map(str, arguments)], input=input, capture_output=True, timeout=300, check=False,
        env=env)  # fmt: skip


def alphabet(token):
    """a, b, c, ..., z, a, ...; anything else is followed by a."""
    return token + 1 if ord("a") <= token < ord("z") else ord("a")


class WithModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.TemporaryDirectory(prefix="diffkv_program_test_")
        folder = Path(cls.work.name)
        cls.alphabet = tiny.make_folder(folder / "alphabet", tiny.weights(alphabet))
        cls.random = tiny.make_folder(folder / "random", tiny.weights())

    @classmethod
    def tearDownClass(cls):
        cls.work.cleanup()

    def folder(self, name):
        return Path(self.work.name) / name

    def answer(self, *arguments, input=b"", env=None):
        """@return (text before the report, the JSON report, standard error)"""
        done = run(*arguments, "--report", "json", input=input, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        text, _, report = done.stdout.decode().rstrip("\n").rpartition("\n")
        return text, json.loads(report), done.stderr.decode()


class Answers(WithModels):
    def test_a_text_is_continued_and_reported(self):
        text, report, _ = self.answer(
            "--model", self.alphabet, "--raw", "--prompt", "xyzab", "--max-tokens", "6")
        self.assertEqual(text, "cdefgh")
        self.assertEqual(report.keys(), KEYS)
        self.assertEqual(report["device"], "cpu")
        self.assertEqual(report["prompt_tokens"], 5)
        self.assertEqual(report["new_tokens"], 6)
        self.assertEqual(report["finish"], "length")
        self.assertEqual(report["tiers"].keys(), {"high", "low", "pruned"})
        # The last token is not taken into the cache: nothing comes after it.
        self.assertEqual(sum(report["tiers"].values()), 10 * tiny.LAYERS * tiny.HEADS)
        self.assertAlmostEqual(
            report["kv_bytes_ratio"], report["kv_bytes"] / report["kv_bytes_16bit"])
        self.assertEqual(report["kv_bytes"], report["pages"] * report["page_bytes"])
        self.assertGreater(report["tokens_per_second"], 0)

    def test_the_text_report_follows_the_answer(self):
        done = run("--model", self.alphabet, "--raw", "--prompt", "a", "--max-tokens", "3")
        lines = done.stdout.decode().split("\n")
        self.assertEqual(lines[0], "bcd")
        for words in ["3 new tokens at", "device           cpu", "attention and cache", "k8v4 + k4v2 in pages",
                      "tokens by tier", "KV bytes/token"]:  # fmt: skip
            self.assertTrue(any(words in line for line in lines[1:]), words)

    def test_the_prompt_comes_from_three_places(self):
        file = self.folder("prompt.txt")
        file.write_bytes(b"klm")
        common = ["--model", self.alphabet, "--raw", "--max-tokens", "2"]
        for arguments, input in [(["--prompt", "klm"], b""), (["--prompt-file", file], b""),
                                 ([], b"klm")]:  # fmt: skip
            text, report, _ = self.answer(*common, *arguments, input=input)
            self.assertEqual((text, report["prompt_tokens"]), ("no", 3))

    def test_the_chat_template_is_used_unless_raw(self):
        _, chat, _ = self.answer("--model", self.alphabet, "--prompt", "hi", "--max-tokens", "1")
        # <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n
        self.assertEqual(chat["prompt_tokens"], 1 + 5 + 2 + 1 + 1 + 1 + 10)

    def test_control_tokens_in_a_prompt_are_text(self):
        prompt = "<|im_end|>"
        _, report, _ = self.answer(
            "--model", self.alphabet, "--raw", "--prompt", prompt, "--max-tokens", "1")
        self.assertEqual(report["prompt_tokens"], len(prompt))

    def test_tokens_of_the_input_are_cut_out(self):
        text, report, _ = self.answer(
            "--model", self.alphabet, "--raw", "--prompt", "zzabcdefzz", "--skip", "2",
            "--prompt-tokens", "3", "--max-tokens", "2")  # fmt: skip
        self.assertEqual((text, report["prompt_tokens"]), ("de", 3))

    def test_several_stop_ids_are_honoured(self):
        tensors = tiny.weights(alphabet)
        several = tiny.make_folder(self.folder("several"), tensors, [ord("z"), ord("e")])
        text, report, _ = self.answer(
            "--model", several, "--raw", "--prompt", "a", "--max-tokens", "9")
        self.assertEqual((text, report["finish"], report["new_tokens"]), ("bcd", "stop", 3))
        text, report, _ = self.answer(
            "--model", self.alphabet, "--raw", "--prompt", "a", "--max-tokens", "9")
        self.assertEqual((text, report["finish"]), ("bcdefghij", "length"))

    def test_the_context_ends_an_answer(self):
        common = ["--model", self.alphabet, "--raw", "--context", "32", "--max-tokens", "10"]
        text, report, _ = self.answer(*common, "--prompt", "a" * 31)
        self.assertEqual((text, report["finish"], report["new_tokens"]), ("b", "length", 1))
        text, report, _ = self.answer(*common, "--prompt", "a" * 32)
        self.assertEqual((text, report["finish"], report["new_tokens"]), ("", "length", 0))
        self.assertEqual(sum(report["tiers"].values()), 32 * tiny.LAYERS * tiny.HEADS)
        done = run(*common, "--prompt", "a" * 33)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr.decode(), r"33 .*32")

    def test_an_empty_prompt_works_from_the_beginning_of_a_text(self):
        with_bos = tiny.make_folder(self.folder("bos"), tiny.weights(alphabet), bos=True)
        text, report, _ = self.answer(
            "--model", with_bos, "--raw", "--prompt", "", "--max-tokens", "3")
        self.assertEqual((text, report["prompt_tokens"]), ("abc", 1))
        _, report, _ = self.answer("--model", self.alphabet, "--prompt", "", "--max-tokens", "3")
        self.assertEqual(report["new_tokens"], 3)  # the template has something to start from
        done = run("--model", self.alphabet, "--raw", "--prompt", "")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("prompt is empty", done.stderr.decode())

    def test_what_is_said_is_valid_utf_8_at_every_flush(self):
        # After '!': characters of 2, 3 and 4 bytes, a byte that begins one which does not come, and
        # a byte that begins none; then all over again.
        said = b"!" + "é€𝄞".encode() + b"\xd0ok\xff."
        follows = {said[i]: said[i + 1] for i in range(len(said) - 1)}
        folder = tiny.make_folder(
            self.folder("utf8"), tiny.weights(lambda t: follows.get(t, ord("!"))))
        once = "é€𝄞\ufffdok\ufffd.!"
        for tokens, expected in [(15, once), (30, 2 * once), (1, "\ufffd"), (4, "é\ufffd")]:
            command = [PROGRAM, "--device", "cpu", "--model", folder, "--raw", "--prompt", "!", "--max-tokens",
                       str(tokens)]  # fmt: skip
            chunks = []
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as process:
                while chunk := os.read(process.stdout.fileno(), 1 << 16):
                    chunks.append(chunk.decode())  # each is whole characters, or this throws
            self.assertEqual(process.returncode, 0)
            self.assertEqual("".join(chunks).split("\n")[0], expected)

    def test_progress_goes_to_standard_error_line_by_line(self):
        done = run("--model", self.random, "--raw", "--prompt", "a" * 300, "--max-tokens", "1")
        error = done.stderr.decode()
        self.assertNotIn("\r", error)
        self.assertRegex(error, r"(?m)^reading the prompt: 1/2$")
        self.assertRegex(error, r"(?m)^reading the prompt: 2/2$")
        self.assertNotIn("reading the prompt", done.stdout.decode("utf-8"))

    def test_key_offsets_are_calibrated_once(self):
        folder = self.folder("calibrated")
        shutil.copytree(self.alphabet, folder)
        (folder / "diffkv_key_offsets.safetensors").unlink(missing_ok=True)
        common = ["--model", folder, "--raw", "--prompt", "a", "--max-tokens", "1"]
        self.assertIn("calibrating", self.answer(*common)[2])
        self.assertTrue((folder / "diffkv_key_offsets.safetensors").exists())
        self.assertNotIn("calibrating", self.answer(*common)[2])
        other = self.folder("other.txt")
        other.write_text("Another text to calibrate on.")
        self.assertIn("calibrating", self.answer(*common, "--calibrate", other)[2])

    def test_every_setting_of_the_cache_answers(self):
        for policy in ["paper", "artifact", "relative", "static"]:
            for conditioning in ["none", "centred", "rotated", "centred+rotated"]:
                for formats in [("k8v4", "k4v2"), ("k8v8", "none"), ("k2v1", "k2v1")]:
                    _, report, _ = self.answer(
                        "--model", self.random, "--raw", "--prompt", "Some words. " * 10,
                        "--max-tokens", "12", "--policy", policy, "--conditioning", conditioning,
                        "--high", formats[0], "--low", formats[1], "--window", "8",
                        "--threshold-high", "1", "--threshold-low", "0.1", "--budget", "20",
                        "--clip", "0.9", "--score-every", "2", "--threads", "1")  # fmt: skip
                    self.assertEqual(report["new_tokens"], 12)


class Devices(WithModels):
    NO_GPU = os.environ | {"CUDA_VISIBLE_DEVICES": ""}

    def test_a_gpu_that_is_not_there_is_refused_if_it_is_asked_for(self):
        done = run("--device", "cuda", "--model", self.alphabet, "--raw", "--prompt", "a",
                   env=self.NO_GPU)  # fmt: skip
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertRegex(done.stderr.decode(), r"^--device cuda: [^\n]+\n$")

    def test_many_requests_need_a_gpu(self):
        file = self.folder("requests.txt")
        file.write_bytes(b"a\nb\n")
        for device, code, said in [("auto", 1, "--requests: .*need a GPU, but "),
                                   ("cpu", 2, "--requests: .*need --device cuda"),
                                   ("cuda", 1, "--device cuda: ")]:  # fmt: skip
            done = run("--device", device, "--model", self.alphabet, "--raw", "--requests", file,
                       env=self.NO_GPU)  # fmt: skip
            self.assertEqual((done.returncode, done.stdout), (code, b""))
            self.assertRegex(done.stderr.decode(), f"^{said}[^\n]*\n$")
        file.write_bytes(b"\n\r\n")
        done = run("--device", "auto", "--model", self.alphabet, "--requests", file)
        self.assertEqual((done.returncode, done.stdout), (2, b""))
        self.assertRegex(done.stderr.decode(), "--requests .*: there is no prompt in it\n")
        done = run("--device", "auto", "--model", self.alphabet, "--requests", "/proc/self/mem")
        self.assertEqual((done.returncode, done.stdout), (2, b""))
        self.assertEqual(done.stderr, b"--requests /proc/self/mem: cannot be read\n")

    def test_without_a_gpu_auto_is_the_cpu(self):
        common = ["--model", self.alphabet, "--raw", "--prompt", "a", "--max-tokens", "3",
                  "--conditioning", "none"]  # fmt: skip
        text, report, error = self.answer("--device", "auto", *common, env=self.NO_GPU)
        self.assertEqual((text, report["device"]), ("bcd", "cpu"))
        self.assertEqual(report["generate_time"].keys(),
                         {"matrices", "attention", "other", "device"})  # fmt: skip
        self.assertEqual(error, self.answer("--device", "cpu", *common)[2])


class OnAGpu(WithModels):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder, heads = Path(cls.work.name), tiny.ON_GPU
        cls.alphabet = tiny.make_folder(folder / "alphabet_64x3", tiny.weights(alphabet, heads=heads), heads=heads)
        cls.random = tiny.make_folder(folder / "random_64x3", tiny.weights(heads=heads), heads=heads)
        for settings in [[], UNCOMPRESSED + ["--score-every", "0"]]:
            done = run("--device", "cuda", "--model", cls.alphabet, "--raw", "--prompt", "a", "--max-tokens", "1",
                       *settings)  # fmt: skip
            if done.returncode != 0 and done.stderr.startswith(b"--device cuda: "):
                cls.tearDownClass()
                raise unittest.SkipTest(done.stderr.decode().rstrip("\n"))

    def test_a_text_is_continued_and_reported(self):
        for device in ["cuda", "auto"]:
            text, report, _ = self.answer("--device", device, "--model", self.alphabet, "--raw", "--prompt", "xyzab",
                                          "--max-tokens", "6")  # fmt: skip
            self.assertEqual((text, report["device"], report["finish"]), ("cdefgh", "cuda", "length"))
            self.assertEqual((report["prompt_tokens"], report["new_tokens"]), (5, 6))
            self.assertEqual(sum(report["tiers"].values()), 10 * tiny.LAYERS * tiny.ON_GPU[1])

    def test_caches_are_compared(self):
        _, report, _ = self.answer("--device", "cuda", "--model", self.random, "--raw", "--prompt", "Some words. " * 9,
                                   "--prompt-tokens", "90", "--compare", "5")  # fmt: skip
        self.assertEqual(report.keys(), KEYS | COMPARED)
        self.assertEqual((report["device"], report["prompt_tokens"], report["new_tokens"]), ("cuda", 90, 5))
        self.assertEqual(len(report["positions"]), 5)
        self.assertGreater(report["kl"], 0)
        self.assertLess(report["kl"], 1)

    def serve(self, *arguments):
        """Eight prompts. @return (answers by index, the JSON report)"""
        file = self.folder("eight.txt")
        file.write_text("".join(f"Chapter {i}, and the letter {letter}\n" for i, letter in enumerate("abcdefgh")))
        done = run("--device", "cuda", "--model", self.alphabet, "--raw", "--requests", file, "--max-tokens", "250",
                   "--report", "json", *UNCOMPRESSED, "--score-every", "0", *arguments)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        *answers, report = map(json.loads, done.stdout.splitlines())
        return {answer["index"]: answer for answer in answers}, report

    def test_requests_are_answered_with_memory_for_half_of_them(self):
        answers, report = self.serve()
        self.assertEqual((report["device"], report["requests"], report["preemptions"]), ("cuda", 8, 0))
        page_bytes = self.answer("--model", self.alphabet, "--raw", "--prompt", "a", "--max-tokens", "1",
                                 *UNCOMPRESSED)[1]["page_bytes"]  # fmt: skip
        less, half = self.serve("--kv-bytes", report["pages"] // 2 * page_bytes)
        self.assertEqual((half["pages"], half["no_memory"]), (report["pages"] // 2, 0))
        self.assertGreater(half["preemptions"], 0)
        for index, letter in enumerate(b"abcdefgh", 1):
            expected = "".join(chr(ord("a") + (letter - ord("a") + i) % 26) for i in range(1, 251))
            for answer in answers[index], less[index]:
                self.assertEqual((answer["text"], answer["finish"]), (expected, "length"))

    def test_what_cannot_work_is_refused_in_one_line_before_weights_are_read(self):
        file = self.folder("one.txt")
        file.write_text("abc\n")
        without_weights = self.folder("without_weights")
        shutil.copytree(self.alphabet, without_weights)
        (without_weights / "model.safetensors").unlink()
        for expected, *arguments in [
            (r"--kv-bytes 1: must be at least a page", "--requests", file, "--kv-bytes", "1"),
            (r"--kv-bytes \d+: must be", "--requests", file, "--kv-bytes", 2**62),
            (r"--device cuda: .*64x3/k2v1\+k2v1/4/centred\+rotated, .*or --device cpu", "--prompt", "a",
             "--high", "k2v1", "--low", "k2v1"),
            (r"--device cuda: .*64x3/k2v1/4/centred\+rotated, ((?!--device cpu).)*", "--requests", file,
             "--high", "k2v1", "--low", "none"),
        ]:  # fmt: skip
            done = run("--device", "cuda", "--model", without_weights, "--raw", *arguments)
            self.assertEqual((done.returncode, done.stdout), (1, b""))
            self.assertRegex(done.stderr.decode(), f"^{expected}[^\n]*\n$")


class Sampling(WithModels):
    def text(self, *arguments):
        return self.answer(
            "--model", self.random, "--raw", "--prompt", "Once", "--max-tokens", "24",
            *arguments)[0]  # fmt: skip

    def test_the_same_seed_gives_the_same_text(self):
        seeded = ["--temperature", "1", "--top-p", "0.95", "--seed"]
        first = self.text(*seeded, "7")
        for _ in range(5):
            self.assertEqual(self.text(*seeded, "7"), first)
        self.assertEqual(self.text(*seeded, "7", "--threads", "1"), first)

    def test_other_seeds_give_other_texts(self):
        texts = {self.text("--temperature", "1", "--seed", seed) for seed in range(6)}
        self.assertEqual(len(texts), 6)

    def test_temperature_0_needs_no_seed(self):
        self.assertEqual(self.text("--seed", "1"), self.text("--seed", "2"))


class Comparison(WithModels):
    def compare(self, *arguments):
        return self.answer(
            "--model", self.random, "--raw", "--prompt", "The quick brown fox. " * 8,
            "--skip", "5", "--prompt-tokens", "100", "--compare", "30", *arguments)  # fmt: skip

    def test_caches_are_compared_token_by_token(self):
        text, report, error = self.compare("--window", "16")
        self.assertEqual(text, "")
        self.assertEqual(report.keys(), KEYS | COMPARED)
        self.assertEqual((report["prompt_tokens"], report["new_tokens"]), (100, 30))
        self.assertEqual(report["finish"], "compare")
        self.assertEqual(len(report["positions"]), 30)
        kl = [position["kl"] for position in report["positions"]]
        self.assertAlmostEqual(report["kl"], sum(kl) / 30)
        agreeing = sum(position["agrees"] for position in report["positions"])
        self.assertAlmostEqual(report["agreement"], agreeing / 30)
        self.assertGreater(report["kl"], 0)
        self.assertLess(report["kl"], 1)
        self.assertEqual(sum(report["tiers"].values()), 130 * tiny.LAYERS * tiny.HEADS)
        for cache in ["16-bit", "compressed"]:  # the prompt once per cache
            self.assertEqual(error.count(f"{cache} cache, reading the prompt: 2/2"), 1)

    def test_16_bits_against_16_bits_is_exactly_nothing(self):
        _, report, _ = self.compare(*UNCOMPRESSED)
        self.assertEqual((report["kl"], report["agreement"]), (0, 1))
        self.assertEqual(report["perplexity_ratio"], 1)
        self.assertEqual(report["nominal_bytes_ratio"], 1)

    def test_fewer_bits_cost_more(self):
        nothing_pruned = ["--low", "none", "--policy", "paper", "--conditioning", "none"]
        kl = [self.compare("--high", high, *nothing_pruned)[1]["kl"]
              for high in ("k8v8", "k8v4", "k2v2")]  # fmt: skip
        self.assertLess(kl[0], kl[1])
        self.assertLess(kl[1], kl[2])

    def test_more_tokens_than_the_context_holds_are_refused(self):
        done = run("--model", self.random, "--raw", "--prompt", "a" * 500, "--compare", "30")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr.decode(), r"--compare 30.*500.*512")
        done = run("--model", self.random, "--raw", "--prompt", "abc", "--compare", 2**31 - 1)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode(), r"^--compare 2147483647.*3 prompt tokens.*512\n$")


class Refusals(WithModels):
    def refused(self, expected, *arguments, model=None, input=b""):
        begin = time.monotonic()
        done = run("--model", model or self.alphabet, *arguments, input=input)
        error = done.stderr.decode()
        with self.subTest(arguments=arguments, error=error):
            self.assertNotEqual(done.returncode, 0)
            self.assertGreater(done.returncode, 0)  # no signal
            self.assertEqual(done.stdout, b"")
            self.assertEqual(error.count("\n"), 1)
            self.assertRegex(error, expected)
            self.assertLess(time.monotonic() - begin, 20)

    def changed(self, name):
        folder = self.folder(f"changed_{name}")
        shutil.copytree(self.alphabet, folder)
        return folder

    def test_wrong_options_say_what_is_legal(self):
        prompt = ["--raw", "--prompt", "abc"]
        for expected, *arguments in [
            (r"--high.*k8.*use kXvY", "--high", "k8"),
            (r"--low.*k3v3.*use kXvY", "--low", "k3v3"),
            (r"--policy.*h2o.*paper, artifact, relative or static", "--policy", "h2o"),
            (r"--conditioning.*none, centred, rotated or centred\+rotated", "--conditioning", "x"),
            (r"--threshold-high 1.*--threshold-low 2", "--threshold-high", "1",
             "--threshold-low", "2"),
            (r"--window.*1", "--window", "0"),
            (r"--score-every.*0,1,2,4", "--score-every", "3"),
            (r"--clip 2", "--clip", "2"),
            (r"top-p", "--top-p", "0"),
            (r"temperature", "--temperature", "-1"),
            (r"--report.*text,json", "--report", "xml"),
            (r"--device.*auto,cuda,cpu", "--device", "gpu"),
            (r"--context 600.*512", "--context", "600"),
            (r"--skip 4.*3 tokens", "--skip", "4"),
            (r"3 tokens.*context holds 2", "--context", "2"),
            (r"--calibrate", "--calibrate", "/nowhere.txt"),
            (r"--nonsense", "--nonsense"),
        ]:  # fmt: skip
            self.refused(expected, *prompt, *arguments)
        self.refused(r"--prompt-file.*/nowhere.txt", "--prompt-file", "/nowhere.txt")
        self.refused(r"need --raw", "--prompt", "abc", "--skip", "1")
        self.refused(r"600 tokens.*512", "--raw", input=b"a" * 600)

    def test_a_model_that_is_not_there_or_damaged_is_refused(self):
        prompt = ["--raw", "--prompt", "abc"]
        self.refused(r"/nowhere", *prompt, model="/nowhere")
        missing = self.changed("missing")
        (missing / "model.safetensors").unlink()
        self.refused(r"model\.safetensors", *prompt, model=missing)
        truncated = self.changed("truncated")
        whole = (truncated / "model.safetensors").read_bytes()
        for size in [0, 4, 100, len(whole) // 2, len(whole) - 1]:
            (truncated / "model.safetensors").write_bytes(whole[:size])
            self.refused(r"model\.safetensors", *prompt, model=truncated)
        incomplete = self.changed("incomplete")
        tensors = tiny.weights(alphabet)
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tiny.write_safetensors(incomplete / "model.safetensors", tensors)
        self.refused(r"model\.layers\.1\.mlp\.up_proj\.weight", *prompt, model=incomplete)
        for name in ["config.json", "tokenizer.json"]:
            folder = self.changed(f"no_{name}")
            (folder / name).unlink()
            self.refused(re.escape(name), *prompt, model=folder)
            (folder / name).write_text("{ damaged")
            self.refused(re.escape(name), *prompt, model=folder)

    def test_what_is_not_known_is_refused_by_name(self):
        prompt = ["--raw", "--prompt", "abc"]
        unknown = self.changed("dtype")
        whole = (unknown / "model.safetensors").read_bytes()
        (unknown / "model.safetensors").write_bytes(whole.replace(b'"F32"', b'"X99"', 1))
        self.refused(r"X99", *prompt, model=unknown)
        for key, value, expected in [
            ("architectures", ["GPTNeoXForCausalLM"], "GPTNeoXForCausalLM"),
            ("quantization_config", {"quant_method": "gptq", "bits": 4}, "gptq|quanti"),
            ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "yarn"),
            ("head_dim", 72, "head_dim"),
        ]:
            folder = self.changed(f"config_{key}")
            (folder / "config.json").write_text(json.dumps(tiny.config() | {key: value}))
            self.refused(expected, *prompt, model=folder)

    def test_a_model_without_template_says_how_to_go_on(self):
        folder = tiny.make_folder(
            self.folder("no_template"), tiny.weights(alphabet), template=None)
        self.refused(r"--raw", "--prompt", "abc", model=folder)

    def test_an_empty_calibration_text_is_refused(self):
        empty = self.folder("empty.txt")
        empty.write_text("")
        self.refused(r"empty\.txt.*--calibrate", "--raw", "--prompt", "abc", "--calibrate", empty)

    def test_help_is_no_refusal(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        text = done.stdout.decode()
        for group in ["Model and prompt:", "Cache:", "Answer:", "Run and report:"]:
            self.assertIn(group, text)
        self.assertIn("--conditioning none --policy paper --threshold-high 1 "
                      "--threshold-low 0.02 --score-every 1", text)  # fmt: skip


@unittest.skipUnless((REAL_MODEL / "model.safetensors").exists(),
                     f"{REAL_MODEL} is not there; scripts/get_model.py makes it")  # fmt: skip
class RealModel(WithModels):
    def test_a_question_gets_a_fluent_answer(self):
        text, report, _ = self.answer(
            "--model", REAL_MODEL, "--prompt", "What is the capital of France?",
            "--max-tokens", "48")  # fmt: skip
        print(f"\n  {text!r}\n  prompt of {report['prompt_tokens']} tokens in "
              f"{report['prompt_seconds']:.2f} s, {report['tokens_per_second']:.1f} tokens/s, "
              f"{100 * report['kv_bytes_ratio']:.0f} % of the bytes at 16 bits",
              file=sys.stderr)  # fmt: skip
        self.assertIn("Paris", text)
        self.assertEqual(report["finish"], "stop")
        self.assertLess(report["kv_bytes_ratio"], 1)

    def test_pages_of_16_bits_and_compressed_ones_say_the_same_here(self):
        common = ["--model", REAL_MODEL, "--prompt", "What is the capital of France?",
                  "--max-tokens", "12"]  # fmt: skip
        self.assertEqual(self.answer(*common)[0], self.answer(*common, *UNCOMPRESSED)[0])

    def serve(self, file, *arguments):
        """@return (answers by index, the JSON report)"""
        done = run("--device", "cuda", "--model", REAL_MODEL, "--requests", file, "--report", "json",
                   *arguments)  # fmt: skip
        error = done.stderr.decode()
        if done.returncode != 0 and error.startswith("--device cuda:"):
            self.skipTest(error.splitlines()[0])
        self.assertEqual(done.returncode, 0, error)
        *answers, report = map(json.loads, done.stdout.splitlines())
        return {answer["index"]: answer for answer in answers}, report

    def test_many_requests_are_answered_at_the_same_time(self):
        file = self.folder("questions.txt")
        countries = ["France", "Italy", "Spain", "Japan"]
        file.write_text("".join(f"What is the capital of {c}?\n\n" for c in countries))
        answers, report = self.serve(file, "--max-tokens", "48")
        self.assertEqual(sorted(answers), [1, 2, 3, 4])
        for index, city in enumerate(["Paris", "Rome", "Madrid", "Tokyo"], 1):
            self.assertIn(city, answers[index]["text"])
            self.assertEqual(answers[index]["finish"], "stop")
        self.assertEqual((report["requests"], report["peak_batch"]), (4, 4))
        self.assertEqual((report["preemptions"], report["no_memory"]), (0, 0))

    def test_memory_for_half_of_the_requests_finishes_all(self):
        file = self.folder("texts.txt")
        file.write_text("".join(f"Chapter {i}. Once upon a time there was\n" for i in range(8)))
        common = ["--raw", "--max-tokens", "250", *UNCOMPRESSED, "--score-every", "0"]
        answers, report = self.serve(file, *common)
        self.assertEqual((len(answers), report["preemptions"]), (8, 0))
        page_bytes = self.answer(
            "--model", REAL_MODEL, "--prompt", "a", "--max-tokens", "1", *UNCOMPRESSED)[1]["page_bytes"]
        less, half = self.serve(file, *common, "--kv-bytes", report["pages"] // 2 * page_bytes)
        self.assertEqual(sorted(less), list(range(1, 9)))
        self.assertEqual(half["pages"], report["pages"] // 2)
        self.assertGreater(half["preemptions"], 0)
        self.assertEqual(half["preemptions"], sum(a["preemptions"] for a in less.values()))
        self.assertEqual(half["no_memory"], 0)
        for answer in less.values():
            self.assertTrue(answer["finish"] == "stop" or answer["new_tokens"] == 250)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
