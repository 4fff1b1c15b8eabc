//! Einsum in its general form: repeated letters, ellipses, any number of operands.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::layout::Slice;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::Binary;
use std::collections::BTreeMap;

type Outputs = Result<Vec<Value>, Reason>;

/// The most operands of one equation.
const MOST_OPERANDS: usize = 64;

/// A tensor, and the letter of each dimension, all different.
struct Term {
    value: Value,
    letters: Vec<char>,
}

/// The sum over all letters that the result lacks, of the product of all operands
pub(in crate::onnx) fn einsum(c: &mut Call<'_, '_>) -> Outputs {
    let equation: String = c.attribute_string("equation", "")?.split_whitespace().collect();
    let operands = c.all_inputs()?;
    if operands.len() > MOST_OPERANDS {
        return Err(reason!("{} operands; up to {MOST_OPERANDS} are supported", operands.len()));
    }
    let shapes: Vec<Vec<u64>> = operands.iter().map(|v| c.shape(v)).collect::<Result<_, _>>()?;
    let (inputs, output) = letters(&equation, &shapes)?;
    let mut terms = vec![];
    for (i, (value, letters)) in operands.into_iter().zip(&inputs).enumerate() {
        let needed = |l: char| output.contains(&l) || inputs.iter().enumerate().any(|(j, other)| j != i && other.contains(&l));
        let term = diagonals(c, value, letters)?;
        terms.push(sum_lost(c, term, needed)?);
    }
    let mut terms = terms.into_iter();
    let mut all = terms.next().ok_or("it has no inputs")?;
    while let Some(next) = terms.next() {
        let later: Vec<char> = terms.as_slice().iter().flat_map(|t| t.letters.clone()).collect();
        all = product(c, all, next, &output, |l| output.contains(&l) || later.contains(&l))?;
    }
    if let Some(letter) = output.iter().find(|l| !all.letters.contains(l)) {
        return Err(reason!("`{letter}` of its result is in no operand of `{equation}`"));
    }
    let perm: Vec<usize> = output.iter().filter_map(|l| all.letters.iter().position(|own| own == l)).collect();
    Ok(vec![c.transpose(&all.value, perm)?])
}

/// The letters of each operand and of the result, ellipses written out.
fn letters(equation: &str, shapes: &[Vec<u64>]) -> Result<(Vec<Vec<char>>, Vec<char>), Reason> {
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (equation, None),
    };
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != shapes.len() {
        return Err(reason!("`{equation}` is for {} operands, not {}", terms.len(), shapes.len()));
    }
    for term in terms.iter().copied().chain(output) {
        let plain = term.replacen("...", "", 1);
        if let Some(other) = plain.chars().find(|l| !l.is_ascii_alphabetic()) {
            return Err(reason!("`{other}` of its equation `{equation}` is no letter"));
        }
    }
    let spared = |term: &str, shape: &[u64]| (shape.len() + 3).checked_sub(term.len()).filter(|_| term.contains("..."));
    let widest = terms.iter().zip(shapes).filter_map(|(t, s)| spared(t, s)).max().unwrap_or(0);
    // Ellipses stand for the last of letters that the equation does not use.
    let spare: Vec<char> = ('a'..='z').chain('A'..='Z').filter(|l| !equation.contains(*l)).take(widest).collect();
    if spare.len() < widest {
        return Err(reason!("{widest} dimensions more than the letters of `{equation}` are too many"));
    }
    let write = |term: &str, count: usize| -> Vec<char> {
        let own: String = spare[spare.len() - count..].iter().collect();
        term.replacen("...", &own, 1).chars().collect()
    };
    let mut written = vec![];
    for (term, shape) in terms.iter().zip(shapes) {
        let letters = write(term, spared(term, shape).unwrap_or(0));
        if letters.len() != shape.len() {
            return Err(reason!("`{term}` of its equation does not fit {shape:?}"));
        }
        written.push(letters);
    }
    let output = match output {
        Some(output) => write(output, if output.contains("...") { widest } else { 0 }),
        None => implicit(&spare, &written),
    };
    match output.iter().enumerate().find(|(i, l)| output[..*i].contains(l)) {
        Some((_, letter)) => Err(reason!("`{letter}` occurs twice in the result of `{equation}`")),
        None => Ok((written, output)),
    }
}

/// The implied result: what the ellipses stand for, then the letters that occur once, in
/// alphabetical order.
fn implicit(spare: &[char], inputs: &[Vec<char>]) -> Vec<char> {
    let mut counts: BTreeMap<char, usize> = BTreeMap::new();
    inputs.iter().flatten().for_each(|l| *counts.entry(*l).or_default() += 1);
    let once = counts.into_iter().filter(|(l, n)| *n == 1 && !spare.contains(l)).map(|(l, _)| l);
    spare.iter().copied().chain(once).collect()
}

