//! The kernels of plans, executed without a GPU: their texts on the host, every access checked, in
//! several orders of threads, against the CPU backend and plain loops; where NVRTC is found also
//! assembled, and their PTX interpreted, which gives the host's bits.
//!
//! `SHARDC_CUDA` says how much is tried. With `kernels`, as `.ci/run` has it, that is every
//! kernel of every model in f32 and bf16, those of two models in f16, on the host, every other one
//! of them assembled too, and fixed shares of damages, steps, orders of threads, architectures and
//! operands that are not aligned; with `all` these are tried whole. Without it kernels are those of
//! a few models.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attention;
mod command;
mod counted;
mod device;
#[path = "../support/job.rs"]
mod job;
#[path = "../support/kernels/mod.rs"]
mod kernels;
mod launched;
mod mutants;
mod products;
mod steps;
#[path = "../support/mod.rs"]
mod support;
mod target;
mod tf32;
mod tiles;

use kernels::memory::Memory;
use kernels::{Case, ELEMENTS, MODELS, TYPES, case, kernels, memory, own_folder, programs, reduced, right};
use shardc_codegen::{Generated, MATH, PARTS, with_prelude};
use shardc_cuda_testing::host::{Host, ORDERS, Order};
use shardc_cuda_testing::ptx::Module;
use shardc_ir::mesh::Mesh;
use shardc_nvrtc::Nvrtc;
use shardc_testkit::parallel;
use std::sync::OnceLock;

/// The program's, as interpreting PTX takes memory in small pieces.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The jobs of a run over a few.
const FEW: [(&str, &str); 3] = [("mlp", "f32"), ("resnet", "f32"), ("gpt2", "bf16")];

/// The models whose kernels of f16 are tried in a run over every kernel: those of others are as of
/// bf16, by other names of types.
const OF_F16: [&str; 2] = ["resnet", "gpt2"];

/// Of so many kernels one is tried further, where a share of them is.
const SHARE: usize = 8;

/// Of so many kernels one is assembled, and its PTX interpreted, where a share of them is.
const ASSEMBLED: usize = 2;

/// What came of a kernel, or of many.
#[derive(Default)]
struct Tally {
    /// Kernels assembled, executed and interpreted.
    counts: [usize; 3],
    /// Launches that use memory less well than they should, with a reason.
    listed: counted::Listed,
    /// What is wrong.
    failed: Vec<String>,
}

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    /// A few models.
    Few,
    /// Every kernel on the host, and a share of what else is done with it.
    Kernels,
    /// Everything.
    All,
}

fn extent() -> Extent {
    match std::env::var("SHARDC_CUDA").as_deref() {
        Err(_) => Extent::Few,
        Ok("kernels") => Extent::Kernels,
        Ok("all") => Extent::All,
        Ok(other) => panic!("`SHARDC_CUDA={other}`: it is `kernels` or `all`"),
    }
}

/// One of each, for the three extents.
fn of_extent<T>(few: T, kernels: T, all: T) -> T {
    match extent() {
        Extent::Few => few,
        Extent::Kernels => kernels,
        Extent::All => all,
    }
}

/// Whether a model's kernels of a type are tried.
fn is_tried(model: &str, dtype: &str) -> bool {
    match extent() {
        Extent::Few => FEW.contains(&(model, dtype)),
        Extent::Kernels => dtype != "f16" || OF_F16.contains(&model),
        Extent::All => true,
    }
}

/// Every kernel once, small enough to run.
fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let [aligned, others] = kernels::cases(is_tried);
        aligned.into_iter().chain(others.into_iter().step_by(of_extent(1, SHARE, 1))).collect()
    })
}

#[test]
fn kernels_compute_what_the_cpu_does() {
    if !Host::available() {
        eprintln!("skipped: no g++ for kernels on the host");
        return;
    }
    let cases = cases();
    assert!(cases.len() > 60, "{} kernels", cases.len());
    let texts: Vec<(String, String)> =
        cases.iter().map(|case| (case.generated.name.clone(), case.generated.text.clone())).collect();
    let host = Host::build(&support::objects(), &format!("{MATH}{PARTS}"), &texts).unwrap_or_else(|e| panic!("{e}"));
    let nvrtc = Nvrtc::find();
    if let Err(why) = &nvrtc {
        eprintln!("skipped: kernels are not assembled: {why}");
    }
    let parts = parallel::map(cases.len(), |at| {
        let (case, mut tally) = (&cases[at], Tally::default());
        let architectures = &target::architectures()[..if at % of_extent(1, SHARE, 1) == 0 { 3 } else { 1 }];
        let nvrtc = nvrtc.as_ref().ok().filter(|_| at % of_extent(1, ASSEMBLED, 1) == 0);
        if let Err(why) = run(case, &host, nvrtc, architectures, &mut tally) {
            tally.failed.push(format!("{}\n  {}\n  {why}", case.generated.name, case.of));
        }
        tally
    });
    let counts: [usize; 3] = std::array::from_fn(|i| parts.iter().map(|tally| tally.counts[i]).sum());
    counted::print(&counted::together(parts.iter().map(|tally| &tally.listed))).unwrap();
    let failed: Vec<String> = parts.into_iter().flat_map(|tally| tally.failed).collect();
    if let Ok(path) = std::env::var("SHARDC_CUDA_COUNTS") {
        std::fs::write(path, counts.map(|n| n.to_string()).join(" ")).unwrap();
    }
    assert!(failed.is_empty(), "{} of {} kernels fail\n{}", failed.len(), cases.len(), failed.join("\n"));
}

