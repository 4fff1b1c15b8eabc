//! Faults that are made on purpose, to see what comes of them. Each is written as its kind and what
//! belongs to it: `delay:rank=1,step=3,ms=500`. Steps are counted from 1, as in messages.
//!
//! | text | what happens |
//! |---|---|
//! | `delay:rank=R,step=S,ms=N` | the rank begins the step so many milliseconds later |
//! | `slow:rank=R,factor=F` | each of its steps takes F times as long |
//! | `kill:rank=R,step=S` | its process dies by SIGKILL as the step begins |
//! | `drop:rank=R,step=S` | it is silent from there on; a process is stopped |
//! | `flip:rank=R,step=S,state=NAME,bit=B` | bit B of its part of the state changes |
//! | `disk-full:bytes=N` | no more bytes than that can be written, for whoever asks |

mod worker;

pub(crate) use worker::inject;

use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::plan::set::PlanSet;
use std::collections::BTreeMap;
use std::str::FromStr;

/// A fault.
#[derive(Debug, Clone, PartialEq)]
pub enum Injection {
    /// What a rank does, or what is done to it.
    OnRank {
        /// The rank.
        rank: u64,
        /// What.
        what: OnRank,
    },
    /// Files take no more than so many bytes.
    DiskFull(u64),
}

/// A fault of a rank. Steps are counted from 1.
#[derive(Debug, Clone, PartialEq)]
pub enum OnRank {
    /// It begins a step later.
    Delay {
        /// The step.
        step: u64,
        /// By how many milliseconds.
        milliseconds: u64,
    },
    /// Each of its steps takes so many times as long.
    Slow(f64),
    /// Its process dies before a step.
    Kill(u64),
    /// It makes no call and sends nothing from a step on, which ends the run.
    Drop(u64),
    /// A bit of its memory changes behind a step.
    Flip {
        /// The step.
        step: u64,
        /// The state variable.
        state: String,
        /// The bit in the rank's part, from 0, the lowest of each byte first.
        bit: u64,
    },
}

/// Faults of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Injections(Vec<Injection>);

/// The kinds with an example of each, which has all that belongs to it.
const EXAMPLES: [&str; 6] = [
    "delay:rank=1,step=3,ms=500",
    "slow:rank=1,factor=4",
    "kill:rank=1,step=3",
    "drop:rank=1,step=3",
    "flip:rank=1,step=3,state=NAME,bit=17",
    "disk-full:bytes=1000000",
];

/// The longest delay in milliseconds, and the largest factor: an hour, a thousand.
const LONGEST: u64 = 3_600_000;
const SLOWEST: f64 = 1000.0;

impl Injections {
    /// The faults of texts, one each.
    ///
    /// # Errors
    /// All that is wrong in them.
    pub fn parse<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Injections, Diagnostic> {
        let mut mistakes = vec![];
        let mut found = vec![];
        for text in texts {
            let text = text.as_ref();
            match read(text) {
                Ok(injection) => found.push(injection),
                Err(wrong) => mistakes.extend(wrong.into_iter().map(|wrong| format!("`{text}`: {wrong}"))),
            }
        }
        if found.iter().filter(|injection| matches!(injection, Injection::DiskFull(_))).count() > 1 {
            mistakes.push("`disk-full` is there twice".to_string());
        }
        if mistakes.is_empty() { Ok(Injections(found)) } else { Err(wrong(&mistakes)) }
    }

    /// Checks that there are the ranks and state variables.
    ///
    /// # Errors
    /// All that are not there.
    pub fn check(&self, programs: &PlanSet) -> Result<(), Diagnostic> {
        let ranks = programs.mesh().world_size();
        let mut mistakes = vec![];
        for injection in &self.0 {
            let Injection::OnRank { rank, what } = injection else { continue };
            if *rank >= ranks {
                mistakes.push(format!("there is no rank {rank}: the mesh has {ranks}, from 0"));
                continue;
            }
            let OnRank::Flip { state, .. } = what else { continue };
            let program = programs.of_rank(programs.mesh(), *rank);
            if !program.states.iter().any(|own| own.name == *state) {
                mistakes.push(format!("rank {rank} has no state variable `{state}`"));
            }
        }
        if mistakes.is_empty() { Ok(()) } else { Err(wrong(&mistakes)) }
    }

    /// The faults.
    pub fn all(&self) -> &[Injection] {
        &self.0
    }

    /// The bytes that files take, if that is limited.
    pub fn disk_full(&self) -> Option<u64> {
        self.0.iter().find_map(|injection| match injection {
            Injection::DiskFull(bytes) => Some(*bytes),
            Injection::OnRank { .. } => None,
        })
    }

    /// Whether some bit changes, on one rank alone.
    pub fn flip(&self) -> bool {
        self.0.iter().any(|injection| matches!(injection, Injection::OnRank { what: OnRank::Flip { .. }, .. }))
    }

    /// What happens on a rank.
    pub fn of_rank(&self, number: u64) -> Vec<OnRank> {
        let of = |injection: &Injection| match injection {
            Injection::OnRank { rank, what } if *rank == number => Some(what.clone()),
            _ => None,
        };
        self.0.iter().filter_map(of).collect()
    }
}

/// One error with all mistakes.
fn wrong(mistakes: &[String]) -> Diagnostic {
    let error = Diagnostic::error(format!("faults that cannot be made: {}", mistakes.join("; ")));
    error.help(format!("faults are written as `{}`", EXAMPLES.join("`, `")))
}

