//! Cuts a model's forward pass into contiguous stages of a pipeline: the largest stage has as few
//! operations as can be, or at most half a percent more; of such cuts as few bytes as can be cross
//! from stage to stage, and then the stage with the most state has as little as can be. The result
//! is exact, and of equal cuts it is the one with the earliest ends.
//!
//! The least operations of the largest stage come from a binary search; a limit can be kept if
//! stages that each take all they can reach the end. From then on a stage has at most M operations,
//! half a percent more than that.
//!
//! A value crosses once to each later stage that reads it, so the bytes that cross are the sum of
//! what comes into each stage: the values made before it and read in it. That depends on where the
//! stage begins and ends and on nothing else. So stage by stage from the last, this file finds for
//! each item at which stage k can begin the least (bytes, state) of all stages from k on: the sum
//! of what comes in, then the most state. A part of a best cut may be replaced by the best for that
//! part, because one more stage keeps the order: fewer bytes stay fewer when the same is added to
//! both, and with equal bytes less state does not become more under the same maximum.
//!
//! A cut with equal cost and earlier ends may have more state in some part than the best for that
//! part, as long as another stage has as much. So the ends are chosen last, from the first stage:
//! each is the earliest end from which the bytes that are left are met, and whose later stages can
//! do so within the state of the best cut. The bytes of a part must be the least for that part,
//! since they are summed, so what was found for each item is all that this needs. The stage itself
//! keeps the limits on operations and state, as an end of a best cut keeps them and is no earlier.
//!
//! Stage k begins only where k stages can hold the items before and the others those after. That
//! leaves few places in a balanced model. Where it leaves many, as when one item alone has M
//! operations, the ends of a stage are kept in a tree. As the stage begins one item earlier, a
//! value that the item makes no longer comes in, and one that it reads comes in for the ends up to
//! its next read, too; both add to a range of ends. With n items that make and read r values in
//! all, the cost is in the order of stages * (n + r) * log n for any model.
//!
//! Sums have 128 bits, so they do not overflow, and cuts are compared by their true sums.

use super::cheapest::Cheapest;

/// A node of the model's forward pass, in program order.
pub struct Item {
    /// Its operations on numbers.
    pub flops: u64,
    /// Bytes of state (parameters) that it is the first to read.
    pub held: u64,
    /// The values that it reads and that may have to travel: each by its number among the sources.
    /// A number that no source has is ignored.
    pub reads: Vec<usize>,
}

/// A value that items read.
pub struct Source {
    /// The item that makes it; for a parameter, the first item that reads it.
    pub item: usize,
    /// Its bytes.
    pub bytes: u64,
}

/// The ends of all stages but the last: stage k holds the items from `ends[k - 1]` up to, not
/// including, `ends[k]`. None if there are fewer items than stages, or no stage.
pub fn balance(items: &[Item], sources: &[Source], stages: usize) -> Option<Vec<usize>> {
    if stages == 0 || items.len() < stages {
        return None;
    }
    let flops = sums(items.iter().map(|item| item.flops));
    let held = sums(items.iter().map(|item| item.held));
    let limit = about(least_limit(&flops, stages));
    let begins = begins(&flops, stages, limit);
    let mut made = vec![vec![]; items.len()];
    for (s, source) in sources.iter().enumerate().filter(|(_, source)| source.item < items.len()) {
        made[source.item].push(s);
    }
    let search = Search { items, sources, made, flops, held, limit, begins };
    let mut rests = vec![vec![Rest { crossing: 0, held: 0 }]];
    for stage in (0..stages).rev() {
        let rest = search.stage(stage, &rests[rests.len() - 1]);
        rests.push(rest);
    }
    rests.reverse();
    search.earliest(&rests)
}

/// The sums of the first 0, 1, ... numbers.
fn sums(numbers: impl Iterator<Item = u64>) -> Vec<u128> {
    let rest = numbers.scan(0, |sum, number| {
        *sum += u128::from(number);
        Some(*sum)
    });
    std::iter::once(0).chain(rest).collect()
}

/// The furthest end of a stage that begins at an item and keeps the limit.
fn reach(flops: &[u128], begin: usize, limit: u128) -> usize {
    flops.partition_point(|sum| *sum <= flops[begin] + limit) - 1
}

/// The least operations that the largest of so many stages can have.
fn least_limit(flops: &[u128], stages: usize) -> u128 {
    let items = flops.len() - 1;
    let total = flops[items];
    let largest = flops.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    let (mut low, mut high) = (largest.max(total.div_ceil(stages as u128)), total);
    while low < high {
        let limit = low + (high - low) / 2;
        if (0..stages).fold(0, |begin, _| reach(flops, begin, limit)) == items {
            high = limit;
        } else {
            low = limit + 1;
        }
    }
    low
}

/// What is as good as a least limit: fewer bytes that cross are worth so much.
fn about(limit: u128) -> u128 {
    limit + limit / 200
}

