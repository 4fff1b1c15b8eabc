//! Arithmetic and bits: from an opcode to the step that computes it.

use super::exact::Round;
use super::kinds::{Kind, Lane, floats, integers};
use super::lanes::Registers;
use super::lanes::{Step, four, one, three, two};

/// An opcode's parts between its name and its type, and its arguments' slots, the result first.
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    pub(super) marks: &'a [&'a str],
    pub(super) kind: Kind,
    pub(super) slots: &'a [usize],
}

impl Call<'_> {
    fn is(&self, marks: &[&str]) -> bool {
        self.marks == marks
    }

    fn slots<const N: usize>(&self) -> Option<[usize; N]> {
        self.slots.try_into().ok()
    }
}

/// The step of an arithmetic opcode; `None` where it is not known.
pub(super) fn step(c: &Call) -> Option<Step> {
    match c.slots.len() {
        2 => unary(c),
        3 => {
            if c.kind.float() {
                float_pair(c)
            } else {
                whole_pair(c)
            }
        }
        4 => triple(c),
        5 => quadruple(c),
        _ => None,
    }
}

fn unary(c: &Call) -> Option<Step> {
    let s = c.slots()?;
    let k = c.kind;
    match (c.name, c.marks) {
        ("abs", []) if k.float() => floats!(k, T => one(s, |a: T| a.abs())),
        ("neg", []) if k.float() => floats!(k, T => one(s, |a: T| -a)),
        ("abs", []) => integers!(k, T => one(s, move |a: T| whole_abs(a.bits(), k))),
        ("neg", []) => integers!(k, T => one(s, |a: T| a.wrapping_neg())),
        ("not", []) => integers!(k, T => one(s, |a: T| !a)),
        ("popc", []) => integers!(k, T => one(s, |a: T| a.count_ones())),
        ("clz", []) => integers!(k, T => one(s, |a: T| a.leading_zeros())),
        ("brev", []) => integers!(k, T => one(s, |a: T| a.reverse_bits())),
        ("bfind", marks @ ([] | ["shiftamt"])) => {
            let shift = !marks.is_empty();
            integers!(k, T => one(s, move |a: T| {
                // The highest bit that is not the sign's.
                let a = if k.signed() && (a.bits() >> (8 * k.bytes() - 1)) == 1 { !a } else { a };
                let zeros = a.leading_zeros();
                if zeros == T::BITS { u32::MAX } else if shift { zeros } else { T::BITS - 1 - zeros }
            }))
        }
        ("sqrt", ["rn"]) => floats!(k, T => one(s, |a: T| a.sqrt())),
        ("rcp", ["rn"]) => floats!(k, T => one(s, |a: T| 1.0 / a)),
        // A GPU may be a unit off in the last place; `fmodf` corrects what comes of it.
        ("rcp", ["approx", "ftz"]) if k == Kind::F32 => Some(one(s, |a: f32| flushed(1.0 / flushed(a)))),
        // A GPU may be two units off in the last place, and so kernels that have it are held to
        // tolerances.
        ("ex2", ["approx", "ftz"]) if k == Kind::F32 => Some(one(s, |a: f32| flushed(f64::from(flushed(a)).exp2() as f32))),
        _ => None,
    }
}

fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

fn whole_abs(bits: u64, k: Kind) -> u64 {
    let x = super::kinds::widen(bits, k.bytes(), 8, k.signed()) as i64;
    super::kinds::low(x.unsigned_abs(), k.bytes())
}

/// The greater, where +0 is above -0 and numbers win over what is none.
macro_rules! extreme {
    ($t:ty, $a:expr, $b:expr, $less:expr) => {{
        let (a, b): ($t, $t) = ($a, $b);
        if a.is_nan() {
            b
        } else if b.is_nan() {
            a
        } else if a == b {
            if a.is_sign_negative() == $less { a } else { b }
        } else if (a < b) == $less {
            a
        } else {
            b
        }
    }};
}

