//! Builds kernels and what runs them into one executable.

use super::entries::Entry;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

const HEADER: &str = include_str!("host.h");
const RUNNER: &str = include_str!("host.cpp");
const TILES: &str = include_str!("tiles.cpp");
const MAIN: &str = include_str!("main.cpp");
/// Arguments for all texts.
const COMMON: &[&str] = &[
    "-std=c++17",
    "-g1",
    "-gdwarf-4",
    "-mfma",
    "-mf16c",
    "-ffp-contract=off",
    "-fno-pie",
    "-fno-exceptions",
    "-fcf-protection=none",
    "-w",
];
/// Arguments for kernels: hooks before accesses, calls at what is undefined.
const KERNEL: &[&str] = &[
    "-Og",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-ftrivial-auto-var-init=pattern",
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fsanitize=shift,signed-integer-overflow,bounds,integer-divide-by-zero",
];
/// Compilers that run at once.
const COMPILERS: usize = 2;

/// What the compiler calls itself.
pub(super) fn compiler() -> Result<&'static str, String> {
    static NAME: OnceLock<Result<String, String>> = OnceLock::new();
    let found = NAME.get_or_init(|| {
        let found = Command::new("g++").args(["-dumpfullversion", "-dumpmachine"]).output();
        let found = found.map_err(|e| format!("g++ does not run: {e}"))?;
        String::from_utf8(found.stdout).map_err(|e| e.to_string())
    });
    found.as_deref().map_err(Clone::clone)
}

/// Builds the executable, or finds it where the same was built before.
pub(super) fn build(folder: &Path, math: &str, kernels: &[(String, String)], entries: &[Entry]) -> Result<PathBuf, String> {
    // One build at a time, and so no more compilers at once than one build starts.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut sources = vec![Source::new("host", &["-O2"], runner())?, Source::new("table", &["-O0"], table(entries))?];
    for (name, text) in kernels {
        let text = format!("#line 1 \"host.h\"\n{HEADER}\n#line 1 \"math.h\"\n{math}\n#line 1 \"{name}.cu\"\n{text}\n");
        sources.push(Source::new(name, KERNEL, text)?);
    }
    let all: String = sources.iter().map(|s| s.hash.as_str()).collect();
    let executable = folder.join(format!("run-{}", hash(&all)));
    if executable.exists() {
        return Ok(executable);
    }
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(e) = source.compile(folder) {
                wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                next.store(sources.len(), Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..COMPILERS {
            scope.spawn(work);
        }
    });
    if let Some(e) = wrong.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(e);
    }
    let new = unfinished(&executable);
    let mut command = Command::new("g++");
    command.args(["-no-pie", "-o"]).arg(&new).args(sources.iter().map(|s| s.object(folder)));
    finish("the executable", command, "", &new, &executable)?;
    Ok(executable)
}

/// The text of what runs kernels.
fn runner() -> String {
    let parts = [("host.h", HEADER), ("host.cpp", RUNNER), ("tiles.cpp", TILES), ("main.cpp", MAIN)];
    let lines = parts.map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n"));
    format!("#define HOST_RUNNER\n{}", lines.concat())
}

/// The text of the table of entries.
fn table(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let _ = writeln!(text, "extern \"C\" void {}();", entry.name);
    }
    text.push_str("extern void* const host_entries[] = {\n");
    for entry in entries {
        let _ = writeln!(text, "    (void*){},", entry.name);
    }
    text.push_str("};\n");
    text
}

/// A text that becomes one object file.
struct Source {
    name: String,
    arguments: Vec<&'static str>,
    text: String,
    hash: String,
}

impl Source {
    fn new(name: &str, arguments: &[&'static str], text: String) -> Result<Source, String> {
        let compiler = compiler()?;
        // The flag came with that version.
        let old = compiler.split('.').next().and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n < 12);
        let arguments = COMMON.iter().chain(arguments).copied();
        let arguments: Vec<_> = arguments.filter(|a| !(old && a.starts_with("-ftrivial"))).collect();
        let hash = hash(&format!("{compiler}\n{}\n{text}", arguments.join(" ")));
        Ok(Source { name: name.into(), arguments, text, hash })
    }

    fn object(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}-{}.o", self.name, self.hash))
    }

    fn compile(&self, folder: &Path) -> Result<(), String> {
        let object = self.object(folder);
        if object.exists() {
            return Ok(());
        }
        let new = unfinished(&object);
        let mut command = Command::new("g++");
        command.args(&self.arguments).args(["-pipe", "-x", "c++", "-c", "-", "-o"]).arg(&new);
        finish(&self.name, command, &self.text, &new, &object)
    }
}

/// Runs a command with that input, which makes `new`, and gives the file its name when it is whole.
fn finish(what: &str, mut command: Command, input: &str, new: &Path, file: &Path) -> Result<(), String> {
    let wrong = |e: std::io::Error| format!("{what}: g++: {e}");
    command.env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(wrong)?;
    // A compiler that ends early says why itself.
    let _ = child.stdin.take().map(|mut i| i.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(wrong)?;
    if output.status.success() {
        return std::fs::rename(new, file).map_err(wrong);
    }
    let _ = std::fs::remove_file(new);
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|l| l.contains("error") || l.contains("undefined")).or(said.lines().next());
    Err(format!("{what}: g++: {}", line.unwrap_or("it failed")))
}

/// A name beside `file` that nobody else uses.
fn unfinished(file: &Path) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    file.with_extension(format!("{}-{}.new", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// 128 bits of a text, as FNV-1a has them.
fn hash(text: &str) -> String {
    let step = |h: u128, byte: u8| (h ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    format!("{:032x}", text.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, step))
}
