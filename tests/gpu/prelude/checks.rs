//! The checks: a kernel each, which calls one function in every thread.

use super::super::expected::Kind;
use super::edges;
use shardc_cuda_testing::job::{Access, Job, Operand};
use shardc_ir::dtype::DType;
use shardc_ir::scalar::{Binary, Rounding, Unary};
use std::fmt::Write;

/// An operand of a check.
pub struct Argument {
    name: &'static str,
    /// Its type in the text.
    of: &'static str,
    pub kind: Kind,
    access: Access,
    bytes: Vec<u8>,
}

/// A kernel with its operands.
pub struct Check {
    /// The text that it is a part of.
    pub text: &'static str,
    pub name: String,
    pub shared: u32,
    grid: u32,
    block: u32,
    arguments: Vec<Argument>,
    body: String,
}

fn read(name: &'static str, of: &'static str, bytes: Vec<u8>) -> Argument {
    Argument { name, of, kind: Kind::Word(1), access: Access::Read, bytes }
}

fn write(of: &'static str, kind: Kind, bytes: usize) -> Argument {
    Argument { name: "y", of, kind, access: Access::Write, bytes: vec![0xa5; bytes] }
}

impl Check {
    /// The kernel's text, with the contract of its operands.
    pub fn source(&self) -> String {
        let mut text = String::new();
        let mut parameters = vec![];
        for Argument { name, of, access, bytes, .. } in &self.arguments {
            let word = if *access == Access::Read { "read" } else { "written" };
            let _ = writeln!(text, "//@ {name} {word} {of} {} bytes", bytes.len());
            parameters.push(format!("{}{of}* {name}", if *access == Access::Read { "const " } else { "" }));
        }
        let (block, name, body) = (self.block, &self.name, &self.body);
        let _ = writeln!(text, "KERNEL({block}) {name}({}) {{", parameters.join(", "));
        let _ = writeln!(text, "    u32 i = blockIdx.x * {block} + threadIdx.x;\n{body}\n}}");
        text
    }

    pub fn job(&self) -> Job {
        let operand = |argument: &Argument| Operand {
            name: argument.name.into(),
            access: argument.access,
            whole: argument.access == Access::Write,
            past: 0,
            bytes: argument.bytes.clone(),
        };
        Job {
            entry: self.name.clone(),
            grid: [self.grid, 1, 1],
            block: self.block,
            shared: self.shared,
            operands: self.arguments.iter().map(operand).collect(),
            numbers: vec![],
        }
    }

    pub fn inputs(&self) -> Vec<Vec<u8>> {
        self.arguments.iter().filter(|argument| argument.access == Access::Read).map(|argument| argument.bytes.clone()).collect()
    }

    pub fn results(&self) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().filter(|argument| argument.access == Access::Write)
    }

    /// Of the bytes of all operands those that are results.
    pub fn written(&self, operands: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let pairs = self.arguments.iter().zip(operands);
        pairs.filter(|(argument, _)| argument.access == Access::Write).map(|(_, bytes)| bytes).collect()
    }
}

fn c(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::F32 => "float",
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        DType::I64 => "i64",
        DType::Bool => "bool8",
    }
}

/// One result for each thread, of the element of each operand.
fn elementwise(text: &'static str, name: &str, call: &str, inputs: Vec<(DType, Vec<u8>)>, result: DType) -> Check {
    let count = inputs[0].1.len() / inputs[0].0.bytes() as usize;
    let names = ["a", "b", "c"];
    let of = inputs.iter().map(|(dtype, _)| dtype.to_string()).next().unwrap_or_default();
    let mut arguments: Vec<Argument> =
        names.into_iter().zip(inputs).map(|(name, (dtype, bytes))| read(name, c(dtype), bytes)).collect();
    arguments.push(write(c(result), Kind::Of(result), count * result.bytes() as usize));
    let name = format!("{}_of_{of}", name.trim_end_matches('_'));
    Check { text, name, shared: 0, grid: count as u32 / 32, block: 32, arguments, body: format!("    y[i] = {call};") }
}

const ALL: [DType; 6] = [DType::F32, DType::F64, DType::I64, DType::BF16, DType::F16, DType::Bool];