/// What stands behind the kind of a fault, and what is wrong with that.
struct Fields<'t> {
    values: BTreeMap<&'t str, &'t str>,
    mistakes: Vec<String>,
}

impl<'t> Fields<'t> {
    /// Fields of the names that `example` has, each once.
    fn new(text: &'t str, example: &str) -> Fields<'t> {
        let mut fields = Fields { values: BTreeMap::new(), mistakes: vec![] };
        let wanted: Vec<&str> = example.split(',').filter_map(|field| Some(field.split_once('=')?.0)).collect();
        for field in text.split(',').filter(|field| !field.is_empty()) {
            let Some((name, value)) = field.split_once('=') else {
                fields.mistakes.push(format!("`{field}` has no `=`"));
                continue;
            };
            if !wanted.contains(&name) {
                fields.mistakes.push(format!("`{name}` does not belong to it"));
            } else if fields.values.insert(name, value).is_some() {
                fields.mistakes.push(format!("`{name}` is there twice"));
            }
        }
        fields
    }

    fn text(&mut self, name: &str) -> &'t str {
        let value = self.values.get(name).copied();
        value.unwrap_or_else(|| {
            self.mistakes.push(format!("`{name}=` is missing"));
            ""
        })
    }

    /// A number that `fits`, which is `what`.
    fn number<N: FromStr + Default>(&mut self, name: &str, what: &str, fits: impl Fn(&N) -> bool) -> N {
        let known = self.mistakes.len();
        let text = self.text(name);
        let number = text.parse().ok().filter(fits);
        if number.is_none() && self.mistakes.len() == known {
            self.mistakes.push(format!("`{name}={text}` is not {what}"));
        }
        number.unwrap_or_default()
    }

    fn whole(&mut self, name: &str) -> u64 {
        self.number(name, "a whole number", |_| true)
    }

    fn step(&mut self) -> u64 {
        self.number("step", "a step, from 1", |step| *step > 0)
    }
}

fn read(text: &str) -> Result<Injection, Vec<String>> {
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let split = |example: &'static str| example.split_once(':').unwrap_or_default();
    let Some((_, example)) = EXAMPLES.into_iter().map(split).find(|(own, _)| *own == kind) else {
        return Err(vec![format!("there is no fault `{kind}`")]);
    };
    let mut fields = Fields::new(rest, example);
    let injection = if kind == "disk-full" {
        Injection::DiskFull(fields.whole("bytes"))
    } else {
        let rank = fields.whole("rank");
        let what = match kind {
            "delay" => {
                let longest = format!("a number of milliseconds up to {LONGEST}");
                let step = fields.step();
                OnRank::Delay { step, milliseconds: fields.number("ms", &longest, |ms| *ms <= LONGEST) }
            }
            "slow" => {
                let slowest = format!("a number from 1 to {SLOWEST}");
                OnRank::Slow(fields.number("factor", &slowest, |factor| (1.0..=SLOWEST).contains(factor)))
            }
            "kill" => OnRank::Kill(fields.step()),
            "drop" => OnRank::Drop(fields.step()),
            _ => OnRank::Flip { step: fields.step(), state: fields.text("state").to_string(), bit: fields.whole("bit") },
        };
        Injection::OnRank { rank, what }
    };
    if fields.mistakes.is_empty() { Ok(injection) } else { Err(fields.mistakes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_read() {
        let read = Injections::parse(EXAMPLES).unwrap();
        assert_eq!(read.disk_full(), Some(1_000_000));
        let flip = OnRank::Flip { step: 3, state: "NAME".to_string(), bit: 17 };
        let delay = OnRank::Delay { step: 3, milliseconds: 500 };
        assert_eq!(read.of_rank(1), [delay, OnRank::Slow(4.0), OnRank::Kill(3), OnRank::Drop(3), flip]);
        assert_eq!((read.of_rank(0), read.all().len()), (vec![], 6));
        assert_eq!(Injections::parse::<&str>([]).unwrap(), Injections::default());
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        for (texts, says) in [
            (&["flood:rank=1"][..], "`flood:rank=1`: there is no fault `flood`"),
            (&["kill"], "`kill`: `rank=` is missing; `kill`: `step=` is missing"),
            (
                &["kill:rank=x,step=0,ms=1"],
                "`ms` does not belong to it; `kill:rank=x,step=0,ms=1`: `rank=x` is not a whole number; \
                 `kill:rank=x,step=0,ms=1`: `step=0` is not a step, from 1",
            ),
            (
                &["slow:rank=0,factor=nan", "slow:rank=0,factor"],
                "`factor=nan` is not a number from 1 to 1000; `slow:rank=0,factor`: `factor` has no `=`",
            ),
            (&["drop:rank=1,rank=2,step=1"], "`rank` is there twice"),
            (&["delay:rank=0,step=1,ms=99999999"], "`ms=99999999` is not a number of milliseconds up to 3600000"),
            (&["disk-full:bytes=1", "disk-full:bytes=2"], "`disk-full` is there twice"),
            (&["disk-full:bytes=99999999999999999999"], "is not a whole number"),
        ] {
            let error = Injections::parse(texts).unwrap_err();
            assert!(error.message.contains(says), "{texts:?}: {}", error.message);
            assert!(error.help.is_some_and(|help| help.contains("`kill:rank=1,step=3`")), "{texts:?}");
        }
    }
}
