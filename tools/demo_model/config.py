"""Sizes of the demo model: the release's config.json keys with small numbers."""

RANKS = 1792  # byte-level BPE ranks
SPECIALS = 256  # special ids follow the ranks, as in the release
VOCAB = RANKS + SPECIALS
GROUP = 32  # weights that share one MXFP4 scale


def special(offset):
    """Id of the special token that has this offset after the ranks."""
    return RANKS + offset


BOS, EOS, END_OF_MSG, PAD = special(0), special(1), special(2), special(255)


def text_config():
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "vocab_size": VOCAB,
        "hidden_size": 192,
        "num_hidden_layers": 8,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "intermediate_size": 512,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "rms_norm_eps": 1e-05,
        "attn_res_block_size": 3,
        "q_lora_rank": 80,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 24,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "num_experts": 24,
        "num_experts_per_token": 4,
        "num_shared_experts": 2,
        "moe_intermediate_size": 96,
        "routed_expert_hidden_size": 128,
        "latent_moe_use_norm": True,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "topk_method": "noaux_tc",
        "use_grouped_topk": True,
        "num_expert_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "max_position_embeddings": 4096,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        "linear_attn_config": {
            "num_heads": 12,
            "head_dim": 16,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
            "gate_lower_bound": -5.0,
            "full_attn_layers": [4, 7, 8],
            "kda_layers": [1, 2, 3, 5, 6],
        },
    }


def config():
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "dtype": "bfloat16",
        "bos_token_id": BOS,
        "eos_token_id": END_OF_MSG,
        "pad_token_id": PAD,
        "image_placeholder": "<|kimi_image_placeholder|>",
        "media_placeholder_token_id": special(21),
        "tie_word_embeddings": False,
        "text_config": text_config(),
        "vision_config": {
            "hidden_size": 1024,
            "num_hidden_layers": 27,
            "num_attention_heads": 12,
            "intermediate_size": 4096,
            "patch_size": 14,
            "merge_kernel_size": [2, 2],
        },
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {
                        "num_bits": 4,
                        "type": "float",
                        "symmetric": True,
                        "strategy": "group",
                        "group_size": GROUP,
                        "scale_dtype": "torch.uint8",
                    },
                }
            },
            "ignore": [
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                "re:.*lm_head.*",
                "re:.*vision_tower.*",
                "re:.*mm_projector.*",
            ],
        },
    }


# The two low-rank norms of MLA are built without an epsilon argument in the
# release, and the L2 norm of KDA has its own: both are 1e-6.
LATENT_EPS = 1e-6
L2_EPS = 1e-6
