//! Fill: one value everywhere.

use crate::cpu::element::each_type;
use crate::cpu::lanes::{self, Lanes};
use crate::cpu::{Arguments, Cpu, Launch};
use shardc_ir::kernel::{Fill, Implements};
use shardc_ir::reason::Reason;

impl Implements<Fill> for Cpu {
    fn ready(&self, fill: &Fill, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        Ok(Box::new(fill.clone()))
    }
}

impl Launch for Fill {
    fn launch(&self, Arguments { mut writes, .. }: Arguments<'_>) -> Result<(), Reason> {
        let count = self.count as usize;
        each_type!(SliceMut, writes.remove(0), out => lanes::store(Lanes::All(self.value), &mut out[..count]));
        Ok(())
    }
}
