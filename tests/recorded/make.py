# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==5.23.0", "onnx==1.18.0", "onnxscript==0.7.2", "numpy==2.4.6"]
# ///
"""Exports small nets with the record that PyTorch's dynamo exporter leaves of their parameters, and trains them in PyTorch.

A folder NAME for each net:

    plain.onnx    the exporter without its optimizer (`optimize=False`), of the fresh weights: nothing is lost
    default.onnx  the exporter as it is by default, of the fresh weights, many of which are equal, zeros or ones
    random.onnx   the exporter as it is by default, after every parameter was made random, as after real training
    data.npz      the model's inputs and the labels `y`, if it has any: the samples of 5 steps of 8
    gold.json     loss: the lines of the spec; fresh, random: PyTorch's losses and gradient norms in 5 steps of AdamW (lr 1e-3, betas
                  0.9 and 0.999, eps 1e-8, weight decay 0.01 on all) from either weights, in f32 and f64; parameters: those that are
                  trained, by name; lost: those that default.onnx and random.onnx lack

The files keep the exporter's record (`RECORD`); stack traces and all else that names folders of the machine are dropped. What is lost
is found without the record: a parameter is held by an initializer of its name and value, or by one of a made-up name with the same
elements in another order, alone or joined to others of its module. LOST lists what that must find.

    python tests/recorded/make.py [NAME ...]
"""

import contextlib
import io
import itertools
import json
import logging
import math
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import nn

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
torch.set_num_threads(1)

HERE = Path(__file__).resolve().parent
STEPS, BATCH = 5, 8

RECORD = (
    "pkg.torch.export.ExportedProgram.graph_signature",
    "pkg.torch.export.graph_signature.InputSpec.kind",
    "pkg.torch.onnx.fx_node",
    "pkg.torch.onnx.name_scopes",
    "pkg.onnxscript.optimizer.folded_from",
)


class Logits(nn.Module):
    """The logits of a model of transformers; its head is tied to its embedding."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x, use_cache=False).logits


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=16, n_head=2, n_inner=16, n_positions=8, vocab_size=24, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
    )  # fmt: skip
    return Logits(GPT2LMHeadModel(config))


class Batchnorm(nn.Module):
    """Two convolutions without bias, each before a batch normalisation."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 5)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return self.fc(F.relu(self.bn2(self.conv2(h))).mean((2, 3)))


class AffineFree(nn.Module):
    """A batch normalisation without scale and bias after a convolution."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8, affine=False)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(F.relu(self.bn(self.conv(x))).mean((2, 3)))


class Tower(nn.Module):
    """An MLP with a normalisation at each end."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 24), nn.Linear(24, 16, bias=False)
        self.last = nn.LayerNorm(16)

    def forward(self, x):
        return self.last(self.down(F.gelu(self.up(self.first(x)))))


class Towers(nn.Module):
    """Two towers that learn which of their samples belong together; the loss is the model's own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Tower(10), Tower(16)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, a, b):
        a, b = F.normalize(self.a(a), dim=-1), F.normalize(self.b(b), dim=-1)
        scores = self.logit_scale.exp() * a @ b.t()
        pairs = torch.arange(a.shape[0])
        return (F.cross_entropy(scores, pairs) + F.cross_entropy(scores.t(), pairs)) / 2


class Encoder(nn.Module):
    """PyTorch's own encoder of three layers, which begin as copies of one."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.encoder(x).mean(1))


