//! Draws of what kernels are made of: sizes, strides, numbers.

use crate::random::Random;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Kernel, WindowDim};
use shardc_ir::mesh::Mesh;

/// The mesh of the instances.
pub fn mesh() -> Mesh {
    Mesh::new([("dp".to_string(), 2), ("tp".to_string(), 3)], 2)
}

/// The rank that runs them.
pub const COORDINATES: [u64; 3] = [1, 2, 1];

/// What sums of a type may miss.
pub fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e-12 } else { 4e-6 }
}

/// Draws that are the same in every run.
pub struct Draw(Random);

impl Draw {
    /// Those of a seed.
    pub fn new(seed: u64) -> Draw {
        Draw(Random(seed))
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.below(n as usize) as u64
    }

    /// A small size.
    pub fn size(&mut self) -> u64 {
        [1, 2, 3, 4, 5, 7, 16, 33][self.below(8) as usize]
    }

    /// In -2..2, with a short binary fraction, so that f32 holds it.
    pub fn value(&mut self) -> f64 {
        (self.below(4097) as f64 - 2048.0) / 1024.0
    }

    /// So many numbers that a type holds.
    pub fn values(&mut self, dtype: DType, n: u64) -> Vec<f64> {
        (0..n)
            .map(|_| match dtype {
                DType::Bool => self.below(2) as f64,
                DType::I64 => self.below(9) as f64 - 4.0,
                // A shorter fraction, that bf16 holds.
                DType::BF16 | DType::F16 => (self.below(257) as f64 - 128.0) / 64.0,
                _ => self.value(),
            })
            .collect()
    }

    /// One of some.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A random permutation of dimensions: strides of a dense layout in another order.
    pub fn permuted_strides(&mut self, shape: &[u64]) -> Vec<i64> {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i as u64 + 1) as usize);
        }
        let mut strides = vec![0; shape.len()];
        let mut stride = 1;
        for d in order {
            strides[d] = stride;
            stride *= shape[d] as i64;
        }
        strides
    }

    /// A shape of up to 4 dimensions and a few thousand elements.
    pub fn shape(&mut self) -> Vec<u64> {
        let mut room = 4000;
        let dims = self.below(5);
        (0..dims).map(|_| self.size_in(&mut room)).collect()
    }

    /// A size for which there is room, which it takes.
    pub(super) fn size_in(&mut self, room: &mut u64) -> u64 {
        let size = self.size();
        let size = if size <= *room { size } else { 1 };
        *room /= size;
        size
    }

    /// Operands of a kernel.
    pub fn operands(&mut self, kernel: &Kernel) -> Vec<Vec<f64>> {
        let signature = kernel.signature(&mesh()).unwrap();
        signature.reads.iter().map(|operand| self.values(operand.dtype, operand.elements)).collect()
    }

    /// A window of one to three dimensions with at least one output.
    pub(super) fn window(&mut self) -> Vec<WindowDim> {
        let dims = 1 + self.below(3);
        let mut window = vec![];
        while window.len() < dims as usize {
            let input = if dims == 1 { self.pick(&[1, 5, 40, 200]) } else { self.pick(&[1, 2, 5, 9]) };
            let (kernel, stride) = (self.pick(&[1, 2, 3, 5]), self.pick(&[1, 1, 2, 3]));
            let (dilation, pad, after) = (self.pick(&[1, 1, 2]), self.below(4) as i64 - 1, self.below(4) as i64 - 1);
            let room = input as i64 + pad + after - ((kernel - 1) * dilation + 1) as i64;
            if room >= 0 {
                window.push(WindowDim { input, output: room as u64 / stride + 1, kernel, stride, dilation, pad });
            }
        }
        window
    }
}
