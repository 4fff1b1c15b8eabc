//! Conv: convolutions and their gradients.
//!
//! One that sees single inputs is a contraction as it stands. Neighbourhoods of 3 x 3 in f32 go by
//! tiles of 2 x 2 results where planes and channels suffice (`winograd`). Groups of single channels
//! with small planes are summed in lines of channels ([`depthwise`]), other groups of few channels
//! tap by tap ([`direct`]). All others are contractions over unfolded inputs (Chellapilla, Puri and
//! Simard: High performance convolutional neural networks for document processing, 2006): in f32,
//! where the processor has AVX-512 or AVX2, these are never made (`implicit`); elsewhere they are,
//! in panels ([`columns`]).

mod columns;
mod depthwise;
mod direct;
#[cfg(target_arch = "x86_64")]
mod implicit;
#[cfg(target_arch = "x86_64")]
mod winograd;

use crate::cpu::contract::Product;
use crate::cpu::conv::columns::Columns;
use crate::cpu::conv::depthwise::Depthwise;
use crate::cpu::conv::direct::Direct;
#[cfg(target_arch = "x86_64")]
use crate::cpu::conv::implicit::Implicit;
#[cfg(target_arch = "x86_64")]
use crate::cpu::conv::winograd::Winograd;
use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::number::{Number, Real};
use crate::cpu::threads::Threads;
use crate::cpu::window::Window;
use crate::cpu::{Arguments, Cpu, Launch};
use faer::Accum;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{ContractDim, Conv, ConvResult, Implements};
use shardc_ir::reason::Reason;

/// A convolution made ready.
#[derive(Debug)]
pub struct Prepared {
    dtype: DType,
    sizes: Sizes,
    method: Method,
}

#[derive(Debug)]
enum Method {
    Pointwise(Product),
    Depthwise(Depthwise),
    Direct(Box<Direct>),
    #[cfg(target_arch = "x86_64")]
    Implicit(Implicit),
    #[cfg(target_arch = "x86_64")]
    Winograd(Box<Winograd>),
    Columns(Columns),
}

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub result: ConvResult,
    pub batch: usize,
    pub groups: usize,
    pub inputs: usize,
    pub outputs: usize,
    /// Elements of an input plane.
    pub input: usize,
    /// Elements of an output plane.
    pub output: usize,
    pub taps: usize,
}

impl Sizes {
    /// Elements of `x` from one sample to the next.
    pub fn x_image(&self) -> usize {
        self.groups * self.inputs * self.input
    }

    /// Elements of `y` from one sample to the next.
    pub fn y_image(&self) -> usize {
        self.groups * self.outputs * self.output
    }

    /// Elements of a tensor.
    fn elements(&self, tensor: ConvResult) -> usize {
        match tensor {
            ConvResult::Output => self.batch * self.y_image(),
            ConvResult::Input => self.batch * self.x_image(),
            ConvResult::Weight => self.groups * self.outputs * self.inputs * self.taps,
        }
    }

    /// Whether some tensor has no elements.
    fn is_empty(&self) -> bool {
        self.batch * self.groups * self.inputs * self.outputs == 0
    }
}

/// Planes with fewer outputs are too narrow for a matrix product of their own.
pub const NARROW: usize = 128;

/// The convolution whose outputs see one input each: a product of matrices for each sample and
/// group.
fn pointwise(s: &Sizes) -> Product {
    let dim =
        |size: usize, a: usize, b: usize, c: usize| ContractDim { size: size as u64, a: a as i64, b: b as i64, c: c as i64 };
    let (x_group, w_group, y_group) = (s.inputs * s.input, s.outputs * s.inputs, s.outputs * s.output);
    let contract = match s.result {
        ConvResult::Output => [
            vec![dim(s.batch, 0, s.x_image(), s.y_image()), dim(s.groups, w_group, x_group, y_group)],
            vec![dim(s.outputs, s.inputs, 0, s.output)],
            vec![dim(s.output, 0, 1, 1)],
            vec![dim(s.inputs, 1, s.input, 0)],
        ],
        ConvResult::Input => [
            vec![dim(s.batch, 0, s.y_image(), s.x_image()), dim(s.groups, w_group, y_group, x_group)],
            vec![dim(s.inputs, 1, 0, s.input)],
            vec![dim(s.output, 0, 1, 1)],
            vec![dim(s.outputs, s.inputs, s.output, 0)],
        ],
        ConvResult::Weight => [
            vec![dim(s.groups, y_group, x_group, w_group)],
            vec![dim(s.outputs, s.output, 0, s.inputs)],
            vec![dim(s.inputs, 0, s.input, 1)],
            vec![dim(s.batch, s.y_image(), s.x_image(), 0), dim(s.output, 1, 1, 0)],
        ],
    };
    let [batch, m, n, k] = contract;
    Product::new([&batch, &m, &n, &k])
}

