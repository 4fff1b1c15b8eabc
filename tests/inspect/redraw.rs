//! Draws a listing from JSON alone, with nothing of the compiler's own.

use crate::{list, number, string};
use serde_json::Value;

/// The words of a line, however far apart they stand.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// `inspect --all` of a rank, but for the columns in which words stand.
pub fn redrawn(report: &Value, rank: usize) -> String {
    let ranks = list(&report["ranks"]);
    let own = &ranks[rank];
    let program = list(&report["programs"]).iter().find(|program| runs(program, own)).expect("a program of the rank");
    let mut out = header(report, own);
    let steps: usize = list(&program["tasks"]).iter().map(|task| list(&task["steps"]).len()).sum();
    let digits = steps.saturating_sub(1).to_string().len().max(2);
    for task in list(&program["tasks"]) {
        out += &heading(task);
        for step in list(&task["steps"]) {
            out += &format!("{}\n", line(report, program, own, step, digits));
        }
    }
    out + &memory(program, own) + &communication(own)
}

fn runs(program: &Value, rank: &Value) -> bool {
    list(&program["positions"]).iter().any(|position| {
        let axes = position.as_object().expect("an object");
        axes.iter().all(|(axis, at)| rank["coordinates"][axis] == *at)
    })
}

/// The axes of the mesh in its order: the last is the fastest.
fn axes(report: &Value) -> Vec<String> {
    let ranks = list(&report["ranks"]);
    let mut axes: Vec<String> = report["mesh"].as_object().expect("an object").keys().cloned().collect();
    let stride = |axis: &String| ranks.iter().position(|rank| rank["coordinates"][axis] != 0).unwrap_or(usize::MAX);
    axes.sort_by_key(|axis| std::cmp::Reverse(stride(axis)));
    axes
}

fn header(report: &Value, rank: &Value) -> String {
    let at: Vec<String> = axes(report).iter().map(|axis| format!("{axis}={}", rank["coordinates"][axis])).collect();
    let mut out = format!("plan @{} device {}/{}", string(&report["name"]), rank["rank"], report["world_size"]);
    if !at.is_empty() {
        out += &format!(" ({})", at.join(" "));
    }
    if number(&report["microbatches"]) > 1 {
        out += &format!(" {} micro-batches", report["microbatches"]);
    }
    out + &format!(" peak {}\n", size(number(&rank["peak_bytes"])))
}

fn heading(task: &Value) -> String {
    let name = string(&task["name"]);
    let stage = if name.chars().all(char::is_uppercase) { task["stage"].to_string() } else { String::new() };
    let often = match number(&task["times"]) {
        1 => "once".to_string(),
        times => format!("for each of {times} micro-batches"),
    };
    let steps = list(&task["steps"]);
    let sent = |when: &str| {
        let messages: Vec<u64> = steps
            .iter()
            .filter(|step| step["when"] == when && !step["message"].is_null())
            .map(|step| number(&step["message"]["bytes_sent"]))
            .collect();
        (!messages.is_empty()).then(|| format!("{}, {}", count(messages.len(), "message"), size(messages.iter().sum())))
    };
    let each = sent("each").map_or(String::new(), |text| format!(", {text}"));
    let last = sent("last").map_or(String::new(), |text| format!("; with the last {text}"));
    format!("{name}{stage}, {often}: {}, {} FLOP{each}{last}\n", count(steps.len(), "step"), thousands(number(&task["flops"])))
}

fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn line(report: &Value, program: &Value, rank: &Value, step: &Value, digits: usize) -> String {
    let names = |operands: &Value| {
        let names: Vec<String> = list(operands).iter().map(|operand| format!("%{}", string(&operand["value"]))).collect();
        names.join(", ")
    };
    let message = &step["message"];
    let group = if message.is_null() { String::new() } else { group(report, rank, &message["axes"]) };
    let writes = list(&step["writes"]);
    let buffer = |operand: &Value| &program["buffers"][number(&operand["buffer"]) as usize];
    let types: Vec<String> = match writes {
        [first, _, ..] if !message.is_null() => {
            let width = match string(&buffer(first)["dtype"]).as_str() {
                "f32" => 4,
                "bool" => 1,
                _ => 8,
            };
            let bytes: u64 = writes.iter().map(|write| number(&write["bytes"])).sum();
            vec![format!("{}[{}]", string(&buffer(first)["dtype"]), bytes / width)]
        }
        _ => {
            let shape = |operand: &Value| {
                let sizes: Vec<String> = list(&buffer(operand)["local"]).iter().map(Value::to_string).collect();
                format!("{}[{}]", string(&buffer(operand)["dtype"]), sizes.join(", "))
            };
            writes.iter().map(shape).collect()
        }
    };
    format!(
        "{:0digits$} {} {} = {} {group} {} : {} {}",
        number(&step["number"]),
        string(&step["stream"]),
        names(&step["writes"]),
        string(&step["op"]),
        names(&step["reads"]),
        types.join(", "),
        note(report, step, digits)
    )
}

