# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==5.23.0", "onnx==1.18.0", "onnxscript==0.7.2", "numpy==2.4.6"]
# ///
"""Writes the models and data sets of the examples.

    digits/model.onnx    an MLP for 8x8 images: 64 -> 128 -> 128 -> 10 with ReLU; input x [batch, 1, 8, 8], output logits [batch, 10]
    digits/train.npz     2048 drawings of digits: x [n, 1, 8, 8] float32 in [0, 1], y [n] int64, the digit
    digits/test.npz      512 more
    tiny-gpt/model.onnx  a GPT-2 over bytes: 3 blocks, width 96, 4 heads, tied head; input tokens [8, 64] int64, output logits [8, 64, 256]

    towers/model.onnx    two towers that map pairs to one space, with a learned temperature and their loss inside: inputs a [16, 12] and b [16, 20],
                         output loss []
    towers/train.npz     1024 pairs: a [n, 12] and b [n, 20] float32, two views of one hidden point

Nothing is downloaded: the weights are the random ones that training starts from, the images are drawn here, and tiny-gpt/corpus.txt
is a text of the project's own that this script leaves alone. Two runs write the same bytes.

The files are in the repository, so training needs neither this script nor Python. To write them again:

    uv run examples/export.py
    pip install torch transformers onnx onnxscript numpy && python examples/export.py
"""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

HERE = Path(__file__).resolve().parent


def main():
    export_digits(HERE / "digits" / "model.onnx")
    draw_digits(HERE / "digits" / "train.npz", count=2048, seed=1)
    draw_digits(HERE / "digits" / "test.npz", count=512, seed=2)
    export_tiny_gpt(HERE / "tiny-gpt" / "model.onnx")
    export_towers(HERE / "towers" / "model.onnx")
    draw_pairs(HERE / "towers" / "train.npz", count=1024, seed=3)


def export_digits(path):
    """The MLP, by the TorchScript exporter in training form: parameters keep their names, and the batch stays a symbol."""
    torch.manual_seed(1)
    layers = [
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(64, 128)),
        ("relu1", nn.ReLU()),
        ("fc2", nn.Linear(128, 128)),
        ("relu2", nn.ReLU()),
        ("fc3", nn.Linear(128, 10)),
    ]
    torch.onnx.export(
        nn.Sequential(OrderedDict(layers)),
        (torch.zeros(2, 1, 8, 8),),
        path,
        dynamo=False,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        opset_version=17,
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}},
    )
    strip(path)


def export_tiny_gpt(path):
    """The GPT, by the dynamo exporter without its optimizer, which would merge parameters of equal value and rename others."""
    torch.manual_seed(2)
    config = GPT2Config(
        n_layer=3,
        n_embd=96,
        n_head=4,
        n_positions=64,
        vocab_size=256,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    torch.onnx.export(
        GPT2LMHeadModel(config).eval(),
        (torch.zeros(8, 64, dtype=torch.long),),
        path,
        kwargs={"use_cache": False},
        dynamo=True,
        optimize=False,
        external_data=False,
        verbose=False,
        input_names=["tokens"],
        output_names=["logits"],
    )
    strip(path)


class Towers(nn.Module):
    """Contrastive learning of pairs (Radford et al., 2021): each a is to be nearest to its own b among the batch, and each b to its a."""

    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 8))
        self.b = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 8))
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, a, b):
        a, b = (nn.functional.normalize(tower(x), dim=-1) for tower, x in ((self.a, a), (self.b, b)))
        scores = self.logit_scale.exp() * a @ b.T
        own = torch.arange(len(a))
        return (nn.functional.cross_entropy(scores, own) + nn.functional.cross_entropy(scores.T, own)) / 2


def export_towers(path):
    """The towers, by the dynamo exporter, whose record says that the temperature is a parameter."""
    torch.manual_seed(3)
    torch.onnx.export(
        Towers(),
        (torch.zeros(16, 12), torch.zeros(16, 20)),
        path,
        dynamo=True,
        optimize=False,
        external_data=False,
        verbose=False,
        input_names=["a", "b"],
        output_names=["loss"],
    )
    strip(path)


def draw_pairs(path, count, seed):
    rng = np.random.default_rng(seed)
    point = rng.normal(size=(count, 4))
    views = {name: np.tanh(point @ rng.normal(size=(4, width))) + rng.normal(0.0, 0.1, (count, width)) for name, width in (("a", 12), ("b", 20))}
    np.savez_compressed(path, **{name: (np.round(view * 64) / 64).astype(np.float32) for name, view in views.items()})


# What the exporter notes of the module: its parameters and buffers by name, what each tensor is, and the call and module of each node.
RECORD = (
    "pkg.torch.export.ExportedProgram.graph_signature",
    "pkg.torch.export.graph_signature.InputSpec.kind",
    "pkg.torch.onnx.fx_node",
    "pkg.torch.onnx.name_scopes",
)


def strip(path):
    """Keeps the exporter's record of the module, by which shardc knows what is trained and where, and drops the rest of its notes:
    they hold source lines and folders of the machine."""
    model = onnx.load(path)
    graph = model.graph
    for noted in [graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        kept = [p for p in noted.metadata_props if p.key in RECORD]
        del noted.metadata_props[:]
        noted.metadata_props.extend(kept)
        if hasattr(noted, "doc_string"):
            noted.ClearField("doc_string")
    path.write_bytes(model.SerializeToString(deterministic=True))


def draw_digits(path, count, seed):
    """Digits of random size, place, slant, pen and brightness under noise, in steps of 1/16."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    images = np.stack([draw_digit(digit, rng) for digit in labels])[:, None]
    np.savez_compressed(path, x=(np.round(images * 16) / 16).astype(np.float32), y=labels.astype(np.int64))


def draw_digit(digit, rng):
    """One image [8, 8] in [0, 1]."""
    height, width = rng.uniform(4.5, 6.5), rng.uniform(2.5, 4.0)
    top, left = rng.uniform(0.0, 7.0 - height), rng.uniform(0.5, 6.5 - width)
    slant, pen, ink = rng.uniform(-0.1, 0.2), rng.uniform(0.45, 0.8), rng.uniform(0.7, 1.0)

    corners = [(row, column) for row in (0.0, 0.5, 1.0) for column in (0.0, 1.0)]
    ends = [(0, 1), (0, 2), (1, 3), (2, 3), (2, 4), (3, 5), (4, 5)]  # of each segment, in `corners`
    points = [(top + row * height, left + column * width + slant * (0.5 - row) * height) for row, column in corners]

    pixels = np.stack(np.meshgrid(np.arange(8.0), np.arange(8.0), indexing="ij"), axis=-1)
    image = np.zeros((8, 8))
    for lit, (start, end) in zip(SEGMENTS[digit], ends):
        if lit == "1":
            image = np.maximum(image, np.clip(1.5 - distance(pixels, points[start], points[end]) / pen, 0.0, 1.0))
    return np.clip(ink * image + rng.normal(0.0, 0.08, (8, 8)), 0.0, 1.0)


def distance(points, start, end):
    """From each of `points` [..., 2] to the line segment from `start` to `end`."""
    start, along = np.asarray(start), np.subtract(end, start)
    at = np.clip((points - start) @ along / (along @ along), 0.0, 1.0)
    return np.linalg.norm(points - start - at[..., None] * along, axis=-1)


if __name__ == "__main__":
    main()