/// The first and the last item at which each stage can begin, and for the end of the last stage the
/// number of items twice. Each stage has an item.
fn begins(flops: &[u128], stages: usize, limit: u128) -> Vec<(usize, usize)> {
    let items = flops.len() - 1;
    let mut begins = vec![(items, items); stages + 1];
    let mut last = 0;
    for (stage, begin) in begins.iter_mut().enumerate() {
        begin.1 = last.min(items - (stages - stage));
        last = reach(flops, last, limit);
    }
    let mut first = items;
    for (stage, begin) in begins.iter_mut().enumerate().rev() {
        begin.0 = first.max(stage);
        first = flops.partition_point(|sum| *sum + limit < flops[first]);
    }
    begins
}

/// The stages from some stage on, at their best.
#[derive(Clone, Copy)]
struct Rest {
    /// The bytes that come into each of them, summed.
    crossing: i128,
    /// The state of the one that has the most.
    held: u128,
}

struct Search<'a> {
    items: &'a [Item],
    sources: &'a [Source],
    /// The values that each item makes.
    made: Vec<Vec<usize>>,
    /// The operations of all items before each item, and of all.
    flops: Vec<u128>,
    /// The state of all items before each item, and of all.
    held: Vec<u128>,
    /// The most operations of a stage.
    limit: u128,
    begins: Vec<(usize, usize)>,
}

impl Search<'_> {
    /// The values that an item reads and that items before `begin` make, with their bytes.
    fn reads(&self, item: usize, begin: usize) -> impl Iterator<Item = (usize, i128)> {
        let sources = self.items[item].reads.iter().filter_map(|s| Some((*s, self.sources.get(*s)?)));
        sources.filter(move |(_, source)| source.item < begin).map(|(s, source)| (s, i128::from(source.bytes)))
    }

    /// For each item at which a stage can begin, the stages from there on; `after` has the same for
    /// the stage after it.
    fn stage(&self, stage: usize, after: &[Rest]) -> Vec<Rest> {
        let (first, last) = self.begins[stage];
        let (nearest, furthest) = self.begins[stage + 1];
        let mut ends = Cheapest::new(after.iter().map(|rest| (rest.crossing, rest.held)));
        // Until the state before the stage is less than this, the stages after the end have more.
        let margin = |end: usize| self.held[end].saturating_sub(after[end - nearest].held);
        let mut outgrown: Vec<(u128, usize)> = (nearest..=furthest).map(|end| (margin(end), end)).collect();
        outgrown.sort_unstable();
        // The next read of each value, up to the furthest end. Bytes come in for the ends after it.
        let mut next = vec![furthest; self.sources.len()];
        let mut rests = Vec::with_capacity(last + 1 - first);
        let mut reach = furthest;
        for begin in (first..furthest).rev() {
            let mut add = |from: usize, to: usize, bytes: i128| {
                ends.add(from.max(nearest) - nearest, (to + 1).max(nearest) - nearest, bytes);
            };
            for s in &self.made[begin] {
                add(next[*s] + 1, furthest, -i128::from(self.sources[*s].bytes));
            }
            for (s, bytes) in self.reads(begin, begin) {
                add(begin + 1, next[s], bytes);
                next[s] = begin;
            }
            while let Some((_, end)) = outgrown.pop_if(|(margin, _)| *margin > self.held[begin]) {
                ends.outgrow(end - nearest, self.held[end]);
            }
            if begin <= last {
                while self.flops[reach] - self.flops[begin] > self.limit {
                    reach -= 1;
                }
                let least = ends.least((begin + 1).max(nearest) - nearest, reach + 1 - nearest);
                let held = least.after.min(least.before - self.held[begin]);
                rests.push(Rest { crossing: least.bytes, held });
            }
        }
        rests.reverse();
        rests
    }

    /// The earliest ends of a best cut, given the stages from each on. There always is one.
    fn earliest(&self, rests: &[Vec<Rest>]) -> Option<Vec<usize>> {
        let best = rests[0][0].held;
        let mut begin = 0;
        let mut ends = vec![];
        for stage in 0..rests.len() - 2 {
            let left = rests[stage][begin - self.begins[stage].0].crossing;
            let (nearest, furthest) = self.begins[stage + 1];
            let mut came = vec![false; self.sources.len()];
            let mut incoming = 0;
            let end = (begin + 1..=furthest).find(|end| {
                for (s, bytes) in self.reads(*end - 1, begin) {
                    incoming += if std::mem::replace(&mut came[s], true) { 0 } else { bytes };
                }
                let rest = end.checked_sub(nearest).map(|i| rests[stage + 1][i]);
                rest.is_some_and(|rest| rest.held <= best && incoming + rest.crossing == left)
            })?;
            ends.push(end);
            begin = end;
        }
        Some(ends)
    }
}

#[cfg(test)]
mod tests;
