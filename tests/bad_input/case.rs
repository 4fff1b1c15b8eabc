//! One run of the program over a folder with something bad in it, and what must hold of it.

use super::support::folder;
use shardc_ir::plan_file::hash_file;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wait4::Wait4;

/// No case takes longer.
const LONGEST: Duration = Duration::from_secs(1);
/// How often a case is tried that takes longer, on a machine that does other things too.
const TRIES: usize = 6;
/// After so many seconds of work the system ends the program.
const ENDLESS: u64 = 20;
/// What a machine with little memory may lack.
const LACKS: [&str; 3] = ["memory", "thread", "space"];
/// Errors take fewer bytes.
const MESSAGE: usize = 4096;
/// Beyond what a good run takes, no case takes more memory than its files and that.
const MEMORY: u64 = 64 << 20;

/// The name of cases that write where they may not or cannot.
pub const OUTPUT: &str = "an output";
/// The name of cases that are wrong by themselves.
pub const COMMAND_LINE: &str = "a command line";

/// The contents of a folder: the hash of each file, by its path; of anything else none.
type Contents = BTreeMap<PathBuf, Option<String>>;

/// The bytes of a file, which several cases share: the most memory that this process ever had is
/// counted for each that it starts.
type Bytes = Arc<Vec<u8>>;

/// A command, and the files that differ from those of the good job.
pub struct Case {
    /// A name of the fault.
    pub name: String,
    /// Files that are replaced; none is one that is missing.
    pub files: Vec<(String, Option<Bytes>)>,
    /// The arguments of the program.
    pub arguments: Vec<String>,
}

impl Case {
    /// A case that replaces one file.
    pub fn of(name: impl Into<String>, file: &str, bytes: impl Into<Bytes>, arguments: &str) -> Case {
        Case::with(name, vec![(file, Some(bytes.into()))], arguments)
    }

    /// A case of these files.
    pub fn with(name: impl Into<String>, files: Vec<(&str, Option<Bytes>)>, arguments: &str) -> Case {
        let files = files.into_iter().map(|(name, bytes)| (name.to_string(), bytes)).collect();
        Case { name: name.into(), files, arguments: arguments.split_whitespace().map(String::from).collect() }
    }
}

/// The outcome of a run.
pub struct Outcome {
    /// The exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Its messages.
    pub said: String,
    /// What it printed.
    pub printed: String,
    /// How long it took.
    pub took: Duration,
    /// The most memory that it had, in bytes.
    pub peak: u64,
}

/// The folder that all cases run in, and what a good run in it is like.
pub struct Bench {
    folder: PathBuf,
    output: PathBuf,
    good: Contents,
    good_bytes: BTreeMap<PathBuf, Vec<u8>>,
    /// The most memory that a good run of each command takes.
    baseline: BTreeMap<String, u64>,
}

impl Bench {
    /// A folder that `fill` puts the good job into.
    pub fn new(name: &str, fill: impl FnOnce(&Path)) -> Bench {
        let (folder, output) = (folder(name), folder(&format!("{name}-said")));
        fill(&folder);
        let good = contents(&folder);
        let files = good.iter().filter(|(_, hash)| hash.is_some()).map(|(path, _)| path);
        let good_bytes = files.map(|path| (path.clone(), fs::read(path).expect("a file"))).collect();
        Bench { folder, output, good, good_bytes, baseline: BTreeMap::new() }
    }

    /// The folder in which the cases run.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A good run, which later ones are measured by.
    pub fn measure(&mut self, arguments: &str) {
        let case = Case::with("good", vec![], arguments);
        let outcome = self.start(&case, None);
        assert_eq!(outcome.code, Some(0), "{arguments}: {}", outcome.said);
        let most = self.baseline.entry(case.arguments[0].clone()).or_default();
        *most = outcome.peak.max(*most);
        self.restore();
    }

    /// The least memory that any case may take.
    pub fn least(&self) -> u64 {
        self.baseline.values().min().copied().unwrap_or(0) + MEMORY
    }

