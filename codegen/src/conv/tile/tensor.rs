//! Products by tensor cores: a warp has several tiles of 16 rows by 8 columns of sums, from
//! elements of 16 bits.

use super::{LARGE, Operand, Tile, each, write_lines};
use crate::text::Text;
use shardc_ir::dtype::DType;

/// Terms that are multiplied together, and the sides of the pieces that a warp's part is made of.
pub const DEPTH: u64 = 16;
const SIDE: u64 = 16;

/// Warps of a block.
const WARPS: u64 = 8;

/// Elements between lines of sums, so that pairs of four lines lie in different banks.
const GAP: u64 = 8;

/// Warps below one another, and side by side.
fn warps(tile: &Tile) -> [u64; 2] {
    let down = if [tile.rows, tile.columns] == LARGE { 2 } else { WARPS.min(tile.rows / SIDE) };
    [down, WARPS / down]
}

/// Tiles of 16 by 16 of a warp, down and across.
fn parts(tile: &Tile) -> [u64; 2] {
    let [down, across] = warps(tile);
    [tile.rows / SIDE / down, tile.columns / SIDE / across]
}

/// Bytes of the sums that are written together.
pub fn results(tile: &Tile) -> u64 {
    warps(tile)[0] * SIDE * (tile.columns + GAP) * 4
}

pub fn begin(tile: &Tile, text: &mut Text) {
    let ([down, across], [p, q]) = (warps(tile), parts(tile));
    let place = match (down, across) {
        (1, _) => "down = 0, across = warp".to_owned(),
        (_, 1) => "down = warp, across = 0".to_owned(),
        _ => format!("down = warp / {across}, across = warp % {across}"),
    };
    text.lines([format!("u32 {place};"), format!("float sum[{p}][{}][4] = {{}};", 2 * q)]);
}

/// The address that a lane gives for the tiles of 16 by 16 at `first` of an operand's side.
fn address(tile: &Tile, operand: Operand, first: &str) -> String {
    // Tiles of the left operand come in the order of rows, those of the right one in that of terms.
    let (near, far) = ("lane % 16", "lane / 16 * 8");
    let (low, high) = ("(lane % 8 + lane / 16 * 8)", "lane / 8 % 2 * 8");
    let is_along = tile.is_along(operand);
    let (line, at) = if (operand == Operand::Left) == is_along { (near, far) } else { (low, high) };
    let (line, at) = if is_along {
        (format!("({first} + {line})"), format!("depth + {at}"))
    } else {
        (format!("(depth + {line})"), format!("{first} + {at}"))
    };
    format!("{} + {line} * {} + {at}", operand.name(), tile.pitch(operand))
}

pub fn multiply(tile: &Tile, text: &mut Text) {
    let parts = parts(tile);
    text.line("#pragma unroll");
    text.line(format!("for (u32 depth = 0; depth < {}; depth += {DEPTH}) {{", tile.depth));
    text.line(format!("u32 l[{}][4], r[{}][4];", parts[0], parts[1]));
    let sides = [("l", Operand::Left, "down", "p", parts[0]), ("r", Operand::Right, "across", "q", parts[1])];
    for (to, operand, own, number, count) in sides {
        // The tiles of a left operand have rows as lines; those of a right one have columns.
        let load = if tile.is_along(operand) { "load_tiles" } else { "load_tiles_turned" };
        let line = |number: &str| {
            let first = if count == 1 { format!("{own} * {SIDE}") } else { format!("({own} * {count} + {number}) * {SIDE}") };
            format!("{load}({to}[{number}], {});", address(tile, operand, &first))
        };
        each(count, number, line, text);
    }
    let multiply = if tile.dtype == DType::BF16 { "multiply_tile_bf16" } else { "multiply_tile_f16" };
    text.lines([
        "#pragma unroll".to_owned(),
        format!("for (int p = 0; p < {}; p++) {{", parts[0]),
        "#pragma unroll".to_owned(),
        format!("for (int q = 0; q < {}; q++) {{", parts[1]),
        format!("{multiply}(sum[p][q * 2], l[p], r[q][0], r[q][1]);"),
        format!("{multiply}(sum[p][q * 2 + 1], l[p], r[q][2], r[q][3]);"),
        "}".to_owned(),
        "}".to_owned(),
        "}".to_owned(),
    ]);
}

pub fn store(tile: &Tile, store: impl Fn(&str, &str) -> String, text: &mut Text) {
    let ([down, _], parts) = (warps(tile), parts(tile));
    let pitch = tile.columns + GAP;
    let is_one = parts[0] == 1;
    text.line("float* results = (float*)shared;");
    if !is_one {
        text.lines(["#pragma unroll".to_owned(), format!("for (int p = 0; p < {}; p++) {{", parts[0])]);
    }
    let p = if is_one { "0" } else { "p" };
    text.lines(["#pragma unroll".to_owned(), format!("for (int q = 0; q < {}; q++) {{", 2 * parts[1])]);
    for half in [0, 1] {
        let row = format!("(down * {SIDE} + lane / 4{})", if half == 0 { "" } else { " + 8" });
        let first = format!("across * {} + q * 8 + lane % 4 * 2", parts[1] * SIDE);
        let values = format!("sum[{p}][q][{}], sum[{p}][q][{}]", 2 * half, 2 * half + 1);
        text.line(format!("write_shared(results + {row} * {pitch} + {first}, vec<float, 2>{{{{{values}}}}});"));
    }
    text.line("}");
    let row = if is_one { "own".into() } else { format!("own / {SIDE} * {} + p * {SIDE} + own % {SIDE}", parts[0] * SIDE) };
    write_lines(tile, [down * SIDE, pitch], "results", &row, store, text);
    if !is_one {
        text.lines(["BARRIER();", "}"]);
    }
}
