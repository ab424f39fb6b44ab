"""Sizes of a model on one rank, from its Hugging Face configuration."""

import json
import tomllib

import pytest

from atrex import modelconfig
from atrex.errors import DataError, UsageError
from atrex.modelconfig import from_fields, known, load
from atrex.registry import content

DENSE = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "rms_norm_eps": 1e-5,
}  # fmt: skip


def test_a_dense_model_on_one_rank():
    assert load("Qwen3-8B") == {
        "hidden": 4096, "layers": 36, "heads": 32, "kv_heads": 8, "head_dim": 128,
        "qkv_width": 6144, "rope_dim": 128, "window": 0, "width": 12288, "mlp_width": 12288,
        "eps": "1e-6", "weight_offset": 0, "bias": 0, "vocab": 151936,
    }  # fmt: skip


def test_a_mixture_of_experts_among_eight_ranks():
    assert load("gpt-oss-120b", 8) == {
        "hidden": 2880, "layers": 36, "heads": 8, "kv_heads": 1, "head_dim": 64, "qkv_width": 640,
        "rope_dim": 64, "sliding_window": 128,
        "windows": "-".join(["128", "0"] * 18), "experts": 128, "local_experts": 128, "top_k": 4,
        "expert_width": 360, "renormalise": 1, "eps": "1e-5", "weight_offset": 0, "bias": 1,
        "vocab": 25136,
    }  # fmt: skip


def test_latent_attention_has_no_key_heads_and_a_scale_of_its_own():
    sizes = load("DeepSeek-V3", 8)
    assert (sizes["heads"], sizes["lora_rank"], sizes["q_lora_rank"]) == (16, 512, 1536)
    assert (sizes["rope_dim"], sizes["nope_dim"], sizes["v_dim"]) == (64, 128, 128)
    assert sizes["scale"] == "0.13523378"  # 192^-0.5 x 1.3689^2
    assert not {"kv_heads", "head_dim", "qkv_width"} & sizes.keys()


def test_a_hybrid_model_tells_its_linear_heads_and_doubles_its_queries():
    sizes = load("Qwen3-Next-80B-A3B", 2)
    assert [sizes[name] for name in ("key_heads", "value_heads", "key_dim", "value_dim")] == [
        8, 16, 128, 128,
    ]  # fmt: skip
    assert (sizes["conv_width"], sizes["gate_first"], sizes["weight_offset"]) == (4, 0, 1)
    assert sizes["qkv_width"] == (2 * 8 + 2 * 1) * 256
    assert (sizes["rope_dim"], sizes["shared_width"], sizes["mlp_width"]) == (64, 256, 256)


def test_two_widths_of_dense_mlps_leave_none_that_is_the_only_one():
    sizes = load("GLM-4.5")
    assert (sizes["width"], sizes["shared_width"]) == (12288, 1536)
    assert "mlp_width" not in sizes


@pytest.mark.parametrize(
    ("fields", "renormalise"),
    [
        ({"norm_topk_prob": True}, 1),
        ({"norm_topk_prob": False}, 0),
        ({"model_type": "mixtral"}, 1),
        ({}, None),
        ({"norm_topk_prob": True, "scoring_func": "sigmoid"}, None),
        ({"norm_topk_prob": True, "n_group": 1}, None),
    ],
)
def test_renormalising_belongs_to_a_softmax_over_all_experts(fields, renormalise):
    mixture = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    assert from_fields(DENSE | mixture | fields).get("renormalise") == renormalise


@pytest.mark.parametrize(
    ("fields", "window", "sliding"),
    [
        ({}, 0, None),
        ({"sliding_window": None}, 0, None),
        ({"sliding_window": 4096}, 4096, 4096),
        ({"sliding_window": 4096, "use_sliding_window": False}, 0, None),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]},
         None, 128),
        ({"sliding_window": 128, "layer_types": ["sliding_attention"]}, 128, 128),
        ({"sliding_window": 1024, "sliding_window_pattern": 6}, None, 1024),
        ({"attention_chunk_size": 8192}, None, None),
    ],
)  # fmt: skip
def test_a_window_is_told_where_all_layers_have_the_same(fields, window, sliding):
    sizes = from_fields(DENSE | fields)
    assert (sizes.get("window"), sizes.get("sliding_window")) == (window, sliding)


