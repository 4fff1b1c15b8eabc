//! Runs small kernels on the host: right ones, and ones that are damaged in one place each.

mod damages;

use damages::DAMAGES;
use shardc_cuda_testing::host::{Host, Order};
use shardc_cuda_testing::job::{Access, Job, Operand};
use std::path::PathBuf;
use std::time::Instant;

/// Adds two rows of floats, four at a time.
const MAP: &str = "\
KERNEL(128) map(const float* x, const float* y, float* z, i64 n) {
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (at >= n) return;
    words<4> a, b;
    load(a, x + at);
    load(b, y + at);
    for (int k = 0; k < 4; k++) a.w[k] = bits_of(fmaf(float_of(a.w[k]), 2.0f, float_of(b.w[k])));
    store(z + at, a);
}
";

/// Sums each row; the partial sums are kept too.
const SUM: &str = "\
KERNEL(256) sum(const float* x, float* parts, float* y, i64 n) {
    SHARED(room);
    float* part = (float*)room;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float s = 0;
    for (i64 i = threadIdx.x; i < n; i += 256) s += x[blockIdx.x * n + i];
    for (int step = 16; step > 0; step /= 2) s += shuffle_xor(s, step);
    if (lane == 0) part[warp] = s;
    BARRIER();
    float t = part[lane % 8];
    for (int step = 4; step > 0; step /= 2) t += shuffle_xor(t, step);
    BARRIER();
    part[threadIdx.x] = t + threadIdx.x;
    BARRIER();
    float next = part[threadIdx.x ^ 255];
    parts[blockIdx.x * 256 + threadIdx.x] = next;
    u32 full = ballot(next >= t);
    if (threadIdx.x == 0) y[blockIdx.x] = full == 0xffffffffu ? t : -1.0f;
}
";

/// Takes numbers of bf16 by their index, and adds to what is there.
const GATHER: &str = "\
KERNEL(64) gather(const bf16* x, const i32* index, bf16* y, u32* fault, i64 n, i64 rows) {
    i64 at = (i64)blockIdx.x * 64 + threadIdx.x;
    if (at >= n) return;
    i32 i = index[at];
    if (i < 0 || i >= rows) { fail(fault, 7); i = 0; }
    i32 turn = i * 2;
    y[at] = narrowed_bf16(widened(x[turn / 2]) + widened(y[at]));
}
";

/// Multiplies two tiles of 16 rows with one, in a warp each; the last copies write zeros.
const TILES: &str = "\
KERNEL(64) tiles(const bf16* a, const bf16* b, float* c) {
    SHARED(room);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    copy_async(room + threadIdx.x * 16, a + threadIdx.x * 8, true);
    copy_commit();
    copy_async(room + 1024 + threadIdx.x * 16, b + threadIdx.x * 8, threadIdx.x < 32); copy_commit();
    u32 x[4], y[4];
    float d[2][4] = {};
    copy_wait<0>();
    BARRIER();
    load_tiles(x, room + warp * 512 + lane % 16 * 32 + lane / 16 * 16);
    load_tiles_turned(y, room + 1024 + lane % 16 * 32 + lane / 16 * 16);
    multiply_tile_bf16(d[0], x, y[0], y[1]);
    multiply_tile_bf16(d[1], x, y[2], y[3]);
    load_tiles(x, room + 1536 + lane * 16);
    multiply_tile_bf16(d[lane * x[0] % 2], x, y[2], y[3]);
    for (u32 n = 0; n < 8; n++) c[(warp * 16 + lane / 4 + n / 2 % 2 * 8) * 16 + n / 4 * 8 + lane % 4 * 2 + n % 2] = d[n / 4][n % 4];
}
";

fn texts() -> [(String, String); 4] {
    [("map", MAP), ("sum", SUM), ("gather", GATHER), ("tiles", TILES)].map(|(n, t)| (n.into(), t.into()))
}

/// What is built here is kept for the next time.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("host")
}

