//! The balance beside all cuts that there are, and beside a table over all ends.

use super::*;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// A limit for the numbers of a model: small ones make cuts that cost the same.
    fn limit(&mut self) -> u64 {
        [1, 2, 3, 8, 100][self.below(5) as usize]
    }

    /// A model whose values come from anywhere: the item before, one far back, or, as in no real
    /// model, one that follows a reader.
    fn model(&mut self, count: usize) -> (Vec<Item>, Vec<Source>) {
        let (flops, held, bytes) = (self.limit(), self.limit(), self.limit());
        let values = self.below(2 * count as u64 + 1);
        let sources = (0..values).map(|_| Source { item: self.below(count as u64 + 1) as usize, bytes: self.below(bytes) });
        let sources: Vec<Source> = sources.collect();
        let most = self.below(5) + 1;
        let item = |random: &mut Random| {
            let reads = (0..random.below(most)).map(|_| random.below(values + 1) as usize).collect();
            Item { flops: random.below(flops), held: random.below(held), reads }
        };
        ((0..count).map(|_| item(self)).collect(), sources)
    }
}

/// What a cut costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Operations of the largest stage.
    flops: u64,
    /// Bytes that cross: each value once for each later stage that reads it.
    crossing: u64,
    /// Bytes of state of the stage that has the most.
    held: u64,
}

/// The cost by its definition.
fn counted(items: &[Item], sources: &[Source], ends: &[usize]) -> Cost {
    let stage_of = |item: usize| ends.iter().filter(|end| **end <= item).count();
    let stage = |stage: usize| (0..items.len()).filter(move |item| stage_of(*item) == stage).map(|item| &items[item]);
    let stages = 0..=ends.len();
    let mut crossing = 0;
    for (s, source) in sources.iter().enumerate().filter(|(_, source)| source.item < items.len()) {
        let later = stages.clone().filter(|k| *k > stage_of(source.item));
        crossing += source.bytes * later.filter(|k| stage(*k).any(|item| item.reads.contains(&s))).count() as u64;
    }
    let largest = |of: fn(&Item) -> u64| stages.clone().map(|k| stage(k).map(of).sum()).max().unwrap_or(0);
    Cost { flops: largest(|item| item.flops), crossing, held: largest(|item| item.held) }
}

/// Every choice of so many ends after `from` and before `items`, the earliest first.
fn choices(from: usize, items: usize, count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let with = |end: usize| choices(end, items, count - 1).into_iter().map(move |rest| [vec![end], rest].concat());
    (from + 1..items).flat_map(with).collect()
}

#[test]
fn a_small_model_is_cut_at_the_best_of_all_places() {
    let mut random = Random(11);
    for case in 0..1000 {
        let (count, stages) = (random.below(14) as usize + 1, random.below(5) as usize + 1);
        let (items, sources) = random.model(count);
        let all: Vec<_> =
            choices(0, count, stages - 1).into_iter().map(|ends| (counted(&items, &sources, &ends), ends)).collect();
        let least = all.iter().map(|(cost, _)| cost.flops).min().unwrap_or(0);
        let good = all.into_iter().filter(|(cost, _)| cost.flops <= least + least / 200);
        let expected = good.min_by_key(|(cost, ends)| (cost.crossing, cost.held, ends.clone())).map(|(_, ends)| ends);
        assert_eq!(balance(&items, &sources, stages), expected, "case {case}: {count} items in {stages} stages");
    }
}

#[test]
fn a_large_model_costs_what_a_table_over_all_ends_finds() {
    let mut random = Random(12);
    for case in 0..40 {
        let (count, stages) = (random.below(100) as usize + 50, random.below(9) as usize + 1);
        let (items, sources) = random.model(count);
        let ends = balance(&items, &sources, stages).expect("there is an item for each stage");
        assert!(ends.is_sorted_by(|a, b| a < b) && ends.len() == stages - 1);
        let found = counted(&items, &sources, &ends);
        let least = least_limit(&sums(items.iter().map(|item| item.flops)), stages) as u64;
        // The best (bytes, state) of the first stages, with the operations of a stage limited; one
        // less than the least must leave no cut at all.
        let mut best = [None, Some((found.crossing, found.held))];
        for (kept, limit) in best.iter_mut().zip([least.checked_sub(1), Some(least + least / 200)]) {
            let at = |end: usize| if end == 0 { Some((0, 0)) } else { None };
            let mut before: Vec<Option<(u64, u64)>> = (0..=count).map(at).collect();
            for _ in 0..stages {
                let mut after = vec![None; count + 1];
                for (begin, &(crossing, held)) in before.iter().enumerate().filter_map(|(i, b)| Some((i, b.as_ref()?))) {
                    let (mut came, mut incoming, mut flops, mut state) = (vec![false; sources.len()], 0, 0, 0);
                    for (i, item) in items.iter().enumerate().skip(begin) {
                        for s in item.reads.iter().copied().filter(|s| *s < sources.len()) {
                            let comes = sources[s].item < begin && !std::mem::replace(&mut came[s], true);
                            incoming += if comes { sources[s].bytes } else { 0 };
                        }
                        (flops, state) = (flops + item.flops, state + item.held);
                        if limit.is_some_and(|limit| flops <= limit) {
                            let cost = (crossing + incoming, held.max(state));
                            after[i + 1] = Some(after[i + 1].map_or(cost, |best| cost.min(best)));
                        }
                    }
                }
                before = after;
            }
            assert_eq!(before[count], *kept, "case {case}: {count} items in {stages} stages");
        }
    }
}

#[test]
fn numbers_of_any_size_are_compared_by_their_true_sums() {
    let item = || Item { flops: u64::MAX, held: u64::MAX, reads: vec![0, 1] };
    let sources = [0, 1].map(|item| Source { item, bytes: u64::MAX });
    let items = [item(), item(), item(), item()];
    assert_eq!(balance(&items, &sources, 2), Some(vec![2]));
}

#[test]
fn a_stage_needs_an_item() {
    let item = || Item { flops: 0, held: 0, reads: vec![] };
    assert_eq!(balance(&[item()], &[], 2), None);
    assert_eq!(balance(&[], &[], 0), None);
    assert_eq!(balance(&[item(), item(), item()], &[], 3), Some(vec![1, 2]));
}