/// A tensor by the diagonal of the dimensions whose letters are the same, which are one dimension
/// then.
fn diagonals(c: &mut Call<'_, '_>, value: Value, letters: &[char]) -> Result<Term, Reason> {
    let mut term = Term { value, letters: letters.to_vec() };
    while let Some((first, second)) = twice(&term.letters) {
        let shape = c.shape(&term.value)?;
        let size = shape[first];
        if shape[second] != size {
            return Err(reason!("`{}` is {size} and {}", term.letters[first], shape[second]));
        }
        let others: Vec<usize> = (0..shape.len()).filter(|d| *d != first && *d != second).collect();
        let last = others.len();
        let together = c.transpose(&term.value, [&others[..], &[first, second]].concat())?;
        let mut merged: Vec<u64> = others.iter().map(|d| shape[*d]).collect();
        merged.push(size * size);
        let flat = c.reshape(&together, merged)?;
        let diagonal = Slice { axis: last, start: 0, step: if size > 1 { size as i64 + 1 } else { 1 }, size };
        term = Term {
            value: c.emit(diagonal, &[flat])?,
            letters: others.iter().chain([&first]).map(|d| term.letters[*d]).collect(),
        };
    }
    Ok(term)
}

fn twice(letters: &[char]) -> Option<(usize, usize)> {
    (0..letters.len()).find_map(|i| letters[..i].iter().position(|l| *l == letters[i]).map(|first| (first, i)))
}

/// A tensor summed over the letters that nobody needs.
fn sum_lost(c: &mut Call<'_, '_>, term: Term, needed: impl Fn(char) -> bool) -> Result<Term, Reason> {
    let lost: Vec<usize> = (0..term.letters.len()).filter(|d| !needed(term.letters[*d])).collect();
    let value = c.reduce(ReduceKind::Sum, &term.value, &lost)?;
    Ok(Term { value, letters: term.letters.into_iter().filter(|l| needed(*l)).collect() })
}

/// The product of two tensors, summed over the letters that nobody needs afterwards, the others in
/// the order of the result.
fn product(c: &mut Call<'_, '_>, a: Term, b: Term, output: &[char], needed: impl Fn(char) -> bool) -> Result<Term, Reason> {
    let (a, b) = broadcast(c, a, b)?;
    let mut all = a.letters.clone();
    all.extend(b.letters.iter().filter(|l| !a.letters.contains(l)));
    let mut kept: Vec<char> = all.iter().copied().filter(|l| needed(*l)).collect();
    kept.sort_by_key(|l| output.iter().position(|own| own == l).unwrap_or(output.len()));
    let contracts = all.iter().all(|l| kept.contains(l) || (a.letters.contains(l) && b.letters.contains(l)));
    if contracts && c.ty(&a.value)?.dtype.is_float() {
        let term = |letters: &[char]| letters.iter().collect::<String>();
        let spec = format!("{},{}->{}", term(&a.letters), term(&b.letters), term(&kept));
        return Ok(Term { value: c.emit(Contract::new(spec), &[a.value, b.value])?, letters: kept });
    }
    let (x, y) = (aligned(c, &a, &all)?, aligned(c, &b, &all)?);
    let value = c.binary(Binary::Mul, &x, &y)?;
    sum_lost(c, Term { value, letters: all }, needed)
}

/// Both without dimensions of size 1 where the other has the letter at another size: those
/// broadcast.
fn broadcast(c: &mut Call<'_, '_>, a: Term, b: Term) -> Result<(Term, Term), Reason> {
    let (sa, sb) = (c.shape(&a.value)?, c.shape(&b.value)?);
    let size = |t: &Term, shape: &[u64], l: char| t.letters.iter().position(|own| *own == l).map(|d| shape[d]);
    let mut without = |t: Term, own: &[u64], other: &Term, others: &[u64]| {
        let stays = |d: &usize| own[*d] != 1 || size(other, others, t.letters[*d]).is_none_or(|n| n == 1);
        let kept: Vec<usize> = (0..own.len()).filter(stays).collect();
        let value = c.reshape(&t.value, kept.iter().map(|d| own[*d]).collect())?;
        Ok::<Term, Reason>(Term { value, letters: kept.iter().map(|d| t.letters[*d]).collect() })
    };
    let narrow = without(Term { value: a.value.clone(), letters: a.letters.clone() }, &sa, &b, &sb)?;
    let other = without(Term { value: b.value, letters: b.letters }, &sb, &a, &sa)?;
    Ok((narrow, other))
}

/// A tensor with a dimension for each of `all` letters, of size 1 where it lacks one.
fn aligned(c: &mut Call<'_, '_>, term: &Term, all: &[char]) -> Result<Value, Reason> {
    let shape = c.shape(&term.value)?;
    let own: Vec<usize> = all.iter().filter_map(|l| term.letters.iter().position(|x| x == l)).collect();
    let value = c.transpose(&term.value, own.clone())?;
    let sizes = all.iter().map(|l| term.letters.iter().position(|x| x == l).map_or(1, |d| shape[d])).collect();
    c.reshape(&value, sizes)
}