fn note(report: &Value, step: &Value, digits: usize) -> String {
    let mut notes = vec![];
    if step["message"].is_null() {
        notes.extend(step["partial"].as_str().map(str::to_string));
    } else {
        notes.push(size(number(&step["message"]["bytes_sent"])));
        notes.extend(step["reason"].as_str().map(str::to_string));
        notes.extend(step["spec_line"].as_u64().map(|line| format!("({}:{line})", string(&report["spec"]))));
    }
    if step["when"] == "last" && number(&report["microbatches"]) > 1 {
        notes.push("with the last micro-batch".to_string());
    }
    let mut after: Vec<u64> = list(&step["after"]).iter().map(number).collect();
    after.sort_by_key(|number| std::cmp::Reverse(*number));
    let after: Vec<String> = after.iter().map(|number| format!("{number:0digits$}")).collect();
    if !after.is_empty() {
        notes.push(format!("after {}", after.join(", ")));
    }
    notes.join(" ")
}

/// The ranks that differ from `rank` on those axes only, the first of them the slowest.
fn group(report: &Value, rank: &Value, over: &Value) -> String {
    let over: Vec<String> = list(over).iter().map(string).collect();
    let others = |other: &&Value| {
        let same = |axis: &String| over.contains(axis) || other["coordinates"][axis] == rank["coordinates"][axis];
        axes(report).iter().all(same)
    };
    let mut members: Vec<&Value> = list(&report["ranks"]).iter().filter(others).collect();
    members.sort_by_key(|member| over.iter().map(|axis| number(&member["coordinates"][axis])).collect::<Vec<_>>());
    let members: Vec<String> = members.iter().map(|member| member["rank"].to_string()).collect();
    format!("{{{}}}", members.join(","))
}

fn memory(program: &Value, rank: &Value) -> String {
    let mut out = "\nmemory\n".to_string();
    let parts = ["parameter", "gradient", "optimizer", "activation"].map(|part| number(&rank[format!("{part}_bytes").as_str()]));
    for (name, bytes) in ["parameters", "gradients", "optimizer", "activations"].iter().zip(parts) {
        out += &format!("{name} {}\n", size(bytes));
    }
    let all = number(&rank["peak_bytes"]);
    out += &format!("data, constants, padding {}\npeak {}\n", size(all - parts.iter().sum::<u64>()), size(all));
    let peak = &program["peak"];
    let (value, task) = (string(&peak["value"]), string(&peak["task"]));
    out += &format!("most is live at step {} (%{value} in {task}): {}\n", peak["step"], size(number(&peak["bytes"])));
    for (name, key) in [("kind", "kinds"), ("module", "scopes")] {
        let parts = list(&peak[key]).iter().map(|part| format!("{} {}", string(&part["name"]), size(number(&part["bytes"]))));
        out += &format!("by {name} {}\n", parts.collect::<Vec<_>>().join(", "));
    }
    out
}

fn communication(rank: &Value) -> String {
    let calls = list(&rank["communication"]);
    if calls.is_empty() {
        return String::new();
    }
    let mut out = "\ncommunication\ncollective over carries calls a step bytes sent a step the least\n".to_string();
    for call in calls {
        out += &format!(
            "{} {} {} {} {} {}\n",
            string(&call["kind"]),
            string(&call["axis"]),
            string(&call["carries"]),
            call["calls"],
            size(number(&call["bytes_sent"])),
            size(number(&call["least_bytes"]))
        );
    }
    out
}

/// Bytes in the largest unit in which they are at least 1.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= if unit == 0 { 1024.0 } else { 999.5 } {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let digits = usize::from(unit > 0 && value < 9.95 && value.fract() != 0.0);
    format!("{value:.digits$} {}", units[unit])
}

fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(",")
}
