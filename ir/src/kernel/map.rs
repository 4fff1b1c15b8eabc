//! Map: a fused elementwise program over broadcast inputs.

use super::form::{Form, Position};
use super::signature::{Signature, counted, elements, extent, row_major};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::position::Origin;
use crate::reason;
use crate::reason::Reason;
use crate::scalar::{Binary, Instr, ProgramWriter, ScalarProgram, Unary};
use serde::{Deserialize, Serialize};

/// A fused elementwise program over broadcast inputs. Operands: the inputs, then the outputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Map {
    /// The type of the registers. Truth values are 0 and 1 in it.
    pub compute: DType,
    /// The iteration space.
    pub shape: Vec<u64>,
    /// The inputs.
    pub inputs: Vec<MapInput>,
    /// The program; as many outputs as `outputs`.
    pub program: ScalarProgram,
    /// The element types of the results, each contiguous over `shape`. An output may be the same
    /// memory as an input with the same strides (an update in place).
    pub outputs: Vec<DType>,
    /// For each dimension that [`crate::scalar::Instr::Index`] reads, its origin; empty if none
    /// does.
    pub origins: Vec<(u16, Origin)>,
}

/// An input of an elementwise program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapInput {
    /// Its element type; converted to the program's compute type as it is read.
    pub dtype: DType,
    /// Its stride along each iteration dimension; 0 broadcasts.
    pub strides: Vec<i64>,
}

impl Map {
    /// The same over one dimension, where each input lies from end to end or is a number; `None` if
    /// one lies otherwise, or positions count.
    pub fn flat(&self) -> Option<Map> {
        let all = row_major(&self.shape);
        let step = |input: &MapInput| {
            let is = |of: &dyn Fn(usize) -> i64| (0..all.len()).all(|d| self.shape[d] == 1 || input.strides[d] == of(d));
            if is(&|d| all[d]) { Some(1) } else { is(&|_| 0).then_some(0) }
        };
        let inputs = self.inputs.iter().map(|input| Some(MapInput { dtype: input.dtype, strides: vec![step(input)?] }));
        let inputs = inputs.collect::<Option<_>>()?;
        self.origins.is_empty().then(|| Map { shape: vec![self.shape.iter().product()], inputs, ..self.clone() })
    }
}

impl Map {
    /// A program of f32 with one result, the last instruction's, over inputs with these strides.
    pub fn of_f32(shape: &[u64], strides: &[&[i64]], code: Vec<Instr>) -> Map {
        let inputs = strides.len() as u16;
        let input = |strides: &&[i64]| MapInput { dtype: DType::F32, strides: strides.to_vec() };
        Map {
            compute: DType::F32,
            shape: shape.to_vec(),
            inputs: strides.iter().map(input).collect(),
            program: ScalarProgram { inputs, outputs: vec![inputs + code.len() as u16 - 1], code },
            outputs: vec![DType::F32],
            origins: vec![],
        }
    }
}

impl Form for Map {
    fn name(&self) -> &'static str {
        "map"
    }

    fn signature(&self, mesh: &Mesh) -> Result<Signature, Reason> {
        if self.compute.is_half() {
            return Err(reason!("registers of {}, which kernels do not compute in", self.compute));
        }
        let total = elements(&self.shape)?;
        let mut signature = Signature::default();
        for input in &self.inputs {
            signature = signature.reads(input.dtype, extent(&self.shape, &input.strides, (0, 0))?);
        }
        for output in &self.outputs {
            signature = signature.writes(*output, total);
        }
        if self.program.inputs as usize != self.inputs.len() || self.program.outputs.len() != self.outputs.len() {
            return Err("the program's inputs or outputs are not the kernel's".into());
        }
        for (dimension, origin) in &self.origins {
            let size = *self.shape.get(*dimension as usize).ok_or("an origin for a dimension that is not there")?;
            origin.check(size, mesh)?;
        }
        Ok(signature)
    }

    /// An input may be the same memory as an output of its type that is stepped through alike.
    fn in_place(&self, read: usize, write: usize) -> bool {
        let (Some(input), Some(output)) = (self.inputs.get(read), self.outputs.get(write)) else { return false };
        let steps = row_major(&self.shape);
        let alike = |((size, step), own): ((&u64, &i64), &i64)| *size == 1 || step == own;
        input.dtype == *output && (self.shape.contains(&0) || self.shape.iter().zip(&steps).zip(&input.strides).all(alike))
    }

    /// The functions of the program for each element.
    fn flops(&self) -> u64 {
        counted(self.shape.iter().copied().chain([self.program.functions()]))
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        self.program.code.iter_mut().filter_map(|i| if let Instr::Const(value) = i { Some(value) } else { None }).collect()
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        self.shape.iter_mut().collect()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        self.inputs.iter_mut().flat_map(|input| &mut input.strides).collect()
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        self.origins.iter_mut().map(|(_, origin)| Position::of(origin)).collect()
    }

    fn everyday() -> Vec<(String, Self)> {
        use Binary::{Add, Mul, Sub};
        let (wide, images) = ([768, 512], [16, 64, 1024]);
        let (rows, channel): (&[i64], &[i64]) = (&[512, 1], &[0, 1, 0]);
        let add = |shape: &[u64], strides: [&[i64]; 2]| Map::of_f32(shape, &strides, vec![Instr::Binary(Add, 0, 1)]);
        let normalise = vec![Instr::Binary(Sub, 0, 1), Instr::Binary(Mul, 4, 2), Instr::Binary(Add, 5, 3)];
        let normalised = Map::of_f32(&images, &[&[64 * 1024, 1024, 1], channel, channel, channel], normalise);
        let named = [
            ("batch norm map 16x64x1024", normalised),
            ("map gelu tanh 768x512", Map { program: gelu(), ..Map::of_f32(&wide, &[rows], vec![]) }),
            ("map gelu grad 768x512", Map { program: gelu_grad(), ..Map::of_f32(&wide, &[rows, rows], vec![]) }),
            ("map add 768x128", add(&[768, 128], [&[128, 1], &[128, 1]])),
            ("map add 4M", add(&[4 << 20], [&[1], &[1]])),
            ("map add bias 768x512", add(&wide, [rows, &[0, 1]])),
            ("map add transposed 768x512", add(&wide, [rows, &[1, 768]])),
            ("map add 16M", add(&[16 << 20], [&[1], &[1]])),
            ("map add of 128", add(&[128], [&[1], &[1]])),
            ("map add of 1", add(&[1], [&[1], &[1]])),
            ("adam 800k", adam(800_000)),
            ("adam 16M", adam(16 << 20)),
        ];
        named.map(|(what, map)| (what.to_string(), map)).into()
    }
}

