"""Plain forward pass of Kimi K3 from a folder in the release's layout.

Written from the description of the model alone, one sequence at a time, with no
tricks: this is what the C++ engine is compared with.  No activation is rounded;
all arithmetic is in the dtype of the loaded weights (float64 unless said).

    python3 reference.py MODEL_DIR            # bits per byte of the held-out text

T = tokens, H = heads, D = hidden.  A matrix W [out, in] maps rows x to x @ W.T.
"""

import glob
import json
import math
import os
import sys

import torch

import config
import mxfp4
import safetensors

# --- pieces -----------------------------------------------------------------------------


def rms_norm(x, w, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w


def l2_norm(x):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + config.L2_EPS)


def situ(g, u, beta, linear_beta):
    return beta * torch.tanh(g / beta) * torch.sigmoid(g) * linear_beta * torch.tanh(u / linear_beta)


def safe_gate(z, a_log, lower_bound):
    """Log of the decay, in (lower_bound, 0)."""
    return lower_bound * torch.sigmoid(torch.exp(a_log) * z)


def attn_res_mix(bank, p, w, r, eps):
    """bank: list of rows like p [..., D]; w [D]; r [D]."""
    rows = torch.stack([*bank, p])  # [n+1, ..., D]
    score = (rms_norm(rows, w, eps) * r).sum(-1)  # [n+1, ...]
    return (torch.softmax(score, 0)[..., None] * rows).sum(0)


def short_conv(x, taps):
    """x [T, C], taps [C, K]; the last tap multiplies the newest row; then SiLU."""
    k = taps.shape[1]
    padded = torch.cat([x.new_zeros(k - 1, x.shape[1]), x])
    y = sum(padded[j : j + len(x)] * taps[:, j] for j in range(k))
    return y * torch.sigmoid(y)


def kda_recurrent(q, k, v, g, beta):
    """q, k, v, g [T, H, d], beta [T, H] -> o [T, H, d], state [H, d(key), d(value)]."""
    state = q.new_zeros(q.shape[1], q.shape[2], v.shape[2])
    out = []
    for t in range(len(q)):
        state = torch.exp(g[t])[:, :, None] * state
        u = v[t] - (state * k[t][:, :, None]).sum(1)
        state = state + beta[t][:, None, None] * k[t][:, :, None] * u[:, None, :]
        out.append((state * q[t][:, :, None]).sum(1))
    return torch.stack(out), state


def kda_chunked(q, k, v, g, beta, chunk=16):
    """The same, a chunk at a time."""
    q, k, v, g = (x.transpose(0, 1) for x in (q, k, v, g))  # [H, T, d]
    beta = beta.transpose(0, 1)[..., None]  # [H, T, 1]
    state = q.new_zeros(q.shape[0], q.shape[2], v.shape[2])
    out = []
    for s in range(0, q.shape[1], chunk):
        Q, K, V, B = (x[:, s : s + chunk] for x in (q, k, v, beta))
        G = g[:, s : s + chunk].cumsum(1)  # [H, C, d]
        C = Q.shape[1]
        past = torch.ones(C, C, dtype=torch.bool).tril()  # j <= i
        decay = torch.exp((G[:, :, None] - G[:, None]).masked_fill(~past[..., None], -math.inf))  # [H, i, j, d]
        P = (Q[:, :, None] * K[:, None] * decay).sum(-1)
        A = B * (K[:, :, None] * K[:, None] * decay).sum(-1).tril(-1)
        right = torch.cat([B * torch.exp(G) * K, B * V], -1)
        W, U = torch.linalg.solve(torch.eye(C, dtype=A.dtype) + A, right).split([K.shape[2], V.shape[2]], -1)
        new = U - W @ state
        out.append((Q * torch.exp(G)) @ state + P @ new)
        last = G[:, -1:]  # [H, 1, d]
        state = torch.exp(last).transpose(1, 2) * state + (torch.exp(last - G) * K).transpose(1, 2) @ new
    return torch.cat(out, 1).transpose(0, 1), state


