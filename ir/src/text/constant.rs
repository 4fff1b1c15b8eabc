//! The elements of a constant in text: `0.5`, `[1.0, 2.0]`, `fill 0.0` for many equal ones,
//! `"0000803f…"` (bytes) for others, `sha256 "9f86d0…"` for bytes that stand elsewhere.

use super::cursor::{Cursor, Read};
use super::elsewhere::Elsewhere;
use crate::dtype::DType;
use crate::types::{Tensor, Type, from_hex, to_hex};
use half::{bf16, f16};
use std::sync::Arc;

/// Up to so many elements are listed.
const LISTED: u64 = 8;

/// The elements, without the type.
pub(super) fn constant_text(tensor: &Tensor, elsewhere: &Elsewhere) -> String {
    let count = tensor.ty.elements();
    let text = if tensor.ty.rank() == 0 {
        elements(tensor).concat()
    } else if count <= LISTED {
        format!("[{}]", elements(tensor).join(", "))
    } else if tensor.splat().is_some() {
        // One element stands for all, and is read back for all.
        return format!("fill {}", constant_text(&tensor.element(0), elsewhere));
    } else {
        let hash = elsewhere.hash_of(&tensor.bytes);
        return hash.map_or_else(|| hex(tensor), |hash| format!("sha256 \"{}\"", to_hex(&hash)));
    };
    // Numbers that text cannot hold (payloads of not-a-numbers) are kept as bytes.
    let back = read_constant(&mut Cursor::new(&text, 0), &tensor.ty, &mut u64::MAX.clone(), &Elsewhere::default());
    if back.is_ok_and(|b| b == *tensor) { text } else { hex(tensor) }
}

/// The first element; nothing where there is none.
pub(super) fn first_text(tensor: &Tensor) -> String {
    let bytes = tensor.bytes.iter().take(tensor.ty.dtype.bytes() as usize).copied().collect();
    let first = Tensor { ty: Type::new(tensor.ty.dtype, [1]), bytes: Arc::new(bytes) };
    elements(&first).concat()
}

fn elements(tensor: &Tensor) -> Vec<String> {
    match tensor.ty.dtype {
        DType::F64 => tensor.to_f64().iter().map(|v| format!("{v:?}")).collect(),
        DType::F32 | DType::BF16 | DType::F16 => tensor.to_f64().iter().map(|v| format!("{:?}", *v as f32)).collect(),
        DType::I64 => tensor.to_i64().iter().map(i64::to_string).collect(),
        DType::Bool => tensor.to_i64().iter().map(|v| (*v != 0).to_string()).collect(),
    }
}

fn hex(tensor: &Tensor) -> String {
    format!("\"{}\"", to_hex(&tensor.bytes))
}

/// The constant of that type whose elements come next.
/// `left` is how many bytes may still be filled.
pub(super) fn read_constant(cursor: &mut Cursor<'_>, ty: &Type, left: &mut u64, elsewhere: &Elsewhere) -> Read<Tensor> {
    let wanted = ty.elements();
    if cursor.take_word("sha256") {
        let hash = cursor.string()?;
        return match from_hex(&hash).and_then(|hash| elsewhere.get(&hash)) {
            Some(bytes) if bytes.len() as u64 == wanted * ty.dtype.bytes() => Ok(Tensor { ty: ty.clone(), bytes }),
            Some(_) => cursor.fail(format!("the constant of hash {hash} has not the elements of {ty}")),
            None => cursor.fail(format!("no program holds a constant of hash {hash}")),
        };
    }
    let bytes = match cursor.peek() {
        Some('"') => from_hex(&cursor.string()?),
        Some('[') => Some(cursor.list("[", "]", |c| read_element(c, ty.dtype))?.concat()),
        _ if cursor.take_word("fill") => {
            let element = match cursor.peek() {
                Some('"') => from_hex(&cursor.string()?).unwrap_or_default(),
                _ => read_element(cursor, ty.dtype)?,
            };
            let asked = wanted * ty.dtype.bytes();
            let Some(rest) = left.checked_sub(asked) else {
                return cursor.fail(format!("{ty} is too large for a text of this size"));
            };
            *left = rest;
            Some(element.repeat(wanted as usize))
        }
        _ => Some(read_element(cursor, ty.dtype)?),
    };
    match bytes {
        Some(bytes) if bytes.len() as u64 == wanted * ty.dtype.bytes() => Ok(Tensor { ty: ty.clone(), bytes: Arc::new(bytes) }),
        _ => cursor.fail(format!("these are not the elements of {ty}")),
    }
}

fn read_element(cursor: &mut Cursor<'_>, dtype: DType) -> Read<Vec<u8>> {
    let number = cursor.number()?;
    let bytes = match dtype {
        DType::F64 => number.parse::<f64>().ok().map(|v| v.to_le_bytes().to_vec()),
        DType::F32 => number.parse::<f32>().ok().map(|v| v.to_le_bytes().to_vec()),
        DType::BF16 => number.parse().ok().map(|v| bf16::from_f32(v).to_le_bytes().to_vec()),
        DType::F16 => number.parse().ok().map(|v| f16::from_f32(v).to_le_bytes().to_vec()),
        DType::I64 => number.parse::<i64>().ok().map(|v| v.to_le_bytes().to_vec()),
        DType::Bool => number.parse::<bool>().ok().map(|v| vec![u8::from(v)]),
    };
    bytes.map_or_else(|| cursor.fail(format!("`{number}` is no {dtype}")), Ok)
}
