//! From an instruction's words to what the run executes.

use super::arithmetic::{self, Call};
use super::compare::{self, Join};
use super::convert;
use super::kinds::Kind;
use super::lanes::{Guard, Step};
use super::memory::Space;
use super::names::{Names, Slot};
use super::parse::{Argument, Statement};

/// An instruction, decoded.
pub(super) struct Instruction {
    pub(super) guard: Option<Guard>,
    pub(super) op: Op,
    pub(super) text: String,
}

/// Where an access is: a register and a number of bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) space: Space,
    pub(super) base: Slot,
    pub(super) offset: u64,
}

/// What an instruction does.
pub(super) enum Op {
    Compute(Step),
    Load { at: Place, kind: Kind, to: Vec<Slot>, fixed: bool },
    Store { at: Place, bytes: usize, from: Vec<usize> },
    Branch(usize),
    BranchTo { index: usize, targets: Vec<usize> },
    Exit,
    Barrier,
    WarpBarrier(usize),
    Shuffle { how: Shuffle, to: usize, there: usize, from: usize, by: usize, bounds: usize, members: usize },
    Vote { how: Vote, to: usize, of: Guard, members: usize },
    Active(usize),
    Trap,
    CopyAsync { to: Place, from: Place, bytes: usize, there: Option<usize> },
    Commit,
    Wait(usize),
    LoadTiles { at: Place, to: Vec<usize>, turned: bool },
    Multiply { d: Vec<usize>, a: Vec<usize>, b: Vec<usize>, c: Vec<usize>, bf16: bool },
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shuffle {
    Xor,
    Up,
    Down,
    Index,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    Ballot,
    All,
    Any,
    Same,
}

/// Why an instruction was not decoded.
pub(super) enum Problem {
    Unknown,
    Wrong(String),
}

impl From<String> for Problem {
    fn from(text: String) -> Problem {
        Problem::Wrong(text)
    }
}

fn wrong<T>(text: &str) -> Result<T, Problem> {
    Err(Problem::Wrong(text.to_string()))
}

pub(super) fn decode(s: &Statement, names: &mut Names) -> Result<Op, Problem> {
    let parts: Vec<&str> = s.opcode.split('.').collect();
    let a = s.arguments.as_slice();
    let kind = parts.last().and_then(|p| Kind::of(p));
    Ok(match (parts[0], a) {
        ("bra", [Argument::Name(to)]) => Op::Branch(names.label(to)?),
        ("brx", [index, Argument::Name(list)]) => {
            let index = names.source(index)?.at;
            let list = names.targets.get(list).ok_or_else(|| format!("there are no targets '{list}'"))?;
            let targets = list.iter().map(|l| names.label(l)).collect::<Result<_, _>>()?;
            Op::BranchTo { index, targets }
        }
        ("ret" | "exit", []) => Op::Exit,
        ("trap", []) => Op::Trap,
        ("membar" | "fence" | "nanosleep" | "prefetch", _) => Op::Nothing,
        ("bar" | "barrier", [members]) if parts.contains(&"warp") => Op::WarpBarrier(names.source(members)?.at),
        ("bar" | "barrier", [_]) if parts.contains(&"sync") => Op::Barrier,
        ("activemask", [d]) => Op::Active(names.target(d)?.at),
        ("shfl", [to, from, by, bounds, members]) if parts.get(1) == Some(&"sync") => {
            shuffle(&parts, names, to, [from, by, bounds, members])?
        }
        ("vote", [to, of, members]) if parts.get(1) == Some(&"sync") => vote(&parts, names, to, of, members)?,
        ("ld", [d, at]) if parts.get(1) == Some(&"param") => parameter(kind, names, d, at)?,
        ("ld" | "st", [x, y]) => access(&parts, kind.ok_or(Problem::Unknown)?, names, x, y)?,
        ("mov", [d, from]) => Op::Compute(moved(kind.ok_or(Problem::Unknown)?, names, d, from)?),
        ("cvta", [d, from]) => address(&parts, names, d, from)?,
        ("setp", [d, rest @ ..]) => Op::Compute(compared(&parts, names, d, rest)?),
        ("set", [d, x, y]) => Op::Compute(set(&parts, names, d, x, y)?),
        ("testp", [d, x]) => {
            let f = compare::property(parts[1], kind.ok_or(Problem::Unknown)?).ok_or(Problem::Unknown)?;
            let x = names.source(x)?.at;
            Op::Compute(compare::compared([names.predicate(d)?.predicate, 0], [x, x], f, None))
        }
        ("selp", [d, x, y, by]) => {
            let slots = [names.target(d)?.at, names.source(x)?.at, names.source(y)?.at];
            let kind = kind.ok_or(Problem::Unknown)?;
            Op::Compute(arithmetic::selected(slots[0], slots[1], slots[2], names.predicate(by)?, kind))
        }
        ("and" | "or" | "xor", [d, x, y]) if kind == Some(Kind::Pred) => {
            let join = Join::of(parts[0]).ok_or(Problem::Unknown)?;
            Op::Compute(compare::joined(names.predicate(d)?.predicate, join, names.predicate(x)?, names.predicate(y)?))
        }
        ("not", [d, x]) if kind == Some(Kind::Pred) => {
            let x = names.predicate(x)?;
            Op::Compute(compare::copied(names.predicate(d)?.predicate, Guard { negated: !x.negated, ..x }))
        }
        ("cvt", _) => Op::Compute(converted(&parts, names, a)?),
        ("cp", _) => copied(&parts, names, a)?,
        ("ldmatrix", [d, at]) => tiles(&s.opcode, names, d, at)?,
        ("mma", [d, x, y, c]) => {
            let bf16 = match s.opcode.as_str() {
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" => true,
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" => false,
                _ => return Err(Problem::Unknown),
            };
            let (d, x) = (targets(names, d)?, sources(names, x)?);
            let (y, c) = (sources(names, y)?, sources(names, c)?);
            if [d.len(), x.len(), y.len(), c.len()] != [4, 4, 2, 4] {
                return wrong("a product of tiles has another number of registers");
            }
            Op::Multiply { d: d.iter().map(|d| d.at).collect(), a: x, b: y, c, bf16 }
        }
        _ => computed(&parts, names, a)?,
    })
}

fn computed(parts: &[&str], names: &mut Names, a: &[Argument]) -> Result<Op, Problem> {
    let (Some(last), Some((d, from))) = (parts.last(), a.split_first()) else { return Err(Problem::Unknown) };
    let Some(kind) = Kind::of(last).filter(|_| parts.len() > 1) else { return Err(Problem::Unknown) };
    // `slct` names the type that it chooses first.
    let kind = if parts[0] == "slct" { Kind::of(parts[1]).ok_or(Problem::Unknown)? } else { kind };
    let marks = if parts[0] == "slct" { &parts[2..] } else { &parts[1..parts.len() - 1] };
    // What is not known is told as such, also where its arguments are of another form.
    let fake = [0; 6];
    let known = fake.get(..a.len()).is_some_and(|slots| arithmetic::step(&Call { name: parts[0], marks, kind, slots }).is_some());
    if !known {
        return Err(Problem::Unknown);
    }
    let mut slots = vec![names.target(d)?.at];
    for x in from {
        slots.push(names.source(x)?.at);
    }
    arithmetic::step(&Call { name: parts[0], marks, kind, slots: &slots }).map(Op::Compute).ok_or(Problem::Unknown)
}

fn targets(names: &Names, a: &Argument) -> Result<Vec<Slot>, Problem> {
    match a {
        Argument::Vector(all) => all.iter().map(|a| names.target(a).map_err(Problem::Wrong)).collect(),
        one => Ok(vec![names.target(one)?]),
    }
}

fn sources(names: &mut Names, a: &Argument) -> Result<Vec<usize>, Problem> {
    match a {
        Argument::Vector(all) => all.iter().map(|a| names.source(a).map(|s| s.at).map_err(Problem::Wrong)).collect(),
        one => Ok(vec![names.source(one)?.at]),
    }
}

fn parameter(kind: Option<Kind>, names: &mut Names, d: &Argument, at: &Argument) -> Result<Op, Problem> {
    let Argument::Place(name, 0) = at else { return wrong("a parameter is read from its middle") };
    let index = *names.parameters.get(name).ok_or_else(|| format!("there is no parameter '{name}'"))?;
    let from = names.special(super::names::Special::Parameter(index)).at;
    let step = arithmetic::moved(kind.ok_or(Problem::Unknown)?, [names.target(d)?.at, from]);
    step.map(Op::Compute).ok_or(Problem::Unknown)
}

fn access(parts: &[&str], kind: Kind, names: &mut Names, x: &Argument, y: &Argument) -> Result<Op, Problem> {
    let (mut space, mut many, mut fixed) = (Space::Generic, 1, false);
    for part in &parts[1..parts.len() - 1] {
        match *part {
            "v2" => many = 2,
            "v4" => many = 4,
            "nc" => fixed = true,
            "volatile" | "relaxed" | "weak" | "cta" | "gpu" | "sys" | "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" => {}
            p if p.starts_with("L1::") || p.starts_with("L2::") => {}
            p => space = Space::of(p).ok_or(Problem::Unknown)?,
        }
    }
    if kind == Kind::Pred {
        return Err(Problem::Unknown);
    }
    let (place, values) = if parts[0] == "ld" { (y, x) } else { (x, y) };
    let (base, offset) = names.place(place)?;
    let at = Place { space, base, offset };
    let count = match values {
        Argument::Vector(v) => v.len(),
        _ => 1,
    };
    if count != many {
        return wrong("the number of registers is another than the opcode's");
    }
    Ok(if parts[0] == "ld" {
        Op::Load { at, kind, to: targets(names, values)?, fixed }
    } else {
        Op::Store { at, bytes: kind.bytes(), from: sources(names, values)? }
    })
}

fn moved(kind: Kind, names: &mut Names, d: &Argument, from: &Argument) -> Result<Step, Problem> {
    match (d, from) {
        (d, Argument::Name(number)) if kind == Kind::Pred && super::text::number(number).is_some() => {
            let sides = [names.source(from)?.at, names.source(&Argument::Name("0".to_string()))?.at];
            let differs = compare::comparison("ne", Kind::U32).ok_or(Problem::Unknown)?;
            Ok(compare::compared([names.predicate(d)?.predicate, 0], sides, differs, None))
        }
        _ if kind == Kind::Pred => Ok(compare::copied(names.predicate(d)?.predicate, names.predicate(from)?)),
        (Argument::Vector(to), from) if kind.bytes().is_multiple_of(to.len()) => {
            let slots = targets(names, d)?.iter().map(|s| s.at).collect();
            Ok(convert::parted(slots, names.source(from)?.at, kind.bytes() / to.len()))
        }
        (_, Argument::Vector(all)) if kind.bytes().is_multiple_of(all.len()) => {
            let from = sources(names, from)?;
            let bytes = kind.bytes() / from.len();
            Ok(convert::joined(names.target(d)?.at, from, bytes))
        }
        _ => arithmetic::moved(kind, [names.target(d)?.at, names.source(from)?.at]).ok_or(Problem::Unknown),
    }
}

fn address(parts: &[&str], names: &mut Names, d: &Argument, from: &Argument) -> Result<Op, Problem> {
    let to_space = parts.get(1) == Some(&"to");
    let space = parts.get(1 + usize::from(to_space)).and_then(|p| Space::of(p)).ok_or(Problem::Unknown)?;
    let window = space.window();
    let slots = [names.target(d)?.at, names.source(from)?.at];
    let by = if to_space { window.wrapping_neg() } else { window };
    Ok(Op::Compute(super::lanes::one(slots, move |a: u64| a.wrapping_add(by))))
}

fn compared(parts: &[&str], names: &mut Names, d: &Argument, rest: &[Argument]) -> Result<Step, Problem> {
    let to = match d {
        Argument::Pair(a, b) => [names.predicate_name(a)?, names.predicate_name(b)?],
        d => [names.predicate(d)?.predicate, 0],
    };
    let (join, kind) = match parts[1..] {
        [_, kind] => (None, kind),
        [_, join, kind] => (Some(Join::of(join).ok_or(Problem::Unknown)?), kind),
        _ => return Err(Problem::Unknown),
    };
    let f = Kind::of(kind).and_then(|k| compare::comparison(parts[1], k)).ok_or(Problem::Unknown)?;
    let (x, y, join) = match (rest, join) {
        ([x, y], None) => (x, y, None),
        ([x, y, p], Some(join)) => (x, y, Some((join, names.predicate(p)?))),
        _ => return wrong("the number of arguments is another than the opcode's"),
    };
    Ok(compare::compared(to, [names.source(x)?.at, names.source(y)?.at], f, join))
}

fn set(parts: &[&str], names: &mut Names, d: &Argument, x: &Argument, y: &Argument) -> Result<Step, Problem> {
    let [_, name, to, kind] = parts else { return Err(Problem::Unknown) };
    let yes = match *to {
        "u32" | "s32" => u64::from(u32::MAX),
        "f32" => u64::from(1.0f32.to_bits()),
        _ => return Err(Problem::Unknown),
    };
    let f = Kind::of(kind).and_then(|k| compare::comparison(name, k)).ok_or(Problem::Unknown)?;
    Ok(compare::set(names.target(d)?.at, [names.source(x)?.at, names.source(y)?.at], f, yes))
}

fn converted(parts: &[&str], names: &mut Names, a: &[Argument]) -> Result<Step, Problem> {
    let (round, to, from) = match parts[1..] {
        [to, from] => ("", to, from),
        [round, to, from] => (round, to, from),
        _ => return Err(Problem::Unknown),
    };
    match a {
        [d, x, y] => {
            let slots = [names.target(d)?.at, names.source(x)?.at, names.source(y)?.at];
            convert::packed(slots, to, round).filter(|_| from == "f32").ok_or(Problem::Unknown)
        }
        [d, x] => {
            let (Some(to), Some(from)) = (Kind::of(to), Kind::of(from)) else { return Err(Problem::Unknown) };
            let d = names.target(d)?;
            convert::step([d.at, names.source(x)?.at], to, from, round, d.bytes).ok_or(Problem::Unknown)
        }
        _ => Err(Problem::Unknown),
    }
}

fn copied(parts: &[&str], names: &mut Names, a: &[Argument]) -> Result<Op, Problem> {
    let count = |a: &Argument| match a {
        Argument::Name(n) => super::text::number(n).and_then(|n| usize::try_from(n).ok()),
        _ => None,
    };
    Ok(match (&parts[1..], a) {
        (["async", "commit_group"], []) => Op::Commit,
        (["async", "wait_group"], [n]) => Op::Wait(count(n).ok_or(Problem::Unknown)?),
        (["async", "wait_all"], []) => Op::Wait(usize::MAX),
        (["async", "ca" | "cg", "shared" | "shared::cta", "global", rest @ ..], [to, from, n, there @ ..])
            if rest.iter().all(|r| r.starts_with("L2::")) && there.len() < 2 =>
        {
            let bytes = count(n).filter(|n| matches!(n, 4 | 8 | 16)).ok_or(Problem::Unknown)?;
            let (base, offset) = names.place(to)?;
            let to = Place { space: Space::Shared, base, offset };
            let (base, offset) = names.place(from)?;
            let from = Place { space: Space::Global, base, offset };
            let there = there.first().map(|t| names.source(t)).transpose()?.map(|s| s.at);
            Op::CopyAsync { to, from, bytes, there }
        }
        _ => return Err(Problem::Unknown),
    })
}

fn tiles(opcode: &str, names: &mut Names, d: &Argument, at: &Argument) -> Result<Op, Problem> {
    let rest = opcode.strip_prefix("ldmatrix.sync.aligned.m8n8.").ok_or(Problem::Unknown)?;
    let count = match rest.get(..2) {
        Some("x1") => 1,
        Some("x2") => 2,
        Some("x4") => 4,
        _ => return Err(Problem::Unknown),
    };
    let turned = match &rest[2..] {
        ".shared.b16" | ".shared::cta.b16" => false,
        ".trans.shared.b16" | ".trans.shared::cta.b16" => true,
        _ => return Err(Problem::Unknown),
    };
    let to: Vec<usize> = targets(names, d)?.iter().map(|s| s.at).collect();
    if to.len() != count {
        return wrong("the number of registers is another than the opcode's");
    }
    let (base, offset) = names.place(at)?;
    Ok(Op::LoadTiles { at: Place { space: Space::Shared, base, offset }, to, turned })
}

fn shuffle(parts: &[&str], names: &mut Names, to: &Argument, [from, by, bounds, members]: [&Argument; 4]) -> Result<Op, Problem> {
    let how = match parts[2..] {
        ["bfly", "b32"] => Shuffle::Xor,
        ["up", "b32"] => Shuffle::Up,
        ["down", "b32"] => Shuffle::Down,
        ["idx", "b32"] => Shuffle::Index,
        _ => return Err(Problem::Unknown),
    };
    let (to, there) = match to {
        Argument::Pair(to, there) => (names.target(&Argument::Name(to.clone()))?.at, names.predicate_name(there)?),
        to => (names.target(to)?.at, 0),
    };
    let [from, by, bounds, members] = [names.source(from)?, names.source(by)?, names.source(bounds)?, names.source(members)?];
    Ok(Op::Shuffle { how, to, there, from: from.at, by: by.at, bounds: bounds.at, members: members.at })
}

fn vote(parts: &[&str], names: &mut Names, to: &Argument, of: &Argument, members: &Argument) -> Result<Op, Problem> {
    let how = match parts[2..] {
        ["ballot", "b32"] => Vote::Ballot,
        ["all", "pred"] => Vote::All,
        ["any", "pred"] => Vote::Any,
        ["uni", "pred"] => Vote::Same,
        _ => return Err(Problem::Unknown),
    };
    let of = names.predicate(of)?;
    let to = if how == Vote::Ballot { names.target(to)?.at } else { names.predicate(to)?.predicate };
    Ok(Op::Vote { how, to, of, members: names.source(members)?.at })
}
