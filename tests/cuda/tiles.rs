//! The names for tensor cores, in a kernel of their own: the host and the PTX give the same bits,
//! and each damaged name of the device gives others.

use super::support::objects;
use super::target;
use shardc_codegen::{DEVICE, MATH, PARTS};
use shardc_cuda_testing::host::Host;
use shardc_cuda_testing::job::{Access, Job, Operand};
use shardc_cuda_testing::ptx::Module;
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_nvrtc::Nvrtc;
use shardc_testkit::random::Random;

/// A warp multiplies 16 rows of `a` with 16 columns of `b`, `TERMS` terms in steps of 16. A step
/// is copied while the one before is multiplied; the last one has half as many terms.
const TEXT: &str = "\
KERNEL(64) tiles(const TYPE* a, const TYPE* b, float* sums, u32* rounded) {
    SHARED(room);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float d[2][4] = {};
    unsigned char* own = room + warp * 2048;
    a += (blockIdx.x * 2 + warp) * 16 * 40;
    #pragma unroll
    for (u32 step = 0; step < 4; step++) {
        if (step < 3) {
            unsigned char* to = own + step % 2 * 1024 + lane * 16;
            u32 row = lane / 2, term = step * 16 + lane % 2 * 8;
            copy_async(to, a + row * 40 + term, term < 40);
            copy_async(to + 512, b + (step * 16 + row) * 16 + lane % 2 * 8, step * 16 + row < 40);
            copy_commit();
        }
        if (step == 0) continue;
        if (step < 3) copy_wait<1>();
        else copy_wait<0>();
        BARRIER();
        unsigned char* from = own + (step - 1) % 2 * 1024 + lane % 16 * 32 + lane / 16 * 16;
        u32 x[4], y[4];
        load_tiles(x, from);
        load_tiles_turned(y, from + 512);
        multiply_tile_TYPE(d[0], x, y[0], y[1]);
        multiply_tile_TYPE(d[1], x, y[2], y[3]);
        BARRIER();
    }
    #pragma unroll
    for (u32 n = 0; n < 4; n++) {
        u32 at = ((blockIdx.x * 2 + warp) * 16 + lane / 4 + n % 2 * 8) * 16 + n / 2 * 8 + lane % 4 * 2;
        float low = d[n / 2][n % 2 * 2], high = d[n / 2][n % 2 * 2 + 1];
        sums[at] = low;
        sums[at + 1] = high;
        rounded[at / 2] = packed_TYPE(low, high);
    }
}
";

/// The types that tiles have.
const TYPES: [DType; 2] = [DType::BF16, DType::F16];

/// Terms of each sum.
const TERMS: usize = 40;

/// Rows of `a`, which two warps in each of two blocks have.
const ROWS: usize = 64;

/// Damages, as what stands in the names of the device and what comes in its place.
const DAMAGES: [(&str, &str); 23] = [
    ("cvt.rn.bf16x2.f32 %0, %1, %2", "cvt.rn.bf16x2.f32 %0, %2, %1"),
    ("cvt.rn.bf16x2.f32", "cvt.rn.f16x2.f32"),
    ("cvt.rn.f16x2.f32 %0, %1, %2", "cvt.rn.f16x2.f32 %0, %2, %1"),
    ("cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32"),
    ("there ? 16 : 0", "16"),
    ("there ? 16 : 0", "there ? 0 : 16"),
    ("there ? 16 : 0", "there ? 8 : 0"),
    ("cp.async.cg.shared.global [%0], [%1], 16, %2;", "cp.async.cg.shared.global [%0 + 16], [%1], 16, %2;"),
    ("cp.async.cg.shared.global [%0], [%1], 16, %2;", "cp.async.ca.shared.global [%0], [%1], 8, %2;"),
    ("cp.async.commit_group;", ""),
    ("cp.async.wait_group %0;\" :: \"n\"(LEFT)", "cp.async.wait_group %0;\" :: \"n\"(LEFT + 1)"),
    ("{%0, %1, %2, %3}, [%4];", "{%1, %0, %2, %3}, [%4];"),
    ("{%0, %1, %2, %3}, [%4];", "{%0, %2, %1, %3}, [%4];"),
    ("m8n8.x4.shared", "m8n8.x4.trans.shared"),
    ("m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}", "m8n8.x4.shared.b16 {%0, %1, %2, %3}"),
    ("m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}", "m8n8.x4.trans.shared.b16 {%0, %1, %3, %2}"),
    ("m16n8k16.row.col.f32.bf16.bf16.f32", "m16n8k16.row.col.f32.f16.f16.f32"),
    ("m16n8k16.row.col.f32.f16.f16.f32", "m16n8k16.row.col.f32.bf16.bf16.f32"),
    ("bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}", "bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%9, %8}"),
    ("bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5,", "bf16.bf16.f32 {%0, %1, %2, %3}, {%5, %4,"),
    (
        "f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}",
        "f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%9, %8}",
    ),
    ("f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}", "f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %6, %5, %7}"),
    ("f32.f16.f16.f32 {%0, %1, %2, %3}", "f32.f16.f16.f32 {%2, %3, %0, %1}"),
];

