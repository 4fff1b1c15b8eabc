"""Holds `shardc eval --outputs` against ONNX Runtime: python onnx_runtime.py EXPORTED.onnx ORIGINAL.onnx DATA.npz OUTPUTS.npz BATCH

Prints `skip` where onnxruntime, onnx or numpy is missing, else `max difference D over N values`. Fails if a name of the original is
not in the export, or no initializer changed.
"""
import sys

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import numpy_helper
except ImportError as missing:
    print(f"skip: {missing}")
    sys.exit(0)

exported, original, data, outputs, batch = sys.argv[1:6]
after, before = ({i.name: i for i in onnx.load(f).graph.initializer} for f in (exported, original))
assert set(after) == set(before), "the names of the initializers differ"
changed = [n for n in before if not np.array_equal(numpy_helper.to_array(before[n]), numpy_helper.to_array(after[n]))]
assert changed, "no initializer was trained"
session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
inputs, got, batch = np.load(data), np.load(outputs), int(batch)
worst, count = 0.0, 0
for name in (o.name for o in session.get_outputs()):
    for i in range(0, len(got[name]) - batch + 1, batch):
        feed = {x.name: inputs[x.name][i : i + batch] for x in session.get_inputs()}
        want = session.run([name], feed)[0]
        difference = np.abs(want - got[name][i : i + batch]).max() / max(1.0, np.abs(want).max())
        worst, count = max(worst, float(difference)), count + want.size
print(f"max difference {worst} over {count} values")
