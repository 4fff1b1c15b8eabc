//! What a rank does, turn by turn.

use super::{Message, Program, Row, Step, Task, View, When};

/// What a rank does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// A step runs.
    Launch(Launch),
    /// Messages are exchanged: a row, by position in [`Program::order`].
    Exchange(usize),
}

/// One launch of a step: the position of its task, its own in the task, and the micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// The position in [`Program::tasks`].
    pub task: usize,
    /// The position in the task's steps.
    pub step: usize,
    /// The micro-batch; 0 in tasks that run once.
    pub time: u64,
}

impl Program {
    /// All that a rank does in a step of training, in its order.
    pub fn turns(&self) -> impl Iterator<Item = Turn> + '_ {
        self.order.iter().enumerate().flat_map(move |(at, row)| {
            let (task, time, steps) = match row {
                Row::Run { task, time } => (*task as usize, *time, self.tasks[*task as usize].steps.len()),
                Row::Exchange(_) => (0, 0, 0),
            };
            let runs = move |step: &usize| self.runs(&self.tasks[task].steps[*step], time);
            let launches = (0..steps).filter(runs).map(move |step| Turn::Launch(Launch { task, step, time }));
            let exchange = matches!(row, Row::Exchange(_)).then_some(Turn::Exchange(at));
            launches.chain(exchange)
        })
    }

    /// Every launch of one step of training, in its order.
    pub fn launches(&self) -> impl Iterator<Item = Launch> + '_ {
        self.turns().filter_map(|turn| match turn {
            Turn::Launch(launch) => Some(launch),
            Turn::Exchange(_) => None,
        })
    }

    /// The messages of a row, each with its micro-batch; none of a row that runs a task.
    pub fn exchange(&self, row: usize) -> impl Iterator<Item = (&Message, u64)> {
        self.exchanged(row).map(|(message, time)| (&self.messages[message], time))
    }

    /// The messages of a row, by position in [`Program::messages`], each with its micro-batch.
    pub fn exchanged(&self, row: usize) -> impl Iterator<Item = (usize, u64)> + '_ {
        let messages = match self.order.get(row) {
            Some(Row::Exchange(messages)) => &messages[..],
            _ => &[],
        };
        messages.iter().map(|(message, time)| (*message as usize, *time))
    }

    /// The rows that run tasks: the position of each task, and the micro-batch.
    pub fn runs_of_tasks(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.order.iter().filter_map(|row| match row {
            Row::Run { task, time } => Some((*task as usize, *time)),
            Row::Exchange(_) => None,
        })
    }

    /// The number of each task's first step among all steps, and at the end how many there are.
    pub fn first_steps(&self) -> Vec<usize> {
        let mut firsts = vec![0];
        self.tasks.iter().for_each(|task| firsts.push(firsts[firsts.len() - 1] + task.steps.len()));
        firsts
    }

    /// The step that a launch runs.
    pub fn step(&self, launch: Launch) -> &Step {
        &self.tasks[launch.task].steps[launch.step]
    }

    /// What a step computes, with the buffers that it reads: `%y = contract bk,nk->bn %x, %w1`.
    pub fn text_of(&self, step: &Step) -> String {
        let name = |view: &View| self.buffers.get(view.buffer.index()).map_or("?", |buffer| &buffer.name);
        let reads: Vec<String> = step.reads.iter().map(|view| format!("%{}", name(view))).collect();
        format!("{} {}", step.text(), reads.join(", ")).trim_end().to_string()
    }

    /// Whether a step of a task runs where its task runs for micro-batch `time`.
    fn runs(&self, step: &Step, time: u64) -> bool {
        step.when == When::Each || self.is_last(time)
    }

    /// Whether `time` is the last micro-batch.
    pub fn is_last(&self, time: u64) -> bool {
        time + 1 == self.mesh.microbatches()
    }

    /// How often each step runs in a step of training, task by task.
    pub fn times(&self) -> Vec<Vec<u64>> {
        let mut times: Vec<[u64; 2]> = vec![[0; 2]; self.tasks.len()];
        for (task, time) in self.runs_of_tasks() {
            let [each, last] = &mut times[task];
            *each += 1;
            *last += u64::from(self.is_last(time));
        }
        let of = |(task, [each, last]): (&Task, [u64; 2])| {
            task.steps.iter().map(|step| if step.when == When::Last { last } else { each }).collect()
        };
        self.tasks.iter().zip(times).map(of).collect()
    }
}