def kda(x, w, c, core=kda_recurrent):
    """x [T, D] -> [T, D]; w(name) gives the layer's self_attn tensors."""
    lin = c["linear_attn_config"]
    heads, d = lin["num_heads"], lin["head_dim"]

    def per_head(y):
        return y.reshape(len(y), heads, d)

    q, k, v = (
        per_head(short_conv(x @ w(n + "_proj.weight").T, w(n + "_conv1d.weight").squeeze(1))) for n in "qkv"
    )
    q = l2_norm(q) * d**-0.5
    k = l2_norm(k)
    beta = torch.sigmoid(x @ w("b_proj.weight").T)  # [T, H]
    z = per_head(x @ w("f_a_proj.weight").T @ w("f_b_proj.weight").T + w("dt_bias"))
    g = safe_gate(z, w("A_log")[:heads, None], lin["gate_lower_bound"])
    o, _ = core(q, k, v, g, beta)
    o = rms_norm(o, w("o_norm.weight"), c["rms_norm_eps"])
    o = o * torch.sigmoid(per_head(x @ w("g_proj.weight").T))
    return o.flatten(1) @ w("o_proj.weight").T


def mla(x, w, c):
    """x [T, D] -> [T, D].  The "rope" channels take part in the scores but are not rotated."""
    heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
    rank, T = c["kv_lora_rank"], len(x)
    qa = rms_norm(x @ w("q_a_proj.weight").T, w("q_a_layernorm.weight"), config.LATENT_EPS)
    q = (qa @ w("q_b_proj.weight").T).reshape(T, heads, nope + rope)
    latent, k_pe = (x @ w("kv_a_proj_with_mqa.weight").T).split([rank, rope], -1)
    latent = rms_norm(latent, w("kv_a_layernorm.weight"), config.LATENT_EPS)
    kv = (latent @ w("kv_b_proj.weight").T).reshape(T, heads, nope + c["v_head_dim"])
    k_nope, v = kv[..., :nope], kv[..., nope:]
    score = torch.einsum("ihd,jhd->hij", q[..., :nope], k_nope)
    score = score + torch.einsum("ihd,jd->hij", q[..., nope:], k_pe)
    score = score * (nope + rope) ** -0.5
    score = score.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -math.inf)
    out = torch.einsum("hij,jhd->ihd", torch.softmax(score, -1), v).flatten(1)
    out = out * torch.sigmoid(x @ w("g_proj.weight").T)
    return out @ w("o_proj.weight").T


def mlp(x, w, c):
    g, u = x @ w("gate_proj.weight").T, x @ w("up_proj.weight").T
    return situ(g, u, c["activation_situ_beta"], c["activation_situ_linear_beta"]) @ w("down_proj.weight").T


def route(logits, bias, top, scaling):
    """logits [T, E] -> chosen experts [T, top] (best first), their weights [T, top]."""
    s = torch.sigmoid(logits)
    chosen = torch.sort(s + bias, dim=-1, descending=True, stable=True).indices[:, :top]
    weight = s.gather(1, chosen)
    return chosen, weight / (weight.sum(-1, keepdim=True) + 1e-20) * scaling


def moe(x, w, c):
    """x [T, D] -> ([T, D], chosen [T, top], weights [T, top])."""
    chosen, weight = route(
        x @ w("gate.weight").T,
        w("gate.e_score_correction_bias"),
        c["num_experts_per_token"],
        c["routed_scaling_factor"],
    )
    z = x @ w("routed_expert_down_proj.weight").T  # [T, latent]
    y = torch.zeros_like(z)
    for e in range(c["num_experts"]):
        t, slot = torch.nonzero(chosen == e, as_tuple=True)
        if len(t):
            g, u = z[t] @ w(f"experts.{e}.w1").T, z[t] @ w(f"experts.{e}.w3").T
            a = situ(g, u, c["activation_situ_beta"], c["activation_situ_linear_beta"])
            y[t] += weight[t, slot][:, None] * (a @ w(f"experts.{e}.w2").T)
    y = rms_norm(y, w("routed_expert_norm.weight"), c["rms_norm_eps"])
    out = y @ w("routed_expert_up_proj.weight").T
    return out + mlp(x, lambda name: w("shared_experts." + name), c), chosen, weight