fn job(dtype: DType) -> Job {
    let mut random = Random(7);
    let mut numbers = |count: usize| {
        let values: Vec<f64> = (0..count).map(|_| (random.below(2001) as f64 - 1000.0) / 257.0).collect();
        Tensor::from_f64(&[count as u64], &values).cast(dtype).bytes
    };
    let operand =
        |name: &str, access, bytes| Operand { name: name.into(), access, whole: access == Access::Write, past: 0, bytes };
    let operands = vec![
        operand("a", Access::Read, numbers(ROWS * TERMS)),
        operand("b", Access::Read, numbers(TERMS * 16)),
        operand("sums", Access::Write, vec![0; ROWS * 16 * 4]),
        operand("rounded", Access::Write, vec![0; ROWS * 16 * 2]),
    ];
    Job { entry: format!("tiles_{dtype}"), grid: [2, 1, 1], block: 64, shared: 4096, operands, numbers: vec![] }
}

fn text(dtype: DType) -> String {
    TEXT.replace(" tiles(", &format!(" tiles_{dtype}(")).replace("TYPE", &dtype.to_string())
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    Tensor { dtype, shape: vec![], bytes: bytes.to_vec() }.to_f64()
}

#[test]
fn tiles_are_the_same_on_the_host_and_in_ptx() {
    if !Host::available() {
        eprintln!("skipped: no g++ for kernels on the host");
        return;
    }
    let texts: Vec<(String, String)> = TYPES.map(|dtype| (dtype.to_string(), text(dtype))).into();
    let host = Host::build(&objects(), &format!("{MATH}{PARTS}"), &texts).unwrap_or_else(|e| panic!("{e}"));
    let nvrtc = Nvrtc::find();
    let mut found = [false; DAMAGES.len()];
    for dtype in TYPES {
        let job = job(dtype);
        let ran = host.run_orders(&job).unwrap_or_else(|e| panic!("{e}"));
        let [a, b] = [0, 1].map(|operand| numbers(dtype, &job.operands[operand].bytes));
        for (at, sum) in numbers(DType::F32, &ran.operands[2]).into_iter().enumerate() {
            let terms: Vec<f64> = (0..TERMS).map(|k| a[at / 16 * TERMS + k] * b[k * 16 + at % 16]).collect();
            let (want, most) = (terms.iter().sum::<f64>(), terms.iter().map(|term| term.abs()).sum::<f64>());
            // Three sums in f64, each rounded to f32.
            assert!((sum - want).abs() <= 3.0 * 2f64.powi(-24) * most, "{at}: {sum}, not {want}");
        }
        let Ok(nvrtc) = &nvrtc else { continue };
        let whole_text = |device: &str| format!("{device}{MATH}{PARTS}{}", text(dtype));
        for arch in target::architectures() {
            nvrtc.assemble("tiles", &whole_text(DEVICE), arch).unwrap_or_else(|e| panic!("{e}"));
        }
        let on_ptx = |device: &str| {
            let ptx = nvrtc.ptx("tiles", &whole_text(device), target::architectures()[0]).unwrap_or_else(|e| panic!("{e}"));
            Module::parse(&ptx)?.run(&job)
        };
        assert_eq!(on_ptx(DEVICE).unwrap_or_else(|e| panic!("{e}")).operands, ran.operands, "{}", job.entry);
        for ((from, to), found) in DAMAGES.iter().zip(&mut found) {
            assert!(DEVICE.contains(from), "{from}");
            *found |= on_ptx(&DEVICE.replacen(from, to, 1)).map_or(true, |damaged| damaged.operands != ran.operands);
        }
    }
    let survivors: Vec<_> = DAMAGES.iter().zip(found).filter(|(_, found)| !found).map(|(damage, _)| damage).collect();
    assert!(nvrtc.is_err() || survivors.is_empty(), "not found:\n{survivors:#?}");
    match nvrtc {
        Ok(_) => eprintln!("{} damaged names, all found", DAMAGES.len()),
        Err(why) => eprintln!("skipped: kernels are not assembled: {why}"),
    }
}