#[test]
fn kernels_of_gpt2_124m_are_assembled_as_they_are() {
    let nvrtc = match Nvrtc::find() {
        Ok(nvrtc) if extent() > Extent::Few => nvrtc,
        Ok(_) => return eprintln!("skipped: kernels of GPT-2 124M, which `tests/cuda.sh` assembles"),
        Err(why) => return eprintln!("skipped: kernels are not assembled: {why}"),
    };
    for (at, (dtype, line)) in TYPES.into_iter().enumerate().filter(|(_, (dtype, _))| is_tried("gpt2-124m", dtype)) {
        let (kernels, mesh) = kernels("gpt2-124m", "dp=1", line);
        let texts: Vec<String> = kernels.all.iter().map(|used| with_prelude(&used.generated.text)).collect();
        let named: Vec<(&str, &str)> =
            kernels.all.iter().zip(&texts).map(|(used, text)| (used.generated.name.as_str(), text.as_str())).collect();
        assert!(named.len() > 50, "{} kernels", named.len());
        for arch in target::some(at) {
            for (used, assembled) in kernels.all.iter().zip(nvrtc.assemble_all(&named, arch)) {
                let of = || format!("{dtype} {}: {}", used.generated.name, used.step);
                bounds(&used.generated, &mesh).unwrap_or_else(|why| panic!("{}: {why}", of()));
                let assembled = assembled.unwrap_or_else(|why| panic!("{}: {why}", of()));
                target::resources(&used.generated, &assembled, arch).unwrap_or_else(|why| panic!("{}: {why}", of()));
            }
        }
    }
}

/// Holds the accesses that launches say they make against their operands.
fn bounds(generated: &Generated, mesh: &Mesh) -> Result<(), String> {
    generated.launches.iter().try_for_each(|launch| shardc_codegen::bounds::check(launch, mesh)).map_err(|why| why.to_string())
}

/// What a run over some operands was and gave.
struct Ran {
    /// The position of the rank.
    coordinates: Vec<u64>,
    start: Memory,
    done: Memory,
    /// The accesses of every thread in their order, as a number for each launch.
    traces: Vec<u64>,
}

/// The orders of threads that kernels are run in.
fn orders() -> &'static [Order] {
    &ORDERS[..of_extent(ORDERS.len(), 2, ORDERS.len())]
}

/// Runs a kernel on the host over several operands, and compares.
fn on_host(case: &Case, host: &Host) -> Result<Vec<Ran>, String> {
    let mut ran = vec![];
    for draw in 0..memory::draws(&case.kernel) {
        let coordinates = memory::coordinates(&case.mesh, draw);
        let mut start = Memory::drawn(&case.kernel, &case.mesh, &case.in_place, draw);
        if !case.aligned {
            start.move_off(&case.kernel, &case.mesh);
        }
        let mut done = start.clone();
        let mut traces = vec![];
        done.launch(&case.generated, &coordinates, |job| {
            let ran = host.run_in(orders(), job)?;
            traces.push(ran.trace);
            Ok(ran.operands)
        })?;
        right::judge(case, &start, &done.writes, &coordinates)?;
        ran.push(Ran { coordinates, start, done, traces });
    }
    if let Some((read, rows)) = memory::indexed(&case.kernel) {
        let mut spoilt = Memory::drawn(&case.kernel, &case.mesh, &case.in_place, 0);
        spoilt.spoil_index(read, rows);
        let outcome =
            spoilt.launch(&case.generated, &ran[0].coordinates, |job| host.run_in(orders(), job).map(|ran| ran.operands));
        if outcome != Err(memory::FAULT.to_owned()) {
            return Err(format!("an index of {rows} is taken: {outcome:?}"));
        }
    }
    Ok(ran)
}

/// Runs a kernel on the host, then its PTX, which must give the same bits. It is assembled for
/// `architectures`, and the PTX is for the first of them.
fn run(case: &Case, host: &Host, nvrtc: Option<&Nvrtc>, architectures: &[u32], tally: &mut Tally) -> Result<(), String> {
    bounds(&case.generated, &case.mesh)?;
    let ran = on_host(case, host)?;
    let launches = if case.aligned { case.generated.launches.len() } else { 0 };
    tally.counts[1] += launches;
    let Some(nvrtc) = nvrtc else { return Ok(()) };
    let text = with_prelude(&case.generated.text);
    // Plans have operands that are aligned; what is made for others is run, and not counted.
    let name = &case.generated.name;
    let ptx = if case.aligned {
        let (assembled, ptx) = nvrtc.assemble_with_ptx(name, &text, architectures[0])?;
        target::resources(&case.generated, &assembled, architectures[0])?;
        for arch in &architectures[1..] {
            target::resources(&case.generated, &nvrtc.assemble(name, &text, *arch)?, *arch)?;
        }
        ptx
    } else {
        nvrtc.ptx(name, &text, architectures[0])?
    };
    tally.counts[0] += launches;
    let module = Module::parse(&ptx)?;
    for (draw, Ran { coordinates, start, done, .. }) in ran.into_iter().enumerate() {
        let mut again = start;
        let mut touched = vec![];
        again.launch(&case.generated, &coordinates, |job| {
            let ran = module.run(job)?;
            touched.push(ran.counts);
            Ok(ran.operands)
        })?;
        right::same(&case.kernel, &case.mesh, &again.writes, &done.writes).map_err(|e| format!("the PTX: {e}"))?;
        let launches = case.generated.launches.iter().filter(|launch| !launch.grid.contains(&0));
        // Other draws touch the same elements, but for what data choose.
        for (launch, counts) in launches.zip(&touched).filter(|_| draw == 0 && case.aligned) {
            counted::judge(case, launch, counts, &mut tally.listed)?;
        }
    }
    tally.counts[2] += launches;
    Ok(())
}
