"""Sizes of a served model on one rank, by axis names, from its Hugging Face configuration.

A trace seldom tells all sizes: names and launch grids of replayed graphs hold no widths. The
model's `config.json` does. Bundled configurations are `data/models/*.toml`, facts under the names
that `config.json` gives them. A size that follows from none of them is left out, never guessed.

How a rank's share follows from the whole model is that of tensor parallelism in Megatron-LM
(Shoeybi et al., arXiv:1909.08053, section 3) as serving engines do it: heads and MLP widths are
split, key-value heads are split until one is left and then copied, hidden sizes and latent ranks
are whole, and the vocabulary is padded to a multiple of 64 before it is split (vLLM,
`VocabParallelEmbedding`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

from atrex.errors import DataError, UsageError
from atrex.operator import shortest_decimal
from atrex.registry import content

Sizes = dict[str, int | str]

FOLDER = "models"
VOCAB_PADDING = 64
# what engines call alike under several names, the first that is given
HEADS = ("num_attention_heads",)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
TOP_K = ("num_experts_per_tok", "experts_per_token")
# sizes that are the same on every rank: axis, field
WHOLE = {
    "hidden": "hidden_size", "layers": "num_hidden_layers", "lora_rank": "kv_lora_rank",
    "q_lora_rank": "q_lora_rank", "nope_dim": "qk_nope_head_dim", "v_dim": "v_head_dim",
    "key_dim": "linear_key_head_dim", "value_dim": "linear_value_head_dim",
    "conv_width": "linear_conv_kernel_dim", "page": "page_size",
}  # fmt: skip
# sizes that are split: axis, field
SPLIT = {"key_heads": "linear_num_key_heads", "value_heads": "linear_num_value_heads"}
# norms that multiply by 1 + weight (transformers, GemmaRMSNorm and Qwen3NextRMSNorm)
SHIFTED_NORMS = ("gemma", "qwen3_next", "qwen3_5")
# queries come with a gate as wide (transformers, Qwen3NextAttention)
GATED_QUERIES = ("qwen3_next", "qwen3_5")
# softmax over the chosen experts only, whatever the configuration says (transformers, routers)
RENORMALISED = ("mixtral", "gpt_oss")
# query, key and value projections have a bias that the configuration does not name
BIASED = ("qwen2",)


def known() -> list[str]:
    """Return the names of the bundled configurations."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load(name_or_path: str | Path, tensor_parallel: int = 1) -> Sizes:
    """Return the sizes of one rank by axis names.

    Args:
        name_or_path: A bundled name in any case, with or without its organisation, or the path of
            a Hugging Face `config.json` or of a .toml of the same fields.
        tensor_parallel: Ranks that share each layer.

    Raises:
        UsageError: No such name or file; lists the known names.
        DataError: The file is no configuration, or its sizes do not divide among the ranks.
    """
    path = _path(name_or_path)
    try:
        return from_fields(_read(path), tensor_parallel)
    except DataError as error:
        raise DataError(error.message, where=str(path), remedy=error.remedy) from error


def from_fields(fields: Mapping[str, Any], tensor_parallel: int = 1) -> Sizes:
    """Return the sizes of one rank from fields named as in a Hugging Face `config.json`.

    Keys are the axes of operators and, where one axis has several sources in a model:
    `width` of dense MLPs, `shared_width` of shared experts, `mlp_width` the one of both that there
    is, `qkv_width` rows of the fused projection, `window` where all layers attend alike (0: to
    everything), `sliding_window` where some slide and `windows` of all layers in order
    (``"128-0-128-0"``), `scale` of latent attention.

    Raises:
        DataError: A size is missing or no number, or does not divide among the ranks.
    """
    if tensor_parallel < 1:
        raise UsageError(f"{tensor_parallel} ranks", remedy="Give 1 or more.")
    fields = _entered(fields)
    if not _given(fields, "hidden_size"):
        raise DataError("no hidden_size", remedy="Give the config.json of a language model.")
    try:
        return _sizes(fields, tensor_parallel)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(
            f"sizes that do not fit together: {type(error).__name__} {error}",
            remedy="Give the config.json as published.",
        ) from error


