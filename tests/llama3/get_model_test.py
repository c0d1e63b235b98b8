#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/get_model.py. The rules run with plain Python; whole files are converted where
the packages are at hand: in build/venv-model, in which this starts itself anew if it is there."""

import importlib.util
import json
import os
import random
import struct
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / "build" / "venv-model"
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True

import get_model
import gguf_to_folder
import gguf_tokenizer
from gguf_tokenizer import Refused

HAS_PACKAGES = all(
    importlib.util.find_spec(name) for name in ("gguf", "numpy", "safetensors", "tokenizers")
)


def byte_letters():
    """The 256 letters of the byte alphabet, in the order of their bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


def tokenizer_fields(pre, **more):
    tokens = [*byte_letters(), "ab", "abc", "<|begin_of_text|>", "<|eot_id|>", "[PAD1]"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 258 + [3, 3, 5],
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.bos_token_id": 258,
        "tokenizer.ggml.eos_token_id": 259,
        **more,
    }


class Rows(unittest.TestCase):
    def test_a_permuted_projection_comes_back(self):
        for heads, dim in [(1, 2), (1, 4), (3, 64), (9, 128)]:
            # What the makers of GGUF files do: per head [2, dim / 2] becomes [dim / 2, 2].
            rows = list(range(heads * dim))
            permuted = []
            for head in range(heads):
                own = rows[head * dim : (head + 1) * dim]
                for pair in range(dim // 2):
                    permuted += [own[pair], own[dim // 2 + pair]]
            order = gguf_to_folder.rope_row_order(heads, dim)
            self.assertEqual([permuted[row] for row in order], rows)

    def test_the_order_of_a_small_head_is_known(self):
        self.assertEqual(gguf_to_folder.rope_row_order(2, 4), [0, 2, 1, 3, 4, 6, 5, 7])


class Names(unittest.TestCase):
    def test_tensors_get_their_published_names(self):
        for name, published in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.11.attn_q.weight", "model.layers.11.self_attn.q_proj.weight"),
            ("blk.0.attn_k.bias", "model.layers.0.self_attn.k_proj.bias"),
            ("blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
            ("rope_freqs.weight", None),
        ]:
            self.assertEqual(gguf_to_folder.tensor_name(name), published)

    def test_a_tensor_of_another_model_is_refused_by_name(self):
        for name in [
            "blk.0.ffn_gate_exps.weight",
            "blk.0.attn_q_norm.weight",
            "blk.x.attn_q.weight",
        ]:
            with self.assertRaisesRegex(Refused, name):
                gguf_to_folder.tensor_name(name)


class Rope(unittest.TestCase):
    def test_the_rule_of_llama_3_1_gives_known_frequencies(self):
        # Figures of the published rule: D = 128, theta 500000, factor 8, 1, 4, 8192.
        factors = gguf_to_folder.llama3_rope_factors(500000.0, 128, 8.0, 1.0, 4.0, 8192)
        frequencies = [500000.0 ** (-2 * i / 128) / factor for i, factor in enumerate(factors)]
        for pair, value in [(28, 3.211445995e-3), (29, 2.166570764e-3), (31, 8.567514129e-4),
                            (34, 1.785078128e-4), (35, 9.556212354e-5),
                            (63, 3.068925989e-7)]:  # fmt: skip
            self.assertAlmostEqual(frequencies[pair] / value, 1.0, delta=1e-6)

    def test_scaling_is_recognised_or_refused(self):
        def scaling(fields, freqs=None):
            return gguf_to_folder.rope_scaling(fields, "llama", 500000.0, 64, freqs)

        self.assertIsNone(scaling({}))
        for factor in (8.0, 32.0):
            freqs = gguf_to_folder.llama3_rope_factors(500000.0, 64, factor, 1.0, 4.0, 8192)
            self.assertEqual(
                scaling({}, freqs),
                {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
                 "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
            )  # fmt: skip
            freqs[5] *= 1.1
            with self.assertRaisesRegex(Refused, "rope_freqs"):
                scaling({}, freqs)
        linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
        self.assertEqual(scaling(linear), {"rope_type": "linear", "factor": 4.0})
        self.assertEqual(
            scaling({"llama.rope.scale_linear": 2.0}), {"rope_type": "linear", "factor": 2.0}
        )
        with self.assertRaisesRegex(Refused, "yarn"):
            scaling({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0})


class Tokenizer(unittest.TestCase):
    def test_each_family_has_its_own_pattern(self):
        def splitter(pre):
            return gguf_tokenizer.tokenizer_json(tokenizer_fields(pre))["pre_tokenizer"]

        smollm = splitter("smollm")["pretokenizers"]
        self.assertEqual(smollm[0], {"type": "Digits", "individual_digits": True})
        self.assertTrue(smollm[1]["use_regex"])
        for pre, digits in [("llama-bpe", r"|\p{N}{1,3}|"), ("qwen2", r"|\p{N}|")]:
            split, level = splitter(pre)["pretokenizers"]
            self.assertIn(digits, split["pattern"]["Regex"])
            self.assertFalse(level["use_regex"])
        with self.assertRaisesRegex(Refused, "tekken"):
            splitter("tekken")

    def test_only_llama_takes_whole_pieces_first(self):
        for pre, whole in [("llama-bpe", True), ("smollm", False), ("qwen2", False)]:
            made = gguf_tokenizer.tokenizer_json(tokenizer_fields(pre))
            self.assertIs(made["model"]["ignore_merges"], whole)

    def test_control_tokens_are_special_and_outside_what_merges_make(self):
        made = gguf_tokenizer.tokenizer_json(tokenizer_fields("qwen2"))
        self.assertEqual([t["id"] for t in made["added_tokens"] if t["special"]], [258, 259])
        self.assertEqual(made["model"]["vocab"]["abc"], 257)
        self.assertNotIn("<|eot_id|>", made["model"]["vocab"])
        self.assertNotIn("[PAD1]", made["model"]["vocab"])

    def test_every_stop_token_is_found(self):
        self.assertEqual(gguf_tokenizer.stop_ids(tokenizer_fields("llama-bpe")), [259])
        fields = tokenizer_fields("llama-bpe")
        fields["tokenizer.ggml.tokens"][258] = "<|endoftext|>"
        fields["tokenizer.ggml.eom_token_id"] = 4
        self.assertEqual(gguf_tokenizer.stop_ids(fields), [259, 4, 258])

    def test_bos_is_added_where_the_family_or_the_file_says(self):
        for fields, added in [
            (tokenizer_fields("llama-bpe"), True),
            (tokenizer_fields("llama-bpe", **{"tokenizer.ggml.add_bos_token": False}), False),
            (tokenizer_fields("qwen2"), False),
            (tokenizer_fields("qwen2", **{"tokenizer.ggml.add_bos_token": True}), True),
        ]:
            made = gguf_tokenizer.tokenizer_json(fields)
            self.assertEqual(made["post_processor"] is not None, added)
            self.assertEqual(
                gguf_tokenizer.tokenizer_config_json(fields, 8)["add_bos_token"], added
            )

    def test_broken_vocabularies_are_refused(self):
        for key, value in [
            ("tokenizer.ggml.model", "llama"),
            ("tokenizer.ggml.merges", ["a b c"]),
            ("tokenizer.ggml.merges", ["ab"]),
            ("tokenizer.ggml.merges", ["a \u4e00"]),
            ("tokenizer.ggml.token_type", [1]),
            ("tokenizer.ggml.tokens", ["a"] * 261),
            ("tokenizer.ggml.bos_token_id", 261),
        ]:
            with self.assertRaises(Refused, msg=key):
                gguf_tokenizer.tokenizer_json(tokenizer_fields("llama-bpe", **{key: value}))


class Stamp(unittest.TestCase):
    def test_a_folder_is_complete_until_something_changes(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self.assertFalse(get_model.is_complete(folder, "a"))
            (folder / "model.safetensors").write_bytes(b"12345678")
            get_model.write_stamp(folder, "a")
            self.assertTrue(get_model.is_complete(folder, "a"))
            self.assertFalse(get_model.is_complete(folder, "b"))
            (folder / "key_offsets.safetensors").write_bytes(b"1")  # others may keep files there
            self.assertTrue(get_model.is_complete(folder, "a"))
            (folder / "model.safetensors").write_bytes(b"1234567")
            self.assertFalse(get_model.is_complete(folder, "a"))
            (folder / get_model.STAMP).write_text("[]")
            self.assertFalse(get_model.is_complete(folder, "a"))


@unittest.skipUnless(HAS_PACKAGES, "build/venv-model is not there: run scripts/get_model.py once")
class Conversion(unittest.TestCase):
    """Whole GGUF files of a tiny model, written with the gguf package."""

    HIDDEN, HEADS, KV_HEADS, DIM, FFN, LAYERS = 64, 4, 2, 32, 96, 2

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = Path(self.scratch.name)

    def write_gguf(self, arch, quantised=False, freqs=None, drop=(), skip_fields=(), more=None):
        """Returns the weights under their published names, as they must come back."""
        import gguf
        import numpy

        generator = numpy.random.default_rng(5)
        writer = gguf.GGUFWriter(self.folder / "tiny.gguf", arch)
        numbers = {
            "context_length": 128, "embedding_length": self.HIDDEN, "block_count": self.LAYERS,
            "feed_forward_length": self.FFN, "attention.head_count": self.HEADS,
            "attention.head_count_kv": self.KV_HEADS, "attention.key_length": self.DIM,
            "attention.value_length": self.DIM, "rope.dimension_count": self.DIM,
        }  # fmt: skip
        for key, value in numbers.items():
            if key not in skip_fields:
                writer.add_uint32(f"{arch}.{key}", value)
        writer.add_float32(f"{arch}.rope.freq_base", 500000.0)
        writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
        for key, value in (more or {}).items():
            (
                writer.add_string(key, value)
                if isinstance(value, str)
                else writer.add_uint32(key, value)
            )
        for key, value in tokenizer_fields("llama-bpe").items():
            if isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_uint32(key, value)
        q, k = self.HEADS * self.DIM, self.KV_HEADS * self.DIM
        shapes = {"token_embd.weight": (261, self.HIDDEN), "output_norm.weight": (self.HIDDEN,)}
        for layer in range(self.LAYERS):
            for part, shape in {
                "attn_norm": (self.HIDDEN,), "attn_q": (q, self.HIDDEN), "attn_k": (k, self.HIDDEN),
                "attn_v": (k, self.HIDDEN), "attn_output": (self.HIDDEN, q),
                "ffn_norm": (self.HIDDEN,), "ffn_gate": (self.FFN, self.HIDDEN),
                "ffn_up": (self.FFN, self.HIDDEN), "ffn_down": (self.HIDDEN, self.FFN),
            }.items():  # fmt: skip
                shapes[f"blk.{layer}.{part}.weight"] = shape
                if arch == "qwen2" and part in ("attn_q", "attn_k", "attn_v"):
                    shapes[f"blk.{layer}.{part}.bias"] = shape[:1]
        expected = {}
        for name, shape in shapes.items():
            if name in drop:
                continue
            values = generator.integers(-512, 512, shape).astype(numpy.float32) / 256
            published = gguf_to_folder.tensor_name(name)
            expected[published] = values
            if arch == "llama" and (".attn_q." in name or ".attn_k." in name):
                heads = shape[0] // self.DIM
                halves = values.reshape(heads, 2, self.DIM // 2, *shape[1:])
                values = halves.swapaxes(1, 2).reshape(shape).copy()
            if quantised and len(shape) == 2:
                kind = gguf.GGMLQuantizationType.Q8_0
                writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, values)
        if freqs is not None:
            writer.add_tensor("rope_freqs.weight", numpy.array(freqs, dtype=numpy.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return expected

    def convert(self):
        out = self.folder / "out"
        out.mkdir()
        gguf_to_folder.convert(self.folder / "tiny.gguf", out)
        return out

    def test_weights_come_back_as_published(self):
        import numpy
        import safetensors.numpy

        for arch in ("llama", "qwen2"):
            for quantised in (False, True):
                with self.subTest(arch=arch, quantised=quantised):
                    expected = self.write_gguf(arch, quantised)
                    out = self.convert()
                    found = safetensors.numpy.load_file(out / "model.safetensors")
                    self.assertEqual(found.keys(), expected.keys())
                    for name, values in expected.items():
                        self.assertEqual(found[name].dtype, numpy.float16)
                        tolerance = 0.01 if quantised and values.ndim == 2 else 0.0
                        error = numpy.abs(found[name].astype(numpy.float32) - values).max()
                        self.assertLessEqual(error, tolerance, name)
                    config = json.loads((out / "config.json").read_text())
                    self.assertEqual(config["head_dim"], self.DIM)
                    self.assertEqual(config["rms_norm_eps"], 1e-5)
                    self.assertTrue(config["tie_word_embeddings"])
                    for path in out.iterdir():
                        path.unlink()
                    out.rmdir()

    def test_llama_3_1_scaling_reaches_the_configuration(self):
        freqs = gguf_to_folder.llama3_rope_factors(500000.0, self.DIM, 8.0, 1.0, 4.0, 8192)
        self.write_gguf("llama", freqs=freqs)
        config = json.loads((self.convert() / "config.json").read_text())
        self.assertEqual(config["rope_scaling"]["rope_type"], "llama3")
        self.assertEqual(config["rope_scaling"]["factor"], 8.0)

    def test_what_is_missing_or_strange_is_refused_by_name(self):
        for options, message in [
            ({"drop": ["blk.1.ffn_up.weight"]}, "layer 1 lacks mlp.up_proj"),
            ({"drop": ["output_norm.weight"]}, "output_norm.weight"),
            ({"skip_fields": ["block_count"]}, "block_count"),
            ({"more": {"llama.rope.scaling.type": "yarn"}}, "yarn"),
            ({"more": {"llama.expert_count": 8}}, "expert"),
            ({"freqs": [1.0] * 15 + [3.0]}, "rope_freqs"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(Refused, message):
                self.write_gguf("llama", **options)
                out = self.folder / "out"
                for path in out.glob("*"):
                    path.unlink()
                out.mkdir(exist_ok=True)
                gguf_to_folder.convert(self.folder / "tiny.gguf", out)
        self.write_gguf("gptj")
        with self.assertRaisesRegex(Refused, "gptj"):
            gguf_to_folder.convert(self.folder / "tiny.gguf", self.folder)

    def refused(self, data):
        path = self.folder / "broken.gguf"
        path.write_bytes(data)
        with self.assertRaises(Refused):
            gguf_to_folder.open_gguf(path)

    def test_damaged_files_are_refused(self):
        self.write_gguf("llama")
        whole = (self.folder / "tiny.gguf").read_bytes()
        for size in range(64):
            self.refused(whole[:size])
        self.refused(b"GGUX" + whole[4:])
        self.refused(whole[:4] + struct.pack("<I", 99) + whole[8:])
        self.refused(whole[: len(whole) // 2])
        self.refused(whole[:-64])
        for count in (1 << 32, (1 << 64) - 1):
            self.refused(whole[:8] + struct.pack("<Q", count) + whole[16:])
            self.refused(whole[:16] + struct.pack("<Q", count) + whole[24:])

    def test_dimensions_and_alignment_that_lie_are_refused(self):
        self.write_gguf("llama")
        whole = (self.folder / "tiny.gguf").read_bytes()
        name = b"token_embd.weight"
        at = whole.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
        for dimensions in (0, 5, 9, (1 << 32) - 1):
            self.refused(whole[:at] + struct.pack("<I", dimensions) + whole[at + 4 :])
        for rows in ((1 << 63) - 1, 1 << 40, 262):
            self.refused(whole[: at + 12] + struct.pack("<Q", rows) + whole[at + 20 :])

        key = struct.pack("<Q", 17) + b"general.alignment"
        start, fields = whole[:16], struct.unpack("<Q", whole[16:24])[0]
        for kind, value in [(4, struct.pack("<I", 0)), (4, struct.pack("<I", 3)),
                            (4, struct.pack("<I", 1 << 30)), (5, struct.pack("<i", 32)),
                            (8, struct.pack("<Q", 2) + b"32")]:  # fmt: skip
            field = key + struct.pack("<I", kind) + value
            self.refused(start + struct.pack("<Q", fields + 1) + field + whole[24:])

    def test_random_damage_is_refused_or_survived(self):
        self.write_gguf("llama", quantised=True)
        whole = bytearray((self.folder / "tiny.gguf").read_bytes())
        generator = random.Random(11)
        for _ in range(60):
            damaged = bytearray(whole)
            for _ in range(4):
                damaged[generator.randrange(6000)] = generator.randrange(256)
            path = self.folder / "broken.gguf"
            path.write_bytes(damaged)
            with tempfile.TemporaryDirectory() as out:
                try:
                    gguf_to_folder.convert(path, Path(out))
                except Refused:
                    pass


if __name__ == "__main__":
    python = VENV / "bin" / "python"
    if not HAS_PACKAGES and python.exists():
        os.execv(python, [str(python), "-B", *sys.argv])
    unittest.main()
