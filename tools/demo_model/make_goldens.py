"""Writes tests/golden/ from an exported model: what the C++ engine is compared with.

    python3 make_goldens.py MODEL_DIR GOLDEN_DIR

The model runs in float64 (reference.py), on the stored weights.
"""

import json
import math
import os
import sys

import torch

import mxfp4
import reference
import safetensors
import text
from tokenizer import Tokenizer

GREEDY = 32
WINDOW = 512
HELDOUT_BYTES = 20000

TOKENIZER_TEXTS = [
    "",
    "a",
    " ",
    "In the beginning God created the heaven and the earth.",
    "in the beginning",
    "IN THE BEGINNING",
    "McDonald iPhone XMLHttpRequest HTTPServer aB Ab AB ab",
    "I'm you're they've he'll she'd it's don't CAN'T I'LL YOU'RE",
    "rock'n'roll 'tis the king's kings' o'clock",
    "1 12 123 1234 12345 1234567890",
    "3.14159 1,000,000 2^10 0x7f v1.2.3",
    "abc123def456",
    "Genesis 1\nIn the beginning",
    "two  spaces   three    four",
    "   leading",
    "trailing   ",
    "trailing newline\n",
    "\n",
    "\n\n\n",
    "a\nb\n\nc\n\n\nd",
    "line\r\nwindows\r\n\r\nends\r",
    "  \n  indented\n\tand tabbed\t\n",
    "tab\tseparated\t\tvalues",
    "Hello, world! How are you? (fine) [ok] {yes}",
    "!!! ... --- ??? ;;; ,,,",
    "...\nnext\n?!\r\n",
    "a_b-c/d\\e@f#g$h%i&j*k",
    "email@example.com https://example.org/a?b=c&d=e#f",
    "int main() { return x[0] != '\\n' ? 1 : 0; }",
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m \u00dcber Stra\u00dfe",
    "cafe\u0301 combining n\u0303",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0416\u0423\u041a",
    "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03ba\u03cc\u03c3\u03bc\u03b5",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u5929\u5730\u7384\u9ec4",
    "Han\u6f22\u5b57mixed\u4e2d\u6587text 123\u6570\u5b57456",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8 \u30ab\u30bf\u30ab\u30ca \ud55c\uad6d\uc5b4",
    "\U00020000\U0002a6d6 rare Han",
    "\U0001f600\U0001f680 emoji \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "\u00bd \u2167 \u0663\u0664 \u2461 numbers",
    "no\u00a0break\u2003space\u3000wide \u200b zero",
    "\u01c5 title \u02b0 modifier \u00aa \u00ba",
    "\u2018curly\u2019 it\u2019s \u201cquotes\u201d \u2014 dash\u2026",
    "a\u2028b\u2029c\u0085d\u000be\u000cf",
    "<|open|>message<|sep|>[EOS] stays plain text<|end_of_msg|>",
    "\x00\x01\x7f control",
    "MiXeD CaSe WoRdS aND thE restOfIt",
]


def rounded(x, digits=9):
    """Nested lists of a tensor, floats with enough digits for f32."""
    if isinstance(x, torch.Tensor):
        x = x.tolist()
    if isinstance(x, list):
        return [rounded(y, digits) for y in x]
    return float(f"{x:.{digits}g}") if isinstance(x, float) else x


def dump(path, value, indent=None):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=indent, ensure_ascii=True)
        f.write("\n")


# --- units ---------------------------------------------------------------------------------


