//! The order of tasks, replayed from the rows of the JSON alone.

use super::{Job, spec};
use serde_json::Value;
use std::collections::BTreeMap;

/// From one position to another.
type Way = (u64, u64);

/// When the messages of a way were begun by the receiver, and by the sender, and what each is.
type Begun = [Vec<(f64, String)>; 2];

/// One end of a message: its way, whether it sends, and its number there.
type Place = (Way, bool, usize);

/// When the last row ends and how long the busiest position works, if a task of that name takes
/// `cost` and messages nothing; in the strict reading an exchange also waits for whoever receives.
/// `None` where positions wait for one another for ever.
pub fn replayed(report: &Value, cost: &dyn Fn(&Value) -> f64, strict: bool) -> Option<(f64, f64)> {
    let mut rows: BTreeMap<u64, &Vec<Value>> = BTreeMap::new();
    for program in report["programs"].as_array().unwrap() {
        for position in program["positions"].as_array().unwrap() {
            rows.insert(position["pp"].as_u64().unwrap(), program["rows"].as_array().unwrap());
        }
    }
    let count = rows.len() as u64;
    let (mut at, mut now, mut busy, mut end) = (vec![0; rows.len()], vec![0.0; rows.len()], vec![0.0; rows.len()], 0.0f64);
    // For each way, when each message was begun by either end, and what it is.
    let mut begun: BTreeMap<Way, Begun> = BTreeMap::new();
    let mut places: Vec<Option<Vec<Place>>> = vec![None; rows.len()];
    loop {
        let mut moved = false;
        for position in 0..count {
            let own = position as usize;
            while let Some(row) = rows[&position].get(at[own]) {
                if row["run"].is_string() {
                    let cost = cost(row);
                    now[own] += cost;
                    busy[own] += cost;
                    end = if cost > 0.0 { end.max(now[own]) } else { end };
                    (at[own], moved) = (at[own] + 1, true);
                    continue;
                }
                let messages = row["exchange"].as_array().unwrap();
                let here = places[own].get_or_insert_with(|| {
                    moved = true;
                    let begin = |message: &Value| {
                        let sends = message["to"].is_u64();
                        let other = message[if sends { "to" } else { "from" }].as_u64().unwrap();
                        let way = if sends { (position, other) } else { (other, position) };
                        let line = &mut begun.entry(way).or_default()[usize::from(sends)];
                        line.push((now[own], format!("{} {} {}", message["value"], message["micro_batch"], message["bytes"])));
                        (way, sends, line.len() - 1)
                    };
                    messages.iter().map(begin).collect()
                });
                let mut there = Some(now[own]);
                for (way, sends, number) in here.iter().filter(|(_, sends, _)| strict || !sends) {
                    let other = begun[way][usize::from(!sends)].get(*number);
                    if let Some((_, what)) = other {
                        assert_eq!(*what, begun[way][usize::from(*sends)][*number].1, "both ends say the same");
                    }
                    there = there.and_then(|there| Some(there.max(other?.0)));
                }
                let Some(there) = there else { break };
                (now[own], places[own], moved) = (there, None, true);
                at[own] += 1;
            }
        }
        if !moved {
            break;
        }
    }
    let done = rows.iter().all(|(position, rows)| at[*position as usize] == rows.len());
    done.then(|| (end, busy.iter().copied().fold(0.0, f64::max)))
}

/// The cost of a task by its name: B is twice F, or as long where W is apart.
pub fn unit(apart: bool) -> impl Fn(&Value) -> f64 {
    move |row| match row["run"].as_str() {
        Some("F" | "W") => 1.0,
        Some("B") if apart => 1.0,
        Some("B") => 2.0,
        _ => 0.0,
    }
}

/// The most slots, by position, of what F makes and B reads, and of what messages bring.
fn slots(report: &Value) -> Vec<(u64, u64)> {
    let of = |program: &Value| {
        let position = program["positions"][0]["pp"].as_u64().unwrap();
        let received: Vec<u64> = (program["rows"].as_array().unwrap().iter())
            .filter_map(|row| row["exchange"].as_array())
            .flatten()
            .filter(|message| message["from"].is_u64())
            .map(|message| message["buffer"].as_u64().unwrap())
            .collect();
        let (mut own, mut brought) = (0, 0);
        for (i, buffer) in (0u64..).zip(program["buffers"].as_array().unwrap()) {
            let slots = buffer["slots"].as_u64().unwrap();
            let place = if received.contains(&i) { &mut brought } else { &mut own };
            if buffer["kind"] == "activation" {
                *place = slots.max(*place);
            }
        }
        (position, (own, brought))
    };
    let all: BTreeMap<u64, (u64, u64)> = report["programs"].as_array().unwrap().iter().map(of).collect();
    all.into_values().collect()
}

#[test]
fn positions_idle_and_keep_as_their_schedule_says() {
    for (p, m) in [(2, 2), (2, 8), (4, 4), (4, 8)] {
        let (positions, microbatches) = (p as f64, m as f64);
        let formulas = [
            ("gpipe", (positions - 1.0) / microbatches),
            ("1f1b", (positions - 1.0) / microbatches),
            ("zb-h1", (positions - 1.0) / (3.0 * microbatches)),
            ("interleaved(chunks=2)", (positions - 1.0) / (2.0 * microbatches)),
        ];
        for (schedule, expected) in formulas {
            let name = format!("order-{p}-{m}-{schedule}");
            let job = Job::new(
                &name,
                "llama",
                &spec("llama", &format!("pp={p}"), m, &format!("pipeline axis=pp schedule={schedule}\n")),
            );
            job.compiled();
            let report = job.inspected();
            let (end, busy) = replayed(&report, &unit(schedule == "zb-h1"), false).expect("no position waits for ever");
            assert!(((end - busy) / busy - expected).abs() < 1e-9, "{name}: {end} of {busy}");
            assert!(replayed(&report, &unit(false), true).is_some(), "{name} ends though every send waits");
            for (s, (own, brought)) in (0..).zip(slots(&report)) {
                let most = match schedule {
                    "gpipe" => m,
                    "1f1b" => m.min(p - s),
                    "zb-h1" => m.min(p),
                    _ => m.min(2 * p),
                };
                assert!(own <= most && brought <= most + 1, "{name}, stage {s}: {own} and {brought} slots");
            }
        }
    }
}
