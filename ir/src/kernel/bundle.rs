//! Bundle: maps and reductions as one kernel, row by row.
//!
//! ```text
//! %m = reduce_max axes=[1] %x                  [4096]
//! %s = map(sub, exp, sum axes=[1]) %x, %m      [4096]
//! %d = map(sub, exp, div) %x, %m, %s           [4096, 50257]
//! ```
//!
//! As a bundle of 4096 rows each row of `%x` is brought near once, and `%d` may be written over it.
//! A bundle whose members read nothing of one another has one row: the update of many parameters by
//! one launch.

use super::Kernel;
use super::form::{Form, Position};
use super::map::{Map, MapInput};
use super::reduce::Reduce;
use super::signature::{Operand, Signature};
use crate::dtype::DType;
use crate::limits::MAX_MEMBERS;
use crate::mesh::Mesh;
use crate::reason;
use crate::reason::Reason;
use crate::reduce_kind::ReduceKind;
use crate::scalar::{Binary, Instr, ScalarProgram, Unary};
use serde::{Deserialize, Serialize};

/// Kernels that are carried out row by row: row `r` of every member follows row `r` of those before
/// it. Operands: those that members read from outside, then the results of all members in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bundle {
    /// How many rows.
    pub rows: u64,
    /// The kernels. The first dimensions of each one's space are the rows; a reduction is over all
    /// of the others.
    pub members: Vec<Member>,
}

/// A kernel of a bundle, with the sources of its operands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// The kernel.
    pub kernel: MemberKernel,
    /// For each operand that it reads, where that is.
    pub reads: Vec<Source>,
}

/// A kernel that a bundle may have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each form is documented at its struct")]
pub enum MemberKernel {
    Map(Map),
    Reduce(Reduce),
}

/// What a member reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// An operand that the bundle reads.
    Read(u32),
    /// The result of an earlier member, as an operand that the bundle writes.
    Write(u32),
}

impl MemberKernel {
    /// The form behind it.
    pub fn form(&self) -> &dyn Form {
        match self {
            MemberKernel::Map(map) => map,
            MemberKernel::Reduce(reduce) => reduce,
        }
    }

    /// The kernel by itself.
    pub fn alone(&self) -> Kernel {
        match self {
            MemberKernel::Map(map) => Kernel::Map(map.clone()),
            MemberKernel::Reduce(reduce) => Kernel::Reduce(reduce.clone()),
        }
    }

    fn form_mut(&mut self) -> &mut dyn Form {
        match self {
            MemberKernel::Map(map) => map,
            MemberKernel::Reduce(reduce) => reduce,
        }
    }

    /// The elementwise program, over the space.
    pub fn map(&self) -> &Map {
        match self {
            MemberKernel::Map(map) => map,
            MemberKernel::Reduce(reduce) => &reduce.map,
        }
    }

    /// The same, to be changed.
    pub fn map_mut(&mut self) -> &mut Map {
        match self {
            MemberKernel::Map(map) => map,
            MemberKernel::Reduce(reduce) => &mut reduce.map,
        }
    }

    /// How many of the first dimensions of the space are the rows; `None` if none are.
    pub fn row_dims(&self, rows: u64) -> Option<usize> {
        let shape = &self.map().shape;
        let is_whole = |dims: &usize| shape[..*dims].iter().fold(1, |n: u64, size| n.saturating_mul(*size)) == rows;
        let is_reduced = |d: usize| match self {
            MemberKernel::Map(_) => None,
            MemberKernel::Reduce(reduce) => reduce.reduced.get(d).copied(),
        };
        let wants = |d: usize, reduced: bool| shape[d] == 1 || is_reduced(d).is_none_or(|own| own == reduced);
        let fits = |dims: &usize| (0..*dims).all(|d| wants(d, false)) && (*dims..shape.len()).all(|d| wants(d, true));
        (0..=shape.len()).filter(is_whole).find(fits)
    }

    /// The elements of the space in a row.
    pub fn width(&self, rows: u64) -> Option<u64> {
        let shape = &self.map().shape;
        Some(shape[self.row_dims(rows)?..].iter().fold(1, |n: u64, size| n.saturating_mul(*size)))
    }

    /// The elements of a result in a row.
    pub fn result_width(&self, rows: u64) -> Option<u64> {
        match self {
            MemberKernel::Map(_) => self.width(rows),
            MemberKernel::Reduce(_) => self.row_dims(rows).map(|_| 1),
        }
    }

    /// The elements from what one row reads of operand `read` to what the next one does; 0 where
    /// all read the same, or there is one row; `None` where that is not the same for all rows.
    pub fn row_step(&self, read: usize, rows: u64) -> Option<i64> {
        let (map, dims) = (self.map(), self.row_dims(rows)?);
        let strides = map.inputs.get(read)?.strides.get(..dims)?;
        let mut steps = map.shape.iter().zip(strides).rev().filter(|(size, _)| **size > 1);
        let Some((size, step)) = steps.next() else { return Some(0) };
        let mut next = i128::from(*step) * i128::from(*size);
        for (size, stride) in steps {
            if i128::from(*stride) != next {
                return None;
            }
            next = next.saturating_mul(i128::from(*size));
        }
        Some(*step)
    }