/// All checks.
pub fn all() -> Vec<Check> {
    let mut checks = vec![];
    for (text, dtype) in [("f32", DType::F32), ("f64", DType::F64), ("i64", DType::I64)] {
        let line = || vec![(dtype, edges::line(dtype))];
        let [a, b] = edges::pairs(dtype);
        let pairs = || vec![(dtype, a.clone()), (dtype, b.clone())];
        let of_one = Unary::ALL.iter().map(|f| format!("{}_", f.name()));
        let roundings = Rounding::ALL.iter().map(|to| format!("round_{}", to.name()));
        checks.extend(of_one.chain(roundings).map(|name| elementwise(text, &name, &format!("{name}(a[i])"), line(), dtype)));
        let of_two = Binary::ALL.iter().map(|f| format!("{}_", f.name()));
        checks.extend(of_two.map(|name| elementwise(text, &name, &format!("{name}(a[i], b[i])"), pairs(), dtype)));
        let three = vec![(dtype, b.clone()), (dtype, a.clone()), (dtype, b.clone())];
        checks.push(elementwise(text, "select_", "select_(a[i], b[i], c[i])", three, dtype));
        if dtype.is_float() {
            checks.push(elementwise(text, "remainder_of", "remainder_of(a[i], b[i])", pairs(), dtype));
        }
    }
    for from in ALL {
        for to in ALL {
            let name = format!("to_{}", if to == DType::Bool { "bool8".into() } else { to.to_string() });
            let line = vec![(from, edges::line(from))];
            checks.push(elementwise("conversions", &name, &format!("{name}(a[i])"), line, to));
        }
    }
    let line = || vec![(DType::F32, edges::line(DType::F32))];
    checks.push(elementwise("conversions", "narrowed_bf16", "narrowed_bf16(a[i])", line(), DType::BF16));
    checks.push(elementwise("conversions", "narrowed_f16", "narrowed_f16(a[i])", line(), DType::F16));
    for (name, half) in [("bf16", DType::BF16), ("f16", DType::F16)] {
        let line = vec![(half, edges::line(half))];
        checks.push(elementwise("conversions", "widened", "widened(a[i])", line, DType::F32));
        let [a, b] = edges::pairs(DType::F32);
        let count = a.len() / 4;
        let arguments = vec![read("a", "float", a), read("b", "float", b), write("u32", Kind::Of(half), count * 4)];
        let body = format!("    y[i] = i % 2 == 0 ? packed_{name}(a[i], b[i]) : Half<{name}>::packed(a[i], b[i]);");
        let grid = count as u32 / 32;
        checks.push(Check { text: "conversions", name: format!("packed_{name}"), shared: 0, grid, block: 32, arguments, body });
    }
    let (words, floats) = (read("a", "u32", edges::words(128, 5)), write("float", Kind::Of(DType::F32), 512));
    checks.push(Check {
        text: "conversions",
        name: "to_f32_of_u32".into(),
        shared: 0,
        grid: 4,
        block: 32,
        arguments: vec![words, floats],
        body: "    y[i] = to_f32(a[i]);".into(),
    });
    checks.push(exponentials());
    checks.extend(warps());
    checks.extend(blocks());
    checks.extend(tiles());
    checks
}

/// Whether the quick power of 2 is within 2^-21 of what the exact function gives, or 0 or infinite
/// where that is too small or too large for the type: its bits are the GPU's own.
fn exponentials() -> Check {
    let line = edges::line(DType::F32);
    let count = line.len() / 4;
    let body = "    float x = a[i], power = exp2_fast(x);
    double exact = exp_((double)x * 0.6931471805599453);
    bool is_near = fabs((double)power - exact) <= exact * 4.76837158203125e-7;
    bool is_small = exact < 1.175495e-38 && power == 0.0f, is_large = exact > 3.402822e38 && power == float_of(0x7f800000u);
    y[i] = x != x ? power != power : is_near || is_small || is_large;";
    let arguments = vec![read("a", "float", line), write("u32", Kind::Word(4), count * 4)];
    let (name, grid) = ("exp2_fast_of_f32".to_owned(), count as u32 / 32);
    Check { text: "f32", name, shared: 0, grid, block: 32, arguments, body: body.into() }
}

/// A check of one block.
fn block(text: &'static str, name: &str, block: u32, shared: u32, arguments: Vec<Argument>, body: &str) -> Check {
    Check { text, name: name.into(), shared, grid: 1, block, arguments, body: body.into() }
}

fn word(bytes: usize) -> Argument {
    write("u32", Kind::Word(4), bytes)
}