# --- the model -----------------------------------------------------------------------------


class Reference:
    def __init__(self, directory, dtype=torch.float64):
        with open(os.path.join(directory, "config.json")) as f:
            self.config = json.load(f)
        self.c = self.config["text_config"]
        stored = {}
        for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
            stored.update(safetensors.read(path))
        self.weights = {}
        for name, t in stored.items():
            if name.endswith(".weight_packed"):
                base = name[: -len(".weight_packed")]
                self.weights[base] = mxfp4.unpack(t, stored[base + ".weight_scale"]).to(dtype)
            elif not name.endswith(".weight_scale"):
                self.weights[name] = t.to(dtype)

    def forward(self, ids, core=kda_recurrent, trace=None):
        """Token ids of one sequence from a fresh state -> logits [T, vocab].  `trace`, a dict,
        receives the activations after each stage."""
        c = self.c
        eps = c["rms_norm_eps"]
        trace = {} if trace is None else trace

        def w(name):
            return self.weights["language_model." + name]

        def mix(p, bank, name):
            return attn_res_mix(bank, p, w(name + "_norm.weight"), w(name + "_proj.weight")[0], eps)

        p = w("model.embed_tokens.weight")[torch.as_tensor(ids)]  # [T, D]
        trace["embed"] = p
        bank = []
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            h = mix(p, bank, layer + "self_attention_res") if bank else p
            boundary = i % c["attn_res_block_size"] == 0
            if boundary:
                bank.append(p)
            x = rms_norm(h, w(layer + "input_layernorm.weight"), eps)

            def attn(name, layer=layer):
                return w(layer + "self_attn." + name)

            full = i + 1 in c["linear_attn_config"]["full_attn_layers"]
            a = mla(x, attn, c) if full else kda(x, attn, c, core)
            p = a if boundary else p + a
            h = mix(p, bank, layer + "mlp_res")
            x = rms_norm(h, w(layer + "post_attention_layernorm.weight"), eps)
            if i < c["first_k_dense_replace"]:
                m = mlp(x, lambda name, layer=layer: w(layer + "mlp." + name), c)
            else:
                m, chosen, weight = moe(x, lambda name, layer=layer: w(layer + "block_sparse_moe." + name), c)
                trace[f"layer.{i}.experts"], trace[f"layer.{i}.expert_weights"] = chosen, weight
            p = p + m
            trace[f"layer.{i}.prefix"] = p
        x = rms_norm(mix(p, bank, "model.output_attn_res"), w("model.norm.weight"), eps)
        trace["final"] = x
        return x @ w("lm_head.weight").T

    def nll(self, window):
        """Sum of -ln p(token | tokens before it in this window), first token not scored."""
        logp = torch.log_softmax(self.forward(window[:-1], core=kda_chunked), -1)
        return -logp.gather(1, torch.as_tensor(window[1:])[:, None]).sum().item()


def main():
    import text
    import train
    from tokenizer import Tokenizer

    _, held = text.split()
    windows = train.heldout_windows(Tokenizer.load(sys.argv[1]), held)
    reference = Reference(sys.argv[1], torch.float32)
    with torch.no_grad():
        nll = sum(reference.nll(window) for window in windows)
    size = sum(len(d.encode()) for d in held)
    print(f"held-out: {nll / math.log(2) / size:.4f} bits per byte over {size} bytes")


if __name__ == "__main__":
    main()
