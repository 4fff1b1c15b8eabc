//! What a process prints that nobody sees unless it fails: the last lines of it, each of bounded
//! length.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that are kept.
const LINES: usize = 100;
/// Bytes of a line that are kept.
const BYTES: u64 = 4096;
/// For how long the rest of the output may take to be read, and the time between two looks.
const LAST: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// The output of one process, read by threads.
#[derive(Debug)]
pub struct Output {
    lines: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Output {
    /// That of `child`, as far as it does not go elsewhere. If it cannot be read, the child ends.
    pub fn of(child: &mut Child) -> Result<Output, String> {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let out = child.stdout.take().map(|out| Box::new(out) as Box<dyn Read + Send>);
        let err = child.stderr.take().map(|err| Box::new(err) as Box<dyn Read + Send>);
        let mut readers = vec![];
        for source in out.into_iter().chain(err) {
            let lines = lines.clone();
            let started = thread::Builder::new().name("output".to_string()).spawn(move || keep(source, &lines));
            match started {
                Ok(reader) => readers.push(reader),
                Err(e) => {
                    // It may just have ended.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("its output cannot be read: {e}"));
                }
            }
        }
        Ok(Output { lines, readers })
    }

    /// The last lines, once the process has ended. What others may still print, who had the pipe
    /// from it, is not waited for.
    pub fn lines(self) -> Vec<String> {
        let until = Instant::now() + LAST;
        while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < until {
            thread::sleep(PAUSE);
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.drain(..).collect()
    }
}

fn keep(source: impl Read, lines: &Mutex<VecDeque<String>>) {
    let mut source = BufReader::new(source);
    let mut line = vec![];
    while let Ok(1..) = source.by_ref().take(BYTES).read_until(b'\n', &mut line) {
        let text = String::from_utf8_lossy(&line).trim_end().to_string();
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(text);
        line.clear();
    }
}
