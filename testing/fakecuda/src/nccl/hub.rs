//! Where the ranks of communicators meet: who is there, what each calls, and what it gives. It
//! knows bytes and no addresses, so it serves ranks in one process and in many.

use super::{Dtype, Kind, Op, reduce};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// A rank of a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// The communicator's name, the same on all ranks.
    pub clique: String,
    /// The rank.
    pub rank: usize,
}

/// Calls that belong together: the n-th collective of a communicator, or the n-th message from one
/// rank to another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Which {
    /// A collective.
    All(u64),
    /// A message.
    Message { from: usize, to: usize, number: u64 },
}

/// What a rank calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Called {
    /// The call.
    pub kind: Kind,
    /// Elements, as the call counts them.
    pub count: u64,
    /// Their type.
    pub dtype: Dtype,
    /// How they are reduced.
    pub op: Option<Op>,
}

/// What a rank tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Told {
    /// It is there, of so many.
    Joins { size: usize },
    /// It splits the communicator for the n-th time. No color is one that makes no communicator.
    Splits { size: usize, number: u64, color: Option<i32>, key: i32 },
    /// Its stream has come to a call.
    Comes { size: usize, which: Which, called: Called, input: Vec<u8> },
    /// It has given the communicator up.
    Leaves,
}

/// What a rank hears.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Heard {
    /// All ranks are there.
    Joined,
    /// All ranks have split: the new communicator, this one's rank in it and its size.
    Split { number: u64, new: Option<(Member, usize)> },
    /// A call is done, with its result.
    Done { which: Which, output: Vec<u8> },
    /// The ranks' calls do not fit.
    Wrong(String),
    /// All ranks have given the communicator up.
    Left,
    /// Another rank's process has ended.
    Gone(usize),
}

/// The colors and keys of ranks that split a communicator.
type Splits = BTreeMap<usize, (Option<i32>, i32)>;

/// Calls that have come, with what they read, by ranks; of a message by its ends.
type Meeting = BTreeMap<usize, (Called, Vec<u8>)>;

/// The ranks, and what they have told.
#[derive(Debug, Default)]
pub struct Hub {
    joined: HashMap<String, BTreeMap<usize, usize>>,
    splits: HashMap<(String, u64), Splits>,
    meetings: HashMap<(String, Which), Meeting>,
}

impl Hub {
    /// Takes what a rank tells. Gives what ranks hear then.
    pub fn tell(&mut self, from: &Member, told: Told) -> Vec<(Member, Heard)> {
        let Member { clique, rank } = from.clone();
        let member = |rank: usize| Member { clique: clique.clone(), rank };
        match told {
            Told::Joins { size } => {
                let joined = self.joined.entry(clique.clone()).or_default();
                if joined.contains_key(&rank) || rank >= size || joined.values().any(|other| *other != size) {
                    let text = format!("rank {rank} of {size} joins where {joined:?} (rank: ranks) are there");
                    let all = joined.keys().chain([&rank]);
                    return all.map(|rank| (member(*rank), Heard::Wrong(text.clone()))).collect();
                }
                joined.insert(rank, size);
                let is_all = joined.len() == size;
                if is_all { (0..size).map(|rank| (member(rank), Heard::Joined)).collect() } else { vec![] }
            }
            Told::Splits { size, number, color, key } => {
                let split = self.splits.entry((clique.clone(), number)).or_default();
                split.insert(rank, (color, key));
                if split.len() < size {
                    return vec![];
                }
                let split = std::mem::take(split);
                let heard = |(rank, (color, _)): (&usize, &(Option<i32>, i32))| {
                    let new = color.map(|color| {
                        let mut own: Vec<(i32, usize)> =
                            split.iter().filter(|(_, (c, _))| *c == Some(color)).map(|(rank, (_, key))| (*key, *rank)).collect();
                        own.sort_unstable();
                        let at = own.iter().position(|(_, other)| other == rank).unwrap_or(0);
                        (Member { clique: format!("{clique}/{number}.{color}"), rank: at }, own.len())
                    });
                    (member(*rank), Heard::Split { number, new })
                };
                let all: Vec<(Member, Heard)> = split.iter().map(heard).collect();
                for (_, heard) in &all {
                    if let Heard::Split { new: Some((new, size)), .. } = heard {
                        self.joined.entry(new.clique.clone()).or_default().insert(new.rank, *size);
                    }
                }
                all
            }
            Told::Comes { size, which, called, input } => self.comes(from, size, which, called, input),
            Told::Leaves => {
                let Some(joined) = self.joined.get_mut(&clique) else { return vec![] };
                let size = joined.remove(&rank);
                match size.filter(|_| joined.is_empty()) {
                    Some(size) => (0..size).map(|rank| (member(rank), Heard::Left)).collect(),
                    None => vec![],
                }
            }
        }
    }

