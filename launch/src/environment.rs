//! Which rank this process is, as whoever started it says in environment variables: `shardc
//! launch`, torchrun, OpenMPI or Slurm.

mod nodes;
#[cfg(test)]
mod tests;

use crate::key::Key;
use nodes::first_host;
use std::env;
use std::time::Duration;

/// The variables of our own; those of others are taken where [`RANK`] and [`WORLD_SIZE`] are not
/// set.
pub const RANK: &str = "SHARDC_RANK";
/// How many ranks there are.
pub const WORLD_SIZE: &str = "SHARDC_WORLD_SIZE";
/// The number of the rank among those of its machine.
pub const LOCAL_RANK: &str = "SHARDC_LOCAL_RANK";
/// Where rank 0 waits for the others, `HOST:PORT`.
pub const RENDEZVOUS: &str = "SHARDC_RENDEZVOUS";
/// The key that all ranks share.
pub const RENDEZVOUS_KEY: &str = "SHARDC_RENDEZVOUS_KEY";
/// For how many seconds ranks wait for one another at first.
pub const RENDEZVOUS_TIMEOUT: &str = "SHARDC_RENDEZVOUS_TIMEOUT";

/// For how long ranks wait for one another where nothing says so.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// A rank that is a process of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Its number.
    pub rank: u64,
    /// How many ranks there are.
    pub world_size: u64,
    /// Its number among the ranks of its machine.
    pub local_rank: u64,
    /// Where rank 0 waits, `HOST:PORT`, if that is known.
    pub rendezvous: Option<String>,
    /// The key that all ranks share; empty if there is none.
    pub key: Key,
    /// For how long ranks wait for one another at first.
    pub timeout: Duration,
    /// Who started it.
    pub starter: &'static str,
}

/// A program that starts ranks, and its variables.
struct Starter {
    name: &'static str,
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    /// Whether the number of ranks alone says nothing: it is then the size of a job that has
    /// started no ranks.
    needs_rank: bool,
}

/// The first that has set its variables counts: those that stand before start ranks within what
/// those behind them started.
const STARTERS: [Starter; 4] = [
    Starter { name: "shardc launch", rank: RANK, world_size: WORLD_SIZE, local_rank: LOCAL_RANK, needs_rank: false },
    Starter { name: "torchrun", rank: "RANK", world_size: "WORLD_SIZE", local_rank: "LOCAL_RANK", needs_rank: false },
    Starter {
        name: "OpenMPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        needs_rank: false,
    },
    Starter { name: "Slurm", rank: "SLURM_PROCID", world_size: "SLURM_NTASKS", local_rank: "SLURM_LOCALID", needs_rank: true },
];

impl Environment {
    /// That of this process; `None` if it is no rank of several.
    ///
    /// # Errors
    /// If variables are half set, no numbers, or contradict one another.
    pub fn of_process() -> Result<Option<Environment>, String> {
        Environment::read(&|name| env::var(name).ok())
    }

    /// As [`Environment::of_process`], from the variables that `get` knows.
    ///
    /// # Errors
    /// As [`Environment::of_process`].
    pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Environment>, String> {
        for starter in &STARTERS {
            if let Some(numbers) = starter.numbers(get)? {
                let [rank, world_size, local_rank] = numbers;
                let rendezvous = match get(RENDEZVOUS) {
                    Some(address) => Some(address),
                    None => address_of(starter.name, get)?,
                };
                let timeout = number(get, RENDEZVOUS_TIMEOUT)?.map_or(TIMEOUT, Duration::from_secs);
                let key = get(RENDEZVOUS_KEY).map(|text| Key::of_text(&text)).unwrap_or_default();
                let starter = starter.name;
                return Ok(Some(Environment { rank, world_size, local_rank, rendezvous, key, timeout, starter }));
            }
        }
        Ok(None)
    }
}

impl Starter {
    /// Rank, number of ranks and local rank, if it started this process.
    fn numbers(&self, get: &dyn Fn(&str) -> Option<String>) -> Result<Option<[u64; 3]>, String> {
        let names = [self.rank, self.world_size, self.local_rank];
        let found = names.map(|name| get(name).is_some());
        if !found.contains(&true) || (self.needs_rank && !found[0]) {
            return Ok(None);
        }
        if let Some(missing) = found.iter().position(|found| !found) {
            let set = found.iter().position(|found| *found).unwrap_or_default();
            let (set, missing, name) = (names[set], names[missing], self.name);
            return Err(format!("{set} is set and {missing} is not: {name} sets both; unset the first or set the second"));
        }
        let [Some(rank), Some(world_size), Some(local_rank)] =
            [number(get, self.rank)?, number(get, self.world_size)?, number(get, self.local_rank)?]
        else {
            return Ok(None);
        };
        if rank >= world_size {
            return Err(format!("{}={rank} and {}={world_size}: ranks count from 0", self.rank, self.world_size));
        }
        if local_rank > rank {
            return Err(format!("{}={local_rank} is more than {}={rank}", self.local_rank, self.rank));
        }
        Ok(Some([rank, world_size, local_rank]))
    }
}

/// Where rank 0 waits, as `starter` says it.
fn address_of(starter: &str, get: &dyn Fn(&str) -> Option<String>) -> Result<Option<String>, String> {
    match starter {
        "torchrun" | "OpenMPI" => match (get("MASTER_ADDR"), number(get, "MASTER_PORT")?) {
            (Some(host), Some(port)) => {
                // Its agent then waits at the port itself.
                let taken = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
                Ok(Some(format!("{host}:{}", port + u64::from(taken))))
            }
            (Some(_), None) => Err("MASTER_ADDR is set and MASTER_PORT is not".to_string()),
            (None, Some(_)) => Err("MASTER_PORT is set and MASTER_ADDR is not".to_string()),
            (None, None) => Ok(None),
        },
        "Slurm" => {
            let nodes = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST"));
            let host = nodes.as_deref().and_then(first_host).or_else(|| get("SLURM_LAUNCH_NODE_IPADDR"));
            let (job, step) = (number(get, "SLURM_JOB_ID")?, number(get, "SLURM_STEP_ID")?.unwrap_or(0));
            // Jobs that share a machine get ports of their own.
            Ok(host.zip(job).map(|(host, job)| format!("{host}:{}", 20_000 + (job * 16 + step) % 12_000)))
        }
        _ => Ok(None),
    }
}

/// The number in a variable, if it is set.
fn number(get: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<Option<u64>, String> {
    /// Rank and ports are smaller, and sums of them fit.
    const LARGEST: u64 = u32::MAX as u64;
    let Some(text) = get(name) else { return Ok(None) };
    let value = text.parse().ok().filter(|value| *value <= LARGEST);
    value.map(Some).ok_or_else(|| format!("{name} is `{}`, which is no number", text.chars().take(40).collect::<String>()))
}
