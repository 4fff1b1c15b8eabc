//! Reads what [`Sharding::text`] prints, `{dp, [8:dp 32:tp], 3*tp, (a,b), -} flat(fsdp)
//! partial(sum: tp) at(pp: 0 2)`, and who asked for it.

use super::cursor::{Cursor, Read};
use crate::mesh::{AxisId, Mesh};
use crate::reduce_kind::ReduceKind;
use crate::sharding::{At, Sharding, Split, Splits, outermost};

/// The sharding of a value of that shape; where nothing is written it is whole.
pub(super) fn read_sharding(cursor: &mut Cursor<'_>, shape: &[u64], mesh: &Mesh) -> Read<Sharding> {
    let mut sharding = Sharding::replicated(shape.len());
    if cursor.peek() == Some('{') {
        let mut sizes = shape.iter();
        sharding.dims = cursor.list("{", "}", |c| match sizes.next() {
            Some(size) => read_splits(c, *size, mesh),
            None => c.fail("more dimensions in the sharding than in the type"),
        })?;
        if sharding.dims.len() != shape.len() {
            return cursor.fail("fewer dimensions in the sharding than in the type");
        }
    }
    if cursor.take_word("flat") {
        cursor.expect("(")?;
        while !cursor.take(")") {
            sharding.flat.push(read_axis(cursor, mesh)?);
        }
    }
    while cursor.take_word("partial") {
        cursor.expect("(")?;
        let kind = read_kind(cursor)?;
        cursor.expect(":")?;
        while !cursor.take(")") {
            let axis = read_axis(cursor, mesh)?;
            sharding.add_partial(axis, kind);
        }
    }
    if cursor.take_word("at") {
        cursor.expect("(")?;
        let axis = read_axis(cursor, mesh)?;
        cursor.expect(":")?;
        let mut positions = vec![];
        while !cursor.take(")") {
            let position = cursor.count()?;
            if positions.last().is_some_and(|last| *last >= position) || position >= mesh.size(axis) {
                return cursor.fail(format!("the positions are not some of `{}`, ascending", mesh.name(axis)));
            }
            positions.push(position);
        }
        sharding.at = Some(At { axis, positions });
    }
    Ok(sharding)
}

/// For each axis, the line of the spec that asked for its split.
pub(super) type Asked = Vec<(AxisId, u32)>;

/// `asked(dp: 5, tp: 7)`, if it is here.
pub(super) fn read_asked(cursor: &mut Cursor<'_>, mesh: &Mesh) -> Read<Asked> {
    if !cursor.take_word("asked") {
        return Ok(vec![]);
    }
    cursor.list("(", ")", |cursor| {
        let axis = read_axis(cursor, mesh)?;
        cursor.expect(":")?;
        Ok((axis, cursor.ordinal()?))
    })
}

fn read_kind(cursor: &mut Cursor<'_>) -> Read<ReduceKind> {
    let name = cursor.word()?;
    let found = ReduceKind::ALL.into_iter().find(|kind| kind.name() == name);
    found.map_or_else(|| cursor.fail(format!("there is no reduction `{name}`")), Ok)
}

fn read_axis(cursor: &mut Cursor<'_>, mesh: &Mesh) -> Read<AxisId> {
    let name = cursor.word()?;
    mesh.axis(name).map_or_else(|| cursor.fail(format!("the mesh has no axis `{name}`")), Ok)
}

fn read_splits(cursor: &mut Cursor<'_>, size: u64, mesh: &Mesh) -> Read<Splits> {
    if cursor.take("-") {
        return Ok(vec![]);
    }
    match cursor.peek() {
        Some('[') => read_letters(cursor, size, mesh),
        Some(c) if c.is_ascii_digit() => {
            let blocks = cursor.count()?;
            cursor.expect("*")?;
            let axes = read_run(cursor, mesh)?;
            if blocks == 0 || !size.is_multiple_of(blocks) {
                return cursor.fail(format!("{size} is not cut into {blocks} blocks"));
            }
            digits(cursor, size / blocks, 1, &axes, mesh)
        }
        Some('(') => {
            let axes = read_run(cursor, mesh)?;
            digits(cursor, size, 1, &axes, mesh)
        }
        _ => {
            let axis = read_axis(cursor, mesh)?;
            if cursor.take("@") { read_digits(cursor, axis, mesh) } else { digits(cursor, size, 1, &[axis], mesh) }
        }
    }
}

/// `[8:dp 32 4:(a,b)]`: the letters of a dimension, each split by its outermost digits.
fn read_letters(cursor: &mut Cursor<'_>, size: u64, mesh: &Mesh) -> Read<Splits> {
    cursor.expect("[")?;
    let mut letters: Vec<(u64, Vec<AxisId>)> = vec![];
    while !cursor.take("]") {
        let letter = cursor.count()?;
        let axes = if cursor.take(":") { read_run(cursor, mesh)? } else { vec![] };
        letters.push((letter, axes));
    }
    let mut from_last = vec![];
    let mut inner = 1u64;
    for (letter, axes) in letters.iter().rev() {
        from_last.push(digits(cursor, *letter, inner, axes, mesh)?);
        inner = match inner.checked_mul(*letter) {
            Some(inner) => inner,
            None => return cursor.fail("the letters are too large"),
        };
    }
    if inner == size {
        Ok(from_last.into_iter().rev().flatten().collect())
    } else {
        cursor.fail(format!("the letters make {inner}, not {size}"))
    }
}

/// `tp` or `(dp,fsdp)`.
fn read_run(cursor: &mut Cursor<'_>, mesh: &Mesh) -> Read<Vec<AxisId>> {
    if cursor.peek() == Some('(') {
        cursor.list("(", ")", |c| read_axis(c, mesh))
    } else {
        read_axis(cursor, mesh).map(|axis| vec![axis])
    }
}

/// The outermost digits of a letter of `size` whose weight is `inner`, in the order of `axes`.
fn digits(cursor: &Cursor<'_>, size: u64, inner: u64, axes: &[AxisId], mesh: &Mesh) -> Read<Splits> {
    outermost(size, inner, axes, mesh).or_else(|axis| {
        let (name, parts) = (mesh.name(axis), mesh.size(axis));
        cursor.fail(format!("`{name}` has {parts} positions, which do not divide {size}"))
    })
}

/// `dp@64+tp@3`, after `dp@`: digits by their weights, which need not be well-formed.
fn read_digits(cursor: &mut Cursor<'_>, first: AxisId, mesh: &Mesh) -> Read<Splits> {
    let mut splits = vec![Split { axis: first, stride: cursor.count()? }];
    while cursor.take("+") {
        let axis = read_axis(cursor, mesh)?;
        cursor.expect("@")?;
        splits.push(Split { axis, stride: cursor.count()? });
    }
    Ok(splits)
}
