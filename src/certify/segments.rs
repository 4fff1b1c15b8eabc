//! The loss from several points of the step on: a parameter that is first read late changes nothing
//! before, so what was computed there is data, and is not run for it again.

use super::sample::Sample;
use super::whole::{Planned, Run, Whole, cut_name};
use super::{MOST_WORK, Stop, Subject};
use shardc_executor::tensor::Tensor;
use shardc_ir::graph::{NodeId, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::reason::Reason;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The parts into which parameters come by where they are first read.
pub const PARTS: usize = 4;

/// The loss as a function of some of the parameters.
pub struct Segment {
    planned: Planned,
    data: BTreeMap<String, Tensor>,
    /// The positions of these parameters in the table of state variables.
    pub parameters: Vec<usize>,
}

impl Segment {
    /// The programs of `loss` for all `parameters`, each of which is in one.
    pub fn all(
        whole: &Whole<'_>,
        loss: ValueId,
        parameters: &[usize],
        subject: &Subject<'_>,
        sample: &Sample,
    ) -> Result<Vec<Segment>, Stop> {
        let needed = whole.needed(&[loss], &HashMap::new());
        let is_run = |id: NodeId| whole.graph.node(id).results.iter().any(|v| needed[v.index()] && whole.source(*v) == *v);
        let run: Vec<NodeId> = whole.graph.nodes().map(|(id, _)| id).filter(|id| is_run(*id)).collect();
        let mut first_read: HashMap<usize, NodeId> = HashMap::new();
        for id in &run {
            for operand in &whole.graph.node(*id).operands {
                if let Op::State(read) = &whole.def(*operand).op {
                    first_read.entry(read.state.index()).or_insert(*id);
                }
            }
        }
        let mut sorted = parameters.to_vec();
        sorted.sort_by_key(|parameter| first_read.get(parameter).copied());
        let parts: Vec<&[usize]> = sorted.chunks(sorted.len().div_ceil(PARTS).max(1)).collect();
        let start = |part: &[usize]| part.iter().map(|parameter| first_read.get(parameter).copied()).min().flatten();
        let is_computed = |v: &ValueId| !matches!(whole.def(*v).op, Op::State(_) | Op::Input(_) | Op::Constant(_) | Op::Host(_));
        let before = |part: &[usize]| -> Vec<ValueId> {
            let Some(start) = start(part) else { return vec![] };
            let readers = run.iter().filter(|id| **id >= start);
            let read = readers.flat_map(|id| &whole.graph.node(*id).operands).map(|v| whole.source(*v));
            let before = read.filter(|v| whole.graph.value(*v).node < start && is_computed(v));
            before.collect::<BTreeSet<ValueId>>().into_iter().collect()
        };
        let cuts: Vec<Vec<ValueId>> = parts.iter().map(|part| before(part)).collect();
        let wanted: Vec<ValueId> = cuts.concat().into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        let mut begun = whole.program(&wanted, &[], subject.spec)?.start()?;
        begun.set(&sample.states)?;
        let known: HashMap<ValueId, Tensor> = wanted.iter().copied().zip(begun.run(0, &sample.data)?).collect();
        let segment = |(part, cut): (&[usize], &Vec<ValueId>)| {
            let mut data = sample.data.clone();
            data.extend(cut.iter().enumerate().map(|(number, value)| (cut_name(number), known[value].clone())));
            let planned = whole.program(&[loss], cut, subject.spec)?;
            Ok(Segment { planned, data, parameters: part.to_vec() })
        };
        parts.iter().copied().zip(&cuts).map(segment).collect()
    }

    /// Starts the program at the sample.
    pub fn start(&self, sample: &Sample) -> Result<Run, Stop> {
        let mut run = self.planned.clone().start()?;
        run.set(&sample.states)?;
        Ok(run)
    }

    /// How many runs are affordable.
    pub fn affordable_runs(&self) -> u64 {
        MOST_WORK / self.planned.work().max(1)
    }

    /// The loss.
    pub fn loss(&self, run: &mut Run) -> Result<f64, Reason> {
        run.run(0, &self.data)?[0].first().ok_or_else(|| "the loss has no element".into())
    }
}
