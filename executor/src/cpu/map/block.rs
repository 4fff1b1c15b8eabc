//! Running a fused program block by block.

use crate::cpu::element::{Element, Slice, SliceMut, each_type};
use crate::cpu::lanes::{self, Lanes};
use crate::cpu::map::program::{Call, Fused, Load, Op, Source, Storage, Target, Uniform};
use crate::cpu::map::update::Update;
use crate::cpu::number::Number;
use crate::cpu::space::{self, Odometer};
use shardc_ir::reason::Reason;
use shardc_ir::scalar::Binary;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Elements that are updated at a time.
const PIECE: usize = 4096;

/// Rows that are loaded several at once.
const SHORT: usize = 64;

/// A program with the operands of one launch: shared by the threads that run its blocks.
pub struct Bound<'a, T> {
    fused: &'a Fused,
    leaves: Vec<Data<'a, T>>,
    uniform: Vec<T>,
    /// Whether an integer was divided by 0.
    by_zero: AtomicBool,
}

enum Data<'a, T> {
    Operand(Slice<'a>),
    InPlace(usize),
    Table(Arc<Vec<T>>),
}

impl<'a, T: Number> Bound<'a, T> {
    /// Binds `reads` (one for each input; those in place are not looked at) at the mesh
    /// `coordinates`.
    pub fn new(fused: &'a Fused, reads: &[Slice<'a>], coordinates: &[u64]) -> Bound<'a, T> {
        let leaves = fused.leaves.iter().map(|leaf| match &leaf.source {
            Source::Operand(operand) => Data::Operand(reads[*operand]),
            Source::InPlace(output) => Data::InPlace(*output),
            Source::Index(table) => Data::Table(table.at(coordinates, i64_to)),
        });
        let uniform = Vec::with_capacity(fused.uniform.len());
        let mut bound = Bound { fused, leaves: leaves.collect(), uniform, by_zero: AtomicBool::new(false) };
        if fused.total > 0 {
            for uniform in &fused.uniform {
                let value = bound.uniform_value(uniform);
                bound.uniform.push(value);
            }
        }
        bound
    }

    /// An error if what has run has no result: an integer divided by 0.
    pub fn outcome(&self) -> Result<(), Reason> {
        if self.by_zero.load(Ordering::Relaxed) { Err("an integer is divided by 0".into()) } else { Ok(()) }
    }

    /// Updates the elements `start..end`, all that `states` hold. What is not in place is copied to
    /// where it is updated.
    pub fn update(&self, update: &Update, states: Vec<SliceMut<'_>>, start: usize, end: usize) {
        let typed = "operands and results of an update have the compute type";
        let operand = |leaf: usize| match &self.leaves[leaf] {
            Data::Operand(data) => Some(T::of(*data).expect(typed)),
            _ => None,
        };
        let gradient = operand(update.gradient).expect("a gradient is not in place");
        let mut states: Vec<&mut [T]> = states.into_iter().map(|mut state| T::take(&mut state).expect(typed)).collect();
        for from in (start..end).step_by(PIECE) {
            let piece = from..end.min(from + PIECE);
            let mut own: Vec<&mut [T]> = states.iter_mut().map(|all| &mut all[piece.start - start..piece.end - start]).collect();
            for (own, leaf) in own.iter_mut().zip(&update.states) {
                operand(*leaf).into_iter().for_each(|old| own.copy_from_slice(&old[piece.clone()]));
            }
            update.run(&self.uniform, &gradient[piece], &mut own);
        }
    }

    /// The elements of a leaf, if it is an operand of f32.
    pub fn singles(&self, leaf: usize) -> Option<&'a [f32]> {
        if let Data::Operand(Slice::F32(elements)) = self.leaves[leaf] { Some(elements) } else { None }
    }

    fn note_division(&self, f: Binary, divisor: Lanes<'_, T>) {
        let is_zero = |divisor: Lanes<'_, T>| match divisor {
            Lanes::Each(lanes) => lanes.contains(&T::ZERO),
            Lanes::All(value) => value == T::ZERO,
        };
        if T::IS_INTEGER && matches!(f, Binary::Div | Binary::Mod) && is_zero(divisor) {
            self.by_zero.store(true, Ordering::Relaxed);
        }
    }

    fn uniform_value(&self, uniform: &Uniform) -> T {
        let value = |u: usize| self.uniform[u];
        let mut out = [T::ZERO];
        match *uniform {
            Uniform::Const(value) => return T::from_f64(value),
            Uniform::Leaf(leaf) => match &self.leaves[leaf] {
                Data::Operand(data) => T::load(*data, 0, 0, &mut out),
                Data::Table(table) => return table[0],
                Data::InPlace(_) => {}
            },
            Uniform::Op(Op::Unary(f, a)) => lanes::unary(f, &[value(a)], &mut out),
            Uniform::Op(Op::Round(to, a)) => lanes::round(to, &[value(a)], &mut out),
            Uniform::Op(Op::Binary(f, a, b)) => {
                self.note_division(f, Lanes::All(value(b)));
                lanes::binary(f, Lanes::Each(&[value(a)]), Lanes::All(value(b)), &mut out);
            }
            // Only instructions that vary are joined, or are a formula.
            Uniform::Op(Op::Chain(..) | Op::Formula(_)) => {}
            Uniform::Op(Op::Select(a, b, c)) => return if value(a).is_true() { value(b) } else { value(c) },
        }
        out[0]
    }
}

