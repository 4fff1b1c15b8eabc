//! Protobuf at the level of bytes: where fields are, and edits that leave every other byte of a file as it was.

use std::iter;
use std::ops::Range;

/// One field of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
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
pub(super) fn fields(bytes: &[u8], message: Range<usize>) -> Result<Vec<Field>, String> {
    walk(bytes, message).collect()
}

/// [`fields`], one after another.
pub(super) fn walk(bytes: &[u8], message: Range<usize>) -> impl Iterator<Item = Result<Field, String>> {
    let mut at = message.start;
    iter::from_fn(move || {
        (at < message.end).then(|| {
            let found = field(bytes, at, message.end).ok_or_else(|| format!("the protobuf breaks off at byte {at}"));
            at = found.as_ref().map_or(message.end, |field| field.at.end);
            found
        })
    })
}

fn field(bytes: &[u8], start: usize, end: usize) -> Option<Field> {
    let (tag, after_tag) = varint(bytes, start, end)?;
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

/// Replaces one whole field, at any depth, by other fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edit<'a> {
    /// The bytes of the field, tag first.
    pub at: Range<usize>,
    /// What stands there afterwards, in order.
    pub with: Vec<Piece<'a>>,
}

/// Bytes of an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// A few bytes made for the edit.
    New(Vec<u8>),
    /// Bytes that the caller holds, such as weights.
    Held(&'a [u8]),
}

impl Piece<'_> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Piece::New(bytes) => bytes,
            Piece::Held(bytes) => bytes,
        }
    }
}

/// A field with contents: the pieces of its tag and length, and the contents.
pub(super) fn delimited(number: u64, contents: &[u8]) -> Vec<Piece<'_>> {
    let mut head = vec![];
    push_varint(&mut head, number << 3 | 2);
    push_varint(&mut head, contents.len() as u64);
    vec![Piece::New(head), Piece::Held(contents)]
}

/// The message `bytes` with `edits`, which are sorted by place and do not overlap. Lengths of the messages around them follow.
pub(super) fn apply(bytes: &[u8], edits: &[Edit<'_>]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(length(bytes, 0..bytes.len(), edits)?);
    write(bytes, 0..bytes.len(), edits, &mut out)?;
    Ok(out)
}

/// What becomes of one field.
enum Change<'e, 'a> {
    Keep,
    Replace(&'e Edit<'a>),
    Inside(&'e [Edit<'a>]),
}

fn change<'e, 'a>(field: &Field, edits: &'e [Edit<'a>]) -> Change<'e, 'a> {
    let first = edits.partition_point(|e| e.at.start < field.at.start);
    let last = edits.partition_point(|e| e.at.start < field.at.end);
    match &edits[first..last] {
        [] => Change::Keep,
        [edit] if edit.at == field.at => Change::Replace(edit),
        inside => Change::Inside(inside),
    }
}

fn length(bytes: &[u8], message: Range<usize>, edits: &[Edit<'_>]) -> Result<usize, String> {
    let mut total = 0;
    for field in fields(bytes, message)? {
        total += match change(&field, edits) {
            Change::Keep => field.at.len(),
            Change::Replace(edit) => edit.with.iter().map(|p| p.bytes().len()).sum(),
            Change::Inside(edits) => {
                let inner = length(bytes, field.body.clone(), edits)?;
                let mut size = vec![];
                push_varint(&mut size, inner as u64);
                field.tag.len() + size.len() + inner
            }
        };
    }
    Ok(total)
}

fn write(bytes: &[u8], message: Range<usize>, edits: &[Edit<'_>], out: &mut Vec<u8>) -> Result<(), String> {
    for field in fields(bytes, message)? {
        match change(&field, edits) {
            Change::Keep => out.extend_from_slice(&bytes[field.at]),
            Change::Replace(edit) => edit.with.iter().for_each(|p| out.extend_from_slice(p.bytes())),
            Change::Inside(edits) => {
                out.extend_from_slice(&bytes[field.tag.clone()]);
                push_varint(out, length(bytes, field.body.clone(), edits)? as u64);
                write(bytes, field.body, edits, out)?;
            }
        }
    }
    Ok(())
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
