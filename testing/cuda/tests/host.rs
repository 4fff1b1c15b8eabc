//! Runs small kernels on the host: right ones, and ones that are damaged in one place each.

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

/// One kernel, what is replaced in it, by what, and words of the complaint.
type Damage = (&'static str, &'static str, &'static str, &'static [&'static str]);

const DAMAGES: &[Damage] = &[
    (
        "gather",
        "i32 i = index[at];",
        "i32 i = index[at]; if (blockIdx.x == 0) i += widened(y[64]) > 1000.0f;",
        &["race: written while read by another block", "line 7", "operand y byte 128 of 200", "block (1, 0, 0), thread 0"],
    ),
    (
        "gather",
        "i32 i = index[at];",
        "i32 i = index[at]; float v[40]; v[at % 40] = 1; ((volatile float*)v)[100000 * (at + 1)] = 2;",
        &["write outside the operands", "line 4"],
    ),
    (
        "gather",
        "i32 i = index[at];",
        "i32 i = index[at]; for (u32 k = 1; at == 3 && k; k |= k << 1);",
        &["no end within the time limit", "line 4", "thread 3"],
    ),
    (
        "map",
        "if (at >= n) return;",
        "",
        &["read out of bounds", "line 5 of", "operand x bytes 4000 to 4015 of 4000", "block (1, 0, 0), thread 122"],
    ),
    ("map", "at >= n", "at > n", &["read out of bounds", "operand x bytes 4000 to 4015"]),
    ("map", "load(a, x + at)", "load(a, x + at - 4)", &["read out of bounds", "operand x bytes -16 to -1"]),
    ("map", "load(a, x + at)", "load(a, x + at + 1)", &["misaligned access", "line 5", "operand x"]),
    ("map", "load(b, y + at)", "load(b, z + at)", &["read from an operand that is only written", "line 6", "operand z"]),
    ("map", "store(z + at, a)", "store((float*)y + at, a)", &["write to an operand that is only read", "line 8", "operand y"]),
    (
        "map",
        "store(z + at, a)",
        "store(z + at / 8 * 4, a)",
        &["race: written, and also by thread 0", "line 8", "operand z", "thread 1"],
    ),
    (
        "map",
        "store(z + at, a)",
        "store(z + at % 512, a)",
        &["race: written, and also by block (0, 0, 0), thread 0", "block (1, 0, 0)"],
    ),
    ("map", "if (at >= n) return;", "if (at + 4 >= n) return;", &["not written whole", "operand z byte 3984 of 4000"]),
    ("map", "load(b, y + at)", "load(b, (float*)16 + at)", &["read outside the operands", "line 6"]),
    ("map", "words<4> a, b;", "words<4> a, b; static u32 count; count++;", &["write outside the operands", "line 4"]),
    ("map", "at >= n", "at >= n * 4000000000 * 4000000000", &["overflow of a product", "line 3"]),
    ("map", "at >= n", "at >= (n - ((at > 0) << (threadIdx.x + 28)))", &["shift by too many", "line 3", "thread 4"]),
    ("map", "at >= n", "at / (i64)(threadIdx.x % 8) >= n", &["division by zero", "line 3"]),
    ("map", "a.w[k] = ", "a.w[k + (int)threadIdx.x] = ", &["index outside an array", "line 7"]),
    (
        "map",
        "if (at >= n) return;",
        "if (at >= n) return; while (threadIdx.x == 3) { *(volatile float*)(z + at) = 0; }",
        &["no end within the time limit", "line 3"],
    ),
    ("map", "words<4> a, b;", "words<4> a, b; if (at == 20) __builtin_trap();", &["crash by signal 4", "line 4", "thread 5"]),
    ("sum", "if (lane == 0) part[warp] = s;\n    BARRIER();", "if (lane == 0) part[warp] = s;\n", &["shared memory", "line 10"]),
    ("sum", "BARRIER();\n    part", "part", &["race: written while read by", "line 12", "shared memory bytes"]),
    (
        "sum",
        "BARRIER();\n    float next",
        "float next",
        &["shared memory is read before it is written", "line 14", "bytes 1020 to 1023"],
    ),
    (
        "sum",
        "float s = 0;",
        "float s = 0; if (warp == 0) BARRIER();",
        &["threads diverge: 32 of 256 wait at this barrier", "line 5"],
    ),
    (
        "sum",
        "    BARRIER();\n    part",
        "    if (lane < 16) { BARRIER(); } else { BARRIER(); }\n    part",
        &["threads diverge: 128 of 256 wait at this barrier", "line 12"],
    ),
    (
        "sum",
        "float s = 0;",
        "float s = 0; if (threadIdx.x >= 224) return;",
        &["threads diverge: of 256 threads 224 wait at a barrier, 0 for their warp, and 32 have ended"],
    ),
    ("sum", "for (int step = 4", "if (lane < 8) for (int step = 4", &["threads diverge", "their warp", "line 11"]),
    (
        "sum",
        "s += shuffle_xor(s, step)",
        "s += lane < 8 ? shuffle_xor(s, step) : shuffle_xor(s, 32 - step)",
        &["threads diverge: shuffle, while a lane", "line 7"],
    ),
    (
        "sum",
        "s += shuffle_xor(s, step)",
        "s += shuffle_xor(s, lane < 3 ? 1 : step)",
        &["shuffle over 16, while a lane of the warp gives 1", "line 7"],
    ),
    ("sum", "int step = 16;", "int step = 32;", &["shuffle over 32", "line 7"]),
    (
        "sum",
        "part[threadIdx.x] = ",
        "part[threadIdx.x + 1] = ",
        &["write out of bounds", "line 13", "shared memory bytes 1024 to 1027 of 1024", "thread 255"],
    ),
    ("sum", "lane % 8", "lane % 16", &["shared memory is read before it is written", "line 10", "bytes 32 to 35"]),
    (
        "sum",
        "parts[blockIdx.x * 256 + ",
        "parts[blockIdx.x * 255 + ",
        &["race: written, and also by block (0, 0, 0), thread 255", "operand parts", "line 16"],
    ),
    ("sum", "if (threadIdx.x == 0) y", "if (lane == 0) y", &["race: written, and also by thread 0", "operand y", "thread 32"]),
    ("sum", "if (threadIdx.x == 0) y", "if (threadIdx.x == 1 && blockIdx.x) y", &["not written whole", "operand y byte 0 of 12"]),
    ("sum", "= next;", "= next + (float)((u64)x % 4096);", &["the result depends on the order of threads", "operand parts"]),
    ("gather", "fail(fault, 7)", "fail((u32*)y, 7)", &["fail with an operand that is not for faults", "line 5", "operand y"]),
    ("gather", "fail(fault, 7)", "*fault = 7", &["access to what only fail may touch", "line 5", "operand fault"]),
    ("gather", "fail(fault, 7)", "fail(fault + 1, 7)", &["fail out of bounds", "operand fault bytes 4 to 7 of 4"]),
    ("gather", "fail(fault, 7)", "fail(fault, 0)", &["fail with reason 0"]),
    (
        "gather",
        "if (i < 0 || i >= rows) { fail(fault, 7); i = 0; }",
        "",
        &["read out of bounds", "line 7", "operand x bytes 100 to 101 of 100"],
    ),
    ("gather", "i * 2", "(i + 3) * 2000000000", &["overflow of a product", "line 6"]),
    ("gather", "widened(y[at])", "widened(y[at ^ 1])", &["race: read what is written by", "line 7", "operand y"]),
    (
        "gather",
        "if (at >= n) return;",
        "if (at >= n) return; at = at + lowest_bit((u32)at & 8) - 3;",
        &["lowest_bit of 0", "line 3"],
    ),
    (
        "gather",
        "i32 i = index[at];",
        "if (at > 64) y[at - 65] = x[0]; i32 i = index[at];",
        &["race: written", "by block (0, 0, 0)", "line 4"],
    ),
    ("tiles", "wait<0>", "wait<1>", &["an asynchronous copy to it is not waited for", "line 12", "shared memory"]),
    ("tiles", "copy_wait<0>();", "", &["an asynchronous copy to it is not waited for", "line 11", "shared memory bytes 0 to 3"]),
    (
        "tiles",
        "u32 x[4]",
        "room[threadIdx.x * 16 + 3] = 1; u32 x[4]",
        &["an asynchronous copy to it is not waited for", "line 7", "shared memory byte 3 of"],
    ),
    (
        "tiles",
        "room + 1024 + threadIdx.x * 16",
        "room + threadIdx.x * 16",
        &["an asynchronous copy to it is not waited for", "line 6", "shared memory bytes 0 to 3"],
    ),
    (
        "tiles",
        "    load_tiles(x, room + 1536",
        "    copy_async(room + 2048 + threadIdx.x * 16, a, true);\n    load_tiles(x, room + 1536",
        &["an asynchronous copy is never waited for", "line 15"],
    ),
    (
        "tiles",
        "    load_tiles(x, room + 1536",
        "    copy_async(room + 2048 + threadIdx.x * 16, a, true); copy_wait<0>();\n    load_tiles(x, room + 1536",
        &["an asynchronous copy is never waited for", "line 15"],
    ),
    ("tiles", "    BARRIER();\n", "", &["shared memory", "line 10"]),
    (
        "tiles",
        "    load_tiles(x, room + 1536",
        "    room[threadIdx.x] = 1;\n    load_tiles(x, room + 1536",
        &["race: written while read by", "line 15", "shared memory"],
    ),
    (
        "tiles",
        "a + threadIdx.x * 8",
        "a + threadIdx.x * 8 + 8",
        &["read out of bounds", "line 4", "operand a bytes 1024 to 1039"],
    ),
    ("tiles", "a + threadIdx.x * 8", "a + threadIdx.x * 8 + 4", &["misaligned access", "line 4", "operand a bytes 8 to 23"]),
    ("tiles", "(room + threadIdx.x", "(room + 8 + threadIdx.x", &["misaligned access", "line 4", "shared memory bytes 8 to 23"]),
    ("tiles", "threadIdx.x < 32", "true", &["read out of bounds", "line 6", "operand b bytes 512 to 527"]),
    (
        "tiles",
        "1024 + threadIdx.x * 16",
        "2560 + threadIdx.x * 16",
        &["write out of bounds", "line 6", "shared memory bytes 3072"],
    ),
    (
        "tiles",
        "a + threadIdx.x * 8",
        "c + threadIdx.x * 4",
        &["read from an operand that is only written", "line 4", "operand c"],
    ),
    ("tiles", "a + threadIdx.x * 8", "room", &["asynchronous copy from what is no operand", "line 4"]),
    (
        "tiles",
        "(room + threadIdx.x * 16",
        "((void*)(c + threadIdx.x * 4)",
        &["asynchronous copy to what is no shared memory", "line 4"],
    ),
    ("tiles", "room + warp * 512", "(const u8*)a + warp * 512", &["load of tiles from what is no shared memory", "line 11"]),
    ("tiles", "room + warp * 512", "room + 2 + warp * 512", &["misaligned access", "line 11", "shared memory bytes 2 to 17"]),
    ("tiles", "room + 1536", "room + 2048", &["shared memory is read before it is written", "line 15"]),
    ("tiles", "load_tiles_turned(y", "if (lane < 31) load_tiles_turned(y", &["threads diverge: load of tiles, while", "line 12"]),
    (
        "tiles",
        "multiply_tile_bf16(d[0]",
        "if (lane > 0) multiply_tile_bf16(d[0]",
        &["threads diverge: product of tiles", "line 1"],
    ),
];

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