fn float_pair(c: &Call) -> Option<Step> {
    let s = c.slots()?;
    let k = c.kind;
    let round = match c.marks {
        [] => Some(Round::Nearest),
        [m] if !m.ends_with('i') => Round::of(m),
        _ => None,
    };
    match (c.name, round) {
        ("add", Some(Round::Nearest)) => floats!(k, T => two(s, |a: T, b: T| a + b)),
        ("sub", Some(Round::Nearest)) => floats!(k, T => two(s, |a: T, b: T| a - b)),
        ("mul", Some(Round::Nearest)) => floats!(k, T => two(s, |a: T, b: T| a * b)),
        ("div", Some(Round::Nearest)) if !c.marks.is_empty() => floats!(k, T => two(s, |a: T, b: T| a / b)),
        // A GPU may be two units off in the last place; `fmodf` corrects what comes of it.
        ("div", None) if c.is(&["approx"]) && k == Kind::F32 => Some(two(s, |a: f32, b: f32| a / b)),
        ("add", Some(r)) if k == Kind::F32 => Some(two(s, move |a: f32, b: f32| r.fma32(a, 1.0, b))),
        ("sub", Some(r)) if k == Kind::F32 => Some(two(s, move |a: f32, b: f32| r.fma32(a, 1.0, -b))),
        ("mul", Some(r)) if k == Kind::F32 => Some(two(s, move |a: f32, b: f32| r.to_f32(f64::from(a) * f64::from(b)))),
        ("add", Some(r)) if k == Kind::F64 => Some(two(s, move |a: f64, b: f64| r.add64(a, b))),
        ("sub", Some(r)) if k == Kind::F64 => Some(two(s, move |a: f64, b: f64| r.add64(a, -b))),
        ("min", _) if c.is(&[]) => floats!(k, T => two(s, |a: T, b: T| extreme!(T, a, b, true))),
        ("max", _) if c.is(&[]) => floats!(k, T => two(s, |a: T, b: T| extreme!(T, a, b, false))),
        ("min", _) if c.is(&["NaN"]) => {
            floats!(k, T => two(s, |a: T, b: T| if a.is_nan() || b.is_nan() { T::NAN } else { extreme!(T, a, b, true) }))
        }
        ("max", _) if c.is(&["NaN"]) => {
            floats!(k, T => two(s, |a: T, b: T| if a.is_nan() || b.is_nan() { T::NAN } else { extreme!(T, a, b, false) }))
        }
        // The sign of the first and the size of the second; also of what is not a number.
        ("copysign", _) if c.is(&[]) && k == Kind::F32 => Some(two(s, |a: u32, b: u32| a & 0x8000_0000 | b & 0x7fff_ffff)),
        ("copysign", _) if c.is(&[]) => Some(two(s, |a: u64, b: u64| a >> 63 << 63 | b & (u64::MAX >> 1))),
        _ => None,
    }
}

