//! How the time of `compile`, `verify`, `data` and `check` grows with what they are given: for each
//! kind of thing, its number is doubled from 1,000 to 32,000, and what twice the number costs is
//! printed, in time of the processor. Run with `cargo bench --bench growth`; `-- concat 8000` runs
//! the kinds whose names hold `concat`, up to that number.
//!
//! Machines change their speed by a half from one minute to the next. So a number and twice that
//! number are never timed one after the other: the smaller job runs twice while the larger one runs
//! once, and on Linux all of them on one core, in turns of milliseconds.

#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

use prost::Message;
use shardc_executor::data::write_npz;
use shardc_executor::tensor::Tensor;
use shardc_ir::columns::{Column, align};
use shardc_ir::dtype::DType;
use shardc_testkit::onnx::{floats, graph, initializer, input, int, int_list, ints, model, node, output, tensor, weight};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};
use tract_onnx::pb::ModelProto;
use tract_onnx::pb::tensor_proto::DataType;
use wait4::Wait4;

const NUMBERS: [usize; 6] = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000];

/// Steps of a recurrence: a model of this size may have 4,096.
const STEPS: [usize; 6] = [125, 250, 500, 1_000, 2_000, 4_000];

/// So often a number is held against twice that number, and up to nine times while that is short.
const ROUNDS: [usize; 2] = [3, 9];
const SHORT: Duration = Duration::from_secs(8);

const TRAINING: &str = "loss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";

/// Makes a job with so many of what is counted.
type Make = fn(usize) -> (ModelProto, String);

const KINDS: [(&str, &[usize], Make); 15] = [
    ("a chain of additions", &NUMBERS, |n| plain(chain(n, |_, _| "t0".into()))),
    ("parameters", &NUMBERS, |n| plain(biases(n))),
    ("layers", &NUMBERS, |n| plain(layers(n))),
    ("constants", &NUMBERS, |n| plain(constants(n))),
    ("inputs", &NUMBERS, |n| plain(inputs(n))),
    ("operands of a concat", &NUMBERS, |n| plain(concat(n))),
    ("results of a split", &NUMBERS, |n| plain(split(n))),
    ("steps of an LSTM", &STEPS, |n| plain(lstm(n))),
    ("`shard` lines", &NUMBERS, |n| (biases(n), with("mesh tp=2\nbatch 2", n, |i| format!("shard \"l.b{i}\" [tp]")))),
    ("`shard` lines over others", &NUMBERS, |n| {
        (biases(n), with("mesh tp=2\nbatch 2\nshard \"l.*\" [-]", n, |i| format!("shard \"*.b{i}\" [tp]")))
    }),
    ("`freeze` lines", &NUMBERS, |n| (biases(n), with("batch 2", n, |i| format!("freeze \"*.b{i}\"")))),
    ("`init` lines", &NUMBERS, |n| (biases(n), with("batch 2", n, |i| format!("init \"l.b{i}\" auto")))),
    ("blocks of parameters", &NUMBERS, |n| {
        (biases(n), with("mesh tp=2\nbatch 2", n, |i| format!("shard \"l.b{i}\" [(2|2)*tp]")))
    }),
    ("gradients in buckets", &NUMBERS, |n| (biases(n), format!("mesh dp=2\nbatch 2\ndata axis=dp\n{TRAINING}"))),
    ("ranks", &NUMBERS, |n| (layers(1), format!("mesh dp={n}\nbatch {n}\ndata axis=dp\n{TRAINING}"))),
];

fn main() {
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let most = words.iter().find_map(|word| word.parse().ok()).unwrap_or(usize::MAX);
    let chosen = |name: &str| words.iter().filter(|word| word.parse::<usize>().is_err()).all(|word| name.contains(word.as_str()));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("growth");
    stay_on_one_core();
    let compile: &[&str] = &["compile", "model.onnx", "--spec", "job.shard", "-o", "plan"];
    for (name, numbers, make) in KINDS.iter().filter(|(name, ..)| chosen(name)) {
        let numbers = numbers.iter().copied().filter(|number| *number <= most);
        print_growth(name, [compile, &["verify", "plan"]], &folder, numbers, |folder, number| write_job(folder, make(number)));
    }
    if chosen("arrays of data") {
        let check: &[&str] = &["check", "model.onnx", "--spec", "job.shard", "--data", "data.npz"];
        let numbers = NUMBERS.into_iter().filter(|number| *number <= most);
        print_growth("arrays of data", [&["data", "data.npz"], check], &folder, numbers, |folder, number| {
            write_job(folder, plain(layers(1)));
            write_npz(&folder.join("data.npz"), &arrays(number)).unwrap();
        });
    }
}