class Lstm(nn.Module):
    """Two layers, whose weights the exporter joins, and a normalisation that is called twice with the same."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 6, num_layers=2, batch_first=True)
        self.norm, self.fc, self.gate = nn.LayerNorm(6), nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x):
        h = self.lstm(x)[0][:, -1]
        return self.fc(self.norm(h)) * self.gate(self.norm(h)).sigmoid()


class Block(nn.Module):
    """A block of a transformer, normalised first."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = ((q @ k.transpose(-1, -2)) * (c // self.heads) ** -0.5).softmax(-1) @ v
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Vit(nn.Module):
    """Patches, a class token, positions."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 12, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 12))
        self.positions = nn.Parameter(torch.randn(1, 5, 12) * 0.02)
        self.blocks = nn.ModuleList([Block(12, 2), Block(12, 2)])
        self.norm, self.fc = nn.LayerNorm(12), nn.Linear(12, 5)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(h.shape[0], -1, -1), h], 1) + self.positions
        for block in self.blocks:
            h = block(h)
        return self.fc(self.norm(h)[:, 0])


class Buffers(nn.Module):
    """Tensors that are not what their use, their values or their names make of them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        at = torch.arange(6.0)[:, None] * torch.exp(torch.arange(0, 12, 2.0) * (-math.log(100.0) / 12))
        self.register_buffer("positions", torch.stack([at.sin(), at.cos()], -1).flatten(1))
        self.fc = nn.Linear(12, 12, bias=False)
        self.register_buffer("offset", torch.linspace(-0.3, 0.4, 12))
        self.register_buffer("projection", torch.randn(12, 12) * 0.3)
        ago = (torch.arange(6.0)[:, None] - torch.arange(6.0)).clamp(min=0)
        self.register_buffer("decay", torch.exp(-ago / 3).tril())
        self.frequencies = nn.Parameter(torch.linspace(0.5, 2.0, 12))
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.running_mean = nn.Parameter(torch.linspace(0.2, -0.1, 12))
        same = torch.randn(12, 12) * 0.2
        self.left, self.right = nn.Parameter(same.clone()), nn.Parameter(same.clone())
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        h = self.embed(x) + self.positions
        h = self.fc(h) + self.offset
        h = h + torch.sin(h * self.frequencies)
        h = F.linear(h, self.projection) + self.running_mean
        scores = (h @ self.left) @ (h @ self.right).transpose(1, 2) * self.temperature
        h = h + (scores.softmax(-1) * self.decay) @ h
        return self.head(h.mean(1) * torch.tensor([0.5, 1.0, 1.5] * 4))


class Parts(nn.Module):
    """Views and rows of parameters that are equal at first: to each other, to a buffer, to nothing at all."""

    def __init__(self):
        super().__init__()
        self.scale1, self.shift1 = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.scale2, self.shift2 = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.rows = nn.Parameter(torch.full((3, 8), 0.9))
        self.register_buffer("offset", torch.zeros(8))
        self.token = nn.Parameter(torch.zeros(1, 8))
        self.gain = nn.Parameter(torch.ones(()))
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        h = torch.tanh(x * self.scale1.view(1, 1, 8) + self.shift1.view(1, 1, 8))
        h = torch.tanh(h * self.scale2.view(1, 1, 8) + self.shift2.view(1, 1, 8))
        for i in range(3):
            h = torch.tanh(h * self.rows[i])
        return self.fc(torch.tanh(h + self.offset).mean(1) + self.token[0]) * self.gain


