"""Writes a model's graph without its weights, whose bytes then lie in a file `weights.data` that is not there.

    python without_weights.py MODEL.onnx GRAPH.onnx

Kernels follow from shapes alone, so this is enough to generate them: `gpt2-124m` and `char-gpt` beside this file are made so.
"""

import sys

import onnx

model = onnx.load(sys.argv[1])
end = 0
for tensor in model.graph.initializer:
    size = len(tensor.raw_data)
    if size < 2048 or tensor.data_type != onnx.TensorProto.FLOAT:
        continue
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights.data"), ("offset", end), ("length", size)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    end += size
onnx.save(model, sys.argv[2])
print(f"{end} bytes of weights left out")
