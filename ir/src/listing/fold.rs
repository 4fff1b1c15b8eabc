//! Which lines of a task repeat: the layers of a model.
//!
//! Neighbouring runs of lines are the same layer again where their steps have equal kernels, types,
//! lines of the spec and, but for a few, modules up to the numbers in their names, and read what
//! corresponds: the same value, what the own run or the one before it has written at the same
//! place, what another fold has written in the layer of the same number, or leaves of the same
//! name but for numbers. Only what enters the first run may come from anywhere. Calls for gradients
//! stand between runs as it comes, so they are left out of them.

use super::lines::Line;
use super::names::{Names, Source};
use super::report::{BufferReport, Operand, StepReport, TaskReport};
use crate::kernel::Kernel;
use crate::plan::Program;
use bincode::config::standard;
use bincode::serde::encode_to_vec;
use std::collections::HashMap;
use std::ops::Range;

/// Runs of lines that repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fold {
    /// The lines of all runs, by position in the task's, and what stands between them.
    pub lines: Range<usize>,
    /// Those of the first run.
    pub run: Vec<usize>,
    /// Those that are of no run: calls for gradients, which are made when enough bytes are there.
    pub others: Vec<usize>,
    /// How many runs.
    pub times: usize,
    /// Steps of a run.
    pub steps: usize,
    /// The module of each run, where they have modules that differ in a number.
    pub scopes: Vec<String>,
    /// The messages of all runs, and the bytes that a rank sends for them each time that the task
    /// runs.
    pub messages: (usize, u64),
}

/// A way to fold lines of a task: the first line, the lines of a run and the number of runs.
#[derive(Debug, Clone, Copy)]
struct Way {
    first: usize,
    period: usize,
    times: usize,
}

/// A run has so many lines at least.
const LEAST: usize = 3;
/// One line in so many of a run may be of another module than the same line of the first run.
const OTHERS: usize = 8;
/// So many ways to fold the same lines are tried.
const TRIED: usize = 64;

/// Finds the folds of one program, task by task.
pub struct Folder<'p> {
    names: &'p Names,
    buffers: &'p [BufferReport<'p>],
    /// For each step by its number, what it is but for the values that it reads and writes.
    kinds: Vec<usize>,
    /// For each step, its position among those that may be folded.
    position: Vec<Option<usize>>,
    /// Those that may, by number.
    at: Vec<usize>,
    /// Where folded steps stand: fold, step of a run, result; and the number of the run.
    places: HashMap<Source, Vec<(Place, i64)>>,
    folds: usize,
}

type Place = (usize, usize, usize);