impl Implements<Conv> for Cpu {
    fn ready(&self, conv: &Conv, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        let window = Window::new(&conv.window)?;
        let [batch, groups, inputs, outputs] = [conv.batch, conv.groups, conv.inputs, conv.outputs].map(|n| n as usize);
        let (input, output, taps) = (window.inputs(), window.outputs(), window.taps());
        let sizes = Sizes { result: conv.result, batch, groups, inputs, outputs, input, output, taps };
        let depthwise = || Depthwise::new(sizes, &window).map(Method::Depthwise);
        let direct = || Direct::new(sizes, &window).map(|direct| Method::Direct(Box::new(direct)));
        let pointwise =
            || (window.is_pointwise() && (output >= NARROW || batch == 1)).then(|| Method::Pointwise(pointwise(&sizes)));
        let method = pointwise().or_else(depthwise).or_else(direct).or_else(|| implicit(conv.dtype, sizes, &window));
        let method = method.unwrap_or_else(|| Method::Columns(Columns::new(sizes, window)));
        Ok(Box::new(Prepared { dtype: conv.dtype, sizes, method }))
    }
}

#[cfg(target_arch = "x86_64")]
fn implicit(dtype: DType, sizes: Sizes, window: &Window) -> Option<Method> {
    let fits = dtype == DType::F32 && !sizes.is_empty() && sizes.taps > 0;
    if !fits {
        return None;
    }
    let winograd = Winograd::new(sizes, window).map(|winograd| Method::Winograd(Box::new(winograd)));
    winograd.or_else(|| Implicit::new(sizes, window).map(Method::Implicit))
}

#[cfg(not(target_arch = "x86_64"))]
fn implicit(_dtype: DType, _sizes: Sizes, _window: &Window) -> Option<Method> {
    None
}

impl Launch for Prepared {
    fn launch(&self, Arguments { reads, mut writes, threads, .. }: Arguments<'_>) -> Result<(), Reason> {
        #[cfg(target_arch = "x86_64")]
        if let (Slice::F32(first), Slice::F32(second), SliceMut::F32(result)) = (reads[0], reads[1], &mut writes[0])
            && self.by_vectors(second, first, result, threads)
        {
            return Ok(());
        }
        match self.dtype {
            DType::F64 => run::<f64>(self, reads, writes.remove(0), threads),
            _ => run::<f32>(self, reads, writes.remove(0), threads),
        }
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
impl Prepared {
    /// Runs it, where its method is one of vector instructions; whether it is.
    fn by_vectors(&self, a: &[f32], b: &[f32], result: &mut [f32], threads: Threads) -> bool {
        let result = &mut result[..self.sizes.elements(self.sizes.result)];
        match &self.method {
            Method::Implicit(implicit) => implicit.run(a, b, result, threads),
            Method::Winograd(winograd) => winograd.run(a, b, result, threads),
            _ => return false,
        }
        true
    }
}

fn run<T: Real>(p: &Prepared, reads: &[Slice<'_>], mut write: SliceMut<'_>, threads: Threads) {
    let (Some(first), Some(second), Some(result)) = (T::of(reads[0]), T::of(reads[1]), T::take(&mut write)) else { return };
    let result = &mut result[..p.sizes.elements(p.sizes.result)];
    if p.sizes.is_empty() {
        return result.fill(<T as Number>::ZERO);
    }
    // `a` is the kernel, or for the kernel's gradient the output.
    let (a, b) = (second, first);
    match &p.method {
        Method::Pointwise(product) => product.run(a, b, result, Accum::Replace, threads),
        Method::Depthwise(depthwise) => depthwise.run(a, b, result, threads),
        Method::Direct(direct) => direct.run(a, b, result, threads),
        Method::Columns(columns) => columns.run(a, b, result, threads),
        #[cfg(target_arch = "x86_64")]
        Method::Implicit(_) | Method::Winograd(_) => {}
    }
}
