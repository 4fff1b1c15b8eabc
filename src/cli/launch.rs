//! `shardc launch`: ranks of a command as processes of this machine.

use super::failure::Failure;
use super::interrupt;
use super::output::note;
use clap::Args;
use shardc_launch::local::Launcher;
use std::env;
use std::ffi::OsString;
use std::time::Duration;

/// The arguments.
#[derive(Debug, Args)]
pub struct Launch {
    /// How many ranks to start
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    ranks: u64,
    /// For how many seconds ranks wait for one another at first
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    rendezvous_timeout: u64,
    /// Where rank 0 waits, if ranks are started on other machines too, each with this command; all
    /// then need the same text in SHARDC_RENDEZVOUS_KEY
    #[arg(long, value_name = "HOST:PORT")]
    rendezvous: Option<String>,
    /// How many ranks there are on all machines
    #[arg(long, value_name = "N", requires = "rendezvous")]
    world_size: Option<u64>,
    /// The number of the first rank to start
    #[arg(long, value_name = "R", requires = "rendezvous", default_value_t = 0)]
    first_rank: u64,
    /// The command that each rank runs, with its arguments: `-- train PLAN …`
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Commands that several processes can run together.
const COMMANDS: [&str; 1] = ["train"];

/// For how long the others may end by themselves when a rank has failed: they hear of it.
const MOMENT: Duration = Duration::from_secs(2);
/// For how long they may go on when they are asked to end.
const GRACE: Duration = Duration::from_secs(5);

impl Launch {
    /// Runs the ranks to their end.
    ///
    /// # Errors
    /// The first rank that fails, with its exit code, or a command line that means nothing.
    pub fn run(self) -> Result<(), Failure> {
        let usage = |message: String| Err(Failure::Usage(message));
        if !COMMANDS.iter().any(|command| self.command[0] == *command) {
            let command = self.command[0].to_string_lossy().into_owned();
            return usage(format!("`{command}` does not run as several processes; `{}` does", COMMANDS.join("`, `")));
        }
        let world_size = self.world_size.unwrap_or(self.ranks);
        if self.first_rank.saturating_add(self.ranks) > world_size {
            let (first, last) = (self.first_rank, self.first_rank.saturating_add(self.ranks - 1));
            return usage(format!(
                "ranks {first} to {last} are not among {world_size}: say how many there are with --world-size"
            ));
        }
        let program = env::current_exe().map_err(|e| Failure::io("this program is not found", &e))?;
        let launcher = Launcher {
            program,
            arguments: self.command,
            ranks: self.ranks,
            first_rank: self.first_rank,
            world_size,
            rendezvous: self.rendezvous,
            timeout: Duration::from_secs(self.rendezvous_timeout),
            moment: MOMENT,
            grace: GRACE,
        };
        let code = launcher.run(&interrupt::received()?, &mut |line| note(line)).map_err(Failure::Machine)?;
        if code == 0 { Ok(()) } else { Err(Failure::Rank(code)) }
    }
}