impl<'p> Folder<'p> {
    /// For `tasks` of `program`.
    pub fn new(program: &'p Program, names: &'p Names, tasks: &[TaskReport<'p>], buffers: &'p [BufferReport<'p>]) -> Folder<'p> {
        let mut known = HashMap::new();
        let mut kinds = vec![];
        for (task, reports) in program.tasks.iter().zip(tasks) {
            for (step, report) in task.steps.iter().zip(&reports.steps) {
                let next = known.len();
                kinds.push(*known.entry(kind(&step.kernel, report, buffers)).or_insert(next));
            }
        }
        let mut folder = Folder { names, buffers, kinds, position: vec![], at: vec![], places: HashMap::new(), folds: 0 };
        for step in tasks.iter().flat_map(|task| &task.steps) {
            let stays = !folder.is_for_gradients(step);
            folder.position.push(stays.then_some(folder.at.len()));
            folder.at.extend(stays.then_some(step.number));
        }
        folder
    }

    /// Whether a step is a call for gradients.
    fn is_for_gradients(&self, step: &StepReport<'_>) -> bool {
        let is_gradient = |write: &Operand| self.buffers[write.buffer as usize].kind == "gradient";
        step.message.is_some() && step.writes.iter().all(is_gradient)
    }

    /// The folds of a task, in order; `open` says of which modules none is wanted.
    pub fn folds(&mut self, task: &TaskReport<'p>, all: &[Line], open: &dyn Fn(&str) -> bool) -> Vec<Fold> {
        let own: Vec<usize> = (0..all.len()).filter(|i| !self.is_for_gradients(&task.steps[all[*i].first])).collect();
        let lines: Vec<Line> = own.iter().map(|i| all[*i]).collect();
        let mut known = HashMap::new();
        let signature = |line: &Line| {
            let steps = &task.steps[line.first..line.first + line.count];
            let kinds: Vec<usize> = steps.iter().map(|step| self.kinds[step.number]).collect();
            let next = known.len();
            *known.entry((line.kind, kinds)).or_insert(next)
        };
        let signatures: Vec<usize> = lines.iter().map(signature).collect();
        let mut found = vec![];
        let mut parts = vec![(0, lines.len())];
        while let Some((start, end)) = parts.pop() {
            let Some(way) = self.best(task, &lines, &signatures, start, end) else { continue };
            let after = way.first + way.period * way.times;
            parts.extend([(start, way.first), (after, end)]);
            self.remember(task, &lines, way);
            let covered = own[way.first]..own[after - 1] + 1;
            let runs = lines[way.first..after].iter().flat_map(|line| &task.steps[line.first..line.first + line.count]);
            let messages = runs.filter_map(|step| step.message.as_ref());
            found.push(Fold {
                run: own[way.first..way.first + way.period].to_vec(),
                others: covered.clone().filter(|i| own.binary_search(i).is_err()).collect(),
                lines: covered,
                times: way.times,
                steps: lines[way.first..way.first + way.period].iter().map(|line| line.count).sum(),
                scopes: scopes(task, &lines, way).map(|(_, scopes)| scopes).unwrap_or_default(),
                messages: messages
                    .fold((0, 0u64), |(count, bytes), message| (count + 1, bytes.saturating_add(message.bytes_sent))),
            });
        }
        found.sort_by_key(|fold| fold.lines.start);
        found.retain(|fold| !fold.scopes.iter().any(|scope| open(scope)));
        found
    }

    /// The way that hides most of lines `start` to `end`.
    fn best(&self, task: &TaskReport<'p>, lines: &[Line], signatures: &[usize], start: usize, end: usize) -> Option<Way> {
        let mut candidates = vec![];
        for period in LEAST..=(end - start) / 2 {
            let mut at = start;
            while at + period < end {
                let length = (at..end - period).take_while(|i| signatures[*i] == signatures[i + period]).count();
                if length >= period {
                    candidates.push((length / period * period, period, at, length % period));
                }
                at += length + 1;
            }
        }
        candidates.sort_by_key(|(hidden, period, at, _)| (std::cmp::Reverse(*hidden), *period, *at));
        candidates.iter().take(TRIED).find_map(|(hidden, period, at, spare)| {
            let way = |first: usize| Way { first, period: *period, times: hidden / period + 1 };
            // Of several ways to cut the runs, that which cuts between modules.
            let cut = |first: &usize| std::cmp::Reverse(scopes(task, lines, way(*first)).map_or(0, |(agree, _)| agree));
            let whole = way((*at..=at + spare).min_by_key(cut)?);
            // Where one run differs from the others, the most of those before or behind it.
            let from = |run: usize| {
                let rest = Way { first: whole.first + run * period, times: whole.times - run, ..whole };
                Way { times: self.equal_runs(task, lines, rest), ..rest }
            };
            let first = Some(from(0)).filter(|way| way.times == whole.times);
            let best = || (0..whole.times).map(from).max_by_key(|way| (way.times, std::cmp::Reverse(way.first)));
            first.or_else(best).filter(|way| way.times > 1)
        })
    }

    /// The position of the first step, and how many steps a run has.
    fn steps_of(&self, task: &TaskReport<'p>, lines: &[Line], way: Way) -> (usize, usize) {
        let run = &lines[way.first..way.first + way.period];
        let first = self.position[task.steps[run[0].first].number].unwrap_or_default();
        (first, run.iter().map(|line| line.count).sum())
    }

    /// How many runs from the first on read what corresponds.
    fn equal_runs(&self, task: &TaskReport<'p>, lines: &[Line], way: Way) -> usize {
        let (first, length) = self.steps_of(task, lines, way);
        let corresponds = |run: &usize| {
            (first + (run - 1) * length..first + run * length).all(|at| {
                let pairs = self.names.sources[self.at[at]].iter().zip(&self.names.sources[self.at[at + length]]);
                pairs.into_iter().all(|(a, b)| self.correspond(*a, *b, first, length, *run))
            })
        };
        // A sum that joins layers may be of another module.
        let others = |run: &usize| {
            let differ = |i: &usize| {
                let [a, b] = [0, *run].map(|run| template(scope(task, lines, way, run, *i)));
                a != b
            };
            (0..way.period).filter(differ).count() <= way.period / OTHERS
        };
        1 + (1..way.times).take_while(|run| corresponds(run) && others(run)).count()
    }

    /// The position of the step that a value is from.
    fn place(&self, source: Source) -> Option<usize> {
        match source {
            Source::Leaf(_) => None,
            Source::Step(number, _) => self.position[number],
        }
    }

    /// Whether run `run` reads from `b` what the run before it reads from `a`.
    fn correspond(&self, a: Source, b: Source, first: usize, length: usize, run: usize) -> bool {
        if a == b {
            return true;
        }
        if let (Source::Step(_, i), Source::Step(_, j)) = (a, b)
            && i == j
            && self.place(a).is_some_and(|at| self.place(b) == Some(at + length))
        {
            return true;
        }
        let is_in_first = |source| self.place(source).is_some_and(|at| (first..first + length).contains(&at));
        if run == 1 && is_in_first(b) {
            return !is_in_first(a);
        }
        let known = |source| self.places.get(&source).map(Vec::as_slice).unwrap_or_default();
        let (of_a, of_b) = (known(a), known(b));
        if !of_a.is_empty() && !of_b.is_empty() {
            return of_a.iter().any(|(x, m)| of_b.iter().any(|(y, n)| x == y && m.abs_diff(*n) == 1));
        }
        let same_name = || template(self.names.name(a)) == template(self.names.name(b));
        match (a, b) {
            (Source::Leaf(a), Source::Leaf(b)) => {
                let facts = |i: usize| (self.buffers[i].kind, &self.buffers[i].dtype, self.buffers[i].local);
                facts(a) == facts(b) && same_name()
            }
            (Source::Step(x, i), Source::Step(y, j)) => i == j && self.kinds[x] == self.kinds[y] && same_name(),
            _ => false,
        }
    }

    /// Remembers where the steps of a fold stand, and what enters its first run.
    fn remember(&mut self, task: &TaskReport<'p>, lines: &[Line], way: Way) {
        let (first, length) = self.steps_of(task, lines, way);
        let fold = self.folds;
        self.folds += 1;
        for at in first..first + length * way.times {
            for result in 0..self.names.results[self.at[at]].len() {
                let place = ((fold, (at - first) % length, result), ((at - first) / length) as i64);
                self.places.entry(Source::Step(self.at[at], result)).or_default().push(place);
            }
        }
        for at in first..first + length {
            for (a, b) in self.names.sources[self.at[at]].iter().zip(&self.names.sources[self.at[at + length]]) {
                let inside = self.place(*b).filter(|place| (first..first + length).contains(place));
                if let (Some(place), Source::Step(_, result)) = (inside, *b) {
                    self.places.entry(*a).or_default().push(((fold, place - first, result), -1));
                }
            }
        }
    }
}

/// What a step is but for the values that it reads and writes.
fn kind(kernel: &Kernel, step: &StepReport<'_>, buffers: &[BufferReport<'_>]) -> Vec<u8> {
    let mut kernel = kernel.clone();
    if let Kernel::Random(random) = &mut kernel {
        // Layers draw from streams of their own.
        random.stream = 0;
    }
    let types: Vec<(&str, &[u64])> =
        step.writes.iter().map(|write| &buffers[write.buffer as usize]).map(|b| (b.dtype.as_str(), b.local)).collect();
    let words = (step.op, step.stream, step.when, step.spec_line, &step.partial);
    encode_to_vec((kernel, types, words, step.reason.map(template)), standard()).unwrap_or_default()
}

/// A text without the numbers in it.
fn template(text: &str) -> String {
    let mut out = String::new();
    let mut in_number = false;
    for c in text.chars() {
        if !(c.is_ascii_digit() && in_number) {
            out.push(if c.is_ascii_digit() { '#' } else { c });
        }
        in_number = c.is_ascii_digit();
    }
    out
}

/// How many lines of the first run are in the module that the run is named by, and the modules of
/// all runs; none where no scope has a number that differs.
fn scopes(task: &TaskReport<'_>, lines: &[Line], fold: Way) -> Option<(usize, Vec<String>)> {
    let scope = |run, i| scope(task, lines, fold, run, i);
    let mut votes: HashMap<&str, usize> = HashMap::new();
    let mut of_line: Vec<Option<usize>> = vec![];
    for i in 0..fold.period {
        let (a, b) = (scope(0, i), scope(1, i));
        let same = a.split('.').zip(b.split('.')).take_while(|(a, b)| a == b).count();
        let found = a.split('.').nth(same).map(|_| prefix(a, same + 1));
        found.into_iter().for_each(|found| *votes.entry(found).or_default() += 1);
        of_line.push(found.map(|_| same + 1));
    }
    let (best, agree) = votes.into_iter().max_by_key(|(name, count)| (*count, std::cmp::Reverse(*name)))?;
    let at = (0..fold.period).find(|i| of_line[*i].is_some_and(|parts| prefix(scope(0, *i), parts) == best))?;
    let parts = of_line[at]?;
    Some((agree, (0..fold.times).map(|run| prefix(scope(run, at), parts).to_string()).collect()))
}

/// The module of line `i` of a run.
fn scope<'t>(task: &'t TaskReport<'_>, lines: &[Line], way: Way, run: usize, i: usize) -> &'t str {
    let line = &lines[way.first + run * way.period + i];
    task.steps[line.first + line.count - 1].scope.unwrap_or_default()
}

/// The first `parts` parts of a path.
fn prefix(path: &str, parts: usize) -> &str {
    path.match_indices('.').nth(parts - 1).map_or(path, |(dot, _)| &path[..dot])
}
