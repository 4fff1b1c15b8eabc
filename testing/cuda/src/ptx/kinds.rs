//! The types of PTX values, and how registers of 64 bits hold them.

/// The type of a value. Types of plain bits are held as unsigned numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Pred,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Kind {
    pub(super) fn of(name: &str) -> Option<Kind> {
        Some(match name {
            "pred" => Kind::Pred,
            "u8" | "b8" => Kind::U8,
            "u16" | "b16" => Kind::U16,
            "u32" | "b32" => Kind::U32,
            "u64" | "b64" => Kind::U64,
            "s8" => Kind::S8,
            "s16" => Kind::S16,
            "s32" => Kind::S32,
            "s64" => Kind::S64,
            "f16" => Kind::F16,
            "bf16" => Kind::Bf16,
            "f32" => Kind::F32,
            "f64" => Kind::F64,
            _ => return None,
        })
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Kind::Pred | Kind::U8 | Kind::S8 => 1,
            Kind::U16 | Kind::S16 | Kind::F16 | Kind::Bf16 => 2,
            Kind::U32 | Kind::S32 | Kind::F32 => 4,
            Kind::U64 | Kind::S64 | Kind::F64 => 8,
        }
    }

    pub(super) fn signed(self) -> bool {
        matches!(self, Kind::S8 | Kind::S16 | Kind::S32 | Kind::S64)
    }

    pub(super) fn float(self) -> bool {
        matches!(self, Kind::F16 | Kind::Bf16 | Kind::F32 | Kind::F64)
    }

    /// The unsigned number of as many bytes.
    pub(super) fn plain(self) -> Kind {
        match self.bytes() {
            1 => Kind::U8,
            2 => Kind::U16,
            4 => Kind::U32,
            _ => Kind::U64,
        }
    }
}

/// The low `bytes` of `x`.
pub(super) fn low(x: u64, bytes: usize) -> u64 {
    if bytes >= 8 { x } else { x & ((1 << (8 * bytes)) - 1) }
}

/// The number of `from` bytes in `x`, in `to` bytes: with its sign repeated where `signed`.
pub(super) fn widen(x: u64, from: usize, to: usize, signed: bool) -> u64 {
    let free = 64 - 8 * from.min(8) as u32;
    let x = x << free;
    low(if signed { ((x as i64) >> free) as u64 } else { x >> free }, to)
}

/// A Rust type whose bits a register holds.
pub(super) trait Lane: Copy + 'static {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! lanes {
    ($($t:ty => $u:ty),*) => {$(
        impl Lane for $t {
            fn of(bits: u64) -> Self {
                bits as $t
            }
            fn bits(self) -> u64 {
                self as $u as u64
            }
        }
    )*};
}
lanes!(u8 => u8, u16 => u16, u32 => u32, u64 => u64, i8 => u8, i16 => u16, i32 => u32, i64 => u64);

/// The number that a GPU gives for every f32 that is none.
pub(super) const NAN32: u32 = 0x7fff_ffff;

impl Lane for f32 {
    fn of(bits: u64) -> Self {
        f32::from_bits(bits as u32)
    }
    fn bits(self) -> u64 {
        u64::from(if self.is_nan() { NAN32 } else { self.to_bits() })
    }
}

impl Lane for f64 {
    fn of(bits: u64) -> Self {
        f64::from_bits(bits)
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

/// `$make` with `$t` the Rust type of an integer kind; `None` for other kinds.
macro_rules! integers {
    ($kind:expr, $t:ident => $make:expr) => {
        match $kind {
            Kind::U8 => Some({
                type $t = u8;
                $make
            }),
            Kind::U16 => Some({
                type $t = u16;
                $make
            }),
            Kind::U32 => Some({
                type $t = u32;
                $make
            }),
            Kind::U64 => Some({
                type $t = u64;
                $make
            }),
            Kind::S8 => Some({
                type $t = i8;
                $make
            }),
            Kind::S16 => Some({
                type $t = i16;
                $make
            }),
            Kind::S32 => Some({
                type $t = i32;
                $make
            }),
            Kind::S64 => Some({
                type $t = i64;
                $make
            }),
            _ => None,
        }
    };
}

/// `$make` with `$t` the Rust type of f32 or f64; `None` for other kinds.
macro_rules! floats {
    ($kind:expr, $t:ident => $make:expr) => {
        match $kind {
            Kind::F32 => Some({
                type $t = f32;
                $make
            }),
            Kind::F64 => Some({
                type $t = f64;
                $make
            }),
            _ => None,
        }
    };
}

pub(super) use {floats, integers};
