//! Elements in memory: typed slices behind one enum, and every conversion between element types.

use crate::cpu::narrow;
use crate::cpu::simd::simd;
use bytemuck::Pod;
use half::{bf16, f16};
use shardc_ir::dtype::DType;

/// A type that elements of a buffer have in memory. Truth values are `u8`, 0 or 1.
pub trait Element:
    Pod + Send + Sync + PartialEq + std::fmt::Debug + Cast<f64> + Cast<f32> + Cast<bf16> + Cast<f16> + Cast<i64> + Cast<u8>
{
    /// Its name in plans.
    const DTYPE: DType;
    /// The elements of `slice`, if they are of this type.
    fn of<'a>(slice: Slice<'a>) -> Option<&'a [Self]>;
    /// The elements of `slice`, if they are of this type.
    fn peek<'s>(slice: &'s SliceMut<'_>) -> Option<&'s [Self]>;
    /// Moves the elements out of `slice`, leaving nothing, if they are of this type.
    fn take<'a>(slice: &mut SliceMut<'a>) -> Option<&'a mut [Self]>;
    /// Wraps elements.
    fn wrap(slice: &[Self]) -> Slice<'_>;
    /// Wraps elements.
    fn wrap_mut(slice: &mut [Self]) -> SliceMut<'_>;
}

