//! Constants without the dimensions along which they do not vary: a baked mask `[8, 1, 32, 32]`
//! becomes `[32, 32]`.

use crate::onnx::import::context::ImportContext;
use crate::onnx::import::value::Value;
use shardc_ir::ops::elementwise::broadcast_shape;
use shardc_ir::reason::Reason;
use shardc_ir::types::{Tensor, Type};

impl ImportContext<'_> {
    /// The operands of an elementwise op, each constant reduced as far as the shape of the result
    /// stays the same.
    pub fn shrink_constants(&self, operands: &[Value]) -> Result<Vec<Value>, Reason> {
        let mut operands = operands.to_vec();
        if operands.iter().all(|v| v.tensor().is_some()) {
            return Ok(operands);
        }
        let mut shapes: Vec<Vec<u64>> = operands.iter().map(|v| Ok(self.ty(v)?.shape)).collect::<Result<_, Reason>>()?;
        let result = broadcast(&shapes)?;
        for i in 0..operands.len() {
            let Some(tensor) = operands[i].tensor() else { continue };
            let mut others = shapes.clone();
            others.remove(i);
            let others = broadcast(&others)?;
            let tensor = shrink(tensor, &others, &result);
            shapes[i] = tensor.ty.shape.clone();
            operands[i] = Value::Known(tensor);
        }
        Ok(operands)
    }
}

fn broadcast(shapes: &[Vec<u64>]) -> Result<Vec<u64>, Reason> {
    shapes.iter().try_fold(vec![], |shape, next| broadcast_shape(&shape, next))
}

/// `tensor` reduced to size 1 where it does not vary and `others` have the result's size, and
/// without leading dimensions of size 1 that `others` have.
fn shrink(tensor: Tensor, others: &[u64], result: &[u64]) -> Tensor {
    let mut tensor = tensor;
    let given = |shape: &[u64], d: usize| {
        let from_end = shape.len() - d;
        from_end <= others.len() && others[others.len() - from_end] == result[result.len() - from_end]
    };
    for d in 0..tensor.ty.rank() {
        if tensor.ty.shape[d] > 1 && given(&tensor.ty.shape, d) && !varies(&tensor, d) {
            tensor = first(&tensor, d);
        }
    }
    let shape = &tensor.ty.shape;
    let lead = (0..shape.len()).take_while(|d| shape[*d] == 1 && given(shape, *d)).count();
    Tensor { ty: Type::new(tensor.ty.dtype, &shape[lead..]), bytes: tensor.bytes }
}

/// Blocks of bytes along dimension `d`: how many elements of the dimension, and bytes of each.
fn blocks(tensor: &Tensor, d: usize) -> (usize, usize) {
    let inner = tensor.ty.shape[d + 1..].iter().product::<u64>() * tensor.ty.dtype.bytes();
    (tensor.ty.shape[d] as usize, inner as usize)
}

fn varies(tensor: &Tensor, d: usize) -> bool {
    let (size, inner) = blocks(tensor, d);
    inner > 0 && tensor.bytes.chunks(size * inner).any(|c| c[inner..].chunks(inner).any(|b| *b != c[..inner]))
}

fn first(tensor: &Tensor, d: usize) -> Tensor {
    let (size, inner) = blocks(tensor, d);
    let mut ty = tensor.ty.clone();
    ty.shape[d] = 1;
    let bytes = if inner == 0 { vec![] } else { tensor.bytes.chunks(size * inner).flat_map(|c| &c[..inner]).copied().collect() };
    Tensor { ty, bytes: std::sync::Arc::new(bytes) }
}