fn skipped() -> bool {
    let skipped = !Host::available();
    if skipped {
        eprintln!("skipped: no g++");
    }
    skipped
}

fn bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn operand(name: &str, access: Access, bytes: Vec<u8>) -> Operand {
    Operand { name: name.into(), access, whole: access == Access::Write, past: 0, bytes }
}

fn job(entry: &str, grid: u32, block: u32, shared: u32, operands: Vec<Operand>, numbers: Vec<i64>) -> Job {
    Job { entry: entry.into(), grid: [grid, 1, 1], block, shared, operands, numbers }
}

fn row(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 37 % 101) as f32 - 50.0).collect()
}

fn map_job() -> Job {
    let (x, y) = (operand("x", Access::Read, bytes(&row(1000))), operand("y", Access::Read, bytes(&row(1000))));
    job("map", 2, 128, 0, vec![x, y, operand("z", Access::Write, vec![0; 4000])], vec![1000])
}

fn sum_job() -> Job {
    let x = operand("x", Access::Read, bytes(&row(3 * 1000)));
    let (parts, y) = (operand("parts", Access::Write, vec![0; 3 * 1024]), operand("y", Access::Write, vec![0; 12]));
    job("sum", 3, 256, 1024, vec![x, parts, y], vec![1000])
}

fn bf16(x: f32) -> [u8; 2] {
    let bytes = x.to_bits().to_le_bytes();
    [bytes[2], bytes[3]]
}

fn gather_job(wrong: Option<usize>) -> Job {
    let x: Vec<u8> = (0..50).flat_map(|i| bf16(i as f32)).collect();
    let index: Vec<u8> = (0..100).flat_map(|i| if wrong == Some(i) { 50 } else { i as i32 * 7 % 50 }.to_le_bytes()).collect();
    let y: Vec<u8> = (0..100).flat_map(|_| bf16(1.0)).collect();
    let mut operands = vec![operand("x", Access::Read, x), operand("index", Access::Read, index)];
    operands.extend([operand("y", Access::Update, y), operand("fault", Access::Fault, vec![0; 4])]);
    job("gather", 2, 64, 0, operands, vec![100, 50])
}

fn tiles_job() -> Job {
    let numbers = |count: usize, by: usize| (0..count).flat_map(|i| bf16((i * by % 23) as f32 - 11.0)).collect();
    let (a, b) = (operand("a", Access::Read, numbers(512, 7)), operand("b", Access::Read, numbers(256, 5)));
    job("tiles", 1, 64, 3072, vec![a, b, operand("c", Access::Write, vec![0; 2048])], vec![])
}

#[test]
fn right_kernels_run_in_all_orders() {
    if skipped() {
        return;
    }
    let host = Host::build(&folder(), "", &texts()).unwrap();
    for order in [Order::Forward, Order::Backward, Order::Seed(77)] {
        let ran = host.run(&map_job(), order).unwrap();
        assert_eq!(ran.operands[2], bytes(&row(1000).iter().map(|x| x * 3.0).collect::<Vec<_>>()));
        assert_eq!((ran.accesses, ran.faulted), (750, false));
        let ran = host.run(&sum_job(), order).unwrap();
        let sums: Vec<f32> = row(3000).chunks(1000).map(|c| c.iter().sum()).collect();
        assert_eq!(ran.operands[2], bytes(&sums));
        assert_eq!(ran.operands[1][..4], (sums[0] + 255.0).to_le_bytes());
        let ran = host.run(&gather_job(None), order).unwrap();
        let want: Vec<u8> = (0..100).flat_map(|i| bf16((i * 7 % 50) as f32 + 1.0)).collect();
        assert_eq!((&ran.operands[2], ran.faulted), (&want, false));
        assert_eq!(ran.operands[0], gather_job(None).operands[0].bytes);
        let ran = host.run(&tiles_job(), order).unwrap();
        let number = |at: usize, by: usize| (at * by % 23) as f32 - 11.0;
        let product = |row: usize, column: usize| (0..16).map(|k| number(row * 16 + k, 7) * number(k * 16 + column, 5)).sum();
        assert_eq!(ran.operands[2], bytes(&(0..512).map(|at| product(at / 16, at % 16)).collect::<Vec<_>>()));
    }
    for job in [map_job(), sum_job(), gather_job(None), tiles_job()] {
        host.run_orders(&job).unwrap();
    }
}

