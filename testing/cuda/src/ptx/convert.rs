//! Conversions between types.

use super::exact::{Round, bf16_of, bf16_to, f16_of, f16_to};
use super::kinds::{Kind, Lane, integers, low, widen};
use super::lanes::{Step, one, two};

/// The step of `cvt` to a register of `width` bytes; `None` where it is not known.
pub(super) fn step(slots: [usize; 2], to: Kind, from: Kind, round: &str, width: usize) -> Option<Step> {
    let rounding = Round::of(round);
    if rounding.is_none() && !round.is_empty() || to == Kind::Pred || from == Kind::Pred {
        return None;
    }
    if !to.float() && !from.float() {
        let (bytes, signed) = (from.bytes(), from.signed());
        let (kept, sign) = (to.bytes(), to.signed());
        return Some(one(slots, move |a: u64| widen(widen(a, bytes, 8, signed), kept, width, sign)));
    }
    if !from.float() {
        let rounding = rounding?;
        return match to {
            Kind::F32 if rounding == Round::Nearest => integers!(from, T => one(slots, |a: T| a as f32)),
            Kind::F64 if rounding == Round::Nearest => integers!(from, T => one(slots, |a: T| a as f64)),
            Kind::F32 => integers!(from, T => one(slots, move |a: T| rounding.whole_to_f32(a as i128))),
            Kind::F64 => integers!(from, T => one(slots, move |a: T| rounding.whole_to_f64(a as i128))),
            Kind::F16 if from.bytes() <= 4 && rounding == Round::Nearest => {
                integers!(from, T => one(slots, |a: T| f16_of(a as f64)))
            }
            _ => None,
        };
    }
    if !to.float() {
        if !round.ends_with('i') {
            return None;
        }
        let rounding = rounding?;
        let (kept, sign) = (to.bytes(), to.signed());
        // What is no number becomes 0 in 32 bits, and the top bit where either side has 64.
        let none = if from == Kind::F64 || kept == 8 { 1 << (8 * kept - 1) } else { 0 };
        return integers!(to, T => {
            let whole = move |x: f64| widen(if x.is_nan() { none } else { (rounding.whole(x) as T).bits() }, kept, width, sign);
            match from {
                Kind::F64 => one(slots, whole),
                Kind::F32 => one(slots, move |a: f32| whole(f64::from(a))),
                Kind::F16 => one(slots, move |a: u16| whole(f64::from(f16_to(a)))),
                _ => one(slots, move |a: u16| whole(f64::from(bf16_to(a)))),
            }
        });
    }
    let near = rounding == Some(Round::Nearest) && round == "rn";
    match (to, from, rounding) {
        (Kind::F32, Kind::F32, Some(r)) if round.ends_with('i') => Some(one(slots, move |a: f32| r.whole(f64::from(a)) as f32)),
        (Kind::F64, Kind::F64, Some(r)) if round.ends_with('i') => Some(one(slots, move |a: f64| r.whole(a))),
        (_, _, Some(_)) if round.ends_with('i') => None,
        (Kind::F32, Kind::F32, None) => Some(one(slots, |a: f32| a)),
        (Kind::F64, Kind::F64, None) => Some(one(slots, |a: f64| a)),
        (Kind::F32, Kind::F64, Some(r)) => Some(one(slots, move |a: f64| r.to_f32(a))),
        (Kind::F64, Kind::F32, None) => Some(one(slots, |a: f32| f64::from(a))),
        (Kind::F32, Kind::F16, None) => Some(one(slots, f16_to)),
        (Kind::F64, Kind::F16, None) => Some(one(slots, |a: u16| f64::from(f16_to(a)))),
        (Kind::F32, Kind::Bf16, None) => Some(one(slots, bf16_to)),
        (Kind::F16, Kind::F32, _) if near => Some(one(slots, |a: f32| f16_of(f64::from(a)))),
        (Kind::F16, Kind::F64, _) if near => Some(one(slots, f16_of)),
        (Kind::Bf16, Kind::F32, _) if near => Some(one(slots, bf16_of)),
        _ => None,
    }
}

/// The step of `cvt` that packs two numbers, the first in the high half.
pub(super) fn packed(slots: [usize; 3], to: &str, round: &str) -> Option<Step> {
    match (to, round) {
        ("bf16x2", "rn") => Some(two(slots, |a: f32, b: f32| u32::from(bf16_of(a)) << 16 | u32::from(bf16_of(b)))),
        ("f16x2", "rn") => {
            Some(two(slots, |a: f32, b: f32| u32::from(f16_of(f64::from(a))) << 16 | u32::from(f16_of(f64::from(b)))))
        }
        _ => None,
    }
}

/// The step of `mov` from several registers of `bytes` to one.
pub(super) fn joined(d: usize, from: Vec<usize>, bytes: usize) -> Step {
    Box::new(move |r, mask| {
        let v = std::array::from_fn(|l| {
            from.iter().enumerate().fold(0, |x, (i, s)| x | low(r.lanes[*s][l], bytes) << (8 * bytes * i))
        });
        r.put(d, mask, &v);
    })
}

/// The step of `mov` from one register to several of `bytes`.
pub(super) fn parted(to: Vec<usize>, from: usize, bytes: usize) -> Step {
    Box::new(move |r, mask| {
        let x = r.lanes[from];
        for (i, d) in to.iter().enumerate() {
            let v = x.map(|x| low(x >> (8 * bytes * i), bytes));
            r.put(*d, mask, &v);
        }
    })
}
