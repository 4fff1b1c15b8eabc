"""What the ranks of a plan compute and send, row by row of its order, read from JSON alone:

    cargo run --release -- inspect PLAN --format json | python3 examples/traffic.py

The format is in docs/inspect.schema.json. A row runs a task with one micro-batch, or once a step.
"""

import json
import sys

plan = json.load(sys.stdin)
last = plan["microbatches"] - 1
for number, program in enumerate(plan["programs"]):
    tasks = {(task["name"], task["stage"]): task for task in program["tasks"]}
    print(f"program {number}: {'row':12} {'steps':>6} {'MFLOP':>9} {'messages':>9} {'KiB sent':>9}")
    for row in program["rows"]:
        at = row["micro_batch"]
        steps = tasks[row["run"], row["stage"]]["steps"]
        steps = [step for step in steps if step["when"] == "each" or at in (None, last)]
        messages = [step["message"] for step in steps if step.get("message")]
        name = row["run"] if at is None else f"{row['run']}{row['stage']}.{at}"
        flops = sum(step["flops"] for step in steps) / 1e6
        sent = sum(message["bytes_sent"] for message in messages) / 1024
        print(f"           {name:12} {len(steps):6} {flops:9.3f} {len(messages):9} {sent:9.1f}")
