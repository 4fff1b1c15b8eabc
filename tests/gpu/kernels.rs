//! Every kernel of the ten models, at small sizes, on a GPU: results are right, and where no tensor
//! core adds them up they have the bits of the same text on the host.

use super::card::Card;
use super::cases::memory::{self, Memory};
use super::cases::{Case, cases, right};
use super::expected::{Bits, File, Keep, Kind};
use super::fake::{is_full, is_inside, is_real, told};
use super::support::objects;
use shardc_codegen::{MATH, PARTS};
use shardc_cuda_testing::host::{Host, Order};
use shardc_cuda_testing::job::Job;
use shardc_fakecuda::control;
use shardc_gpu::device::Device;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// The file of expected bits.
const FILE: &str = "kernels";

/// Of so many kernels of a few jobs one is tried where not all are.
const SHARE: usize = 8;

/// The kernels that are tried.
fn tried(all: bool) -> Vec<Case> {
    let few = [("mlp", "f32"), ("gpt2", "bf16")];
    let [aligned, _] = cases(|model, dtype| all || few.contains(&(model, dtype)));
    aligned.into_iter().step_by(if all { 1 } else { SHARE }).collect()
}

/// Whether tensor cores add results up, in an order and with roundings of their own.
fn uses_tensor_cores(case: &Case) -> bool {
    ["multiply_tile_", "_times_rows<"].iter().any(|name| case.generated.text.contains(name))
}

/// Results of the CPU backend say which element differs where its bits are the only right ones.
fn keep(case: &Case) -> Keep {
    if right::is_exact(&case.kernel) { Keep::Nothing } else { Keep::Check }
}

fn kinds(case: &Case) -> Vec<Kind> {
    case.kernel.signature(&case.mesh).unwrap().writes.iter().map(|operand| Kind::Of(operand.dtype)).collect()
}

/// A run of a kernel over one draw of operands.
struct Run<'c> {
    case: &'c Case,
    name: String,
    coordinates: Vec<u64>,
    start: Memory,
}

impl Run<'_> {
    fn all(case: &Case) -> impl Iterator<Item = Run<'_>> {
        (0..memory::draws(&case.kernel)).map(move |draw| Run {
            case,
            name: format!("{} {draw}", case.generated.name),
            coordinates: memory::coordinates(&case.mesh, draw),
            start: Memory::drawn(&case.kernel, &case.mesh, &case.in_place, draw),
        })
    }

    /// The memory behind the kernel's launches.
    fn done(&self, launch: impl FnMut(&Job) -> Result<Vec<Vec<u8>>, String>) -> Result<Memory, String> {
        let mut done = self.start.clone();
        done.launch(&self.case.generated, &self.coordinates, launch)?;
        Ok(done)
    }

    fn on_host(&self, host: &Host) -> Result<Memory, String> {
        self.done(|job| Ok(host.run(job, Order::Forward)?.operands))
    }
}

fn texts(cases: &[Case]) -> Vec<(String, String)> {
    cases.iter().map(|case| (case.generated.name.clone(), case.generated.text.clone())).collect()
}

fn built(cases: &[Case]) -> Host {
    Host::build(&objects(), &format!("{MATH}{PARTS}"), &texts(cases)).unwrap_or_else(|e| panic!("{e}"))
}