    /// A rank's process is gone: the others of its communicator hear it.
    pub fn lost(&mut self, from: &Member) -> Vec<(Member, Heard)> {
        let Some(joined) = self.joined.get_mut(&from.clique) else { return vec![] };
        if joined.remove(&from.rank).is_none() {
            return vec![];
        }
        let member = |rank: &usize| Member { clique: from.clique.clone(), rank: *rank };
        joined.keys().map(|rank| (member(rank), Heard::Gone(from.rank))).collect()
    }

    fn comes(&mut self, from: &Member, size: usize, which: Which, called: Called, input: Vec<u8>) -> Vec<(Member, Heard)> {
        let Member { clique, rank } = from.clone();
        let member = |rank: usize| Member { clique: clique.clone(), rank };
        let here = self.meetings.entry((clique.clone(), which.clone())).or_default();
        if let Some((other, (before, _))) = here.iter().next() {
            let is_message = matches!(which, Which::Message { .. });
            let same = before.count == called.count && before.dtype == called.dtype;
            if !same || (!is_message && (before.kind != called.kind || before.op != called.op)) {
                let text = format!("ranks call different things: rank {other} {before}, rank {rank} {called}");
                return (0..size).map(|rank| (member(rank), Heard::Wrong(text.clone()))).collect();
            }
        }
        // A rank that is there twice is one that sends to itself.
        let place = match called.kind {
            Kind::Send(_) => 0,
            Kind::Recv(_) => 1,
            _ => rank,
        };
        here.insert(place, (called, input));
        let wanted = if matches!(which, Which::Message { .. }) { 2 } else { size };
        if here.len() < wanted {
            return vec![];
        }
        let here = std::mem::take(here);
        self.meetings.remove(&(clique.clone(), which.clone()));
        let done = |rank: usize, output: Vec<u8>| (member(rank), Heard::Done { which: which.clone(), output });
        if let Which::Message { from, to, .. } = which {
            let bytes = here[&0].1.clone();
            return if from == to { vec![done(to, bytes)] } else { vec![done(from, vec![]), done(to, bytes)] };
        }
        let called = here[&0].0.clone();
        let inputs: Vec<&[u8]> = here.values().map(|(_, input)| input.as_slice()).collect();
        let outputs: Vec<Vec<u8>> = match (called.kind, called.op) {
            (Kind::AllGather, _) => vec![inputs.concat(); size],
            (Kind::Broadcast(root), _) => vec![inputs[root.min(size - 1)].to_vec(); size],
            (Kind::AllReduce, Some(op)) => vec![reduce(&inputs, called.dtype, op); size],
            (_, Some(op)) => {
                let all = reduce(&inputs, called.dtype, op);
                let part = all.len() / size;
                (0..size).map(|rank| all[rank * part..(rank + 1) * part].to_vec()).collect()
            }
            (_, None) => vec![vec![]; size],
        };
        outputs.into_iter().enumerate().map(|(rank, output)| done(rank, output)).collect()
    }

    /// Which ranks have come to a call.
    pub fn here(&self, clique: &str, which: &Which) -> Vec<usize> {
        let here = self.meetings.get(&(clique.to_owned(), which.clone()));
        let Some(here) = here else { return vec![] };
        match which {
            Which::All(_) => here.keys().copied().collect(),
            Which::Message { from, to, .. } => here.keys().map(|place| if *place == 0 { *from } else { *to }).collect(),
        }
    }

    /// Which ranks have joined.
    pub fn joined(&self, clique: &str) -> Vec<usize> {
        self.joined.get(clique).map_or(vec![], |joined| joined.keys().copied().collect())
    }
}

impl std::fmt::Display for Called {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.kind.name();
        write!(f, "{name} of {} {:?}", self.count, self.dtype)?;
        self.op.map_or(Ok(()), |op| write!(f, " by {op:?}"))
    }
}
