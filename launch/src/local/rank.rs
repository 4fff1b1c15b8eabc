//! One process of the launcher.

use super::output::Output;
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

/// A rank that was started.
#[derive(Debug)]
pub struct Rank {
    /// Its number.
    pub number: u64,
    child: Child,
    output: Output,
    status: Option<(ExitStatus, Instant)>,
}

/// What a process is told.
#[derive(Debug, Clone, Copy)]
pub enum Signal {
    /// What the launcher was told itself.
    Given(i32),
    /// It is to end.
    End,
    /// It ends.
    Kill,
}

impl Rank {
    pub fn new(number: u64, child: Child, output: Output) -> Rank {
        Rank { number, child, output, status: None }
    }

    /// Whether it has not been seen to end.
    pub fn runs(&self) -> bool {
        self.status.is_none()
    }

    /// Whether it has ended since the last time.
    pub fn has_just_ended(&mut self) -> bool {
        if self.runs()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.status = Some((status, Instant::now()));
            return true;
        }
        false
    }

    /// Waits for its end.
    pub fn wait(&mut self) {
        if let Ok(status) = self.child.wait() {
            self.status = Some((status, Instant::now()));
        }
    }

    /// When it ended.
    pub fn ended(&self) -> Option<Instant> {
        self.status.map(|(_, when)| when)
    }

    /// Its exit code; of a process that a signal has ended 128 and the signal's number, as shells
    /// have it.
    pub fn code(&self) -> u8 {
        let Some((status, _)) = self.status else { return 0 };
        let code = status.code().or_else(|| signal_of(status).map(|signal| 128 + signal));
        code.map_or(u8::MAX, |code| u8::try_from(code).unwrap_or(u8::MAX))
    }

    /// Whether a signal has ended it.
    pub fn was_killed(&self) -> bool {
        self.status.is_some_and(|(status, _)| status.code().is_none())
    }

    /// How it has failed, in words.
    pub fn how(&self) -> String {
        let rank = self.number;
        match self.status.and_then(|(status, _)| signal_of(status)) {
            Some(signal) => format!("rank {rank} was ended by signal {signal}; the others end too"),
            None => format!("rank {rank} ended with exit code {}; the others end too", self.code()),
        }
    }

    /// The last lines that it has printed, if they were not passed on.
    pub fn lines(self) -> Vec<String> {
        self.output.lines()
    }

    /// Tells it, if it runs.
    pub fn signal(&mut self, signal: Signal) {
        if self.runs() {
            // It may just have ended.
            let _ = send(&mut self.child, signal);
        }
    }
}

/// A process of a group of its own, which hears with it what it is told: Ctrl-C in a terminal goes
/// to the launcher alone, which passes it on.
#[cfg(unix)]
pub fn apart(command: &mut Command) -> &mut Command {
    std::os::unix::process::CommandExt::process_group(command, 0)
}

#[cfg(not(unix))]
pub fn apart(command: &mut Command) -> &mut Command {
    command
}

#[cfg(unix)]
fn signal_of(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal_of(_: ExitStatus) -> Option<i32> {
    None
}

#[cfg(unix)]
fn send(child: &mut Child, signal: Signal) -> std::io::Result<()> {
    use rustix::process::{Pid, Signal as Number, kill_process_group};
    let number = match signal {
        Signal::Given(number) => Number::from_named_raw(number).unwrap_or(Number::TERM),
        Signal::End => Number::TERM,
        Signal::Kill => Number::KILL,
    };
    let group = Pid::from_child(child);
    kill_process_group(group, number)?;
    // A process that is stopped would hear of its end only when somebody lets it go on.
    if matches!(signal, Signal::End) {
        kill_process_group(group, Number::CONT)?;
    }
    Ok(())
}

/// Where there are no signals, a process can only be ended.
#[cfg(not(unix))]
fn send(child: &mut Child, _: Signal) -> std::io::Result<()> {
    child.kill()
}