fn whole_pair(c: &Call) -> Option<Step> {
    let s = c.slots()?;
    let k = c.kind;
    let bits = 8 * k.bytes() as u32;
    match (c.name, c.marks) {
        ("add", []) => integers!(k, T => two(s, |a: T, b: T| a.wrapping_add(b))),
        ("sub", []) => integers!(k, T => two(s, |a: T, b: T| a.wrapping_sub(b))),
        ("mul", ["lo"]) => integers!(k, T => two(s, |a: T, b: T| a.wrapping_mul(b))),
        ("mul", ["hi"]) => integers!(k, T => two(s, move |a: T, b: T| high(a as i128, b as i128, bits))),
        ("mul", ["wide"]) if bits < 64 => integers!(k, T => two(s, move |a: T, b: T| wide(a as i128, b as i128, 0, bits))),
        ("mul24", ["lo"]) => Some(two(s, move |a: u32, b: u32| low24(a, k).wrapping_mul(low24(b, k)))),
        // Division by 0 gives all ones, and the number itself as the remainder.
        ("div", []) => integers!(k, T => two(s, |a: T, b: T| if b == 0 { !0 } else { a.wrapping_div(b) })),
        ("rem", []) => integers!(k, T => two(s, |a: T, b: T| if b == 0 { a } else { a.wrapping_rem(b) })),
        ("min", []) => integers!(k, T => two(s, |a: T, b: T| a.min(b))),
        ("max", []) => integers!(k, T => two(s, |a: T, b: T| a.max(b))),
        ("and", []) => integers!(k, T => two(s, |a: T, b: T| a & b)),
        ("or", []) => integers!(k, T => two(s, |a: T, b: T| a | b)),
        ("xor", []) => integers!(k, T => two(s, |a: T, b: T| a ^ b)),
        ("shl", []) => integers!(k, T => two(s, |a: T, b: u32| a.checked_shl(b).unwrap_or(0))),
        ("shr", []) => integers!(k, T => two(s, move |a: T, b: u32| {
            // Beyond the last bit there are only signs.
            let sign = (a >> (T::BITS - 1)).wrapping_mul(T::from(k.signed()));
            a.checked_shr(b).unwrap_or(sign)
        })),
        _ => None,
    }
}

fn high(a: i128, b: i128, bits: u32) -> u64 {
    // Products of two numbers of 64 bits without sign are past the sign of 128 bits, and wrap.
    super::kinds::low(((a as u128).wrapping_mul(b as u128) >> bits) as u64, bits as usize / 8)
}

fn wide(a: i128, b: i128, c: i128, bits: u32) -> u64 {
    super::kinds::low((a * b).wrapping_add(c) as u64, bits as usize / 4)
}

fn low24(x: u32, k: Kind) -> u32 {
    if k.signed() { ((x << 8) as i32 >> 8) as u32 } else { x & 0xff_ffff }
}

fn triple(c: &Call) -> Option<Step> {
    let s = c.slots()?;
    let [d, a, b, e] = s;
    let k = c.kind;
    let bits = 8 * k.bytes() as u32;
    match (c.name, c.marks) {
        ("mad", ["lo"]) => integers!(k, T => three(s, |a: T, b: T, c: T| a.wrapping_mul(b).wrapping_add(c))),
        ("mad", ["hi"]) => integers!(k, T => three(s, move |a: T, b: T, c: T| {
            super::kinds::low(high(a as i128, b as i128, bits).wrapping_add(c.bits()), k.bytes())
        })),
        ("mad", ["wide"]) if bits < 64 => {
            integers!(k, T => three(s, move |a: T, b: T, c: u64| wide(a as i128, b as i128, i128::from(c), bits)))
        }
        ("mad24", ["lo"]) => Some(three(s, move |a: u32, b: u32, c: u32| low24(a, k).wrapping_mul(low24(b, k)).wrapping_add(c))),
        ("fma" | "mad", ["rn"]) if k.float() => floats!(k, T => three(s, |a: T, b: T, c: T| a.mul_add(b, c))),
        ("fma", [r]) if k == Kind::F32 && !r.ends_with('i') => {
            let r = Round::of(r)?;
            Some(three(s, move |a: f32, b: f32, c: f32| r.fma32(a, b, c)))
        }
        ("dp2a", ["lo", "u32"]) if k == Kind::U32 => Some(three(s, |a: u32, b: u32, c: u32| {
            let low = (a & 0xffff).wrapping_mul(b & 0xff);
            c.wrapping_add(low).wrapping_add((a >> 16).wrapping_mul(b >> 8 & 0xff))
        })),
        ("dp4a", ["u32"]) if k == Kind::U32 => Some(three(s, |a: u32, b: u32, c: u32| {
            let bytes = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            bytes.fold(c, |sum, (a, b)| sum.wrapping_add(u32::from(a) * u32::from(b)))
        })),
        ("bfe", []) if k.bytes() >= 4 => Some(three(s, move |a: u64, b: u32, c: u32| bit_field(a, b & 255, c & 255, k))),
        ("prmt", []) => Some(three([d, a, b, e], permuted)),
        ("shf", ["l", how]) => {
            let wrap = wraps(how)?;
            Some(three(s, move |a: u32, b: u32, c: u32| {
                let x = u64::from(b) << 32 | u64::from(a);
                (x << if wrap { c & 31 } else { c.min(32) } >> 32) as u32
            }))
        }
        ("shf", ["r", how]) => {
            let wrap = wraps(how)?;
            Some(three(s, move |a: u32, b: u32, c: u32| {
                let x = u64::from(b) << 32 | u64::from(a);
                (x >> if wrap { c & 31 } else { c.min(32) }) as u32
            }))
        }
        // The first where the third is not below 0.
        ("slct", ["s32"]) => integers!(k.plain(), T => three(s, |a: T, b: T, c: i32| if c >= 0 { a } else { b })),
        ("slct", ["f32"]) => integers!(k.plain(), T => three(s, |a: T, b: T, c: f32| if c >= 0.0 { a } else { b })),
        _ => None,
    }
}