class Random:
    """Seeded numbers, rounded to what the JSON holds before they are used."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape, scale=1.0):
        x = torch.randn(*shape, generator=self.generator, dtype=torch.float64) * scale
        return torch.tensor(rounded(x, 7), dtype=torch.float64)


def unit_situ(rnd):
    # the first six are the specification's
    g = torch.cat([torch.tensor([1.0, -1, 3, 8, -6, 100], dtype=torch.float64), rnd(20, scale=5)])
    u = torch.cat([torch.tensor([1.0, 2, -2, 10, 30, 100], dtype=torch.float64), rnd(20, scale=20)])
    return {"beta": 4.0, "linear_beta": 25.0, "g": g, "u": u, "y": reference.situ(g, u, 4.0, 25.0)}


def unit_gate(rnd):
    z = torch.cat([torch.tensor([0.0, 1, -1, 2, -2], dtype=torch.float64), rnd(20, scale=3)])
    a = torch.cat([torch.tensor([0.0, 0, 0, 0.5, -0.5], dtype=torch.float64), rnd(20)])
    return {"lower_bound": -5.0, "z": z, "a_log": a, "g": reference.safe_gate(z, a, -5.0)}


def unit_attn_res(rnd):
    spec = {
        "bank": torch.tensor([[1.0, 2, 3, 4], [0.5, -1, 2, 0]], dtype=torch.float64),
        "p": torch.tensor([2.0, 0, -1, 1], dtype=torch.float64),
        "w": torch.tensor([1.0, 0.5, 2, 1], dtype=torch.float64),
        "r": torch.tensor([0.1, -0.2, 0.3, 0.05], dtype=torch.float64),
    }
    cases = [spec] + [{"bank": rnd(n, 12), "p": rnd(12), "w": rnd(12), "r": rnd(12, scale=0.5)} for n in (1, 3, 8)]
    for case in cases:
        case["out"] = reference.attn_res_mix(list(case["bank"]), case["p"], case["w"], case["r"], 1e-5)
    return {"eps": 1e-5, "cases": cases}


def unit_short_conv(rnd):
    x, taps = rnd(7, 5), rnd(5, 4)
    return {"x": x, "taps": taps, "y": reference.short_conv(x, taps)}


def unit_kda(rnd):
    """Inputs of the recurrence itself: q is normalised and scaled, g is the log decay."""
    T, heads, d = 37, 2, 8
    q = reference.l2_norm(rnd(T, heads, d)) * d**-0.5
    k = reference.l2_norm(rnd(T, heads, d))
    v, beta = rnd(T, heads, d), torch.sigmoid(rnd(T, heads))
    g = reference.safe_gate(rnd(T, heads, d, scale=3), rnd(heads, 1, scale=0.5), -5.0)
    q, k, v, g, beta = (torch.tensor(rounded(x), dtype=torch.float64) for x in (q, k, v, g, beta))
    o, state = reference.kda_recurrent(q, k, v, g, beta)
    other, other_state = reference.kda_chunked(q, k, v, g, beta)
    assert (o - other).abs().max() < 1e-12 and (state - other_state).abs().max() < 1e-12
    return {"q": q, "k": k, "v": v, "g": g, "beta": beta, "o": o, "state": state}


def unit_mla(rnd):
    T, hidden = 9, 12
    c = {
        "num_attention_heads": 2,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 3,
        "v_head_dim": 5,
        "q_lora_rank": 6,
        "kv_lora_rank": 7,
    }
    heads, v = c["num_attention_heads"], c["v_head_dim"]
    shapes = {
        "q_a_proj": (6, hidden),
        "q_a_layernorm": (6,),
        "q_b_proj": (heads * 7, 6),
        "kv_a_proj_with_mqa": (7 + 3, hidden),
        "kv_a_layernorm": (7,),
        "kv_b_proj": (heads * (4 + v), 7),
        "g_proj": (heads * v, hidden),
        "o_proj": (hidden, heads * v),
    }
    weights = {name + ".weight": rnd(*shape, scale=0.6) for name, shape in shapes.items()}
    x = rnd(T, hidden)
    return {"config": c, "latent_eps": 1e-6, "weights": weights, "x": x, "y": reference.mla(x, weights.get, c)}


def unit_router(rnd):
    logits, bias = rnd(6, 10, scale=2), rnd(10, scale=0.3)
    chosen, weights = reference.route(logits, bias, 3, 1.5)
    return {"top": 3, "scaling": 1.5, "logits": logits, "bias": bias, "chosen": chosen, "weights": weights}


def unit_mxfp4(rnd):
    packed, scale = mxfp4.pack(rnd(3, 64, scale=0.1).float())
    return {"packed": packed, "scale": scale, "values": mxfp4.unpack(packed, scale).double()}


def units():
    makers = [unit_situ, unit_gate, unit_attn_res, unit_short_conv, unit_kda, unit_mla, unit_router, unit_mxfp4]
    return {f.__name__[len("unit_") :]: f(Random(100 + i)) for i, f in enumerate(makers)}


def listed(x):
    """Tensors inside nested dicts and lists, as lists."""
    if isinstance(x, dict):
        return {key: listed(value) for key, value in x.items()}
    if isinstance(x, list):
        return [listed(value) for value in x]
    return rounded(x) if isinstance(x, torch.Tensor) else x


# --- the model -------------------------------------------------------------------------------


def prompts(tokenizer, held):
    long = tokenizer.decode(tokenizer.encode(held[14])[:150])
    return [
        ("one", "And"),
        ("short", "And David said unto Saul, Let no man's heart fail because of him; thy servant will go"),
        ("long", long),
    ]


def gap(values):
    """Distance between the two largest: small gaps make a greedy test brittle."""
    top = values.topk(2, -1).values
    return (top[..., 0] - top[..., 1]).min().item()


def model_case(ref, tokenizer, name, prompt):
    tokens = tokenizer.encode(prompt)
    ids = list(tokens)
    for _ in range(GREEDY):
        ids.append(int(ref.forward(ids)[-1].argmax()))
    trace = {}
    logits = ref.forward(ids, trace=trace)
    chunked = ref.forward(ids, core=reference.kda_chunked)
    first = len(tokens) - 1
    case = {
        "name": name,
        "prompt": prompt,
        "tokens": tokens,
        "greedy": ids[len(tokens) :],
        "text": tokenizer.decode(ids[len(tokens) :]),
        "smallest_top2_logit_gap": gap(logits[first:-1]),
        "largest_chunked_difference": (logits - chunked).abs().max().item(),
    }
    return case, ids, logits, trace


def layer_tensors(ref, name, trace, count):
    """Activations of the first `count` tokens."""
    out = {f"{name}.embed": trace["embed"][:count].float(), f"{name}.final": trace["final"][:count].float()}
    for i in range(ref.c["num_hidden_layers"]):
        out[f"{name}.layer.{i}.prefix"] = trace[f"layer.{i}.prefix"][:count].float()
        if f"layer.{i}.experts" in trace:
            chosen, order = trace[f"layer.{i}.experts"][:count].sort(-1)
            out[f"{name}.layer.{i}.experts"] = chosen
            weights = trace[f"layer.{i}.expert_weights"][:count].gather(1, order)
            out[f"{name}.layer.{i}.expert_weights"] = weights.float()
    return out


def perplexity(ref, tokenizer, passage):
    ids = tokenizer.encode(passage)
    windows = [ids[i : i + WINDOW] for i in range(0, len(ids), WINDOW)]
    nll = sum(ref.nll(window) for window in windows if len(window) > 1)
    scored = [i for window in windows for i in window[1:]]
    size = len(tokenizer.decode_bytes(scored))
    return {
        "window": WINDOW,
        "rule": "the whole file is tokenised once, cut into windows of 512 tokens, each window starts "
        "from fresh state and its first token is not scored; bits_per_byte counts the scored tokens' bytes",
        "tokens": len(scored),
        "file_tokens": len(ids),
        "bytes": size,
        "nll_sum": nll,
        "bits_per_byte": nll / math.log(2) / size,
        "ppl": math.exp(nll / len(scored)),
    }


def heldout_passage(held):
    """Whole held-out chapters, evenly spread, about 20 KB."""
    out, size = [], 0
    for document in held[::5]:
        if size + len(document) <= HELDOUT_BYTES:
            out.append(document)
            size += len(document)
    return "".join(out)


@torch.no_grad()
def main():
    directory, golden = sys.argv[1:]
    os.makedirs(golden, exist_ok=True)
    tokenizer = Tokenizer.load(directory)
    _, held = text.split()
    dump(os.path.join(golden, "units.json"), listed(units()))
    rows = [{"text": s, "ids": tokenizer.encode(s)} for s in TOKENIZER_TEXTS]
    assert all(tokenizer.decode(row["ids"]) == row["text"] for row in rows)
    dump(os.path.join(golden, "tokenizer.json"), rows, 1)

    ref, single = reference.Reference(directory), reference.Reference(directory, torch.float32)
    cases, tensors = [], {}
    for name, prompt in prompts(tokenizer, held):
        case, ids, logits, trace = model_case(ref, tokenizer, name, prompt)
        trace32 = {}
        logits32 = single.forward(ids, trace=trace32)
        case["largest_f32_difference"] = (logits32.double() - logits).abs().max().item()
        # float32 must route the same way, or the stored experts would be no fair test
        for key in trace:
            if key.endswith(".experts"):
                assert torch.equal(trace[key].sort(-1).values, trace32[key].sort(-1).values), key
        first = len(case["tokens"]) - 1
        tensors[f"{name}.logits"] = logits[first:].float()
        tensors[f"{name}.positions"] = torch.arange(first, len(ids))
        if name == "short":
            tensors.update(layer_tensors(ref, name, trace, len(case["tokens"])))
        cases.append(case)
        print({key: case[key] for key in case if key not in ("tokens", "greedy")}, len(case["tokens"]), flush=True)
    safetensors.write(os.path.join(golden, "demo_k3.safetensors"), tensors)

    passage = heldout_passage(held)
    with open(os.path.join(golden, "heldout.txt"), "w") as f:
        f.write(passage)
    result = perplexity(ref, tokenizer, passage)
    print(result)
    dump(
        os.path.join(golden, "demo_k3.json"),
        {"cases": cases, "perplexity": result, "eval_text_file": "heldout.txt"},
        1,
    )


if __name__ == "__main__":
    main()
