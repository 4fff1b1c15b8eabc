//! Everything that can be wrong with data, and what is said about it: `data_errors.txt` has a line
//! for each case and its messages, indented. `BLESS=1` writes what is said now.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use shardc_executor::data::{Dataset, InputSpec, Options};
use shardc_ir::diagnostic::Place;
use shardc_ir::dtype::DType;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// One case: its name, the file or folder that is opened, and how.
struct Case {
    name: &'static str,
    path: PathBuf,
    inputs: Vec<InputSpec>,
    batch: u64,
    context: Option<u64>,
}

/// The cases, each with a folder of its own below this one.
struct Cases {
    root: PathBuf,
    list: Vec<Case>,
}

impl Cases {
    /// Adds a case of those files, of which the first is opened.
    fn add(&mut self, name: &'static str, files: &[(&str, &[u8])]) -> &mut Case {
        let folder = self.root.join(self.list.len().to_string());
        std::fs::create_dir_all(&folder).unwrap();
        for (file, bytes) in files {
            std::fs::write(folder.join(file), bytes).unwrap();
        }
        self.list.push(Case { name, path: folder.join(files[0].0), inputs: pair(), batch: 2, context: None });
        self.list.last_mut().unwrap()
    }

    /// Adds a case of a path where nothing is, beside `others`.
    fn missing(&mut self, name: &'static str, path: &str, others: &[(&str, &[u8])]) {
        let case = self.add(name, if others.is_empty() { &[("other.log", b"")] } else { others });
        case.path = case.path.with_file_name("").join(path);
    }

    /// Adds a case of a folder whose `x.npy` is these bytes, for one input.
    fn array(&mut self, name: &'static str, input: InputSpec, bytes: &[u8]) {
        let case = self.add(name, &[("x.npy", bytes)]);
        case.inputs = vec![input];
        case.path.pop();
    }

    /// Adds a case of a good `x` of `descr` and `shape`, one byte pattern for all elements.
    fn filled(&mut self, name: &'static str, input: InputSpec, descr: &str, shape: &[u64], element: &[u8]) {
        let data = element.repeat(shape.iter().product::<u64>() as usize);
        self.array(name, input, &npy(descr, &shape_text(shape), &data));
    }
}

fn input(dtype: DType, sample: &[u64]) -> InputSpec {
    InputSpec { name: "x".into(), dtype, sample: sample.to_vec(), range: None, except: None }
}

fn classes(except: Option<i64>) -> InputSpec {
    InputSpec { range: Some((0, 10)), except, ..input(DType::I64, &[]) }
}

fn share() -> InputSpec {
    InputSpec { range: Some((0, 2)), ..input(DType::F32, &[]) }
}

/// `x` of f32[2], and labels `y` of ten classes.
fn pair() -> Vec<InputSpec> {
    vec![input(DType::F32, &[2]), InputSpec { name: "y".into(), ..classes(None) }]
}

fn tokens(count: usize) -> Vec<InputSpec> {
    let one = |name: &str| InputSpec { name: name.into(), range: Some((0, 256)), ..input(DType::I64, &[4]) };
    ["ids", "labels", "mask"][..count].iter().map(|name| one(name)).collect()
}

fn shape_text(shape: &[u64]) -> String {
    format!("({})", shape.iter().map(|n| format!("{n},")).collect::<String>())
}

/// A `.npy` of version 1 with that header and data.
fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    let padded = format!("{header:<117}\n");
    [b"\x93NUMPY\x01\x00", &(padded.len() as u16).to_le_bytes()[..], padded.as_bytes(), data].concat()
}

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    raw(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"), data)
}

