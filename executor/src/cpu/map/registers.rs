//! Makes a fused program ready: collapses its space, and decides where each register lives while a
//! block runs.

use crate::cpu::map::join::join;
use crate::cpu::map::known::known;
use crate::cpu::map::program::{Fused, Leaf, Load, Op, Source, Storage, Target, Uniform};
use crate::cpu::map::table::Table;
use crate::cpu::map::update::Code;
use crate::cpu::space::{self, collapse};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::Map;
use shardc_ir::kernel::signature::elements;
use shardc_ir::position::Origin;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::Instr;
use std::collections::HashMap;
use std::sync::Arc;

/// Shorter rows are not worth a block of their own.
const LONG: usize = 256;

impl Leaf {
    /// Whether each row of the space has neighbours of it, of the compute type, or one element.
    fn has_rows(&self, map: &Map, compute: DType) -> bool {
        match (&self.source, self.strides.last().copied().unwrap_or(0)) {
            (Source::Operand(_) | Source::Index(_), 0) | (Source::Index(_), 1) => true,
            (Source::Operand(operand), 1) => map.inputs[*operand].dtype == compute,
            _ => false,
        }
    }

    /// Whether all rows are the same.
    fn depends_on_columns_alone(&self) -> bool {
        self.strides.split_last().is_some_and(|(_, outer)| outer.iter().all(|s| *s == 0))
    }
}

impl Fused {
    /// Makes `map` ready. `groups` has a number for each dimension; only dimensions of equal number
    /// are merged. `in_place` says for each input which output is the same memory. With `store`,
    /// results are computed in the outputs where types allow.
    pub fn new(map: &Map, groups: &[usize], in_place: &[Option<usize>], store: bool) -> Result<Fused, Reason> {
        let total = elements(&map.shape)? as usize;
        let compute = if map.compute == DType::Bool { DType::I64 } else { map.compute };
        let shape: Vec<usize> = map.shape.iter().map(|n| *n as usize).collect();
        let mut leaves = leaves(map, in_place)?;
        let mut strides: Vec<Vec<isize>> = leaves.iter().map(|(_, leaf)| leaf.strides.clone()).collect();
        let shape = collapse(&shape, &mut strides, groups);
        for ((_, leaf), strides) in leaves.iter_mut().zip(strides) {
            leaf.strides = strides;
        }
        let mut fused = Fused {
            shape,
            total,
            compute,
            by_rows: false,
            weight: 1 + map.program.cost() as usize,
            leaves: vec![],
            uniform: vec![],
            loads: vec![],
            update: None,
            ops: vec![],
            results: vec![],
            slots: 0,
        };
        let row = fused.shape.last().copied().unwrap_or(1);
        let is_copied = |leaf: &Leaf| !leaf.depends_on_columns_alone() && leaf.strides != space::contiguous(&fused.shape);
        fused.by_rows = row >= LONG && leaves.iter().any(|(_, leaf)| leaf.has_rows(map, compute) && is_copied(leaf));
        place(&mut fused, map, leaves, store)?;
        Ok(fused)
    }
}

/// The inputs and the index registers, with the register that each defines and strides over the
/// original space.
fn leaves(map: &Map, in_place: &[Option<usize>]) -> Result<Vec<(usize, Leaf)>, Reason> {
    let mut leaves = vec![];
    for (i, input) in map.inputs.iter().enumerate() {
        let source = match in_place.get(i).copied().flatten() {
            Some(output) => Source::InPlace(output),
            None => Source::Operand(i),
        };
        leaves.push((i, Leaf { source, strides: input.strides.iter().map(|s| *s as isize).collect() }));
    }
    for (i, instr) in map.program.code.iter().enumerate() {
        let Instr::Index(d) = instr else { continue };
        let size = *map.shape.get(*d as usize).ok_or("an index of a dimension that is not there")?;
        let origin = map.origins.iter().find(|(of, _)| of == d).map(|(_, origin)| origin.clone());
        let mut strides = vec![0; map.shape.len()];
        strides[*d as usize] = 1;
        let source = Source::Index(Arc::new(Table::new(origin.unwrap_or_else(|| Origin::whole(size)), size)));
        leaves.push((map.program.inputs as usize + i, Leaf { source, strides }));
    }
    Ok(leaves)
}