/// Keeps this program, and what it starts, on the first core that it may run on.
fn stay_on_one_core() {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let allowed = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap());
        sched_setaffinity(None, &one).unwrap();
    }
}

fn write_job(folder: &Path, (model, spec): (ModelProto, String)) {
    fs::write(folder.join("model.onnx"), model.encode_to_vec()).unwrap();
    fs::write(folder.join("job.shard"), spec).unwrap();
}

/// Prints for each number the least time of both commands and what it is of that of half the
/// number, and the mean of that over all numbers.
fn print_growth(
    name: &str,
    commands: [&[&str]; 2],
    folder: &Path,
    numbers: impl Iterator<Item = usize>,
    write: impl Fn(&Path, usize),
) {
    let _ = fs::remove_dir_all(folder);
    let jobs: Vec<(usize, PathBuf)> = numbers.map(|number| (number, folder.join(number.to_string()))).collect();
    for (number, job) in &jobs {
        fs::create_dir_all(job).unwrap();
        write(job, *number);
    }
    let growths = commands.map(|command| Growth::of(command, &jobs));
    let [one, other] = commands.map(|command| command[0].to_string());
    let mut rows = vec![["number".to_string(), one, String::new(), other, String::new()]];
    for (at, (number, _)) in jobs.iter().enumerate() {
        let time = |growth: &Growth| format!("{:.3} s", growth.least[at].as_secs_f64());
        let ratio =
            |growth: &Growth| at.checked_sub(1).map_or(String::new(), |doubling| format!("x{:.2}", growth.ratios[doubling]));
        let [one, other] = &growths;
        rows.push([number.to_string(), time(one), ratio(one), time(other), ratio(other)]);
    }
    if jobs.len() > 2 {
        let [one, other] = growths.map(|growth| format!("x{:.2}", growth.mean()));
        rows.push(["mean".into(), String::new(), one, String::new(), other]);
    }
    println!("{name}\n{}", align(&rows, [Column::NUMBERS; 5]));
    fs::remove_dir_all(folder).unwrap();
}

/// What a command takes for each number.
struct Growth {
    /// The least time that it took for each.
    least: Vec<Duration>,
    /// What each number but the first takes of half the number: the median of the rounds.
    ratios: Vec<f64>,
}

impl Growth {
    fn of(command: &[&str], jobs: &[(usize, PathBuf)]) -> Growth {
        let mut growth = Growth { least: jobs.iter().map(|(_, job)| time(job, command)).collect(), ratios: vec![] };
        for (at, pair) in jobs.windows(2).enumerate() {
            let (mut ratios, mut spent) = (vec![], Duration::ZERO);
            while ratios.len() < ROUNDS[0] || ratios.len() < ROUNDS[1] && spent < SHORT {
                let [once, again, larger] = beside(&pair[0].1, &pair[1].1, command);
                growth.least[at] = growth.least[at].min(once).min(again);
                growth.least[at + 1] = growth.least[at + 1].min(larger);
                ratios.push(2.0 * larger.as_secs_f64() / (once + again).as_secs_f64());
                spent += once + again + larger;
            }
            ratios.sort_by(f64::total_cmp);
            growth.ratios.push(ratios[ratios.len() / 2]);
        }
        growth
    }

    /// The geometric mean of the ratios.
    fn mean(&self) -> f64 {
        self.ratios.iter().product::<f64>().powf(1.0 / self.ratios.len() as f64)
    }
}

/// The times of the smaller job, twice, and of the larger one beside it.
fn beside(smaller: &Path, larger: &Path, command: &[&str]) -> [Duration; 3] {
    thread::scope(|scope| {
        let twice = scope.spawn(|| [time(smaller, command), time(smaller, command)]);
        let larger = time(larger, command);
        let [once, again] = twice.join().unwrap();
        [once, again, larger]
    })
}

/// The time of the processor that the command takes, which must succeed.
fn time(job: &Path, arguments: &[&str]) -> Duration {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardc"));
    command.args(arguments).current_dir(job).stdout(Stdio::null()).stderr(Stdio::null());
    let ended = command.spawn().unwrap().wait4().unwrap();
    assert!(ended.status.success(), "shardc {}", arguments.join(" "));
    ended.rusage.utime + ended.rusage.stime
}

fn plain(model: ModelProto) -> (ModelProto, String) {
    (model, format!("batch 2\n{TRAINING}"))
}

fn with(first: &str, n: usize, line: impl Fn(usize) -> String) -> String {
    let lines: String = (0..n).map(|i| line(i) + "\n").collect();
    format!("{first}\n{TRAINING}{lines}")
}

