//! Batch normalisation with given statistics: what it is in evaluation and as models write it. For
//! training the pass `batch-statistics` puts the statistics of the batch in their place.

use super::elementwise::broadcast_shape;
use super::{Backward, Linear, NoGradient, Rules, named};
use crate::letters::Letters;
use crate::lower::{LowerContext, Lowered};
use crate::reason;
use crate::reason::Reason;
use crate::scalar::{Binary, Unary};
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// `y = (x - mean) / sqrt(variance + eps) * scale + bias`; operands: x, scale, bias, mean,
/// variance, all but the first broadcast to it as numpy does (`[C, 1, …]` for channels in dimension
/// 1). Ioffe, Szegedy: Batch Normalization (2015).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm {
    /// Added to the variance.
    pub eps: f64,
    /// The share of a running statistic that stays when training moves it.
    pub momentum: f64,
}
named!(BatchNorm, "batch_norm");

impl Rules for BatchNorm {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x, vectors @ ..] = operands else { return Err("takes operands".into()) };
        let fits = |v: &Type| v.dtype == x.dtype && broadcast_shape(&x.shape, &v.shape).is_ok_and(|shape| shape == x.shape);
        if vectors.len() != 4 || !x.dtype.is_float() || !vectors.iter().all(fits) {
            let texts: Vec<String> = operands.iter().map(Type::to_string).collect();
            return Err(reason!("takes x and four operands that broadcast to it, not {}", texts.join(", ")));
        }
        Ok(vec![x.clone()])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        Letters::broadcast(operands, results)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::No
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let [x, scale, _, mean, variance] = cx.operands[..] else { unreachable!("the node was built") };
        let g = cx.grad();
        let b = &mut *cx.b;
        let safe = b.offset(variance, self.eps);
        let root = b.unary(Unary::Sqrt.into(), safe);
        let rstd = b.unary(Unary::Reciprocal.into(), root);
        let slope = b.mul(rstd, scale);
        let dx = b.mul(g, slope);
        let centered = b.sub(x, mean);
        let dslope = b.mul(g, centered);
        if cx.needs[0] {
            cx.give(0, dx);
        }
        if cx.needs[1] {
            let dscale = cx.b.mul(dslope, rstd);
            cx.give(1, dscale);
        }
        if cx.needs[3] {
            let dmean = cx.b.unary(Unary::Neg.into(), dx);
            cx.give(3, dmean);
        }
        if cx.needs[4] {
            // The slope's own is -rstd^2 slope / 2.
            let square = cx.b.mul(rstd, rstd);
            let steep = cx.b.mul(square, slope);
            let half = cx.b.scale(steep, -0.5);
            let dvariance = cx.b.mul(dslope, half);
            cx.give(4, dvariance);
        }
        if cx.needs[2] {
            cx.give(2, g);
        }
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        Lowered::map(Some(cx.operands[0].ty.dtype), 5, |p, operands| {
            let [x, scale, bias, mean, variance] = operands[..] else { unreachable!("the node was built") };
            let eps = p.number(self.eps);
            let safe = p.add(variance, eps);
            let root = p.unary(Unary::Sqrt, safe);
            let slope = p.binary(Binary::Div, scale, root);
            let centered = p.sub(x, mean);
            let scaled = p.mul(centered, slope);
            vec![p.add(scaled, bias)]
        })
    }
}
