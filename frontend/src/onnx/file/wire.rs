//! Protobuf at the level of bytes: where fields are, and edits that leave every other byte of a
//! file as it was.

use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::convert::Infallible;
use std::iter;
use std::ops::Range;

/// One field of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::onnx) struct Field {
    /// Its number in the schema.
    pub number: u64,
    /// All of its bytes, tag first.
    pub at: Range<usize>,
    /// The bytes of its tag.
    pub tag: Range<usize>,
    /// Its contents, after tag and length.
    pub body: Range<usize>,
    /// Whether it has a length: a message, string, bytes or packed list.
    pub delimited: bool,
}

/// The fields of the message in `bytes[message]`, in file order.
pub(in crate::onnx) fn fields(bytes: &[u8], message: Range<usize>) -> Result<Vec<Field>, Reason> {
    walk(bytes, message).collect()
}

/// [`fields`], one after another.
pub(in crate::onnx) fn walk(bytes: &[u8], message: Range<usize>) -> impl Iterator<Item = Result<Field, Reason>> {
    let mut at = message.start;
    iter::from_fn(move || {
        (at < message.end).then(|| {
            let found = field(bytes, at, message.end).ok_or_else(|| reason!("the protobuf breaks off at byte {at}"));
            at = found.as_ref().map_or(message.end, |field| field.at.end);
            found
        })
    })
}

fn field(bytes: &[u8], start: usize, end: usize) -> Option<Field> {
    let (tag, after_tag) = varint(bytes, start, end)?;
    // No schema has a field 0.
    if tag >> 3 == 0 {
        return None;
    }
    let (body, delimited) = match tag & 7 {
        0 => (after_tag..varint(bytes, after_tag, end)?.1, false),
        1 => (after_tag..after_tag.checked_add(8)?, false),
        2 => {
            let (length, first) = varint(bytes, after_tag, end)?;
            (first..first.checked_add(usize::try_from(length).ok()?)?, true)
        }
        5 => (after_tag..after_tag.checked_add(4)?, false),
        _ => return None,
    };
    (body.end <= end).then_some(Field { number: tag >> 3, at: start..body.end, tag: start..after_tag, body, delimited })
}

fn varint(bytes: &[u8], start: usize, end: usize) -> Option<(u64, usize)> {
    let mut value = 0;
    for (i, byte) in bytes.get(start..end)?.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * i as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, start + i + 1));
        }
    }
    None
}

/// Replaces one whole field, at any depth, by other fields. `L` is what stands for bytes that come
/// later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::onnx) struct Edit<'a, L = Infallible> {
    /// The bytes of the field, tag first.
    pub at: Range<usize>,
    /// The bytes that stand there afterwards, in order.
    pub with: Vec<Piece<'a, L>>,
}

/// Bytes of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::onnx) enum Piece<'a, L = Infallible> {
    /// A few bytes made for an edit.
    New(Vec<u8>),
    /// Bytes that the caller holds.
    Held(&'a [u8]),
    /// Bytes that are not there yet, such as weights that another place holds.
    Later(L),
}

/// How many bytes something stands for.
pub(in crate::onnx) trait Length {
    /// In bytes.
    fn length(&self) -> usize;
}

impl Length for Infallible {
    fn length(&self) -> usize {
        match *self {}
    }
}

impl<L: Length> Length for &L {
    fn length(&self) -> usize {
        (*self).length()
    }
}

impl<L: Length> Length for Piece<'_, L> {
    fn length(&self) -> usize {
        match self {
            Piece::New(bytes) => bytes.len(),
            Piece::Held(bytes) => bytes.len(),
            Piece::Later(later) => later.length(),
        }
    }
}

impl<L> Piece<'_, L> {
    fn borrowed(&self) -> Piece<'_, &L> {
        match self {
            Piece::New(bytes) => Piece::Held(bytes),
            Piece::Held(bytes) => Piece::Held(bytes),
            Piece::Later(later) => Piece::Later(later),
        }
    }
}

impl Piece<'_> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Piece::New(bytes) => bytes,
            Piece::Held(bytes) => bytes,
            Piece::Later(never) => match *never {},
        }
    }
}

/// A field with contents: the pieces of its tag and length, and the contents.
pub(in crate::onnx) fn delimited(number: u64, contents: &[u8]) -> Vec<Piece<'_>> {
    field_of(number, Piece::Held(contents))
}

/// [`delimited`], whatever the contents are.
pub(in crate::onnx) fn field_of<L: Length>(number: u64, contents: Piece<'_, L>) -> Vec<Piece<'_, L>> {
    let mut head = vec![];
    push_varint(&mut head, number << 3 | 2);
    push_varint(&mut head, contents.length() as u64);
    vec![Piece::New(head), contents]
}

/// The message `bytes` with `edits`, which are sorted by place and do not overlap. Lengths of the
/// messages around them follow.
pub(in crate::onnx) fn apply(bytes: &[u8], edits: &[Edit<'_>]) -> Result<Vec<u8>, Reason> {
    let pieces = pieces(bytes, edits)?;
    let mut out = Vec::with_capacity(pieces.iter().map(Piece::length).sum());
    for piece in &pieces {
        match piece {
            Piece::New(bytes) => out.extend_from_slice(bytes),
            Piece::Held(bytes) => out.extend_from_slice(bytes),
            Piece::Later(never) => match **never {},
        }
    }
    Ok(out)
}

/// [`apply`], as pieces.
pub(in crate::onnx) fn pieces<'e, L: Length>(bytes: &'e [u8], edits: &'e [Edit<'e, L>]) -> Result<Vec<Piece<'e, &'e L>>, Reason> {
    let mut out = vec![];
    inside(bytes, 0..bytes.len(), edits, &mut out)?;
    Ok(out)
}

/// Appends a message; gives its length.
fn inside<'e, L: Length>(
    bytes: &'e [u8],
    message: Range<usize>,
    edits: &'e [Edit<'e, L>],
    out: &mut Vec<Piece<'e, &'e L>>,
) -> Result<usize, Reason> {
    let mut length = 0;
    // Fields that nothing changes are one piece.
    let mut kept = message.start;
    for field in walk(bytes, message.clone()) {
        let field = field?;
        let first = edits.partition_point(|e| e.at.start < field.at.start);
        let last = edits.partition_point(|e| e.at.start < field.at.end);
        let changed = &edits[first..last];
        if changed.is_empty() {
            continue;
        }
        length += keep(bytes, kept..field.at.start, out);
        kept = field.at.end;
        if let [edit] = changed
            && edit.at == field.at
        {
            length += edit.with.iter().map(Piece::length).sum::<usize>();
            out.extend(edit.with.iter().map(Piece::borrowed));
        } else {
            let head = out.len();
            out.push(Piece::New(vec![]));
            let inner = inside(bytes, field.body.clone(), changed, out)?;
            let mut tag = bytes[field.tag].to_vec();
            push_varint(&mut tag, inner as u64);
            length += tag.len() + inner;
            out[head] = Piece::New(tag);
        }
    }
    Ok(length + keep(bytes, kept..message.end, out))
}

/// Appends bytes as they are; gives their number.
fn keep<'e, L>(bytes: &'e [u8], range: Range<usize>, out: &mut Vec<Piece<'e, L>>) -> usize {
    let length = range.len();
    if length > 0 {
        out.push(Piece::Held(&bytes[range]));
    }
    length
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
