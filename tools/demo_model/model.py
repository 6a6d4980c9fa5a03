"""Kimi K3 in PyTorch for training: f32, all positions of a batch at once.

Written for speed on a CPU; reference.py is the plain statement of the same
formulas.  Tensors are [batch, time, channels] unless a comment says otherwise.
"""

import ctypes
import math
import os
import subprocess
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

import config
import mxfp4


# --- rounding with straight-through gradients -------------------------------------


class Rounding:
    """What weights pass through before use; switched on late in training."""

    experts = False  # routed experts through MXFP4
    trunk = False  # everything stored as BF16


def straight(w, rounded):
    return w + (rounded - w).detach()


def trunk(w):
    return straight(w, w.detach().bfloat16().float()) if Rounding.trunk else w


class Linear(nn.Module):
    def __init__(self, inputs, outputs, gain=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * gain / math.sqrt(inputs))

    def forward(self, x):
        return F.linear(x, trunk(self.weight))


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return RmsNorm.apply(x, trunk(self.weight), self.eps)


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, w, r)
        return x * r * w

    @staticmethod
    def backward(ctx, dy):
        x, w, r = ctx.saved_tensors
        y = x * r
        dw = (dy * y).flatten(0, -2).sum(0)
        dyw = dy * w
        return r * (dyw - y * (dyw * y).mean(-1, keepdim=True)), dw, None


class Situ(torch.autograd.Function):
    """[b tanh(g/b) sigmoid(g)] * [c tanh(u/c)]."""

    @staticmethod
    def forward(ctx, g, u, b, c):
        tg, tu, s = torch.tanh(g / b), torch.tanh(u / c), torch.sigmoid(g)
        ctx.save_for_backward(tg, tu, s)
        ctx.betas = b, c
        return (tg * s).mul_(tu).mul_(b * c)

    @staticmethod
    def backward(ctx, dy):
        tg, tu, s = ctx.saved_tensors
        b, c = ctx.betas
        dg = dy * tu * s * ((1 - tg * tg) + b * tg * (1 - s)) * c
        du = dy * tg * s * (1 - tu * tu) * b
        return dg, du, None, None


# --- Kimi Delta Attention ----------------------------------------------------------


def _kernel(head_dim):
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kda_train.c")
    library = os.path.join(tempfile.mkdtemp(), "kda_train.so")
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC", f"-DD={head_dim}"]
    subprocess.run(["cc", *flags, source, "-o", library, "-lm"], check=True)
    return ctypes.CDLL(library)


class KdaCore(torch.autograd.Function):
    """q, k, v, g [batch, time, heads, d], beta [batch, time, heads] -> o as q."""

    library = None

    @staticmethod
    def _run(function, sizes, arrays):
        getattr(KdaCore.library, function)(*sizes, *(ctypes.c_void_p(a.data_ptr()) for a in arrays))

    @staticmethod
    def forward(ctx, q, k, v, g, beta):
        if KdaCore.library is None:
            KdaCore.library = _kernel(q.shape[-1])
        args = [a.transpose(1, 2).contiguous() for a in (q, k, v, g, beta)]  # [batch, heads, time, ...]
        ctx.sizes = args[0].shape[0] * args[0].shape[1], args[0].shape[2]
        ctx.save_for_backward(*args)
        o = torch.empty_like(args[0])
        KdaCore._run("kda_forward", ctx.sizes, [*args, o])
        return o.transpose(1, 2)

    @staticmethod
    def backward(ctx, do):
        args = ctx.saved_tensors
        grads = [torch.empty_like(a) for a in args]
        KdaCore._run("kda_backward", ctx.sizes, [*args, do.transpose(1, 2).contiguous(), *grads])
        return tuple(a.transpose(1, 2) for a in grads)


def l2_normalised(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + config.L2_EPS)


