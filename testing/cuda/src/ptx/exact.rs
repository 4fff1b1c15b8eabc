//! Arithmetic with a rounding that is not the nearest, and floats of 16 bits.

use super::kinds::NAN32;

/// Where a number goes that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

impl Round {
    pub(crate) fn of(name: &str) -> Option<Round> {
        Some(match name {
            "rn" | "rni" => Round::Nearest,
            "rz" | "rzi" => Round::Zero,
            "rm" | "rmi" => Round::Down,
            "rp" | "rpi" => Round::Up,
            _ => return None,
        })
    }

    /// The number on the side that is asked for, `rounded` being the nearest and `above` how it
    /// compares to the exact one, whose sign is `negative`.
    fn settle<T>(self, rounded: T, above: std::cmp::Ordering, negative: bool, down: fn(T) -> T, up: fn(T) -> T) -> T {
        let to_down = self == Round::Down || self == Round::Zero && !negative;
        let to_up = self == Round::Up || self == Round::Zero && negative;
        match above {
            std::cmp::Ordering::Greater if to_down => down(rounded),
            std::cmp::Ordering::Less if to_up => up(rounded),
            _ => rounded,
        }
    }

    pub(crate) fn to_f32(self, x: f64) -> f32 {
        let r = x as f32;
        match f64::from(r).partial_cmp(&x) {
            Some(above) => self.settle(r, above, x < 0.0, f32::next_down, f32::next_up),
            None => r,
        }
    }

    pub(crate) fn whole_to_f32(self, x: i128) -> f32 {
        let r = x as f32;
        self.settle(r, (r as i128).cmp(&x), x < 0, f32::next_down, f32::next_up)
    }

    pub(crate) fn whole_to_f64(self, x: i128) -> f64 {
        let r = x as f64;
        self.settle(r, (r as i128).cmp(&x), x < 0, f64::next_down, f64::next_up)
    }

    pub(crate) fn whole(self, x: f64) -> f64 {
        match self {
            Round::Nearest => x.round_ties_even(),
            Round::Zero => x.trunc(),
            Round::Down => x.floor(),
            Round::Up => x.ceil(),
        }
    }

    pub(crate) fn add64(self, a: f64, b: f64) -> f64 {
        let s = a + b;
        if s == 0.0 && self == Round::Down && (a != 0.0 || a.is_sign_negative() != b.is_sign_negative()) {
            return -0.0;
        }
        if !s.is_finite() {
            return match self {
                _ if !(s.is_infinite() && a.is_finite() && b.is_finite()) => s,
                Round::Nearest => s,
                _ => self.settle(
                    s,
                    if s > 0.0 { std::cmp::Ordering::Greater } else { std::cmp::Ordering::Less },
                    s < 0.0,
                    f64::next_down,
                    f64::next_up,
                ),
            };
        }
        let error = rest_of_sum(a, b, s);
        self.settle(s, 0.0f64.total_cmp(&(error + 0.0)), s < 0.0, f64::next_down, f64::next_up)
    }

    pub(crate) fn fma32(self, a: f32, b: f32, c: f32) -> f32 {
        if self == Round::Nearest {
            return a.mul_add(b, c);
        }
        let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
        let s = p + c;
        if s == 0.0 {
            let apart = p.is_sign_negative() != c.is_sign_negative() || p != 0.0;
            return if apart { if self == Round::Down { -0.0 } else { 0.0 } } else { s as f32 };
        }
        if !s.is_finite() {
            return s as f32;
        }
        let error = rest_of_sum(p, c, s);
        // An odd last bit stands for all that follows, so that the second rounding is the only one.
        let odd = if error != 0.0 && s.to_bits() & 1 == 0 {
            let away = (error > 0.0) == (s > 0.0);
            f64::from_bits(if away { s.to_bits() + 1 } else { s.to_bits() - 1 })
        } else {
            s
        };
        self.to_f32(odd)
    }
}

/// What rounding took from the sum `s` of `a` and `b`.
fn rest_of_sum(a: f64, b: f64, s: f64) -> f64 {
    let c = s - a;
    (a - (s - c)) + (b - c)
}

pub(crate) fn bf16_of(x: f32) -> u16 {
    let b = x.to_bits();
    if x.is_nan() { 0x7fff } else { ((b + 0x7fff + (b >> 16 & 1)) >> 16) as u16 }
}

pub(crate) fn bf16_to(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

pub(crate) fn f16_to(x: u16) -> f32 {
    let (sign, power, rest) = (u32::from(x >> 15) << 31, u32::from(x >> 10 & 31), u32::from(x & 0x3ff));
    match (power, rest) {
        (31, 0) => f32::from_bits(sign | 0x7f80_0000),
        (31, _) => f32::from_bits(NAN32),
        (0, _) => f32::from_bits(sign | (rest as f32 * (1.0 / 16_777_216.0)).to_bits()),
        _ => f32::from_bits(sign | (power + 112) << 23 | rest << 13),
    }
}

pub(crate) fn f16_of(x: f64) -> u16 {
    let sign = u16::from(x.is_sign_negative()) << 15;
    let x = x.abs();
    if x.is_nan() {
        return 0x7fff;
    }
    if x >= 65520.0 {
        return sign | 0x7c00;
    }
    let power = ((x.to_bits() >> 52) as i64 - 1023).max(-14);
    // The last of 10 bits becomes the last before the point.
    let scaled = x * f64::from_bits(((1023 + 10 - power) as u64) << 52);
    let steps = scaled.round_ties_even() as u64;
    sign | (steps + ((power + 14) as u64) * 1024) as u16
}