#[test]
fn faults_are_seen() {
    if skipped() {
        return;
    }
    let host = Host::build(&folder(), "", &texts()).unwrap();
    let ran = host.run_orders(&gather_job(Some(99))).unwrap();
    assert!(ran.faulted);
    assert_eq!(ran.operands[3], 7u32.to_le_bytes());
}

#[test]
fn damaged_kernels_are_found() {
    if skipped() {
        return;
    }
    // One executable for all: each damaged text has an entry of its own name.
    let mut kernels = Vec::new();
    for (number, (entry, old, new, _)) in DAMAGES.iter().enumerate() {
        let texts = texts();
        let (_, text) = texts.iter().find(|t| t.0 == *entry).unwrap();
        assert_eq!(text.matches(old).count(), 1, "`{old}` in {entry}");
        let text = text.replace(old, new).replace(&format!(" {entry}("), &format!(" {entry}_{number}("));
        kernels.push((format!("{entry}_{number}"), text));
    }
    let host = Host::build(&folder(), "", &kernels).unwrap().limit(1);
    let mut missed = Vec::new();
    for (number, (entry, _, new, words)) in DAMAGES.iter().enumerate() {
        let mut job = match *entry {
            "map" => map_job(),
            "sum" => sum_job(),
            "tiles" => tiles_job(),
            _ => gather_job(Some(77)),
        };
        job.entry = format!("{entry}_{number}");
        let said = host.run_orders(&job).map(|_| ());
        match &said {
            Err(line) if words.iter().all(|w| line.contains(w)) && !line.contains('\n') => eprintln!("{line}"),
            _ => missed.push(format!("`{new}`: wanted {words:?}, got {said:?}")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn wrong_launches_are_refused() {
    if skipped() {
        return;
    }
    let host = Host::build(&folder(), "", &texts()).unwrap();
    let wrong = |change: fn(&mut Job), word: &str| {
        let mut job = map_job();
        change(&mut job);
        let said = host.run(&job, Order::Forward).unwrap_err();
        assert!(said.contains(word), "wanted `{word}`, got `{said}`");
    };
    wrong(|j| j.entry = "none".into(), "no text has this entry");
    wrong(|j| j.block = 256, "blocks of 256 threads, where the text says 128");
    wrong(|j| j.grid = [1, 0, 1], "grid of 1 x 0 x 1");
    wrong(|j| j.numbers.push(1), "3 pointers and 1 numbers, the job 3 and 2");
    wrong(|j| j.shared = 1 << 20, "shared memory");
    wrong(|j| j.operands[0].whole = true, "the operand x cannot be written whole");
    let mut job = sum_job();
    job.block = 250;
    let said = host.run(&job, Order::Forward).unwrap_err();
    assert!(said.contains("shuffle in a warp of 26 lanes") || said.contains("threads diverge"), "{said}");
    let text = MAP.replace("fmaf", "expf");
    let said = Host::build(&folder(), "", &[("bad".into(), text)]).unwrap_err();
    assert!(said.contains("bad.cu:7") && said.contains("expf"), "{said}");
}

/// Each name that kernels may use, on values whose results are known.
const NAMES: &str = "\
KERNEL(32) names(u32* bits, float* numbers, double* doubles, i64* longs) {
    u32 l = threadIdx.x;
    longs[l] = shuffle_xor((i64)l * 4000000000ll, 3);
    doubles[l] = max(shuffle_xor((double)l, 1), 2.0) + fma(2.0, 3.0, floor(-0.5)) + min((i64)3, (i64)-4) + sqrt(4.0);
    u32 b = shuffle_xor(l, 31) + lowest_bit(96) + high_product(0x80000000u, 6) + min(3u, 4u) + max(-1, 1) + ballot(l < 2);
    bits[l] = b + bits_of(copysignf(0.0f, -1.0f)) + (u32)(max((u64)1, (u64)2) + blockDim.x + gridDim.x + blockIdx.y);
    f16 h = narrowed_f16(1.0f / 3 + l);
    words<2> w;
    w.w[0] = bits_of(widened(h)) + (bits_of(2.0) >> 63); w.w[1] = bits_of(fminf(float_of(0x7fc00000), rintf(2.5f)) + fmodf(7.5f, 2.0f));
    store(numbers + l * 2, w);
    bool8 t = {narrowed_f16(INFINITY - INFINITY).bits == 0x7fff && bits_of(fmaxf(-0.0f, 0.0f)) == 0 && isnan};
    bits[l] += t.bits + (packed_bf16(1.0f, 2.0f) == 0x40003f80) + (packed_f16(1.0f, 2.0f) == 0x40003c00);
}
";

#[test]
fn all_names_are_there() {
    if skipped() {
        return;
    }
    let math = "static const bool isnan = float_of(0x7fc00000) != float_of(0x7fc00000);";
    let host = Host::build(&folder(), math, &[("names".into(), NAMES.into())]).unwrap();
    let sizes = [("bits", 128), ("numbers", 256), ("doubles", 256), ("longs", 256)];
    let mut operands: Vec<_> = sizes.iter().map(|(n, size)| operand(n, Access::Write, vec![0; *size])).collect();
    operands[0].access = Access::Update;
    let ran = host.run_orders(&job("names", 1, 32, 0, operands, vec![])).unwrap();
    for l in 0..32u32 {
        let at = l as usize;
        assert_eq!(ran.operands[3][at * 8..][..8], (i64::from(l ^ 3) * 4_000_000_000).to_le_bytes());
        let double = f64::from(l ^ 1).max(2.0) + 5.0 - 4.0 + 2.0;
        assert_eq!(ran.operands[2][at * 8..][..8], double.to_le_bytes());
        let bits = (l ^ 31) + 5 + 3 + 3 + 1 + 3 + 0x8000_0000 + 2 + 32 + 1 + 1 + 2;
        assert_eq!(ran.operands[0][at * 4..][..4], bits.to_le_bytes(), "lane {l}");
        let third = f32::from_le_bytes(ran.operands[1][at * 8..][..4].try_into().unwrap());
        assert!((third - (1.0 / 3.0 + l as f32)).abs() < 0.008, "{third}");
        assert_eq!(ran.operands[1][at * 8 + 4..][..4], 3.5f32.to_le_bytes());
    }
}

#[test]
fn checks_are_quick() {
    if skipped() {
        return;
    }
    let host = Host::build(&folder(), "", &texts()).unwrap();
    let mut sum = sum_job();
    sum.operands[0].bytes = bytes(&row(3 * 1_000_000));
    sum.numbers[0] = 1_000_000;
    let (mut x, mut y) = (operand("x", Access::Read, bytes(&row(1 << 20))), operand("index", Access::Read, vec![0; 4 << 20]));
    x.bytes.resize(4 << 20, 0);
    y.bytes.resize(4 << 20, 0);
    let map = job("map", 1 << 11, 128, 0, vec![x, y, operand("z", Access::Write, vec![0; 4 << 20])], vec![1 << 20]);
    let mut gather = gather_job(None);
    gather.grid[0] = 1 << 13;
    gather.operands[1].bytes = vec![0; 4 << 19];
    gather.operands[2].bytes = vec![0; 2 << 19];
    gather.numbers[0] = 1 << 19;
    for job in [sum, map, gather] {
        let before = Instant::now();
        let ran = host.run(&job, Order::Forward).unwrap();
        let rate = ran.accesses as f64 / before.elapsed().as_secs_f64() / 1e6;
        eprintln!("{}: {} accesses, {rate:.1} million a second", job.entry, ran.accesses);
        assert!(rate > 0.5, "{rate}");
    }
}
