//! Leaves: values that come from outside the graph.

use super::{Backward, Linear, NoGradient, Rules, named};
use crate::graph::StateId;
use crate::letters::{Letters, Role};
use crate::lower::{LowerContext, Lowered};
use crate::plan::HostScalar;
use crate::reason::Reason;
use crate::types::{Tensor, Type};
use serde::{Deserialize, Serialize};

/// A model input or a label: dimension 0 is the batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// The array's name in the data.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// Whether it is a label: not an input of the model.
    pub label: bool,
}
named!(Input, "input");

/// A state variable's value at the start of the step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateRead {
    /// Which one. Its type is that of the state, so the node is made by
    /// [`crate::builder::Builder::state`].
    pub state: StateId,
}
named!(StateRead, "state");

/// A constant of the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// Its elements.
    pub value: Tensor,
}
named!(Constant, "constant");

/// A number that the host writes before each step, held in f64, the seed in i64.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Which one.
    pub scalar: HostScalar,
}
named!(Host, "host");

macro_rules! leaf_rules {
    ($ty:ty, $result:expr) => {
        impl Rules for $ty {
            fn result(&self, _: &[Type]) -> Result<Vec<Type>, Reason> {
                let result: fn(&$ty) -> Result<Vec<Type>, Reason> = $result;
                result(self)
            }
            fn letters(&self, _: &[Type], results: &[Type]) -> Letters {
                let mut letters = Letters::new();
                let dims = results[0].shape.iter().map(|n| vec![letters.letter(*n, Role::Kept)]).collect();
                letters.results.push(dims);
                letters
            }
            fn linear(&self, _: &[Type]) -> Linear {
                Linear::No
            }
            fn gradient(&self, _: &mut Backward<'_>) -> Result<(), NoGradient> {
                Ok(())
            }
            fn positions(&self) -> bool {
                false
            }
            fn lower(&self, _: &LowerContext<'_>) -> Lowered {
                Lowered::Leaf
            }
        }
    };
}
leaf_rules!(Input, |op| Ok(vec![op.ty.clone()]));
leaf_rules!(StateRead, |_| Err("the type of a state variable is in the graph's table".into()));
leaf_rules!(Constant, |op| Ok(vec![op.value.ty.clone()]));
leaf_rules!(Host, |op| Ok(vec![Type::scalar(op.scalar.dtype())]));