/// Two good arrays for [`pair`], six samples each.
fn good() -> [(&'static str, Vec<u8>); 2] {
    [("x.npy", npy("<f4", "(6, 2)", &[0; 48])), ("y.npy", npy("|u1", "(6,)", &[1; 6]))]
}

fn npz(files: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(vec![]));
    for (name, bytes) in files {
        writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// `archive` with the sizes that its list of files claims for every entry replaced.
fn claiming(mut archive: Vec<u8>, uncompressed: u32) -> Vec<u8> {
    let entries: Vec<usize> = (0..archive.len() - 4).filter(|at| archive[*at..].starts_with(b"PK\x01\x02")).collect();
    for at in entries {
        archive[at + 24..at + 28].copy_from_slice(&uncompressed.to_le_bytes());
    }
    archive
}

fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn files(cases: &mut Cases) {
    let stored = npz(&good(), CompressionMethod::Stored);
    let deflated = npz(&good(), CompressionMethod::Deflated);
    cases.missing("a file that is not there, beside one like it", "dat.npz", &[("data.npz", b"")]);
    cases.missing("a file that is not there", "numbers.npz", &[]);
    cases.missing("a folder that is not there", "no/where.npz", &[]);
    cases.missing("an empty folder", "", &[]);
    let folder = cases.add("a folder without arrays", &[("notes.md", b""), ("data.csv", b"")]);
    folder.path.pop();
    cases.add("another format", &[("data.csv", b"1,2\n")]);
    cases.add("no ending", &[("data", b"1,2\n")]);
    cases.add("one array alone", &[("x.npy", &good()[0].1)]);
    cases.add("an array called an archive", &[("data.npz", &good()[0].1)]);
    cases.add("an archive of nothing", &[("data.npz", b"")]);
    cases.add("garbage called an archive", &[("data.npz", &[b'!'; 4096])]);
    cases.add("half an archive", &[("data.npz", &stored[..stored.len() / 2])]);
    cases.add("an archive without its last byte", &[("data.npz", &stored[..stored.len() - 1])]);
    let mut endless = stored.clone();
    endless.extend(b"PK\x05\x06".repeat(1 << 20));
    endless.extend([0; 70_000]);
    cases.add("an archive whose end is far from its end", &[("data.npz", &endless)]);
    // As many zeros as a comment may have, so that one of the ends is as far from the last byte as
    // it says.
    let ends = [stored.clone(), b"PK\x05\x06".repeat(100_000), vec![0; 0x4b50 - 22 + 4]].concat();
    cases.add("an archive of ends without lists", &[("data.npz", &ends)]);
    let mut flipped = stored.clone();
    let data = stored.windows(6).position(|w| w == b"\x93NUMPY").unwrap() + 130;
    flipped[data] ^= 1;
    cases.add("a flipped bit of a stored array", &[("data.npz", &flipped)]);
    let mut flipped = deflated.clone();
    flipped[60] ^= 0x10;
    cases.add("a flipped bit of a deflated array", &[("data.npz", &flipped)]);
    cases.add("an archive that claims 4 GB", &[("data.npz", &claiming(deflated, u32::MAX - 1))]);
    cases.add("an archive that claims less than it has", &[("data.npz", &claiming(stored, 20))]);
    cases.add("an archive without arrays", &[("data.npz", &npz(&[("x.txt", vec![1])], CompressionMethod::Stored))]);
    let named = |names: [&'static str; 2]| {
        let [x, y] = good();
        npz(&[(names[0], x.1), (names[1], y.1)], CompressionMethod::Deflated)
    };
    cases.add("arrays without names", &[("data.npz", &named(["arr_0.npy", "arr_1.npy"]))]);
    cases.add("an array in capitals", &[("data.npz", &named(["X.npy", "y.npy"]))]);
    cases.add("arrays of other names", &[("data.npz", &named(["pixels.npy", "digits.npy"]))]);
}

fn headers(cases: &mut Cases) {
    let x = || input(DType::F32, &[2]);
    let good = npy("<f4", "(3, 2)", &[0; 24]);
    cases.array("no npy", x(), b"these are no numbers");
    cases.array("an empty npy", x(), b"");
    cases.array("a npy cut inside its header", x(), &good[..40]);
    cases.array("a npy cut inside its data", x(), &good[..good.len() - 1]);
    cases.array("a npy with more than its data", x(), &[&good[..], b"x"].concat());
    for (name, version) in [("version 0", [0, 0]), ("version 4", [4, 0]), ("version 1.1", [1, 1]), ("version 255", [255, 0])] {
        cases.array(name, x(), &[&good[..6], &version, &good[8..]].concat());
    }
    cases.array("a header longer than the file", x(), b"\x93NUMPY\x01\x00\xff\xff{");
    cases.array("a header of 4 GB", x(), b"\x93NUMPY\x02\x00\xff\xff\xff\xff{");
    cases.array("a header without type", x(), &raw("{'fortran_order': False, 'shape': (3, 2), }", &[0; 24]));
    cases.array("a header without order", x(), &raw("{'descr': '<f4', 'shape': (3, 2), }", &[0; 24]));
    cases.array("a header with another order", x(), &raw("{'descr': '<f4', 'fortran_order': 1, 'shape': (3, 2), }", &[0; 24]));
    cases.array("a header without shape", x(), &raw("{'descr': '<f4', 'fortran_order': False, }", &[0; 24]));
    cases.array("a header that is no literal", x(), &raw("descr=<f4", &[0; 24]));
    cases.array("a negative size", x(), &npy("<f4", "(-3, 2)", &[0; 24]));
    cases.array("a size that is a name", x(), &npy("<f4", "(n, 2)", &[0; 24]));
    cases.array("an absurd shape", x(), &npy("<f4", "(4611686018427387904, 4)", &[0; 24]));
    cases.array("a size beyond 64 bits", x(), &npy("<f4", "(99999999999999999999,)", &[0; 24]));
    cases.array("a terabyte in 24 bytes", x(), &npy("<f4", "(125000000000, 2)", &[0; 24]));
    cases.array("records", x(), &raw("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }", &[0; 12]));
    cases.array("objects", x(), &npy("|O", "(3, 2)", &[0; 24]));
    cases.array("text", x(), &npy("<U4", "(3, 2)", &[0; 96]));
    cases.array("complex numbers", x(), &npy("<c8", "(3, 2)", &[0; 48]));
    cases.array("times", x(), &npy("<M8[ns]", "(3, 2)", &[0; 48]));
}

fn types_and_shapes(cases: &mut Cases) {
    let labels = || classes(None);
    let f32 = |x: f32| x.to_le_bytes();
    cases.filled("labels of f32", labels(), "<f4", &[6], &f32(1.0));
    cases.filled("labels of f64 that are whole", labels(), "<f8", &[6], &1f64.to_le_bytes());
    cases.filled("labels of f16", labels(), "<f2", &[6], &[0, 0]);
    cases.filled("a mask of f32", input(DType::Bool, &[]), "<f4", &[6], &f32(1.0));
    cases.filled("a mask of 2", input(DType::Bool, &[]), "|u1", &[6], &[2]);
    cases.filled("an integer beyond 63 bits", input(DType::I64, &[]), "<u8", &[6], &[255; 8]);
    cases.filled("an integer that f32 cannot hold", input(DType::F32, &[]), "<i4", &[6], &16_777_217i32.to_le_bytes());
    cases.filled("a number beyond f32", input(DType::F32, &[]), "<f8", &[6], &1e300f64.to_le_bytes());
    cases.filled("labels in a column", labels(), "<i8", &[6, 1], &[0; 8]);
    cases.filled("labels in a row", labels(), "<i8", &[1, 6], &[0; 8]);
    cases.filled("one-hot labels", labels(), "<f4", &[6, 10], &f32(0.0));
    cases.filled("no dimension for samples", labels(), "<i8", &[], &[0; 8]);
    cases.filled("one sample alone", input(DType::F32, &[4, 2]), "<f4", &[4, 2], &f32(0.0));
    cases.filled("a dimension too few", input(DType::F32, &[1, 4]), "<f4", &[6, 4], &f32(0.0));
    cases.filled("channels at the end", input(DType::F32, &[3, 4, 5]), "<f4", &[6, 4, 5, 3], &f32(0.0));
    cases.filled("channels before pixels", input(DType::F32, &[4, 5, 3]), "<f4", &[6, 3, 4, 5], &f32(0.0));
    cases.filled("pixels in a line", input(DType::F32, &[4, 5]), "<f4", &[6, 20], &f32(0.0));
    cases.filled("another width", input(DType::F32, &[4]), "<f4", &[6, 5], &f32(0.0));
    let [x, _] = good();
    let few = npy("|u1", "(5,)", &[1; 5]);
    cases.add("a label too few", &[("data.npz", &npz(&[x.clone(), ("y.npy", few)], CompressionMethod::Stored))]);
    cases.add("a batch too large", &[("data.npz", &npz(&good(), CompressionMethod::Stored))]).batch = 99_999_999_999;
    cases.filled("no samples", labels(), "<i8", &[0], &[]);
    let wrong = [("x.npy", npy("<f4", "(6, 3)", &[0; 72])), ("y.npy", npy("<f4", "(5,)", &[1; 20]))];
    cases.add("several at once", &[("data.npz", &npz(&wrong, CompressionMethod::Stored))]);
}

fn values(cases: &mut Cases) {
    let two = |first: &[u8], second: &[u8]| [&first.repeat(3)[..], second, &first.repeat(2)].concat();
    let reals = |x: f32| npy("<f4", "(3, 2)", &two(&0f32.to_le_bytes(), &x.to_le_bytes()));
    let labels = |y: i64| npy("<i8", "(6,)", &two(&1i64.to_le_bytes(), &y.to_le_bytes()));
    cases.array("not a number", input(DType::F32, &[2]), &reals(f32::NAN));
    cases.array("infinite", input(DType::F32, &[2]), &reals(f32::INFINITY));
    cases.array("infinite below", input(DType::F64, &[2]), &reals(f32::NEG_INFINITY));
    cases.array("a class that counts from 1", classes(None), &labels(10));
    cases.array("a class far beyond", classes(None), &labels(1 << 40));
    cases.array("a negative class", classes(None), &labels(-100));
    cases.array("a negative class that is not the ignored one", classes(Some(-100)), &labels(-1));
    let shares = |x: f32| npy("<f4", "(6,)", &two(&0f32.to_le_bytes(), &x.to_le_bytes()));
    cases.array("a share above 1", share(), &shares(1.5));
    cases.array("a share below 0", share(), &shares(-1.0));
    cases.array("a class for a share", share(), &labels(3));
}

fn text(cases: &mut Cases) {
    let words: Vec<u8> = [5u16, 300, 7, 8, 9, 10].iter().flat_map(|t| t.to_le_bytes()).collect();
    cases.add("no text", &[("t.txt", b"")]).inputs = tokens(2);
    cases.add("a short text", &[("t.txt", b"abcd")]).inputs = tokens(2);
    cases.add("a text of one window", &[("t.txt", b"abcdefg")]).inputs = tokens(2);
    cases.add("half a token", &[("t.bin", b"abc")]).inputs = tokens(2);
    cases.add("a token beyond the vocabulary", &[("t.bin", &words)]).inputs = tokens(1);
    cases.add("a text for numbers", &[("t.txt", b"abcdefghij")]).inputs = vec![input(DType::F32, &[4])];
    cases.add("a text for a mask", &[("t.txt", b"abcdefghij")]).inputs = tokens(3);
    let case = cases.add("another context", &[("t.txt", b"abcdefghij")]);
    (case.inputs, case.context) = (tokens(2), Some(3));
    cases.add("a context for arrays", &[("data.npz", &npz(&good(), CompressionMethod::Stored))]).context = Some(4);
}

fn safe(cases: &mut Cases) {
    let header = |dtype: &str, end: u64| {
        format!(
            r#"{{"x":{{"dtype":"{dtype}","shape":[1,2],"data_offsets":[0,8]}},"y":{{"dtype":"U8","shape":[1],"data_offsets":[8,{end}]}}}}"#
        )
    };
    let whole = safetensors(&header("F32", 9), &[0; 9]);
    cases.add("an empty safetensors", &[("d.safetensors", b"")]);
    cases.add("half a safetensors", &[("d.safetensors", &whole[..whole.len() / 2])]);
    cases.add("a safetensors without its last byte", &[("d.safetensors", &whole[..whole.len() - 1])]);
    cases.add("a header of exabytes", &[("d.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\x7f{}")]);
    cases.add("a header that is no JSON", &[("d.safetensors", &safetensors("these are words", &[0; 9]))]);
    cases.add("offsets beyond the file", &[("d.safetensors", &safetensors(&header("F32", 1 << 40), &[0; 9]))]);
    cases.add("a shape that is not its bytes", &[("d.safetensors", &safetensors(&header("F64", 9), &[0; 9]))]);
    cases.add("an unknown type", &[("d.safetensors", &safetensors(&header("F31", 9), &[0; 9]))]);
    let eight =
        r#"{"x":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]},"y":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}}"#;
    cases.add("floats of eight bits", &[("d.safetensors", &safetensors(eight, &[0; 6]))]);
}

#[test]
fn every_mistake_is_told() {
    let root = std::env::temp_dir().join(format!("shardc-data-errors-{}", std::process::id()));
    let mut cases = Cases { root: root.clone(), list: vec![] };
    for add in [files, headers, types_and_shapes, values, text, safe] {
        add(&mut cases);
    }
    assert!(cases.list.len() >= 80, "{} cases", cases.list.len());
    let mut said = String::new();
    for case in &cases.list {
        let place = Place::Text { file: "job.shard".into(), span: (0, 7) };
        let options = Options { context: case.context, batch_place: Some(place), ..Options::default() };
        let start = Instant::now();
        let errors = match Dataset::open(&case.path, case.inputs.clone(), case.batch, &options) {
            Ok(_) => panic!("{} is taken", case.name),
            Err(errors) => errors,
        };
        assert!(start.elapsed() < Duration::from_secs(1), "{} takes {:?}", case.name, start.elapsed());
        said += &format!("{}\n", case.name);
        for error in errors {
            assert!(error.place.is_some(), "{}", case.name);
            let folder = case.path.ancestors().find(|path| path.parent() == Some(&root)).unwrap();
            said += &format!("    {}\n", error.to_string().replace(&*folder.to_string_lossy(), "DATA"));
        }
    }
    std::fs::remove_dir_all(&root).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data_errors.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &said).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap();
    for (expected, said) in expected.lines().zip(said.lines()) {
        assert_eq!(said, expected);
    }
    assert_eq!(said, expected);
}