class Kda(nn.Module):
    def __init__(self, c):
        super().__init__()
        lin, hidden = c["linear_attn_config"], c["hidden_size"]
        self.heads, self.d = lin["num_heads"], lin["head_dim"]
        self.taps, self.bound = lin["short_conv_kernel_size"], lin["gate_lower_bound"]
        width = self.heads * self.d
        for name in "qkvg":
            setattr(self, name + "_proj", Linear(hidden, width))
        self.o_proj = Linear(width, hidden, 0.5)
        self.f_a_proj, self.f_b_proj = Linear(hidden, self.d), Linear(self.d, width, 0.5)
        self.b_proj = Linear(hidden, self.heads)
        for name in "qkv":
            taps = torch.randn(width, 1, self.taps) * 0.1
            taps[:, :, -1] += 1.0
            setattr(self, name + "_conv1d", nn.Module())
            getattr(self, name + "_conv1d").weight = nn.Parameter(taps)
        self.A_log = nn.Parameter(torch.zeros(self.heads))
        # decay rates spread between exp(-0.003) and exp(-1.5) where the gate input is zero
        start = torch.exp(torch.empty(width).uniform_(math.log(0.003), math.log(1.5)))
        self.dt_bias = nn.Parameter(torch.logit(start / -self.bound))
        self.o_norm = Norm(self.d, c["rms_norm_eps"])
        self.hidden_eps = c["rms_norm_eps"]

    def conv(self, x, name):
        taps = getattr(self, name + "_conv1d").weight[:, 0]  # [width, taps]
        x = F.pad(x, (0, 0, self.taps - 1, 0))
        t = x.shape[1] - self.taps + 1
        y = x[:, :t] * taps[:, 0]
        for j in range(1, self.taps):
            y = torch.addcmul(y, x[:, j : j + t], taps[:, j])
        return F.silu(y).unflatten(-1, (self.heads, self.d))

    def forward(self, x):
        q, k, v = (self.conv(getattr(self, n + "_proj")(x), n) for n in "qkv")
        q = l2_normalised(q) * self.d**-0.5
        k = l2_normalised(k)
        beta = torch.sigmoid(self.b_proj(x))
        z = (self.f_b_proj(self.f_a_proj(x)) + self.dt_bias).unflatten(-1, (self.heads, self.d))
        g = self.bound * torch.sigmoid(torch.exp(self.A_log)[:, None] * z)
        o = KdaCore.apply(q, k, v, g, beta)
        o = RmsNorm.apply(o, self.o_norm.weight, self.hidden_eps)
        return self.o_proj(o.flatten(-2) * torch.sigmoid(self.g_proj(x)))


# --- gated MLA without positions ---------------------------------------------------


