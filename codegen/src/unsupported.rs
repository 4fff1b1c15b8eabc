//! The form that has no text.

use crate::Cuda;
use crate::generated::Generated;
use shardc_ir::kernel::{Collective, Implements};
use shardc_ir::reason::Reason;

impl Implements<Collective> for Cuda {
    fn ready(&self, _collective: &Collective, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        Err("a collective is no kernel of one rank".into())
    }
}
