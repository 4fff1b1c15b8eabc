//! Every function of the prelude that kernels are written over, on warps of edge values: a GPU
//! gives the bits of the host.

mod checks;
mod edges;

use super::card::Card;
use super::expected::{Bits, File, Keep, Kind};
use super::fake::{is_inside, told};
use super::support::objects;
use checks::{Check, all};
use shardc_codegen::{DEVICE, MATH, PARTS, with_prelude};
use shardc_cuda_testing::host::{Host, Order};
use shardc_gpu::device::Device;
use shardc_nvrtc::Nvrtc;
use std::collections::{BTreeMap, BTreeSet};

/// The file of expected bits.
const FILE: &str = "prelude";

/// Functions that only others of the prelude call, and these are checked.
const INNER: [&str; 11] = [
    "both",
    "ends_of_ln",
    "exp_m1",
    "exp_of_sum",
    "halvings",
    "ln_parts",
    "on_circle",
    "polynomial",
    "quarter_turns",
    "quotient",
    "with_sign",
];

/// The names of the prelude's functions.
fn functions() -> BTreeSet<&'static str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let lines = [DEVICE, MATH, PARTS].into_iter().flat_map(str::lines).filter(|line| !line.starts_with("#define"));
    let heads = lines.filter_map(|line| line.split_once("INLINE ")?.1.split_once('('));
    heads.map(|(head, _)| head.rsplit(|c: char| !is_word(c)).next().unwrap_or(head)).collect()
}

/// The texts, by their names.
fn texts(checks: &[Check]) -> Vec<(String, String)> {
    let mut texts: BTreeMap<&str, String> = BTreeMap::new();
    for check in checks {
        texts.entry(check.text).or_default().push_str(&check.source());
    }
    texts.into_iter().map(|(name, text)| (format!("prelude_{name}"), text)).collect()
}

fn built(checks: &[Check]) -> Host {
    Host::build(&objects(), &format!("{MATH}{PARTS}"), &texts(checks)).unwrap_or_else(|e| panic!("{e}"))
}

fn kinds(check: &Check) -> Vec<Kind> {
    check.results().map(|operand| operand.kind).collect()
}

/// What a check gives on the host.
fn on_host(check: &Check, host: &Host) -> Result<Bits, String> {
    let ran = host.run(&check.job(), Order::Forward)?;
    Ok(Bits::of(Keep::Bytes, &check.inputs(), &kinds(check), &check.written(ran.operands)))
}

#[test]
fn every_function_is_checked() {
    let text: String = texts(&all()).into_iter().map(|(_, text)| text).collect();
    let is_called = |name: &str| [format!("{name}("), format!("{name}<")].iter().any(|call| text.contains(call));
    let left: Vec<&str> = functions().into_iter().filter(|name| !is_called(name)).collect();
    assert_eq!(left, INNER, "functions of the prelude without a check");
}

#[test]
fn texts_are_assembled() {
    let Ok(nvrtc) = Nvrtc::find() else { return eprintln!("skipped: NVRTC is not there") };
    let texts: Vec<(String, String)> = texts(&all()).into_iter().map(|(name, text)| (name, with_prelude(&text))).collect();
    let named: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    for assembled in nvrtc.assemble_all(&named, 90) {
        assembled.unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn functions_give_the_hosts_bits() {
    if !is_inside("prelude::functions_give_the_hosts_bits", &[]) {
        return;
    }
    let checks = all();
    let kept = File::read(FILE);
    let host = (kept.is_none() && Host::available()).then(|| built(&checks));
    if kept.is_none() && host.is_none() {
        return eprintln!("skipped: neither expected bits nor a C++ compiler are there");
    }
    let card = Card::open(false);
    let texts = texts(&checks);
    let mut modules = BTreeMap::new();
    for ((name, _), cubin) in texts.iter().zip(card.assembled(&texts)) {
        let cubin = cubin.unwrap_or_else(|why| panic!("{name}: {why}"));
        modules.insert(name.clone(), card.gpu.load(&cubin).unwrap());
    }
    let mut failed = vec![];
    for check in &checks {
        let module = modules[&format!("prelude_{}", check.text)];
        let one = || -> Result<(), String> {
            let function = card.gpu.function(module, &check.name, check.shared)?;
            let found = check.written(card.run(function, &check.job())?);
            let bits = match &host {
                Some(host) => on_host(check, host)?,
                None => kept.as_ref().and_then(|File(all)| all.get(&check.name)).ok_or("no bits are expected of it")?.clone(),
            };
            bits.hold(Keep::Bytes, &check.inputs(), &kinds(check), &found)
        };
        if let Err(why) = one() {
            failed.push(format!("{}: {why}", check.name));
        }
    }
    assert!(failed.is_empty(), "{} of {} checks fail\n{}", failed.len(), checks.len(), failed.join("\n"));
    told(&format!("{} functions, {} checks", functions().len(), checks.len()));
}

#[test]
#[ignore = "`tests/gpu.sh --build` writes the bits"]
fn expected_bits_are_written() {
    let checks = all();
    let host = built(&checks);
    let bits = |check: &Check| (check.name.clone(), on_host(check, &host).unwrap_or_else(|why| panic!("{}: {why}", check.name)));
    let file = File(checks.iter().map(bits).collect());
    let bytes = file.write(FILE);
    told(&format!("{} checks, {:.1} MiB", checks.len(), bytes as f64 / f64::from(1 << 20)));
}
