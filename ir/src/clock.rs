//! The one clock: it runs lists of rows, a list for each position, and says when each row begins
//! and ends.
//!
//! A list runs strictly in order, one row after the other. A row begins when the row before it has
//! ended and all that it needs was given; what it gives is there when it ends. So the times are the
//! earliest that the lists allow, and they are the same in whatever order the lists are visited.

pub mod idle;
pub mod programs;
pub mod timeline;

use std::collections::BTreeMap;

/// A row of a list: it takes `cost`, begins when all that it needs was given, and gives at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<T> {
    /// How long it takes.
    pub cost: u64,
    /// What must have been given before it begins.
    pub needs: Vec<T>,
    /// What is there from its end on. No other row gives the same.
    pub gives: Vec<T>,
}

/// When each row begins and ends, list by list.
pub type Times = Vec<Vec<(u64, u64)>>;

/// No list can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// For each list the row that it waits at; `None` where it has finished.
    pub waiting: Vec<Option<usize>>,
}

/// Runs lists to their ends, in time near linear in the number of rows and tokens. Every token is
/// given by at most one row.
pub fn run<T: Ord>(lists: &[Vec<Row<T>>]) -> Result<Times, Stuck> {
    let mut tokens = BTreeMap::new();
    for token in lists.iter().flatten().flat_map(|row| &row.gives) {
        let number = tokens.len();
        let before = tokens.insert(token, number);
        assert!(before.is_none(), "two rows give the same token");
    }
    let mut clock = Clock {
        given: vec![None; tokens.len()],
        waiters: vec![vec![]; tokens.len()],
        times: lists.iter().map(|rows| Vec::with_capacity(rows.len())).collect(),
        heads: vec![Head::default(); lists.len()],
        tokens,
    };
    let mut awake: Vec<usize> = (0..lists.len()).collect();
    while let Some(list) = awake.pop() {
        clock.advance(list, &lists[list], &mut awake);
    }
    let ended = |list: usize| clock.times[list].len();
    let waiting: Vec<_> = (0..lists.len()).map(|i| Some(ended(i)).filter(|row| *row < lists[i].len())).collect();
    if waiting.iter().all(Option::is_none) { Ok(clock.times) } else { Err(Stuck { waiting }) }
}

/// Where a list stands: of the needs of its next row, how many are given, and when the last was.
#[derive(Debug, Clone, Default)]
struct Head {
    met: usize,
    since: u64,
}

struct Clock<'a, T> {
    /// The number of each token that some row gives.
    tokens: BTreeMap<&'a T, usize>,
    /// When each token was given.
    given: Vec<Option<u64>>,
    /// The lists that wait for each token.
    waiters: Vec<Vec<usize>>,
    times: Times,
    heads: Vec<Head>,
}

impl<T: Ord> Clock<'_, T> {
    /// Runs a list up to the first row that cannot begin, and wakes those that waited for it.
    fn advance(&mut self, list: usize, rows: &[Row<T>], awake: &mut Vec<usize>) {
        let mut end = self.times[list].last().map_or(0, |(_, end)| *end);
        for row in &rows[self.times[list].len()..] {
            for need in &row.needs[self.heads[list].met..] {
                // A token without a number is never given: the list stays where it is.
                let Some(token) = self.tokens.get(need) else { return };
                let Some(time) = self.given[*token] else {
                    self.waiters[*token].push(list);
                    return;
                };
                let head = &mut self.heads[list];
                *head = Head { met: head.met + 1, since: head.since.max(time) };
            }
            let start = end.max(std::mem::take(&mut self.heads[list]).since);
            end = start + row.cost;
            self.times[list].push((start, end));
            for token in &row.gives {
                let token = self.tokens[token];
                self.given[token] = Some(end);
                awake.append(&mut self.waiters[token]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cost: u64, needs: &[u32], gives: &[u32]) -> Row<u32> {
        Row { cost, needs: needs.to_vec(), gives: gives.to_vec() }
    }

    #[test]
    fn rows_begin_as_early_as_they_can() {
        let lists = [
            vec![row(2, &[], &[1]), row(3, &[], &[2]), row(1, &[3], &[])],
            vec![row(1, &[], &[]), row(4, &[1, 2, 1], &[3])],
            vec![],
        ];
        let times = run(&lists).expect("no row waits for ever");
        assert_eq!(times, [vec![(0, 2), (2, 5), (9, 10)], vec![(0, 1), (5, 9)], vec![]]);
    }

    #[test]
    fn a_circle_and_a_token_that_nobody_gives_are_stuck() {
        let circle = [vec![row(1, &[], &[0]), row(1, &[2], &[1])], vec![row(1, &[1], &[2])], vec![row(1, &[0], &[])]];
        assert_eq!(run(&circle), Err(Stuck { waiting: vec![Some(1), Some(0), None] }));
        assert_eq!(run(&[vec![row(1, &[7], &[])]]), Err(Stuck { waiting: vec![Some(0)] }));
        assert_eq!(run(&[vec![row(1, &[7], &[7])]]), Err(Stuck { waiting: vec![Some(0)] }));
    }

    #[test]
    fn many_rows_are_fast() {
        // Row i of each list needs row i of the list before it, and of the list after it the row
        // 20 before.
        let (p, n) = (16, 10_000);
        let lists: Vec<Vec<Row<(u64, u64)>>> = (0..p)
            .map(|r| {
                let needs = |i| {
                    let from_left = (r > 0).then(|| (r - 1, i));
                    from_left.into_iter().chain((r + 1 < p && i >= 20).then(|| (r + 1, i - 20))).collect()
                };
                (0..n).map(|i| Row { cost: 1, needs: needs(i), gives: vec![(r, i)] }).collect()
            })
            .collect();
        let times = run(&lists).expect("no row waits for ever");
        assert_eq!(times[15][9_999], (n + p - 2, n + p - 1));
    }
}