    /// The last element that a row reads of operand `read`, counted from the row's first; `None` if
    /// it reads before that one.
    fn reach(&self, read: usize, rows: u64) -> Option<u64> {
        let (map, dims) = (self.map(), self.row_dims(rows)?);
        let mut reach = 0i128;
        for (size, stride) in map.shape.iter().zip(&map.inputs.get(read)?.strides).skip(dims).filter(|(size, _)| **size > 1) {
            reach += i128::from((*stride >= 0).then_some(*stride)?) * i128::from(size - 1);
        }
        u64::try_from(reach).ok()
    }

    /// Whether the rows of operand `read`, of `width` elements each, are read by their own rows
    /// alone.
    fn keeps_to_rows(&self, read: usize, rows: u64, width: u64) -> bool {
        let step = self.row_step(read, rows);
        let is_own = rows == 1 || step.and_then(|step| u64::try_from(step).ok()) == Some(width);
        is_own && self.reach(read, rows).is_some_and(|reach| reach < width)
    }
}

impl Member {
    /// The same over `rows` of `all` rows, which are the first dimension then; `None` if its rows
    /// are not alike.
    pub fn over(&self, all: u64, rows: u64) -> Option<Member> {
        let (map, dims) = (self.kernel.map(), self.kernel.row_dims(all)?);
        let dim = |d: u16| Some((d as usize).checked_sub(dims)? as u16 + 1);
        let instr = |instr: &Instr| match *instr {
            Instr::Index(d) => dim(d).map(Instr::Index),
            other => Some(other),
        };
        let input = |(at, input): (usize, &MapInput)| {
            let step = self.kernel.row_step(at, all)?;
            let strides = [step].into_iter().chain(input.strides[dims..].iter().copied()).collect();
            Some(MapInput { dtype: input.dtype, strides })
        };
        let map = Map {
            compute: map.compute,
            shape: [rows].into_iter().chain(map.shape[dims..].iter().copied()).collect(),
            inputs: map.inputs.iter().enumerate().map(input).collect::<Option<_>>()?,
            program: ScalarProgram { code: map.program.code.iter().map(instr).collect::<Option<_>>()?, ..map.program.clone() },
            outputs: map.outputs.clone(),
            origins: map.origins.iter().map(|(d, origin)| Some((dim(*d)?, origin.clone()))).collect::<Option<_>>()?,
        };
        let kernel = match &self.kernel {
            MemberKernel::Map(_) => MemberKernel::Map(map),
            MemberKernel::Reduce(Reduce { kind, reduced, accumulate, .. }) => {
                let reduced = [false].into_iter().chain(reduced[dims..].iter().copied()).collect();
                MemberKernel::Reduce(Reduce { map, kind: *kind, reduced, accumulate: *accumulate })
            }
        };
        Some(Member { kernel, reads: self.reads.clone() })
    }

    /// The member's own operands that the bundle reads as `at`.
    fn operands(&self, at: Source) -> impl Iterator<Item = usize> + '_ {
        (0..).zip(&self.reads).filter(move |(_, source)| **source == at).map(|(own, _)| own)
    }
}

impl Bundle {
    /// For each member the first of its results among the operands that the bundle writes.
    pub fn results(&self) -> Vec<usize> {
        let counts = self.members.iter().map(|member| member.kernel.map().outputs.len());
        let mut next = 0;
        counts.map(|count| (next, next += count).0).collect()
    }

    /// The member that writes operand `write`, and which of its results that is.
    pub fn writer(&self, write: usize) -> Option<(usize, usize)> {
        let firsts = self.results();
        let member = firsts.iter().rposition(|first| *first <= write)?;
        let own = write - firsts[member];
        (own < self.members[member].kernel.map().outputs.len()).then_some((member, own))
    }

    /// Whether no member reads what another one writes.
    pub fn is_side_by_side(&self) -> bool {
        self.members.iter().flat_map(|member| &member.reads).all(|source| matches!(source, Source::Read(_)))
    }
}

