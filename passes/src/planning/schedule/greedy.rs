//! A schedule for any graph of tasks, by a greedy clock: a position that is free starts the task
//! that is ready and comes first by a rule. It serves pipelines with branches at other positions.
//!
//! The rule is B before F before W, then the lower micro-batch, then the task that is earlier in
//! the graph. A position starts its first F task only while it has fewer micro-batches in flight
//! than its limit; one is in flight until all tasks of the position have run for it. Where nothing
//! runs and only limits keep tasks from starting, one of them starts all the same. Each task runs
//! in ascending micro-batch order.
//!
//! With a limit of p-s at position s, a chain gets the table of 1F1B:
//!
//! ```text
//! pp=0 |F0 F1 F2 F3 ·  ·  ·  ·  ·  ·  B0─── ·  B1─── ·  B2─── ·  B3─── |
//! pp=1 |·  F0 F1 F2 ·  ·  ·  ·  B0─── F3 B1─── ·  B2─── ·  B3─── ·  ·  |
//! pp=2 |·  ·  F0 F1 ·  ·  B0─── F2 B1─── F3 B2─── ·  B3─── ·  ·  ·  ·  |
//! pp=3 |·  ·  ·  F0 B0─── F1 B1─── F2 B2─── F3 B3─── ·  ·  ·  ·  ·  ·  |
//! ```

use super::Pass;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// A task of the graph, which runs once for each micro-batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The position that runs it.
    pub position: usize,
    /// Which pass it is of.
    pub pass: Pass,
    /// How long it takes.
    pub cost: u64,
    /// The tasks, all earlier in the graph, that it follows in the same micro-batch.
    pub needs: Vec<usize>,
}

/// The rows of each position: tasks, each with its micro-batch. `tasks` are in an order in which
/// they could run, and `limits` has the most micro-batches in flight at each position.
pub fn order(tasks: &[Task], microbatches: u64, limits: &[u64]) -> Vec<Vec<(usize, u64)>> {
    let mut clock = Greedy::new(tasks, microbatches, limits);
    loop {
        while let Some(position) = clock.woken.pop_first() {
            clock.start_next(position);
        }
        if !clock.end_next() && !clock.start_against_limit() {
            return clock.rows;
        }
    }
}

/// The rank of a pass, the micro-batch, and the task: the least starts first.
type Key = (u8, u64, usize);

struct Greedy<'a> {
    tasks: &'a [Task],
    microbatches: u64,
    limits: &'a [u64],
    /// The tasks that follow each task.
    followers: Vec<Vec<usize>>,
    /// The first F task of each position.
    first: Vec<Option<usize>>,
    /// The number of tasks of each position.
    count: Vec<usize>,
    /// For each task and micro-batch, how many ends it waits for: of what it needs, and of itself
    /// for the micro-batch before.
    waits: Vec<u32>,
    /// What each position could start now: at its limit, and whatever its limit.
    limited: Vec<BinaryHeap<Reverse<Key>>>,
    ready: Vec<BinaryHeap<Reverse<Key>>>,
    /// For each position and micro-batch, how many tasks have ended.
    ended: Vec<Vec<usize>>,
    in_flight: Vec<u64>,
    is_free: Vec<bool>,
    /// The ends of what runs now: when, the task and the micro-batch.
    running: BinaryHeap<Reverse<(u64, usize, u64)>>,
    now: u64,
    /// Positions that may have something to start.
    woken: BTreeSet<usize>,
    rows: Vec<Vec<(usize, u64)>>,
}

