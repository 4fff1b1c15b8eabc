//! Data files: what is read, in which order, and everything that can be wrong with them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use shardc_executor::data::{Dataset, InputSpec, Options, read_safetensors, safetensors_types, write_npz};
use shardc_executor::tensor::Tensor;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::dtype::DType;
use shardc_ir::types::Type;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::slice::from_ref;

/// A folder of this test alone, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("shardc-data-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn npz(&self, name: &str, arrays: &[(&str, Tensor)]) -> PathBuf {
        let path = self.0.join(name);
        let arrays: BTreeMap<String, Tensor> = arrays.iter().map(|(n, a)| (n.to_string(), a.clone())).collect();
        write_npz(&path, &arrays).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn spec(name: &str, dtype: DType, sample: &[u64], range: Option<(i64, i64)>) -> InputSpec {
    InputSpec { name: name.into(), dtype, sample: sample.to_vec(), range, except: None }
}

fn pair() -> Vec<InputSpec> {
    vec![spec("x", DType::F32, &[2], None), spec("y", DType::I64, &[], Some((0, 10)))]
}

fn arrays(samples: u64) -> [(&'static str, Tensor); 2] {
    let x: Vec<f64> = (0..samples * 2).map(|i| i as f64).collect();
    let y: Vec<i64> = (0..samples as i64).map(|i| i % 10).collect();
    [("x", Tensor::from_f64(&[samples, 2], &x)), ("y", Tensor::from_i64(&[samples], &y))]
}

fn errors(result: Result<Dataset, Diagnostics>) -> String {
    let errors = result.expect_err("bad data");
    errors.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("\n")
}

fn open(path: &Path, inputs: Vec<InputSpec>, batch: u64) -> Result<Dataset, Diagnostics> {
    Dataset::open(path, inputs, batch, &Options::default())
}

#[test]
fn arrays_come_in_order_and_wrap() {
    let folder = Folder::new("order");
    let data = open(&folder.npz("d.npz", &arrays(7)), pair(), 3).unwrap();
    assert_eq!((data.samples(), data.steps_per_epoch()), (7, 2));
    let batch = data.batch(1);
    assert_eq!(batch[0], Tensor::from_f32(&[3, 2], &[6.0, 7.0, 8.0, 9.0, 10.0, 11.0]));
    assert_eq!(batch[1], Tensor::from_i64(&[3], &[3, 4, 5]));
    assert_eq!(data.batch(2), data.batch(0));
    assert_eq!((data.epoch(1), data.epoch(2)), (0, 1));
    assert_eq!(data.rows(&data.in_order(6, 9))[1].to_i64(), [6]);
}

#[test]
fn shuffling_permutes_each_epoch_anew() {
    let folder = Folder::new("shuffle");
    let path = folder.npz("d.npz", &arrays(8));
    let open = |seed| Dataset::open(&path, pair(), 4, &Options { shuffle: true, seed, ..Options::default() }).unwrap();
    let epoch = |data: &Dataset, e: u64| [data.batch(2 * e)[1].to_i64(), data.batch(2 * e + 1)[1].to_i64()].concat();
    let (one, two) = (open(1), open(2));
    let mut sorted = epoch(&one, 0);
    assert_ne!(sorted, epoch(&one, 1));
    assert_ne!(sorted, epoch(&two, 0));
    assert_eq!(sorted, epoch(&open(1), 0));
    sorted.sort();
    assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn text_is_cut_into_windows() {
    let folder = Folder::new("text");
    let path = folder.file("t.txt", b"abcdefghij");
    let inputs = || vec![spec("ids", DType::I64, &[3], Some((0, 256))), spec("labels", DType::I64, &[3], Some((0, 256)))];
    let options = |shuffle, context| Options { context, shuffle, seed: 5, ..Options::default() };
    let data = Dataset::open(&path, inputs(), 1, &options(false, Some(3))).unwrap();
    assert_eq!(data.samples(), 3);
    let text = |t: &Tensor| t.to_i64().iter().map(|c| *c as u8 as char).collect::<String>();
    assert_eq!((text(&data.batch(2)[0]), text(&data.batch(2)[1])), ("ghi".into(), "hij".into()));
    let data = Dataset::open(&path, inputs(), 50, &options(true, None));
    assert!(errors(data).contains("3 samples, less than one batch of 50"));
    let data = Dataset::open(&path, inputs(), 3, &options(true, None)).unwrap();
    let mut starts = std::collections::BTreeSet::new();
    for step in 0..50 {
        let batch = data.batch(step);
        for (x, y) in batch[0].to_i64().chunks(3).zip(batch[1].to_i64().chunks(3)) {
            assert_eq!(x[1..], y[..2]);
            starts.insert(x[0]);
        }
    }
    assert_eq!(starts.into_iter().collect::<Vec<_>>(), (i64::from(b'a')..=i64::from(b'g')).collect::<Vec<_>>());
    assert_eq!(data.epoch(1000), 0);

    let words: Vec<u8> = [5u16, 300, 7, 8].iter().flat_map(|t| t.to_le_bytes()).collect();
    let data = open(&folder.file("t.bin", &words), vec![spec("ids", DType::I64, &[3], None)], 1).unwrap();
    assert_eq!(data.batch(0)[0].to_i64(), [5, 300, 7]);
}

#[test]
fn bad_text_is_explained() {
    let folder = Folder::new("bad-text");
    let path = folder.file("t.txt", b"abcdefghij");
    let ids = |range| spec("ids", DType::I64, &[3], range);
    let options = Options { context: Some(4), ..Options::default() };
    assert!(errors(Dataset::open(&path, vec![ids(None)], 1, &options)).contains("a sample of `ids` has 3 tokens, not 4"));
    assert!(errors(open(&path, vec![ids(Some((0, 98)))], 1)).contains("token 98 at position 1 is outside 0..98 of `ids`"));
    assert!(errors(open(&path, vec![spec("x", DType::F32, &[3], None)], 1)).contains("a sample of `x` is f32[3]"));
    assert!(errors(open(&path, vec![ids(None), ids(None), spec("mask", DType::I64, &[3], None)], 1)).contains("`mask`"));
    assert!(errors(open(&folder.file("s.txt", b"ab"), vec![ids(None)], 1)).contains("a text of 2 tokens has no window of 3"));
    assert!(errors(open(&folder.file("o.bin", b"abc"), vec![ids(None)], 1)).contains("3 bytes"));
    assert!(errors(open(&folder.0.join("none.txt"), vec![ids(None)], 1)).contains("there is no such file"));
    let npz = folder.npz("d.npz", &arrays(4));
    assert!(errors(Dataset::open(&npz, pair(), 1, &options)).contains("this is not text"));
}

#[test]
fn what_does_not_fit_is_listed_together() {
    let folder = Folder::new("misfit");
    let path =
        folder.npz("d.npz", &[("input_ids", Tensor::from_f32(&[4, 2], &[0.0; 8])), ("y", Tensor::from_f32(&[4, 1], &[0.0; 4]))]);
    let inputs =
        vec![spec("inputs_ids", DType::F32, &[2], None), spec("y", DType::I64, &[], None), spec("z", DType::F32, &[], None)];
    let text = errors(open(&path, inputs, 2));
    assert!(text.contains("no array `inputs_ids`") && text.contains("did you mean `input_ids`?"), "{text}");
    assert!(text.contains("`y` has elements of type f32, the model wants i64"), "{text}");
    assert!(text.contains("`y` has shape [4, 1], the model wants [samples]"), "{text}");
    assert!(text.contains("no array `z`"), "{text}");

    let mut different = arrays(6);
    different[1].1 = Tensor::from_i64(&[5], &[0; 5]);
    assert!(errors(open(&folder.npz("n.npz", &different), pair(), 2)).contains("`y` has 5 samples, `x` has 6"));
    assert!(errors(open(&folder.npz("f.npz", &arrays(3)), pair(), 4)).contains("3 samples, less than one batch of 4"));
    let mut range = arrays(6);
    range[1].1 = Tensor::from_i64(&[6], &[0, 1, -100, 11, 0, 0]);
    let path = folder.npz("r.npz", &range);
    assert!(errors(open(&path, pair(), 2)).contains("`y` is -100 at [2], outside 0..10"));
    let mut inputs = pair();
    inputs[1].except = Some(-100);
    assert!(errors(open(&path, inputs, 2)).contains("`y` is 11 at [3]"));
    let mut nan = arrays(6);
    nan[0].1 = Tensor::from_f64(&[6, 2], &[0.0, 0.0, 0.0, f64::NAN, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert!(errors(open(&folder.npz("nan.npz", &nan), pair(), 2)).contains("`x` is NaN at [1, 1], which is no finite number"));
    assert!(errors(open(&folder.file("d.csv", b"1,2"), pair(), 2)).contains("says nothing about what the data is"));
}

/// A `.npy` of version 1 with that header and data.
fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let padded = format!("{header:<117}\n");
    [b"\x93NUMPY\x01\x00", &(padded.len() as u16).to_le_bytes()[..], padded.as_bytes(), data].concat()
}

/// The whole array that a folder with that `x.npy` gives as `dtype`.
fn array(folder: &Folder, file: &[u8], dtype: DType, sample: &[u64]) -> Result<Tensor, String> {
    folder.file("x.npy", file);
    let data = open(&folder.0, vec![spec("x", dtype, sample, None)], 1).map_err(|errors| errors[0].to_string())?;
    Ok(data.rows(&data.in_order(0, data.samples())).remove(0))
}

#[test]
fn elements_of_every_type_and_order_are_read() {
    let folder = Folder::new("types");
    let read = |descr: &str, fortran: &str, shape: &str, data: &[u8], dtype: DType, sample: &[u64]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
        array(&folder, &npy(&header, data), dtype, sample)
    };
    for (descr, bytes, values) in [
        ("|i1", &[1, 255][..], [1, -1]),
        ("|u1", &[1, 255], [1, 255]),
        ("<i2", &[0, 1, 255, 255], [256, -1]),
        ("<u2", &[0, 1, 255, 255], [256, 65535]),
        (">i2", &[1, 0, 255, 254], [256, -2]),
        ("<i4", &[0, 0, 1, 0, 255, 255, 255, 255], [65536, -1]),
        (">u4", &[0, 1, 0, 0, 0, 0, 0, 7], [65536, 7]),
        ("<i8", &[1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255], [1, -1]),
        (">u8", &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2], [256, 2]),
        ("|b1", &[1, 0], [1, 0]),
    ] {
        let values: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
        let whole = Tensor::from_f64(&[2], &values).cast(DType::I64);
        assert_eq!(read(descr, "False", "(2,)", bytes, DType::I64, &[]).unwrap(), whole, "{descr}");
        assert_eq!(read(descr, "False", "(2,)", bytes, DType::F32, &[]).unwrap(), whole.cast(DType::F32), "{descr}");
    }
    let halves = Tensor::from_f32(&[2], &[1.5, -2.0]);
    for (descr, bytes) in [
        ("<f2", &[0x00, 0x3e, 0x00, 0xc0][..]),
        (">f2", &[0x3e, 0x00, 0xc0, 0x00]),
        (">f4", &[0x3f, 0xc0, 0, 0, 0xc0, 0, 0, 0]),
        ("<f8", &[0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0xc0]),
    ] {
        assert_eq!(read(descr, "False", "(2,)", bytes, DType::F32, &[]).unwrap(), halves, "{descr}");
        assert_eq!(read(descr, "False", "(2,)", bytes, DType::F64, &[]).unwrap(), halves.cast(DType::F64), "{descr}");
    }
    let truth = Tensor::from_bool(&[2], &[true, false]);
    assert_eq!(read("|b1", "False", "(2,)", &[7, 0], DType::Bool, &[]).unwrap(), truth);
    assert_eq!(read("|u1", "False", "(2,)", &[1, 0], DType::Bool, &[]).unwrap(), truth);
    let by_column = read("|u1", "True", "(2, 3)", &[1, 2, 3, 4, 5, 6], DType::I64, &[3]).unwrap();
    assert_eq!(by_column, Tensor::from_i64(&[2, 3], &[1, 3, 5, 2, 4, 6]));
    let cube: Vec<u8> = (0..12).collect();
    let by_column = read("|u1", "True", "(2, 2, 3)", &cube, DType::I64, &[2, 3]).unwrap();
    assert_eq!(by_column, Tensor::from_i64(&[2, 2, 3], &[0, 4, 8, 2, 6, 10, 1, 5, 9, 3, 7, 11]));
}

#[test]
fn broken_files_are_errors() {
    let folder = Folder::new("broken");
    let good = std::fs::read(folder.npz("d.npz", &arrays(7))).unwrap();
    for length in (0..good.len()).step_by(7) {
        errors(open(&folder.file("cut.npz", &good[..length]), pair(), 2));
    }
    // A flipped byte is found or does no harm.
    for at in (0..good.len()).step_by(5) {
        let mut bad = good.clone();
        bad[at] ^= 0x55;
        let _ = open(&folder.file("flip.npz", &bad), pair(), 2);
    }
    assert!(errors(open(&folder.file("a.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\x7f{}"), pair(), 2)).contains("broken"));
    let folder = Folder::new("broken-array");
    assert!(errors(open(&folder.0, pair(), 2)).contains("the folder has no file of data"));
    folder.file("x.npy", b"nonsense");
    assert!(errors(open(&folder.0, pair(), 2)).contains("`x` cannot be read: it is no `.npy`"));
}

#[test]
fn a_folder_and_safetensors_are_read() {
    let folder = Folder::new("others");
    folder.file("x.npy", &npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }", &[0; 16]));
    folder.file("y.npy", &npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", &[1, 0, 0, 0, 2, 0, 0, 0]));
    assert_eq!(open(&folder.0, pair(), 2).unwrap().batch(0)[1].to_i64(), [1, 2]);
    let header =
        br#"{"x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"y":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8], &[7]].concat();
    assert_eq!(open(&folder.file("d.safetensors", &file), pair(), 1).unwrap().batch(0)[1].to_i64(), [7]);
}

/// The types that are read of a header are those of the arrays, and a file that has not the bytes
/// which its header says is broken for both.
#[test]
fn types_of_safetensors_are_those_of_their_arrays() {
    let folder = Folder::new("types");
    let header =
        br#"{"x":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]},"y":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 5]].concat();
    let arrays = read_safetensors(&file).unwrap();
    let of_arrays: BTreeMap<String, Type> =
        arrays.into_iter().map(|(name, array)| (name, Type::new(array.dtype, array.shape))).collect();
    assert_eq!(safetensors_types(&folder.file("d.safetensors", &file)).unwrap(), of_arrays);
    let longer = [&file[..], &[0]].concat();
    for broken in [&file[..file.len() - 1], &longer, &file[..40], &file[..3], &[], &[0xff; 64]] {
        assert!(read_safetensors(broken).is_err());
        let error = safetensors_types(&folder.file("broken.safetensors", broken)).expect_err("it is broken");
        assert!(error.message.contains("the file is broken"), "{error:?}");
    }
}

/// Files whose samples are `starts[i]..` of the same run of numbers.
fn shard(folder: &Folder, name: &str, from: u64, to: u64) -> PathBuf {
    let [(_, x), (_, y)] = arrays(to);
    let (x, y) = (x.block(0, from, to - from), y.block(0, from, to - from));
    folder.npz(name, &[("x", x), ("y", y)])
}

fn open_all(paths: &[PathBuf], batch: u64, shuffle: bool) -> Result<Dataset, Diagnostics> {
    Dataset::open_all(paths, pair(), batch, &Options { shuffle, seed: 3, ..Options::default() })
}

#[test]
fn samples_run_through_all_files() {
    let folder = Folder::new("files");
    let whole = folder.npz("whole.npz", &arrays(20));
    let shards = Folder::new("files-shards");
    // In the order of bytes, and one that is empty.
    let cuts = [("A.npz", 0, 3), ("a.npz", 3, 3), ("b10.npz", 3, 14), ("b9.npz", 14, 20)];
    let files: Vec<PathBuf> = cuts.iter().map(|(name, from, to)| shard(&shards, name, *from, *to)).collect();
    shards.file(".hidden.npz", b"no archive");
    shards.file("notes.md", b"no data");
    for shuffle in [false, true] {
        let one = open_all(from_ref(&whole), 6, shuffle).unwrap();
        for paths in [&files[..], from_ref(&shards.0), &[files[0].clone(), shards.0.clone()]] {
            let several = open_all(paths, 6, shuffle).unwrap();
            if paths.len() == 2 {
                assert_eq!((several.samples(), several.steps_per_epoch()), (23, 3));
                continue;
            }
            assert_eq!((several.samples(), several.steps_per_epoch()), (20, 3));
            (0..7).for_each(|step| assert_eq!(several.batch(step), one.batch(step), "step {step} of {paths:?}"));
            assert_eq!(several.rows(&several.in_order(0, 20)), one.rows(&one.in_order(0, 20)));
        }
    }
    // Folders of arrays are parts too.
    let arrays = Folder::new("files-arrays");
    let npy = |name: &str, descr: &str, shape: &str, data: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        arrays.file(name, &[b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat());
    };
    npy("x.npy", "|u1", "(2, 2)", &[1, 2, 3, 4]);
    npy("y.npy", "|u1", "(2,)", &[8, 9]);
    arrays.file("README.txt", b"a text beside arrays is none of them");
    let data = open_all(&[arrays.0.clone(), arrays.0.clone()], 1, false).unwrap();
    assert_eq!(data.rows(&[0, 1, 2, 3])[1].to_i64(), [8, 9, 8, 9]);
}

#[test]
fn windows_stay_inside_their_text() {
    let folder = Folder::new("texts");
    folder.file("1.txt", b"abcdefg");
    folder.file("2.txt", b"ABCD");
    folder.file("3.txt", b"0123456789");
    let inputs = || vec![spec("ids", DType::I64, &[3], Some((0, 256))), spec("labels", DType::I64, &[3], Some((0, 256)))];
    let open = |shuffle| {
        let options = Options { shuffle, seed: 5, ..Options::default() };
        Dataset::open(&folder.0, inputs(), 2, &options).unwrap()
    };
    let text = |t: &Tensor| -> Vec<String> {
        t.to_i64().chunks(3).map(|window| window.iter().map(|c| *c as u8 as char).collect()).collect()
    };
    let data = open(false);
    let all = data.rows(&data.in_order(0, 10));
    assert_eq!(text(&all[0]), ["abc", "def", "ABC", "012", "345", "678"]);
    assert_eq!(text(&all[1]), ["bcd", "efg", "BCD", "123", "456", "789"]);
    assert_eq!(data.batch(1)[0].to_i64(), data.rows(&data.in_order(2, 4))[0].to_i64());
    let (random, mut seen) = (open(true), std::collections::BTreeSet::new());
    for step in 0..200 {
        let batch = random.batch(step);
        for (ids, labels) in text(&batch[0]).iter().zip(text(&batch[1])) {
            assert_eq!(ids[1..], labels[..2]);
            seen.insert(ids.clone() + &labels[2..]);
        }
    }
    let texts = ["abcdefg", "ABCD", "0123456789"];
    let windows = texts.iter().flat_map(|text| text.as_bytes().windows(4)).map(|w| String::from_utf8_lossy(w).into_owned());
    assert_eq!(seen, windows.collect(), "every window of four tokens, and none that crosses files");
}

#[test]
fn each_file_is_told_what_is_wrong_with_it() {
    let folder = Folder::new("files-wrong");
    let good = shard(&folder, "a.npz", 0, 4);
    let broken = folder.file("b.npz", b"garbage");
    let short = folder.npz("c.npz", &[("x", Tensor::from_f64(&[2, 3], &[0.0; 6]))]);
    let value = folder.npz("d.npz", &[("x", Tensor::from_f64(&[1, 2], &[0.0; 2])), ("y", Tensor::from_i64(&[1], &[77]))]);
    let told = errors(open_all(&[good.clone(), broken, short, value.clone()], 1, false));
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    let holds = |line: &str, parts: [&str; 2]| assert!(parts.iter().all(|part| line.contains(part)), "{parts:?} in {line}");
    holds(lines[0], ["b.npz", "the archive is broken"]);
    holds(lines[1], ["c.npz", "`x` has shape [2, 3]"]);
    holds(lines[2], ["c.npz", "no array `y`"]);
    let told = errors(open_all(&[good.clone(), value.clone(), folder.0.join("a.npy"), value], 1, false));
    assert!(told.contains("there is no such file") && told.contains("a.npy") && told.lines().count() == 1, "{told}");
    let told = errors(open_all(
        &[good.clone(), folder.npz("d.npz", &arrays(80).map(|(n, t)| (n, if n == "y" { minus(&t) } else { t })))],
        1,
        false,
    ));
    assert!(told.contains("d.npz") && told.contains("is -1 at [1]") && told.lines().count() == 1, "{told}");

    let text = folder.file("t.txt", b"abcdef");
    let told = errors(open_all(&[good, text.clone()], 1, false));
    assert!(told.contains("of several kinds: `") && told.contains("t.txt` is a `.txt`"), "{told}");
    let told = errors(open_all(from_ref(&folder.0), 1, false));
    assert!(told.contains("the folder has files of data of several kinds, such as `a.npz`, `t.txt`"), "{told}");
    let ids = || vec![spec("ids", DType::I64, &[3], Some((0, 256)))];
    let short = folder.file("s.txt", b"ab");
    let told = errors(Dataset::open_all(&[text, short], ids(), 1, &Options::default()));
    assert!(told.contains("s.txt") && told.contains("a text of 2 tokens") && told.lines().count() == 1, "{told}");
    assert!(errors(open_all(&[], 1, false)).contains("no file of data is named"));
}

fn minus(y: &Tensor) -> Tensor {
    Tensor::from_i64(&y.shape, &y.to_i64().iter().map(|label| -label).collect::<Vec<_>>())
}