/// `x (1 + t) / 2`, GELU by the hyperbolic tangent `t` of `x (c + d x^2)`.
fn gelu() -> ScalarProgram {
    ProgramWriter::program(1, |p, x| {
        let square = p.mul(x[0], x[0]);
        let cubic = p.scale(square, 0.044715);
        let factor = p.offset(cubic, 1.0);
        let inner = p.mul(x[0], factor);
        let scaled = p.scale(inner, 0.797_884_560_8);
        let tanh = p.unary(Unary::Tanh, scaled);
        let sum = p.offset(tanh, 1.0);
        let half = p.scale(x[0], 0.5);
        vec![p.mul(half, sum)]
    })
}

/// `dy (1 + t + x (1 - t^2) (c + 3 d x^2)) / 2`
fn gelu_grad() -> ScalarProgram {
    ProgramWriter::program(2, |p, x| {
        let (x, dy) = (x[0], x[1]);
        let square = p.mul(x, x);
        let cubic = p.scale(square, 0.035_677_408);
        let factor = p.offset(cubic, 0.797_884_560_8);
        let inner = p.mul(x, factor);
        let tanh = p.unary(Unary::Tanh, inner);
        let triple = p.scale(square, 0.107_032_224);
        let inner_slope = p.offset(triple, 0.797_884_560_8);
        let tanh_square = p.mul(tanh, tanh);
        let negative = p.unary(Unary::Neg, tanh_square);
        let tanh_slope = p.offset(negative, 1.0);
        let chain = p.mul(tanh_slope, inner_slope);
        let tail = p.mul(x, chain);
        let sum = p.add(tanh, tail);
        let plus_one = p.offset(sum, 1.0);
        let slope = p.scale(plus_one, 0.5);
        vec![p.mul(dy, slope)]
    })
}

/// A step of AdamW over `n` numbers.
fn adam(n: u64) -> Map {
    use Binary::{Div, Sub};
    // The weight and its moments, which become the results; its gradient; the rate, and what
    // corrects the moments.
    let program = ProgramWriter::program(7, |p, x| {
        let [w, m, v, g, lr, first, second] = [x[0], x[1], x[2], x[3], x[4], x[5], x[6]];
        let mean = |p: &mut ProgramWriter, old, new, kept| {
            let (old, new) = (p.scale(old, kept), p.scale(new, 1.0 - kept));
            p.add(old, new)
        };
        let square = p.mul(g, g);
        let (m, v) = (mean(p, m, g, 0.9), mean(p, v, square, 0.95));
        let (m_hat, v_hat) = (p.div(m, first), p.div(v, second));
        let root = p.unary(Unary::Sqrt, v_hat);
        let root = p.offset(root, 1e-8);
        let direction = p.binary(Div, m_hat, root);
        let (kept, step) = (p.scale(w, 0.9999), p.mul(lr, direction));
        vec![p.binary(Sub, kept, step), m, v]
    });
    let (each, one): (&[i64], &[i64]) = (&[1], &[0]);
    let strides = [each, each, each, each, one, one, one];
    Map { program, outputs: vec![DType::F32; 3], ..Map::of_f32(&[n], &strides, vec![]) }
}
