//! Launch tables, executed row by row over memory that lies as the table says: kernels on the host,
//! products of matrices by loops that refuse what cuBLASLt's manual refuses.

use super::kernels::products::told;
use shardc_codegen::matmul::Compute;
use shardc_codegen::program::Kernels;
use shardc_codegen::table::{Pointer, Ran, Range, Table, Work};
use shardc_cuda_testing::host::{Host, Order};
use shardc_cuda_testing::job::{Access, Job, Operand};
use shardc_cuda_testing::product;
use shardc_ir::plan::Program;
use std::collections::HashMap;

/// Where the memory of a device begins: what a driver gives is aligned by 256 bytes at least.
const MEMORY: u64 = 1 << 40;

/// Whether floats have no more than the mantissa of TF32.
fn is_tf32(place: &product::Place) -> bool {
    place.bytes.chunks_exact(4).all(|bytes| bytes[0] == 0 && bytes[1] & 0x1f == 0)
}

/// The memory of a device of one rank, with the table that it works by.
pub struct Device<'a> {
    program: &'a Program,
    table: &'a Table,
    host: &'a Host,
    /// For each function whether it writes what its pointers point to whole.
    whole: HashMap<&'a str, Vec<bool>>,
    pub memory: Vec<u8>,
}

impl<'a> Device<'a> {
    /// Memory that begins with `arena`.
    pub fn new(program: &'a Program, table: &'a Table, kernels: &'a Kernels, host: &'a Host, arena: &[u8]) -> Device<'a> {
        let whole = |launch: &'a shardc_codegen::Launch| {
            (launch.entry.as_str(), launch.parameters.iter().map(|parameter| parameter.whole).collect())
        };
        let mut memory = arena.to_vec();
        memory.resize(table.bytes() as usize, 0xa5);
        Device { program, table, host, whole: kernels.launches().map(whole).collect(), memory }
    }

    /// Does a step. `written` has the bytes that the host has for each range of the arena.
    pub fn step(&mut self, written: &[u8]) -> Result<(), String> {
        for ran in self.table.runs(self.program.mesh.microbatches()) {
            self.row(&ran, written).map_err(|why| format!("row {}: {why}", ran.number))?;
        }
        Ok(())
    }

    fn row(&mut self, ran: &Ran<'_>, written: &[u8]) -> Result<(), String> {
        let time = ran.times[0];
        let at = |range: &Range| range.at(time).start as usize..range.at(time).end as usize;
        match &ran.row.work {
            Work::CopyInput { to, .. } | Work::CopyScalar { to, .. } => self.memory[at(to)].copy_from_slice(&written[at(to)]),
            Work::Clear { to } => self.memory[at(to)].fill(0),
            Work::CopyFault { from } if self.memory[at(from)].iter().any(|byte| *byte != 0) => {
                return Err("the data are wrong".into());
            }
            Work::CopyFault { .. } | Work::CopyOutput { .. } => {}
            Work::Launch { grid, .. } if grid.contains(&0) => {}
            Work::Launch { entry, pointers, .. } => {
                let job = self.job(&ran.row.work, time);
                let done = self.host.run(&job, Order::Forward).map_err(|why| format!("{entry}: {why}"))?;
                for (pointer, bytes) in pointers.iter().zip(done.operands).filter(|(pointer, _)| pointer.is_written) {
                    self.memory[at(&pointer.range)].copy_from_slice(&bytes);
                }
            }
            Work::Product { product, a, b, d, added, vector, room } => {
                let place = |range: &Range| product::Place {
                    address: MEMORY + range.at(time).start,
                    bytes: self.memory[at(range)].to_vec(),
                };
                let mut memory = product::Memory {
                    a: place(a),
                    b: place(b),
                    c: added.filter(|added| added != d).as_ref().map(place),
                    d: place(d),
                    bias: vector.as_ref().map(place),
                    workspace: (MEMORY + room.start, room.bytes),
                };
                if product.compute == Compute::Tf32 && ![&memory.a, &memory.b].into_iter().all(is_tf32) {
                    return Err("a product in TF32 would round its operands".into());
                }
                product::run(&told(product), &mut memory)?;
                self.memory[at(d)].copy_from_slice(&memory.d.bytes);
                if let (Some(vector), Some(bias)) = (vector, memory.bias) {
                    self.memory[at(vector)].copy_from_slice(&bias.bytes);
                }
            }
            Work::Call { .. } | Work::Messages { .. } => return Err("a call on one rank".into()),
        }
        Ok(())
    }

    fn job(&self, work: &Work, time: u64) -> Job {
        let Work::Launch { entry, grid, block, shared, pointers, numbers, .. } = work else { panic!("no launch") };
        let mut coordinates = vec![0; self.program.mesh.axes().len()];
        *coordinates.last_mut().unwrap() = time;
        let operand = |(pointer, whole): (&Pointer, &bool)| {
            let bytes = pointer.range.at(time);
            let access = match (pointer.is_read, pointer.is_written) {
                _ if bytes.start == self.table.fault.start => Access::Fault,
                (true, true) => Access::Update,
                (false, _) => Access::Write,
                (true, false) => Access::Read,
            };
            let past = (bytes.start % 16) as u32;
            let bytes = self.memory[bytes.start as usize..bytes.end as usize].to_vec();
            Operand { name: pointer.name.clone(), access, whole: *whole, past, bytes }
        };
        Job {
            entry: entry.clone(),
            grid: *grid,
            block: *block,
            shared: *shared,
            operands: pointers.iter().zip(&self.whole[entry.as_str()]).map(operand).collect(),
            numbers: numbers.iter().map(|number| number.at(&coordinates)).collect(),
        }
    }
}
