//! Comparisons and predicates.

use super::kinds::{Kind, floats, integers};
use super::lanes::{Guard, Lanes, Registers, Step, test};

/// The bits of the lanes in which a comparison holds.
pub(super) type Compare = fn(&Lanes, &Lanes) -> u32;

pub(super) fn comparison(name: &str, kind: Kind) -> Option<Compare> {
    if kind.float() {
        return match name {
            "eq" => floats!(kind, T => (|a, b| test(a, b, |a: T, b: T| a == b)) as Compare),
            "ne" => floats!(kind, T => (|a, b| test(a, b, |a: T, b: T| a.partial_cmp(&b).is_some_and(|o| o.is_ne()))) as Compare),
            "lt" => floats!(kind, T => (|a, b| test(a, b, |a: T, b: T| a < b)) as Compare),
            "le" => floats!(kind, T => (|a, b| test(a, b, |a: T, b: T| a <= b)) as Compare),
            "gt" => floats!(kind, T => (|a, b| test(a, b, |a: T, b: T| a > b)) as Compare),
            "ge" => floats!(kind, T => (|a, b| test(a, b, |a: T, b: T| a >= b)) as Compare),
            "equ" => {
                floats!(kind, T => (|a, b| !test(a, b, |a: T, b: T| a.partial_cmp(&b).is_some_and(|o| o.is_ne()))) as Compare)
            }
            "neu" => floats!(kind, T => (|a, b| !test(a, b, |a: T, b: T| a == b)) as Compare),
            "ltu" => floats!(kind, T => (|a, b| !test(a, b, |a: T, b: T| a >= b)) as Compare),
            "leu" => floats!(kind, T => (|a, b| !test(a, b, |a: T, b: T| a > b)) as Compare),
            "gtu" => floats!(kind, T => (|a, b| !test(a, b, |a: T, b: T| a <= b)) as Compare),
            "geu" => floats!(kind, T => (|a, b| !test(a, b, |a: T, b: T| a < b)) as Compare),
            "num" => floats!(kind, T => (|a, b| test(a, b, |a: T, b: T| !a.is_nan() && !b.is_nan())) as Compare),
            "nan" => floats!(kind, T => (|a, b| test(a, b, |a: T, b: T| a.is_nan() || b.is_nan())) as Compare),
            _ => None,
        };
    }
    match name {
        "eq" => integers!(kind, T => (|a, b| test(a, b, |a: T, b: T| a == b)) as Compare),
        "ne" => integers!(kind, T => (|a, b| test(a, b, |a: T, b: T| a != b)) as Compare),
        "lt" | "lo" => integers!(kind, T => (|a, b| test(a, b, |a: T, b: T| a < b)) as Compare),
        "le" | "ls" => integers!(kind, T => (|a, b| test(a, b, |a: T, b: T| a <= b)) as Compare),
        "gt" | "hi" => integers!(kind, T => (|a, b| test(a, b, |a: T, b: T| a > b)) as Compare),
        "ge" | "hs" => integers!(kind, T => (|a, b| test(a, b, |a: T, b: T| a >= b)) as Compare),
        _ => None,
    }
}

/// The test of one number that `testp` makes.
pub(super) fn property(name: &str, kind: Kind) -> Option<Compare> {
    match name {
        "finite" => floats!(kind, T => (|a, b| test(a, b, |a: T, _| a.is_finite())) as Compare),
        "infinite" => floats!(kind, T => (|a, b| test(a, b, |a: T, _| a.is_infinite())) as Compare),
        "number" => floats!(kind, T => (|a, b| test(a, b, |a: T, _| !a.is_nan())) as Compare),
        "notanumber" => floats!(kind, T => (|a, b| test(a, b, |a: T, _| a.is_nan())) as Compare),
        "normal" => floats!(kind, T => (|a, b| test(a, b, |a: T, _| a.is_normal())) as Compare),
        "subnormal" => floats!(kind, T => (|a, b| test(a, b, |a: T, _| a.is_subnormal())) as Compare),
        _ => None,
    }
}

/// How the result of a comparison goes with another predicate.
#[derive(Debug, Clone, Copy)]
pub(super) enum Join {
    And,
    Or,
    Xor,
}

impl Join {
    pub(super) fn of(name: &str) -> Option<Join> {
        match name {
            "and" => Some(Join::And),
            "or" => Some(Join::Or),
            "xor" => Some(Join::Xor),
            _ => None,
        }
    }

    fn bits(self, a: u32, b: u32) -> u32 {
        match self {
            Join::And => a & b,
            Join::Or => a | b,
            Join::Xor => a ^ b,
        }
    }
}

/// The step of `setp`: the comparison, and its contrary to a second predicate.
pub(super) fn compared(to: [usize; 2], [a, b]: [usize; 2], f: Compare, join: Option<(Join, Guard)>) -> Step {
    Box::new(move |r: &mut Registers, mask| {
        let bits = f(&r.lanes[a], &r.lanes[b]);
        let (yes, no) = match join {
            None => (bits, !bits),
            Some((j, p)) => (j.bits(bits, r.holds(p)), j.bits(!bits, r.holds(p))),
        };
        r.put_predicate(to[1], mask, no);
        r.put_predicate(to[0], mask, yes);
    })
}

/// The step of `set`: a number that says whether the comparison holds.
pub(super) fn set(d: usize, [a, b]: [usize; 2], f: Compare, yes: u64) -> Step {
    Box::new(move |r: &mut Registers, mask| {
        let bits = f(&r.lanes[a], &r.lanes[b]);
        let v = std::array::from_fn(|l| if bits >> l & 1 == 1 { yes } else { 0 });
        r.put(d, mask, &v);
    })
}

/// The steps of `and`, `or` and `xor` of predicates.
pub(super) fn joined(d: usize, join: Join, a: Guard, b: Guard) -> Step {
    Box::new(move |r: &mut Registers, mask| {
        let bits = join.bits(r.holds(a), r.holds(b));
        r.put_predicate(d, mask, bits);
    })
}

/// The steps of `mov` and `not` of a predicate.
pub(super) fn copied(d: usize, a: Guard) -> Step {
    Box::new(move |r: &mut Registers, mask| {
        let bits = r.holds(a);
        r.put_predicate(d, mask, bits);
    })
}
