# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a GGUF file in the form in which Hugging Face publishes it (tokenizer.json).

Only byte-level BPE is written. Plain Python: no package is needed to import this.
"""

# GGUF token types.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")

# Control tokens that end a turn or a text, by the names that the families use. A GGUF file names
# one end token; a model may use several.
END_NAMES = {"<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"}


class Refused(Exception):
    """The file holds something that cannot be turned into a folder; the text says what."""


def byte_level(use_regex, trim_offsets=True):
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": trim_offsets,
        "use_regex": use_regex,
    }


def split_then_bytes(pattern, trim_offsets):
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return {
        "type": "Sequence",
        "pretokenizers": [split, byte_level(use_regex=False, trim_offsets=trim_offsets)],
    }


def family_of(pre):
    """(normaliser, pre-tokeniser, ignore_merges, BOS by default) of a `tokenizer.ggml.pre`.

    smollm: every digit by itself, then GPT-2's pattern, which is what ByteLevel splits by.
    llama-bpe: up to three digits, and a piece that is a token as a whole is not merged.
    qwen2: the same pattern with single digits, text in normal form C.
    """
    if pre == "smollm":
        digits = {"type": "Digits", "individual_digits": True}
        sequence = {"type": "Sequence", "pretokenizers": [digits, byte_level(use_regex=True)]}
        return None, sequence, False, False
    if pre in ("llama-bpe", "llama3", "llama-v3"):
        return None, split_then_bytes(LLAMA3_PATTERN, True), True, True
    if pre in ("qwen2", "deepseek-r1-qwen"):
        return {"type": "NFC"}, split_then_bytes(QWEN2_PATTERN, False), False, False
    if pre in ("gpt-2", "gpt2"):
        return None, byte_level(use_regex=True), False, False
    raise Refused(
        f"tokenizer.ggml.pre is {pre!r}; smollm, llama-bpe, qwen2 and gpt-2 are known. "
        "Another splitting pattern would give other tokens than the model was trained on."
    )


def added_tokens(tokens, types):
    """Control tokens (special: never the result of encoding a text) and user-defined ones."""
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for index, (token, kind) in enumerate(zip(tokens, types))
        if kind in (CONTROL, USER_DEFINED)
    ]


def base_vocabulary(tokens, types):
    """token -> id of what merges can produce.

    Added tokens at the end of the vocabulary stand outside it, as the families publish them; added
    tokens at the start or in between stay in, so that every id keeps its place. Unused ids, which
    pad the embedding to a round number of rows, have no spelling.
    """
    used = [index for index, kind in enumerate(types) if kind != UNUSED]
    end = len(used)
    while end > 0 and types[used[end - 1]] in (CONTROL, USER_DEFINED):
        end -= 1
    # An id behind a gap can only be told by the vocabulary.
    if used != list(range(len(used))):
        end = len(used)
    return {tokens[index]: index for index in used[:end]}


def merge_pairs(merges, vocabulary):
    pairs = []
    for rank, merge in enumerate(merges):
        left, space, right = merge.partition(" ")
        if not space or not left or not right or " " in right:
            raise Refused(f"tokenizer.ggml.merges[{rank}] is {merge!r}, not two tokens")
        for piece in (left, right, left + right):
            if piece not in vocabulary:
                raise Refused(f"tokenizer.ggml.merges[{rank}] needs {piece!r}, which is no token")
        pairs.append([left, right])
    return pairs


def tokenizer_json(fields):
    """The whole of tokenizer.json. `fields` maps GGUF keys to values."""
    model = fields.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise Refused(
            f"tokenizer.ggml.model is {model!r}; only byte-level BPE (gpt2) is read. "
            "A SentencePiece vocabulary (Llama 2, Mistral 7B) has no such form."
        )
    tokens, types, merges = (
        fields.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type", "merges")
    )
    for values, kind in ((tokens, str), (types, int), (merges, str)):
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise Refused("tokenizer.ggml.tokens, .token_type or .merges is missing or damaged")
    if len(tokens) != len(types):
        raise Refused("tokenizer.ggml.tokens and .token_type do not match")
    spelled = [token for token, kind in zip(tokens, types) if kind != UNUSED]
    if len(set(spelled)) != len(spelled):
        raise Refused("tokenizer.ggml.tokens holds a token twice")
    normaliser, pre_tokenizer, ignore_merges, _ = family_of(
        fields.get("tokenizer.ggml.pre", "gpt-2")
    )
    vocabulary = base_vocabulary(tokens, types)
    post_processor = None
    if adds_bos(fields):
        bos = special_id(fields, "bos")
        if bos is None:
            raise Refused("a BOS token is to be added, but tokenizer.ggml.bos_token_id is missing")
        post_processor = bos_template(tokens[bos], bos)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(tokens, types),
        "normalizer": normaliser,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": vocabulary,
            "merges": merge_pairs(merges, vocabulary),
        },
    }


def bos_template(token, index):
    first, text, second = (
        {"SpecialToken": {"id": token, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 1}},
    )
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, {"SpecialToken": {"id": token, "type_id": 1}}, second],
        "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]}},
    }


def adds_bos(fields):
    """Whether a text begins with BOS; a file that does not say follows its family."""
    return bool(
        fields.get(
            "tokenizer.ggml.add_bos_token", family_of(fields.get("tokenizer.ggml.pre", "gpt-2"))[3]
        )
    )


def special_id(fields, name):
    """The id under tokenizer.ggml.<name>_token_id, or None."""
    index = fields.get(f"tokenizer.ggml.{name}_token_id")
    if index is None or index == 0xFFFFFFFF:
        return None
    if not isinstance(index, int) or not 0 <= index < len(fields["tokenizer.ggml.tokens"]):
        raise Refused(f"tokenizer.ggml.{name}_token_id is {index!r}, no id of the vocabulary")
    return index


def stop_ids(fields):
    """Every id that ends an answer: those that the file names first, then the families' names."""
    stops = [special_id(fields, name) for name in ("eos", "eot", "eom")]
    pairs = zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"])
    stops += [i for i, (token, kind) in enumerate(pairs) if kind == CONTROL and token in END_NAMES]
    return list(dict.fromkeys(index for index in stops if index is not None))


def tokenizer_config_json(fields, max_positions):
    tokens = fields["tokenizer.ggml.tokens"]
    config = {
        "add_bos_token": adds_bos(fields),
        "add_eos_token": bool(fields.get("tokenizer.ggml.add_eos_token", False)),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for key, name in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        index = special_id(fields, key)
        if index is not None:
            config[f"{name}_token"] = tokens[index]
    if template := fields.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config
