"""What a user would pick instead: training steps of GPT-2 124M in PyTorch on one GPU, timed.

    python torch_step.py [eager|compile] [STEPS]

Batches of 32 x 1024 tokens, matrix products in bf16, parameters and AdamW in f32, random weights. Prints one line.
"""

import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH, BATCH = 768, 12, 12, 50304, 1024, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.c_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        samples, length, _ = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(samples, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(samples, length, WIDTH))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)

    def forward(self, x):
        h = self.wte(x) + self.wpe.weight
        for block in self.blocks:
            h = block(h)
        return F.linear(self.ln_f(h), self.wte.weight)


def main():
    mode = sys.argv[1] if len(sys.argv) > 1 else "compile"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    began = time.perf_counter()
    gpt = Gpt().cuda()
    model = torch.compile(gpt) if mode == "compile" else gpt
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    x = torch.randint(0, VOCABULARY, (BATCH, LENGTH), device="cuda")
    y = torch.randint(0, VOCABULARY, (BATCH, LENGTH), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(x)
            loss = F.cross_entropy(logits.view(-1, VOCABULARY).float(), y.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    for _ in range(3):
        step()
    seconds = []
    for _ in range(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    middle, peak = statistics.median(seconds), torch.cuda.max_memory_allocated() / 2**30
    print(f"PyTorch {torch.__version__} {mode}: {middle * 1e3:.1f} ms a step, {BATCH * LENGTH / middle:.0f} tokens/s, "
          f"peak {peak:.1f} GiB, first step within {first:.1f} s")


main()
