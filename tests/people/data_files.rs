//! `shardc data`: what it shows of every kind of file, and what it says of broken ones.

use crate::support::{example, folder, shardc};
use serde_json::{Value, json};
use shardc_executor::data::{read_npz, write_npz, write_safetensors};
use shardc_executor::tensor::Tensor;
use std::fs;
use std::path::Path;

/// A `.npy` of version 1.
fn npy(descr: &str, fortran: bool, shape: &str, elements: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let header = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), elements].concat()
}

fn told(here: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&shardc(here, &[&["data"], arguments, &["--json"]].concat()).expect(0).out).expect("JSON")
}

#[test]
fn arrays_are_shown_in_a_table() {
    let here = folder("data-table");
    let x = Tensor::from_f32(&[3, 2], &[0.5, -1.25, f32::NAN, 1e-5, 2e6, f32::INFINITY]);
    let y = Tensor::from_i64(&[3], &[-100, 4, 0]);
    write_npz(&here.join("d.npz"), &[("x".to_string(), x.clone()), ("label".to_string(), y.clone())].into()).expect("data");
    let ran = shardc(&here, &["data", "d.npz"]).expect(0);
    let table = "\
d.npz: a `.npz`, 2 arrays of 3 samples

  array  type  shape     least     mean  greatest
  label  i64   [3]        -100                  4
  x      f32   [3, 2]  -1.2500  5.000e5   2.000e6  2 are not finite

For training, arrays have the names of the model's inputs and of the spec's labels; dimension 0 counts the samples.
";
    assert_eq!(ran.out, table);
    let few = Tensor::from_i64(&[2], &[1, 2]);
    let arrays = [("x".to_string(), x.clone()), ("y".to_string(), few)].into();
    fs::write(here.join("d.safetensors"), write_safetensors(&arrays).expect("bytes")).expect("a file");
    let ran = shardc(&here, &["data", "d.safetensors"]).expect(0);
    assert!(ran.out.starts_with("d.safetensors: a `.safetensors`, 2 arrays\n"), "{}", ran.out);
    assert!(ran.out.contains("differ in their number of samples"), "{}", ran.out);
    assert_eq!(told(&here, &["d.safetensors"])["samples"], Value::Null);
    let x = told(&here, &["d.npz"])["arrays"][1].clone();
    assert_eq!((&x["not_finite"], &x["min"], &x["shape"]), (&json!(2), &json!(-1.25), &json!([3, 2])));
    assert_eq!(told(&here, &[&example("digits/test.npz")])["samples"], 512);
}

#[test]
fn every_type_and_order_is_read() {
    let here = folder("data-types");
    fs::create_dir(here.join("f")).expect("a folder");
    let save = |name: &str, bytes: Vec<u8>| fs::write(here.join(format!("f/{name}.npy")), bytes).expect("a file");
    save("big", npy("'>i2'", false, "(2, 2)", &[0x01, 0x00, 0xff, 0xff, 0, 7, 0, 9]));
    save("columns", npy("'<f8'", true, "(2, 1)", &[1.5f64.to_le_bytes(), (-2.5f64).to_le_bytes()].concat()));
    save("huge", npy("'<u8'", false, "(2,)", &[u64::MAX.to_le_bytes(), (u64::MAX - 1).to_le_bytes()].concat()));
    save("none", npy("'<f4'", false, "(0, 3)", &[]));
    save("scalar", npy("'|b1'", false, "()", &[1]));
    save("half", npy("'<f2'", false, "(2,)", &[0x00, 0x3c, 0x00, 0x7c]));
    // More than one piece of a megabyte.
    let long: Vec<u8> = (0..400_000).flat_map(|i: i64| (i - 200_000).to_le_bytes()).collect();
    save("long", npy("'<i8'", false, "(400000,)", &long));
    let all = told(&here, &["f"]);
    let row =
        |name: &str| all["arrays"].as_array().expect("rows").iter().find(|row| row["name"] == name).expect("it is there").clone();
    let ends = |name: &str| (row(name)["min"].to_string(), row(name)["max"].to_string());
    let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
    assert_eq!(ends("big"), pair("-1", "256"));
    assert_eq!(ends("columns"), pair("-2.5", "1.5"));
    assert_eq!(row("columns")["mean"], -0.5);
    assert_eq!(ends("huge"), pair("18446744073709551614", "18446744073709551615"));
    assert_eq!(ends("none"), pair("null", "null"));
    assert_eq!(ends("scalar"), pair("1", "1"));
    assert_eq!((ends("half"), &row("half")["not_finite"]), (pair("1.0", "1.0"), &json!(1)));
    assert_eq!(ends("long"), pair("-200000", "199999"));
    assert_eq!((&row("none")["samples"], &row("scalar")["samples"]), (&json!(0), &Value::Null));
    // A single array is shown too.
    let one = told(&here, &["f/big.npy"]);
    assert_eq!((&one["kind"], &one["arrays"][0]["name"]), (&json!("npy"), &json!("big")));
}

#[test]
fn tokens_are_counted() {
    let here = folder("data-tokens");
    fs::write(here.join("t.txt"), "abcabc").expect("text");
    let ran = shardc(&here, &["data", "t.txt", "--context", "2"]).expect(0);
    let text = "\
t.txt: text, whose bytes are the tokens

  tokens      6
  used        3 different, from 97 to 99
  vocabulary  at least 100
  windows     2 of 2 tokens

";
    assert!(ran.out.starts_with(text), "{}", ran.out);
    let words = [0x0101u16, 65535, 7].map(u16::to_le_bytes).concat();
    fs::write(here.join("t.bin"), words).expect("tokens");
    let expected = json!({"kind": "bin", "tokens": 3, "distinct": 3, "min": 7, "max": 65535, "context": 1, "windows": 2});
    assert_eq!(told(&here, &["t.bin", "--context", "1"]), expected);
    fs::write(here.join("e.txt"), "").expect("nothing");
    let nothing = json!({"kind": "text", "tokens": 0, "distinct": 0, "min": null, "max": null, "context": 4, "windows": 0});
    assert_eq!(told(&here, &["e.txt", "--context", "4"]), nothing);
}