/// Elements that a kernel reads.
#[derive(Debug, Clone, Copy)]
pub enum Slice<'a> {
    /// 64-bit floats.
    F64(&'a [f64]),
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 16-bit floats with the exponent of f32.
    BF16(&'a [bf16]),
    /// 16-bit floats of IEEE 754.
    F16(&'a [f16]),
    /// 64-bit integers.
    I64(&'a [i64]),
    /// Truth values.
    Bool(&'a [u8]),
}

/// Elements that a kernel writes.
#[derive(Debug)]
pub enum SliceMut<'a> {
    /// 64-bit floats.
    F64(&'a mut [f64]),
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// 16-bit floats with the exponent of f32.
    BF16(&'a mut [bf16]),
    /// 16-bit floats of IEEE 754.
    F16(&'a mut [f16]),
    /// 64-bit integers.
    I64(&'a mut [i64]),
    /// Truth values.
    Bool(&'a mut [u8]),
}

/// Runs an expression with the typed elements of a [`Slice`] or [`SliceMut`].
macro_rules! each_type {
    ($kind:ident, $slice:expr, $elements:ident => $body:expr) => {
        match $slice {
            $crate::cpu::element::$kind::F64($elements) => $body,
            $crate::cpu::element::$kind::F32($elements) => $body,
            $crate::cpu::element::$kind::BF16($elements) => $body,
            $crate::cpu::element::$kind::F16($elements) => $body,
            $crate::cpu::element::$kind::I64($elements) => $body,
            $crate::cpu::element::$kind::Bool($elements) => $body,
        }
    };
}
pub(crate) use each_type;

impl<'a> Slice<'a> {
    /// Reads `bytes` as elements of `dtype`; trailing bytes that fill no element are left out.
    /// `None` if they are misaligned.
    pub fn from_bytes(dtype: DType, bytes: &'a [u8]) -> Option<Slice<'a>> {
        let bytes = &bytes[..bytes.len() - bytes.len() % dtype.bytes() as usize];
        Some(match dtype {
            DType::F64 => Slice::F64(typed(bytes)?),
            DType::F32 => Slice::F32(typed(bytes)?),
            DType::BF16 => Slice::BF16(typed(bytes)?),
            DType::F16 => Slice::F16(typed(bytes)?),
            DType::I64 => Slice::I64(typed(bytes)?),
            DType::Bool => Slice::Bool(bytes),
        })
    }

    /// The elements from `at` on.
    pub fn from(self, at: usize) -> Slice<'a> {
        each_type!(Slice, self, s => Element::wrap(&s[at..]))
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        each_type!(Slice, self, s => s.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> SliceMut<'a> {
    /// Reads `bytes` as elements of `dtype`; trailing bytes that fill no element are left out.
    /// `None` if they are misaligned.
    pub fn from_bytes(dtype: DType, bytes: &'a mut [u8]) -> Option<SliceMut<'a>> {
        let whole = bytes.len() - bytes.len() % dtype.bytes() as usize;
        let bytes = &mut bytes[..whole];
        Some(match dtype {
            DType::F64 => SliceMut::F64(typed_mut(bytes)?),
            DType::F32 => SliceMut::F32(typed_mut(bytes)?),
            DType::BF16 => SliceMut::BF16(typed_mut(bytes)?),
            DType::F16 => SliceMut::F16(typed_mut(bytes)?),
            DType::I64 => SliceMut::I64(typed_mut(bytes)?),
            DType::Bool => SliceMut::Bool(bytes),
        })
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        each_type!(SliceMut, self, s => s.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, to be read.
    pub fn as_slice(&self) -> Slice<'_> {
        each_type!(SliceMut, self, s => Element::wrap(s))
    }

    /// The same elements, for a while.
    pub fn reborrow(&mut self) -> SliceMut<'_> {
        each_type!(SliceMut, self, s => Element::wrap_mut(s))
    }

    /// The first `at` elements, and the rest.
    pub fn split_at(self, at: usize) -> (SliceMut<'a>, SliceMut<'a>) {
        fn split<T: Element>(slice: &mut [T], at: usize) -> (SliceMut<'_>, SliceMut<'_>) {
            let (head, tail) = slice.split_at_mut(at);
            (T::wrap_mut(head), T::wrap_mut(tail))
        }
        each_type!(SliceMut, self, s => split(s, at))
    }
}

fn typed<T: Pod>(bytes: &[u8]) -> Option<&[T]> {
    if bytes.is_empty() { Some(&[]) } else { bytemuck::try_cast_slice(bytes).ok() }
}

fn typed_mut<T: Pod>(bytes: &mut [u8]) -> Option<&mut [T]> {
    if bytes.is_empty() { Some(&mut []) } else { bytemuck::try_cast_slice_mut(bytes).ok() }
}

macro_rules! element {
    ($type:ty, $variant:ident) => {
        impl Element for $type {
            const DTYPE: DType = DType::$variant;
            fn of<'a>(slice: Slice<'a>) -> Option<&'a [Self]> {
                if let Slice::$variant(s) = slice { Some(s) } else { None }
            }
            fn peek<'s>(slice: &'s SliceMut<'_>) -> Option<&'s [Self]> {
                if let SliceMut::$variant(s) = slice { Some(s) } else { None }
            }
            fn take<'a>(slice: &mut SliceMut<'a>) -> Option<&'a mut [Self]> {
                if let SliceMut::$variant(s) = slice { Some(std::mem::take(s)) } else { None }
            }
            fn wrap(slice: &[Self]) -> Slice<'_> {
                Slice::$variant(slice)
            }
            fn wrap_mut(slice: &mut [Self]) -> SliceMut<'_> {
                SliceMut::$variant(slice)
            }
        }
    };
}
element!(f64, F64);
element!(f32, F32);
element!(bf16, BF16);
element!(f16, F16);
element!(i64, I64);
element!(u8, Bool);

/// Conversion of one element, as ONNX's Cast does it: floats truncate toward zero, and what is not
/// 0 is true.
pub trait Cast<U>: Copy {
    /// The value in the other type.
    fn cast(self) -> U;
}

macro_rules! cast_as {
    ($($from:ty => $to:ty),* $(,)?) => {
        $(impl Cast<$to> for $from {
            #[inline(always)]
            fn cast(self) -> $to {
                self as $to
            }
        })*
    };
}
cast_as!(f64 => f64, f64 => f32, f64 => i64, f32 => f64, f32 => f32, f32 => i64, i64 => f64, i64 => f32, i64 => i64);

macro_rules! cast_truth {
    ($($type:ty),*) => {
        $(impl Cast<u8> for $type {
            #[inline(always)]
            fn cast(self) -> u8 {
                u8::from(self != (0 as $type))
            }
        })*
    };
}
cast_truth!(f64, f32, i64, u8);

macro_rules! cast_from_truth {
    ($($type:ty),*) => {
        $(impl Cast<$type> for u8 {
            #[inline(always)]
            fn cast(self) -> $type {
                u8::from(self != 0) as $type
            }
        })*
    };
}
cast_from_truth!(f64, f32, i64);

macro_rules! cast_through_f32 {
    ($half:ty, $widen:path, $narrow:path) => {
        impl Cast<$half> for $half {
            #[inline(always)]
            fn cast(self) -> $half {
                self
            }
        }
        impl Cast<f32> for $half {
            #[inline(always)]
            fn cast(self) -> f32 {
                $widen(self)
            }
        }
        impl Cast<$half> for f32 {
            #[inline(always)]
            fn cast(self) -> $half {
                $narrow(self)
            }
        }
        cast_through_f32!(@both $half => f64, i64, u8);
    };
    (@both $half:ty => $($type:ty),*) => {
        $(impl Cast<$type> for $half {
            #[inline(always)]
            fn cast(self) -> $type {
                Cast::<f32>::cast(self).cast()
            }
        }
        impl Cast<$half> for $type {
            #[inline(always)]
            fn cast(self) -> $half {
                Cast::<f32>::cast(self).cast()
            }
        })*
    };
}
cast_through_f32!(bf16, narrow::bf16_to_f32, narrow::f32_to_bf16);
cast_through_f32!(f16, narrow::f16_to_f32, narrow::f32_to_f16);

impl Cast<f16> for bf16 {
    #[inline(always)]
    fn cast(self) -> f16 {
        Cast::<f32>::cast(self).cast()
    }
}

impl Cast<bf16> for f16 {
    #[inline(always)]
    fn cast(self) -> bf16 {
        Cast::<f32>::cast(self).cast()
    }
}

/// `out[i] = data[start + i * stride]`, converted.
pub fn load<S: Element + Cast<T>, T: Element>(data: &[S], start: isize, stride: isize, out: &mut [T]) {
    match stride {
        1 => convert(&data[start as usize..][..out.len()], out),
        0 => out.fill(data[start as usize].cast()),
        _ => {
            for (i, out) in out.iter_mut().enumerate() {
                *out = data[(start + i as isize * stride) as usize].cast();
            }
        }
    }
}

/// An element that converts to another.
pub trait Converts<T>: Element + Cast<T> {}

impl<S: Element + Cast<T>, T> Converts<T> for S {}

simd! {
    /// `out[i] = values[i]`, converted.
    pub fn convert<S: Converts<T>, T: Element>(values: &[S], out: &mut [T]) {
        for (out, value) in out.iter_mut().zip(values) {
            *out = value.cast();
        }
    }
}
