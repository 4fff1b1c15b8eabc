//! Products by fused multiplications: a thread has four by four sums, or eight by eight, from
//! vectors of 16 bytes.

use super::{LARGE, Operand, Tile, each, write_lines};
use crate::text::Text;

/// Sums of a thread along either side.
fn part(tile: &Tile) -> u64 {
    if [tile.rows, tile.columns] == LARGE { 8 } else { 4 }
}

/// Vectors of a thread along either side.
fn vectors(tile: &Tile) -> u64 {
    part(tile) / tile.lanes()
}

/// Threads below one another, and side by side.
fn threads(tile: &Tile) -> [u64; 2] {
    [tile.rows, tile.columns].map(|side| side / part(tile))
}

/// Bytes of the sums that are written together.
pub fn results(tile: &Tile) -> u64 {
    threads(tile)[0] * tile.lanes() * tile.columns * tile.bytes()
}

pub fn begin(tile: &Tile, text: &mut Text) {
    let (part, [_, across]) = (part(tile), threads(tile));
    text.line(format!("u32 across = threadIdx.x % {across}, down = threadIdx.x / {across};"));
    text.line(format!("{} sum[{part}][{part}] = {{}};", tile.kind()));
}

pub fn multiply(tile: &Tile, text: &mut Text) {
    let (kind, lanes, part, vectors) = (tile.kind(), tile.lanes(), part(tile), vectors(tile));
    let fused = if kind == "double" { "fma" } else { "fmaf" };
    text.line("#pragma unroll 4");
    text.line(format!("for (u32 depth = 0; depth < {}; depth++) {{", tile.depth));
    text.line(format!("vec<{kind}, {lanes}> l[{vectors}], r[{vectors}];"));
    let [down, across] = threads(tile);
    for (to, operand, own, threads) in [("l", Operand::Left, "down", down), ("r", Operand::Right, "across", across)] {
        let place = format!("{} + depth * {} + {own} * {lanes}", operand.name(), tile.pitch(operand));
        let step = |v: &str| if vectors == 1 { String::new() } else { format!(" + {v} * {}", threads * lanes) };
        each(vectors, "v", |v| format!("{to}[{v}] = read<{lanes}>({place}{});", step(v)), text);
    }
    let [l, r] = [("l", "p"), ("r", "q")].map(|(from, at)| match vectors {
        1 => format!("{from}[0].at[{at}]"),
        _ => format!("{from}[{at} / {lanes}].at[{at} % {lanes}]"),
    });
    text.lines([
        "#pragma unroll".to_owned(),
        format!("for (int p = 0; p < {part}; p++) {{"),
        "#pragma unroll".to_owned(),
        format!("for (int q = 0; q < {part}; q++) sum[p][q] = {fused}({l}, {r}, sum[p][q]);"),
        "}".to_owned(),
        "}".to_owned(),
    ]);
}

pub fn store(tile: &Tile, store: impl Fn(&str, &str) -> String, text: &mut Text) {
    let (kind, lanes, columns) = (tile.kind(), tile.lanes(), tile.columns);
    let ([down, across], vectors) = (threads(tile), vectors(tile));
    let (is_one, rows) = (vectors == 1, down * lanes);
    if !is_one {
        text.lines(["#pragma unroll".to_owned(), format!("for (int pass = 0; pass < {vectors}; pass++) {{")]);
    }
    text.lines(["#pragma unroll".to_owned(), format!("for (int p = 0; p < {lanes}; p++) {{")]);
    let row = if is_one { "p".into() } else { format!("pass * {lanes} + p") };
    let write = |v: &str| {
        let first = if is_one { String::new() } else { format!("{v} * {lanes} + ") };
        let place = if is_one { String::new() } else { format!(" + {v} * {}", across * lanes) };
        let values: Vec<String> = (0..lanes).map(|q| format!("sum[{row}][{first}{q}]")).collect();
        let to = format!("left + (down * {lanes} + p) * {columns} + across * {lanes}{place}");
        format!("write_shared({to}, vec<{kind}, {lanes}>{{{{{}}}}});", values.join(", "))
    };
    each(vectors, "v", write, text);
    text.line("}");
    let row = if is_one { "own".into() } else { format!("pass * {rows} + own") };
    write_lines(tile, [rows, columns], "left", &row, store, text);
    if !is_one {
        text.lines(["BARRIER();", "}"]);
    }
}