/// One thread's registers, and the part of the outputs that it computes.
pub struct Worker<'b, 'a, T> {
    bound: &'b Bound<'a, T>,
    slots: Vec<Vec<T>>,
    outputs: Vec<SliceMut<'b>>,
    /// The element of the iteration space where `outputs` begin.
    base: usize,
    /// The block that runs: first element and length.
    start: usize,
    len: usize,
    fresh: bool,
    /// Where the block begins in each leaf, if it lies within a row.
    offsets: Vec<isize>,
}

impl<'b, 'a, T: Number> Worker<'b, 'a, T> {
    /// A worker whose `outputs` hold the elements from `base` on.
    pub fn new(bound: &'b Bound<'a, T>, outputs: Vec<SliceMut<'b>>, base: usize) -> Worker<'b, 'a, T> {
        let size = bound.fused.block().min(bound.fused.total);
        let slots = (0..bound.fused.slots).map(|_| vec![T::ZERO; size]).collect();
        Worker { bound, slots, outputs, base, start: 0, len: 0, fresh: true, offsets: vec![] }
    }

    /// Computes the elements `start..end` and stores them in the outputs.
    pub fn store(&mut self, start: usize, end: usize) {
        let fused = self.bound.fused;
        let mut at = start;
        while at < end {
            let len = fused.block_at(at, end);
            self.evaluate(at, len);
            for (output, result) in fused.results.iter().enumerate() {
                if *result != Storage::Output(output) {
                    self.store_result(output, *result);
                }
            }
            at += len;
        }
    }