/// Does something with each case, in several threads; what fails, the first one first: a GPU does
/// nothing more once an access has failed.
fn each<T>(cases: &[Case], begin: impl Fn() -> T + Sync, f: impl Fn(&T, &Case) -> Result<(), String> + Sync) -> Vec<String> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let work = || {
        let own = begin();
        while let Some(case) = cases.get(next.fetch_add(1, Relaxed)) {
            if let Err(why) = f(&own, case) {
                failed.lock().unwrap().push(format!("{}: {why} ({})", case.generated.name, case.of));
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get().min(16));
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    failed.into_inner().unwrap()
}

#[test]
fn kernels_give_the_hosts_bits() {
    if !is_inside("kernels::kernels_give_the_hosts_bits", &[]) {
        return;
    }
    let cases = tried(is_full());
    let kept = File::read(FILE);
    let host = (kept.is_none() && Host::available()).then(|| built(&cases));
    let card = Card::open(false);
    let cubins = card.assembled(&texts(&cases));
    let cubins: HashMap<&str, &Result<Vec<u8>, String>> =
        cases.iter().map(|case| case.generated.name.as_str()).zip(&cubins).collect();
    let (compared, launches) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let one = |card: &Card, case: &Case| -> Result<(), String> {
        let cubin = cubins[case.generated.name.as_str()].as_ref().map_err(String::clone)?;
        let module = card.gpu.load(cubin)?;
        let mut functions = BTreeMap::new();
        for launch in &case.generated.launches {
            functions.insert(launch.entry.as_str(), card.gpu.function(module, &launch.entry, launch.shared)?);
        }
        for run in Run::all(case) {
            let done = run.done(|job| {
                launches.fetch_add(1, Relaxed);
                card.run(functions[job.entry.as_str()], job).map_err(|why| why.to_string())
            })?;
            right::judge(case, &run.start, &done.writes, &run.coordinates).map_err(|why| format!("{}: {why}", run.name))?;
            // Of these no bits are kept.
            if uses_tensor_cores(case) && (kept.is_some() || !control::is_software()) {
                continue;
            }
            let bits = match (&kept, &host) {
                (Some(File(all)), _) => all.get(&run.name).ok_or("no bits are expected of it")?.clone(),
                (None, Some(host)) => Bits::of(keep(case), &run.start.reads, &kinds(case), &run.on_host(host)?.writes),
                (None, None) => continue,
            };
            bits.hold(keep(case), &run.start.reads, &kinds(case), &done.writes)?;
            compared.fetch_add(1, Relaxed);
        }
        if let Some((read, rows)) = memory::indexed(&case.kernel) {
            let mut spoilt = Memory::drawn(&case.kernel, &case.mesh, &case.in_place, 0);
            spoilt.spoil_index(read, rows);
            let launch = |job: &Job| card.run(functions[job.entry.as_str()], job).map_err(|why| why.to_string());
            let outcome = spoilt.launch(&case.generated, &memory::coordinates(&case.mesh, 0), launch);
            if outcome != Err(memory::FAULT.to_owned()) {
                return Err(format!("an index of {rows} is taken: {outcome:?}"));
            }
        }
        Ok(card.gpu.unload(module)?)
    };
    let failed = each(&cases, || Card::open(false), one);
    assert!(failed.is_empty(), "{} of {} kernels fail\n{}", failed.len(), cases.len(), failed.join("\n"));
    let (launches, compared) = (launches.into_inner(), compared.into_inner());
    let tensor = cases.iter().filter(|case| uses_tensor_cores(case)).count();
    let how = match (&kept, &host) {
        (None, None) => ", none to the bit: no expected bits and no g++".into(),
        _ if is_real() => format!(", {compared} runs to the bit; {tensor} kernels add up on tensor cores, within tolerance"),
        _ => format!(", {compared} runs to the bit"),
    };
    told(&format!("{} kernels, {launches} launches{how}", cases.len()));
}

#[test]
#[ignore = "`tests/gpu.sh --build` writes the bits"]
fn expected_bits_are_written() {
    let cases = tried(std::env::var("SHARDC_GPU").is_ok_and(|value| value == "all"));
    let host = built(&cases);
    let all = Mutex::new(BTreeMap::new());
    let failed = each(
        &cases,
        || (),
        |(), case| {
            // No bits are expected of tensor cores.
            for run in Run::all(case).filter(|_| !uses_tensor_cores(case)) {
                let bits = Bits::of(keep(case), &run.start.reads, &kinds(case), &run.on_host(&host)?.writes);
                all.lock().unwrap().insert(run.name, bits);
            }
            Ok(())
        },
    );
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let all = all.into_inner().unwrap();
    let (runs, bytes) = (all.len(), File(all).write(FILE));
    told(&format!("{runs} runs of {} kernels, {:.1} MiB", cases.len(), bytes as f64 / f64::from(1 << 20)));
}
