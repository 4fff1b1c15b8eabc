//! The forms that have no text.

use crate::Cuda;
use crate::generated::Generated;
use shardc_ir::kernel::{Attention, AttentionGrad, Collective, Implements};
use shardc_ir::reason::Reason;

impl Implements<Attention> for Cuda {
    fn ready(&self, _attention: &Attention, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        Err("attention has no CUDA kernel yet".into())
    }
}

impl Implements<AttentionGrad> for Cuda {
    fn ready(&self, _gradient: &AttentionGrad, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        Err("the gradient of attention has no CUDA kernel yet".into())
    }
}

impl Implements<Collective> for Cuda {
    fn ready(&self, _collective: &Collective, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        Err("a collective is no kernel of one rank".into())
    }
}
