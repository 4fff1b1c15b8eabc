//! A simulated step in the form that `chrome://tracing` and Perfetto show, a row for each rank and
//! queue.

use super::{Simulation, kind_name};
use serde_json::{Value, json};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Stream, Turn};
use shardc_simulator::run::Lane;
use std::collections::BTreeMap;

/// Meshes of more ranks have rows for the first rank of each place only.
const MOST_ROWS: u64 = 64;

/// The events of a step; times are in microseconds.
pub fn trace(set: &PlanSet, simulation: &Simulation) -> Value {
    let mesh = set.mesh();
    let (mut events, mut rows) = (vec![], 0);
    for rank in 0..mesh.world_size() {
        let coordinates = mesh.coordinates(rank);
        let is_here = |lane: &&Lane| set.axes.iter().all(|axis| lane.coordinates[axis.index()] == coordinates[axis.index()]);
        let Some(lane) = simulation.step.lanes.iter().find(is_here) else { continue };
        if mesh.world_size() > MOST_ROWS && lane.coordinates != coordinates {
            continue;
        }
        let program = &set.programs[lane.program];
        let queues = [Stream::Main, Stream::Comm].into_iter().chain(program.ways().into_iter().map(Stream::Messages));
        let queues: BTreeMap<Stream, u64> = queues.zip(rows..).collect();
        rows += queues.len() as u64;
        for (queue, row) in &queues {
            let name = match queue {
                Stream::Main => "kernels".to_string(),
                Stream::Comm => "calls".to_string(),
                Stream::Messages(way) => way.name(mesh),
            };
            let name = json!({ "name": format!("rank {rank}, {name}") });
            events.push(json!({ "name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": name }));
        }
        for event in &lane.events {
            let step = match event.turn {
                Turn::Launch(launch) => Some(program.step(launch)),
                Turn::Exchange(_) => None,
            };
            events.push(json!({
                "name": step.map_or_else(|| "exchange".to_string(), |step| program.text_of(step)),
                "cat": kind_name(program, event), "ph": "X", "pid": 0, "tid": queues[&event.stream],
                "ts": event.start * 1e6, "dur": (event.end - event.start) * 1e6,
                "args": {
                    "scope": step.and_then(|step| step.provenance.scope.clone()),
                    "waited_us": (event.start - event.ready) * 1e6,
                },
            }));
        }
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}
