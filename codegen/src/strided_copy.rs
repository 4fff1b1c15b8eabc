//! Move: neighbours are copied by 16 bytes; where they are neighbours in the source along another
//! dimension than in the destination, tiles go through shared memory.

use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated};
use crate::space::{self, Space};
use crate::text::{digit_times, element, number, over};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Form, Implements, Move};
use shardc_ir::position::Offset;
use shardc_ir::reason::Reason;

/// The sides of a tile, and rows of it that a block copies at once.
const TILE: u64 = 32;
const LINES: u64 = THREADS / TILE;

impl Implements<Move> for Cuda {
    fn ready(&self, copy: &Move, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = copy.signature(&self.mesh)?;
        let space = ordered(copy);
        let mut function = Function::new("move");
        let (source, destination) = (signature.reads[0].elements, signature.writes[0].elements);
        let total: u64 = copy.shape.iter().product();
        let terms = |strides: &[i64]| space.sizes.iter().copied().zip(strides.iter().copied()).collect::<Vec<_>>();
        let from = Accesses { start: copy.src_offset.clone(), ..Accesses::over(&terms(&space.strides[0])) };
        let to = Accesses { start: copy.dst_offset.clone(), ..Accesses::over(&terms(&space.strides[1])) };
        function.reads("x", 0, copy.dtype, source, from);
        function.writes("y", 0, copy.dtype, destination, destination == total, to);
        let starts = [&copy.src_offset, &copy.dst_offset].map(|offset| number(offset, &mut function.numbers));
        let transposed = (0..space.sizes.len().saturating_sub(1)).find(|d| space.strides[0][*d] == 1 && space.sizes[*d] >= 8);
        let last = space.sizes.len().saturating_sub(1);
        match transposed.filter(|_| space.strides[0][last] != 1 && space.strides[1][last] == 1 && space.sizes[last] >= 8) {
            Some(d) => tiles(&space, d, copy.dtype, &starts, &mut function),
            None => {
                let lanes = if self.aligned { lanes(&space, copy) } else { 1 };
                elements(&space, lanes, total, &starts, &mut function);
            }
        }
        function.finish()
    }
}

/// The space with the dimensions in the order of the destination's strides.
fn ordered(copy: &Move) -> Space {
    let mut order: Vec<usize> = (0..copy.shape.len()).collect();
    order.sort_by_key(|d| std::cmp::Reverse(copy.dst_strides[*d]));
    let pick = |own: &[i64]| order.iter().map(|d| own[*d]).collect::<Vec<i64>>();
    let shape: Vec<u64> = order.iter().map(|d| copy.shape[*d]).collect();
    Space::joined(&shape, &vec![0; shape.len()], &[pick(&copy.src_strides), pick(&copy.dst_strides)])
}

/// How many neighbours one access copies.
fn lanes(space: &Space, copy: &Move) -> u64 {
    let Some(last) = space.sizes.len().checked_sub(1) else { return 1 };
    let whole = |offset: &Offset, lanes: i64| offset.base % lanes == 0 && offset.terms.iter().all(|(_, by)| by % lanes == 0);
    let fits = |lanes: &u64| {
        let by = *lanes as i64;
        let rows = |strides: &[i64]| strides[last] == 1 && strides[..last].iter().all(|stride| stride % by == 0);
        space.sizes[last].is_multiple_of(*lanes)
            && rows(&space.strides[0])
            && rows(&space.strides[1])
            && whole(&copy.src_offset, by)
            && whole(&copy.dst_offset, by)
    };
    let is_access = |lanes: &u64| (4..=16).contains(&(lanes * copy.dtype.bytes()));
    [16, 8, 4, 2].into_iter().filter(is_access).find(fits).unwrap_or(1)
}

/// The element of an operand at the indices.
fn place(start: &str, strides: &[i64]) -> String {
    let at = space::offset(strides).replace("c", "(i64)c");
    if start == "0ll" { at } else { format!("{start} + {at}") }
}

fn elements(space: &Space, lanes: u64, total: u64, starts: &[String; 2], function: &mut Function) {
    let threads = total / lanes;
    let dims: Vec<usize> = (0..space.sizes.len()).collect();
    let lines = space::lane_indices(&space.sizes, &dims, "i", "u64", lanes);
    let [from, to] = [0, 1].map(|at| place(&starts[at], &space.strides[at]));
    function.threads_over(threads);
    function.begin(THREADS);
    function.text.line(format!("u64 i = (u64)blockIdx.x * {THREADS} + threadIdx.x;"));
    function.text.line(format!("if (i >= {threads}) return;"));
    function.text.lines(lines);
    let copied =
        if lanes > 1 { format!("write(y + ({to}), read<{lanes}>(x + ({from})));") } else { format!("y[{to}] = x[{from}];") };
    function.text.lines([copied, "}".into()]);
}

/// Tiles of the last dimension, where the destination has its neighbours, and `across`, where the
/// source has them.
fn tiles(space: &Space, across: usize, dtype: DType, starts: &[String; 2], function: &mut Function) {
    let last = space.sizes.len() - 1;
    let (width, height) = (space.sizes[last], space.sizes[across]);
    let (columns, rows) = (width.div_ceil(TILE), height.div_ceil(TILE));
    let outside: Vec<usize> = (0..last).filter(|d| *d != across).collect();
    let around: u64 = outside.iter().map(|d| space.sizes[*d]).product();
    function.grid = [columns * rows * around, 1, 1];
    // Lines an odd number of words apart, so that lanes that read across them meet in no bank.
    let pitch = TILE + (4 / dtype.bytes()).max(1);
    function.shared = (TILE * pitch * dtype.bytes()) as u32;
    let kind = element(dtype);
    let [from, to] = [0, 1].map(|at| place(&starts[at], &space.strides[at]));
    function.begin(THREADS);
    let text = &mut function.text;
    text.lines([
        "SHARED(shared);".to_owned(),
        format!("{kind}* tile = ({kind}*)shared;"),
        "u32 lane = threadIdx.x % 32, line = threadIdx.x / 32;".to_owned(),
        format!("u64 block = blockIdx.x{};", over(columns * rows)),
        format!(
            "u64 left = {}, top = {};",
            digit_times("blockIdx.x", 1, columns, TILE),
            digit_times("blockIdx.x", columns, rows, TILE)
        ),
    ]);
    text.lines(space::indices(&space.sizes, &outside, "block", "u64"));
    text.lines([
        format!("for (u32 k = line; k < {TILE}; k += {LINES}) {{"),
        format!("u64 c{across} = top + lane, c{last} = left + k;"),
        format!("if (c{across} < {height} && c{last} < {width}) tile[k * {pitch} + lane] = x[{from}];"),
        "}".to_owned(),
        "BARRIER();".to_owned(),
        format!("for (u32 k = line; k < {TILE}; k += {LINES}) {{"),
        format!("u64 c{across} = top + k, c{last} = left + lane;"),
        format!("if (c{across} < {height} && c{last} < {width}) y[{to}] = tile[lane * {pitch} + k];"),
        "}".to_owned(),
        "}".to_owned(),
    ]);
}
