//! Texts that were loaded, built for the host when the first launch needs one, and what launches
//! gave. A launch is a function of its bytes, so one that was run is not run again: every check of
//! the host run follows from these bytes too. All worlds share them.

use super::Launch;
use super::text::{Entry, Split, entries, split};
use crate::settings;
use shardc_cuda_testing::host::{Host, Order};
use shardc_cuda_testing::job::{Access, Job, Operand};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// What a launch wrote to each operand, or what is wrong with it.
pub type Outcome = Result<Arc<Vec<Option<Vec<u8>>>>, String>;

static LIBRARY: LazyLock<Mutex<Library>> = LazyLock::new(Mutex::default);
static BUILDING: Mutex<()> = Mutex::new(());

/// Bytes of results that are kept.
const KEPT: usize = 1 << 30;

#[derive(Default)]
struct Library {
    texts: Vec<Text>,
    known: HashMap<[u64; 2], Outcome>,
    kept: usize,
}

struct Text {
    split: Split,
    entries: Vec<Arc<Entry>>,
    host: Option<Result<Arc<Host>, String>>,
}

fn library() -> std::sync::MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The functions of a text, which can be launched from now on.
pub fn load(text: &str) -> Result<Vec<Arc<Entry>>, String> {
    let split = split(text)?;
    let mut library = library();
    if let Some(text) = library.texts.iter().find(|text| text.split == split) {
        return Ok(text.entries.clone());
    }
    let number = library.texts.len();
    let entries: Vec<_> = entries(&split.body)?.into_iter().map(|entry| Arc::new(Entry { text: number, ..entry })).collect();
    library.texts.push(Text { split, entries: entries.clone(), host: None });
    Ok(entries)
}

/// Runs a launch, or finds what it gave before.
pub fn run(launch: &Launch, job: &Job) -> Outcome {
    let key = [1u64, 2].map(|seed| {
        let mut hasher = DefaultHasher::new();
        (seed, launch.entry.text, &job.entry, job.grid, job.block, job.shared, &job.numbers).hash(&mut hasher);
        for operand in &job.operands {
            (operand.past, operand.bytes.len()).hash(&mut hasher);
            hasher.write(&operand.bytes);
        }
        hasher.finish()
    });
    if let Some(known) = library().known.get(&key) {
        return known.clone();
    }
    let host = host(launch.entry.text)?;
    let ran = host.run(job, Order::Seed(key[0] as u32));
    let outcome: Outcome = ran.map(|ran| {
        let written = |(operand, bytes): (&Operand, Vec<u8>)| match operand.access {
            Access::Read => None,
            // Another kernel may say so meanwhile, and that must stay.
            Access::Fault => ran.faulted.then_some(bytes),
            Access::Write | Access::Update => Some(bytes),
        };
        Arc::new(job.operands.iter().zip(ran.operands).map(written).collect())
    });
    let mut library = library();
    if let Ok(written) = &outcome {
        library.kept += written.iter().flatten().map(Vec::len).sum::<usize>();
        if library.kept > KEPT {
            library.known.clear();
            library.kept = 0;
        }
    }
    library.known.insert(key, outcome.clone());
    outcome
}

/// The host run of a text. All texts that are not built yet are built with it.
fn host(text: usize) -> Result<Arc<Host>, String> {
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let (batch, math, texts) = {
        let library = library();
        let wanted = &library.texts[text];
        if let Some(host) = &wanted.host {
            return host.clone();
        }
        // Texts that stand behind another prelude, or name a function of this batch again, wait.
        let (mut batch, mut names) = (vec![text], names(wanted));
        for (i, other) in library.texts.iter().enumerate() {
            let own = self::names(other);
            if i != text
                && other.host.is_none()
                && other.split.math == wanted.split.math
                && own.iter().all(|n| !names.contains(n))
            {
                batch.push(i);
                names.extend(own);
            }
        }
        let named = |i: &usize| (library.texts[*i].entries[0].name.clone(), library.texts[*i].split.body.clone());
        let texts: Vec<(String, String)> = batch.iter().map(named).collect();
        (batch, wanted.split.math.clone(), texts)
    };
    let folder = settings::text("FOLDER").map_or_else(|| std::env::temp_dir().join("shardc-fakecuda"), PathBuf::from);
    let built = Host::build(&folder, &math, &texts).map(Arc::new);
    for i in batch {
        library().texts[i].host = Some(built.clone());
    }
    built
}

fn names(text: &Text) -> Vec<String> {
    text.entries.iter().map(|entry| entry.name.clone()).collect()
}