class Mla(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, self.heads = c["hidden_size"], c["num_attention_heads"]
        self.nope, self.rope, self.v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.rank = c["kv_lora_rank"]
        self.q_a_proj = Linear(hidden, c["q_lora_rank"])
        self.q_a_layernorm = Norm(c["q_lora_rank"], config.LATENT_EPS)
        self.q_b_proj = Linear(c["q_lora_rank"], self.heads * (self.nope + self.rope))
        self.kv_a_proj_with_mqa = Linear(hidden, self.rank + self.rope)
        self.kv_a_layernorm = Norm(self.rank, config.LATENT_EPS)
        self.kv_b_proj = Linear(self.rank, self.heads * (self.nope + self.v))
        self.g_proj = Linear(hidden, self.heads * self.v)
        self.o_proj = Linear(self.heads * self.v, hidden, 0.5)

    def forward(self, x):
        t = x.shape[1]
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        c, kpe = self.kv_a_proj_with_mqa(x).split([self.rank, self.rope], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(c)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k_nope, v = kv.split([self.nope, self.v], -1)
        k = torch.cat([k_nope, kpe[:, None].expand(-1, self.heads, -1, -1)], -1)
        score = (q * (self.nope + self.rope) ** -0.5) @ k.transpose(-1, -2)
        score += torch.full((t, t), -1e30).triu(1)
        out = (torch.softmax(score, -1) @ v).transpose(1, 2).flatten(-2)
        return self.o_proj(out * torch.sigmoid(self.g_proj(x)))


# --- feed-forward --------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self, c, width):
        super().__init__()
        self.betas = c["activation_situ_beta"], c["activation_situ_linear_beta"]
        self.gate_proj = Linear(c["hidden_size"], width)
        self.up_proj = Linear(c["hidden_size"], width)
        self.down_proj = Linear(width, c["hidden_size"], 0.5)

    def forward(self, x):
        return self.down_proj(Situ.apply(self.gate_proj(x), self.up_proj(x), *self.betas))


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, latent, inner = c["hidden_size"], c["routed_expert_hidden_size"], c["moe_intermediate_size"]
        self.experts, self.top = c["num_experts"], c["num_experts_per_token"]
        self.betas = c["activation_situ_beta"], c["activation_situ_linear_beta"]
        self.scaling = c["routed_scaling_factor"]
        self.gate = Linear(hidden, self.experts)
        self.register_buffer("bias", torch.zeros(self.experts))  # e_score_correction_bias
        self.register_buffer("load", torch.zeros(self.experts))  # tokens since the last bias update
        self.routed_expert_down_proj = Linear(hidden, latent)
        self.routed_expert_norm = Norm(latent, c["rms_norm_eps"])
        self.routed_expert_up_proj = Linear(latent, hidden, 0.5)
        self.w1 = nn.Parameter(torch.randn(self.experts, inner, latent) / math.sqrt(latent))
        self.w3 = nn.Parameter(torch.randn(self.experts, inner, latent) / math.sqrt(latent))
        self.w2 = nn.Parameter(torch.randn(self.experts, latent, inner) / math.sqrt(inner))
        self.shared_experts = Mlp(c, inner * c["num_shared_experts"])

    def forward(self, x):
        shape = x.shape
        x = x.flatten(0, 1)  # [tokens, hidden]
        score = torch.sigmoid(self.gate(x))
        chosen = torch.topk(score.detach() + self.bias, self.top, -1).indices  # [tokens, top]
        weight = score.gather(1, chosen)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * self.scaling
        order = torch.argsort(chosen.flatten(), stable=True)  # assignments sorted by expert
        counts = torch.bincount(chosen.flatten(), minlength=self.experts)
        if self.training:
            self.load += counts
        z = self.routed_expert_down_proj(x)
        rows = z.index_select(0, order // self.top).split(counts.tolist())
        w1, w3, w2 = (
            (straight(w, mxfp4.fake(w.detach())) if Rounding.experts else w).unbind(0)
            for w in (self.w1, self.w3, self.w2)
        )
        g = torch.cat([F.linear(r, w1[e]) for e, r in enumerate(rows)])
        u = torch.cat([F.linear(r, w3[e]) for e, r in enumerate(rows)])
        a = Situ.apply(g, u, *self.betas) * weight.flatten().index_select(0, order)[:, None]
        y = torch.cat([F.linear(r, w2[e]) for e, r in enumerate(a.split(counts.tolist()))])
        y = y.index_select(0, torch.argsort(order)).unflatten(0, (-1, self.top)).sum(1)
        out = self.routed_expert_up_proj(self.routed_expert_norm(y)) + self.shared_experts(x)
        return out.reshape(shape)

    @torch.no_grad()
    def balance(self, rate):
        """Loss-free balancing: raise the bias of experts that got too few tokens."""
        self.bias += rate * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


# --- block attention residuals ----------------------------------------------------------


class Bank:
    """Pushed residual rows; keeps each row's 1/rms so that a mix costs one matvec a row."""

    def __init__(self, eps):
        self.eps, self.rows, self.scale = eps, [], []

    def rms(self, x):
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def push(self, p):
        self.rows.append(p)
        self.scale.append(self.rms(p))

    def mix(self, p, norm, proj):
        query = trunk(norm.weight) * trunk(proj.weight)[0]
        rows = [*self.rows, p]
        scores = [(v @ query)[..., None] * r for v, r in zip(rows, [*self.scale, self.rms(p)])]
        alpha = torch.softmax(torch.cat(scores, -1), -1)
        out = rows[0] * alpha[..., :1]
        for i in range(1, len(rows)):
            out = torch.addcmul(out, rows[i], alpha[..., i : i + 1])
        return out


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.boundary = index % c["attn_res_block_size"] == 0
        self.self_attn = (Mla if index + 1 in c["linear_attn_config"]["full_attn_layers"] else Kda)(c)
        dense = index < c["first_k_dense_replace"]
        self.ffn_name = "mlp" if dense else "block_sparse_moe"
        setattr(self, self.ffn_name, Mlp(c, c["intermediate_size"]) if dense else Moe(c))
        for name in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
            setattr(self, name, Norm(hidden, eps))
        for name in ("self_attention_res_proj", "mlp_res_proj"):
            setattr(self, name, Linear(hidden, 1, 0.0))

    def forward(self, p, bank):
        h = bank.mix(p, self.self_attention_res_norm, self.self_attention_res_proj) if bank.rows else p
        if self.boundary:
            bank.push(p)
        a = self.self_attn(self.input_layernorm(h))
        p = a if self.boundary else p + a
        h = bank.mix(p, self.mlp_res_norm, self.mlp_res_proj)
        return p + getattr(self, self.ffn_name)(self.post_attention_layernorm(h))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, hidden = c, c["hidden_size"]
        self.embed_tokens = nn.Module()
        self.embed_tokens.weight = nn.Parameter(torch.randn(c["vocab_size"], hidden) * 0.3)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.output_attn_res_norm = Norm(hidden, c["rms_norm_eps"])
        self.output_attn_res_proj = Linear(hidden, 1, 0.0)
        self.norm = Norm(hidden, c["rms_norm_eps"])
        self.lm_head = Linear(hidden, c["vocab_size"], 0.5)

    def forward(self, ids):
        """ids [batch, time] -> logits [batch, time, vocab]."""
        p = F.embedding(ids, trunk(self.embed_tokens.weight))
        bank = Bank(self.c["rms_norm_eps"])
        for layer in self.layers:
            p = layer(p, bank)
        x = bank.mix(p, self.output_attn_res_norm, self.output_attn_res_proj)
        return self.lm_head(self.norm(x))

    def moe_layers(self):
        return [m for m in self.modules() if isinstance(m, Moe)]
