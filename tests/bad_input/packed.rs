//! Packed files of plan directories that unpack to as much as they may, or would to more; each has
//! its hash in the manifest.

use super::attack::checks::sealed;
use super::attack::seeds::PLAN_HEADER;
use super::case::Case;
use super::{PLAN_COMMANDS, forged};
use flate2::Compression;
use flate2::write::GzEncoder;
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::packed::{pack, unpack};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferId, Message, Program, ProgramConstant, ProgramOutput, Provenance, Row, StateVariable, Task, View};
use shardc_ir::plan_file::{decode, encode};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// A file of 52 KiB may unpack to so many bytes, which is more than one of a few may.
const UNPACKED: usize = 768 << 10;

/// All of them, for the good job in `folder`.
pub fn cases(folder: &Path) -> Vec<Case> {
    let good = |name: &str| fs::read(folder.join("plan").join(name)).expect("a file of the good plan");
    let mut files = vec![];
    let (zeros, members) = (gzip(&[0; 1 << 20], 200), gzip(b"", 1).repeat(50_000));
    for (name, bytes) in [("200 MiB of zeros", zeros), ("members of nothing", members)] {
        files.push((name, "train.shir.gz", bytes));
    }
    let graph = String::from_utf8(unpack(&good("train.shir.gz")).expect("it is packed")).expect("graphs are text");
    files.extend(graphs(&graph).into_iter().map(|(name, bytes)| (name, "train.shir.gz", bytes)));
    files.push(("768 KiB of zeros", "train.plan", sealed(&vec![0; UNPACKED])));
    let plan = decode(&good("train.plan")).expect("a plan");
    files.extend(plans(&plan).into_iter().map(|(name, bytes)| (name, "train.plan", bytes)));
    let manifest = good("manifest.json");
    let mut cases = vec![];
    for (name, file, bytes) in files {
        let (manifest, bytes) = (Arc::new(forged(&manifest, &good(file), &bytes)), Arc::new(bytes));
        for command in PLAN_COMMANDS {
            let path = format!("plan/{file}");
            let files = vec![("plan/manifest.json", Some(manifest.clone())), (&path, Some(bytes.clone()))];
            cases.push(Case::with(format!("{name} in {path}"), files, command));
        }
    }
    cases
}

/// `bytes`, so often, as one member.
fn gzip(bytes: &[u8], times: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(vec![], Compression::best());
    (0..times).for_each(|_| encoder.write_all(bytes).expect("memory takes it"));
    encoder.finish().expect("memory takes it")
}

/// Graphs of as many lines of a kind as there may be, packed.
fn graphs(good: &str) -> Vec<(&'static str, Vec<u8>)> {
    let line_of = |op: &str| good.lines().find(|line| line.contains(&format!("= {op} "))).expect("it has such a node");
    let head = "graph @x  phase explicit\n  mesh dp=1 time=1\n  %x = input \"x\" : f32[1]\n";
    let packed = |text: &str| pack(text.as_bytes()).expect("text can be packed");
    let numbered = |part: &dyn Fn(usize) -> String| {
        let parts = (0..).map(part).scan(200 + good.len(), |bytes, part| {
            *bytes += part.len();
            (*bytes < UNPACKED).then_some(part)
        });
        parts.collect::<String>()
    };
    let filled = |head: &str, line: &dyn Fn(usize) -> String| packed(&format!("{head}{}", numbered(line)));
    let line = |begin: &str, part: &str, end: &str| {
        packed(&format!("{head}{begin}{}{end}\n", part.repeat((UNPACKED - 200) / part.len())))
    };
    vec![
        ("many nodes", filled(head, &|n| format!("%{n:x}=relu %x:f32[1]\n"))),
        ("many states", filled(head, &|n| format!("state \"{n:x}\":f32[1] parameter init=model\n"))),
        ("many inputs", filled(head, &|n| format!("%{n:x}=input \"{n:x}\":f32[1]\n"))),
        ("many dimensions", line("%y = relu %x : f32[", "1, ", "1]")),
        (
            "many dimensions of many operands",
            packed(&format!(
                "{head}%w = input \"w\" : f32[{}1]\n%y = concat axis=0 {}%w : f32[1]\n",
                "1, ".repeat(UNPACKED / 8),
                "%w, ".repeat(UNPACKED / 8)
            )),
        ),
        ("many operands", line("%y = concat axis=0 ", "%x, ", "%x : f32[1]")),
        ("many results", packed(&format!("{head}{}%y = relu %x : f32[1]\n", numbered(&|n| format!("%{n:x},"))))),
        ("many letters", line("%y = relu %x : f32[1]{[", "1:dp ", "]}")),
        ("many flat axes", line("%y = relu %x : f32[1] flat(", "dp ", ")")),
        ("many partial axes", line("%y = relu %x : f32[1] partial(sum: ", "dp ", ")")),
        ("many asked axes", line("%y = relu %x : f32[1] asked(", "dp: 3, ", "dp: 3)")),
        ("many sizes", line("%y = reshape shape=[", "1, ", "1] %x : f32[1]")),
        ("a long equation", line("%y = contract \"", "abcdefgh,", "a->a\" %x : f32[1]")),
        ("a constant of 256 MiB", packed(&format!("{head}%y = constant fill 0.0 : f32[67108864]\n"))),
        ("many elements", line("%y = constant [", "1, ", "1] : f32[1]")),
        ("many objects", line("%y = reshape shape=[", "{a=0}, ", "1] %x : f32[1]")),
        (
            "many positions",
            packed(&{
                let positions = numbered(&|n| format!("{n} "));
                format!("graph @x  phase explicit\n  mesh dp=65536 time=1\n  %x = input \"x\" : f32[1] at(dp: {positions})\n")
            }),
        ),
        ("many brackets", line("%y = reshape shape=", "[", "")),
        ("a long number", line("%y = constant ", "1", " : f32[]")),
        ("a long word", line("%y = constant ", "x", " : f32[]")),
        ("a long name", packed(&format!("graph @{}", "x".repeat(UNPACKED - 100)))),
        ("many axes", packed(&format!("graph @x  phase explicit\n  mesh {}time=1\n", numbered(&|n| format!("a{n:x}=1 "))))),
        ("many nodes of the job", filled(good, &|n| line_of("relu").replacen("%y", &format!("%n{n:x}"), 1) + "\n")),
        ("many outputs", filled(good, &|n| format!("output \"{n:x}\" %loss\n"))),
        ("many empty lines", filled(good, &|_| "\n".to_string())),
    ]
}

