//! Contractions: sums of products over letters, as in einsum.

use super::{Backward, Linear, NoGradient, Rules, named};
use crate::dtype::DType;
use crate::kernel::{self, ContractDim, Kernel};
use crate::letters::Letters;
use crate::lower::{LowerContext, Lowered};
use crate::reason;
use crate::reason::Reason;
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// `c = sum of a * b` over the letters that `c` lacks. Each letter occurs at most once in an
/// operand, and every letter of one operand alone is kept: `bmk,bkn->bmn`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contract {
    /// The einsum.
    pub spec: String,
    /// The result's element type, where it is not that of the operands: sums of products of 16-bit
    /// floats may stay f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
}
named!(Contract, "contract");

impl Contract {
    /// The contraction with that einsum.
    pub fn new(spec: impl Into<String>) -> Contract {
        Contract { spec: spec.into(), dtype: None }
    }

    /// The same with results in the type in which kernels add up products of `operands`.
    pub fn unrounded(self, operands: DType) -> Contract {
        Contract { dtype: operands.is_half().then(|| operands.computed()), ..self }
    }

    /// The letters of `a`, `b` and `c`.
    pub fn terms(&self) -> Option<(&str, &str, &str)> {
        let (inputs, c) = self.spec.split_once("->")?;
        let (a, b) = inputs.split_once(',')?;
        Some((a, b, c))
    }

    fn checked_terms(&self) -> Result<(&str, &str, &str), Reason> {
        let (a, b, c) = self.terms().ok_or_else(|| reason!("`{}` is no contraction of two operands", self.spec))?;
        if let Some(other) = [a, b, c].concat().chars().find(|l| !l.is_ascii_alphabetic()) {
            return Err(reason!("`{other}` is no letter"));
        }
        for term in [a, b, c] {
            let twice = term.char_indices().find(|(i, letter)| term[..*i].contains(*letter));
            if let Some((_, letter)) = twice {
                return Err(reason!("`{letter}` occurs twice in `{term}`"));
            }
        }
        let lost = |x: &str, y: &str| x.chars().find(|l| !y.contains(*l) && !c.contains(*l));
        if let Some(letter) = lost(a, b).or_else(|| lost(b, a)) {
            return Err(reason!("`{letter}` is in one operand only and not kept"));
        }
        match c.chars().find(|l| !a.contains(*l) && !b.contains(*l)) {
            Some(letter) => Err(reason!("`{letter}` is in no operand")),
            None => Ok((a, b, c)),
        }
    }
}

impl Rules for Contract {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let (a, b, c) = self.checked_terms()?;
        let [ta, tb] = operands else { return Err("takes two operands".into()) };
        if ta.rank() != a.len() || tb.rank() != b.len() {
            return Err(reason!("`{}` does not fit {ta} and {tb}", self.spec));
        }
        if ta.dtype != tb.dtype || !ta.dtype.is_float() {
            return Err(reason!("operands are {} and {}", ta.dtype, tb.dtype));
        }
        let size = |letter: char| {
            let in_a = a.find(letter).map(|i| ta.shape[i]);
            let in_b = b.find(letter).map(|i| tb.shape[i]);
            match (in_a, in_b) {
                (Some(m), Some(n)) if m != n => Err(reason!("`{letter}` is {m} and {n} in {ta} and {tb} ({})", self.spec)),
                (m, n) => Ok(m.or(n).unwrap_or(1)),
            }
        };
        for letter in a.chars() {
            size(letter)?;
        }
        let shape: Result<Vec<u64>, Reason> = c.chars().map(size).collect();
        let dtype = self.dtype.unwrap_or(ta.dtype);
        if dtype != ta.dtype && dtype != ta.dtype.computed() {
            return Err(reason!("products of {} are no {dtype}", ta.dtype));
        }
        Ok(vec![Type::new(dtype, shape?)])
    }

    fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
        Letters::einsum(&self.spec, operands)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Each
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (a, b, c) = self.terms().expect("the node was built");
        let (x, y, g) = (cx.operands[0], cx.operands[1], cx.grad());
        let dtype = cx.b.ty(x).dtype;
        if cx.needs[0] {
            let dx = cx.b.op(Contract::new(format!("{c},{b}->{a}")).unrounded(dtype), &[g, y]);
            cx.give(0, dx);
        }
        if cx.needs[1] {
            let dy = cx.b.op(Contract::new(format!("{a},{c}->{b}")).unrounded(dtype), &[x, g]);
            cx.give(1, dy);
        }
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let (a, b, c) = self.terms().expect("the node was built");
        let (sa, sb, sc) = (cx.operands[0].strides(), cx.operands[1].strides(), cx.results[0].strides());
        let stride = |term: &str, strides: &[i64], letter| term.find(letter).map_or(0, |i| strides[i]);
        let dim = |letter: char| {
            let size = match (a.find(letter), b.find(letter)) {
                (Some(i), _) => cx.operands[0].local[i],
                (_, Some(i)) => cx.operands[1].local[i],
                _ => 1,
            };
            ContractDim { size, a: stride(a, &sa, letter), b: stride(b, &sb, letter), c: stride(c, &sc, letter) }
        };
        let pick = |term: &str, keep: &dyn Fn(char) -> bool| term.chars().filter(|l| keep(*l)).map(dim).collect();
        let kernel = kernel::Contract {
            dtype: cx.operands[0].ty.dtype,
            result: cx.results[0].ty.dtype,
            batch: pick(c, &|l| a.contains(l) && b.contains(l)),
            m: pick(c, &|l| a.contains(l) && !b.contains(l)),
            n: pick(c, &|l| !a.contains(l) && b.contains(l)),
            k: pick(a, &|l| !c.contains(l)),
        };
        Lowered::launch(Kernel::Contract(kernel), 2, 1)
    }
}