def _sizes(fields: Mapping[str, Any], tensor_parallel: int) -> Sizes:
    sizes: Sizes = {
        axis: int(fields[field]) for axis, field in WHOLE.items() if _given(fields, field)
    }
    for axis, field in SPLIT.items():
        if _given(fields, field):
            sizes[axis] = _split(int(fields[field]), tensor_parallel, field)
    sizes |= _attention(fields, tensor_parallel)
    sizes |= _windows(fields)
    sizes |= _mlp(fields, tensor_parallel)
    sizes |= _experts(fields, tensor_parallel)
    sizes |= _flags(fields)
    if _given(fields, "vocab_size"):
        padded = -(-int(fields["vocab_size"]) // VOCAB_PADDING) * VOCAB_PADDING
        sizes["vocab"] = _split(padded, tensor_parallel, "vocab_size")
    return sizes | _only_mlp(sizes)


def _path(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if path.suffix in (".json", ".toml") or path.is_file():
        if path.is_file():
            return path
        raise UsageError(f"no file {name_or_path}", remedy="Give a config.json or a known name.")
    wanted = str(name_or_path).rpartition("/")[2].casefold()
    for name in known():
        if name.casefold() == wanted:
            return _folder() / f"{name}.toml"
    raise UsageError(
        f"no model {str(name_or_path)!r}",
        remedy=f"Give the path of its config.json, or one of {', '.join(known())}.",
    )


def _folder() -> Path:
    return content("data") / FOLDER


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        value = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"no model configuration: {error}") from error
    if not isinstance(value, dict):
        raise DataError("no model configuration: not an object")
    return value


def _entered(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Enter the language model of a multimodal one; its own fields win."""
    text = fields.get("text_config")
    return {**fields, **text} if isinstance(text, Mapping) else dict(fields)


def _given(fields: Mapping[str, Any], field: str) -> bool:
    value = fields.get(field)
    return isinstance(value, int) and not isinstance(value, bool)


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((int(fields[name]) for name in names if _given(fields, name)), None)


def _kind(fields: Mapping[str, Any], *kinds: str) -> bool:
    return str(fields.get("model_type", "")).startswith(kinds)


def _split(size: int, ranks: int, field: str) -> int:
    if size % ranks:
        raise DataError(
            f"{field} {size} does not divide among {ranks} ranks",
            remedy="Give the ranks that share each layer.",
        )
    return size // ranks


def _attention(fields: Mapping[str, Any], ranks: int) -> Sizes:
    """Return heads and their sizes; latent attention has neither key heads nor one size."""
    whole = _first(fields, HEADS)
    if whole is None:
        return {}
    sizes: Sizes = {"heads": _split(whole, ranks, "num_attention_heads")}
    if _given(fields, "kv_lora_rank"):
        return sizes | _latent(fields)
    kv_whole = int(fields.get("num_key_value_heads") or whole)
    if kv_whole >= ranks:
        kv_heads = _split(kv_whole, ranks, "num_key_value_heads")
    else:
        _split(ranks, kv_whole, "tensor parallelism")  # each is copied equally often
        kv_heads = 1
    head_dim = int(fields.get("head_dim") or int(fields["hidden_size"]) // whole)
    queries = int(sizes["heads"]) * (2 if _kind(fields, *GATED_QUERIES) else 1)
    sizes |= {
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "qkv_width": (queries + 2 * kv_heads) * head_dim,
        "rope_dim": int(head_dim * float(_rope(fields).get("partial_rotary_factor", 1))),
    }
    return sizes


def _latent(fields: Mapping[str, Any]) -> Sizes:
    """Return the rotated size and the scale of logits of latent attention.

    Source: DeepSeek-V3's published `modeling_deepseek.py`, `DeepseekV3Attention`: YaRN multiplies
    the scale by (0.1 mscale_all_dim ln(factor) + 1)^2.
    """
    rope_dim = int(fields["qk_rope_head_dim"])
    scale = (int(fields["qk_nope_head_dim"]) + rope_dim) ** -0.5
    rope = _rope(fields)
    factor, all_dim = float(rope.get("factor", 1)), float(rope.get("mscale_all_dim", 0))
    if factor > 1:
        scale *= (0.1 * all_dim * log(factor) + 1) ** 2
    return {"rope_dim": rope_dim, "scale": shortest_decimal(scale)}


def _rope(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of rotation, whichever version of the format says it."""
    found = {key: fields[key] for key in ("partial_rotary_factor", "rope_theta") if fields.get(key)}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(fields.get(name), Mapping):
            found |= fields[name]
    return found


def _windows(fields: Mapping[str, Any]) -> Sizes:
    """Return the window of all layers, or that of those which slide where others do not."""
    if _given(fields, "attention_chunk_size"):
        return {}  # chunks are no windows
    size = fields.get("sliding_window")
    if not size or fields.get("use_sliding_window") is False:
        return {"window": 0}
    types = fields.get("layer_types")
    every = fields.get("sliding_window_pattern")
    if every and not isinstance(types, list):  # one layer of so many attends to everything
        layers = range(1, int(fields.get("num_hidden_layers") or 0) + 1)
        types = ["full_attention" if layer % every == 0 else "" for layer in layers]
    if types and "full_attention" in types:
        windows = ("0" if each == "full_attention" else str(size) for each in types)
        return {"sliding_window": int(size), "windows": "-".join(windows)}
    return {"window": int(size), "sliding_window": int(size)}


def _mlp(fields: Mapping[str, Any], ranks: int) -> Sizes:
    """Return the width of dense MLPs, if any layer has one."""
    mixture = _first(fields, EXPERTS) is not None
    dense_layers = (
        fields.get("first_k_dense_replace")
        or fields.get("mlp_only_layers")
        or int(fields.get("decoder_sparse_step") or 1) > 1
    )
    if not _given(fields, "intermediate_size") or (mixture and not dense_layers):
        return {}
    width = int(fields["intermediate_size"])
    return {"width": _split(width, ranks, "intermediate_size")}


def _experts(fields: Mapping[str, Any], ranks: int) -> Sizes:
    """Return what is known of a mixture of experts, all of them on each rank, split in width."""
    experts = _first(fields, EXPERTS)
    if experts is None:
        return {}
    sizes: Sizes = {"experts": experts, "local_experts": experts}
    top_k = _first(fields, TOP_K)
    if top_k is not None:
        sizes["top_k"] = top_k
    own = _first(fields, ("moe_intermediate_size", "intermediate_size"))
    if own is not None:
        sizes["expert_width"] = _split(own, ranks, "width of experts")
    shared = _first(fields, ("shared_expert_intermediate_size",))
    count = _first(fields, ("n_shared_experts",))
    if shared is None and count and own is not None:
        shared = count * own
    if shared:
        sizes["shared_width"] = _split(shared, ranks, "width of shared experts")
    # routers that choose among groups, or score by a sigmoid, are another operator
    softmax = fields.get("scoring_func", "softmax") == "softmax" and "n_group" not in fields
    if softmax and _kind(fields, *RENORMALISED):
        sizes["renormalise"] = 1
    elif softmax and isinstance(fields.get("norm_topk_prob"), bool):
        sizes["renormalise"] = int(fields["norm_topk_prob"])
    return sizes


def _flags(fields: Mapping[str, Any]) -> Sizes:
    """Return attributes of norms, rotation and biases as axes name them."""
    flags: Sizes = {}
    if isinstance(fields.get("rms_norm_eps"), float):
        flags["eps"] = shortest_decimal(fields["rms_norm_eps"])
    if fields.get("model_type"):
        flags["weight_offset"] = int(_kind(fields, *SHIFTED_NORMS))
        flags["bias"] = int(bool(fields.get("attention_bias")) or _kind(fields, *BIASED))
    if _given(fields, "linear_num_value_heads"):
        flags["gate_first"] = 0
    rope = _rope(fields)
    if isinstance(rope.get("mrope_section"), list):
        flags["sections"] = "-".join(str(size) for size in rope["mrope_section"])
        flags["interleaved"] = int(bool(rope.get("mrope_interleaved")))
    return flags


def _only_mlp(sizes: Sizes) -> Sizes:
    """Return the width of the dense layers and shared experts, unless there are two."""
    widths = {sizes[name] for name in ("width", "shared_width") if name in sizes}
    return {"mlp_width": widths.pop()} if len(widths) == 1 else {}