fn wraps(how: &str) -> Option<bool> {
    match how {
        "wrap" => Some(true),
        "clamp" => Some(false),
        _ => None,
    }
}

fn bit_field(a: u64, from: u32, count: u32, k: Kind) -> u64 {
    let top = 8 * k.bytes() as u32 - 1;
    let bit = |i: u32| a >> i.min(63) & 1;
    let sign = if !k.signed() || count == 0 { 0 } else { bit((from + count - 1).min(top)) };
    (0..=top).fold(0, |x, i| x | (if i < count && from + i <= top { bit(from + i) } else { sign }) << i)
}

fn permuted(a: u32, b: u32, how: u32) -> u32 {
    let x = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |y, i| {
        let pick = how >> (4 * i) & 15;
        let byte = (x >> (8 * (pick & 7))) as u8;
        let byte = if pick & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        y | u32::from(byte) << (8 * i)
    })
}

fn quadruple(c: &Call) -> Option<Step> {
    let s: [usize; 5] = c.slots()?;
    match (c.name, c.marks, c.kind) {
        ("bfi", [], Kind::U32) => Some(four(s, |a: u32, b: u32, p, n| inserted(u64::from(a), u64::from(b), p, n, 32) as u32)),
        ("bfi", [], Kind::U64) => Some(four(s, |a: u64, b: u64, p, n| inserted(a, b, p, n, 64))),
        ("lop3", [], Kind::U32) => Some(four(s, |a: u32, b: u32, c, table| {
            (0..8).filter(|i| table >> i & 1 == 1).fold(0, |x, i: u32| {
                let side = |v: u32, bit: u32| if i & bit != 0 { v } else { !v };
                x | side(a, 4) & side(b, 2) & side(c, 1)
            })
        })),
        _ => None,
    }
}

fn inserted(a: u64, b: u64, from: u32, count: u32, bits: u32) -> u64 {
    let (from, count) = (from & 255, count & 255);
    if from >= bits || count == 0 {
        return b;
    }
    let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    b & !(ones << from) | (a & ones) << from
}

/// The step of `mov`, by the bytes of its type.
pub(super) fn moved(kind: Kind, slots: [usize; 2]) -> Option<Step> {
    integers!(kind.plain(), T => one(slots, |a: T| a))
}

/// The step of `selp`.
pub(super) fn selected(d: usize, a: usize, b: usize, by: super::lanes::Guard, kind: Kind) -> Step {
    let bytes = kind.bytes();
    Box::new(move |r: &mut Registers, mask| {
        let first = r.holds(by);
        let (x, y) = (&r.lanes[a], &r.lanes[b]);
        let v = std::array::from_fn(|l| super::kinds::low(if first >> l & 1 == 1 { x[l] } else { y[l] }, bytes));
        r.put(d, mask, &v);
    })
}
