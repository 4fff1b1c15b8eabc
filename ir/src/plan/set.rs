//! The programs of a mesh, and which of them each rank runs.

use super::tables::check_blocks;
use super::{BufferId, BufferKind, Program, ProgramInput, ProgramOutput, StateVariable};
use crate::mesh::{AxisId, Mesh};
use crate::reason::Reason;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Programs, or what is made of each, and which of them each rank runs: a function of its
/// coordinates. There is one at least.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanSet<P = Program> {
    /// The axes of ranks on which programs may differ. Ranks that are at the same place on them run
    /// the same program.
    pub axes: Vec<AxisId>,
    /// Every distinct program.
    pub programs: Vec<P>,
    /// The program of each place on `axes`, the last axis fastest, by position in `programs`.
    pub of: Vec<usize>,
}

/// An array that the host knows by name. In every program that has it, it is the rank's part of the
/// same array.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Name {
    /// A state variable.
    State(String),
    /// The gradient of a parameter.
    Gradient(String),
    /// A result.
    Output(String),
}

impl<P> PlanSet<P> {
    /// One program on every rank.
    pub fn alike(program: P) -> PlanSet<P> {
        PlanSet { axes: vec![], programs: vec![program], of: vec![0] }
    }

    /// The results of `f` on each program, for the same ranks.
    ///
    /// # Errors
    /// The first of `f`.
    pub fn try_map<Q, E>(self, f: impl FnMut(P) -> Result<Q, E>) -> Result<PlanSet<Q>, E> {
        let programs = self.programs.into_iter().map(f).collect::<Result<_, _>>()?;
        Ok(PlanSet { axes: self.axes, programs, of: self.of })
    }

    /// The same programs, borrowed.
    pub fn as_ref(&self) -> PlanSet<&P> {
        PlanSet { axes: self.axes.clone(), programs: self.programs.iter().collect(), of: self.of.clone() }
    }

    /// The program of `rank`, by position in `programs`.
    pub fn at(&self, mesh: &Mesh, rank: u64) -> usize {
        let coordinates = mesh.coordinates(rank);
        let place = self.axes.iter().fold(0, |place, axis| place * mesh.size(*axis) + coordinates[axis.index()]);
        self.of[place as usize]
    }

    /// The program of `rank`.
    pub fn of_rank(&self, mesh: &Mesh, rank: u64) -> &P {
        &self.programs[self.at(mesh, rank)]
    }

    /// Whether each rank of `mesh` has a program, and each program a rank.
    ///
    /// # Errors
    /// If not.
    pub fn check(&self, mesh: &Mesh) -> Result<(), Reason> {
        let ranks = mesh.rank_axes().len();
        let known = self.axes.iter().enumerate().all(|(i, axis)| axis.index() < ranks && !self.axes[..i].contains(axis));
        let places: u64 = if known { self.axes.iter().map(|axis| mesh.size(*axis)).product() } else { 0 };
        if !known || self.of.len() as u64 != places || self.of.iter().any(|p| *p >= self.programs.len()) {
            return Err("not every rank of the mesh has a program".into());
        }
        let run: BTreeSet<usize> = self.of.iter().copied().collect();
        if run.len() < self.programs.len() { Err("a program is run by no rank".into()) } else { Ok(()) }
    }

    /// For each place on the axes, the coordinates of its first rank.
    pub fn places(&self, mesh: &Mesh) -> Vec<Vec<u64>> {
        let mut places = vec![mesh.coordinates(0)];
        for axis in &self.axes {
            let at = |place: &Vec<u64>, i: u64| {
                let mut place = place.clone();
                place[axis.index()] = i;
                place
            };
            places = places.iter().flat_map(|place| (0..mesh.size(*axis)).map(move |i| at(place, i))).collect();
        }
        places
    }
}

impl PlanSet {
    /// The program of rank 0, where one runs on all ranks.
    ///
    /// # Panics
    /// If there is no program.
    pub fn into_first(mut self) -> Program {
        self.programs.swap_remove(self.of.first().copied().unwrap_or(0))
    }

    /// The program of rank 0. Name, mesh, batch, learning rate and seed are those of all.
    pub fn first(&self) -> &Program {
        &self.programs[self.of.first().copied().unwrap_or(0)]
    }

    /// The mesh of all.
    pub fn mesh(&self) -> &Mesh {
        &self.first().mesh
    }

    /// The program with the largest arena, the first of several.
    pub fn fullest(&self) -> &Program {
        self.of_rank(self.mesh(), self.fullest_rank())
    }

    /// The first rank with the largest arena.
    pub fn fullest_rank(&self) -> u64 {
        let bytes = |rank: &u64| self.of_rank(self.mesh(), *rank).arena_bytes;
        let ranks = self.places(self.mesh()).into_iter().map(|place| self.mesh().rank(&place));
        ranks.max_by_key(|rank| (bytes(rank), std::cmp::Reverse(*rank))).unwrap_or(0)
    }

