//! MaxPool: the largest element under a window, and its gradient.

use super::form::{Form, Position};
use super::signature::{Signature, counted, float, product};
use super::window::{WindowDim, planes, square};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// The largest element under a window: `x[planes, input…] -> y[planes, output…]`. A window that
/// sees no element gives -infinity, one that sees a not-a-number gives that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaxPool {
    /// f32 or f64.
    pub dtype: DType,
    /// Independent planes.
    pub planes: u64,
    /// The spatial dimensions, one to three.
    pub window: Vec<WindowDim>,
}

/// Its gradient: `x, dy -> dx` gives the gradient of each output to the first of the largest
/// elements under its window, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaxPoolGrad(pub MaxPool);

impl MaxPool {
    /// Elements of x and of y.
    fn elements(&self) -> Result<(u64, u64), Reason> {
        float(self.dtype)?;
        let [input, output, _] = planes(&self.window)?;
        Ok((product(&[self.planes, input])?, product(&[self.planes, output])?))
    }
}

impl Form for MaxPool {
    fn name(&self) -> &'static str {
        "max_pool"
    }

    fn signature(&self, _mesh: &Mesh) -> Result<Signature, Reason> {
        let (x, y) = self.elements()?;
        Ok(Signature::default().reads(self.dtype, x).writes(self.dtype, y))
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        false
    }

    /// A comparison for each output and tap.
    fn flops(&self) -> u64 {
        counted(self.window.iter().map(|dim| dim.output.saturating_mul(dim.kernel)).chain([self.planes]))
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        vec![]
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        let MaxPool { planes, window, .. } = self;
        std::iter::once(planes).chain(window.iter_mut().flat_map(WindowDim::sizes_mut)).collect()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        self.window.iter_mut().map(|d| &mut d.pad).collect()
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        vec![]
    }

    fn everyday() -> Vec<(String, Self)> {
        let pool = MaxPool { dtype: DType::F32, planes: 16 * 64, window: square(32, 3, 2) };
        vec![("max pool 1024 3x3/2 32".to_string(), pool)]
    }
}

impl Form for MaxPoolGrad {
    fn name(&self) -> &'static str {
        "max_pool_grad"
    }

    fn signature(&self, _mesh: &Mesh) -> Result<Signature, Reason> {
        let (x, y) = self.0.elements()?;
        let dtype = self.0.dtype;
        Ok(Signature::default().reads(dtype, x).reads(dtype, y).writes(dtype, x))
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        false
    }

    /// The comparisons again, and an addition for each output.
    fn flops(&self) -> u64 {
        self.0.flops().saturating_add(counted(self.0.window.iter().map(|dim| dim.output).chain([self.0.planes])))
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        vec![]
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        self.0.sizes_mut()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        self.0.strides_mut()
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        vec![]
    }

    fn everyday() -> Vec<(String, Self)> {
        let of = |(_, pool)| ("max pool grad 1024 3x3/2 32".to_string(), MaxPoolGrad(pool));
        MaxPool::everyday().into_iter().map(of).collect()
    }
}