/// Words, vectors and what lanes of a warp tell one another.
fn warps() -> Vec<Check> {
    let a = |count: usize| read("a", "u32", edges::words(count, 5));
    let b = || read("b", "u32", edges::words(32, 6));
    let mut all = vec![
        block("warps", "bits_of_f32", 32, 0, vec![a(32), word(128)], "    y[i] = bits_of(float_of(a[i] & 0x7f7fffffu));"),
        block(
            "warps",
            "bits_of_f64",
            32,
            0,
            vec![read("a", "u64", edges::words(64, 7)), write("u64", Kind::Word(8), 256)],
            "    y[i] = bits_of(double_of(a[i] & 0x7fefffffffffffffull));",
        ),
        block("warps", "ballot_", 32, 0, vec![a(32), word(128)], "    y[i] = ballot(a[i] % 3 == 0) + i;"),
        block("warps", "count_bits_", 32, 0, vec![a(32), word(128)], "    y[i] = count_bits(a[i] & ~0u << i);"),
        block("warps", "lowest_bit_", 32, 0, vec![a(32), word(128)], "    y[i] = lowest_bit((a[i] | 0x80000000u) & ~0u << i);"),
        block("warps", "high_product_", 32, 0, vec![a(32), b(), word(128)], "    y[i] = high_product(a[i], b[i]);"),
    ];
    for n in [1, 2, 4] {
        let body = format!("    words<{n}> w;\n    load(w, a + i * {n});\n    store(y + i * {n}, w);");
        all.push(block("warps", &format!("words_{n}"), 32, 0, vec![a(32 * n), word(128 * n)], &body));
    }
    for n in [2, 4] {
        let body = format!(
            "    SHARED(room);\n    words<{n}> w;\n    load(w, a + i * {n});\n    store_shared(room + i * {n} * 4, w);\n    \
             BARRIER();\n    load(w, room + (31 - i) * {n} * 4);\n    store(y + i * {n}, w);"
        );
        let shared = 128 * n as u32;
        all.push(block("warps", &format!("shared_words_{n}"), 32, shared, vec![a(32 * n), word(128 * n)], &body));
    }
    for dtype in [DType::F32, DType::F64, DType::I64] {
        let (name, bytes) = (c(dtype), 32 * dtype.bytes() as usize);
        let numbers = || read("a", name, edges::whole(dtype, 32, 9));
        let body = format!(
            "    SHARED(room);\n    {name} x = a[i];\n    for (int l = 1; l < 32; l *= 2) x = x + x + shuffle_xor(x, l);\n    y[i] = x;"
        );
        let own = || vec![numbers(), write(name, Kind::Of(dtype), bytes)];
        all.push(block("warps", &format!("shuffled_{name}"), 32, 0, own(), &body.replace("    SHARED(room);\n", "")));
        for kind in ["Sum", "Max", "Min"] {
            let body = format!("    y[i] = over_warp<{kind}>(a[i]) + a[i];");
            all.push(block("warps", &format!("{kind}_over_warp_{name}"), 32, 0, own(), &body));
        }
    }
    all.push(block(
        "warps",
        "shuffled_u32",
        32,
        0,
        vec![a(32), word(128)],
        "    u32 x = a[i];\n    for (int l = 1; l < 32; l *= 2) x = x * 3u + shuffle_xor(x, l);\n    y[i] = x;",
    ));
    all
}

