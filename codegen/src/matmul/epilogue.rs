//! The kernels beside a product that it carries out as well: a vector or a matrix that is added to
//! it, and the sum of an operand.

use super::contraction::only;
use super::{Compute, Epilogue, Matmul};
use crate::space::Space;
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::{Contract, Map, Reduce};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Instr, ProgramWriter, Rounding, ScalarProgram};

impl Matmul {
    /// The product that also does what a map behind it does, if all of that is to add a vector
    /// along the rows of `D` (`CUBLASLT_EPILOGUE_BIAS`: it "must match matrix D rows, it must be
    /// packed", and "is broadcasted to all columns"). `product` is the map's input that the product
    /// writes; the other one is the vector, and the map's result is `D`.
    pub fn with_bias(&self, map: &Map, product: usize) -> Option<Matmul> {
        let sum = self.added(map, product)?;
        let vector = map.inputs.get(1 - product)?;
        let strides = [row_major(&map.shape), vector.strides.clone()];
        let space = Space::joined(&map.shape, &vec![0; map.shape.len()], &strides);
        let (last, others) = space.strides[1].split_last()?;
        let is_along = *last == 1 && others.iter().all(|stride| *stride == 0) && space.sizes.last() == Some(&self.d.rows);
        is_along.then_some(Matmul { epilogue: Epilogue::Bias, ..sum })
    }

    /// The product that is added to what a map behind it adds it to, if that is all that the map
    /// does. `product` is the map's input that the product writes; the other one is `C`, and the
    /// map's result is `D`, which may be the same memory.
    pub fn accumulating(&self, map: &Map, product: usize) -> Option<Matmul> {
        let sum = self.added(map, product)?;
        is_whole(map, 1 - product).then_some(Matmul { beta: 1.0, ..sum })
    }

    /// The product that also adds a vector and a matrix as a map behind it does, if that is all it
    /// does, with the inputs of the map that these are.
    pub fn with_bias_accumulating(&self, map: &Map, product: usize) -> Option<(Matmul, usize, usize)> {
        let others: Vec<usize> = (0..map.inputs.len()).filter(|input| *input != product).collect();
        let [first, second] = others[..] else { return None };
        let (vector, matrix) = if is_whole(map, second) { (first, second) } else { (second, first) };
        let pair = |other: usize| {
            let inputs = vec![map.inputs[product].clone(), map.inputs[other].clone()];
            let program = ProgramWriter::program(2, |w, x| vec![w.add(x[0], x[1])]);
            Map { inputs, program, ..map.clone() }
        };
        let is_sum = map.outputs.len() == 1 && map.outputs[0].rounding().is_none() && adds_three(&map.program);
        let biased = self.with_bias(&pair(vector), 0).filter(|_| is_sum)?;
        self.accumulating(&pair(matrix), 0)?;
        Some((Matmul { beta: 1.0, ..biased }, vector, matrix))
    }

    /// The product that also sums an operand, 0 or 1, of its contraction as a reduction does: over
    /// all that the product sums over, into a vector along the rows or columns of `D`.
    /// (`CUBLASLT_EPILOGUE_BGRADA`, `CUBLASLT_EPILOGUE_BGRADB`. They take an `A` that is not
    /// transposed and a `B` that is; NVIDIA's tests of nvmath-python say so where the manual does
    /// not.)
    pub fn with_bias_gradient(&self, contract: &Contract, operand: usize, reduce: &Reduce) -> Option<Matmul> {
        let map = &reduce.map;
        let ([input], [result]) = (&map.inputs[..], &map.outputs[..]) else { return None };
        let is_sum = reduce.kind == ReduceKind::Sum && map.program == ScalarProgram::identity() && map.origins.is_empty();
        let has_types = [input.dtype, *result, reduce.accumulate] == [contract.dtype, self.d.dtype, self.compute.scale()];
        if !is_sum || !has_types || self.d.batch > 1 || self.epilogue != Epilogue::Default {
            return None;
        }
        let side = only(if operand == 0 { &contract.m } else { &contract.n }, "").ok()?;
        let sum = only(&contract.k, "").ok()?;
        let groups: Vec<usize> = reduce.reduced.iter().map(|reduced| usize::from(*reduced)).collect();
        let space = Space::joined(&map.shape, &groups, std::slice::from_ref(&input.strides));
        let is_read = [side, sum].into_iter().enumerate().all(|(group, dim)| {
            let stride = if operand == 0 { dim.a } else { dim.b };
            match space.of_group(group)[..] {
                [] => dim.size == 1,
                [d] => (space.sizes[d], space.strides[0][d]) == (dim.size, stride),
                _ => false,
            }
        });
        let epilogue = match (operand == 0) != self.swapped {
            true if !self.transposed[0] => Epilogue::BiasGradientA,
            false if self.transposed[1] => Epilogue::BiasGradientB,
            _ => return None,
        };
        is_read.then_some(Matmul { epilogue, ..self.clone() })
    }

    /// The product with the result of a map that adds it to its other input, of the type of the
    /// result, and does nothing else. It is not rounded before.
    fn added(&self, map: &Map, product: usize) -> Option<Matmul> {
        let ([_, _], [result]) = (&map.inputs[..], &map.outputs[..]) else { return None };
        let has_types = map.compute == self.compute.scale()
            && map.inputs[product].dtype == self.d.dtype
            && self.d.dtype == map.compute
            && map.inputs[1 - product].dtype == *result
            && Compute::of(self.a.dtype, *result).is_ok();
        let is_alone = self.epilogue == Epilogue::Default && self.beta == 0.0 && map.origins.is_empty();
        let elements = [self.d.rows, self.d.columns, self.d.batch].iter().product::<u64>();
        let is_all = map.shape.iter().product::<u64>() == elements && self.d.reach() == i128::from(elements);
        if !has_types || !is_alone || !is_all || !is_whole(map, product) || !adds(&map.program, result.rounding()) {
            return None;
        }
        let mut sum = self.clone();
        [sum.c.dtype, sum.d.dtype] = [*result; 2];
        [sum.alignment[2], sum.alignment[3]] = [result.bytes(); 2];
        Some(sum)
    }
}

/// Whether a map reads an input as its result lies.
fn is_whole(map: &Map, input: usize) -> bool {
    let steps = row_major(&map.shape);
    map.inputs[input].strides.iter().zip(&steps).zip(&map.shape).all(|((own, step), size)| *size == 1 || own == step)
}

/// Whether a program is the sum of three inputs.
fn adds_three(program: &ScalarProgram) -> bool {
    let [Instr::Binary(Binary::Add, a, b), Instr::Binary(Binary::Add, c, d)] = program.code[..] else { return false };
    let mut inputs = [a, b, if c == 3 { d } else { c }];
    inputs.sort_unstable();
    inputs == [0, 1, 2] && (c == 3) != (d == 3) && program.outputs == [4]
}

/// Whether a program is the sum of two inputs, rounded to what memory holds.
fn adds(program: &ScalarProgram, rounding: Option<Rounding>) -> bool {
    let rest = match program.code.split_first() {
        Some((Instr::Binary(Binary::Add, 0, 1) | Instr::Binary(Binary::Add, 1, 0), rest)) => rest,
        _ => return false,
    };
    match (rest, rounding) {
        ([], None) => program.outputs == [2],
        ([Instr::Round(to, 2)], Some(rounding)) => *to == rounding && program.outputs == [3],
        _ => false,
    }
}