    /// Runs `case`, under a limit of its address space in KiB if one is given; gives what it was
    /// like, and all that is wrong with that.
    pub fn run(&self, case: &Case, limit: Option<u64>) -> (Outcome, Vec<String>) {
        for (name, bytes) in &case.files {
            let path = self.folder.join(name);
            match bytes {
                Some(bytes) => fs::write(path, &bytes[..]).expect("a file can be written"),
                None => fs::remove_file(path).expect("a file can be removed"),
            }
        }
        let before = contents(&self.folder);
        let mut outcome = self.start(case, limit);
        let after = contents(&self.folder);
        for _ in 1..TRIES {
            if outcome.took > LONGEST {
                outcome.took = outcome.took.min(self.start(case, limit).took);
            }
        }
        let mut wrong = self.judge(case, &outcome);
        let lost = before.iter().find(|(path, hash)| after.get(*path) != Some(hash));
        wrong.extend(lost.map(|(path, _)| format!("changes {}", path.display())));
        let left = after.keys().find(|path| !before.contains_key(*path));
        wrong.extend(left.filter(|_| outcome.code != Some(0)).map(|path| format!("leaves {}", path.display())));
        self.restore();
        (outcome, wrong)
    }

    /// All that is wrong with what the program said and took.
    fn judge(&self, case: &Case, outcome: &Outcome) -> Vec<String> {
        let Outcome { code, said, printed, took, peak } = outcome;
        let mut wrong = vec![];
        let mut demand = |holds: bool, what: String| wrong.extend((!holds).then_some(what));
        demand(matches!(code, Some(0..=3)), format!("exits with {code:?}"));
        demand(*code == Some(0) || !said.is_empty() || !printed.is_empty(), "says nothing".to_string());
        demand(said.len() < MESSAGE, format!("says {} bytes", said.len()));
        let is_plain = |text: &str| !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t');
        demand(is_plain(said) && is_plain(printed), "says control codes".to_string());
        demand(!said.contains("panicked") && !said.contains("bug of shardc"), "fails by itself".to_string());
        let lacks_memory = LACKS.iter().any(|lack| said.contains(lack));
        // Without a GPU that is what is lacking, whatever the limit.
        let lacks_gpu = case.arguments.iter().any(|word| word == "cuda") && said.contains("the CUDA driver is not there");
        let is_output = case.name == OUTPUT;
        demand(*code != Some(3) || lacks_memory || lacks_gpu || is_output, "blames the machine".to_string());
        demand(*code != Some(2) || case.name == COMMAND_LINE || is_output, "blames the command line".to_string());
        demand(*took <= LONGEST, format!("takes {took:?}"));
        let files: usize = case.files.iter().filter_map(|(_, bytes)| Some(bytes.as_ref()?.len())).sum();
        let own = case.arguments.first().and_then(|command| self.baseline.get(command));
        let allowed = own.map_or(self.least(), |own| own + MEMORY) + files as u64;
        demand(*peak <= allowed, format!("takes {} MiB", peak >> 20));
        wrong
    }

    fn start(&self, case: &Case, limit: Option<u64>) -> Outcome {
        let file = |name: &str| File::create(self.output.join(name)).expect("a file can be written");
        let limit = limit.map_or(String::new(), |limit| format!("ulimit -v {limit}; "));
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -t {ENDLESS}; {limit}exec \"$0\" \"$@\"")).arg(env!("CARGO_BIN_EXE_shardc"));
        command.args(&case.arguments).current_dir(&self.folder).env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(file("out")).stderr(file("said"));
        let start = Instant::now();
        let ended = command.spawn().expect("the program starts").wait4().expect("the program ends");
        let took = start.elapsed();
        let text = |name: &str| String::from_utf8_lossy(&fs::read(self.output.join(name)).expect("what it wrote")).into_owned();
        let (said, printed) = (text("said"), text("out"));
        Outcome { code: ended.status.code(), said, printed, took, peak: ended.rusage.maxrss }
    }

    /// Puts the good job back.
    fn restore(&self) {
        let now = contents(&self.folder);
        for path in now.keys().filter(|path| !self.good.contains_key(*path)) {
            // The contents of a folder go with it.
            let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
        }
        for (path, _) in self.good.iter().filter(|(path, hash)| now.get(*path) != Some(hash)) {
            let bytes = self.good_bytes.get(path).expect("no case takes a folder away");
            fs::write(path, bytes).expect("a file can be written");
        }
    }
}

/// All that is in `folder`.
fn contents(folder: &Path) -> Contents {
    let mut found = Contents::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let (path, kind) = (entry.path(), entry.file_type().expect("a type"));
        if kind.is_dir() {
            found.extend(contents(&path));
        }
        let hash = kind.is_file().then(|| hash_file(&path).expect("a file"));
        found.insert(path, hash);
    }
    found
}
