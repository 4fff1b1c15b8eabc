"""What a device is told in a step, summed up by kind of work, read from JSON alone:

    cargo run --release -- compile MODEL.onnx --spec JOB.shard -o PLAN --target cuda
    cargo run --release -- inspect PLAN --launches --format json | python3 examples/launches.py

Bytes are those of operands, each time that a row runs; docs/plan.md says what a row is.
"""

import json
import sys
from collections import defaultdict

for number, table in enumerate(json.load(sys.stdin)["programs"]["programs"]):
    kinds = defaultdict(lambda: [0, 0, 0])
    for run in table["order"]:
        for row in table["sections"][run["section"]]["rows"]:
            (work, what), = row["work"].items()
            kind = what["kernel"].rsplit("_", 1)[0] if work == "launch" else work
            ranges = [what.get(name) for name in ("a", "b", "d", "added", "vector", "to", "from")]
            ranges += [pointer["range"] for pointer in what.get("pointers", [])]
            ranges += what.get("reads", []) + what.get("writes", [])
            ranges += [end["range"] for end in what.get("ends", [])]
            counts = kinds[row["stream"], kind]
            counts[0] += 1
            counts[1] += len(row.get("waits", []))
            counts[2] += sum(range["bytes"] for range in ranges if range)
    print(f"program {number}: {'queue':6} {'work':16} {'runs':>6} {'waits':>6} {'MiB':>10}")
    for (stream, kind), (runs, waits, size) in sorted(kinds.items()):
        print(f"           {stream:6} {kind:16} {runs:6} {waits:6} {size / 2**20:10.2f}")