impl<'a> Greedy<'a> {
    fn new(tasks: &'a [Task], microbatches: u64, limits: &'a [u64]) -> Greedy<'a> {
        let positions = limits.len();
        let mut clock = Greedy {
            tasks,
            microbatches,
            limits,
            followers: vec![vec![]; tasks.len()],
            first: vec![None; positions],
            count: vec![0; positions],
            waits: vec![],
            limited: vec![BinaryHeap::new(); positions],
            ready: vec![BinaryHeap::new(); positions],
            ended: vec![vec![0; microbatches as usize]; positions],
            in_flight: vec![0; positions],
            is_free: vec![true; positions],
            running: BinaryHeap::new(),
            now: 0,
            woken: BTreeSet::new(),
            rows: vec![vec![]; positions],
        };
        for (i, task) in tasks.iter().enumerate() {
            task.needs.iter().for_each(|need| clock.followers[*need].push(i));
            clock.count[task.position] += 1;
            if task.pass == Pass::Forward {
                clock.first[task.position].get_or_insert(i);
            }
            let needs = task.needs.len() as u32;
            clock.waits.extend((0..microbatches).map(|time| needs + u32::from(time > 0)));
        }
        for i in (0..tasks.len()).filter(|i| microbatches > 0 && tasks[*i].needs.is_empty()) {
            clock.make_ready(i, 0);
        }
        clock
    }

    fn make_ready(&mut self, task: usize, time: u64) {
        let position = self.tasks[task].position;
        let rank = match self.tasks[task].pass {
            Pass::Backward => 0,
            Pass::Forward => 1,
            Pass::Weight => 2,
        };
        let heaps = if self.first[position] == Some(task) { &mut self.limited } else { &mut self.ready };
        heaps[position].push(Reverse((rank, time, task)));
        self.woken.insert(position);
    }

    /// Starts what comes first at a position, if it is free and something is ready.
    fn start_next(&mut self, position: usize) {
        if !self.is_free[position] {
            return;
        }
        let limited = self.limited[position].peek().filter(|_| self.in_flight[position] < self.limits[position]);
        let heap = if limited > self.ready[position].peek() { &mut self.limited } else { &mut self.ready };
        if let Some(Reverse(key)) = heap[position].pop() {
            self.start(position, key);
        }
    }

    /// Starts the first of what only limits keep from starting; `false` if there is nothing.
    fn start_against_limit(&mut self) -> bool {
        let heads = (0..self.limited.len()).filter_map(|position| Some((self.limited[position].peek()?.0, position)));
        let Some((key, position)) = heads.min() else { return false };
        self.limited[position].pop();
        self.start(position, key);
        true
    }

    fn start(&mut self, position: usize, (_, time, task): Key) {
        self.in_flight[position] += u64::from(self.first[position] == Some(task));
        self.is_free[position] = false;
        self.running.push(Reverse((self.now + self.tasks[task].cost, task, time)));
        self.rows[position].push((task, time));
    }

    /// Goes on to the next moment at which tasks end, and ends them; `false` if nothing runs.
    fn end_next(&mut self) -> bool {
        let Some(Reverse((now, ..))) = self.running.peek() else { return false };
        self.now = *now;
        while let Some(Reverse((end, task, time))) = self.running.peek().copied()
            && end == self.now
        {
            self.running.pop();
            self.end(task, time);
        }
        true
    }

    fn end(&mut self, task: usize, time: u64) {
        let position = self.tasks[task].position;
        self.is_free[position] = true;
        self.woken.insert(position);
        let ended = &mut self.ended[position][time as usize];
        *ended += 1;
        if *ended == self.count[position] && self.first[position].is_some() {
            self.in_flight[position] -= 1;
        }
        let followers = self.followers[task].iter().map(|follower| (*follower, time));
        let next = (time + 1 < self.microbatches).then_some((task, time + 1));
        for (task, time) in followers.chain(next).collect::<Vec<_>>() {
            let waits = &mut self.waits[task * self.microbatches as usize + time as usize];
            *waits -= 1;
            if *waits == 0 {
                self.make_ready(task, time);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, Shape, Table, costs, one_f_one_b};
    use super::*;

    /// A chain of p stages; the table of its order, each position limited to p-s.
    fn chain(p: u64, m: u64, splits_weights: bool) -> Table {
        let passes = |pass: Pass, s: u64| (pass, s, costs(pass, splits_weights));
        let mut parts: Vec<(Pass, u64, u64)> = (0..p).map(|s| passes(Pass::Forward, s)).collect();
        parts.extend((0..p).rev().map(|s| passes(Pass::Backward, s)));
        let mut tasks: Vec<Task> = vec![];
        for (i, (pass, s, cost)) in parts.iter().enumerate() {
            tasks.push(Task { position: *s as usize, pass: *pass, cost: *cost, needs: i.checked_sub(1).into_iter().collect() });
        }
        if splits_weights {
            for s in (0..p).rev() {
                let backward = (2 * p - 1 - s) as usize;
                parts.push(passes(Pass::Weight, s));
                tasks.push(Task { position: s as usize, pass: Pass::Weight, cost: 1, needs: vec![backward] });
            }
        }
        let limits: Vec<u64> = (0..p).map(|s| p - s).collect();
        let cell = |(task, time): &(usize, u64)| Cell { pass: parts[*task].0, stage: parts[*task].1 as u32, time: *time };
        order(&tasks, m, &limits).iter().map(|row| row.iter().map(cell).collect()).collect()
    }

    #[test]
    fn a_chain_gets_the_table_of_1f1b() {
        for p in 1..=16 {
            for m in 1..=4 * p {
                let shape = Shape { positions: p, chunks: 1, microbatches: m };
                assert_eq!(chain(p, m, false), one_f_one_b::table(shape), "p={p} m={m}");
            }
        }
    }

    #[test]
    fn weights_come_last_and_keep_to_the_limit() {
        for (p, m) in [(1, 3), (2, 5), (4, 4), (8, 20)] {
            for (s, row) in chain(p, m, true).iter().enumerate() {
                assert_eq!(row.len() as u64, 3 * m);
                let mut live = 0;
                for cell in row {
                    live += i64::from(cell.pass == Pass::Forward) - i64::from(cell.pass == Pass::Weight);
                    assert!(live <= p as i64 - s as i64, "p={p} m={m}");
                }
            }
        }
    }

    fn task(position: usize, pass: Pass, needs: &[usize]) -> Task {
        Task { position, pass, cost: costs(pass, false), needs: needs.to_vec() }
    }

    #[test]
    fn a_branch_at_another_position_runs_beside_the_chain() {
        use Pass::{Backward as B, Forward as F};
        // Position 0 computes 0, position 1 the branch 1, position 0 goes on with 2, and back.
        let tasks = [task(0, F, &[]), task(1, F, &[0]), task(0, F, &[0]), task(0, F, &[1, 2]), task(0, B, &[3])];
        let rows = order(&tasks, 2, &[2, 1]);
        assert_eq!(rows, [vec![(0, 0), (2, 0), (3, 0), (4, 0), (0, 1), (2, 1), (3, 1), (4, 1)], vec![(1, 0), (1, 1)]]);
    }

    #[test]
    fn limits_that_would_stop_everything_are_lifted() {
        use Pass::Forward as F;
        // Position 1 cannot end micro-batch 0 before its last task, which needs position 0; a
        // limit of nothing stops both at the beginning.
        let tasks = [task(0, F, &[]), task(1, F, &[0]), task(0, F, &[1]), task(1, F, &[2])];
        let rows = order(&tasks, 2, &[0, 0]);
        assert_eq!(rows, [vec![(0, 0), (2, 0), (0, 1), (2, 1)], vec![(1, 0), (3, 0), (1, 1), (3, 1)]]);
        assert_eq!(order(&tasks, 0, &[1, 1]), [vec![], vec![]]);
    }
}