def test_layers_that_take_turns_tell_their_windows_in_order():
    types = {"layer_types": ["sliding_attention", "full_attention"]}
    assert from_fields(DENSE | types | {"sliding_window": 128})["windows"] == "128-0"
    every = {"sliding_window_pattern": 3, "num_hidden_layers": 7, "sliding_window": 8}
    assert from_fields(DENSE | every)["windows"] == "8-8-0-8-8-0-8"


@pytest.mark.parametrize(("ranks", "kv_heads"), [(1, 8), (4, 2), (8, 1), (16, 1), (32, 1)])
def test_key_heads_are_split_until_one_is_left_and_then_copied(ranks, kv_heads):
    assert from_fields(DENSE, ranks)["kv_heads"] == kv_heads


@pytest.mark.parametrize("ranks", [3, 64])
def test_what_does_not_divide_among_the_ranks_is_refused(ranks):
    with pytest.raises(DataError, match=f"among {ranks} ranks"):
        from_fields(DENSE, ranks)


def test_no_rank_is_refused():
    with pytest.raises(UsageError, match="0 ranks"):
        from_fields(DENSE, 0)


def test_the_vocabulary_is_padded_before_it_is_split():
    assert from_fields(DENSE | {"vocab_size": 32001}, 2)["vocab"] == 32064 // 2


def test_the_language_model_of_a_multimodal_one_is_entered():
    fields = {
        "model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 1280},
        "text_config": DENSE | {
            "rope_scaling": {"mrope_section": [24, 20, 20], "mrope_interleaved": True},
        },
    }  # fmt: skip
    sizes = from_fields(fields)
    assert (sizes["hidden"], sizes["sections"], sizes["interleaved"]) == (4096, "24-20-20", 1)


def test_a_recorded_header_of_flat_fields_is_read_with_its_page():
    header = DENSE | {"tensor_parallel_size": 2, "page_size": 16}
    sizes = from_fields(header, header["tensor_parallel_size"])
    assert (sizes["heads"], sizes["page"], sizes["mlp_width"]) == (16, 16, 7168)


def test_what_is_not_given_is_left_out():
    assert from_fields({"hidden_size": 64}) == {"hidden": 64, "window": 0}


@pytest.mark.parametrize("name", ["Qwen3-8B", "qwen3-8b", "Qwen/Qwen3-8B"])
def test_a_name_is_found_in_any_case_and_with_its_organisation(name):
    assert load(name)["layers"] == 36


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"no model 'gpt-5'.*Qwen3-8B"):
        load("gpt-5")


def test_a_path_is_read_as_json_or_toml(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    (tmp_path / "mine.toml").write_text("hidden_size = 64\n")
    assert load(tmp_path / "config.json")["hidden"] == 4096
    assert load(str(tmp_path / "mine.toml"))["hidden"] == 64
    with pytest.raises(UsageError, match="no file"):
        load(tmp_path / "absent.json")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"a": 1}', '{"hidden_size": "x"}', '{"hidden_size": 8, "head_dim": 4, '
     '"num_attention_heads": 2, "rope_scaling": 1, "kv_lora_rank": 4}'],
)  # fmt: skip
def test_what_is_no_configuration_is_refused_by_its_name(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"config\.json"):
        load(path)


@pytest.mark.parametrize("name", known())
def test_a_bundled_configuration_says_where_it_is_from_and_fits_its_ranks(name):
    path = content("data") / modelconfig.FOLDER / f"{name}.toml"
    fields = tomllib.loads(path.read_text())
    assert fields["source"].endswith(", config.json")
    assert str(fields["date"]).count("-") == 2
    assert load(name)["hidden"] == fields["hidden_size"]
    assert load(name, 4)["heads"] == fields["num_attention_heads"] // 4
