//! Event files of TensorBoard are read back by another reader of records and of protocol buffers,
//! and by TensorBoard itself where Python has it; `SHARDC_PYTHON` names another Python.

use crate::support::folder;
use prost::Message;
use shardc::tensorboard::Writer;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// As `event.proto` says it.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

/// As `summary.proto` says it.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// CRC-32C as a division of polynomials, the highest power first.
fn checksum(bytes: &[u8]) -> u32 {
    let bits = bytes.iter().flat_map(|byte| (0..8).map(move |i| u32::from(byte >> i & 1)));
    let mut rest = u32::MAX;
    for bit in bits {
        let out = rest >> 31 ^ bit;
        rest = (rest << 1) ^ (out * 0x1edc_6f41);
    }
    !rest.reverse_bits()
}

/// The events of a file, or nothing where a record is cut off or damaged.
fn read(mut bytes: &[u8]) -> Option<Vec<Event>> {
    let mut events = vec![];
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_at_checked(8)?;
        let (of_length, rest) = rest.split_at_checked(4)?;
        let (event, rest) = rest.split_at_checked(u64::from_le_bytes(length.try_into().ok()?) as usize)?;
        let (of_event, rest) = rest.split_at_checked(4)?;
        for (covered, sum) in [(length, of_length), (event, of_event)] {
            let masked = u32::from_le_bytes(sum.try_into().ok()?);
            (checksum(covered) == masked.wrapping_sub(0xa282ead8).rotate_left(15)).then_some(())?;
        }
        events.push(Event::decode(event).ok()?);
        bytes = rest;
    }
    Some(events)
}

const STEPS: [u64; 4] = [0, 1, 300, 1 << 40];

/// A file with two numbers of each step, a second apart.
fn written(folder: &Path, begin: SystemTime) -> Writer {
    let mut writer = Writer::create(folder).expect("a file");
    for (second, step) in (0..).zip(STEPS) {
        let time = begin + Duration::from_secs(second);
        writer.scalar("train/loss", step, time, 1.0 / (1.0 + step as f64)).expect("it is written");
        writer.scalar("größe", step, time, f64::INFINITY).expect("it is written");
    }
    writer.flush().expect("it is written");
    writer
}

#[test]
fn another_reader_finds_every_number() {
    let here = folder("tensorboard");
    let begin = UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
    let writer = written(&here.join("a/new/folder"), begin);
    let name = writer.path().file_name().and_then(|name| name.to_str()).expect("a name").to_string();
    let parts: Vec<&str> = name.strip_prefix("events.out.tfevents.").expect(&name).split('.').collect();
    assert!(parts[0].parse::<u64>().is_ok_and(|seconds| seconds > 1_700_000_000), "{name}");
    assert!(parts.len() >= 3 && parts.last() == Some(&std::process::id().to_string().as_str()), "{name}");
    let bytes = fs::read(writer.path()).expect("it is there");
    let events = read(&bytes).expect("whole records");
    assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
    let mut expected = vec![];
    for (second, step) in (0..).zip(STEPS) {
        for (tag, value) in [("train/loss", 1.0 / (1.0 + step as f32)), ("größe", f32::INFINITY)] {
            let value = vec![Value { tag: tag.to_string(), simple_value: Some(value) }];
            let wall_time = 1_700_000_000.5 + f64::from(second);
            expected.push(Event { wall_time, step: step as i64, file_version: None, summary: Some(Summary { value }) });
        }
    }
    assert_eq!(events[1..], expected);
    // The reader would see a damage, and every cut that is not between records.
    assert!((0..bytes.len()).all(|at| read(&[&bytes[..at], &[bytes[at] ^ 4], &bytes[at + 1..]].concat()).is_none()));
    let whole = (0..bytes.len()).filter(|at| read(&bytes[..*at]).is_some()).count();
    assert_eq!(whole, events.len());
}

#[test]
fn files_of_one_second_are_two() {
    let here = folder("tensorboard-twice");
    let writers: Vec<Writer> = (0..3).map(|_| written(&here, UNIX_EPOCH)).collect();
    assert_eq!(fs::read_dir(&here).expect("a folder").count(), 3);
    for writer in &writers {
        assert_eq!(read(&fs::read(writer.path()).expect("it is there")).expect("whole records").len(), 9);
    }
    fs::write(here.join("file"), "").expect("a file");
    assert!(Writer::create(&here.join("file")).is_err(), "a file is no folder");
}

/// Prints the numbers of the first tag as TensorBoard's own reader has them.
const SCRIPT: &str = "
import sys
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    print('skipped: Python has no tensorboard')
    sys.exit()
events = EventAccumulator(sys.argv[1])
events.Reload()
for event in events.Scalars('train/loss'):
    print(event.step, event.value, event.wall_time)
";

#[test]
fn tensorboard_reads_it() {
    let here = folder("tensorboard-python");
    written(&here, UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let python = std::env::var("SHARDC_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let Ok(run) = Command::new(python).args(["-c", SCRIPT]).arg(&here).output() else {
        println!("skipped: no Python");
        return;
    };
    let said = String::from_utf8_lossy(&run.stdout);
    println!("{said}");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    if said.starts_with("skip") {
        return;
    }
    let numbers: Vec<Vec<f64>> = said.lines().map(|l| l.split(' ').map(|n| n.parse().expect("a number")).collect()).collect();
    let expected = (0..)
        .zip(STEPS)
        .map(|(second, step)| vec![step as f64, f64::from(1.0 / (1.0 + step as f32)), 1_700_000_000.0 + f64::from(second)]);
    assert_eq!(numbers, expected.collect::<Vec<_>>());
}