/// Fills in what `fused` does for each block. `leaves` come with the register that each defines;
/// with `store`, results are computed in the outputs where types allow.
fn place(fused: &mut Fused, map: &Map, leaves: Vec<(usize, Leaf)>, store: bool) -> Result<(), Reason> {
    let program = &map.program;
    let mut places: Vec<Option<Storage>> = vec![None; program.registers()];
    let mut streams = HashMap::new();
    for (register, leaf) in leaves {
        if map.inputs.get(register).is_some_and(|input| input.dtype == fused.compute)
            && leaf.strides == space::contiguous(&fused.shape)
        {
            streams.insert(register, fused.leaves.len());
        }
        places[register] = Some(place_leaf(fused, map, leaf));
    }
    let mut varying = vec![];
    for (i, instr) in program.code.iter().enumerate() {
        let register = program.inputs as usize + i;
        let op = match *instr {
            Instr::Const(value) => {
                places[register] = Some(push_uniform(fused, Uniform::Const(value)));
                continue;
            }
            Instr::Index(_) => continue,
            Instr::Unary(f, a) => Op::Unary(f, a as usize),
            Instr::Binary(f, a, b) => Op::Binary(f, a as usize, b as usize),
            Instr::Round(to, a) => Op::Round(to, a as usize),
            Instr::Select(a, b, c) => Op::Select(a as usize, b as usize, c as usize),
        };
        if op.operands().any(|r| r >= register) {
            return Err("a register is read before it is defined".into());
        }
        let uniform = |r: usize| if let Some(Storage::Uniform(u)) = places[r] { Some(u) } else { None };
        match op.map(uniform) {
            Some(op) => places[register] = Some(push_uniform(fused, Uniform::Op(op))),
            None => varying.push((register, op)),
        }
    }
    let results: Vec<usize> = program.outputs.iter().map(|r| *r as usize).collect();
    if results.iter().any(|r| *r >= places.len()) {
        return Err("an output names a register that is not there".into());
    }
    let has_its_types = !matches!(fused.compute, DType::I64) && map.outputs.iter().all(|dtype| *dtype == fused.compute);
    if store && has_its_types {
        let defined = varying.iter().copied().collect();
        fused.update = Code { defined, places: &places, leaves: &fused.leaves, streams: &streams }.update(&results);
        if fused.update.is_some() {
            (fused.loads, fused.slots) = (vec![], 0);
            return Ok(());
        }
    }
    let is_one = |leaf: usize| fused.leaves[leaf].strides.last() == Some(&0);
    let uniform: Vec<bool> = places
        .iter()
        .map(|place| match place {
            Some(Storage::Uniform(_)) => true,
            Some(Storage::Row(leaf)) => is_one(*leaf),
            _ => false,
        })
        .collect();
    let code = if fused.compute == DType::I64 { varying } else { known(varying, &uniform, &results) };
    let code = join(code, &uniform, &results);
    let outputs: Vec<(usize, bool)> =
        results.iter().zip(&map.outputs).map(|(r, dtype)| (*r, store && *dtype == fused.compute)).collect();
    place_code(fused, &code, &outputs, &mut places)?;
    let placed = results.iter().map(|r| places[*r].ok_or("an output names no value"));
    fused.results = placed.collect::<Result<_, _>>()?;
    Ok(())
}

fn push_uniform(fused: &mut Fused, uniform: Uniform) -> Storage {
    fused.uniform.push(uniform);
    Storage::Uniform(fused.uniform.len() - 1)
}

/// A leaf is uniform, read where it is, or loaded into a slot of its own.
fn place_leaf(fused: &mut Fused, map: &Map, leaf: Leaf) -> Storage {
    let index = fused.leaves.len();
    let row = fused.shape.last().copied().unwrap_or(1);
    let in_order = leaf.strides == space::contiguous(&fused.shape);
    let (same_type, in_place) = match leaf.source {
        Source::Operand(operand) => (map.inputs[operand].dtype == fused.compute, false),
        Source::InPlace(_) => (false, true),
        Source::Index(..) => (true, false),
    };
    let place = if !in_place && leaf.strides.iter().all(|s| *s == 0) {
        push_uniform(fused, Uniform::Leaf(index))
    } else if same_type && in_order {
        Storage::Direct(index)
    } else if fused.by_rows && leaf.has_rows(map, fused.compute) {
        Storage::Row(index)
    } else {
        let once = !in_place && leaf.depends_on_columns_alone() && row <= fused.block();
        fused.loads.push(Load { leaf: index, slot: fused.slots, once });
        fused.slots += 1;
        Storage::Slot(fused.slots - 1)
    };
    fused.leaves.push(leaf);
    place
}

/// Gives each result of `code` an output (of those that are a register, and may hold it) or a slot;
/// slots are used again after the last instruction that reads them.
fn place_code(
    fused: &mut Fused,
    code: &[(usize, Op<usize>)],
    outputs: &[(usize, bool)],
    places: &mut [Option<Storage>],
) -> Result<(), Reason> {
    let mut last_use = vec![0; places.len()];
    for (i, (register, op)) in code.iter().enumerate() {
        last_use[*register] = i;
        op.operands().for_each(|r| last_use[r] = i);
    }
    outputs.iter().for_each(|(r, _)| last_use[*r] = usize::MAX);
    let loaded = fused.loads.len();
    let mut free = vec![];
    for (i, (register, op)) in code.iter().enumerate() {
        let op = op.map(|r| places[r]).ok_or("a register is read before it is defined")?;
        let target = match outputs.iter().position(|output| *output == (*register, true)) {
            Some(output) => Target::Output(output),
            None => Target::Slot(free.pop().unwrap_or_else(|| {
                fused.slots += 1;
                fused.slots - 1
            })),
        };
        fused.ops.push((op, target));
        places[*register] = Some(target.into());
        for (r, place) in places.iter().enumerate() {
            if let Some(Storage::Slot(slot)) = place
                && last_use[r] == i
                && *slot >= loaded
                && !free.contains(slot)
            {
                free.push(*slot);
            }
        }
    }
    Ok(())
}
