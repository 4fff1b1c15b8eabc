//! Arrays as files hold them. Elements are converted when a batch is cut, so that data takes the
//! memory that it takes on disk.

use crate::tensor::Tensor;
use half::{bf16, f16};
use shardc_ir::dtype::DType;
use shardc_ir::types::Type;
use std::fmt;

/// The element types of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// IEEE half precision.
    F16,
    /// The upper half of [`Element::F32`].
    Bf16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// A byte: 0 is false.
    Bool,
}

/// One element, exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Of a float type.
    Real(f64),
    /// Of an integer type; truth values are 0 and 1.
    Whole(i128),
}

/// Short, for people.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(n) => write!(f, "{n}"),
            Number::Real(x) if *x == 0.0 || (1e-3..1e5).contains(&x.abs()) => write!(f, "{x:.4}"),
            Number::Real(x) => write!(f, "{x:.3e}"),
        }
    }
}

/// Element type and shape of an array that may not be read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The element type.
    pub element: Element,
    /// Sizes.
    pub shape: Vec<u64>,
}

/// The values of an array, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Range {
    /// The least and the greatest that are finite.
    pub ends: Option<(Number, Number)>,
    /// How many elements are no finite numbers.
    pub not_finite: u64,
    mean: f64,
    finite: u64,
}

/// A row-major array, little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// Element type and sizes, as many as there are bytes for.
    pub header: Header,
    /// The elements.
    pub bytes: Vec<u8>,
}

impl Element {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Element::I8 | Element::U8 | Element::Bool => 1,
            Element::F16 | Element::Bf16 | Element::I16 | Element::U16 => 2,
            Element::F32 | Element::I32 | Element::U32 => 4,
            Element::F64 | Element::I64 | Element::U64 => 8,
        }
    }

    /// Whether it is a float type.
    pub fn is_float(self) -> bool {
        matches!(self, Element::F16 | Element::Bf16 | Element::F32 | Element::F64)
    }
}

impl Header {
    /// The type of tensors that holds the elements, integers in 64 bits.
    pub fn widened(&self) -> Type {
        let dtype = match self.element {
            Element::F64 => DType::F64,
            float if float.is_float() => DType::F32,
            Element::Bool => DType::Bool,
            _ => DType::I64,
        };
        Type::new(dtype, self.shape.clone())
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
            Element::F32 => "f32",
            Element::F64 => "f64",
            Element::I8 => "i8",
            Element::I16 => "i16",
            Element::I32 => "i32",
            Element::I64 => "i64",
            Element::U8 => "u8",
            Element::U16 => "u16",
            Element::U32 => "u32",
            Element::U64 => "u64",
            Element::Bool => "bool",
        })
    }
}

macro_rules! exact {
    ($kind:ident, $wide:ty: $($type:ty),*) => {
        $(impl From<$type> for Number {
            fn from(x: $type) -> Number {
                Number::$kind(<$wide>::from(x))
            }
        })*
    };
}
exact!(Real, f64: f32, f64);
exact!(Whole, i128: i8, i16, i32, i64, u8, u16, u32, u64);

/// Gives `$body` an iterator over the elements of `$bytes`, each in the type that the file has, or
/// one that holds it exactly.
macro_rules! with_elements {
    ($element:expr, $bytes:expr, |$elements:ident| $body:expr) => {{
        macro_rules! of {
            ($from:expr) => {{
                let $elements = $bytes.as_chunks().0.iter().map(|b| $from(*b));
                $body
            }};
        }
        match $element {
            Element::F16 => of!(|b| f16::from_le_bytes(b).to_f32()),
            Element::Bf16 => of!(|b| bf16::from_le_bytes(b).to_f32()),
            Element::F32 => of!(f32::from_le_bytes),
            Element::F64 => of!(f64::from_le_bytes),
            Element::I8 => of!(i8::from_le_bytes),
            Element::I16 => of!(i16::from_le_bytes),
            Element::I32 => of!(i32::from_le_bytes),
            Element::I64 => of!(i64::from_le_bytes),
            Element::U8 => of!(u8::from_le_bytes),
            Element::U16 => of!(u16::from_le_bytes),
            Element::U32 => of!(u32::from_le_bytes),
            Element::U64 => of!(u64::from_le_bytes),
            Element::Bool => of!(|b: [u8; 1]| u8::from(b[0] != 0)),
        }
    }};
}

