//! Mutants: bytes at random, and changes that know the format, so that damage gets behind checksums
//! and past grammars.

use super::{Target, messages};
use serde_json::Value;
use shardc_testkit::random::{Random, damaged};
use std::io::{Cursor, Read, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Numbers that few have thought of, as texts have them.
const NUMBERS: [&str; 18] = [
    "0",
    "-1",
    "1",
    "2",
    "255",
    "65536",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999999999999",
    "1e999",
    "-0.0",
    "NaN",
    "inf",
    "1e-320",
];

/// The length of the header of a `.safetensors`, before it.
const LENGTH: usize = 8;

/// `bytes`, an input of `target`, with a few changes, some of them taken from `other`.
pub fn of(target: Target, bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    if random.below(4) == 0 {
        return damaged(bytes, random);
    }
    match target {
        Target::Onnx => messages::mutant(bytes, other, random),
        Target::Spec | Target::Shir => text(bytes, other, random),
        Target::Plan => varints(bytes, other, random),
        Target::Manifest => json(bytes, random),
        Target::Npz => archive(bytes, other, random),
        Target::Safetensors => safetensors(bytes, other, random),
    }
}

/// A text with words, numbers or lines changed.
fn text(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let (source, other) = (String::from_utf8_lossy(bytes), String::from_utf8_lossy(other));
    let mut text = source.into_owned();
    for _ in 0..[1, 1, 2, 4][random.below(4)] {
        text = match random.below(3) {
            0 => rearranged(text.split_inclusive('\n').collect(), other.split_inclusive('\n').collect(), random),
            _ => rearranged(words(&text), words(&other), random),
        };
    }
    text.into_bytes()
}

/// A text in pieces: words with their numbers, blanks, and all other characters alone.
fn words(text: &str) -> Vec<&str> {
    let kind = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '.' => 0,
        ' ' => 1,
        other => other as u32,
    };
    let mut pieces = vec![];
    let mut start = 0;
    for ((_, before), (at, c)) in text.char_indices().zip(text.char_indices().skip(1)) {
        if kind(before) != kind(c) {
            pieces.push(&text[start..at]);
            start = at;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// `pieces` with one of them doubled, dropped, swapped, repeated, taken from `others`, or another
/// number.
fn rearranged<'t>(mut pieces: Vec<&'t str>, others: Vec<&'t str>, random: &mut Random) -> String {
    let (at, to) = (random.below(pieces.len()), random.below(pieces.len()));
    let foreign = random.pick(&others).unwrap_or_default();
    if pieces.is_empty() {
        return foreign.to_string();
    }
    match random.below(9) {
        0 => drop(pieces.remove(at)),
        1 => pieces.insert(to, pieces[at]),
        2 => pieces.swap(at, to),
        3 => pieces[at] = foreign,
        4 => pieces.insert(at, foreign),
        5 => pieces[at] = pieces[to],
        6 if random.below(8) == 0 => {
            let times = 1 << random.below(10);
            pieces.splice(at..at, std::iter::repeat_n(pieces[at], times)).for_each(drop);
        }
        _ => {
            let is_number = |piece: &&str| piece.starts_with(|c: char| c.is_ascii_digit());
            let numbers: Vec<usize> = (0..pieces.len()).filter(|i| is_number(&pieces[*i])).collect();
            pieces[random.pick(&numbers).unwrap_or(at)] = NUMBERS[random.below(NUMBERS.len())];
        }
    }
    pieces.concat()
}

/// Bytes whose numbers have the length that they need, a byte that is a length changed or a longer
/// number put in.
fn varints(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..1 + random.below(3) {
        if out.is_empty() {
            break;
        }
        let (at, number) = (random.below(out.len()), 1u64 << random.below(64));
        let number = if random.below(2) == 0 { number } else { number.wrapping_sub(1) };
        match random.below(6) {
            0 => out[at] = out[at].wrapping_add(1),
            1 => out[at] = out[at].wrapping_sub(1),
            2 => out[at] = random.below(251) as u8,
            3 => {
                let long = [&[253][..], &number.to_le_bytes()].concat();
                out.splice(at..=at, long).for_each(drop);
            }
            4 => {
                let from = random.below(other.len());
                let piece = other[from..(from + 1 + random.below(24)).min(other.len())].to_vec();
                let end = (at + piece.len()).min(out.len());
                out.splice(at..end, piece).for_each(drop);
            }
            _ => {
                let end = (at + random.below(24)).min(out.len());
                let piece = out[at..end].to_vec();
                out.splice(at..at, piece).for_each(drop);
            }
        }
    }
    out
}

/// A value of JSON changed, dropped or given twice; or its text.
fn json(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else { return text(bytes, bytes, random) };
    if random.below(3) == 0 {
        return text(bytes, bytes, random);
    }
    for _ in 0..1 + random.below(2) {
        let depth = 1 + random.below(6);
        change(&mut value, depth, random);
    }
    value.to_string().into_bytes()
}

/// Changes something at most `depth` levels below `value`.
fn change(value: &mut Value, depth: usize, random: &mut Random) {
    match value {
        Value::Object(map) if depth > 0 && !map.is_empty() => {
            let keys: Vec<String> = map.keys().cloned().collect();
            let key = random.pick(&keys).unwrap_or_default();
            match random.below(8) {
                0 => drop(map.remove(&key)),
                1 => {
                    let moved = map.get(&key).cloned().unwrap_or_default();
                    map.insert(["", "..", "/dev/zero", "other", "a/b"][random.below(5)].to_string(), moved);
                }
                _ => change(map.entry(key).or_insert(Value::Null), depth - 1, random),
            }
        }
        Value::Array(list) if depth > 0 && !list.is_empty() => {
            let at = random.below(list.len());
            match random.below(8) {
                0 => drop(list.remove(at)),
                1 => list.insert(at, list[at].clone()),
                2 => list.extend(std::iter::repeat_n(list[at].clone(), 1 << random.below(10))),
                _ => change(&mut list[at], depth - 1, random),
            }
        }
        other => {
            *other = match random.below(6) {
                0 => Value::Null,
                1 => Value::String("\u{1b}[2J".to_string() + &"x".repeat(1 << random.below(12))),
                2 => Value::Array(vec![other.clone()]),
                3 => Value::Bool(true),
                _ => serde_json::from_str(NUMBERS[random.below(NUMBERS.len())]).unwrap_or_default(),
            }
        }
    }
}

/// An archive that is whole, of arrays that are not.
fn archive(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let (mut entries, others) = (entries(bytes), entries(other));
    if entries.is_empty() {
        return others.first().map_or_else(Vec::new, |_| other.to_vec());
    }
    for _ in 0..1 + random.below(2) {
        let at = random.below(entries.len().max(1));
        let Some((name, array)) = entries.get_mut(at) else { break };
        match random.below(8) {
            0 => drop(entries.remove(at)),
            1 => *name = ["x.npy", "y.npy", "..", "/x.npy", "x", ".npy", "a\u{1b}.npy"][random.below(7)].to_string(),
            2 => {
                let double = (format!("{name}.npy"), array.clone());
                entries.push(double);
            }
            3 => *array = damaged(array, random),
            4 => array.truncate(random.below(array.len())),
            _ => *array = npy(array, random),
        }
    }
    let mut writer = ZipWriter::new(Cursor::new(vec![]));
    for (name, array) in entries {
        let method = if random.below(2) == 0 { CompressionMethod::Stored } else { CompressionMethod::Deflated };
        // A name may be given once only.
        if writer.start_file(name, SimpleFileOptions::default().compression_method(method)).is_ok() {
            writer.write_all(&array).expect("memory takes all that is written");
        }
    }
    writer.finish().expect("an archive can be written").into_inner()
}

/// The files of an archive, as far as they can be read.
fn entries(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    const LARGEST: u64 = 1 << 20;
    let Ok(mut archive) = ZipArchive::new(Cursor::new(bytes)) else { return vec![] };
    let mut found = vec![];
    for at in 0..archive.len() {
        let Ok(entry) = archive.by_index(at) else { continue };
        let (name, mut contents) = (entry.name().to_string(), vec![]);
        if entry.take(LARGEST).read_to_end(&mut contents).is_ok() {
            found.push((name, contents));
        }
    }
    found
}

/// An array whose header says something else, its length made to fit.
fn npy(array: &[u8], random: &mut Random) -> Vec<u8> {
    const BEFORE: usize = 10;
    const HEADERS: &[u8] =
        b"{'descr': '>f8', 'fortran_order': True, 'shape': (3, 5, 1), } '<f2' '|b1' '|u1' '<i8' '>i2' '|S3' (5,)";
    let Some(length) = array.get(8..BEFORE).map(|b| usize::from(b[0]) | usize::from(b[1]) << 8) else { return array.to_vec() };
    let (Some(start), Some(header)) = (array.get(..8), array.get(BEFORE..BEFORE + length)) else { return array.to_vec() };
    let header = text(header, HEADERS, random);
    let length = (header.len() as u16).to_le_bytes();
    [start, &length, &header, &array[BEFORE + header.len().min(array.len() - BEFORE)..]].concat()
}

/// Arrays whose header says something else, its length made to fit.
fn safetensors(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let split = |bytes: &[u8]| -> Option<(Vec<u8>, Vec<u8>)> {
        let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
        let (header, data) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        Some((header.to_vec(), data.to_vec()))
    };
    let (Some((header, data)), Some((words, _))) = (split(bytes), split(other)) else { return other.to_vec() };
    let header = if random.below(2) == 0 { json(&header, random) } else { text(&header, &words, random) };
    let data = if random.below(4) == 0 { damaged(&data, random) } else { data };
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