    /// The ranks whose arena has so many bytes.
    pub fn ranks_of(&self, arena_bytes: u64) -> u64 {
        let alike = self.of.iter().filter(|program| self.programs[**program].arena_bytes == arena_bytes).count() as u64;
        alike * self.mesh().world_size() / self.of.len() as u64
    }

    /// Checks the tables of each program, and that they are of one mesh whose every rank has one.
    ///
    /// # Errors
    /// The first thing that is wrong, in words.
    pub fn check_tables(&self) -> Result<(), Reason> {
        let Some(first) = self.programs.first() else { return Err("there is no program".into()) };
        self.programs.iter().try_for_each(Program::check_tables)?;
        check_blocks(&self.programs.iter().collect::<Vec<_>>())?;
        if self.programs.iter().any(|program| program.mesh != first.mesh) {
            return Err("its programs are of different meshes".into());
        }
        self.check(&first.mesh)
    }

    /// Every state variable once, with the first program that has it.
    pub fn states(&self) -> Vec<(&Program, &StateVariable)> {
        self.each(|program| &program.states, |state| &state.name)
    }

    /// Every input once, with the first program that has it: the order of the arrays of a batch.
    pub fn inputs(&self) -> Vec<(&Program, &ProgramInput)> {
        self.each(|program| &program.inputs, |input| &input.name)
    }

    /// Every result once, with the first program that has it.
    pub fn outputs(&self) -> Vec<(&Program, &ProgramOutput)> {
        self.each(|program| &program.outputs, |output| &output.name)
    }

    /// Every result, gradient and state variable.
    pub fn names(&self) -> Vec<Name> {
        let mut known = BTreeSet::new();
        let all = self.programs.iter().flat_map(Program::names).map(|(name, _)| name);
        all.filter(|name| known.insert(name.clone())).collect()
    }

    fn each<'p, T>(
        &'p self,
        table: impl Fn(&'p Program) -> &'p Vec<T>,
        name: impl Fn(&'p T) -> &'p str,
    ) -> Vec<(&'p Program, &'p T)> {
        let mut known = BTreeSet::new();
        let all = self.programs.iter().flat_map(|program| table(program).iter().map(move |entry| (program, entry)));
        all.filter(|(_, entry)| known.insert(name(entry))).collect()
    }
}

impl From<Program> for PlanSet {
    fn from(program: Program) -> PlanSet {
        PlanSet::alike(program)
    }
}

impl Program {
    /// Its results, gradients and state variables, and their buffers.
    pub fn names(&self) -> impl Iterator<Item = (Name, BufferId)> + '_ {
        let outputs = self.outputs.iter().map(|output| (Name::Output(output.name.clone()), output.buffer));
        let gradient = |(id, kind): (u32, &BufferKind)| match kind {
            BufferKind::Gradient(of) => Some((Name::Gradient(self.states.get(*of as usize)?.name.clone()), BufferId(id))),
            _ => None,
        };
        let gradients = (0..).zip(self.buffers.iter().map(|buffer| &buffer.kind)).filter_map(gradient);
        let states = self.states.iter().map(|state| (Name::State(state.name.clone()), state.buffer));
        outputs.chain(gradients).chain(states)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_runs_the_program_of_its_place() {
        let mesh = Mesh::new([("dp".to_string(), 2), ("pp".to_string(), 3), ("tp".to_string(), 2)], 1);
        let set = PlanSet { axes: vec![AxisId(1)], programs: vec!["first", "middle", "last"], of: vec![0, 1, 2] };
        assert_eq!(set.check(&mesh), Ok(()));
        let found: Vec<&str> = (0..12).map(|rank| *set.of_rank(&mesh, rank)).collect();
        let half = ["first", "first", "middle", "middle", "last", "last"];
        assert_eq!(found, [half, half].concat());
        let two = PlanSet { axes: vec![AxisId(2), AxisId(0)], of: vec![0, 1, 2, 2], ..set.clone() };
        assert_eq!((*two.of_rank(&mesh, 0), *two.of_rank(&mesh, 6), *two.of_rank(&mesh, 1)), ("first", "middle", "last"));
        for places in two.places(&mesh) {
            assert_eq!(mesh.coordinates(mesh.rank(&places)), places);
        }
        assert!(PlanSet { of: vec![0, 1], ..set.clone() }.check(&mesh).is_err());
        assert!(PlanSet { of: vec![0, 1, 1], ..set.clone() }.check(&mesh).is_err());
        assert!(PlanSet { axes: vec![AxisId(3)], of: vec![0], ..set }.check(&mesh).is_err());
    }
}