/// Reductions over a block, vectors, copies beside computation, and what says that data are wrong.
fn blocks() -> Vec<Check> {
    let mut all = vec![];
    for dtype in [DType::F32, DType::F64, DType::I64] {
        let name = c(dtype);
        let bytes = 128 * dtype.bytes() as usize;
        for kind in ["Sum", "Max", "Min"] {
            let own = vec![read("a", name, edges::whole(dtype, 128, 10)), write(name, Kind::Of(dtype), bytes)];
            let body = format!("    SHARED(room);\n    y[i] = over_block<{kind}, 4>(a[i], room) + a[i];");
            all.push(block("blocks", &format!("{kind}_over_block_{name}"), 128, 32, own, &body));
        }
    }
    for (name, n) in [("float", 4), ("double", 2), ("bf16", 8), ("u8", 4)] {
        let each = match name {
            "float" => 4,
            "double" => 8,
            "bf16" => 2,
            _ => 1,
        };
        let bytes = 32 * n * each;
        let own = vec![read("a", name, edges::words(bytes / 4, 12)), write(name, Kind::Word(each), bytes)];
        let body = format!("    write(y + i * {n}, read<{n}>(a + (31 - i) * {n}));");
        all.push(block("blocks", &format!("vectors_{name}"), 32, 0, own, &body));
    }
    let own = vec![read("a", "float", edges::words(128, 13)), write("float", Kind::Word(4), 512)];
    let body = "    SHARED(room);\n    write_shared((float*)room + i * 4, read<4>(a + i * 4));\n    BARRIER();\n    \
                write(y + i * 4, read<4>((const float*)room + (i ^ 5) * 4));";
    all.push(block("blocks", "shared_vectors", 32, 512, own, body));
    let own = vec![read("a", "u32", edges::words(128, 14)), word(512)];
    let body = "    SHARED(room);\n    copy_async(room + i * 16, a + i * 4, i % 3 != 0);\n    copy_commit();\n    \
                copy_wait<0>();\n    BARRIER();\n    words<4> w;\n    load(w, room + (31 - i) * 16);\n    store(y + i * 4, w);";
    all.push(block("blocks", "copies", 32, 512, own, body));
    let fault = Argument { name: "fault", of: "u32", kind: Kind::Word(4), access: Access::Fault, bytes: vec![0; 4] };
    let own = vec![read("a", "u32", edges::words(32, 15)), word(128), fault];
    all.push(block("blocks", "no_fault", 32, 0, own, "    y[i] = a[i];\n    if (a[i] == 7u && a[0] == 9u) fail(fault, 7u);"));
    all
}

/// Tiles of tensor cores, over whole numbers whose sums are exact in any order.
fn tiles() -> Vec<Check> {
    let mut all = vec![];
    for (name, half) in [("bf16", DType::BF16), ("f16", DType::F16)] {
        let operands = |result: Argument| {
            let own = |name, seed| read(name, c(half), edges::whole(half, 256, seed));
            vec![own("a", 20), own("b", 21), result]
        };
        let body = format!(
            "    SHARED(room);
    copy_async(room + i * 16, a + i * 8, true);
    copy_async(room + 512 + i * 16, b + i * 8, true);
    copy_commit();
    copy_wait<0>();
    BARRIER();
    u32 x[4], z[4];
    load_tiles(x, room + i % 16 * 32 + i / 16 * 16);
    load_tiles_turned(z, room + 512 + i % 16 * 32 + i / 16 * 16);
    float d[2][4] = {{}};
    multiply_tile_{name}(d[0], x, z[0], z[1]);
    Half<{name}>::multiply(d[1], x, z[2], z[3]);
    for (u32 n = 0; n < 2; n++)
        for (u32 p = 0; p < 4; p++) y[(i / 4 + p / 2 * 8) * 16 + n * 8 + i % 4 * 2 + p % 2] = d[n][p];"
        );
        let result = write("float", Kind::Of(DType::F32), 1024);
        all.push(block("tiles", &format!("tile_{name}"), 32, 1024, operands(result), &body));
        let body = format!(
            "    SHARED(room);
    copy_whole_rows<32, 16, 2>(room, a, 0u, 16);
    copy_rows<32, 16, 2>(room + 512, b, 0u, 13u, 16u, 16u);
    copy_commit();
    copy_wait<0>();
    BARRIER();
    float sums[1][2][4] = {{}}, mixed[1][2][4] = {{}};
    rows_times_rows<{name}, 16, 16, 2>(sums, room, room + 512);
    for (u32 n = 0; n < 8; n++) sums[0][n / 4][n % 4] *= 0.125f;
    weights_times_rows<{name}, 16, 16, 2>(mixed, sums, room + 512, 0u);
    put_rows<{name}, 16, 2>(room + 1024, mixed);
    BARRIER();
    store_rows<32, 16, 2>(y, room + 1024, 0u, 16u, 16u, 16);
    if (tile_at<2>(i / 2, i % 2) >= 512u || words_on<16>(tile_at<16>(i, 1), 10) != tile_at<16>(i, 11)) y[0] = to_{name}(0.0f);"
        );
        let result = write(c(half), Kind::Of(half), 512);
        all.push(block("tiles", &format!("rows_{name}"), 32, 1536, operands(result), &body));
    }
    all
}
