//! Contract, plainly: a block sums a tile of 64 by 64 results in registers, from tiles of the
//! operands in shared memory.

use crate::Cuda;
use crate::function::{Function, MAX_GRID, THREADS};
use crate::generated::{Accesses, Generated};
use crate::text::{conversion, digit, digit_times, over, register, sum, times, to_register};
use shardc_ir::kernel::{Contract, ContractDim, Form, Implements};
use shardc_ir::reason::Reason;

/// The sides of a block's tile, terms that it takes at once, and the sides of a thread's part.
const TILE: u64 = 64;
const DEPTH: u64 = 16;
const PART: u64 = 4;

impl Implements<Contract> for Cuda {
    fn ready(&self, contract: &Contract, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = contract.signature(&self.mesh)?;
        let [batch, m, n, k] = [&contract.batch, &contract.m, &contract.n, &contract.k].map(|dims| size(dims));
        let mut function = Function::new("contract");
        let terms = |stride: fn(&ContractDim) -> i64| -> Vec<(u64, i64)> {
            let dims = [&contract.batch, &contract.m, &contract.n, &contract.k].into_iter().flatten();
            dims.filter(|dim| stride(dim) != 0).map(|dim| (dim.size, stride(dim))).collect()
        };
        function.reads("a", 0, contract.dtype, signature.reads[0].elements, Accesses::over(&terms(|dim| dim.a)));
        function.reads("b", 1, contract.dtype, signature.reads[1].elements, Accesses::over(&terms(|dim| dim.b)));
        let written = signature.writes[0].elements;
        function.writes("c", 0, contract.result, written, written == batch * m * n, Accesses::over(&terms(|dim| dim.c)));
        let tiles = [n.div_ceil(TILE), m.div_ceil(TILE)];
        function.grid = [tiles[0] * tiles[1], 1, batch];
        let folds = batch > MAX_GRID[2];
        if folds {
            function.grid = [tiles[0] * tiles[1] * batch, 1, 1];
        }
        let kind = register(contract.dtype);
        let far = signature.reads.iter().chain(&signature.writes).map(|operand| operand.elements).chain([m, n, k]).max();
        let index = if far.unwrap_or(0) < 1 << 31 { "u32" } else { "u64" };
        let bytes = contract.dtype.computed().bytes();
        function.shared = (2 * DEPTH * (TILE + 1) * bytes) as u32;
        function.begin(THREADS);
        let fused = if kind == "double" { "fma" } else { "fmaf" };
        let load = to_register(contract.dtype);
        let text = &mut function.text;
        let [a_b, b_b, c_b] = offsets(&contract.batch, "batch");
        let [a_m, _, c_m] = offsets(&contract.m, "row");
        let [_, b_n, c_n] = offsets(&contract.n, "column");
        let [a_k, b_k, _] = offsets(&contract.k, "term");
        text.lines([
            "SHARED(shared);".to_owned(),
            format!("{kind}* left = ({kind}*)shared;"),
            format!("{kind}* right = left + {};", DEPTH * (TILE + 1)),
            if folds {
                format!("{index} batch = blockIdx.x{};", over(tiles[0] * tiles[1]))
            } else {
                format!("{index} batch = blockIdx.z;")
            },
            format!(
                "{index} top = {}, first = {};",
                digit_times("blockIdx.x", tiles[0], tiles[1], TILE),
                digit_times("blockIdx.x", 1, tiles[0], TILE)
            ),
            format!("a += {a_b};"),
            format!("b += {b_b};"),
            format!("c += {c_b};"),
            format!("u32 across = threadIdx.x % {}, down = threadIdx.x / {};", TILE / PART, TILE / PART),
            format!("{kind} sum[{PART}][{PART}] = {{}};"),
            format!("for ({index} from = 0; from < {k}; from += {DEPTH}) {{"),
            // Neighbouring threads read neighbours of whichever dimension has them.
            "#pragma unroll".to_owned(),
            format!("for (u32 at = threadIdx.x; at < {}; at += {THREADS}) {{", TILE * DEPTH),
            order(&contract.m, &contract.k, |dim| dim.a),
            format!("{index} row = top + side, term = from + depth;"),
            format!("left[depth * {} + side] = row < {m} && term < {k} ? {load}(a[{a_m} + {a_k}]) : ({kind})0;", TILE + 1),
            "}".to_owned(),
            "#pragma unroll".to_owned(),
            format!("for (u32 at = threadIdx.x; at < {}; at += {THREADS}) {{", TILE * DEPTH),
            order(&contract.n, &contract.k, |dim| dim.b),
            format!("{index} column = first + side, term = from + depth;"),
            format!("right[depth * {} + side] = column < {n} && term < {k} ? {load}(b[{b_n} + {b_k}]) : ({kind})0;", TILE + 1),
            "}".to_owned(),
            "BARRIER();".to_owned(),
            "#pragma unroll".to_owned(),
            format!("for (u32 depth = 0; depth < {DEPTH}; depth++) {{"),
            format!("{kind} l[{PART}], r[{PART}];"),
            "#pragma unroll".to_owned(),
            format!("for (int p = 0; p < {PART}; p++) {{"),
            format!("l[p] = left[depth * {} + down + p * {}];", TILE + 1, TILE / PART),
            format!("r[p] = right[depth * {} + across + p * {}];", TILE + 1, TILE / PART),
            "}".to_owned(),
            "#pragma unroll".to_owned(),
            format!("for (int p = 0; p < {PART}; p++) {{"),
            "#pragma unroll".to_owned(),
            format!("for (int q = 0; q < {PART}; q++) sum[p][q] = {fused}(l[p], r[q], sum[p][q]);"),
            "}".to_owned(),
            "}".to_owned(),
            "BARRIER();".to_owned(),
            "}".to_owned(),
            "#pragma unroll".to_owned(),
            format!("for (int p = 0; p < {PART}; p++) {{"),
            "#pragma unroll".to_owned(),
            format!("for (int q = 0; q < {PART}; q++) {{"),
            format!("{index} row = top + down + p * {}, column = first + across + q * {};", TILE / PART, TILE / PART),
            format!("if (row < {m} && column < {n}) c[{c_m} + {c_n}] = {}(sum[p][q]);", conversion(contract.result)),
            "}".to_owned(),
            "}".to_owned(),
            "}".to_owned(),
        ]);
        function.finish()
    }
}