impl Range {
    /// Adds the elements in `bytes`.
    pub fn add(&mut self, element: Element, bytes: &[u8]) {
        with_elements!(element, bytes, |elements| elements.map(Number::from).for_each(|number| self.add_number(number)));
    }

    fn add_number(&mut self, number: Number) {
        let real = number.real();
        if !real.is_finite() {
            self.not_finite += 1;
            return;
        }
        self.finite += 1;
        // A running mean has no sum that overflows.
        self.mean += (real - self.mean) / self.finite as f64;
        self.ends = Some(match self.ends {
            None => (number, number),
            Some((least, greatest)) => {
                (if number.is_below(least) { number } else { least }, if greatest.is_below(number) { number } else { greatest })
            }
        });
    }

    /// The mean of the finite ones.
    pub fn mean(&self) -> Option<f64> {
        (self.finite > 0).then_some(self.mean)
    }
}

impl Number {
    /// As a float, rounded where it must be.
    pub fn real(self) -> f64 {
        match self {
            Number::Real(x) => x,
            Number::Whole(n) => n as f64,
        }
    }

    fn is_below(self, other: Number) -> bool {
        match (self, other) {
            (Number::Whole(a), Number::Whole(b)) => a < b,
            _ => self.real() < other.real(),
        }
    }
}

impl Array {
    /// The position of the first element that is `bad`, and the element.
    pub fn find(&self, bad: impl Fn(Number) -> bool) -> Option<(usize, Number)> {
        with_elements!(self.header.element, self.bytes, |elements| {
            elements.map(Number::from).enumerate().find(|(_, number)| bad(*number))
        })
    }

    /// Appends the bytes of `row` along dimension 0 as elements of `dtype`, converted as Rust's
    /// `as` does.
    pub fn add_row(&self, row: u64, dtype: DType, out: &mut Vec<u8>) {
        let elements: u64 = self.header.shape.iter().skip(1).product();
        let size = (elements * self.header.element.bytes()) as usize;
        self.convert(&self.bytes[row as usize * size..][..size], dtype, out);
    }

    /// The whole array in the type of tensors that holds its elements, integers in 64 bits.
    pub fn to_tensor(&self) -> Tensor {
        let Type { dtype, shape } = self.header.widened();
        let mut bytes = vec![];
        self.convert(&self.bytes, dtype, &mut bytes);
        Tensor { dtype, shape, bytes }
    }

    /// Appends the elements in `bytes` to `out`.
    fn convert(&self, bytes: &[u8], dtype: DType, out: &mut Vec<u8>) {
        macro_rules! cast {
            ($to:ty) => {
                with_elements!(self.header.element, bytes, |elements| {
                    elements.for_each(|x| out.extend_from_slice(&(x as $to).to_le_bytes()))
                })
            };
        }
        match (self.header.element, dtype) {
            (Element::F64, DType::F64) | (Element::F32, DType::F32) | (Element::I64, DType::I64) => out.extend_from_slice(bytes),
            (_, DType::BF16) => with_elements!(self.header.element, bytes, |elements| {
                elements.for_each(|x| out.extend_from_slice(&bf16::from_f32(x as f32).to_le_bytes()))
            }),
            (_, DType::F16) => with_elements!(self.header.element, bytes, |elements| {
                elements.for_each(|x| out.extend_from_slice(&f16::from_f32(x as f32).to_le_bytes()))
            }),
            (_, DType::F64) => cast!(f64),
            (_, DType::F32) => cast!(f32),
            (_, DType::I64) => cast!(i64),
            (_, DType::Bool) => with_elements!(self.header.element, bytes, |elements| {
                elements.for_each(|x| out.push(u8::from(Number::from(x) != Number::Whole(0))))
            }),
        }
    }
}