class Padding(nn.Module):
    """A table whose first row its lookup does not train, while the head does."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 12, padding_idx=0)
        self.fc, self.head = nn.Linear(12, 12), nn.Linear(12, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(torch.tanh(self.fc(self.table(x))).mean(1))


def images(rng):
    y = rng.integers(0, 5, STEPS * BATCH)
    shapes = rng.standard_normal((5, 3, 8, 8))
    return dict(x=(shapes[y] + 0.8 * rng.standard_normal((len(y), 3, 8, 8))).astype(np.float32), y=y)


def sequences(width):
    def make(rng):
        y = rng.integers(0, 5, STEPS * BATCH)
        shapes = rng.standard_normal((5, 6, width))
        return dict(x=(shapes[y] + 0.8 * rng.standard_normal((len(y), 6, width))).astype(np.float32), y=y)

    return make


def words(rng):
    y = rng.integers(0, 5, STEPS * BATCH)
    return dict(x=(rng.integers(0, 8, (len(y), 6)) + 3 * y[:, None]) % 20, y=y)


def tokens(rng):
    text = (np.cumsum(rng.integers(0, 4, (STEPS * BATCH, 9)), 1)) % 24
    return dict(x=text[:, :-1], y=text[:, 1:])


def pairs(rng):
    z = rng.standard_normal((STEPS * BATCH, 6))
    make = lambda width: (z @ rng.standard_normal((6, width)) + 0.5 * rng.standard_normal((len(z), width))).astype(np.float32)
    return dict(a=make(10), b=make(16))


# The module, its data.
NETS = {
    "gpt2": (gpt2, tokens),
    "batchnorm": (Batchnorm, images),
    "affine-free": (AffineFree, images),
    "towers": (Towers, pairs),
    "encoder": (Encoder, sequences(8)),
    "lstm": (Lstm, sequences(6)),
    "vit": (Vit, images),
    "buffers": (Buffers, words),
    "parts": (Parts, sequences(8)),
    "padding": (Padding, words),
}

# What the default export lacks of each net: of the fresh weights, of random ones. The optimizer merges equal tensors into the first, so
# that one vector of ones and one of zeros stays of each size; it folds what it can compute, and normalisations into convolutions.
LOST = {
    "gpt2": (
        "h.0: attn.c_attn.bias attn.c_proj.bias ln_2.weight ln_2.bias mlp.c_fc.bias mlp.c_proj.bias; "
        "h.1: ln_1.weight ln_1.bias attn.c_attn.bias attn.c_proj.bias ln_2.weight ln_2.bias mlp.c_fc.bias mlp.c_proj.bias; "
        "ln_f: weight bias",
        "",
    ),
    "batchnorm": ("conv1: weight; bn1: weight bias; conv2: weight; bn2: weight bias",) * 2,
    "affine-free": ("conv: weight bias",) * 2,
    "towers": ("logit_scale; b.first: weight bias; b.last: weight bias", "logit_scale"),
    "encoder": (
        "0: self_attn.out_proj.bias norm2.weight norm2.bias; "
        + "".join(
            f"{layer}: self_attn.in_proj_weight self_attn.in_proj_bias self_attn.out_proj.weight self_attn.out_proj.bias linear1.weight "
            "linear1.bias linear2.weight linear2.bias norm1.weight norm1.bias norm2.weight norm2.bias; "
            for layer in (1, 2)
        ),
        "",
    ),
    "lstm": ("", ""),
    "vit": (
        "token; blocks.0: norm2.weight norm2.bias; blocks.1: norm1.weight norm1.bias norm2.weight norm2.bias; norm: weight bias",
        "token",
    ),
    "buffers": ("right", ""),
    "parts": ("scale2; shift2; rows; token; gain", "rows"),
    "padding": ("", ""),
}
PREFIX = {"gpt2": "model.transformer.", "encoder": "encoder.layers."}


def expected(name):
    def names(text):
        for part in filter(None, (part.strip() for part in text.split(";"))):
            module, _, members = part.rpartition(":")
            yield from (f"{PREFIX.get(name, '')}{module}{'.' if module else ''}{member}" for member in members.split())

    return dict(zip(("default", "random"), (list(names(text)) for text in LOST[name])))


def strip(path):
    """Keeps the record and drops the rest of the exporter's notes: they hold source lines and folders of the machine."""
    model = onnx.load(path)
    assert not model.functions
    graph = model.graph
    for noted in [model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        kept = [p for p in noted.metadata_props if p.key in RECORD]
        del noted.metadata_props[:]
        noted.metadata_props.extend(kept)
        noted.ClearField("doc_string")
    path.write_bytes(model.SerializeToString(deterministic=True))


def export(module, batch, path, **options):
    inputs = {k: torch.from_numpy(v[:BATCH]) for k, v in batch.items() if k != "y"}
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(
            module.eval(), tuple(inputs.values()), path, dynamo=True, external_data=False, verbose=False,
            input_names=list(inputs), output_names=["logits" if "y" in batch else "loss"], **options,
        )  # fmt: skip
    strip(path)


def loss_of(module, data, dtype):
    inputs = [torch.from_numpy(v).to(dtype) if v.dtype == np.float32 else torch.from_numpy(v) for k, v in data.items() if k != "y"]
    out = module(*inputs)
    return F.cross_entropy(out.flatten(0, -2), torch.from_numpy(data["y"]).flatten()) if "y" in data else out


def train(make, state, data, dtype):
    module = make()
    module.load_state_dict(state)
    module = module.to(dtype).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses, norms = [], []
    for step in range(STEPS):
        loss = loss_of(module, {k: v[step * BATCH : (step + 1) * BATCH] for k, v in data.items()}, dtype)
        optimizer.zero_grad()
        loss.backward()
        norms.append(math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in module.parameters() if p.grad is not None)))
        losses.append(float(loss.detach()))
        optimizer.step()
    return dict(loss=losses, grad_norm=norms)