fn size(dims: &[ContractDim]) -> u64 {
    dims.iter().map(|dim| dim.size).product()
}

/// The element of `a`, `b` and `c` at the position `name` in a group of letters, in brackets.
fn offsets(dims: &[ContractDim], name: &str) -> [String; 3] {
    let strides: [fn(&ContractDim) -> i64; 3] = [|dim| dim.a, |dim| dim.b, |dim| dim.c];
    strides.map(|stride| {
        let mut below = size(dims);
        let mut terms = vec![];
        for (at, dim) in dims.iter().enumerate() {
            below /= dim.size.max(1);
            let index = if at == 0 { format!("{name}{}", over(below)) } else { digit(name, below, dim.size) };
            match stride(dim) {
                0 => {}
                stride => terms.push(format!("{index}{}", times(stride))),
            }
        }
        format!("({})", sum(terms))
    })
}

/// A line that shares a tile out: along the side, or along the sum where neighbours lie there.
fn order(side: &[ContractDim], depth: &[ContractDim], stride: fn(&ContractDim) -> i64) -> String {
    let least = |dims: &[ContractDim]| dims.iter().filter(|dim| dim.size > 1).map(stride).min().unwrap_or(i64::MAX);
    if least(depth) < least(side) {
        format!("u32 depth = at % {DEPTH}, side = at / {DEPTH};")
    } else {
        format!("u32 side = at % {TILE}, depth = at / {TILE};")
    }
}