#[test]
fn broken_files_are_one_message() {
    let here = folder("data-broken");
    let good = fs::read(example("digits/train.npz")).expect("data");
    let save = |name: &str, bytes: &[u8]| fs::write(here.join(name), bytes).expect("a file");
    save("half.npz", &good[..good.len() / 2]);
    save("text.npz", b"no archive");
    save("odd.bin", &[1, 2, 3]);
    save("one.bin", &[1]);
    save("a.csv", b"1,2\n");
    save("claims.npy", &npy("'<f4'", false, "(125000000000, 2)", &[0; 24]));
    save("objects.npy", &npy("'|O'", false, "(2,)", &[0; 16]));
    save("cut.safetensors", &[8, 0, 0, 0, 0, 0, 0, 0, b'{']);
    fs::create_dir(here.join("empty")).expect("a folder");
    let cases: [(&[&str], &str); 11] = [
        (&["half.npz"], "the archive is broken"),
        (&["text.npz"], "the archive is broken"),
        (&["odd.bin"], "3 bytes are no whole number of 16-bit tokens"),
        (&["one.bin"], "1 byte is no 16-bit token"),
        (&["a.csv"], "the ending of the name says nothing"),
        (&["claims.npy"], "`claims` cannot be read: its header says f32[125000000000, 2]"),
        (&["objects.npy"], "`objects` cannot be read: it holds Python objects"),
        (&["cut.safetensors"], "the file is broken"),
        (&["empty"], "the folder has no file of data"),
        (&["none.npz"], "there is no such file or folder"),
        (&["empty", "--context", "2"], "this is not text"),
    ];
    for (arguments, says) in cases {
        let ran = shardc(&here, &[&["data"], arguments].concat()).expect(1);
        assert!(ran.err.contains(says) && ran.err.matches("error: ").count() == 1, "{arguments:?}: {}", ran.err);
    }
    // Arrays that can be read are shown beside those that cannot.
    fs::create_dir(here.join("mixed")).expect("a folder");
    save("mixed/bad.npy", &npy("'|O'", false, "(2,)", &[0; 16]));
    save("mixed/good.npy", &npy("'|u1'", false, "(2,)", &[3, 4]));
    let ran = shardc(&here, &["data", "mixed"]).expect(1);
    assert!(ran.out.contains("  bad    cannot be read\n") && ran.out.contains("  good   u8"), "{}", ran.out);
    let ran = shardc(&here, &["data", "mixed", "--json"]).expect(1);
    let told: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert!(told["arrays"][0]["error"].as_str().is_some_and(|why| why.contains("Python objects")), "{told}");
    assert_eq!(told["arrays"][1]["max"], 4);
}

#[cfg(target_os = "linux")]
#[test]
fn endless_files_are_refused() {
    let here = folder("data-endless");
    for name in ["z.txt", "z.bin", "z.npz", "z.safetensors", "z.npy"] {
        std::os::unix::fs::symlink("/dev/zero", here.join(name)).expect("links are possible");
        let ran = shardc(&here, &["data", name]).expect(1);
        assert!(ran.err.contains("it is not a file"), "{name}: {}", ran.err);
    }
}

/// Files of one kind are one data set, named one by one or as a folder.
#[test]
fn several_files_are_one_data_set() {
    let here = folder("data-several");
    let arrays = read_npz(fs::File::open(example("digits/test.npz")).expect("a file")).expect("arrays");
    fs::create_dir(here.join("shards")).expect("a folder");
    let mut from = 0;
    for (name, to) in [("1", 100), ("2", 101), ("3", 512)] {
        let part = |t: &Tensor| t.block(0, from, to - from);
        let part = arrays.iter().map(|(name, t)| (name.clone(), part(t))).collect();
        fs::write(here.join(format!("shards/{name}.safetensors")), write_safetensors(&part).expect("bytes")).expect("a file");
        from = to;
    }
    fs::write(here.join("job.shard"), "batch 64\nloss cross_entropy labels=y\noptimizer sgd lr=0.1\n").expect("a spec");
    let whole = example("digits/test.npz");
    let run = |data: &[&str]| {
        let data: Vec<&str> = data.iter().flat_map(|file| ["--data", file]).collect();
        let model = example("digits/model.onnx");
        let job = [&[&model, "--spec", "job.shard"], &data[..]].concat();
        shardc(&here, &[&["train"], &job[..], &["--shuffle", "--steps", "9", "--export", "e.onnx"]].concat()).expect(0);
        let eval = shardc(&here, &[&["eval"], &job[..], &["--json"]].concat()).expect(0).out;
        (eval, fs::read(here.join("e.onnx")).expect("an export"))
    };
    let expected = run(&[&whole]);
    assert!(run(&["shards"]) == expected);
    assert!(run(&["shards/1.safetensors", "shards/2.safetensors", "shards/3.safetensors"]) == expected);
    let ran =
        shardc(&here, &["eval", &example("digits/model.onnx"), "--spec", "job.shard", "--data", "shards", "--data", &whole]);
    assert!(ran.expect(1).err.contains("the files of data are of several kinds"));
    let ran = shardc(&here, &["data", "shards"]).expect(1);
    assert!(ran.err.contains("a folder of files of data") && ran.err.contains("give one of its files"), "{}", ran.err);
    shardc(&here, &["data", "shards/1.safetensors"]).expect(0);
}