impl Bundle {
    /// The softmax of `[rows, width]` in f32 as a bundle: the largest number of each row, the sum
    /// of exponentials beside it, and the shares.
    pub fn softmax(rows: u64, width: u64) -> Bundle {
        let (all, row): (&[i64], &[i64]) = (&[width as i64, 1], &[1, 0]);
        let map = |inputs: &[&[i64]], code| Map::of_f32(&[rows, width], inputs, code);
        let reduce = |kind, map| MemberKernel::Reduce(Reduce { map, kind, reduced: vec![false, true], accumulate: DType::F32 });
        let power = vec![Instr::Binary(Binary::Sub, 0, 1), Instr::Unary(Unary::Exp, 2)];
        let share = vec![Instr::Binary(Binary::Sub, 0, 1), Instr::Unary(Unary::Exp, 3), Instr::Binary(Binary::Div, 4, 2)];
        let (x, top, total) = (Source::Read(0), Source::Write(0), Source::Write(1));
        let members = vec![
            Member { kernel: reduce(ReduceKind::Max, map(&[all], vec![])), reads: vec![x] },
            Member { kernel: reduce(ReduceKind::Sum, map(&[all, row], power)), reads: vec![x, top] },
            Member { kernel: MemberKernel::Map(map(&[all, row, row], share)), reads: vec![x, top, total] },
        ];
        Bundle { rows, members }
    }
}

impl Form for Bundle {
    fn name(&self) -> &'static str {
        "bundle"
    }

    fn signature(&self, mesh: &Mesh) -> Result<Signature, Reason> {
        if self.members.len() > MAX_MEMBERS {
            return Err(reason!("{} members, more than {MAX_MEMBERS}", self.members.len()));
        }
        let count = self.members.iter().flat_map(|member| &member.reads);
        let count = count
            .filter_map(|source| if let Source::Read(at) = source { Some(*at as usize + 1) } else { None })
            .max()
            .unwrap_or(0);
        let mut reads: Vec<Option<Operand>> = vec![];
        if count > self.members.iter().map(|member| member.reads.len()).sum() {
            return Err("an operand that no member reads".into());
        }
        reads.resize(count, None);
        let mut writes: Vec<Operand> = vec![];
        for member in &self.members {
            let own = member.kernel.form().signature(mesh)?;
            let Some(width) = member.kernel.width(self.rows) else {
                return Err(reason!("a member's space does not begin with {} rows", self.rows));
            };
            if own.reads.len() != member.reads.len() {
                return Err("a member has another number of operands than sources".into());
            }
            let is_empty = self.rows == 0 || width == 0;
            for (at, (operand, source)) in own.reads.iter().zip(&member.reads).enumerate() {
                match *source {
                    Source::Read(read) => {
                        let known = reads[read as usize].get_or_insert(*operand);
                        if known.dtype != operand.dtype {
                            return Err("members read one operand as different types".into());
                        }
                        known.elements = known.elements.max(operand.elements);
                    }
                    Source::Write(write) => {
                        let Some(known) = writes.get(write as usize) else {
                            return Err("a member reads what is written later".into());
                        };
                        if known.dtype != operand.dtype || known.elements < operand.elements {
                            return Err("a member reads a result that is not such".into());
                        }
                        if !is_empty && !member.kernel.keeps_to_rows(at, self.rows, known.elements / self.rows) {
                            return Err("a member reads other rows of a result than its own".into());
                        }
                    }
                }
            }
            writes.extend(own.writes);
        }
        let reads = reads.into_iter().collect::<Option<Vec<Operand>>>().ok_or("an operand that no member reads")?;
        Ok(Signature { reads, writes })
    }

    /// A result may be written over an operand that its member may write over, that members before
    /// it read row by row, and those behind it do not. Members side by side are in no order.
    fn in_place(&self, read: usize, write: usize) -> bool {
        let Some((writer, result)) = self.writer(write) else { return false };
        let source = Source::Read(read as u32);
        let reads = |member: &Member| member.operands(source).next().is_some();
        let own = &self.members[writer];
        if !reads(own) || !own.operands(source).all(|operand| own.kernel.form().in_place(operand, result)) {
            return false;
        }
        let (before, behind) = (&self.members[..writer], &self.members[writer + 1..]);
        if self.is_side_by_side() {
            return !before.iter().chain(behind).any(reads);
        }
        let Some(width) = own.kernel.width(self.rows) else { return false };
        let by_rows = |member: &Member| member.operands(source).all(|own| member.kernel.keeps_to_rows(own, self.rows, width));
        before.iter().all(by_rows) && !behind.iter().any(reads)
    }

    fn flops(&self) -> u64 {
        self.members.iter().map(|member| member.kernel.form().flops()).fold(0, u64::saturating_add)
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        self.members.iter_mut().flat_map(|member| member.kernel.map_mut().numbers_mut()).collect()
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        let members = self.members.iter_mut().flat_map(|member| member.kernel.form_mut().sizes_mut());
        members.chain([&mut self.rows]).collect()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        self.members.iter_mut().flat_map(|member| member.kernel.form_mut().strides_mut()).collect()
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        self.members.iter_mut().flat_map(|member| member.kernel.form_mut().positions_mut()).collect()
    }

    fn everyday() -> Vec<(String, Self)> {
        vec![("softmax in a bundle 512x4096".to_string(), Bundle::softmax(512, 4096))]
    }
}
