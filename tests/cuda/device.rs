//! Damage of the names that only the GPU has, which the host does not execute: the PTX then gives
//! other bits than the host, or no kernel contains the damaged name.

use super::support::objects;
use super::{Case, Ran, cases, of_extent, on_host, right};
use shardc_codegen::{DEVICE, MATH, PARTS};
use shardc_cuda_testing::host::Host;
use shardc_cuda_testing::ptx::Module;
use shardc_nvrtc::Nvrtc;
use std::collections::BTreeMap;

/// Damages, as what stands in the names of the device and what comes in its place.
const DAMAGES: [(&str, &str); 30] = [
    ("#define BARRIER() __syncthreads()", "#define BARRIER()"),
    ("return __float_as_uint(x);", "return (u32)x;"),
    ("return __uint_as_float(x);", "return (float)x;"),
    ("return (u64)__double_as_longlong(x);", "return (u64)x;"),
    ("return __longlong_as_double((i64)x);", "return (double)x;"),
    ("(u32)x.bits << 16", "(u32)x.bits << 15"),
    ("cvt.f32.f16", "cvt.f32.bf16"),
    ("cvt.rn.bf16.f32", "cvt.rn.f16.f32"),
    ("cvt.rn.f16.f32", "cvt.rn.bf16.f32"),
    ("ex2.approx.ftz.f32 %0, %1", "mov.f32 %0, %1"),
    ("to.w[0] = *(const u32*)p;", "to.w[0] = *(const u16*)p;"),
    ("to.w[0] = v.x; to.w[1] = v.y;\n", "to.w[0] = v.y; to.w[1] = v.x;\n"),
    ("to.w[0] = v.x; to.w[1] = v.y; to.w[2] = v.z;", "to.w[0] = v.x; to.w[1] = v.z; to.w[2] = v.y;"),
    ("to.w[3] = v.w;", "to.w[3] = v.z;"),
    ("*(u32*)p = from.w[0];", "*(u16*)p = from.w[0];"),
    ("{%1, %2};", "{%2, %1};"),
    ("[%0], {%1, %2};", "[%0 + 8], {%1, %2};"),
    ("{%1, %2, %3, %4};", "{%1, %2, %4, %3};"),
    ("{%1, %2, %3, %4};", "{%4, %2, %3, %1};"),
    ("[%0], {%1, %2, %3, %4};", "[%0 + 16], {%1, %2, %3, %4};"),
    ("st.shared.v2.u32 [%0], {%1, %2};", "st.shared.v2.u32 [%0], {%2, %1};"),
    ("st.shared.v4.u32 [%0], {%1, %2, %3, %4};", "st.shared.v4.u32 [%0], {%1, %3, %2, %4};"),
    (
        "u32 shuffle_xor(u32 x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes)",
        "u32 shuffle_xor(u32 x, int lanes) { return x",
    ),
    (
        "float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes)",
        "float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes ^ 3)",
    ),
    (
        "float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes)",
        "float x, int lanes) { return __shfl_xor_sync(0xffffu, x, lanes)",
    ),
    ("double x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes)", "double x, int lanes) { return x"),
    ("i64 x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes)", "i64 x, int lanes) { return x"),
    ("__ballot_sync(0xffffffffu, x)", "__ballot_sync(0xffffffffu, !x)"),
    ("(u32)__ffs((i32)x) - 1", "(u32)__ffs((i32)x)"),
    ("return __umulhi(a, b);", "return a * b;"),
];

/// Kernels of each form and type that are run with damaged names.
const OF_EACH: usize = 2;

#[test]
fn damaged_names_of_the_device_are_found() {
    let nvrtc = match Nvrtc::find() {
        Ok(nvrtc) if Host::available() => nvrtc,
        Ok(_) => return eprintln!("skipped: no g++ for kernels on the host"),
        Err(why) => return eprintln!("skipped: kernels are not assembled: {why}"),
    };
    let mut kinds: BTreeMap<_, Vec<&Case>> = BTreeMap::new();
    for case in cases() {
        let signature = case.kernel.signature(&case.mesh).unwrap();
        let types: Vec<_> = signature.reads.iter().chain(&signature.writes).map(|operand| operand.dtype.bytes()).collect();
        let (least, most) = (types.iter().min().copied(), types.iter().max().copied());
        let kind = kinds.entry((case.kernel.name(), least, most)).or_default();
        if kind.len() < OF_EACH {
            kind.push(case);
        }
    }
    let cases: Vec<&Case> = kinds.into_values().flatten().collect();
    let texts: Vec<(String, String)> =
        cases.iter().map(|case| (case.generated.name.clone(), case.generated.text.clone())).collect();
    let host = Host::build(&objects(), &format!("{MATH}{PARTS}"), &texts).unwrap_or_else(|e| panic!("{e}"));
    let ptx = |case: &Case, device: &str| {
        nvrtc.ptx(
            &case.generated.name,
            &format!("{device}{MATH}{PARTS}{}", case.generated.text),
            super::target::architectures()[0],
        )
    };
    let sound: Vec<_> = cases.iter().map(|case| (ptx(case, DEVICE).unwrap(), on_host(case, &host).unwrap())).collect();
    let (mut found, mut absent, mut survivors) = (0, vec![], vec![]);
    let tried: Vec<_> = DAMAGES.into_iter().step_by(of_extent(1, 6, 1)).collect();
    for (from, to) in tried.iter().copied() {
        assert_eq!(DEVICE.matches(from).count().min(1), 1, "{from}");
        let device = DEVICE.replacen(from, to, 1);
        let mut is_used = false;
        let is_found = cases.iter().zip(&sound).any(|(case, (sound, ran))| {
            let text = ptx(case, &device).unwrap_or_else(|e| panic!("`{from}` as `{to}`: {e}"));
            if text == *sound {
                return false;
            }
            is_used = true;
            let module = Module::parse(&text).unwrap_or_else(|e| panic!("`{from}` as `{to}`: {e}"));
            ran.iter().any(|Ran { coordinates, start, done, .. }| {
                let mut again = start.clone();
                let outcome = again.launch(&case.generated, coordinates, |job| Ok(module.run(job)?.operands));
                outcome.is_err() || right::same(&case.kernel, &case.mesh, &again.writes, &done.writes).is_err()
            })
        });
        match (is_found, is_used) {
            (true, _) => found += 1,
            (false, false) => absent.push(from),
            (false, true) => survivors.push(format!("`{from}` as `{to}`")),
        }
    }
    eprintln!("{} damaged names, {found} found, in no kernel of {}: {absent:?}", tried.len(), cases.len());
    assert!(survivors.is_empty(), "not found:\n{}", survivors.join("\n"));
    // What is in no kernel changes none: its PTX is the same.
    assert!(found * 10 >= tried.len() * 7, "{found} of {} were found; in no kernel: {absent:?}", tried.len());
}