def receiving(module, data):
    """The parameters that receive gradients, each once: a tie has the name that comes first."""
    module.train()
    loss_of(module, {k: v[:BATCH] for k, v in data.items()}, torch.float32).backward()
    return [name for name, p in module.named_parameters() if p.grad is not None]


def tensors(path):
    """The initializers and constants of the file, by name."""
    graph = onnx.load(path).graph
    found = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def lost(path, module, names):
    """The parameters among `names` that the file does not hold."""
    state, held = module.state_dict(), tensors(path)
    called = {}  # All names of each parameter.
    for name, p in module.named_parameters(remove_duplicate=False):
        called.setdefault(id(p), []).append(name)
    called = {n: all_names for all_names in called.values() for n in all_names}
    same = lambda a, b: a.size == b.size and np.array_equal(np.sort(a, None), np.sort(b, None))
    value = {name: state[name].numpy() for name in names}
    left = [n for n in names if not any(np.array_equal(held[c], value[n]) for c in called[n] if c in held)]
    made_up = {n: v for n, v in held.items() if n not in state and v.dtype == np.float32}
    for tensor in made_up.values():
        beside = lambda parts: len({n.rpartition(".")[0] for n in parts}) == 1
        parts = [(n,) for n in left] + [two for two in itertools.combinations(left, 2) if beside(two)]
        of = next((part for part in parts if same(tensor, np.concatenate([value[n].ravel() for n in part]))), ())
        left = [n for n in left if n not in of]
    return left


def main(names):
    for name in names:
        make, draw = NETS[name]
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        torch.manual_seed(1)
        module = make()
        data = draw(np.random.default_rng(1))
        fresh = {k: v.clone() for k, v in module.state_dict().items()}
        trained = receiving(make(), data)
        found = {}
        export(module, data, folder / "plain.onnx", optimize=False)
        export(module, data, folder / "default.onnx")
        assert lost(folder / "plain.onnx", module, trained) == []
        found["default"] = lost(folder / "default.onnx", module, trained)
        with torch.no_grad():
            for p in module.parameters():
                p.add_(torch.randn_like(p) * 0.05)
            for buffer, b in module.named_buffers():
                if buffer.endswith(("running_mean", "running_var")):
                    b.add_(torch.rand_like(b) * 0.2)
        random = {k: v.clone() for k, v in module.state_dict().items()}
        export(module, data, folder / "random.onnx")
        found["random"] = lost(folder / "random.onnx", module, trained)
        np.savez_compressed(folder / "data.npz", **data)
        assert found == expected(name), f"{name} lacks {found}"
        runs = {
            start: {k: train(make, state, data, d) for k, d in (("float32", torch.float32), ("float64", torch.float64))}
            for start, state in (("fresh", fresh), ("random", random))
        }
        loss = "loss cross_entropy logits=logits labels=y" if "y" in data else "loss output=loss"
        gold = dict(loss=loss, parameters=trained, lost=found, **runs)
        (folder / "gold.json").write_text(json.dumps(gold, indent=1) + "\n")
        sizes = [(folder / f"{kind}.onnx").stat().st_size for kind in ("plain", "default", "random")]
        print(name, sizes, [round(x, 4) for x in runs["fresh"]["float64"]["loss"]], runs["fresh"]["float64"]["grad_norm"][0])


if __name__ == "__main__":
    main(sys.argv[1:] or list(NETS))