/// `t0 = x w`, for samples of 4 numbers.
fn begun() -> ModelProto {
    let mut m = model(17);
    input(&mut m, "x", DataType::Float, &[-1, 4]);
    initializer(&mut m, weight("w", &[4, 4], 1));
    node(&mut m, "MatMul", "x w", "t0", vec![]);
    m
}

/// From `t0` to `t1` and on to `tn`, each made of the one before by `link`; the last is `y`.
fn linked(n: usize, link: impl Fn(&mut ModelProto, usize)) -> ModelProto {
    let mut m = begun();
    (0..n).for_each(|i| link(&mut m, i));
    node(&mut m, "Identity", &format!("t{n}"), "y", vec![]);
    output(&mut m, "y");
    m
}

/// Each is the one before and `other`.
fn chain(n: usize, other: impl Fn(&mut ModelProto, usize) -> String) -> ModelProto {
    linked(n, |m, i| {
        let other = other(m, i);
        node(m, "Add", &format!("t{i} {other}"), &format!("t{}", i + 1), vec![]);
    })
}

fn biases(n: usize) -> ModelProto {
    chain(n, |m, i| {
        let name = format!("l.b{i}");
        initializer(m, weight(&name, &[4], i as u64));
        name
    })
}

fn layers(n: usize) -> ModelProto {
    linked(n, |m, i| {
        initializer(m, weight(&format!("w{i}"), &[4, 4], 10 + i as u64));
        node(m, "MatMul", &format!("t{i} w{i}"), &format!("m{i}"), vec![]);
        node(m, "Tanh", &format!("m{i}"), &format!("t{}", i + 1), vec![]);
    })
}

fn constants(n: usize) -> ModelProto {
    chain(n, |m, i| {
        let name = format!("c{i}");
        node(m, "Constant", "", &name, vec![tensor("value", weight("", &[2, 4], i as u64))]);
        name
    })
}

fn inputs(n: usize) -> ModelProto {
    chain(n, |m, i| {
        let name = format!("x{i}");
        input(m, &name, DataType::Float, &[-1, 4]);
        name
    })
}

fn concat(n: usize) -> ModelProto {
    let mut m = begun();
    let parts: Vec<String> = (0..n).map(|i| format!("r{i}")).collect();
    parts.iter().for_each(|part| node(&mut m, "Relu", "t0", part, vec![]));
    node(&mut m, "Concat", &parts.join(" "), "c", vec![int("axis", 1)]);
    initializer(&mut m, weight("v", &[4 * n as i64, 4], 2));
    node(&mut m, "MatMul", "c v", "y", vec![]);
    output(&mut m, "y");
    m
}

fn split(n: usize) -> ModelProto {
    let mut m = begun();
    initializer(&mut m, weight("v", &[4, n as i64], 2));
    initializer(&mut m, weight("u", &[n as i64, 4], 3));
    initializer(&mut m, ints("sizes", &[n as i64], &vec![1; n]));
    node(&mut m, "MatMul", "t0 v", "c", vec![]);
    let parts: Vec<String> = (0..n).map(|i| format!("r{i}")).collect();
    node(&mut m, "Split", "c sizes", &parts.join(" "), vec![int("axis", 1)]);
    let turned: Vec<&str> = parts.iter().rev().map(String::as_str).collect();
    node(&mut m, "Concat", &turned.join(" "), "d", vec![int("axis", 1)]);
    node(&mut m, "MatMul", "d u", "y", vec![]);
    output(&mut m, "y");
    m
}

fn lstm(n: usize) -> ModelProto {
    let mut m = model(17);
    input(&mut m, "x", DataType::Float, &[2, n as i64, 4]);
    node(&mut m, "Transpose", "x", "xt", vec![int_list("perm", vec![1, 0, 2])]);
    [("W", 1), ("R", 2)].into_iter().for_each(|(name, seed)| initializer(&mut m, weight(name, &[1, 16, 4], seed)));
    initializer(&mut m, floats("B", &[1, 32], &[0.1; 32]));
    node(&mut m, "LSTM", "xt W R B", "all last", vec![int("hidden_size", 4)]);
    initializer(&mut m, ints("zero", &[1], &[0]));
    node(&mut m, "Squeeze", "last zero", "h", vec![]);
    initializer(&mut m, weight("v", &[4, 4], 3));
    node(&mut m, "MatMul", "h v", "y", vec![]);
    output(&mut m, "y");
    graph(&mut m).name = "lstm".into();
    m
}

/// So many arrays beside those of the job.
fn arrays(n: usize) -> BTreeMap<String, Tensor> {
    let names = (0..n).map(|i| format!("a{i}")).chain(["x".to_string(), "t".to_string()]);
    names.map(|name| (name, Tensor::zeros(DType::F32, &[4, 4]))).collect()
}