/// Plans with as many parts of a kind as there may be, each of as few bytes as it can have.
fn plans(good: &PlanSet) -> Vec<(&'static str, Vec<u8>)> {
    let with = |change: &dyn Fn(&mut Program)| {
        let mut plan = good.clone();
        change(&mut plan.programs[0]);
        plan
    };
    let programs = || good.programs.clone();
    vec![
        (
            "many steps",
            filled_with(|number| {
                with(&|program| {
                    let steps = &mut program.tasks[0].steps;
                    let mut step = steps.iter().min_by_key(|step| step.reads.len()).expect("a step").clone();
                    (step.op, step.results, step.provenance) = (String::new(), vec![], Provenance::default());
                    *steps = vec![step; number];
                })
            }),
        ),
        (
            "many rows",
            filled_with(|number| {
                with(&|program| {
                    program.tasks = vec![];
                    program.order = vec![Row::Exchange(vec![]); number];
                })
            }),
        ),
        (
            "many messages",
            filled_with(|number| {
                with(&|program| {
                    let view = View { buffer: BufferId(0), offset: 0, bytes: 0 };
                    let (axis, value, provenance) = (AxisId(0), String::new(), Provenance::default());
                    program.messages = vec![Message { sends: true, axis, peer: 0, view, value, provenance }; number];
                })
            }),
        ),
        (
            "many states",
            filled_with(|number| {
                with(&|program| {
                    let state = StateVariable { name: String::new(), ..program.states[0].clone() };
                    program.states = vec![state; number];
                })
            }),
        ),
        (
            "many results",
            filled_with(|number| {
                with(&|program| {
                    let output = ProgramOutput { name: String::new(), ..program.outputs[0].clone() };
                    program.outputs = vec![output; number];
                })
            }),
        ),
        (
            "many constants",
            filled_with(|number| {
                with(&|program| {
                    program.constants = vec![ProgramConstant { buffer: BufferId(0), bytes: vec![].into() }; number];
                })
            }),
        ),
        (
            "many buffers",
            filled_with(|number| {
                with(&|program| {
                    let mut buffer = program.buffers[0].clone();
                    (buffer.name, buffer.shape, buffer.local) = (String::new(), vec![], vec![]);
                    (buffer.sharding.dims, buffer.sharding.flat, buffer.sharding.partial) = (vec![], vec![], vec![]);
                    program.buffers = vec![buffer; number];
                })
            }),
        ),
        (
            "many tasks",
            filled_with(|number| {
                with(&|program| program.tasks = vec![Task { name: String::new(), stage: 0, steps: vec![] }; number])
            }),
        ),
        (
            "many names",
            filled_with(|number| {
                with(&|program| {
                    let step = program.tasks.iter_mut().flat_map(|task| &mut task.steps).next().expect("a step");
                    step.provenance.ops = vec![String::new(); number];
                })
            }),
        ),
        (
            "many programs",
            filled_with(|number| PlanSet { axes: vec![], programs: vec![empty(&good.programs[0]); number], of: vec![0] }),
        ),
        ("many axes", filled_with(|number| PlanSet { axes: vec![AxisId(0); number], programs: programs(), of: vec![0] })),
        ("many places", filled_with(|number| PlanSet { axes: vec![AxisId(0)], programs: programs(), of: vec![0; number] })),
    ]
}

/// A program of nothing.
fn empty(program: &Program) -> Program {
    Program {
        name: String::new(),
        mesh: Mesh::single(),
        buffers: vec![],
        states: vec![],
        inputs: vec![],
        constants: vec![],
        outputs: vec![],
        tasks: vec![],
        messages: vec![],
        order: vec![],
        ..program.clone()
    }
}

/// The file of the plan that `plan` gives for a number of equal parts, for the largest number
/// there may be. That plan would take more memory than this test has: its bytes are put together
/// from those of small ones.
fn filled_with(plan: impl Fn(usize) -> PlanSet) -> Vec<u8> {
    let payload = |number: usize| {
        let file = encode(&plan(number)).expect("a plan can be written");
        unpack(&file[PLAN_HEADER..]).expect("it is packed")
    };
    // Each number is a byte that says that two follow, and those.
    let (one, next) = (payload(300), payload(301));
    let at = (0..one.len()).find(|at| one[*at] != next[*at]).expect("the numbers differ");
    let (head, parts, bytes) = (&one[..at - 1], &one[at + 2..], next.len() - one.len());
    let (part, tail) = (&parts[..bytes], &parts[300 * bytes..]);
    assert!(one[at - 1] == 251 && parts[..300 * bytes] == part.repeat(300), "parts are as expected");
    let number = (UNPACKED - one.len()) / bytes;
    sealed(&[head, &[252], &(number as u32).to_le_bytes(), &part.repeat(number), tail].concat())
}