    /// Computes the elements `start..start + len`, which are whole rows or lie within one, and
    /// returns the first result.
    pub fn first_result(&mut self, start: usize, len: usize) -> Lanes<'_, T> {
        self.evaluate(start, len);
        self.lanes(self.bound.fused.results[0])
    }

    fn evaluate(&mut self, start: usize, len: usize) {
        (self.start, self.len) = (start, len);
        let fused = self.bound.fused;
        if fused.by_rows {
            self.enter_row();
        }
        for load in &fused.loads {
            if self.fresh || !load.once {
                self.load(load);
            }
        }
        self.fresh = false;
        for (op, target) in &fused.ops {
            match *target {
                Target::Slot(slot) => {
                    let mut out = std::mem::take(&mut self.slots[slot]);
                    self.run(*op, &mut out[..len]);
                    self.slots[slot] = out;
                }
                Target::Output(output) => {
                    let out = T::take(&mut self.outputs[output]).expect("results are placed in outputs of the compute type only");
                    self.run(*op, &mut out[start - self.base..][..len]);
                    self.outputs[output] = T::wrap_mut(out);
                }
            }
        }
    }

    fn enter_row(&mut self) {
        let fused = self.bound.fused;
        let index = space::digits(&fused.shape, self.start);
        let dot = |strides: &[isize]| -> isize { strides.iter().zip(index).map(|(stride, i)| stride * i as isize).sum() };
        self.offsets.clear();
        self.offsets.extend(fused.leaves.iter().map(|leaf| dot(&leaf.strides)));
    }

    fn run(&self, op: Op<Storage>, out: &mut [T]) {
        match op {
            Op::Unary(f, a) => match self.lanes(a) {
                Lanes::Each(a) => lanes::unary(f, a, out),
                Lanes::All(a) => {
                    let mut value = [T::ZERO];
                    lanes::unary(f, &[a], &mut value);
                    out.fill(value[0]);
                }
            },
            Op::Round(to, a) => match self.lanes(a) {
                Lanes::Each(a) => lanes::round(to, a, out),
                Lanes::All(a) => {
                    let mut value = [T::ZERO];
                    lanes::round(to, &[a], &mut value);
                    out.fill(value[0]);
                }
            },
            Op::Binary(f, a, b) => {
                self.bound.note_division(f, self.lanes(b));
                lanes::binary(f, self.lanes(a), self.lanes(b), out);
            }
            Op::Chain(first, then, a, b, c) => {
                self.bound.note_division(first, self.lanes(b));
                match self.lanes(a) {
                    Lanes::Each(a) => lanes::chain(first, then, a, self.lanes(b), self.lanes(c), out),
                    Lanes::All(a) => lanes::chain(first, then, &vec![a; out.len()], self.lanes(b), self.lanes(c), out),
                }
            }
            Op::Formula(call) => self.run_formula(call, out),
            Op::Select(test, a, b) => match self.lanes(test) {
                Lanes::Each(test) => lanes::select(test, self.lanes(a), self.lanes(b), out),
                Lanes::All(test) => match self.lanes(if test.is_true() { a } else { b }) {
                    Lanes::Each(chosen) => out.copy_from_slice(chosen),
                    Lanes::All(chosen) => out.fill(chosen),
                },
            },
        }
    }

    /// A formula is given its first operand, and 0, in place of operands and numbers that it does
    /// not read.
    fn run_formula(&self, call: Call<Storage>, out: &mut [T]) {
        let elements = |place: Option<Storage>| match place.or(call.operands[0]).map(|place| self.lanes(place)) {
            Some(Lanes::Each(elements)) => elements,
            _ => unreachable!("operands of formulas vary"),
        };
        let number = |place: Option<Storage>| match place.map(|place| self.lanes(place)) {
            Some(Lanes::All(number)) => number,
            _ => T::ZERO,
        };
        call.formula.run(call.operands.map(elements), call.numbers.map(number), out);
    }

    fn lanes(&self, place: Storage) -> Lanes<'_, T> {
        let direct = "only operands of the compute type are read in place";
        match place {
            Storage::Uniform(uniform) => Lanes::All(self.bound.uniform[uniform]),
            Storage::Slot(slot) => Lanes::Each(&self.slots[slot][..self.len]),
            Storage::Output(output) => {
                let out = T::peek(&self.outputs[output]).expect(direct);
                Lanes::Each(&out[self.start - self.base..][..self.len])
            }
            Storage::Direct(leaf) => {
                let data = match &self.bound.leaves[leaf] {
                    Data::Operand(data) => T::of(*data).expect(direct),
                    Data::Table(table) => table,
                    Data::InPlace(_) => &[],
                };
                Lanes::Each(&data[self.start..][..self.len])
            }
            Storage::Row(leaf) => {
                let data = match &self.bound.leaves[leaf] {
                    Data::Operand(data) => *data,
                    Data::Table(table) => T::wrap(table),
                    Data::InPlace(_) => return Lanes::All(T::ZERO),
                };
                let at = self.offsets[leaf];
                if self.bound.fused.leaves[leaf].strides.last() == Some(&1) {
                    return Lanes::Each(&T::of(data).expect(direct)[at as usize..][..self.len]);
                }
                let mut one = [T::ZERO];
                T::load(data, at, 0, &mut one);
                Lanes::All(one[0])
            }
        }
    }

    fn store_result(&mut self, output: usize, result: Storage) {
        let mut out = std::mem::replace(&mut self.outputs[output], SliceMut::Bool(&mut []));
        let at = self.start - self.base;
        let lanes = self.lanes(result);
        each_type!(SliceMut, &mut out, out => lanes::store(lanes, &mut out[at..][..self.len]));
        self.outputs[output] = out;
    }

    fn load(&mut self, load: &Load) {
        let mut slot = std::mem::take(&mut self.slots[load.slot]);
        let leaf = &self.bound.fused.leaves[load.leaf];
        let (start, len) = if load.once { (0, slot.len()) } else { (self.start, self.len) };
        match &self.bound.leaves[load.leaf] {
            Data::Operand(data) => self.load_rows(*data, &leaf.strides, start, &mut slot[..len]),
            Data::Table(table) => self.load_rows(T::wrap(table.as_slice()), &leaf.strides, start, &mut slot[..len]),
            Data::InPlace(output) => {
                each_type!(SliceMut, &self.outputs[*output], data => {
                    T::load(Element::wrap(data), (start - self.base) as isize, 1, &mut slot[..len]);
                });
            }
        }
        self.slots[load.slot] = slot;
    }

    fn load_rows(&self, data: Slice<'_>, strides: &[isize], start: usize, out: &mut [T]) {
        let shape = &self.bound.fused.shape;
        let (Some((row, outer)), Some((inner, outer_strides))) = (shape.split_last(), strides.split_last()) else { return };
        let mut column = start % row;
        let is_short =
            *row <= SHORT && column == 0 && out.len().is_multiple_of(*row) && strides.iter().all(|stride| *stride >= 0);
        if let (Some(data), Some((rows, outer)), Some((step, outer_strides))) =
            (T::of(data).filter(|_| is_short), outer.split_last(), outer_strides.split_last())
        {
            let mut odometer = Odometer::at(outer, outer_strides, start / row / rows);
            let (mut first, mut out) = (start / row % rows, out);
            while !out.is_empty() {
                let count = (rows - first).min(out.len() / row);
                let (part, rest) = out.split_at_mut(count * row);
                let at = odometer.offset + first as isize * step;
                lanes::load_rows(&data[at as usize..], *step as usize, *row, *inner as usize, part);
                odometer.advance();
                (first, out) = (0, rest);
            }
            return;
        }
        let mut odometer = Odometer::at(outer, outer_strides, start / row);
        for piece in out.chunks_mut(if column == 0 { *row } else { out.len() }) {
            T::load(data, odometer.offset + column as isize * inner, *inner, piece);
            odometer.advance();
            column = 0;
        }
    }
}

fn i64_to<T: Number>(value: i64) -> T {
    let mut out = [T::ZERO];
    T::load(Slice::I64(&[value]), 0, 0, &mut out);
    out[0]
}
